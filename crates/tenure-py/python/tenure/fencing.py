"""The fence: the caller's own transaction is tied to an epoch."""

from __future__ import annotations

import inspect
from typing import Any, Awaitable, Coroutine, NoReturn, Optional, Protocol, overload

from .errors import LockError, StaleEpoch, UnknownRole

__all__ = ["fence"]

_STALE, _UNKNOWN = "TN001", "TN003"


class _Asynchronous(Protocol):
    """A cursor, connection or session whose answers are awaited."""

    def execute(self, *arguments: Any, **options: Any) -> Awaitable[Any]: ...


# What is not known to be asynchronous is taken as synchronous; a driver without types is either.
@overload
def fence(  # pyright: ignore[reportOverlappingOverload]
    cursor: _Asynchronous, role: str, epoch: int
) -> Coroutine[Any, Any, None]: ...
@overload
def fence(cursor: Any, role: str, epoch: int) -> None: ...
def fence(cursor: Any, role: str, epoch: int) -> Optional[Coroutine[Any, Any, None]]:
    """Ties the open transaction to ``epoch``: it commits only if no newer epoch of the role was issued.

    ``cursor`` is a cursor or a connection of psycopg or psycopg2, a connection of asyncpg, or a
    connection or session of SQLAlchemy. Await the answer where the driver is asynchronous::

        async with connection.transaction():
            await tenure.fence(connection, "scheduler", act.epoch)
            await connection.execute("insert into job_run …")

    Raises :class:`tenure.StaleEpoch` if another member leads: roll back and stop acting. Set the fence
    outside any savepoint: a rollback to one gives the fence back.
    """
    if isinstance(epoch, bool) or not isinstance(epoch, int):
        raise TypeError(f"epoch must be an int, not {type(epoch).__name__}; a lock with lock_only has none")
    kinds = {kind.__module__.split(".")[0] for kind in type(cursor).__mro__}
    if "asyncpg" in kinds:
        if not cursor.is_in_transaction():
            _outside()
        answer = cursor.execute("select tenure.fence($1::text, $2::bigint)", role, epoch)
    elif "sqlalchemy" in kinds:
        if hasattr(cursor, "run_sync"):
            answer = cursor.run_sync(_through_sqlalchemy, role, epoch)
        else:
            answer = _guarded(role, epoch, _through_sqlalchemy, cursor, role, epoch)
    elif kinds & {"psycopg", "psycopg2", "psycopg_pool"}:
        connection = getattr(cursor, "connection", cursor)
        status = getattr(connection.info, "transaction_status", None)
        if connection.autocommit and status == 0:
            _outside()
        act = cursor if hasattr(cursor, "execute") else cursor.cursor()
        query = "select tenure.fence(%s::text, %s::bigint)"
        answer = _guarded(role, epoch, act.execute, query, (role, epoch))
    else:
        raise TypeError(
            "fence takes a cursor or connection of psycopg, asyncpg or SQLAlchemy, not "
            f"{type(cursor).__name__}; with another driver run select tenure.fence(role, epoch)"
        )
    if inspect.isawaitable(answer):
        return _awaited(role, epoch, answer)
    return None


def _through_sqlalchemy(subject: Any, role: str, epoch: int) -> None:
    """Sets the fence in the transaction of a connection or session."""
    from sqlalchemy import text

    connection: Any = subject.connection() if callable(subject.connection) else subject
    # As the driver has it: the isolation level may come from the engine, or from an option of the connection.
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        _outside()
    statement = text("select tenure.fence(cast(:role as text), cast(:epoch as bigint))")
    subject.execute(statement, {"role": role, "epoch": epoch})


def _outside() -> NoReturn:
    raise LockError(
        "the fence needs a transaction of yours: without one it ends with its own statement; open a "
        "transaction first"
    )


def _guarded(role: str, epoch: int, call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        _raise(role, epoch, error)


async def _awaited(role: str, epoch: int, answer: Awaitable[Any]) -> None:
    try:
        await answer
    except Exception as error:
        _raise(role, epoch, error)


def _raise(role: str, epoch: int, error: Exception) -> NoReturn:
    code = _sqlstate(error)
    if code == _STALE:
        raise StaleEpoch(
            f"epoch {epoch} of role {role} is stale: another member leads; roll back"
        ) from error
    if code == _UNKNOWN:
        raise UnknownRole(
            f"the database knows no role {role}; start a lock for it before fencing with it"
        ) from error
    raise error


def _sqlstate(error: Optional[BaseException]) -> Optional[str]:
    """The code of a driver's error, also through SQLAlchemy's wrappers."""
    for _ in range(4):
        if error is None:
            return None
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if isinstance(code, str):
            return code
        error = getattr(error, "orig", None) or error.__cause__
    return None
