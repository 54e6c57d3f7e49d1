"""A lock of its own: one role, one member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Optional, TypeVar

from . import retry as _retry
from ._life import Life
from ._role import RoleLock
from .errors import ShutdownError
from .models import LockState, Role, check_key
from .retry import RetryStrategy

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from . import _tenure

__all__ = ["LeaderLock"]

_Self = TypeVar("_Self", bound="LeaderLock")

#: How long the end of an ``async with`` block that raised may take.
EXCEPTION_TIMEOUT_S = 10.0


class LeaderLock(RoleLock):
    """Takes part in the election of one role, and leads at most once at a time in the whole group.

    ``async with LeaderLock(dsn, role="scheduler") as lock:`` starts it and releases it at the end.
    Heartbeats run on a thread of the extension: a busy event loop does not cost the lease.

    Name the role by ``role``, or by ``key1`` and ``key2`` (two integers of 32 bits), or both. ``lease_s``
    is three times ``health_interval_s`` if it is not given. ``connect_fn`` is called before every
    session; its psycopg connection is read for its parameters and password, and closed.
    """

    #: Seconds between heartbeats where the caller says nothing.
    _health_interval_s = 1.0
    #: The group in memory that stands for the database, in tests.
    _group: "Optional[_tenure.MemoryGroup]" = None

    def __init__(
        self,
        dsn: str = "",
        key1: Optional[int] = None,
        key2: Optional[int] = None,
        *,
        role: Optional[str] = None,
        retry_strategy: Optional[RetryStrategy] = None,
        health_interval_s: Optional[float] = None,
        lease_s: Optional[float] = None,
        reconnect_grace_s: Optional[float] = None,
        auto_reacquire: bool = True,
        shutdown_event: Optional[asyncio.Event] = None,
        connect_fn: "Optional[Callable[[], Awaitable[AsyncConnection[Any]]]]" = None,
        policy: str = "exclusive",
        priority: int = 0,
        candidate: bool = True,
        preempt: bool = False,
        cool_down_s: Optional[float] = None,
        drain_limit_s: Optional[float] = None,
        lock_only: bool = False,
        migrate: bool = True,
        scope: Optional[str] = None,
        instance: Optional[str] = None,
    ) -> None:
        if not isinstance(dsn, str):
            raise TypeError(f"dsn must be a str, not {type(dsn).__name__}")
        check_key("key1", key1, 32)
        check_key("key2", key2, 32)
        if (key1 is None) != (key2 is None):
            raise TypeError("give key1 and key2 together")
        if role is None and key1 is None:
            raise TypeError("name the role: role='…', or key1 and key2")
        context: Dict[str, Any] = {} if role is None else {"role": role}
        if key1 is not None:
            context.update(key1=key1, key2=key2)
        super().__init__(**context)
        if health_interval_s is None:
            health_interval_s = self._health_interval_s
        spec = Role(
            name=role,
            key1=key1,
            key2=key2,
            policy=policy,
            priority=priority,
            candidate=candidate,
            preempt=preempt,
            auto_reacquire=auto_reacquire,
            cool_down_s=cool_down_s,
            drain_limit_s=drain_limit_s,
        )
        self._settings: Dict[str, Any] = {
            "dsn": dsn or None,
            "heartbeat_s": health_interval_s,
            "lease_s": lease_s,
            "reconnect_grace_s": reconnect_grace_s,
            "lock_only": lock_only,
            "migrate": migrate,
            "scope": scope,
            "instance": instance,
            "retry": _retry.native(retry_strategy, self._strategy_failed),
            "roles": [spec._settings()],
        }
        self._shutdown_event = shutdown_event
        self._connect_fn = connect_fn
        self._starting: Optional["asyncio.Future[None]"] = None

    async def start(self) -> None:
        """Takes part in the race. Idempotent; after a stop it starts anew.

        A database that cannot be reached is no error: the lock follows and keeps trying. A set-up on
        which the promises cannot hold raises :class:`tenure.errors.RefusedError`.
        """
        life = self._running()
        if life is not None:
            if self._starting is not None:
                await asyncio.shield(self._starting)
            if life.ending is None:
                return
            await asyncio.wait({life.ending})
        loop = asyncio.get_running_loop()
        starting: "asyncio.Future[None]" = loop.create_future()
        # A failure is told to the caller of this start; the others see it if they wait.
        starting.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._starting = starting
        life = Life(self._connect_fn)
        life.locks.append(self)
        self._unbind()
        self._begin(life)
        try:
            if self._group is not None:
                life.open_in_memory(self._group, self._settings["roles"][0])
            else:
                await life.open(self._settings)
            native = life.native
            assert native is not None
            self._bind(native, 0)
            await life.ask(lambda op: native.start_role(0, op))
        except BaseException as error:
            life.leave()
            life.close()
            self._life = None
            if self._task is not None:
                self._task.cancel()
            # A cancelled start is not another caller's cancellation.
            told = error if isinstance(error, Exception) else ShutdownError("the start was cancelled")
            starting.set_exception(told)
            raise
        finally:
            self._starting = None
        starting.set_result(None)
        if self._shutdown_event is not None:
            life.spawn(self._obey(life, self._shutdown_event))

    async def shutdown(self, timeout_s: Optional[float] = None) -> None:
        """Releases the role and stops. Idempotent. Past ``timeout_s`` everything is dropped, and
        :class:`tenure.errors.ShutdownError` is raised."""
        life = self._life
        if life is None or life.inherited:
            # A child of a fork has nothing to release: the lock is its parent's.
            return
        if life.ending is None:
            life.ending = life.loop.create_task(self._end(life, timeout_s))
            # Told to the callers that wait; without any it is not lost in the log.
            life.ending.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not self._in_callback():
            await asyncio.shield(life.ending)

    async def __aenter__(self: _Self) -> _Self:
        await self.start()
        return self

    async def __aexit__(self, kind: Any, value: Any, traceback: Any) -> None:
        await self.shutdown(None if kind is None else EXCEPTION_TIMEOUT_S)

    @property
    def state(self) -> LockState:
        """The lifecycle's state. ``LEADER`` says that a term goes on; ``is_leader`` asks the gate."""
        if self._starting is not None and self._life is not None and not self._life.inherited:
            state = LockState(self._state())
            return LockState.FOLLOWER if state is LockState.STOPPED else state
        return LockState(self._state())

    async def _end(self, life: Life, timeout_s: Optional[float]) -> None:
        """Ends a life: the role first, so that its end is told, then the member."""
        try:
            if self._starting is not None:
                life.leave()
                await asyncio.wait({self._starting}, timeout=timeout_s)
            native = life.native
            if native is not None and not life.closed:
                # A role that has stopped already has told so.
                started = life.loop.time()
                await life.ask(lambda op: native.stop_role(0, op, timeout_s))
                await self._told(self._stopped)
                left = None
                if timeout_s is not None:
                    left = max(0.1, timeout_s - (life.loop.time() - started))
                await life.shutdown(left)
        except BaseException:
            life.leave()
            raise
        finally:
            life.close()
            if self._life is life:
                self._life = None
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()

    async def _obey(self, life: Life, event: asyncio.Event) -> None:
        """The caller's own signal to shut down."""
        await event.wait()
        if self._life is life and not life.closed:
            await self.shutdown()

    def _ends_with_stop(self, life: Life) -> bool:
        # A stopped lock has no connection: also after its strategy gave up, or its only term ended.
        if life.ending is None:
            life.ending = life.loop.create_task(self._end(life, None))
        return True

    def _strategy_failed(self, error: Exception) -> None:
        """From a thread of the extension."""
        life = self._life
        if life is not None and not life.loop.is_closed():
            life.loop.call_soon_threadsafe(self._fail, error)
