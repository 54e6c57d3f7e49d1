"""A member with many roles."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Dict, Iterable, List, Optional, Tuple, Union

from . import _check
from . import retry as _retry
from ._role import RoleLock
from ._starter import Starter, settings
from .errors import LockError
from .models import Role
from .models import shard as _shard
from .retry import RetryStrategy

if TYPE_CHECKING:
    from ._starter import ConnectFn

__all__ = ["Member"]


class Member(Starter):
    """One process that takes part in the election of any number of roles, on two sessions.

    ``roles`` are names or :class:`tenure.Role`; see :func:`tenure.shards` for numbered ones. Register
    callbacks on ``member.lock(name)``, then ``async with member:``.

    ``spread`` names sets of shards that the members of the group share evenly, over one more session:
    each hands over what belongs to another.

    A ``retry_strategy`` of your own is asked for each role that waits, while others may lead. It should
    answer at once: past a fifth of the heartbeat the default pace serves.
    """

    def __init__(
        self,
        dsn: str = "",
        roles: Iterable[Union[str, Role]] = (),
        *,
        spread: Iterable[str] = (),
        retry_strategy: Optional[RetryStrategy] = None,
        health_interval_s: float = 1.0,
        lease_s: Optional[float] = None,
        statement_deadline_s: Optional[float] = None,
        reconnect_grace_s: Optional[float] = None,
        connect_fn: "Optional[ConnectFn]" = None,
        lock_only: bool = False,
        migrate: bool = True,
        scope: Optional[str] = None,
        instance: Optional[str] = None,
    ) -> None:
        self._settings = settings(
            dsn,
            health_interval_s=health_interval_s,
            lease_s=lease_s,
            statement_deadline_s=statement_deadline_s,
            reconnect_grace_s=reconnect_grace_s,
            lock_only=lock_only,
            migrate=migrate,
            scope=scope,
            instance=instance,
        )
        self._settings["retry"] = _retry.native(retry_strategy, self._strategy_failed)
        self._settings["many_roles"] = True
        _check.connect_fn(connect_fn)
        if isinstance(roles, str):
            raise TypeError(f"roles takes a list of names, as in [{roles!r}]")
        self._connect_fn = connect_fn
        self._locks: Dict[str, Tuple[RoleLock, Role]] = {}
        for role in roles:
            self._add(role)
        if isinstance(spread, str):
            raise TypeError(f"spread takes the names of sets, as in spread=[{spread!r}]")
        self._settings["spread"] = [(name, self._spread(name)) for name in spread]
        if lock_only and self._settings["spread"]:
            raise ValueError("spread needs the tables, which lock_only does without")

    def _spread(self, name: str) -> int:
        """How many shards a set has."""
        count = 0
        while _shard(name, count) in self._locks:
            lock, role = self._locks[_shard(name, count)]
            if role.cool_down_s is None:
                # A hand-over is no failure: the shard may be won back at once if the other member is gone.
                self._locks[_shard(name, count)] = lock, dataclasses.replace(role, cool_down_s=0)
            count += 1
        if count == 0:
            raise ValueError(f"this member has no shards of {name!r}; give it tenure.shards({name!r}, …)")
        return count

    def _all(self) -> "List[tuple[RoleLock, Role]]":
        return list(self._locks.values())

    def _add(self, role: Union[str, Role]) -> "tuple[RoleLock, Role]":
        if not isinstance(role, (str, Role)):
            raise TypeError(f"a role is a name or a tenure.Role, not {type(role).__name__}")
        spec = Role(role) if isinstance(role, str) else role
        name = spec._called()
        if name in self._locks:
            raise ValueError(f"role {name!r} is there already")
        lock = RoleLock(role=name)
        lock._number = len(self._locks)
        self._locks[name] = (lock, spec)
        return lock, spec

    @property
    def identity(self) -> Optional[str]:
        """The identity of this process in the group, while it is started."""
        return next((lock.identity for lock in self.locks), None)

    def lock(self, role: str, shard: Optional[int] = None) -> RoleLock:
        """The handle of a role, or of one of its shards."""
        name = role if shard is None else _shard(role, shard)
        try:
            return self._locks[name][0]
        except KeyError:
            raise LockError(f"this member has no role {name!r}; add it first") from None

    @property
    def locks(self) -> List[RoleLock]:
        """The handles of all roles, in the order in which they were added."""
        return [lock for lock, _ in self._locks.values()]

    @property
    def leading(self) -> List[str]:
        """The names of the roles that this process leads at this instant."""
        return [name for name, (lock, _) in self._locks.items() if lock.is_leader]

    def leading_shards(self, name: str) -> List[int]:
        """The numbers of the shards of ``name`` that this process leads at this instant."""
        found = (role.rpartition("-") for role in self.leading)
        return sorted(int(number) for base, _, number in found if base == name and number.isdecimal())

    async def add_role(self, role: Union[str, Role]) -> RoleLock:
        """Adds a role while the member runs, and starts it."""
        if self._here() is not None and self._starting is not None:
            await asyncio.shield(self._starting)
        lock, spec = self._add(role)
        life = self._running()
        if life is None or life.native is None or life.over:
            return lock
        native = life.native
        try:
            number = native.add_role(spec._settings())
        except BaseException:
            del self._locks[spec._called()]
            raise
        assert number == lock._number
        life.locks.append(lock)
        lock._lock_only = bool(self._settings["lock_only"])
        lock._begin(life)
        lock._bind(native, number)
        await lock._join(life, native)
        return lock

    def _strategy_failed(self, error: Exception) -> None:
        for lock in self.locks:
            lock._fail_from_a_thread(error)
