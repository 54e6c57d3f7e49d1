"""A program written against pgleaderlock runs by changing the import."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List, Optional

import psycopg
import pytest

from tenure.pgleaderlock import (
    ConnectionError,
    DecorrelatedJitter,
    ExponentialBackoff,
    FixedInterval,
    LeaderLock,
    LockError,
    LockState,
    PgLeaderLockError,
    RetryContext,
    ShutdownError,
)
from tenure.pgleaderlock.errors import PgLeaderLockError as Same
from tenure.pgleaderlock.lock import LeaderLock as SameLock
from tenure.pgleaderlock.models import LockState as SameState
from tenure.pgleaderlock.retry import RetryStrategy


def test_names_and_signature() -> None:
    assert Same is PgLeaderLockError and SameLock is LeaderLock and SameState is LockState
    for error in (ConnectionError, LockError, ShutdownError):
        assert issubclass(error, PgLeaderLockError)
    assert str(inspect.signature(LeaderLock.__init__)).replace("'", "").replace('"', "") == (
        "(self, dsn: str, key1: int, key2: int, *, retry_strategy: Optional[RetryStrategy] = None,"
        " health_interval_s: float = 5.0, reconnect_grace_s: Optional[float] = None,"
        " auto_reacquire: bool = True, shutdown_event: Optional[asyncio.Event] = None,"
        " connect_fn: Optional[Callable[[], Awaitable[AsyncConnection[Any]]]] = None) -> None"
    )
    assert {state.value for state in LockState} == {
        "stopped", "follower", "acquiring", "leader", "reconnecting", "releasing",
    }


def test_layout() -> None:
    from tenure.pgleaderlock._logging import get_logger

    assert get_logger("pgleaderlock").logger is logging.getLogger("pgleaderlock")
    assert (Path(inspect.getfile(LeaderLock)).parents[1] / "py.typed").exists()


def test_options_of_the_command() -> None:
    pytest.importorskip("click")
    told = command("run", "--help").communicate(timeout=30)[0]
    for option in (
        "--dsn", "--key1", "--key2", "--health-interval", "--retry-base", "--retry-max", "--reconnect-grace",
        "--no-auto-reacquire",
    ):
        assert option in told
    for default in ("5.0", "1.0", "30.0"):
        assert f"[default: {default}]" in told
    assert command("run", "--key1", "1", env=dict(os.environ, PG_DSN="")).wait(30) == 2


async def test_a_step_down_past_its_timeout_frees_the_lock_by_force(dsn: str) -> None:
    async with LeaderLock(dsn, 7, 9, health_interval_s=1) as lock:
        assert await lock.wait_for_leadership(20)
        act = lock.gate.begin_act()  # Never ends by itself, so the drain would last its limit of 10 s.
        begun = time.monotonic()
        await lock.step_down(timeout_s=0.5)
        assert time.monotonic() - begun < 5 and not lock.is_leader
        with psycopg.connect(dsn) as other:
            assert other.execute("select pg_try_advisory_lock(7, 9)").fetchone() == (True,)
        del act


def test_strategies() -> None:
    def after(attempt: int, error: Optional[Exception] = None) -> RetryContext:
        return RetryContext(attempt=attempt, elapsed_s=0.0, last_error=error)

    backoff = ExponentialBackoff()
    assert [backoff.next_delay_s(after(n)) for n in (1, 2, 3, 6, 100000)] == [1, 2, 4, 30, 30]
    assert FixedInterval().next_delay_s(after(7)) == 5
    jitter = DecorrelatedJitter(base_s=1, max_s=10)
    delays = [jitter.next_delay_s(after(n)) for n in range(1, 200)]
    assert all(delay is not None and 1 <= delay <= 10 for delay in delays) and len(set(delays)) > 5
    assert all(isinstance(strategy, RetryStrategy) for strategy in (backoff, jitter, FixedInterval()))
    with pytest.raises(Exception):
        after(1).attempt = 2  # type: ignore[misc]


async def test_the_example_of_its_manual(dsn: str, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="pgleaderlock")
    told: List[str] = []
    lock = LeaderLock(dsn=dsn, key1=1, key2=100)

    @lock.on_acquired
    def handle_acquired() -> None:
        told.append("I am the leader now")

    @lock.on_lost
    def handle_lost() -> None:
        told.append("Leadership lost, stopping work")

    async with lock:
        assert await lock.wait_for_leadership()
        assert lock.is_leader and lock.state == LockState.LEADER
        lines = [record.getMessage() for record in caplog.records if record.name == "pgleaderlock"]
        assert "pgleaderlock | state_change from=follower to=acquiring key1=1 key2=100" in lines
        assert any("pgleaderlock | lock_acquired key1=1 key2=100 attempt=1" in line for line in lines)
    assert told == ["I am the leader now"] and lock.state == LockState.STOPPED


async def test_both_kinds_of_program_exclude_each_other(dsn: str) -> None:
    """An old instance holds the lock by hand while a new one is deployed."""
    old = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await old.execute("select pg_try_advisory_lock(7, 8)")
    failed = asyncio.Event()
    lock = LeaderLock(dsn, 7, 8, retry_strategy=FixedInterval(0.2), health_interval_s=0.5)
    lock.on_acquire_failed(failed.set)
    async with lock:
        await asyncio.wait_for(failed.wait(), 10)
        assert not lock.is_leader
        await old.close()
        assert await lock.wait_for_leadership(20)


@pytest.mark.slow
def test_the_suite_asks_nothing_of_tenure(tmp_path: Path) -> None:
    """The live suite that runs on `tenure.pgleaderlock` runs on a stand-in for pgleaderlock too."""
    here = Path(__file__).parent
    source = (here / "test_suite_for_pgleaderlock.py").read_text()
    assert source.count("tenure") == 1, "the import is all that was changed"
    (tmp_path / "test_suite.py").write_text(source.replace("from tenure.pgleaderlock import", "from standin import"))
    (tmp_path / "conftest.py").write_text((here / "conftest.py").read_text())
    environment = dict(os.environ, PYTHONPATH=str(here))
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )
    assert told.returncode == 0, told.stdout


def command(*words: str, **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tenure.pgleaderlock.cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command(dsn: str, number: int) -> None:
    pytest.importorskip("click")
    pytest.importorskip("loguru")
    environment = dict(os.environ, PG_DSN=dsn)
    keys = ("--key1", "-1", "--key2", "5")
    run = command("run", *keys, "--health-interval", "0.5", env=environment)
    said = []
    assert run.stdout is not None
    for line in run.stdout:
        said.append(line)
        if "on_acquired" in line:
            break
    status = command("status", *keys, env=environment)
    assert "holds the lock" in status.communicate(timeout=30)[0]
    attempt = command("acquire", *keys, "--timeout", "0.5", env=environment)
    assert attempt.wait(30) == 1
    run.send_signal(number)
    rest = run.communicate(timeout=30)[0]
    assert run.returncode == 0, said + [rest]
    assert "state_change from=" in "".join(said) + rest and "on_released" in rest
    status = command("status", *keys, env=environment)
    assert "free" in status.communicate(timeout=30)[0]
    attempt = command("acquire", *keys, env=environment)
    assert attempt.wait(30) == 0
    bad = command("acquire", *keys, "--dsn", "nonsense=1", env=environment)
    assert bad.wait(30) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--key1", "99999999999", "--key2", "5"),
        ("run", "--key1", "1", "--key2", "5", "--retry-base", "-1"),
        ("run", "--key1", "1", "--key2", "5", "--health-interval", "0"),
        ("acquire", "--key1", "99999999999", "--key2", "5"),
        ("status", "--key1", "99999999999", "--key2", "5"),
        ("status", "--key1", "1", "--key2", "5", "--dsn", "host=127.0.0.1 port=1 user=postgres"),
    ],
    ids=lambda words: " ".join(words[:1] + words[-2:]),
)
def test_the_command_says_what_is_wrong_without_a_traceback(dsn: str, words: Any) -> None:
    told = command(*words, env=dict(os.environ, PG_DSN=dsn))
    text = told.communicate(timeout=30)[0]
    assert told.returncode == 2 and "ERROR" in text and "Traceback" not in text, text


def test_the_command_ends_by_a_signal_while_the_server_is_silent(dsn: str, server: Any, proxy: Any) -> None:
    proxy.partition()
    silent = server.dsn(dsn.rsplit("/", 1)[1], port=proxy.port)
    run = command("run", "--key1", "1", "--key2", "5", env=dict(os.environ, PG_DSN=silent))
    until = time.monotonic() + 20
    while not proxy.connections:
        assert time.monotonic() < until
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=10)[0]
    assert run.returncode == 0 and "Traceback" not in said, said


async def test_a_lock_that_stops_by_itself_is_a_failure_of_the_command(tenure_group: Any) -> None:
    from tenure.pgleaderlock import cli

    for ends_by_itself in (True, False):
        lock = tenure_group.lock("r", auto_reacquire=False)
        running = asyncio.ensure_future(cli._run(lock, ends_by_itself=ends_by_itself))
        assert await lock.wait_for_leadership(10)
        tenure_group.terminate(lock)
        if ends_by_itself:
            assert await asyncio.wait_for(running, 10) == 0
        else:
            with pytest.raises(ConnectionError, match="ended the session"):
                await asyncio.wait_for(running, 10)
