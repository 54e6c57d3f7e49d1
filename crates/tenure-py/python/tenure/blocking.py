"""The same locks for programs with threads and without an event loop.

Every lock, and every member, has a thread of its own, on which its callbacks run. ``is_leader`` and
``gate`` are plain calls from any thread.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, Coroutine, List, Optional, TypeVar, Union

from . import _check, _starter, _tenure
from . import lock as _lock
from . import member as _member
from ._life import OfOneProcess, forked
from ._role import RoleLock as _RoleLock
from ._starter import Starter
from ._thread import Gone, Late, LoopThread
from .errors import LockError, ShutdownError
from .models import Leader, LockState, Role

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _P = ParamSpec("_P")

__all__ = ["LeaderLock", "Member", "RoleLock"]

_C = TypeVar("_C", bound=Callable[..., Any])
_Self = TypeVar("_Self", bound="_Owner")

#: How much later than the loop itself a caller gives up, so that the loop can say why.
_SLACK_S = 0.25


def _takes(
    model: "Callable[Concatenate[Any, _P], None]",
) -> "Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]":
    """Gives a constructor the arguments of another one, for people and for type checkers."""

    def decorate(constructor: Callable[..., None]) -> "Callable[Concatenate[Any, _P], None]":
        return functools.wraps(model)(constructor)

    return decorate


class _Owner(OfOneProcess):
    """The start and the end of what has a thread of its own.

    The thread is there from the first ``start()`` on. It ends with the last start or shutdown under way that
    leaves nothing started behind: none of them ends it under another one.
    """

    def __init__(self, inner: Starter) -> None:
        self._inner = inner
        self._thread: Optional[LoopThread] = None
        #: Guards the thread, its number of users, and whether it takes work. A signal handler may interrupt the
        #: thread that holds it, and shut down.
        self._changing = threading.RLock()

    def start(self) -> None:
        """Takes part in the race. Idempotent."""
        self._refuse_inherited()
        thread = self._enter()
        try:
            thread.run(self._inner.start(), lambda: self._leave(thread))
        finally:
            thread.join()

    def _enter(self) -> LoopThread:
        """The thread, with one user more. A new one takes over only after all on the last one has ended."""
        while True:
            last = self._thread
            if last is not None:
                _refuse_callback(last)
                last.join()
            with self._changing:
                thread = self._thread
                if thread is last and (thread is None or thread.ending):
                    thread = self._thread = LoopThread(self._changing)
                if thread is not None and not thread.ending:
                    thread.users += 1
                    return thread

    def shutdown(self, timeout_s: Optional[float] = None) -> None:
        """Releases everything and stops. Idempotent. Past ``timeout_s``, also where a callback blocks, it raises
        :class:`tenure.errors.ShutdownError`. Called by a callback, it returns at once; so it does in a signal
        handler that interrupts another call of this lock at a moment at which it could wait for itself."""
        _check.seconds("timeout_s", timeout_s)
        self._end(lambda: self._inner.shutdown(timeout_s), timeout_s)

    def _end(self, ending: "Callable[[], Coroutine[Any, Any, None]]", timeout_s: Optional[float]) -> None:
        thread = self._thread
        if thread is None or thread.pid != os.getpid():
            return
        with self._changing:
            over = thread.ending
            if not over:
                thread.users += 1
        # Held by what a signal handler has interrupted here: the loop would wait for it, and this for the loop.
        held = self._changing._is_owned()  # type: ignore[attr-defined]
        if thread.is_current or held:
            if not over:
                thread.post(ending(), lambda: self._leave(thread))
            return
        try:
            if not over:
                _in_time(thread, "shutdown", ending(), timeout_s, lambda: self._leave(thread))
        finally:
            thread.join()

    def __enter__(self: _Self) -> _Self:
        self.start()
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        failed = kind is not None
        timeout_s = _starter.EXCEPTION_TIMEOUT_S if failed else None
        try:
            self._end(lambda: self._inner.__aexit__(kind, value, traceback), timeout_s)
        except ShutdownError as error:
            if not failed:
                raise
            # The block's own exception goes on: it says what went wrong first.
            self._inner._logger.error("shutdown_failed", error=str(error))

    def _refuse_inherited(self) -> None:
        thread = self._current()
        if thread is not None and thread.pid != os.getpid():
            raise forked()

    def _current(self) -> Optional[LoopThread]:
        thread = self._thread
        return None if thread is None or thread.ending else thread

    def _running(self) -> LoopThread:
        self._refuse_inherited()
        thread = self._current()
        if thread is None:
            raise LockError("the lock is not started; start it first")
        _refuse_callback(thread)
        return thread

    def _leave(self, thread: LoopThread) -> None:
        """A start or a shutdown is over, on the loop."""
        with self._changing:
            thread.users -= 1
            life = self._inner._life
            if thread.users == 0 and not thread.ending and (life is None or life.over):
                thread.end()


def _refuse_callback(thread: LoopThread) -> None:
    if thread.is_current:
        raise LockError("a callback cannot wait for its own lock; do this in another thread")


def _in_time(
    thread: LoopThread,
    what: str,
    coroutine: "Coroutine[Any, Any, None]",
    timeout_s: Optional[float],
    then: Optional[Callable[[], None]] = None,
) -> None:
    """Waits for an end that has a time limit of its own, which does not hold while a callback blocks."""
    try:
        thread.run(coroutine, then, None if timeout_s is None else timeout_s + _SLACK_S)
    except Late:
        raise ShutdownError(
            f"the {what} did not end within {timeout_s} s, for a callback is not done; it goes on in the "
            "background"
        ) from None


class RoleLock:
    """:class:`tenure.RoleLock` with methods that block: one role of a :class:`Member`.

    Callbacks run on a thread of the lock or member; one that blocks delays later callbacks and no
    heartbeat.
    """

    def __init__(self, lock: _RoleLock, owner: _Owner) -> None:
        self._lock = lock
        self._owner = owner

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

    @property
    def role(self) -> Optional[str]:
        """The role's name, while it is started."""
        return self._lock.role

    # --- what can be asked ---

    def step_down(self, timeout_s: Optional[float] = None, *, to: Optional[str] = None) -> None:
        """Releases the role and stays out of the race for the cool-down. Called by a callback, it
        returns at once."""
        _check.seconds("timeout_s", timeout_s)
        _check.text("to", to)
        self._owner._refuse_inherited()
        thread = self._owner._current()
        if thread is None:
            return
        try:
            if thread.is_current:
                thread.post(self._lock.step_down(timeout_s, to=to))
            else:
                _in_time(thread, "step-down", self._lock.step_down(timeout_s, to=to), timeout_s)
        except Gone:
            pass  # What is shut down leads no more.

    def wait_for_leadership(self, timeout_s: Optional[float] = None) -> bool:
        """Waits until this process leads. False after ``timeout_s``, or when the lock stops or has stopped."""
        _check.seconds("timeout_s", timeout_s, negative=True)
        thread = self._owner._current()
        if thread is None and self._lock._stopped is not None:
            return False
        thread = thread or self._owner._running()
        self._owner._refuse_inherited()
        _refuse_callback(thread)
        within_s = None if timeout_s is None else max(0.0, timeout_s) + _SLACK_S
        try:
            return thread.run(self._lock.wait_for_leadership(timeout_s), None, within_s, drop=True)
        except Late:
            # A callback blocks the loop, which says nothing meanwhile.
            return self._lock.is_leader
        except Gone:
            return False

    def leader(self) -> Optional[Leader]:
        """Asks the database which member leads the role now."""
        return self._owner._running().run(self._lock.leader())

    def set_ready(self, ready: bool) -> None:
        """Says whether this process is ready to lead."""
        self._lock.set_ready(ready)

    def set_priority(self, priority: int) -> None:
        """Changes the priority in the race."""
        self._lock.set_priority(priority)

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


class LeaderLock(_Owner, RoleLock):
    """:class:`tenure.LeaderLock` with methods that block.

    Takes the same arguments, except ``shutdown_event``.
    """

    @_takes(_lock.LeaderLock.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        if "shutdown_event" in options:
            raise TypeError("shutdown_event is of asyncio; call shutdown() from any thread")
        lock = _lock.LeaderLock(*arguments, **options)
        _Owner.__init__(self, lock)
        RoleLock.__init__(self, lock, self)


class Member(_Owner):
    """:class:`tenure.Member` with methods that block, for the same arguments."""

    @_takes(_member.Member.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._member = _member.Member(*arguments, **options)
        super().__init__(self._member)

    @property
    def identity(self) -> Optional[str]:
        """The identity of this process in the group, while it is started."""
        return self._member.identity

    def lock(self, role: str, shard: Optional[int] = None) -> RoleLock:
        """The handle of a role, or of one of its shards."""
        return RoleLock(self._member.lock(role, shard), self)

    @property
    def locks(self) -> List[RoleLock]:
        """The handles of all roles, in the order in which they were added."""
        return [RoleLock(lock, self) for lock in self._member.locks]

    @property
    def leading(self) -> List[str]:
        """The names of the roles that this process leads at this instant."""
        return self._member.leading

    def leading_shards(self, name: str) -> List[int]:
        """The numbers of the shards of ``name`` that this process leads at this instant."""
        return self._member.leading_shards(name)

    def add_role(self, role: Union[str, Role]) -> RoleLock:
        """Adds a role while the member runs, and starts it."""
        return RoleLock(self._running().run(self._member.add_role(role)), self)
