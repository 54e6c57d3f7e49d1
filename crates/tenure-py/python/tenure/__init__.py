"""Exactly one acting leader per role, on the PostgreSQL you already run.

    import tenure

    async with tenure.LeaderLock(dsn, role="scheduler") as lock:
        await lock.wait_for_leadership()
        with lock.gate.begin_act() as act:      # refuses unless this process leads
            ...                                 # the one thing that only the leader may do

Importing it starts no thread. Locks are started after a fork, not before: see ``docs/python.md``.
"""

from __future__ import annotations

from ._role import RoleLock
from ._tenure import Act, Gate, generation, key, privileges_sql, schema_sql
from ._tenure import Token as LeaderToken
from .errors import (
    ConfigError,
    ConnectionError,
    ForkError,
    LockError,
    NotLeader,
    RefusedError,
    ShutdownError,
    StaleEpoch,
    TenureError,
    Uncertain,
    UnknownRole,
)
from .fencing import fence
from .leading import while_leading
from .lock import LeaderLock
from .member import Member
from .models import (
    Callback,
    ErrorCallback,
    Leader,
    LockState,
    RetryContext,
    Role,
    StateChangeCallback,
    shards,
)
from .retry import DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryStrategy

__version__ = "0.1.0"

__all__ = [
    "Act",
    "Callback",
    "ConfigError",
    "ConnectionError",
    "DecorrelatedJitter",
    "ErrorCallback",
    "ExponentialBackoff",
    "FixedInterval",
    "ForkError",
    "Gate",
    "Leader",
    "LeaderLock",
    "LeaderToken",
    "LockError",
    "LockState",
    "Member",
    "NotLeader",
    "RefusedError",
    "RetryContext",
    "RetryStrategy",
    "Role",
    "RoleLock",
    "ShutdownError",
    "StaleEpoch",
    "StateChangeCallback",
    "TenureError",
    "Uncertain",
    "UnknownRole",
    "fence",
    "generation",
    "key",
    "privileges_sql",
    "schema_sql",
    "shards",
    "while_leading",
]
