"""pgleaderlock's states and types."""

from __future__ import annotations

from ..models import Callback, ErrorCallback, LockState, RetryContext, StateChangeCallback

__all__ = ["Callback", "ErrorCallback", "LockState", "RetryContext", "StateChangeCallback"]
