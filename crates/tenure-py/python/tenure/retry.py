"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from typing import Any, Callable, List, Optional, Protocol, Tuple, runtime_checkable

from .errors import ConnectionError
from .models import RetryContext

__all__ = ["DecorrelatedJitter", "ExponentialBackoff", "FixedInterval", "RetryStrategy"]


@runtime_checkable
class RetryStrategy(Protocol):
    """Paces attempts. A vacancy is noticed without it; it decides what happens while nothing is vacant.

    A lock waits 10 ms at least, whatever the strategy says.
    """

    def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
        """Seconds to wait before the next attempt; ``None`` gives up, which stops the lock."""
        ...


def _seconds(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"{name} must be 0 seconds or more, not {value}")
    return value


class ExponentialBackoff:
    """``min(base_s * multiplier ** (attempt - 1), max_s)``; a lock spreads it by a fifth either way."""

    def __init__(self, base_s: float = 1.0, max_s: float = 30.0, multiplier: float = 2.0) -> None:
        self.base_s = _seconds("base_s", base_s)
        self.max_s = _seconds("max_s", max_s)
        if not 1 <= multiplier <= 100:
            raise ValueError(f"multiplier must be between 1 and 100, not {multiplier}")
        self.multiplier = multiplier

    def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
        """Doubles, or as ``multiplier`` says, up to ``max_s``. Never gives up."""
        try:
            return min(self.base_s * self.multiplier ** (ctx.attempt - 1), self.max_s)
        except OverflowError:
            return self.max_s

    def _native(self) -> Tuple[str, List[float]]:
        return "exponential", [self.base_s, self.max_s, self.multiplier]


class FixedInterval:
    """The same delay every time."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self.interval_s = _seconds("interval_s", interval_s)

    def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
        """Always ``interval_s``. Never gives up."""
        return self.interval_s

    def _native(self) -> Tuple[str, List[float]]:
        return "fixed", [self.interval_s]


class DecorrelatedJitter:
    """``min(max_s, random(base_s, 3 * previous delay))``: spreads out even members that failed together."""

    def __init__(self, base_s: float = 1.0, max_s: float = 30.0) -> None:
        self.base_s = _seconds("base_s", base_s)
        self.max_s = _seconds("max_s", max_s)
        self._previous = base_s

    def next_delay_s(self, ctx: RetryContext) -> Optional[float]:
        """A random delay that grows with the one before. Never gives up."""
        previous = self.base_s if ctx.attempt <= 1 else self._previous
        self._previous = min(self.max_s, random.uniform(self.base_s, max(self.base_s, previous * 3)))
        return self._previous

    def _native(self) -> Tuple[str, List[float]]:
        return "jitter", [self.base_s, self.max_s]


_BUNDLED = (ExponentialBackoff, FixedInterval, DecorrelatedJitter)


def native(strategy: Optional[RetryStrategy], tell: Callable[[Exception], None]) -> Any:
    """What the extension is given for a strategy.

    A bundled one runs there. Another one is called from there, on a thread of its own; ``tell`` learns
    of its exceptions.
    """
    if strategy is None:
        return None
    if isinstance(strategy, type):
        raise TypeError(f"retry_strategy takes an object, not a class; write {strategy.__name__}()")
    if type(strategy) in _BUNDLED:
        return strategy._native()  # type: ignore[attr-defined]
    if not callable(getattr(strategy, "next_delay_s", None)):
        raise TypeError(
            "retry_strategy needs a method next_delay_s(ctx); "
            f"{type(strategy).__name__} has none"
        )
    ask = strategy.next_delay_s

    def pace(attempt: int, elapsed_s: float, last_error: Optional[str]) -> Optional[float]:
        error = None if last_error is None else ConnectionError(last_error)
        try:
            delay = ask(RetryContext(attempt, elapsed_s, error))
            return None if delay is None else max(0.0, float(delay))
        except Exception as exception:
            tell(exception)
            raise

    return pace
