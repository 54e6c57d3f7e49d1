"""A member with many roles."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Iterable, List, Optional, TypeVar, Union

from . import retry as _retry
from ._life import Life
from ._role import RoleLock
from .errors import ForkError, LockError
from .lock import EXCEPTION_TIMEOUT_S
from .models import Role
from .retry import RetryStrategy

if TYPE_CHECKING:
    from psycopg import AsyncConnection

__all__ = ["Member"]

_Self = TypeVar("_Self", bound="Member")


class Member:
    """One process that takes part in the election of any number of roles, on two sessions.

    ``roles`` are names or :class:`tenure.Role`; see :func:`tenure.shards` for numbered ones. Register
    callbacks on ``member.lock(name)``, then ``async with member:``.
    """

    def __init__(
        self,
        dsn: str = "",
        roles: Iterable[Union[str, Role]] = (),
        *,
        retry_strategy: Optional[RetryStrategy] = None,
        health_interval_s: float = 1.0,
        lease_s: Optional[float] = None,
        reconnect_grace_s: Optional[float] = None,
        connect_fn: "Optional[Callable[[], Awaitable[AsyncConnection[Any]]]]" = None,
        lock_only: bool = False,
        migrate: bool = True,
        scope: Optional[str] = None,
        instance: Optional[str] = None,
    ) -> None:
        self._settings: Dict[str, Any] = {
            "dsn": dsn or None,
            "heartbeat_s": health_interval_s,
            "lease_s": lease_s,
            "reconnect_grace_s": reconnect_grace_s,
            "lock_only": lock_only,
            "migrate": migrate,
            "scope": scope,
            "instance": instance,
            "retry": _retry.native(retry_strategy, None),
        }
        self._connect_fn = connect_fn
        self._life: Optional[Life] = None
        self._roles: List[Role] = []
        self._locks: Dict[str, RoleLock] = {}
        for role in roles:
            self._add(role)

    def _add(self, role: Union[str, Role]) -> RoleLock:
        spec = Role(role) if isinstance(role, str) else role
        if spec.name is None:
            raise ValueError("a role of a member needs a name")
        if spec.name in self._locks:
            raise ValueError(f"role {spec.name!r} is there already")
        lock = RoleLock(role=spec.name)
        lock._number = len(self._roles)
        self._roles.append(spec)
        self._locks[spec.name] = lock
        return lock

    @property
    def identity(self) -> Optional[str]:
        """The identity of this process in the group, while it is started."""
        return next((lock.identity for lock in self._locks.values()), None)

    def lock(self, role: str) -> RoleLock:
        """The handle of a role."""
        try:
            return self._locks[role]
        except KeyError:
            raise LockError(f"this member has no role {role!r}; add it first") from None

    @property
    def locks(self) -> List[RoleLock]:
        """The handles of all roles, in the order in which they were added."""
        return list(self._locks.values())

    @property
    def leading(self) -> List[str]:
        """The names of the roles that this process leads at this instant."""
        return [name for name, lock in self._locks.items() if lock.is_leader]

    def _running(self) -> Optional[Life]:
        if self._life is not None and self._life.inherited:
            raise ForkError(
                "this member was started in another process, of which this one is a fork; make a new "
                "Member in this process"
            )
        return self._life

    async def start(self) -> None:
        """Starts the member and all its roles. Idempotent."""
        if self._running() is not None:
            return
        life = Life(self._connect_fn)
        self._life = life
        try:
            for lock in self._locks.values():
                lock._unbind()
                life.locks.append(lock)
                lock._begin(life)
            await life.open(dict(self._settings, roles=[role._settings() for role in self._roles]))
            native = life.native
            assert native is not None
            for lock in life.locks:
                lock._bind(native, lock._number)

            async def begin(number: int) -> None:
                await life.ask(lambda op: native.start_role(number, op))

            await asyncio.gather(*(begin(lock._number) for lock in life.locks))
        except BaseException:
            self._life = None
            life.leave()
            life.close()
            self._end_tasks(life)
            raise

    async def add_role(self, role: Union[str, Role]) -> RoleLock:
        """Adds a role while the member runs, and starts it."""
        life = self._running()
        lock = self._add(role)
        if life is not None and life.native is not None:
            native = life.native
            life.locks.append(lock)
            lock._begin(life)
            number = native.add_role(self._roles[lock._number]._settings())
            assert number == lock._number
            lock._bind(native, number)
            await life.ask(lambda op: native.start_role(number, op))
        return lock

    async def shutdown(self, timeout_s: Optional[float] = None) -> None:
        """Releases every role and leaves. Idempotent."""
        life = self._life
        if life is None or life.inherited:
            return
        if life.ending is None:
            life.ending = life.loop.create_task(self._end(life, timeout_s))
            life.ending.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not any(lock._in_callback() for lock in life.locks):
            await asyncio.shield(life.ending)

    async def _end(self, life: Life, timeout_s: Optional[float]) -> None:
        try:
            native = life.native
            if native is not None:
                await life.ask(lambda op: native.shutdown(op, timeout_s))
                await asyncio.gather(*(lock._told(lock._stopped) for lock in life.locks))
        except BaseException:
            life.leave()
            raise
        finally:
            life.close()
            if self._life is life:
                self._life = None
            self._end_tasks(life)

    @staticmethod
    def _end_tasks(life: Life) -> None:
        for lock in life.locks:
            lock._life = None
            if lock._task is not None:
                lock._task.cancel()

    async def __aenter__(self: _Self) -> _Self:
        await self.start()
        return self

    async def __aexit__(self, kind: Any, value: Any, traceback: Any) -> None:
        await self.shutdown(None if kind is None else EXCEPTION_TIMEOUT_S)
