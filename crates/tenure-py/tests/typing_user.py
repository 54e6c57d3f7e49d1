"""A program of a user, as the manual has it. It is never run: mypy and pyright read it."""

from __future__ import annotations

import asyncio
from typing import Any, List, Optional, Union

import psycopg
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from typing_extensions import assert_type

import tenure
from tenure import blocking
from tenure.testing import MemoryGroup

lock = tenure.LeaderLock("postgresql://app@db/app", role="scheduler", shutdown_event=asyncio.Event())


@lock.on_acquired
def begin() -> None:
    print("leading")


@lock.on_lost
async def stop() -> None:
    print("lost")


@tenure.while_leading(lock)
async def schedule(token: tenure.LeaderToken, every_s: float, *, name: str = "") -> str:
    await asyncio.sleep(every_s)
    return f"{name} {token.epoch}"


async def work() -> Optional[str]:
    task = asyncio.create_task(schedule(1.0, name="beat"))
    return await task


def act() -> int:
    with lock.gate.begin_act(within_s=2) as begun:
        return begun.epoch


async def asks() -> bool:
    token = lock.gate.require_leader()
    lock.gate.ensure_epoch(token.epoch)
    assert_type(token.epoch, Union[int, Any])  # None with lock_only, which few programs have to rule out.
    found = await lock.leader()
    return found is not None and found.acting and await lock.wait_for_leadership(1)


async def fenced(
    connection: "psycopg.AsyncConnection[Any]",
    cursor: "psycopg.AsyncCursor[Any]",
    alchemy: AsyncConnection,
    session: AsyncSession,
    unknown: Any,
) -> None:
    async with connection.transaction():
        await tenure.fence(connection, "scheduler", 1)
        await tenure.fence(cursor, "scheduler", 1)
    await tenure.fence(alchemy, "scheduler", 1)
    await tenure.fence(session, "scheduler", 1)
    await tenure.fence(unknown, "scheduler", 1)  # A driver without types, such as asyncpg.


def fenced_in_a_thread(
    connection: "psycopg.Connection[Any]",
    cursor: "psycopg.Cursor[Any]",
    alchemy: sqlalchemy.Connection,
    session: sqlalchemy.orm.Session,
) -> None:
    tenure.fence(connection, "scheduler", 1)
    tenure.fence(cursor, "scheduler", 1)
    tenure.fence(alchemy, "scheduler", 1)
    tenure.fence(session, "scheduler", 1)


async def connect() -> "psycopg.AsyncConnection[Any]":
    return await psycopg.AsyncConnection.connect("postgresql://app@db/app", password="of this hour")


async def many() -> List[str]:
    member = tenure.Member(
        "", ["billing", tenure.Role("mail", policy="fenced"), *tenure.shards("queue", 16)], connect_fn=connect
    )
    async with member:
        member.lock("billing").on_acquired(begin)
        late = await member.add_role("late")
        await late.step_down(5, to=member.identity)
        return member.leading


def threads() -> bool:
    with blocking.LeaderLock("postgresql://app@db/app", 1, 100, policy="fenced") as one:
        one.on_released(begin)
        with blocking.Member("", ["billing"], health_interval_s=2.0) as several:
            return one.wait_for_leadership(timeout_s=5) and several.leading_shards("queue") == [1]


class Patient:
    """A strategy of a user."""

    def next_delay_s(self, ctx: tenure.RetryContext) -> Optional[float]:
        return None if ctx.attempt > 5 else 1.0


paced: tenure.RetryStrategy = Patient()


async def in_a_test(group: MemoryGroup) -> None:
    async with group.lock("scheduler", priority=1) as first:
        group.crash(first)


# What a checker must refuse.
MemoryGroup().lock("r", lease_s=3)  # type: ignore[call-arg]  # pyright: ignore
blocking.LeaderLock("", role="r", lease="3")  # type: ignore[call-arg]  # pyright: ignore
blocking.Member("", roles=5)  # type: ignore[arg-type]  # pyright: ignore
_ = schedule("every second")  # type: ignore[arg-type]  # pyright: ignore
