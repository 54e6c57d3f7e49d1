"""The command ``pgleaderlock``: takes part in an election and says what happens."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any, Optional

try:
    import click
    from loguru import logger
except ImportError:  # pragma: no cover
    sys.exit("the command needs more packages: pip install 'tenure[cli]'")

from ..errors import TenureError
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
    """Take part in the election until interrupted, and log all that happens."""
    lock = LeaderLock(
        dsn,
        key1,
        key2,
        retry_strategy=ExponentialBackoff(retry_base, retry_max),
        health_interval_s=health_interval,
        reconnect_grace_s=reconnect_grace,
        auto_reacquire=not no_auto_reacquire,
    )
    _exit(_run(lock))


async def _run(lock: LeaderLock) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    for name in ("acquired", "released", "lost", "acquire_failed"):
        _tell(lock, name)

    @lock.on_state_change
    def changed(before: LockState, after: LockState) -> None:
        logger.info("{} -> {}", before.name, after.name)

    @lock.on_error
    def failed(error: Exception) -> None:
        logger.error("{}", error)

    @lock.on_stopped
    def ended() -> None:
        stopped.set()

    await lock.start()
    await stopped.wait()
    await lock.shutdown()
    return 0


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
    if not rows:
        click.echo("the lock is free")
    for pid, granted, user, name in rows:
        click.echo(f"pid {pid} {'holds' if granted else 'waits for'} the lock: {user} {name}")


def _exit(work: Any) -> None:
    try:
        code = asyncio.run(work)
    except TenureError as error:
        logger.error("{}", error)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
