"""The election in memory, for a program's own tests.

Engine and driver are those that run on PostgreSQL: lifecycle, gate, events, leases, policies and
cool-down are the same; only the database is a model. Between processes it does nothing, and there is no
fence, for there is no database to write to.

In a ``conftest.py``::

    from tenure.testing import tenure_group        # a pytest fixture

and in a test::

    async def test_the_second_takes_over(tenure_group):
        async with tenure_group.lock("scheduler") as first:
            assert await first.wait_for_leadership(5)
            async with tenure_group.lock("scheduler") as second:
                tenure_group.crash(first)
                assert await second.wait_for_leadership(5)
"""

from __future__ import annotations

import asyncio
from typing import Any, Iterator, Optional

from . import _tenure
from .errors import LockError
from .lock import LeaderLock

__all__ = ["MemoryGroup", "tenure_group"]


class _MemoryLock(LeaderLock):
    def __init__(self, group: "_tenure.MemoryGroup", role: str, **options: Any) -> None:
        super().__init__(role=role, **options)
        self._group = group


class MemoryGroup:
    """The members of one test, and the database that they think they share."""

    def __init__(self, *, health_interval_s: float = 0.1, lease_s: Optional[float] = None) -> None:
        self._group = _tenure.MemoryGroup(health_interval_s, lease_s)

    def lock(
        self,
        role: str,
        *,
        policy: str = "exclusive",
        priority: int = 0,
        candidate: bool = True,
        preempt: bool = False,
        auto_reacquire: bool = True,
        cool_down_s: Optional[float] = None,
        drain_limit_s: Optional[float] = None,
        shutdown_event: Optional[asyncio.Event] = None,
    ) -> LeaderLock:
        """A lock of a new member of this group. The arguments are those of :class:`tenure.LeaderLock`; timings
        are the group's."""
        return _MemoryLock(
            self._group,
            role,
            policy=policy,
            priority=priority,
            candidate=candidate,
            preempt=preempt,
            auto_reacquire=auto_reacquire,
            cool_down_s=cool_down_s,
            drain_limit_s=drain_limit_s,
            shutdown_event=shutdown_event,
        )

    def crash(self, lock: LeaderLock) -> None:
        """The member's process dies without releasing anything. Its gate is shut when this returns."""
        self._group.crash(_member(lock))
        if lock._stopped is not None:
            # A dead process tells no story; nothing waits for its end.
            lock._stopped.set()
            lock._wake_waiters(False)

    def partition(self, lock: LeaderLock) -> None:
        """Cuts a member off. It does not notice; its session ends with lease and margin."""
        self._group.partition(_member(lock))

    def heal(self, lock: LeaderLock) -> None:
        """Ends a partition."""
        self._group.heal(_member(lock))

    def terminate(self, lock: LeaderLock) -> None:
        """Ends a member's session, as ``pg_terminate_backend`` does."""
        self._group.terminate(_member(lock))

    def restart(self) -> None:
        """Restarts the database: every session ends, nothing else is lost."""
        self._group.restart()

    def pause(self, role: str, paused: bool = True) -> None:
        """An operator's switch: while a role is paused no member claims it, and its leader drains."""
        self._group.set_paused(role, paused)


def _member(lock: LeaderLock) -> "_tenure.Member":
    life = lock._running()
    if life is None or life.native is None:
        raise LockError("the lock is not started; start it first")
    return life.native


try:
    import pytest
except ImportError:  # The fixture is for pytest alone; the group works without it.
    pass
else:

    @pytest.fixture
    def tenure_group() -> Iterator[MemoryGroup]:
        """A group in memory, for one test."""
        yield MemoryGroup()
