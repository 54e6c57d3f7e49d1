"""What ``connect_fn`` returns becomes a connection string; the connection itself is closed."""

from __future__ import annotations

import inspect
from typing import Any, Callable

from .errors import ConnectionError

#: What a session of ours understands; the rest is about the client library.
_KEPT = frozenset(
    "host hostaddr port user dbname sslmode sslrootcert sslcert sslkey sslnegotiation channel_binding "
    "target_session_attrs load_balance_hosts options application_name connect_timeout keepalives "
    "keepalives_idle keepalives_interval keepalives_count tcp_user_timeout".split()
)


async def connection_string(connect_fn: Callable[[], Any]) -> str:
    """Calls ``connect_fn``, reads the parameters and the password, and closes the connection."""
    connection = connect_fn()
    if inspect.isawaitable(connection):
        connection = await connection
    try:
        return _read(connection)
    finally:
        close = getattr(connection, "close", None)
        if callable(close):
            closed = close()
            if inspect.isawaitable(closed):
                await closed


def _read(connection: Any) -> str:
    try:
        import psycopg
        from psycopg.conninfo import make_conninfo
    except ImportError:
        raise ConnectionError("connect_fn needs psycopg: pip install 'psycopg[binary]'") from None
    if not isinstance(connection, (psycopg.AsyncConnection, psycopg.Connection)):
        raise TypeError(
            "connect_fn must return a psycopg connection, not "
            f"{type(connection).__name__}; the session of a lock is one that this package opened "
            "and verified. For a test without a database use tenure.testing"
        )
    info = connection.info
    parameters = {key: value for key, value in info.get_parameters().items() if key in _KEPT}
    if info.password:
        parameters["password"] = info.password
    return make_conninfo("", **parameters)
