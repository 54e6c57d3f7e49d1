"""pgleaderlock's log lines."""

from __future__ import annotations

from .._logging import StructuredLogger, get_logger

__all__ = ["StructuredLogger", "get_logger"]
