"""One role: its callbacks, and what can be asked of it on the event loop."""

from __future__ import annotations

import asyncio
import collections
import inspect
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Set, TypeVar

from . import _check, _tenure
from ._life import Life, OfOneProcess, elsewhere, here
from ._logging import get_logger
from .errors import ConnectionError, LockError
from .models import Leader, LockState

_C = TypeVar("_C", bound=Callable[..., Any])

#: How long a step-down or a shutdown waits for callbacks after the role was released.
_CALLBACKS_S = 5.0
#: How long callbacks of ``on_acquired`` may take before tasks that wait for leadership go on.
_SOON_S = 0.05
#: How the library begins the reason of a loss that a failed heartbeat is behind.
_SESSION_LOST = "session lost: "
#: What the program is told of; any other notice only concerns the log.
_EVENTS = ("acquired", "released", "lost", "acquire_failed", "state_change", "error", "stopped")


class RoleLock(OfOneProcess, _tenure.Handle):
    """One role of a member.

    Callbacks run one after another on the event loop, in the order of events. One that raises is
    logged and told to ``on_error``; the lifecycle goes on. A callback is not a guard: ask the gate
    before every act.
    """

    _logger = get_logger("tenure")

    #: Without tables: no epochs, and nothing that tells who leads.
    _lock_only = False

    def __init__(self, **context: Any) -> None:
        self._context = context
        self._number = 0
        self._life: Optional[Life] = None
        #: The life whose events the task tells: a new one may have begun before all of the last has ended.
        self._tells: Optional[Life] = None
        self._callbacks: Dict[str, List[Callable[..., Any]]] = {name: [] for name in _EVENTS}
        self._events: Deque[Any] = collections.deque()
        self._wake: Optional[asyncio.Event] = None
        self._task: Optional["asyncio.Task[None]"] = None
        #: The callback that runs now, if it is a coroutine.
        self._calling: Optional["asyncio.Future[Any]"] = None
        self._waiting: Set["asyncio.Future[bool]"] = set()
        self._watching: Set[Callable[[], None]] = set()
        #: The epoch of the term that callbacks were told of and not of its end.
        self._term: Optional[int] = None
        #: Set while no term is told, and once the role is told to be stopped.
        self._over: Optional[asyncio.Event] = None
        self._settled: Optional[asyncio.Event] = None
        self._stopped: Optional[asyncio.Event] = None
        self._attempt = 0
        #: The state that callbacks were told of last.
        self._told_state = LockState.STOPPED

    # --- state ---

    @property
    def state(self) -> LockState:
        """The lifecycle's state. ``LEADER`` says that a term goes on; ``is_leader`` asks the gate.

        It may be ahead of callbacks, except that ``STOPPED`` is the end of the story: all were told.
        """
        state, life = LockState(self._state()), self._life
        if state is LockState.STOPPED and life is not None and not (life.inherited or life.over):
            return LockState.STOPPED if self._story_is_told() else LockState.FOLLOWER
        return state

    def _story_is_told(self) -> bool:
        return self._told_state is LockState.STOPPED

    @property
    def identity(self) -> Optional[str]:
        """The identity of this member in the group, while it is started."""
        return self._identity()

    @property
    def role(self) -> Optional[str]:
        """The role's name, while it is started."""
        return self._role()

    # --- registration ---

    def on_acquired(self, fn: _C) -> _C:
        """Calls ``fn()`` when a term begins: the gate is open."""
        return self._on("acquired", fn)

    def on_released(self, fn: _C) -> _C:
        """Calls ``fn()`` when a term ended as asked for."""
        return self._on("released", fn)

    def on_lost(self, fn: _C) -> _C:
        """Calls ``fn()`` when a term ended otherwise. The gate is shut already."""
        return self._on("lost", fn)

    def on_acquire_failed(self, fn: _C) -> _C:
        """Calls ``fn()`` when an attempt did not win."""
        return self._on("acquire_failed", fn)

    def on_state_change(self, fn: _C) -> _C:
        """Calls ``fn(from_state, to_state)`` on every change of state."""
        return self._on("state_change", fn)

    def on_error(self, fn: _C) -> _C:
        """Calls ``fn(exception)`` on errors, those of callbacks included, as they were raised."""
        return self._on("error", fn)

    def on_stopped(self, fn: _C) -> _C:
        """Calls ``fn()`` when the role has stopped."""
        return self._on("stopped", fn)

    def _on(self, event: str, fn: _C) -> _C:
        if not callable(fn):
            raise TypeError(f"on_{event} takes a callable, not {type(fn).__name__}")
        self._callbacks[event].append(fn)
        return fn

    # --- what can be asked ---

    async def wait_for_leadership(self, timeout_s: Optional[float] = None) -> bool:
        """Waits until this process leads. False after ``timeout_s``, or when the lock stops or has stopped.
        A lock that was never started is waited for."""
        _check.seconds("timeout_s", timeout_s, negative=True)
        here(self._running())
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not (self._term is not None and self.is_leader):
            if self._has_ended():
                return False
            waiter: "asyncio.Future[bool]" = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                if not await asyncio.wait_for(waiter, left):
                    return False
            except asyncio.TimeoutError:
                return self.is_leader
            finally:
                self._waiting.discard(waiter)
        return True

    async def step_down(
        self, timeout_s: Optional[float] = None, *, to: Optional[str] = None
    ) -> None:
        """Lets acts in flight end, releases the role, and stays out of the race for the cool-down.

        ``to`` names, by identity, the member that should lead next. Past ``timeout_s`` the lock is
        freed by force. A member that does not lead does nothing.
        """
        _check.seconds("timeout_s", timeout_s)
        _check.text("to", to)
        life = here(self._running())
        if life is None or life.native is None:
            return
        native, number, term = life.native, self._number, self._term
        await life.ask(lambda op: native.step_down(number, op, to, timeout_s))
        if term is not None and self._term == term:
            await self._told(self._over)
        # The state after the release is told after the release itself.
        await self._told(self._settled)

    async def leader(self) -> Optional[Leader]:
        """Asks the database which member leads the role now; ``None`` if no member does. With ``lock_only``
        there is nothing to ask, and it raises :class:`tenure.errors.LockError`."""
        life = here(self._running())
        if life is None or life.native is None:
            raise LockError("the lock is not started; start it first")
        if self._lock_only:
            raise LockError(
                "lock_only has no tables, so which member leads is not known; is_leader says whether this one does"
            )
        native, number = life.native, self._number
        found = await life.ask(lambda op: native.leader(number, op))
        return None if found is None else Leader(*found)

    def set_ready(self, ready: bool) -> None:
        """Says whether this process is ready to lead. One that is not leads only if no other is."""
        _check.switch("ready", ready)
        self._must_be_started()
        self._set_ready(ready)

    def set_priority(self, priority: int) -> None:
        """Changes the priority in the race."""
        _check.priority(priority)
        self._must_be_started()
        self._set_priority(priority)

    def _must_be_started(self) -> None:
        if self._running() is None:
            raise LockError("the lock is not started; start it first")

    # --- the lifecycle ---

    def _running(self) -> Optional[Life]:
        """The life that goes on, if one does; raises in a fork of the process that began it."""
        return None if self._life is None else self._life.own()

    def _has_ended(self) -> bool:
        """Whether it was started and goes on no more, so that no event wakes the tasks that wait for it."""
        life = self._running()
        return self._stopped is not None and (life is None or life.over or self._stopped.is_set())

    def _begin(self, life: Life) -> None:
        """Joins a life that has begun: events are told from now on."""
        self._life = self._tells = life
        for waiter in list(self._waiting):
            if waiter.get_loop() is not life.loop:
                _fail_there(waiter)
        self._events.clear()
        self._wake, self._over, self._stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._settled = asyncio.Event()
        self._over.set()
        self._settled.set()
        self._term, self._attempt = None, 0
        self._told_state = LockState.STOPPED
        self._task = life.loop.create_task(self._run(life))

    async def _join(self, life: Life, native: _tenure.Member) -> None:
        """Takes part in the race. The member answers when the database has: a role that its strategy has
        stopped before that does not wait for it."""
        assert self._stopped is not None
        asked = asyncio.ensure_future(life.ask(lambda op: native.start_role(self._number, op)))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({asked, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                asked.result()
        finally:
            asked.cancel()
            stopped.cancel()

    def _leave(self, life: Life) -> None:
        """That life is over: nothing is told any more."""
        if self._life is life:
            self._life = None
        if self._tells is life and self._task is not None:
            self._task.cancel()

    async def _run(self, life: Life) -> None:
        assert self._wake is not None
        try:
            while True:
                while not self._events:
                    await self._wake.wait()
                    self._wake.clear()
                event = self._events.popleft()
                await self._dispatch(event)
                if event[0] in ("stopped", "missed") and self._is_stopped() and self._ends_with_stop(life):
                    break
        except BaseException:
            # The loop ends, or a callback ended the program. Nothing reads the story any more, so
            # nothing may go on leading.
            life.leave()
            raise
        finally:
            self._wake_waiters(False)

    def _ends_with_stop(self, life: Life) -> bool:
        return False

    def _deliver(self, event: Any) -> None:
        """An event of this role, on the loop. Never waits."""
        self._events.append(event)
        for look in list(self._watching):
            look()
        if self._wake is not None:
            self._wake.set()

    def _fail(self, error: Exception) -> None:
        self._deliver(("exception", error, repr(error)))

    def _fail_to_connect(self, error: Exception) -> None:
        # The text of what ``connect_fn`` raised may hold a password; its kind does not.
        self._deliver(("exception", error, f"connect_fn raised {type(error).__name__}"))

    def _fail_from_a_thread(self, error: Exception) -> None:
        life = self._life
        if life is not None and not life.loop.is_closed():
            life.loop.call_soon_threadsafe(self._fail, error)

    async def _dispatch(self, event: Any) -> None:
        kind, log, context = event[0], self._logger, self._context
        if kind == "state_change":
            before, after = LockState(event[1]), LockState(event[2])
            self._told_state = after
            if after is LockState.ACQUIRING:
                self._attempt += 1
            if after is LockState.RECONNECTING:
                log.warning("health_check_failed", error="the session was lost", **context)
            log.info("state_change", from_=event[1], to=event[2], **context)
            if after is LockState.RELEASING and self._settled is not None:
                self._settled.clear()
            try:
                await self._call("state_change", before, after)
            finally:
                if after is not LockState.RELEASING and self._settled is not None:
                    self._settled.set()
        elif kind == "acquired":
            if self._term != event[1]:
                await self._begin_term(event[1])
        elif kind == "released":
            log.info("lock_released", **context, **self._epoch_of(event[1]))
            await self._end_term("released", event[1])
        elif kind == "lost":
            if event[2].startswith(_SESSION_LOST):
                log.warning("health_check_failed", error=event[2][len(_SESSION_LOST) :], **context)
            log.warning("lock_lost", error=event[2], **context, **self._epoch_of(event[1]))
            await self._end_term("lost", event[1])
        elif kind == "acquire_failed":
            log.debug("acquire_failed", reason=event[1], **context, attempt=self._attempt)
            await self._call("acquire_failed")
        elif kind == "error":
            log.warning("db_error", error=event[1], **context)
            # On the way to a term the session is what fails; on the way out, the release.
            kind_of = LockError if self._told_state is LockState.RELEASING else ConnectionError
            await self._tell_error(kind_of(event[1]))
        elif kind == "exception":
            log.error("error", error=event[2], **context)
            await self._tell_error(event[1])
        elif kind == "late":
            log.warning("health_check_failed", error="the heartbeat is late", **context)
        elif kind in ("well", "recovered"):
            log.info("leadership_recovered", **context, **self._epoch_of(event[1]))
            if self._term != event[1] and self._number_of_term() == event[1]:
                # Its beginning was among events that were missed.
                await self._end_term("lost", event[1])
                await self._begin_term(event[1])
            self._wake_waiters(True)
        elif kind == "missed":
            log.error("events_missed", count=event[1], **context)
            await self._catch_up()
        elif kind == "stopped":
            await self._stop()

    async def _begin_term(self, epoch: int) -> None:
        self._term = epoch
        if self._over is not None:
            self._over.clear()
        context = dict(self._context, attempt=max(1, self._attempt), **self._epoch_of(epoch))
        self._logger.info("lock_acquired", **context)
        self._attempt = 0
        # Tasks that wait for leadership go on after the callbacks, but do not wait for a slow one.
        soon = asyncio.get_running_loop().call_later(_SOON_S, self._wake_waiters, True)
        try:
            await self._call("acquired")
        finally:
            soon.cancel()
            self._wake_waiters(True)

    async def _end_term(self, kind: str, epoch: int) -> None:
        """Tells of the end of a term, unless callbacks know of no such term or of its end already. Epochs
        rise: the end of a term is the end of earlier ones too."""
        if self._term is None or self._term > epoch:
            return
        self._term = None
        try:
            await self._call(kind)
        finally:
            if self._over is not None:
                self._over.set()

    async def _catch_up(self) -> None:
        """Events are missing. What callbacks know of the term is brought in line with the gate, so that
        every beginning that is told has its end, and no task waits for a beginning that was not told."""
        known, epoch, state = self._term, self._number_of_term(), LockState(self._state())
        # The gate has no epoch either while a heartbeat is late or acts drain: the next event tells the rest.
        late = epoch is None and state in (LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING)
        if known is not None and epoch != known and not late:
            await self._end_term("lost", known)
        if epoch is not None and self._term is None:
            await self._begin_term(epoch)
        self._told_state = LockState(self._state())
        if self._told_state is not LockState.RELEASING and self._settled is not None:
            self._settled.set()
        if self._told_state is LockState.STOPPED:
            await self._stop()

    def _epoch_of(self, term: int) -> Dict[str, int]:
        """What a line of the log says of a term's epoch; without tables a term has none."""
        return {} if self._lock_only else {"epoch": term}

    def _is_stopped(self) -> bool:
        return self._stopped is not None and self._stopped.is_set()

    async def _stop(self) -> None:
        if not self._is_stopped():
            self._logger.info("stopped", **self._context)
            await self._call("stopped")
        if self._stopped is not None:
            self._stopped.set()
        self._wake_waiters(False)

    def _wake_waiters(self, answer: bool) -> None:
        for waiter in list(self._waiting):
            # One of another event loop was told already that it waits in vain.
            if not waiter.done() and (self._task is None or waiter.get_loop() is self._task.get_loop()):
                waiter.set_result(answer)

    async def _call(self, name: str, *arguments: Any) -> None:
        for fn in list(self._callbacks[name]):
            error = await self._call_one(name, fn, *arguments)
            if error is not None:
                await self._tell_error(error)

    async def _tell_error(self, error: Exception) -> None:
        for fn in list(self._callbacks["error"]):
            # What goes wrong in there is only logged: told again it would never end.
            await self._call_one("error", fn, error)

    async def _call_one(self, name: str, fn: Callable[..., Any], *arguments: Any) -> Optional[Exception]:
        """Runs one callback; returns what it raised."""
        raised: Optional[Exception] = None
        try:
            try:
                answer = fn(*arguments)
            except asyncio.CancelledError:
                raise LockError(f"the callback of on_{name} was cancelled") from None
            if inspect.isawaitable(answer):
                # In a task of its own: a callback that is cancelled is not a lifecycle that is.
                calling = self._calling = asyncio.ensure_future(answer)
                try:
                    await asyncio.wait({calling})
                    if calling.cancelled():
                        raise LockError(f"the callback of on_{name} was cancelled")
                    calling.result()
                finally:
                    calling.cancel()
                    self._calling = None
        except Exception as error:
            raised = error
        if raised is not None:
            self._logger.error(
                "callback_failed", callback=f"on_{name}", error=repr(raised), **self._context
            )
        return raised

    def _in_callback(self) -> bool:
        """Whether this is called by a callback of this role, which must not wait for its own end."""
        return asyncio.current_task() in (self._task, self._calling)

    async def _told(self, event: Optional[asyncio.Event]) -> None:
        """Waits until callbacks were told; a callback itself does not wait for its own end."""
        if event is None or self._task is None or self._in_callback():
            return
        told = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait(
                {told, self._task}, timeout=_CALLBACKS_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            told.cancel()


def _fail_there(waiter: "asyncio.Future[bool]") -> None:
    """Ends a task's waiting on an event loop that is not the lock's."""

    def fail() -> None:
        if not waiter.done():
            waiter.set_exception(elsewhere())

    try:
        waiter.get_loop().call_soon_threadsafe(fail)
    except RuntimeError:
        pass  # That loop is closed: nothing waits on it.
