"""Arguments that cannot be right are told by their names, before anything happens."""

from __future__ import annotations

import asyncio
import inspect
import math
from typing import Any

_MOST = (1 << 31) - 1


def seconds(name: str, value: Any, *, negative: bool = False) -> None:
    """A number of seconds, or ``None``."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value) or (not negative and not 0 <= value < math.inf):
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value}")


def text(name: str, value: Any) -> None:
    """A str, or ``None``."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")


def switch(name: str, value: Any) -> None:
    """A bool, or ``None``."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def priority(value: Any) -> None:
    """An integer of 32 bits, or ``None``."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"priority must be an int, not {type(value).__name__}")
    if not -_MOST - 1 <= value <= _MOST:
        raise ValueError(f"priority must be a signed integer of 32 bits, not {value}")


def connect_fn(value: Any) -> None:
    """A callable, or ``None``."""
    if value is not None and not callable(value):
        raise TypeError(f"connect_fn must be a callable, not {type(value).__name__}")


def event(name: str, value: Any) -> None:
    """An event of asyncio, or ``None``: one of another kind would block the loop or never be seen."""
    if value is None or isinstance(value, asyncio.Event):
        return
    if isinstance(value, type) or not inspect.iscoroutinefunction(getattr(value, "wait", None)):
        raise TypeError(f"{name} must be an asyncio.Event, not {_kind(value)}")


def _kind(value: Any) -> str:
    found = value if isinstance(value, type) else type(value)
    return f"{found.__module__}.{found.__qualname__}"
