"""The same locks for programs with threads and without an event loop.

Every lock, and every member, has a thread of its own, on which its callbacks run. ``is_leader`` and
``gate`` are plain calls from any thread.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, Coroutine, List, Optional, TypeVar, Union

from . import _tenure
from . import lock as _lock
from . import member as _member
from ._life import OfOneProcess, forked
from ._role import RoleLock as _RoleLock
from ._starter import Starter
from .errors import LockError
from .models import Leader, LockState, Role

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _P = ParamSpec("_P")

__all__ = ["LeaderLock", "Member", "RoleLock"]

_T = TypeVar("_T")
_C = TypeVar("_C", bound=Callable[..., Any])
_Self = TypeVar("_Self", bound="_Owner")

#: How long the end of a thread waits for what still runs on it.
_LAST_S = 1.0


def _takes(
    model: "Callable[Concatenate[Any, _P], None]",
) -> "Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]":
    """Gives a constructor the arguments of another one, for people and for type checkers."""

    def decorate(constructor: Callable[..., None]) -> "Callable[Concatenate[Any, _P], None]":
        return functools.wraps(model)(constructor)

    return decorate


class _Thread:
    """An event loop on a thread, in one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        #: What a callback began last: asyncio itself keeps no task alive.
        self._begun: Optional["asyncio.Task[None]"] = None
        # A daemon: the end of the interpreter releases the roles, and does not wait for the thread.
        self._thread = threading.Thread(target=self._run, name="tenure-callbacks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_S))
        self.loop.close()

    @property
    def is_current(self) -> bool:
        """Whether this is called by a callback, which must not wait for its own end."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: "Coroutine[Any, Any, _T]") -> _T:
        if self.is_current:
            coroutine.close()
            raise LockError("a callback cannot wait for its own lock; do this in another thread")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            # An interrupt while it waits: what was begun is cancelled there.
            future.cancel()
            raise

    def run_or_begin(self, coroutine: "Coroutine[Any, Any, None]", then: Callable[[], None]) -> None:
        """Runs it; called by a callback, it only begins it. ``then`` is called at its end."""
        if self.is_current:

            def done(task: "asyncio.Task[None]") -> None:
                if not task.cancelled():
                    task.exception()  # Read, or asyncio would complain that it was not.
                then()

            self._begun = self.loop.create_task(coroutine)
            self._begun.add_done_callback(done)
            return
        try:
            self.run(coroutine)
        finally:
            then()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join()


class _Owner(OfOneProcess):
    """The start and the end of what has a thread of its own."""

    def __init__(self, inner: Starter) -> None:
        self._inner = inner
        self._thread: Optional[_Thread] = None
        self._changing = threading.Lock()

    def start(self) -> None:
        """Takes part in the race. Idempotent."""
        self._refuse_inherited()
        with self._changing:
            if self._thread is None:
                self._thread = _Thread()
            thread = self._thread
        try:
            thread.run(self._inner.start())
        except BaseException:
            self._end_thread(thread)
            raise

    def shutdown(self, timeout_s: Optional[float] = None) -> None:
        """Releases everything and stops. Idempotent. Called by a callback, it returns at once."""
        self._end(lambda: self._inner.shutdown(timeout_s))

    def _end(self, ending: "Callable[[], Coroutine[Any, Any, None]]") -> None:
        thread = self._thread
        if thread is not None and thread.pid == os.getpid():
            thread.run_or_begin(ending(), lambda: self._end_thread(thread))

    def __enter__(self: _Self) -> _Self:
        self.start()
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        self._end(lambda: self._inner.__aexit__(kind, value, traceback))

    def _refuse_inherited(self) -> None:
        if self._thread is not None and self._thread.pid != os.getpid():
            raise forked()

    def _running(self) -> _Thread:
        self._refuse_inherited()
        if self._thread is None:
            raise LockError("the lock is not started; start it first")
        return self._thread

    def _end_thread(self, thread: _Thread) -> None:
        with self._changing:
            if self._thread is not thread:
                return
            self._thread = None
        thread.end()


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
        self._owner._refuse_inherited()
        thread = self._owner._thread
        if thread is not None:
            thread.run_or_begin(self._lock.step_down(timeout_s, to=to), lambda: None)

    def wait_for_leadership(self, timeout_s: Optional[float] = None) -> bool:
        """Waits until this process leads. False after ``timeout_s``, or when the lock stops."""
        return self._owner._running().run(self._lock.wait_for_leadership(timeout_s))

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
