"""The command ``pgleaderlock``: takes part in an election and says what happens."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any, List, NoReturn, Optional

try:
    import click
    from loguru import logger
except ImportError:  # pragma: no cover
    sys.exit("the command needs more packages: pip install 'tenure[cli]'")

from ..errors import LockError, TenureError
from ..models import check_key
from .lock import LeaderLock
from .models import LockState
from .retry import ExponentialBackoff


class InterceptHandler(logging.Handler):
    """Passes lines of the standard library's logging on to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        """Passes one line on."""
        try:
            level: Any = logger.level(record.levelname).name
        except ValueError:
            level = record.levelno
        logger.opt(exception=record.exc_info).log(level, "{}", record.getMessage())


def _intercept() -> None:
    logger.remove()
    logger.add(sys.stderr)
    for name in ("pgleaderlock", "tenure"):
        own = logging.getLogger(name)
        own.handlers = [InterceptHandler()]
        own.setLevel(logging.DEBUG)
        own.propagate = False


def _options(command: Any) -> Any:
    for option in (
        click.option("--key2", type=int, required=True, help="Advisory lock key 2."),
        click.option("--key1", type=int, required=True, help="Advisory lock key 1."),
        click.option("--dsn", envvar="PG_DSN", required=True, help="PostgreSQL connection string."),
    ):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Leader election on PostgreSQL."""
    _intercept()


@main.command()
@_options
@click.option("--health-interval", type=float, default=5.0, show_default=True, help="Seconds.")
@click.option("--retry-base", type=float, default=1.0, show_default=True, help="First delay, seconds.")
@click.option("--retry-max", type=float, default=30.0, show_default=True, help="Longest delay, seconds.")
@click.option("--reconnect-grace", type=float, default=None, help="Flap damping, seconds; omit to disable.")
@click.option("--no-auto-reacquire", is_flag=True, help="Stop after the first term.")
def run(
    dsn: str,
    key1: int,
    key2: int,
    health_interval: float,
    retry_base: float,
    retry_max: float,
    reconnect_grace: Optional[float],
    no_auto_reacquire: bool,
) -> None:
    """Take part in the election until interrupted, and log all that happens. Exits 2 if it cannot."""

    async def take_part() -> int:
        lock = LeaderLock(
            dsn,
            key1,
            key2,
            retry_strategy=ExponentialBackoff(retry_base, retry_max),
            health_interval_s=health_interval,
            reconnect_grace_s=reconnect_grace,
            auto_reacquire=not no_auto_reacquire,
        )
        return await _run(lock, ends_by_itself=no_auto_reacquire)

    _exit(take_part())


async def _run(lock: LeaderLock, *, ends_by_itself: bool) -> int:
    asked, stopped = asyncio.Event(), asyncio.Event()
    errors: List[Exception] = []
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    for name in ("acquired", "released", "lost", "acquire_failed"):
        _tell(lock, name)

    @lock.on_state_change
    def changed(before: LockState, after: LockState) -> None:
        logger.info("{} -> {}", before.name, after.name)

    @lock.on_error
    def failed(error: Exception) -> None:
        errors.append(error)
        logger.error("{}", error)

    lock.on_stopped(stopped.set)
    interrupted = asyncio.ensure_future(asked.wait())
    ended = asyncio.ensure_future(stopped.wait())
    starting = asyncio.ensure_future(lock.start())
    # A start may wait for a server that is silent; a signal ends that too.
    await asyncio.wait({starting, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        await asyncio.wait({interrupted, ended}, return_when=asyncio.FIRST_COMPLETED)
    await lock.shutdown()
    await asyncio.gather(starting, return_exceptions=True)
    if asked.is_set() or ends_by_itself:
        return 0
    raise errors[-1] if errors else LockError("the lock stopped by itself")


def _tell(lock: LeaderLock, name: str) -> None:
    getattr(lock, f"on_{name}")(lambda: logger.info("on_{}", name))


@main.command()
@_options
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to wait.")
def acquire(dsn: str, key1: int, key2: int, timeout: float) -> None:
    """Try once: exits 0 if the lock was acquired (and released again), 1 if not."""

    async def attempt() -> int:
        async with LeaderLock(dsn, key1, key2) as lock:
            return 0 if await lock.wait_for_leadership(timeout) else 1

    _exit(attempt())


@main.command()
@_options
def status(dsn: str, key1: int, key2: int) -> None:
    """Show the sessions that hold or wait for the lock. For people: it does not prove leadership."""
    import psycopg

    try:
        check_key("key1", key1, 32)
        check_key("key2", key2, 32)
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(
                "select l.pid, l.granted, a.usename, a.application_name"
                " from pg_locks l left join pg_stat_activity a using (pid)"
                " where l.locktype = 'advisory' and l.objsubid = 2"
                " and l.database = (select oid from pg_database where datname = current_database())"
                " and l.classid = (%s::bigint & 4294967295)::oid"
                " and l.objid = (%s::bigint & 4294967295)::oid order by l.granted desc, l.pid",
                (key1, key2),
            ).fetchall()
    except (ValueError, psycopg.Error) as error:
        _fail(error)
    if not rows:
        click.echo("the lock is free")
    for pid, granted, user, name in rows:
        click.echo(f"pid {pid} {'holds' if granted else 'waits for'} the lock: {user} {name}")


def _exit(work: Any) -> NoReturn:
    try:
        code = asyncio.run(work)
    except (TenureError, ValueError) as error:
        _fail(error)
    sys.exit(code)


def _fail(error: Exception) -> NoReturn:
    """A bad value, a set-up that is refused, a server that cannot be asked."""
    logger.error("{}", error)
    sys.exit(2)


if __name__ == "__main__":
    main()
