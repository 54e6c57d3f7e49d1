"""pgleaderlock's retry strategies."""

from __future__ import annotations

from ..models import RetryContext
from ..retry import DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryStrategy

__all__ = [
    "DecorrelatedJitter",
    "ExponentialBackoff",
    "FixedInterval",
    "RetryContext",
    "RetryStrategy",
]
