"""The lock on PostgreSQL, in one process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import time
from typing import Any, List

import psycopg
import pytest

import tenure
from tenure import LeaderLock, LockState, blocking
from tenure.testing import MemoryGroup


async def lead(dsn: str, **options: Any) -> LeaderLock:
    lock = LeaderLock(dsn, role="r", **options)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    return lock


async def test_leads_and_releases(dsn: str) -> None:
    lock = LeaderLock(dsn, 1, 100)
    assert lock.state is LockState.STOPPED and not lock.is_leader
    async with lock:
        assert await lock.wait_for_leadership(20)
        assert lock.is_leader and lock.state is LockState.LEADER
        assert lock.role == "lock:1,100"
    assert lock.state is LockState.STOPPED and not lock.is_leader
    with psycopg.connect(dsn) as other:
        assert other.execute("select pg_try_advisory_lock(1, 100)").fetchone() == (True,)


async def test_two_exclude_each_other_and_hand_over(dsn: str) -> None:
    first = await lead(dsn)
    async with LeaderLock(dsn, role="r") as second:
        assert not await second.wait_for_leadership(0.5)
        epoch = first.epoch
        begun = time.monotonic()
        await first.step_down()
        assert await second.wait_for_leadership(5)
        assert time.monotonic() - begun < 2.5, "a hand-over takes no lease"
        assert second.epoch is not None and epoch is not None and second.epoch > epoch
        assert not first.is_leader
        found = await first.leader()
        assert found is not None and found.identity == second.identity and found.acting
    await first.shutdown()


async def test_step_down_names_the_successor(dsn: str) -> None:
    first = await lead(dsn, cool_down_s=600)
    async with LeaderLock(dsn, role="r") as second, LeaderLock(dsn, role="r") as third:
        await first.step_down(to=third.identity)
        assert await third.wait_for_leadership(5)
        assert not second.is_leader
        await third.step_down(to=first.identity)
        assert await first.wait_for_leadership(5), "its cool-down does not keep it out"
        await first.step_down(to=third.identity)
        assert await third.wait_for_leadership(5)
        with pytest.raises(ValueError, match="no member's identity"):
            await third.step_down(to="nobody")
    await first.shutdown()


async def test_callbacks_run_in_order_and_all_before_the_call_returns(dsn: str) -> None:
    told: List[Any] = []
    lock = LeaderLock(dsn, role="r")

    @lock.on_acquired
    def first() -> None:
        told.append("first")

    @lock.on_acquired
    async def second() -> None:
        await asyncio.sleep(0)
        told.append("second")

    lock.on_state_change(lambda before, after: told.append((before, after)))
    lock.on_released(lambda: told.append("released"))
    lock.on_stopped(lambda: told.append("stopped"))
    assert first.__name__ == "first", "the function is returned unchanged"
    async with lock:
        assert await lock.wait_for_leadership(20)
        await lock.step_down()
        assert "released" in told
    assert told.index("first") < told.index("second") < told.index("released") < told.index("stopped")
    changes = [change for change in told if isinstance(change, tuple)]
    assert changes[0] == (LockState.STOPPED, LockState.FOLLOWER)
    assert all(one[1] is two[0] for one, two in zip(changes, changes[1:])), changes
    assert changes[-1][1] is LockState.STOPPED


async def test_an_exception_of_a_callback_is_forwarded_as_it_is_and_stops_nothing(dsn: str) -> None:
    errors: List[Exception] = []
    later: List[str] = []
    wrong = RuntimeError("mine")
    lock = LeaderLock(dsn, role="r")

    @lock.on_acquired
    def fails() -> None:
        raise wrong

    @lock.on_acquired
    async def fails_too() -> None:
        raise KeyError("also mine")

    lock.on_acquired(lambda: later.append("ran"))

    @lock.on_error
    def fails_again(error: Exception) -> None:
        errors.append(error)
        raise ValueError("in on_error")

    async with lock:
        assert await lock.wait_for_leadership(20)
        for _ in range(100):
            if later:
                break
            await asyncio.sleep(0.01)
        assert lock.is_leader
    assert errors[0] is wrong and isinstance(errors[1], KeyError) and later == ["ran"]


async def test_a_cancelled_callback_does_not_end_the_lifecycle(dsn: str) -> None:
    errors: List[Exception] = []
    lock = LeaderLock(dsn, role="r")
    lock.on_error(errors.append)

    @lock.on_acquired
    async def cancelled() -> None:
        task = asyncio.ensure_future(asyncio.sleep(3600))
        task.cancel()
        await task

    @lock.on_acquired
    def cancelled_too() -> None:
        raise asyncio.CancelledError

    async with lock:
        assert await lock.wait_for_leadership(20)
        for _ in range(100):
            if len(errors) == 2:
                break
            await asyncio.sleep(0.01)
        assert lock.is_leader and len(errors) == 2
        await lock.step_down()
        assert lock.state is LockState.FOLLOWER


async def test_start_and_shutdown_are_idempotent_and_can_be_repeated(dsn: str) -> None:
    lock = LeaderLock(dsn, role="r")
    await lock.shutdown()
    await asyncio.gather(lock.start(), lock.start())
    await lock.start()
    assert await lock.wait_for_leadership(20)
    gate = lock.gate
    await asyncio.gather(lock.shutdown(), lock.shutdown(5), lock.step_down())
    await lock.shutdown()
    assert not gate.is_leader
    await lock.start()
    assert await lock.wait_for_leadership(20)
    assert gate.is_leader, "the gate is the same one after a new start"
    await lock.shutdown()


async def test_shutdown_event_and_shutdown_from_a_callback(dsn: str) -> None:
    event, stopped = asyncio.Event(), asyncio.Event()
    lock = LeaderLock(dsn, role="r", shutdown_event=event)
    lock.on_stopped(stopped.set)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    event.set()
    await asyncio.wait_for(stopped.wait(), 10)
    assert not lock.is_leader

    other, ended = LeaderLock(dsn, role="r"), asyncio.Event()
    other.on_acquired(other.shutdown)
    other.on_stopped(ended.set)
    await other.start()
    await asyncio.wait_for(ended.wait(), 10)


async def test_an_exception_in_the_block_releases(dsn: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with LeaderLock(dsn, role="r") as lock:
            assert await lock.wait_for_leadership(20)
            1 / 0
    assert lock.state is LockState.STOPPED
    await (await lead(dsn)).shutdown()


async def test_an_exception_in_the_block_goes_on_although_the_end_takes_too_long(
    dsn: str, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("tenure._starter.EXCEPTION_TIMEOUT_S", 0.2)
    acts: List[Any] = []
    with pytest.raises(ZeroDivisionError):
        async with LeaderLock(dsn, role="r") as lock:
            assert await lock.wait_for_leadership(20)
            acts.append(lock.gate.begin_act())  # Never ends, so the drain would last its limit of 10 s.
            1 / 0
    assert not lock.is_leader and lock.state is LockState.STOPPED
    assert any("tenure | shutdown_failed" in record.getMessage() for record in caplog.records)

    def threads() -> None:
        with blocking.LeaderLock(dsn, role="other") as other:
            assert other.wait_for_leadership(20)
            acts.append(other.gate.begin_act())
            1 / 0

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(threads)


async def test_a_cancelled_task_releases(dsn: str) -> None:
    leading = asyncio.Event()

    async def work() -> None:
        async with LeaderLock(dsn, role="r") as lock:
            await lock.wait_for_leadership()
            leading.set()
            await asyncio.sleep(3600)

    task = asyncio.ensure_future(work())
    await asyncio.wait_for(leading.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    begun = time.monotonic()
    await (await lead(dsn)).shutdown()
    assert time.monotonic() - begun < 2.5, "released, not waited out"


def test_a_loop_that_is_closed_or_run_to_its_end_releases(dsn: str) -> None:
    kept: List[LeaderLock] = []

    async def forget() -> None:
        kept.append(await lead(dsn))

    asyncio.run(forget())  # Cancels the lifecycle's task.
    begun = time.monotonic()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(forget())
    assert time.monotonic() - begun < 2.5, "released by the end of asyncio.run"
    assert kept[1].is_leader
    begun = time.monotonic()
    loop.close()  # Cancels nothing.
    gc.collect()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(forget())
    assert time.monotonic() - begun < 2.5, "released by the close of the loop"
    assert not kept[1].is_leader
    loop.run_until_complete(kept[2].shutdown())
    loop.close()


def test_a_lock_may_be_started_again_on_a_new_loop(dsn: str) -> None:
    """Also where the loop before ended, or was closed, without a shutdown."""
    lock = LeaderLock(dsn, role="r", cool_down_s=0)
    for closes_only in (False, True, False):

        async def begin() -> None:
            await lock.start()
            assert await lock.wait_for_leadership(20)

        if closes_only:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(begin())
            loop.close()
            del loop
            gc.collect()
        else:
            asyncio.run(begin())
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select epoch from tenure.role where name = 'r'").fetchone()
    assert row == (3,), "each of them was a term of its own"


async def test_a_running_lock_is_not_started_on_another_loop(tenure_group: MemoryGroup) -> None:
    async with tenure_group.lock("r") as lock:
        with pytest.raises(tenure.LockError, match="another event loop"):
            await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(lock.start()))


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_closed_loop_warns_of_no_task(dsn: str, caplog: Any, kind: str) -> None:
    loops = asyncio if kind == "asyncio" else pytest.importorskip("uvloop")
    event: List[asyncio.Event] = []

    async def begin() -> LeaderLock:
        event.append(asyncio.Event())
        return await lead(dsn, shutdown_event=event[0])

    loop = loops.new_event_loop()
    lock = loop.run_until_complete(begin())
    loop.close()
    del lock, loop
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_shutdown_while_it_starts_starts_nothing(dsn: str) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def connect() -> "psycopg.AsyncConnection[Any]":
        asked.set()
        await go_on.wait()
        return await psycopg.AsyncConnection.connect(dsn)

    lock = LeaderLock("", role="r", connect_fn=connect)
    starting = asyncio.ensure_future(lock.start())
    await asked.wait()
    stopping = asyncio.ensure_future(lock.shutdown())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    with pytest.raises(tenure.LockError, match="while it started"):
        await starting
    assert lock.state is LockState.STOPPED and not lock.is_leader
    await (await lead(dsn)).shutdown()


def test_uvloop(dsn: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    for closes_only in (False, True):
        loop = uvloop.new_event_loop()
        lock = loop.run_until_complete(lead(dsn))
        assert lock.is_leader
        if not closes_only:
            loop.run_until_complete(lock.shutdown())
        loop.close()
        del loop
        gc.collect()
    begun = time.monotonic()
    loop = asyncio.new_event_loop()
    loop.run_until_complete((loop.run_until_complete(lead(dsn))).shutdown())
    loop.close()
    assert time.monotonic() - begun < 2.5, "released by the close of the loop"


async def test_a_blocked_event_loop_does_not_cost_the_lease(dsn: str) -> None:
    lost: List[str] = []
    lock = await lead(dsn, health_interval_s=0.5)
    lock.on_lost(lambda: lost.append("lost"))
    epoch = lock.epoch
    until = time.monotonic() + 2.0  # More than a lease, which is 1.5 s.
    checks = 0
    while time.monotonic() < until:
        checks += 1
        assert lock.is_leader
    assert checks > 1000 and lock.epoch == epoch
    # A C function that keeps the interpreter's lock for longer than a lease.
    ctypes.PyDLL(None).usleep(2_000_000)
    assert lock.is_leader and lock.epoch == epoch
    await lock.shutdown()
    assert lost == []


@pytest.mark.slow
async def test_ten_seconds_of_computing_in_a_callback_cost_no_lease(dsn: str) -> None:
    """With the default timings: the lease is 3 s, and a rival waits for it."""
    lock, computed = LeaderLock(dsn, role="r"), asyncio.Event()
    lost: List[str] = []
    lock.on_lost(lambda: lost.append("lost"))

    @lock.on_acquired
    def computes() -> None:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            sum(range(1000))
        computed.set()

    with blocking.LeaderLock(dsn, role="r", candidate=False) as rival:
        await lock.start()
        await asyncio.wait_for(computed.wait(), 30)
        assert lock.is_leader and lost == []
        epoch = lock.epoch
        rival_sees = await asyncio.get_running_loop().run_in_executor(None, rival.leader)
        assert rival_sees is not None and (rival_sees.epoch, rival_sees.identity) == (epoch, lock.identity)
    await lock.shutdown()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select epoch from tenure.role where name = 'r'").fetchone() == (epoch,)


async def test_a_terminated_session_is_a_loss_and_the_lock_comes_back(dsn: str) -> None:
    told: List[str] = []
    lock = await lead(dsn, health_interval_s=0.5)
    lock.on_lost(lambda: told.append("lost"))
    epoch = lock.epoch
    lost = asyncio.Event()
    lock.on_lost(lost.set)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tenure seat %'"
        )
    await asyncio.wait_for(lost.wait(), 10)
    assert await lock.wait_for_leadership(20)
    assert lock.epoch is not None and epoch is not None and lock.epoch > epoch
    await lock.shutdown()


async def test_an_unreachable_database_is_no_error_and_is_told(dsn: str, server: Any) -> None:
    errors: List[Exception] = []
    lock = LeaderLock(server.dsn("none", port=1), role="r", health_interval_s=0.5)
    lock.on_error(errors.append)
    await lock.start()
    assert not await lock.wait_for_leadership(0.5)
    assert lock.state in (LockState.FOLLOWER, LockState.ACQUIRING)
    for _ in range(200):
        if errors:
            break
        await asyncio.sleep(0.05)
    assert isinstance(errors[0], tenure.ConnectionError), errors
    await asyncio.wait_for(lock.shutdown(), 10)


async def test_bad_arguments_are_named(dsn: str) -> None:
    with pytest.raises(ValueError, match="key1 must be a signed integer of 32 bits"):
        LeaderLock(dsn, 1 << 31, 0)
    with pytest.raises(TypeError, match="key1 must be an int"):
        LeaderLock(dsn, "1", 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="together"):
        LeaderLock(dsn, 1)
    with pytest.raises(TypeError, match="name the role"):
        LeaderLock(dsn)
    with pytest.raises(ValueError, match="is no takeover policy; write exclusive or fenced"):
        await LeaderLock(dsn, role="r", policy="strict").start()
    with pytest.raises(tenure.ConfigError, match="lease"):
        await LeaderLock(dsn, role="r", health_interval_s=1, lease_s=1).start()
    with pytest.raises(TypeError, match="next_delay_s"):
        LeaderLock(dsn, role="r", retry_strategy=object())  # type: ignore[arg-type]


async def test_a_strategy_in_python_paces_and_gives_up(dsn: str) -> None:
    asked: List[tenure.RetryContext] = []

    class Twice:
        def next_delay_s(self, ctx: tenure.RetryContext) -> "float | None":
            asked.append(ctx)
            return 0.05 if ctx.attempt < 2 else None

    first = await lead(dsn)
    stopped, failed = asyncio.Event(), []
    second = LeaderLock(dsn, role="r", retry_strategy=Twice())
    second.on_stopped(stopped.set)
    second.on_acquire_failed(lambda: failed.append(1))
    await second.start()
    await asyncio.wait_for(stopped.wait(), 10)
    assert [ctx.attempt for ctx in asked] == [1, 2] and len(failed) == 2
    assert second.state is LockState.STOPPED
    assert not await second.wait_for_leadership(0.1)

    errors: List[Exception] = []

    class Broken:
        def next_delay_s(self, ctx: tenure.RetryContext) -> float:
            raise ArithmeticError("no")

    third = LeaderLock(dsn, role="r", retry_strategy=Broken())
    told = asyncio.Event()
    third.on_error(lambda error: (errors.append(error), told.set()))
    await third.start()
    await asyncio.wait_for(told.wait(), 10)
    assert isinstance(errors[0], ArithmeticError)
    await third.shutdown()
    await first.shutdown()


async def test_connect_fn_is_called_before_every_session_and_must_give_a_psycopg_connection(dsn: str) -> None:
    calls: List[psycopg.AsyncConnection[Any]] = []

    async def connect() -> "psycopg.AsyncConnection[Any]":
        connection = await psycopg.AsyncConnection.connect(dsn)
        calls.append(connection)
        return connection

    lock = LeaderLock("", role="r", connect_fn=connect, health_interval_s=0.5)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    before = len(calls)
    assert before >= 2 and all(connection.closed for connection in calls)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tenure seat %'"
        )
    for _ in range(200):
        if len(calls) > before:
            break
        await asyncio.sleep(0.05)
    assert len(calls) > before, "a new session asks again"
    await lock.shutdown()

    async def mock() -> Any:
        return object()

    with pytest.raises(TypeError, match="tenure.testing"):
        await LeaderLock("", role="r", connect_fn=mock).start()


async def test_log_lines(dsn: str, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    async with LeaderLock(dsn, 1234, 5678) as lock:
        assert await lock.wait_for_leadership(20)
    lines = [record.getMessage() for record in caplog.records if record.name == "tenure"]
    assert "tenure | state_change from=follower to=acquiring key1=1234 key2=5678" in lines
    assert any(line.startswith("tenure | lock_acquired key1=1234 key2=5678 attempt=1") for line in lines), lines


async def test_reconnect_grace_keeps_the_term(dsn: str) -> None:
    told: List[str] = []
    lock = await lead(dsn, health_interval_s=0.5, reconnect_grace_s=5)
    lock.on_lost(lambda: told.append("lost"))
    seen: List[LockState] = []
    back = asyncio.Event()

    @lock.on_state_change
    def change(before: LockState, after: LockState) -> None:
        seen.append(after)
        if before is LockState.RECONNECTING and after is LockState.LEADER:
            back.set()

    epoch = lock.epoch
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tenure seat %'"
        )
    await asyncio.wait_for(back.wait(), 10)
    assert LockState.RECONNECTING in seen and told == [] and lock.epoch == epoch
    await lock.shutdown()


async def test_auto_reacquire_off_stops_after_the_first_term(dsn: str) -> None:
    stopped = asyncio.Event()
    lock = LeaderLock(dsn, role="r", auto_reacquire=False)
    lock.on_stopped(stopped.set)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    await lock.step_down()
    await asyncio.wait_for(stopped.wait(), 10)
    assert lock.state is LockState.STOPPED
