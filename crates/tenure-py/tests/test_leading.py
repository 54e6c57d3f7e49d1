"""Work while leading, and tasks that wait for leadership, in memory."""

from __future__ import annotations

import asyncio
from typing import Any, List, Optional

import pytest

import tenure
from tenure import RoleLock
from tenure.testing import MemoryGroup


class Work:
    """Runs until it is cancelled, and ends when it is let go."""

    def __init__(self, lock: tenure.LeaderLock) -> None:
        self.running, self.cancelled, self.let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.told: List[str] = []
        lock.on_stopped(lambda: self.told.append("stopped"))

        @tenure.while_leading(lock)
        async def work(token: tenure.LeaderToken) -> None:
            self.running.set()
            try:
                await asyncio.sleep(3600)
            finally:
                self.cancelled.set()
                await self.let_go.wait()
                self.told.append("ended")

        self.task = asyncio.ensure_future(work())

    async def until_it_runs(self) -> None:
        await asyncio.wait_for(self.running.wait(), 10)


async def test_while_leading_runs_and_cancels_with_the_term(tenure_group: MemoryGroup) -> None:
    begun: List[int] = []
    ended: List[int] = []
    running = asyncio.Event()
    lock = tenure_group.lock("r", cool_down_s=0.05)

    @tenure.while_leading(lock)
    async def work(token: tenure.LeaderToken, more: str) -> str:
        begun.append(token.epoch)
        running.set()
        if len(begun) == 3:
            return more
        try:
            await asyncio.sleep(3600)
        finally:
            # A step-down waits until this has ended.
            await asyncio.sleep(0.01)
            assert lock.gate.in_flight == 1
            ended.append(token.epoch)
        return "never"

    async with lock:
        task = asyncio.ensure_future(work("done"))
        await asyncio.wait_for(running.wait(), 10)
        running.clear()
        await lock.step_down()
        assert ended == begun[:1]
        await asyncio.wait_for(running.wait(), 10)
        running.clear()
        tenure_group.terminate(lock)
        assert await asyncio.wait_for(task, 10) == "done"
        assert len(begun) == 3 and begun == sorted(set(begun)) and ended == begun[:2]

        @tenure.while_leading(lock)
        async def fails(token: tenure.LeaderToken) -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError):
            await fails()
        sleeping = asyncio.ensure_future(
            tenure.while_leading(lock)(lambda token: asyncio.sleep(3600))()
        )
        await asyncio.sleep(0.05)
    assert await asyncio.wait_for(sleeping, 5) is None, "ends when the lock stops"


async def test_while_leading_ends_when_its_work_outlasts_a_lock_that_stops_by_itself(
    tenure_group: MemoryGroup,
) -> None:
    lock = tenure_group.lock("r", auto_reacquire=False)
    work = Work(lock)
    lock.on_stopped(work.let_go.set)
    async with lock:
        await work.until_it_runs()
        tenure_group.terminate(lock)
        assert await asyncio.wait_for(work.task, 5) is None
        assert work.told == ["stopped", "ended"]
        assert not await asyncio.wait_for(lock.wait_for_leadership(), 5), "it has stopped"
    assert not await asyncio.wait_for(lock.wait_for_leadership(), 5)


async def test_while_leading_ends_when_its_work_outlasts_a_shutdown(tenure_group: MemoryGroup) -> None:
    lock = tenure_group.lock("r")
    work = Work(lock)
    await lock.start()
    await work.until_it_runs()
    with pytest.raises(tenure.ShutdownError):
        await lock.shutdown(0.1)
    work.let_go.set()
    assert await asyncio.wait_for(work.task, 5) is None


async def test_a_caller_that_is_cancelled_waits_for_its_work_and_so_does_a_shutdown() -> None:
    group = MemoryGroup(health_interval_s=1)  # A busy machine must not end the lease.
    lock = group.lock("r")
    work = Work(lock)
    await lock.start()
    await work.until_it_runs()
    work.task.cancel()
    await asyncio.wait_for(work.cancelled.wait(), 5)
    assert lock.gate.in_flight == 1 and not work.task.done()
    stopping = asyncio.ensure_future(lock.shutdown())
    await _until_it_drains(lock)
    assert not stopping.done() and lock.gate.in_flight == 1
    work.task.cancel()  # Again, as a second SIGTERM would: it reaches the work, which waits no longer.
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work.task, 5)
    await asyncio.wait_for(stopping, 5)
    assert lock.gate.in_flight == 0 and work.told == ["stopped"]


async def test_work_that_is_cancelled_with_its_caller_ends_before_a_successor_acts() -> None:
    group = MemoryGroup(health_interval_s=1)  # A busy machine must not end the lease.
    lock = group.lock("r")
    work = Work(lock)
    await lock.start()
    await work.until_it_runs()
    async with group.lock("r") as second:
        second.on_acquired(lambda: work.told.append("next"))
        work.task.cancel()
        stopping = asyncio.ensure_future(lock.shutdown())
        await _until_it_drains(lock)
        assert not second.is_leader
        work.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work.task, 5)
        await stopping
        assert await second.wait_for_leadership(5)
    assert work.told[0] == "ended" and "next" in work.told


async def test_an_exception_of_work_that_is_cancelled_with_its_caller_is_not_lost(
    tenure_group: MemoryGroup,
) -> None:
    running = asyncio.Event()
    async with tenure_group.lock("r") as lock:

        @tenure.while_leading(lock)
        async def work(token: tenure.LeaderToken) -> None:
            running.set()
            try:
                await asyncio.sleep(3600)
            finally:
                raise KeyError("mine")

        task = asyncio.ensure_future(work())
        await asyncio.wait_for(running.wait(), 10)
        task.cancel()
        with pytest.raises(KeyError):
            await task
        assert lock.gate.in_flight == 0


async def _until_it_drains(lock: tenure.LeaderLock) -> None:
    while True:
        try:
            lock.gate.require_leader()
        except tenure.NotLeader as refusal:
            assert refusal.reason == "draining"
            return
        await asyncio.sleep(0.005)


async def test_a_lock_that_was_never_started_is_waited_for(tenure_group: MemoryGroup) -> None:
    lock = tenure_group.lock("r")
    waiting = asyncio.ensure_future(lock.wait_for_leadership())
    await asyncio.sleep(0)
    assert not waiting.done()
    async with lock:
        assert await asyncio.wait_for(waiting, 10)
        tenure_group.crash(lock)
        assert not await asyncio.wait_for(lock.wait_for_leadership(), 5)


class Told(RoleLock):
    """A role whose state and gate are what the test says."""

    term: Optional[int] = None
    stands = "leader"

    def _number_of_term(self) -> Optional[int]:
        return self.term

    def _state(self) -> str:
        return self.stands


async def test_events_that_are_missed_while_a_heartbeat_is_late_end_no_term() -> None:
    lock, told = Told(), []
    for name in ("acquired", "lost"):
        getattr(lock, f"on_{name}")(lambda name=name: told.append(name))

    async def happens(epoch: Optional[int], *event: Any) -> List[str]:
        lock.term = epoch
        await lock._dispatch(event)
        return told

    assert await happens(5, "acquired", 5) == ["acquired"]
    # The gate is shut, and the term goes on.
    assert await happens(None, "missed", 300) == ["acquired"]
    assert await happens(5, "well", 5) == ["acquired"]
    # Or another term goes on, whose beginning was missed too.
    assert await happens(None, "missed", 300) == ["acquired"]
    assert await happens(6, "well", 6) == ["acquired", "lost", "acquired"]
    # Or it ends before its beginning could be told.
    assert await happens(None, "missed", 300) == ["acquired", "lost", "acquired"]
    assert await happens(None, "lost", 7, "why") == ["acquired", "lost", "acquired", "lost"]
    assert await happens(None, "lost", 7, "why") == ["acquired", "lost", "acquired", "lost"]
