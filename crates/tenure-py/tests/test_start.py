"""Starts and ends: passwords that change, databases that are away, rights, and time that runs out."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Any, Callable, List

import psycopg
import pytest
from server import WITH_PASSWORD, Proxy, Server

import tenure
from tenure import LeaderLock, LockState, Member
from tenure import pgleaderlock
from tenure.testing import MemoryGroup

ROOT = Path(__file__).parents[3]


async def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def lead(dsn: str, **options: Any) -> LeaderLock:
    lock = LeaderLock(dsn, role="r", **options)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    return lock


def end_the_seat(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tenure seat %'"
        )


async def test_connect_fn_that_fails_is_asked_again(dsn: str) -> None:
    """At the start, where a dsn whose database is away is no error either, and after a lost session."""
    calls: List[int] = []
    fails = 2

    async def connect() -> "psycopg.AsyncConnection[Any]":
        nonlocal fails
        calls.append(1)
        if fails:
            fails -= 1
            raise psycopg.OperationalError("away")
        return await psycopg.AsyncConnection.connect(dsn)

    errors: List[Exception] = []
    pace = tenure.FixedInterval(0.05)
    lock = LeaderLock("", role="r", connect_fn=connect, health_interval_s=0.5, retry_strategy=pace)
    lock.on_error(errors.append)
    await asyncio.wait_for(lock.start(), 20)
    assert len(calls) >= 1
    assert await lock.wait_for_leadership(20)

    def away() -> int:
        return sum(isinstance(error, psycopg.OperationalError) and str(error) == "away" for error in errors)

    assert away() == 2, errors
    fails = 1
    end_the_seat(dsn)
    await until(lambda: away() == 3)
    assert await lock.wait_for_leadership(20)
    await lock.shutdown()


async def test_a_password_that_changes_is_used_and_never_told(dsn: str, server: Server, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    old, new = "the first secret", "the second secret"
    name = dsn.rsplit("/", 1)[1]

    def admin(statement: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement)

    admin(f"do $$ begin create role {WITH_PASSWORD} login; exception when duplicate_object then end $$")
    admin(f"alter role {WITH_PASSWORD} password '{old}'")
    admin(f"grant create on database {name} to {WITH_PASSWORD}")
    known = [old]

    async def connect() -> "psycopg.AsyncConnection[Any]":
        return await psycopg.AsyncConnection.connect(server.dsn(name, user=WITH_PASSWORD), password=known[-1])

    errors: List[Exception] = []
    pace = tenure.FixedInterval(0.05)
    lock = LeaderLock("", role="r", connect_fn=connect, health_interval_s=0.5, retry_strategy=pace)
    lock.on_error(errors.append)
    await lock.start()
    assert await lock.wait_for_leadership(20)
    epoch = lock.epoch
    admin(f"alter role {WITH_PASSWORD} password '{new}'")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.dsn(name, user=WITH_PASSWORD), password=old)
    end_the_seat(dsn)
    await until(lambda: any(isinstance(error, psycopg.OperationalError) for error in errors))
    assert not lock.is_leader
    known.append(new)
    assert await lock.wait_for_leadership(20)
    assert lock.epoch is not None and epoch is not None and lock.epoch > epoch
    await lock.shutdown()
    told = [record.getMessage() for record in caplog.records] + [repr(error) for error in errors]
    assert len(told) > 5 and not any("secret" in text for text in told), told


async def test_a_strategy_is_told_the_error_that_on_error_is_told(server: Server) -> None:
    asked: List[tenure.RetryContext] = []

    class Thrice:
        def next_delay_s(self, ctx: tenure.RetryContext) -> "float | None":
            asked.append(ctx)
            return 0 if ctx.attempt < 3 else None

    stopped, errors = asyncio.Event(), []
    lock = LeaderLock(server.dsn("none", port=1), role="r", health_interval_s=0.5, retry_strategy=Thrice())
    lock.on_stopped(stopped.set)
    lock.on_error(errors.append)
    await lock.start()
    await asyncio.wait_for(stopped.wait(), 20)
    assert asked and all(isinstance(ctx.last_error, tenure.ConnectionError) for ctx in asked), asked
    assert errors and all(isinstance(error, tenure.ConnectionError) for error in errors)


async def test_strategies_of_no_seconds_work(dsn: str) -> None:
    first = await lead(dsn)
    for pace in (
        tenure.FixedInterval(0),
        tenure.ExponentialBackoff(0, 0),
        tenure.DecorrelatedJitter(0, 0),
    ):
        failed = asyncio.Event()
        lock = LeaderLock(dsn, role="r", retry_strategy=pace)
        lock.on_acquire_failed(failed.set)
        async with lock:
            await asyncio.wait_for(failed.wait(), 10)
    await first.shutdown()
    with pytest.raises(ValueError, match="0 seconds or more"):
        tenure.FixedInterval(-1)


async def test_a_shutdown_past_its_timeout_is_told_and_another_one_keeps_its_own(dsn: str) -> None:
    lock = await lead(dsn)
    act = lock.gate.begin_act()  # Never ends by itself, so the drain would last its limit of 10 s.
    begun = time.monotonic()
    with pytest.raises(tenure.ShutdownError, match="shutdown"):
        await lock.shutdown(0.2)
    assert time.monotonic() - begun < 5 and not lock.is_leader and lock.state is LockState.STOPPED
    del act

    lock = LeaderLock(dsn, role="another, whose lease need not be waited out")
    await lock.start()
    assert await lock.wait_for_leadership(20)
    act = lock.gate.begin_act()
    patient = asyncio.ensure_future(lock.shutdown())
    await asyncio.sleep(0)
    begun = time.monotonic()
    with pytest.raises(tenure.ShutdownError, match="under way"):
        await lock.shutdown(0.2)
    assert time.monotonic() - begun < 5 and not patient.done()
    act.finish()
    await asyncio.wait_for(patient, 10)
    assert lock.state is LockState.STOPPED


async def test_nothing_waits_for_the_shutdown_event_of_a_lock_that_was_shut_down(tenure_group: MemoryGroup) -> None:
    lock = tenure_group.lock("r", shutdown_event=asyncio.Event())
    before = asyncio.all_tasks()
    await lock.start()
    waiting = asyncio.all_tasks() - before
    assert waiting
    await lock.shutdown()
    await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)


async def test_a_shutdown_event_that_is_set_early_starts_nothing(dsn: str) -> None:
    event, stopped = asyncio.Event(), asyncio.Event()
    event.set()
    lock = LeaderLock(dsn, role="r", shutdown_event=event)
    lock.on_stopped(stopped.set)
    await asyncio.wait_for(lock.start(), 10)
    await until(lambda: lock.state is LockState.STOPPED)
    assert not lock.is_leader and not await asyncio.wait_for(lock.wait_for_leadership(), 5)
    event.clear()
    await lock.start()
    assert await lock.wait_for_leadership(20), "it may be started again"
    await lock.__aexit__()
    assert lock.state is LockState.STOPPED


async def test_a_start_that_waits_for_a_silent_server_ends_with_the_shutdown(dsn: str, server: Server, proxy: Proxy) -> None:
    proxy.partition()
    silent = server.dsn(dsn.rsplit("/", 1)[1], port=proxy.port)
    event = asyncio.Event()
    for by_event in (False, True):
        lock = LeaderLock(silent, role="r", health_interval_s=10, shutdown_event=event)  # The lease is 30 s.
        starting = asyncio.ensure_future(lock.start())
        connections = len(proxy.connections)
        await until(lambda: len(proxy.connections) > connections)
        if by_event:
            event.set()
            await asyncio.wait_for(starting, 5)
        else:
            await asyncio.wait_for(lock.shutdown(), 5)
            with pytest.raises(tenure.LockError, match="while it started"):
                await starting
        await until(lambda: lock.state is LockState.STOPPED)


async def test_a_failure_of_the_shutdown_that_an_event_began_is_told(
    tenure_group: MemoryGroup, monkeypatch: Any
) -> None:
    event, told = asyncio.Event(), asyncio.Event()
    errors: List[Exception] = []
    lock = tenure_group.lock("r", shutdown_event=event)
    lock.on_error(lambda error: (errors.append(error), told.set()))
    await lock.start()
    real, wrong = lock.shutdown, tenure.ShutdownError("mine")

    async def fails() -> None:
        raise wrong

    monkeypatch.setattr(lock, "shutdown", fails)
    event.set()
    await asyncio.wait_for(told.wait(), 5)
    assert errors == [wrong]
    await real()


async def test_a_lock_of_pgleaderlock_has_its_lease_and_its_logger(dsn: str, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr("tenure._starter.EXCEPTION_TIMEOUT_S", 0.2)
    with pytest.raises(ZeroDivisionError):
        async with pgleaderlock.LeaderLock(dsn, 1, 2) as lock:
            assert await lock.wait_for_leadership(20)
            assert 12 < lock.gate.remaining_s <= 15
            act = lock.gate.begin_act()
            1 / 0
    del act
    lines = [(record.name, record.getMessage()) for record in caplog.records]
    assert any(name == "pgleaderlock" and "pgleaderlock | shutdown_failed" in text for name, text in lines), lines


async def test_rights_that_are_missing_are_an_error_with_the_remedy(dsn: str) -> None:
    poor = dsn.replace("postgres@", "nobody_special@")
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("do $$ begin create role nobody_special login; exception when duplicate_object then end $$")
        admin.execute("revoke create on schema public from public")
        admin.execute(f"revoke create on database {admin.info.dbname} from public")
        with pytest.raises(tenure.RefusedError, match=r"tenure\.schema_sql\(\).*grant create on the database"):
            await LeaderLock(poor, role="r").start()
        async with LeaderLock(poor, role="r", lock_only=True, health_interval_s=0.5) as lock:
            assert await lock.wait_for_leadership(20)
        # What the remedies say, in turn.
        with pytest.raises(tenure.RefusedError, match="schema is missing"):
            await LeaderLock(dsn, role="r", migrate=False).start()
        admin.execute(tenure.schema_sql().encode())
        with pytest.raises(tenure.RefusedError, match=r'tenure\.privileges_sql\("nobody_special"\)'):
            await LeaderLock(poor, role="r").start()
        admin.execute(tenure.privileges_sql("nobody_special").encode())
        admin.execute("revoke execute on all functions in schema tenure from public, nobody_special")
        remedy = r'nobody_special may not execute .* more; run the SQL of tenure\.privileges_sql\("nobody_special"\)'
        with pytest.raises(tenure.RefusedError, match=remedy):
            await LeaderLock(poor, role="r").start()
        admin.execute(tenure.privileges_sql("nobody_special").encode())
        async with LeaderLock(poor, role="r", migrate=False) as lock:
            assert await lock.wait_for_leadership(20)


async def test_a_lock_without_a_database_says_what_to_give(monkeypatch: Any) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENURE_DSN", "postgresql://ignored")
    with pytest.raises(tenure.ConnectionError, match="give a dsn, or set PGHOST"):
        await LeaderLock(role="r").start()


async def test_priority_and_readiness_decide_between_followers(dsn: str) -> None:
    first = await lead(dsn, instance="first")
    async with LeaderLock(dsn, role="r", scope="app", instance="second") as second:
        async with LeaderLock(dsn, role="r", scope="app", instance="third") as third:
            assert str(second.identity).startswith("app-second-") and str(third.identity).startswith("app-third-")
            second.set_priority(7)
            third.set_ready(False)

            def standing() -> List[Any]:
                with psycopg.connect(dsn) as admin:
                    return admin.execute(
                        "select priority, ready from tenure.candidate where member = any(%s) order by priority",
                        ([second.identity, third.identity],),
                    ).fetchall()

            await until(lambda: standing() == [(0, False), (7, True)])
            await first.step_down()
            assert await second.wait_for_leadership(20) and not third.is_leader
            async with LeaderLock(dsn, role="r", priority=9, preempt=True) as better:
                assert await better.wait_for_leadership(20), "it asks the leader to step down"
                assert not second.is_leader
    await first.shutdown()


async def test_a_member_that_is_no_candidate_never_leads(dsn: str) -> None:
    async with Member(dsn, [tenure.Role("r", candidate=False)]) as watcher:
        assert not await watcher.lock("r").wait_for_leadership(0.5)
        lock = await lead(dsn)
        found = await watcher.lock("r").leader()
        assert found is not None and found.identity == lock.identity
        await lock.shutdown()


def test_keys_are_those_of_the_published_vectors() -> None:
    page = (ROOT / "crates/tenure-core/src/key.rs").read_text()
    rows = re.findall(r"^//! \| `([^`]+)` \| `(-?\d+)` \|$", page, re.M)
    assert len(rows) == 5
    for name, key in rows:
        assert tenure.key(name) == int(key), name
    with pytest.raises(ValueError):
        tenure.key("")


async def test_a_shutdown_that_meets_a_start_waits_for_the_release(dsn: str) -> None:
    """One role is led already while the start still waits for the registration of another."""
    roles = [tenure.Role("free"), tenure.Role("held")]
    async with Member(dsn, roles, health_interval_s=0.5) as member:
        assert await member.lock("free").wait_for_leadership(20)
    with psycopg.connect(dsn) as holder:
        # Its row must be changed by a registration, and cannot be.
        holder.execute("update tenure.role set lease_ms = 1 where name = 'held'")
        holder.commit()
        holder.execute("select from tenure.role where name = 'held' for update")
        member = Member(dsn, roles, health_interval_s=2)
        starting = asyncio.ensure_future(member.start())
        await until(lambda: member.lock("free").is_leader)
        assert not starting.done()
        act = member.lock("free").gate.begin_act()
        ending = asyncio.ensure_future(member.shutdown())
        await until(lambda: not member.lock("free").is_leader)
        # Long enough for a shutdown that does not wait. Time is the subject.
        assert not (await asyncio.wait({ending}, timeout=1))[0]
        act.finish()
        await asyncio.wait_for(ending, 20)
        assert member.lock("free").state is LockState.STOPPED
        with psycopg.connect(dsn) as reader:
            left = reader.execute("select holder, debtor from tenure.role where name = 'free'").fetchone()
        assert left == (None, None), "it was released, with nothing in flight"
    await asyncio.wait({starting}, timeout=20)
    assert starting.done()
    assert starting.exception() is None or isinstance(starting.exception(), tenure.LockError)
