"""States, callback types and small values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, List, Optional, Union

from . import _check

__all__ = [
    "Callback",
    "ErrorCallback",
    "Leader",
    "LockState",
    "RetryContext",
    "Role",
    "StateChangeCallback",
    "shards",
]


class LockState(enum.Enum):
    """Where the lifecycle of a role stands."""

    STOPPED = "stopped"
    FOLLOWER = "follower"
    ACQUIRING = "acquiring"
    LEADER = "leader"
    RECONNECTING = "reconnecting"
    RELEASING = "releasing"


#: A callback without arguments; a coroutine function is awaited.
Callback = Callable[[], Union[None, Awaitable[None]]]
#: Called with the state before and the state after.
StateChangeCallback = Callable[[LockState, LockState], Union[None, Awaitable[None]]]
#: Called with the exception as it was raised.
ErrorCallback = Callable[[Exception], Union[None, Awaitable[None]]]


@dataclass(frozen=True)
class RetryContext:
    """What happened so far in this cycle of attempts."""

    #: Which attempt just failed, counted from 1.
    attempt: int
    #: Seconds since the first attempt of the cycle.
    elapsed_s: float
    #: Why the last attempt failed; ``None`` if another process holds the lock.
    last_error: Optional[Exception]


@dataclass(frozen=True)
class Leader:
    """The leader of a role as the database knows it: news, not proof."""

    #: The member that holds the role.
    identity: str
    #: The epoch under which it holds the role.
    epoch: int
    #: False while it waits out the lease of the leader before it.
    acting: bool


@dataclass(frozen=True)
class Role:
    """A role of a :class:`tenure.Member`. What is ``None`` has the library's default.

    Name it, or give its keys: ``Role(key1=1, key2=100)`` is called ``lock:1,100``.
    """

    #: What it is called; its lock key is computed from it.
    name: Optional[str] = None
    #: One key of 64 bits, in place of the name's own.
    key: Optional[int] = None
    #: Two keys of 32 bits, in place of the name's own.
    key1: Optional[int] = None
    key2: Optional[int] = None
    #: ``"exclusive"`` waits until the last leader's gate must be shut; ``"fenced"`` does not, and
    #: every effect must carry the epoch.
    policy: Optional[str] = None
    #: The higher one gets a head start in the race.
    priority: Optional[int] = None
    #: False watches and never leads.
    candidate: Optional[bool] = None
    #: Asks a healthy leader of lower priority to step down.
    preempt: Optional[bool] = None
    #: False stops the role after its first term.
    auto_reacquire: Optional[bool] = None
    #: How long to stay out of the race after a step-down; default: the lease.
    cool_down_s: Optional[float] = None
    #: How long a step-down waits for acts in flight; default: 10.
    drain_limit_s: Optional[float] = None

    def __post_init__(self) -> None:
        _check.text("name", self.name)
        _check.text("policy", self.policy)
        _check.priority(self.priority)
        for switch in ("candidate", "preempt", "auto_reacquire"):
            _check.switch(switch, getattr(self, switch))
        for period in ("cool_down_s", "drain_limit_s"):
            _check.seconds(period, getattr(self, period))

    def _called(self) -> str:
        """The name under which a member knows it; one with keys alone is called by them."""
        if self.name is not None:
            return self.name
        if self.key is not None:
            return f"lock:{self.key}"
        if self.key1 is not None and self.key2 is not None:
            return f"lock:{self.key1},{self.key2}"
        raise ValueError("a role needs a name, or key1 and key2, or key")

    def _settings(self) -> "dict[str, Any]":
        check_key("key1", self.key1, 32)
        check_key("key2", self.key2, 32)
        check_key("key", self.key, 64)
        return {name: value for name, value in vars(self).items() if value is not None}


def check_key(name: str, value: "Optional[int]", bits: int) -> None:
    """Refuses what PostgreSQL cannot take as a lock key."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"{name} must be a signed integer of {bits} bits, not {value}")


def shards(name: str, count: int, **options: Any) -> List[Role]:
    """The roles ``name-0`` … ``name-<count - 1>``, all with the same options. A set of shards of the Rust
    library, or of an agent, has the same names: their members and yours exclude each other."""
    if count < 1:
        raise ValueError("count must be 1 or more")
    return [Role(shard(name, number), **options) for number in range(count)]


def shard(name: str, number: int) -> str:
    """What the role of a shard is called."""
    return f"{name}-{number}"
