"""Log lines of one form: ``<name> | <event> key=value …``, through the standard library."""

from __future__ import annotations

import logging
from typing import Any

_LEVELS = {"ERROR": logging.ERROR, "WARN": logging.WARNING}


class StructuredLogger:
    """A thin wrapper around a standard logger."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.logger = logging.getLogger(name)

    def log(self, level: int, event: str, **context: Any) -> None:
        """One line. A text with spaces or quotes is quoted."""
        if self.logger.isEnabledFor(level):
            words = "".join(f" {key.rstrip('_')}={_quoted(value)}" for key, value in context.items())
            self.logger.log(level, "%s | %s%s", self.name, event, words)

    def debug(self, event: str, **context: Any) -> None:
        """A line for debugging."""
        self.log(logging.DEBUG, event, **context)

    def info(self, event: str, **context: Any) -> None:
        """A line about the normal course of things."""
        self.log(logging.INFO, event, **context)

    def warning(self, event: str, **context: Any) -> None:
        """A line that an operator should look at."""
        self.log(logging.WARNING, event, **context)

    def error(self, event: str, **context: Any) -> None:
        """A line about a failure."""
        self.log(logging.ERROR, event, **context)


def _quoted(value: Any) -> str:
    text = str(value)
    if isinstance(value, str) and (not text or any(c in text for c in ' "=\n\t')):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return text


def get_logger(name: str) -> StructuredLogger:
    """The wrapper of the logger of that name."""
    return StructuredLogger(name)


def relay(level: str, text: str) -> None:
    """A line of the library itself."""
    logging.getLogger("tenure").log(_LEVELS.get(level, logging.INFO), "tenure | %s", text)
