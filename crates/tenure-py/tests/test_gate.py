"""The gate, the fence, many roles, and the election in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Callable, List, Set

import psycopg
import pytest

import tenure
from tenure import LeaderLock, LockState, Member, Role
from tenure.testing import MemoryGroup


async def _until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


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
        assert sorted(member.leading) == sorted(["a", "b", *(f"s-{n}" for n in range(8))])
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


@pytest.mark.slow
async def test_a_thousand_roles_that_start_while_the_loop_is_blocked_miss_no_event(dsn: str) -> None:
    member = tenure.Member(dsn, tenure.shards("many", 1500), health_interval_s=2)
    told: Set[str] = set()
    for number in range(1500):
        member.lock("many", number).on_acquired(lambda number=number: told.add(f"many-{number}"))
    blocked: List[bool] = []

    @member.lock("many", 0).on_state_change
    def block(before: Any, after: Any) -> None:
        if after is LockState.FOLLOWER and not blocked:
            blocked.append(True)
            time.sleep(3)  # The loop's thread itself: meanwhile four events of each role come in.

    async with member:
        assert await asyncio.wait_for(member.lock("many", 1499).wait_for_leadership(30), 40)
        for lock in member.locks:
            assert await lock.wait_for_leadership(30)
        assert len(told) == 1500 and len(member.leading) == 1500


async def test_a_story_with_a_gap_is_brought_in_line_with_the_gate(tenure_group: Any, caplog: Any) -> None:
    told: List[str] = []
    lock = tenure_group.lock("r")
    for name in ("acquired", "lost", "released", "stopped"):
        getattr(lock, f"on_{name}")(lambda name=name: told.append(name))
    real = lock._deliver
    # What the mailbox does for a loop that reads too late: the events are gone, and their number is told.
    lock._deliver = lambda event: real(("missed", 1) if event[0] in ("acquired", "lost") else event)
    async with lock:
        assert await lock.wait_for_leadership(10)
        assert told == ["acquired"]
        tenure_group.terminate(lock)
        await _until(lambda: "lost" in told)
        await _until(lambda: told.count("acquired") == 2)
    assert told == ["acquired", "lost", "acquired", "released", "stopped"]
    assert any("events_missed" in record.getMessage() for record in caplog.records)


async def test_shards_are_addressed_by_number_and_shared(dsn: str) -> None:
    shards = tenure.shards("queue", 6, cool_down_s=0.2)
    async with Member(dsn, shards) as first:
        for number in range(6):
            assert await first.lock("queue", number).wait_for_leadership(20)
        assert first.leading_shards("queue") == list(range(6)) and first.leading_shards("other") == []
        async with Member(dsn, shards) as second:
            for number in (1, 3, 5):
                await first.lock("queue", number).step_down(to=second.identity)
                assert await second.lock("queue", number).wait_for_leadership(10)
            assert first.leading_shards("queue") == [0, 2, 4] and second.leading_shards("queue") == [1, 3, 5]


@pytest.mark.slow
async def test_shards_are_spread_evenly_and_followed_up(dsn: str) -> None:
    timing: Any = {"health_interval_s": 0.5, "lease_s": 2.0, "statement_deadline_s": 0.7}

    def member(instance: str) -> Member:
        return Member(dsn, tenure.shards("queue", 9), spread=["queue"], instance=instance, **timing)

    def shares(*members: Member) -> List[int]:
        return [len(one.leading_shards("queue")) for one in members]

    async with member("a") as first:
        await _until(lambda: shares(first) == [9])
        second, third = member("b"), member("c")
        await asyncio.gather(second.start(), third.start())
        # Two leases until they count; then a few round trips.
        await _until(lambda: shares(first, second, third) == [3, 3, 3], 30)
        led = sorted(number for one in (first, second, third) for number in one.leading_shards("queue"))
        assert led == list(range(9))
        await second.shutdown()
        await _until(lambda: sum(shares(first, third)) == 9, 30)
        await third.shutdown()
        await _until(lambda: shares(first) == [9], 30)


async def test_what_cannot_be_spread_is_refused(dsn: str) -> None:
    with pytest.raises(ValueError, match="has no shards of 'other'"):
        Member(dsn, tenure.shards("queue", 2), spread=["other"])
    with pytest.raises(TypeError, match="names of sets"):
        Member(dsn, tenure.shards("queue", 2), spread="queue")
    with pytest.raises(ValueError, match="lock_only"):
        Member(dsn, tenure.shards("queue", 2), spread=["queue"], lock_only=True)
    with pytest.raises(tenure.ConfigError, match="never preempts"):
        await Member(dsn, tenure.shards("queue", 2, preempt=True), spread=["queue"]).start()


async def test_a_member_has_roles_by_key_too(dsn: str) -> None:
    async with Member(dsn, [Role(key1=-1, key2=100), Role(key=7), Role("named", key=8)]) as member:
        for lock in member.locks:
            assert await lock.wait_for_leadership(20)
        assert [lock.role for lock in member.locks] == ["lock:-1,100", "lock:7", "named"] == member.leading
        with psycopg.connect(dsn) as other:
            taken = other.execute("select pg_try_advisory_lock(7), pg_try_advisory_lock(-1, 100)").fetchone()
        assert taken == (False, False)
        with pytest.raises(ValueError, match="there already"):
            await member.add_role(Role(key=7))
        with pytest.raises(tenure.TenureError):
            await member.add_role(Role("another", key=7))
        assert await (await member.add_role("late")).wait_for_leadership(20), "a role that was refused leaves no gap"
    with pytest.raises(ValueError, match="needs a name"):
        Member(dsn, [Role()])


async def test_a_strategy_in_python_paces_a_member_and_costs_no_lease(dsn: str) -> None:
    asked: List[tenure.RetryContext] = []
    errors: List[Exception] = []

    class Slow:
        """Gives up at the third attempt; takes longer than a lease over the second."""

        def next_delay_s(self, ctx: tenure.RetryContext) -> "float | None":
            asked.append(ctx)
            if ctx.attempt == 2:
                time.sleep(2)
                raise ArithmeticError("no")
            return 0.05 if ctx.attempt < 4 else None

    async with LeaderLock(dsn, role="taken") as holder:
        assert await holder.wait_for_leadership(20)
        member = Member(dsn, ["mine", "taken"], retry_strategy=Slow(), health_interval_s=0.5)
        lost: List[str] = []
        stopped = asyncio.Event()
        member.lock("mine").on_lost(lambda: lost.append("lost"))
        member.lock("taken").on_stopped(stopped.set)
        member.lock("taken").on_error(errors.append)
        async with member:
            assert await member.lock("mine").wait_for_leadership(20)
            epoch = member.lock("mine").epoch
            await asyncio.wait_for(stopped.wait(), 20)
            assert member.leading == ["mine"] and lost == [] and member.lock("mine").epoch == epoch
    assert asked[0].attempt == 1 and asked[0].last_error is None
    assert any(isinstance(error, ArithmeticError) for error in errors)


async def test_a_member_starts_and_ends_as_a_lock_does(dsn: str) -> None:
    member = Member(dsn, ["a"])
    await member.shutdown()
    await asyncio.gather(member.start(), member.start())
    assert await member.lock("a").wait_for_leadership(20)
    ending = asyncio.ensure_future(member.shutdown())
    await asyncio.sleep(0)
    await member.start()  # Waits for the end, and starts anew.
    assert ending.done() and await member.lock("a").wait_for_leadership(20)
    await member.shutdown()
    with pytest.raises(tenure.ConfigError):
        await Member(dsn, ["a"], health_interval_s=1, lease_s=1).start()


async def test_fence_with_every_driver(dsn: str) -> None:
    import asyncpg
    import psycopg2
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

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
            old = psycopg2.connect(dsn)
            with expected, old, old.cursor() as old_cursor:
                tenure.fence(old_cursor, "r", given)
            with expected, old:
                tenure.fence(old, "r", given)
            old.close()
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
            with expected:
                async with AsyncSession(async_engine) as async_session:
                    await tenure.fence(async_session, "r", given)
            await async_engine.dispose()
        with pytest.raises(tenure.UnknownRole), psycopg.connect(dsn) as connection:
            tenure.fence(connection, "unknown", 1)
        with pytest.raises(tenure.LockError, match="transaction"):
            with psycopg.connect(dsn, autocommit=True) as connection:
                tenure.fence(connection, "r", epoch)
        with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction():
            tenure.fence(connection, "r", epoch)
        old = psycopg2.connect(dsn)
        old.autocommit = True
        with pytest.raises(tenure.LockError, match="transaction"):
            tenure.fence(old, "r", epoch)
        old.close()
    with pytest.raises(TypeError, match="psycopg, asyncpg or SQLAlchemy"):
        tenure.fence(object(), "r", 1)


async def test_a_fence_is_refused_where_sqlalchemy_commits_every_statement(dsn: str) -> None:
    import sqlalchemy.orm
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    options: Any = {"isolation_level": "AUTOCOMMIT"}
    async with LeaderLock(dsn, role="r") as lock:
        assert await lock.wait_for_leadership(20)
        epoch = lock.gate.require_leader().epoch
        for driver in ("psycopg", "psycopg2"):
            url = dsn.replace("postgresql://", f"postgresql+{driver}://")
            plain, whole = sqlalchemy.create_engine(url), sqlalchemy.create_engine(url, **options)
            with whole.connect() as one, plain.connect().execution_options(**options) as two:
                with sqlalchemy.orm.Session(whole) as three, plain.connect() as allowed:
                    for subject in (one, two, three):
                        with pytest.raises(tenure.LockError, match="transaction"):
                            tenure.fence(subject, "r", epoch)
                    tenure.fence(allowed, "r", epoch)
            plain.dispose()
            whole.dispose()
        for driver in ("psycopg", "asyncpg"):
            url = dsn.replace("postgresql://", f"postgresql+{driver}://")
            engine = create_async_engine(url, **options)
            async with engine.connect() as four, AsyncSession(engine) as five:
                for asynchronous in (four, five):
                    with pytest.raises(tenure.LockError, match="transaction"):
                        await tenure.fence(asynchronous, "r", epoch)
            await engine.dispose()


class _no_error:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


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
    with pytest.raises(TypeError, match="lease_s"):
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


def test_blocking_member_and_calls_from_callbacks(dsn: str) -> None:
    from tenure import blocking

    ended = threading.Event()
    with blocking.Member(dsn, tenure.shards("s", 3)) as member:
        for lock in member.locks:
            assert lock.wait_for_leadership(20)
        assert member.leading_shards("s") == [0, 1, 2] and len(member.leading) == 3
        late = member.add_role("late")
        assert late.wait_for_leadership(20) and late.role == "late"
        # A callback that calls its own lock does not wait for itself.
        member.lock("s", 0).on_released(ended.set)
        member.lock("s", 1).on_released(lambda: member.lock("s", 0).step_down())
        member.lock("s", 1).step_down()
        assert ended.wait(10)
    refused: List[Exception] = []
    stopped = threading.Event()
    own = blocking.LeaderLock(dsn, role="own")
    own.on_acquired(own.wait_for_leadership)
    own.on_error(refused.append)
    own.on_error(lambda _: own.shutdown())
    own.on_stopped(stopped.set)
    own.start()
    assert stopped.wait(20) and "cannot wait for its own lock" in str(refused[0])
    assert not own.is_leader
