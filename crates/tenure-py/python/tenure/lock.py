"""A lock of its own: one role, one member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import _check
from . import retry as _retry
from ._life import Interrupted, Life
from ._role import RoleLock
from ._starter import Starter, settings
from .models import Role, check_key
from .retry import RetryStrategy

if TYPE_CHECKING:
    from ._starter import ConnectFn

__all__ = ["LeaderLock"]


class LeaderLock(Starter, RoleLock):
    """Takes part in the election of one role, and leads at most once at a time in the whole group.

    ``async with LeaderLock(dsn, role="scheduler") as lock:`` starts it and releases it at the end.
    Heartbeats run on a thread of the extension: a busy event loop does not cost the lease.

    Name the role by ``role``, or by ``key1`` and ``key2`` (two integers of 32 bits), or both. ``lease_s``
    is three times ``health_interval_s`` if it is not given. ``connect_fn`` is called before every
    session; its psycopg connection is read for its parameters and password, and closed.
    """

    #: Seconds between heartbeats where the caller says nothing.
    _health_interval_s = 1.0

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
        statement_deadline_s: Optional[float] = None,
        reconnect_grace_s: Optional[float] = None,
        auto_reacquire: bool = True,
        shutdown_event: Optional[asyncio.Event] = None,
        connect_fn: "Optional[ConnectFn]" = None,
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
        _check.text("role", role)
        _check.event("shutdown_event", shutdown_event)
        _check.connect_fn(connect_fn)
        check_key("key1", key1, 32)
        check_key("key2", key2, 32)
        if (key1 is None) != (key2 is None):
            raise TypeError("give key1 and key2 together")
        if role is None and key1 is None:
            raise TypeError("name the role: role='…', or key1 and key2")
        context: Dict[str, Any] = {} if role is None else {"role": role}
        if key1 is not None:
            context.update(key1=key1, key2=key2)
        RoleLock.__init__(self, **context)
        self._spec = Role(
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
        self._settings = settings(
            dsn,
            health_interval_s=self._health_interval_s if health_interval_s is None else health_interval_s,
            lease_s=lease_s,
            statement_deadline_s=statement_deadline_s,
            reconnect_grace_s=reconnect_grace_s,
            lock_only=lock_only,
            migrate=migrate,
            scope=scope,
            instance=instance,
        )
        self._settings["retry"] = _retry.native(retry_strategy, self._fail_from_a_thread)
        self._shutdown_event = shutdown_event
        self._connect_fn = connect_fn

    def _all(self) -> "List[tuple[RoleLock, Role]]":
        return [(self, self._spec)]

    def _story_is_told(self) -> bool:
        # While it starts, its story has not begun.
        return self._starting is None and super()._story_is_told()

    async def _start(self) -> None:
        try:
            await super()._start()
        except Interrupted:
            # The caller's own event: a lock that obeys it is stopped, and nothing went wrong.
            if self._shutdown_event is None or not self._shutdown_event.is_set():
                raise

    async def _open(self, life: Life) -> None:
        if self._shutdown_event is not None:
            life.spawn_until_closed(self._obey(life, self._shutdown_event))
        await super()._open(life)

    async def _obey(self, life: Life, event: asyncio.Event) -> None:
        """The caller's own signal to shut down."""
        await event.wait()
        life.outlast()
        if self._life is life and not life.closed:
            try:
                await self.shutdown()
            except Exception as error:
                self._logger.error("shutdown_failed", error=str(error), **self._context)
                await self._tell_error(error)

    def _ends_with_stop(self, life: Life) -> bool:
        # A stopped lock has no connection: also after its strategy gave up, or its only term ended.
        life.stopped = True
        self._end_soon(life, None)
        return True
