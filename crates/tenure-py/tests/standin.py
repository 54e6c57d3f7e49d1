"""A stand-in for pgleaderlock, which no registry has: its interface and its lifecycle, as its manual tells
them, on one asyncio task and one psycopg connection.

For comparison only. The suite that is written for pgleaderlock runs on it too, which shows that the suite
asks nothing of Tenure in particular; the bench puts its figures beside ours.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import random
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

import psycopg

logger = logging.getLogger("pgleaderlock")


class PgLeaderLockError(Exception):
    pass


class ConnectionError(PgLeaderLockError):
    pass


class LockError(PgLeaderLockError):
    pass


class ShutdownError(PgLeaderLockError):
    pass


class LockState(enum.Enum):
    STOPPED = "stopped"
    FOLLOWER = "follower"
    ACQUIRING = "acquiring"
    LEADER = "leader"
    RECONNECTING = "reconnecting"
    RELEASING = "releasing"


@dataclass(frozen=True)
class RetryContext:
    attempt: int
    elapsed_s: float
    last_error: Optional[Exception]


class ExponentialBackoff:
    def __init__(self, base_s: float = 1.0, max_s: float = 30.0, multiplier: float = 2.0) -> None:
        self.base_s, self.max_s, self.multiplier = base_s, max_s, multiplier

    def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
        return min(self.base_s * self.multiplier ** (ctx.attempt - 1), self.max_s)


class FixedInterval:
    def __init__(self, interval_s: float = 5.0) -> None:
        self.interval_s = interval_s

    def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
        return self.interval_s


class DecorrelatedJitter:
    def __init__(self, base_s: float = 1.0, max_s: float = 30.0) -> None:
        self.base_s, self.max_s, self._previous = base_s, max_s, base_s

    def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
        self._previous = min(self.max_s, random.uniform(self.base_s, self._previous * 3))
        return self._previous


class LeaderLock:
    def __init__(
        self,
        dsn: str,
        key1: int,
        key2: int,
        *,
        retry_strategy: Any = None,
        health_interval_s: float = 5.0,
        reconnect_grace_s: Optional[float] = None,
        auto_reacquire: bool = True,
        shutdown_event: Optional[asyncio.Event] = None,
        connect_fn: Any = None,
    ) -> None:
        self._dsn, self._keys = dsn, (key1, key2)
        self._retry = retry_strategy or ExponentialBackoff()
        self._health, self._grace, self._again = health_interval_s, reconnect_grace_s, auto_reacquire
        self._outer, self._connect_fn = shutdown_event, connect_fn
        self._callbacks: Dict[str, List[Callable[..., Any]]] = {}
        self._state = LockState.STOPPED
        self._task: Optional["asyncio.Task[None]"] = None
        self._connection: Any = None
        self._stop, self._step, self._released = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._changed = asyncio.Condition()

    @property
    def state(self) -> LockState:
        return self._state

    @property
    def is_leader(self) -> bool:
        return self._state == LockState.LEADER

    async def start(self) -> None:
        if self._state is LockState.STOPPED and (self._task is None or self._task.done()):
            self._stop.clear()
            await self._enter(LockState.FOLLOWER)
            self._task = asyncio.create_task(self._run())
            if self._outer is not None:
                asyncio.create_task(self._obey(self._outer))

    async def _obey(self, event: asyncio.Event) -> None:
        await event.wait()
        self._stop.set()

    async def shutdown(self, timeout_s: Optional[float] = None) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait_for(asyncio.shield(self._task), timeout_s)

    async def step_down(self, timeout_s: Optional[float] = None) -> None:
        if self.is_leader:
            self._released.clear()
            self._step.set()
            await asyncio.wait_for(self._released.wait(), timeout_s)

    async def wait_for_leadership(self, timeout_s: Optional[float] = None) -> bool:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: self.is_leader), timeout_s)
                return True
            except asyncio.TimeoutError:
                return False

    async def __aenter__(self) -> "LeaderLock":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def _on(self, name: str, fn: Any) -> Any:
        self._callbacks.setdefault(name, []).append(fn)
        return fn

    def on_acquired(self, fn: Any) -> Any:
        return self._on("acquired", fn)

    def on_released(self, fn: Any) -> Any:
        return self._on("released", fn)

    def on_lost(self, fn: Any) -> Any:
        return self._on("lost", fn)

    def on_acquire_failed(self, fn: Any) -> Any:
        return self._on("acquire_failed", fn)

    def on_state_change(self, fn: Any) -> Any:
        return self._on("state_change", fn)

    def on_error(self, fn: Any) -> Any:
        return self._on("error", fn)

    async def _emit(self, name: str, *arguments: Any) -> None:
        for fn in self._callbacks.get(name, []):
            try:
                answer = fn(*arguments)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:
                logger.exception("callback")
                if name != "error":
                    await self._emit("error", error)

    async def _enter(self, state: LockState) -> None:
        before, self._state = self._state, state
        keys = "key1=%d key2=%d" % self._keys
        logger.info("pgleaderlock | state_change from=%s to=%s %s", before.value, state.value, keys)
        await self._emit("state_change", before, state)
        async with self._changed:
            self._changed.notify_all()

    async def _sleep(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._stop, self._step)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _try(self) -> bool:
        if self._connection is None:
            connect = self._connect_fn or (lambda: psycopg.AsyncConnection.connect(self._dsn, autocommit=True))
            self._connection = await connect()
        answer = await self._connection.execute("select pg_try_advisory_lock(%s, %s)", self._keys)
        return bool((await answer.fetchone())[0])

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _run(self) -> None:
        attempt, began = 0, time.monotonic()
        while not self._stop.is_set():
            await self._enter(LockState.ACQUIRING)
            attempt, error = attempt + 1, None
            try:
                won = await self._try()
            except psycopg.Error as caught:
                won, error = False, ConnectionError(str(caught))
                await self._close()
                await self._emit("error", error)
            if not won:
                await self._enter(LockState.FOLLOWER)
                if error is None:
                    await self._emit("acquire_failed")
                delay = self._retry.next_delay_s(RetryContext(attempt, time.monotonic() - began, error))
                if delay is None:
                    break
                await self._sleep(delay)
                continue
            keys = "key1=%d key2=%d" % self._keys
            logger.info("pgleaderlock | lock_acquired %s attempt=%d", keys, attempt)
            await self._enter(LockState.LEADER)
            await self._emit("acquired")
            if not await self._lead() or not self._again:
                break
            attempt, began = 0, time.monotonic()
        await self._close()
        await self._enter(LockState.STOPPED)

    async def _lead(self) -> bool:
        """One term; false if a stop ended it."""
        while not self._stop.is_set() and not self._step.is_set():
            await self._sleep(self._health)
            try:
                if not self._stop.is_set():
                    await self._connection.execute("select 1")
            except psycopg.Error as error:
                keys = "key1=%d key2=%d" % self._keys
                logger.warning('pgleaderlock | health_check_failed error="%s" %s', error, keys)
                await self._close()
                if self._grace is not None and await self._win_back(self._grace):
                    continue
                await self._emit("lost")
                await self._enter(LockState.FOLLOWER)
                return True
        await self._enter(LockState.RELEASING)
        await self._connection.execute("select pg_advisory_unlock(%s, %s)", self._keys)
        await self._emit("released")
        stepped = self._step.is_set() and not self._stop.is_set()
        self._step.clear()
        if stepped and self._again:
            await self._enter(LockState.FOLLOWER)
        self._released.set()
        return stepped

    async def _win_back(self, grace_s: float) -> bool:
        await self._enter(LockState.RECONNECTING)
        until = time.monotonic() + grace_s
        while time.monotonic() < until:
            try:
                if await self._try():
                    await self._enter(LockState.LEADER)
                    return True
                return False
            except psycopg.Error:
                await self._close()
                await asyncio.sleep(0.1)
        return False
