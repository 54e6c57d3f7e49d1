"""pgleaderlock's interface on Tenure: change the import, and the program runs.

``from tenure.pgleaderlock import LeaderLock`` has the constructor, methods, callbacks and exceptions of
pgleaderlock, with a heartbeat of 5 s and so a lease of 15 s. ``docs/coming-from.md`` says what differs.
"""

from __future__ import annotations

from .errors import ConnectionError, LockError, PgLeaderLockError, ShutdownError
from .lock import LeaderLock
from .models import Callback, ErrorCallback, LockState, RetryContext, StateChangeCallback
from .retry import DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryStrategy

__all__ = [
    "Callback",
    "ConnectionError",
    "DecorrelatedJitter",
    "ErrorCallback",
    "ExponentialBackoff",
    "FixedInterval",
    "LeaderLock",
    "LockError",
    "LockState",
    "PgLeaderLockError",
    "RetryContext",
    "RetryStrategy",
    "ShutdownError",
    "StateChangeCallback",
]
