"""The gate, the fence, many roles, work while leading, and the election in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, List

import psycopg
import pytest

import tenure
from tenure import LeaderLock, Member, Role
from tenure.testing import MemoryGroup


async def test_an_act_passes_the_gate_and_a_step_down_waits_for_it(dsn: str) -> None:
    async with LeaderLock(dsn, role="r") as lock:
        assert await lock.wait_for_leadership(20)
        gate = lock.gate
        token = gate.require_leader()
        assert token.epoch == lock.epoch and token.holder_identity == lock.identity
        assert 0 < token.remaining_s <= 3 and 0 < gate.remaining_s <= 3
        gate.ensure_epoch(token.epoch)
        with pytest.raises(tenure.NotLeader) as refused:
            gate.ensure_epoch(token.epoch + 1)
        assert refused.value.reason == "other_epoch"
        with pytest.raises(tenure.NotLeader) as refused:
            gate.begin_act(60)
        assert refused.value.reason == "lease_too_short"
        with gate.begin_act(1) as act:
            assert act.epoch == token.epoch and gate.in_flight == 1
            stepping = asyncio.ensure_future(lock.step_down())
            while not stepping.done():
                try:
                    gate.require_leader()
                except tenure.NotLeader as refusal:
                    assert refusal.reason == "draining"
                    break
                await asyncio.sleep(0.005)
            assert not stepping.done()
            act.check()
        assert gate.in_flight == 0
        await stepping
        with pytest.raises(tenure.NotLeader):
            gate.require_leader()


async def test_an_act_that_outlives_its_term_is_uncertain(dsn: str) -> None:
    async with LeaderLock(dsn, role="r", drain_limit_s=0.05) as lock:
        assert await lock.wait_for_leadership(20)
        with pytest.raises(tenure.Uncertain) as late:
            with lock.gate.begin_act() as act:
                await lock.step_down()
        assert late.value.epoch == act.epoch
        act.finish()  # It ended already.
    with pytest.raises(tenure.NotLeader, match="not started"):
        LeaderLock(dsn, role="r").gate.require_leader()


async def test_a_gate_may_be_asked_from_any_thread(dsn: str) -> None:
    async with LeaderLock(dsn, role="r") as lock:
        assert await lock.wait_for_leadership(20)
        answers: List[Any] = []
        threads = [
            threading.Thread(target=lambda: answers.append([lock.is_leader for _ in range(1000)]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(all(answer) for answer in answers) and len(answers) == 4


async def test_many_roles_on_one_member(dsn: str) -> None:
    told: List[str] = []
    member = Member(dsn, ["a", Role("b", policy="fenced"), *tenure.shards("s", 8)])
    member.lock("a").on_acquired(lambda: told.append("a"))
    async with member:
        for lock in member.locks:
            assert await lock.wait_for_leadership(20)
        assert sorted(member.leading) == sorted(["a", "b", *(f"s:{n}" for n in range(8))])
        assert told == ["a"]
        late = await member.add_role("late")
        assert await late.wait_for_leadership(20)
        with psycopg.connect(dsn) as other:
            row = other.execute(
                "select count(*) from pg_stat_activity where application_name like 'tenure%'"
            ).fetchone()
        assert row is not None and row[0] <= 3, "sessions do not grow with roles"
        async with Member(dsn, ["a", Role("b", policy="fenced")]) as other_member:
            await member.lock("a").step_down(to=other_member.identity)
            assert await other_member.lock("a").wait_for_leadership(10)
            assert "a" not in member.leading and "b" in member.leading
    assert member.leading == []
    with pytest.raises(tenure.LockError, match="no role 'x'"):
        member.lock("x")
    with pytest.raises(ValueError, match="there already"):
        Member(dsn, ["a", "a"])


async def test_fence_with_every_driver(dsn: str) -> None:
    import asyncpg
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    async with LeaderLock(dsn, role="r", policy="fenced") as lock:
        assert await lock.wait_for_leadership(20)
        epoch = lock.gate.require_leader().epoch
        for given, wrong in ((epoch, None), (epoch - 1, tenure.StaleEpoch)):
            expected: Any = pytest.raises(wrong) if wrong else _no_error()
            with expected, psycopg.connect(dsn) as connection, connection.cursor() as cursor:
                tenure.fence(cursor, "r", given)
            with expected, psycopg.connect(dsn) as connection:
                tenure.fence(connection, "r", given)
            with expected:
                async with await psycopg.AsyncConnection.connect(dsn) as asynchronous:
                    await tenure.fence(asynchronous.cursor(), "r", given)
            pg = await asyncpg.connect(dsn)
            try:
                with expected:
                    async with pg.transaction():
                        await tenure.fence(pg, "r", given)
            finally:
                await pg.close()
            engine = sqlalchemy.create_engine(url)
            with expected, engine.begin() as begun:
                tenure.fence(begun, "r", given)
            with expected, sqlalchemy.orm.Session(engine) as session:
                tenure.fence(session, "r", given)
            engine.dispose()
            async_engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
            with expected:
                async with async_engine.begin() as async_begun:
                    await tenure.fence(async_begun, "r", given)
            await async_engine.dispose()
        with pytest.raises(tenure.UnknownRole), psycopg.connect(dsn) as connection:
            tenure.fence(connection, "unknown", 1)
        with pytest.raises(tenure.LockError, match="transaction"):
            with psycopg.connect(dsn, autocommit=True) as connection:
                tenure.fence(connection, "r", epoch)
    with pytest.raises(TypeError, match="psycopg, asyncpg or SQLAlchemy"):
        tenure.fence(object(), "r", 1)


class _no_error:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


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


async def test_memory_group_is_an_election(tenure_group: MemoryGroup) -> None:
    async with tenure_group.lock("r", policy="fenced") as first:
        assert await first.wait_for_leadership(5)
        async with tenure_group.lock("r", policy="fenced") as second:
            assert not await second.wait_for_leadership(0.2)
            tenure_group.crash(first)
            assert not first.is_leader
            assert await second.wait_for_leadership(5)
            tenure_group.partition(second)
            until = time.monotonic() + 5
            while second.is_leader:
                assert time.monotonic() < until
                await asyncio.sleep(0.01)
            tenure_group.heal(second)
            assert await second.wait_for_leadership(5)
            tenure_group.pause("r")
            while second.is_leader:
                await asyncio.sleep(0.01)
            tenure_group.pause("r", False)
            tenure_group.restart()
    with pytest.raises(TypeError, match="the group has it"):
        tenure_group.lock("r", lease_s=1)


def test_blocking_lock_with_threads(dsn: str) -> None:
    from tenure import blocking

    told: List[str] = []
    with blocking.LeaderLock(dsn, role="r") as first:
        first.on_released(lambda: told.append(threading.current_thread().name))
        assert first.wait_for_leadership(20) and first.is_leader
        with blocking.LeaderLock(dsn, role="r") as second:
            assert not second.wait_for_leadership(0.3)
            thread = threading.Thread(target=first.step_down)
            thread.start()
            assert second.wait_for_leadership(10)
            thread.join()
            found = first.leader()
            assert found is not None and found.identity == second.identity
            with second.gate.begin_act() as act:
                assert act.epoch == second.epoch
    assert told == ["tenure-callbacks"]
    assert not first.is_leader
