"""The same locks for programs with threads and without an event loop.

Every lock has a thread of its own, on which its callbacks run. ``is_leader`` and ``gate`` are plain
calls from any thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Callable, Coroutine, Optional, TypeVar

from . import _tenure
from .errors import ForkError, LockError
from .lock import EXCEPTION_TIMEOUT_S
from .lock import LeaderLock as _LeaderLock
from .models import Leader, LockState

__all__ = ["LeaderLock"]

_T = TypeVar("_T")
_C = TypeVar("_C", bound=Callable[..., Any])
_Self = TypeVar("_Self", bound="LeaderLock")


class _Thread:
    """An event loop on a thread, in one process."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        # A daemon: the end of the interpreter releases the roles, and does not wait for the thread.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def run(self, coroutine: "Coroutine[Any, Any, _T]") -> _T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            # An interrupt while it waits: what was begun is cancelled there.
            future.cancel()
            raise

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class LeaderLock:
    """:class:`tenure.LeaderLock` with methods that block.

    Takes the same arguments, except ``shutdown_event``. Callbacks run on a thread of the lock; one that
    blocks delays later callbacks and no heartbeat.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if "shutdown_event" in options:
            raise TypeError("shutdown_event is of asyncio; call shutdown() from any thread")
        self._lock = _LeaderLock(*arguments, **options)
        self._thread: Optional[_Thread] = None
        self._changing = threading.Lock()

    # --- state ---

    @property
    def is_leader(self) -> bool:
        """Whether this process leads at this instant."""
        return self._lock.is_leader

    @property
    def epoch(self) -> Optional[int]:
        """The epoch under which this process leads, or ``None``."""
        return self._lock.epoch

    @property
    def gate(self) -> "_tenure.Gate":
        """The gate that every act passes."""
        return self._lock.gate

    @property
    def state(self) -> LockState:
        """The lifecycle's state."""
        return self._lock.state

    @property
    def identity(self) -> Optional[str]:
        """The identity of this member in the group, while it is started."""
        return self._lock.identity

    # --- lifecycle ---

    def start(self) -> None:
        """Takes part in the race. Idempotent."""
        self._refuse_inherited()
        with self._changing:
            if self._thread is None:
                self._thread = _Thread("tenure-callbacks")
            thread = self._thread
        try:
            thread.run(self._lock.start())
        except BaseException:
            self._end_thread(thread)
            raise

    def shutdown(self, timeout_s: Optional[float] = None) -> None:
        """Releases the role and stops. Idempotent."""
        thread = self._thread
        if thread is None or thread.pid != os.getpid():
            return
        try:
            thread.run(self._lock.shutdown(timeout_s))
        finally:
            self._end_thread(thread)

    def step_down(self, timeout_s: Optional[float] = None, *, to: Optional[str] = None) -> None:
        """Releases the role and stays out of the race for the cool-down."""
        self._refuse_inherited()
        if self._thread is not None:
            self._thread.run(self._lock.step_down(timeout_s, to=to))

    def wait_for_leadership(self, timeout_s: Optional[float] = None) -> bool:
        """Waits until this process leads. False after ``timeout_s``, or when the lock stops."""
        return self._running().run(self._lock.wait_for_leadership(timeout_s))

    def leader(self) -> Optional[Leader]:
        """Asks the database which member leads the role now."""
        return self._running().run(self._lock.leader())

    def set_ready(self, ready: bool) -> None:
        """Says whether this process is ready to lead."""
        self._lock.set_ready(ready)

    def set_priority(self, priority: int) -> None:
        """Changes the priority in the race."""
        self._lock.set_priority(priority)

    def __enter__(self: _Self) -> _Self:
        self.start()
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        self.shutdown(None if kind is None else EXCEPTION_TIMEOUT_S)

    def _refuse_inherited(self) -> None:
        if self._thread is not None and self._thread.pid != os.getpid():
            raise ForkError(
                "this lock was started in another process, of which this one is a fork; make a new "
                "LeaderLock in this process"
            )

    def _running(self) -> _Thread:
        self._refuse_inherited()
        if self._thread is None:
            raise LockError("the lock is not started; start it first")
        return self._thread

    def _end_thread(self, thread: _Thread) -> None:
        with self._changing:
            if self._thread is thread:
                self._thread = None
                thread.end()

    # --- registration ---

    def on_acquired(self, fn: _C) -> _C:
        """Calls ``fn()`` when a term begins."""
        return self._lock.on_acquired(fn)

    def on_released(self, fn: _C) -> _C:
        """Calls ``fn()`` when a term ended as asked for."""
        return self._lock.on_released(fn)

    def on_lost(self, fn: _C) -> _C:
        """Calls ``fn()`` when a term ended otherwise."""
        return self._lock.on_lost(fn)

    def on_acquire_failed(self, fn: _C) -> _C:
        """Calls ``fn()`` when an attempt did not win."""
        return self._lock.on_acquire_failed(fn)

    def on_state_change(self, fn: _C) -> _C:
        """Calls ``fn(from_state, to_state)`` on every change of state."""
        return self._lock.on_state_change(fn)

    def on_error(self, fn: _C) -> _C:
        """Calls ``fn(exception)`` on errors."""
        return self._lock.on_error(fn)

    def on_stopped(self, fn: _C) -> _C:
        """Calls ``fn()`` when the role has stopped."""
        return self._lock.on_stopped(fn)
