"""What can go wrong, as exceptions. Each message says what to do."""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "ConnectionError",
    "ForkError",
    "LockError",
    "NotLeader",
    "RefusedError",
    "ShutdownError",
    "StaleEpoch",
    "TenureError",
    "Uncertain",
    "UnknownRole",
]


class TenureError(Exception):
    """The base of all exceptions of this package."""


class ConnectionError(TenureError):
    """The database cannot be reached, or did not let us in."""


class LockError(TenureError):
    """A role could not be acquired or released."""


class RefusedError(LockError):
    """The set-up cannot hold the promises: a pooler, a standby, missing rights, an old server."""


class ShutdownError(TenureError):
    """Something did not end in time. What was begun goes on in the background."""


class ConfigError(TenureError, ValueError):
    """The arguments contradict each other, or one is out of its bounds."""


class ForkError(TenureError):
    """A lock that was started in another process is used in a fork of it."""


class NotLeader(TenureError):
    """The gate said no; nothing was done.

    ``reason`` is ``"shut"``, ``"expired"``, ``"draining"``, ``"other_epoch"`` or ``"lease_too_short"``.
    """

    def __init__(self, message: str, reason: str = "shut") -> None:
        super().__init__(message)
        self.reason = reason


class Uncertain(TenureError):
    """The lease did not provably cover the act: check its effect, or write it through the fence."""

    def __init__(self, message: str, epoch: int = 0, reason: str = "expired") -> None:
        super().__init__(message)
        self.epoch = epoch
        self.reason = reason


class StaleEpoch(TenureError):
    """The fence found a newer epoch: roll back and stop acting."""


class UnknownRole(TenureError):
    """The fence was asked about a role that the database does not know."""
