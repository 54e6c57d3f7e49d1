"""pgleaderlock's exceptions."""

from __future__ import annotations

from ..errors import ConnectionError, LockError, ShutdownError, TenureError

__all__ = ["ConnectionError", "LockError", "PgLeaderLockError", "ShutdownError"]

PgLeaderLockError = TenureError
