"""pgleaderlock's lock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Optional

from .. import lock as _lock
from ..models import LockState
from ..retry import ExponentialBackoff, RetryStrategy
from ._logging import get_logger

if TYPE_CHECKING:
    from psycopg import AsyncConnection

__all__ = ["LeaderLock", "LockState"]


class LeaderLock(_lock.LeaderLock):
    """A lock of one pair of keys, with pgleaderlock's arguments and defaults."""

    _logger = get_logger("pgleaderlock")

    def __init__(
        self,
        dsn: str,
        key1: int,
        key2: int,
        *,
        retry_strategy: Optional[RetryStrategy] = None,
        health_interval_s: float = 5.0,
        reconnect_grace_s: Optional[float] = None,
        auto_reacquire: bool = True,
        shutdown_event: Optional[asyncio.Event] = None,
        connect_fn: "Optional[Callable[[], Awaitable[AsyncConnection[Any]]]]" = None,
    ) -> None:
        super().__init__(
            dsn,
            key1,
            key2,
            retry_strategy=ExponentialBackoff() if retry_strategy is None else retry_strategy,
            health_interval_s=health_interval_s,
            reconnect_grace_s=reconnect_grace_s,
            auto_reacquire=auto_reacquire,
            shutdown_event=shutdown_event,
            connect_fn=connect_fn,
        )
