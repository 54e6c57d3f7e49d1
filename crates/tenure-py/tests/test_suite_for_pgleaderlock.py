"""A live test suite as a user of pgleaderlock has it. Only its import was changed.

It asks for what pgleaderlock's manual promises and for nothing else. `test_pgleaderlock.py` runs it on a
stand-in for pgleaderlock as well.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Callable, List, Optional, Tuple

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

KEYS = (1234, 5678)
HELD = "select count(*) from pg_locks where locktype = 'advisory' and classid = %s and objid = %s and granted"
KILL = (
    "select pg_terminate_backend(pid) from pg_locks"
    " where locktype = 'advisory' and classid = %s and objid = %s and granted"
)


def make(dsn: str, **options: Any) -> LeaderLock:
    options.setdefault("health_interval_s", 0.5)
    options.setdefault("retry_strategy", FixedInterval(0.2))
    return LeaderLock(dsn, *KEYS, **options)


def query(dsn: str, text: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(text, KEYS).fetchone()


async def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    end = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)


def record(lock: LeaderLock) -> List[Any]:
    told: List[Any] = []
    for name in ("acquired", "released", "lost", "acquire_failed"):
        getattr(lock, f"on_{name}")(lambda name=name: told.append(name))
    lock.on_state_change(lambda before, after: told.append((before, after)))
    return told


async def test_the_lock_is_held_while_leading_and_free_afterwards(dsn: str) -> None:
    async with make(dsn) as lock:
        assert await lock.wait_for_leadership(timeout_s=20)
        assert lock.is_leader and lock.state is LockState.LEADER
        assert query(dsn, HELD) == (1,)
    assert lock.state is LockState.STOPPED and not lock.is_leader
    assert query(dsn, HELD) == (0,)


async def test_two_instances_exclude_each_other(dsn: str) -> None:
    async with make(dsn) as first:
        assert await first.wait_for_leadership(20)
        second = make(dsn)
        told = record(second)
        async with second:
            assert not await second.wait_for_leadership(timeout_s=0.5)
            await until(lambda: "acquire_failed" in told)
            await first.shutdown()
            assert await second.wait_for_leadership(20)
            assert not first.is_leader


async def test_states_of_one_life(dsn: str) -> None:
    lock = make(dsn)
    told = record(lock)
    async with lock:
        assert await lock.wait_for_leadership(20)
    states = [entry for entry in told if isinstance(entry, tuple)]
    stopped, follower, acquiring = LockState.STOPPED, LockState.FOLLOWER, LockState.ACQUIRING
    leader, releasing = LockState.LEADER, LockState.RELEASING
    assert states == [
        (stopped, follower), (follower, acquiring), (acquiring, leader), (leader, releasing), (releasing, stopped),
    ]
    assert [entry for entry in told if isinstance(entry, str)] == ["acquired", "released"]


async def test_callbacks_of_both_kinds_run_in_order_of_registration(dsn: str) -> None:
    told: List[str] = []
    lock = make(dsn)

    @lock.on_acquired
    def first() -> None:
        told.append("first")

    @lock.on_acquired
    async def second() -> None:
        await asyncio.sleep(0)
        told.append("second")

    @lock.on_acquired
    def third() -> None:
        told.append("third")

    assert first.__name__ == "first" and second.__name__ == "second"
    async with lock:
        await until(lambda: len(told) == 3)
    assert told == ["first", "second", "third"]


async def test_an_exception_of_a_callback_is_told_and_does_not_end_the_lock(dsn: str) -> None:
    errors: List[Exception] = []
    mine = RuntimeError("mine")
    lock = make(dsn)
    lock.on_error(errors.append)

    @lock.on_acquired
    async def fails() -> None:
        raise mine

    async with lock:
        await until(lambda: bool(errors))
        assert errors == [mine] and lock.is_leader


async def test_step_down_releases_and_comes_back(dsn: str) -> None:
    lock = make(dsn)
    told = record(lock)
    async with lock:
        assert await lock.wait_for_leadership(20)
        await lock.step_down(timeout_s=10)
        assert "released" in told and "lost" not in told
        assert (LockState.RELEASING, LockState.FOLLOWER) in told
        assert await lock.wait_for_leadership(20)
        await lock.step_down()
    assert told.count("released") >= 2


async def test_step_down_hands_over(dsn: str) -> None:
    async with make(dsn) as first:
        assert await first.wait_for_leadership(20)
        async with make(dsn) as second:
            await first.step_down()
            # In pgleaderlock either may win; one of them does.
            await until(lambda: first.is_leader != second.is_leader)


async def test_without_auto_reacquire_the_first_term_is_the_last(dsn: str) -> None:
    lock = make(dsn, auto_reacquire=False)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    await lock.step_down()
    await until(lambda: lock.state is LockState.STOPPED)
    assert query(dsn, HELD) == (0,)
    lost = make(dsn, auto_reacquire=False)
    told = record(lost)
    await lost.start()
    assert await lost.wait_for_leadership(20)
    query(dsn, KILL)
    await until(lambda: lost.state is LockState.STOPPED)
    assert "lost" in told
    await lost.shutdown()


async def test_a_lost_session_is_a_loss_and_the_lock_comes_back(dsn: str) -> None:
    lock = make(dsn)
    told = record(lock)
    async with lock:
        assert await lock.wait_for_leadership(20)
        query(dsn, KILL)
        await until(lambda: "lost" in told)
        assert await lock.wait_for_leadership(20)
    assert [entry for entry in told if entry in ("acquired", "lost", "released")] == [
        "acquired", "lost", "acquired", "released",
    ]


async def test_flap_damping_tells_nothing_of_a_short_loss(dsn: str) -> None:
    lock = make(dsn, reconnect_grace_s=10)
    told = record(lock)
    leads: List[bool] = []
    lock.on_state_change(lambda before, after: leads.append(lock.is_leader) if after is LockState.RECONNECTING else None)
    async with lock:
        assert await lock.wait_for_leadership(20)
        query(dsn, KILL)
        await until(lambda: (LockState.RECONNECTING, LockState.LEADER) in told)
        assert lock.state is LockState.LEADER
        assert (LockState.LEADER, LockState.RECONNECTING) in told
    assert told.count("acquired") == 1 and "lost" not in told and leads == [False]


async def test_shutdown_event_stops_the_lock(dsn: str) -> None:
    event = asyncio.Event()
    lock = make(dsn, shutdown_event=event)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    event.set()
    await until(lambda: lock.state is LockState.STOPPED)
    assert query(dsn, HELD) == (0,)


async def test_start_and_shutdown_are_idempotent(dsn: str) -> None:
    lock = make(dsn)
    await lock.shutdown()
    await lock.start()
    await lock.start()
    assert await lock.wait_for_leadership(20)
    await asyncio.gather(lock.shutdown(), lock.shutdown(timeout_s=10))
    await lock.shutdown()
    assert lock.state is LockState.STOPPED
    assert query(dsn, HELD) == (0,)


async def test_concurrent_calls_end_in_a_stopped_lock(dsn: str) -> None:
    lock = make(dsn)
    await asyncio.gather(lock.start(), lock.start())
    assert await lock.wait_for_leadership(20)
    await asyncio.gather(lock.step_down(), lock.shutdown(), return_exceptions=True)
    await until(lambda: lock.state is LockState.STOPPED)


async def test_an_exception_in_the_block_releases(dsn: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with make(dsn) as lock:
            assert await lock.wait_for_leadership(20)
            1 / 0
    assert query(dsn, HELD) == (0,)


async def test_a_strategy_of_ones_own_is_asked_and_may_give_up(dsn: str) -> None:
    asked: List[Tuple[int, float, Optional[Exception]]] = []

    class Thrice:
        def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
            asked.append((ctx.attempt, ctx.elapsed_s, ctx.last_error))
            return 0.05 if ctx.attempt < 3 else None

    async with make(dsn) as first:
        assert await first.wait_for_leadership(20)
        second = make(dsn, retry_strategy=Thrice())
        await second.start()
        await until(lambda: second.state is LockState.STOPPED)
    assert [attempt for attempt, _, _ in asked] == [1, 2, 3]
    assert all(error is None for _, _, error in asked)
    assert [elapsed for _, elapsed, _ in asked] == sorted(elapsed for _, elapsed, _ in asked)


async def test_a_database_that_is_not_there_is_retried(dsn: str) -> None:
    asked: List[Optional[Exception]] = []
    errors: List[Exception] = []

    class Twice:
        def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
            asked.append(ctx.last_error)
            return 0.05 if ctx.attempt < 2 else None

    lock = LeaderLock("postgresql://postgres@127.0.0.1:1/none", *KEYS, retry_strategy=Twice())
    lock.on_error(errors.append)
    await lock.start()
    await until(lambda: lock.state is LockState.STOPPED)
    assert len(asked) >= 2 and all(isinstance(error, Exception) for error in asked)
    assert all(isinstance(error, PgLeaderLockError) for error in errors) and errors


async def test_connect_fn_replaces_the_dsn(dsn: str) -> None:
    calls: List[str] = []

    async def connect() -> "psycopg.AsyncConnection[Any]":
        calls.append("connect")
        return await psycopg.AsyncConnection.connect(dsn, autocommit=True)

    async with make("", connect_fn=connect) as lock:
        assert await lock.wait_for_leadership(20)
        assert query(dsn, HELD) == (1,)
    assert calls


async def test_log_lines(dsn: str, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, logger="pgleaderlock")
    async with make(dsn) as lock:
        assert await lock.wait_for_leadership(20)
        query(dsn, KILL)
        await until(lambda: lock.state is not LockState.LEADER)
    lines = [record.getMessage() for record in caplog.records if record.name == "pgleaderlock"]
    assert "pgleaderlock | state_change from=follower to=acquiring key1=1234 key2=5678" in lines
    assert any(line.startswith("pgleaderlock | lock_acquired key1=1234 key2=5678 attempt=1") for line in lines)
    assert any(
        line.startswith('pgleaderlock | health_check_failed error="') and line.endswith(" key1=1234 key2=5678")
        for line in lines
    ), lines


def test_errors_and_strategies() -> None:
    assert all(issubclass(error, PgLeaderLockError) for error in (ConnectionError, LockError, ShutdownError))

    def after(attempt: int) -> RetryContext:
        return RetryContext(attempt=attempt, elapsed_s=0.0, last_error=None)

    assert [ExponentialBackoff().next_delay_s(after(n)) for n in (1, 2, 3, 9)] == [1, 2, 4, 30]
    assert ExponentialBackoff(base_s=2, max_s=10, multiplier=3).next_delay_s(after(2)) == 6
    assert FixedInterval().next_delay_s(after(3)) == 5
    delays = [DecorrelatedJitter(base_s=1, max_s=4).next_delay_s(after(n)) for n in range(1, 50)]
    assert all(delay is not None and 1 <= delay <= 4 for delay in delays)
