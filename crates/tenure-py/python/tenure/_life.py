"""One member on one event loop, from its start to its end.

The extension's threads run no Python. They put letters into a mailbox and make a descriptor readable;
the loop reads them here.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NoReturn, Optional, Set

from . import _logging, _tenure, errors
from ._connect import connection_string

if TYPE_CHECKING:
    from ._role import RoleLock

#: How long the end of the interpreter waits for roles to be released.
EXIT_TIMEOUT_S = 10.0

#: The connection string of a member whose ``connect_fn`` has given none yet. No session is opened with it.
_NOWHERE = "host=/"

_registered: Optional[int] = None


def _end_with_the_process() -> None:
    """Releases every role when the interpreter ends, also where ``multiprocessing`` skips ``atexit``."""
    global _registered
    if _registered is None:
        atexit.register(_tenure.end_all, EXIT_TIMEOUT_S)
    if _registered != os.getpid():
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, _tenure.end_all, args=(EXIT_TIMEOUT_S,), exitpriority=0)
        _registered = os.getpid()


def forked() -> errors.ForkError:
    """What the use of a parent's lock raises."""
    return errors.ForkError(
        "this lock was started in another process, of which this one is a fork; make a new one in this "
        "process"
    )


def here(life: "Optional[Life]") -> "Optional[Life]":
    """The same life; raises on an event loop that is not its own, on which nothing of it would be woken."""
    if life is not None and not life.over and life.loop is not asyncio.get_running_loop():
        raise elsewhere()
    return life


def elsewhere() -> errors.LockError:
    """What the use of a lock on a second event loop raises."""
    return errors.LockError("it was started on another event loop; use it there, or shut it down there first")


class Interrupted(errors.LockError):
    """A start found that a shutdown had begun."""

    def __init__(self) -> None:
        super().__init__("it was shut down while it started")


class OfOneProcess:
    """Cannot be copied. ``multiprocessing`` would hand a copy to another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} belongs to one process and cannot be copied; make it in the process "
            "that uses it"
        )


class _Doorbell:
    """What the loop calls when there are letters. Only the loop refers to it: when the loop is closed
    and lets it go, the member leaves."""

    def __init__(self, life: "Life") -> None:
        self._life = life

    def __call__(self) -> None:
        self._life.read()

    def __del__(self) -> None:
        life = self._life
        if not life.closed:
            life.leave()
            life.forget_tasks()


class Life:
    """A member, its mailbox, and the operations that wait for an answer."""

    def __init__(self, connect_fn: Optional[Callable[[], Any]] = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.generation = _tenure.generation()
        self.mailbox = _tenure.Mailbox()
        self.native: Optional[_tenure.Member] = None
        self.locks: List["RoleLock"] = []
        #: No letters are read any more.
        self.closed = False
        #: The start has come so far that a role may be held.
        self.races = False
        #: Its only role has stopped by itself.
        self.stopped = False
        #: The task that ends it, once there is one.
        self.ending: Optional["asyncio.Task[None]"] = None
        self._connect_fn = connect_fn
        self._asked: Dict[int, "asyncio.Future[Any]"] = {}
        self._numbers = itertools.count(1)
        #: The number of the operation that starts the member.
        self._opening = 0
        #: Done once a start is to end early.
        self._interrupted: "asyncio.Future[None]" = self.loop.create_future()
        #: The tasks that end when no letters are read any more: the calls of ``connect_fn``, and the wait for
        #: the caller's own event.
        self._passing: Set["asyncio.Task[None]"] = set()
        self._tasks: Set["asyncio.Task[None]"] = set()
        self.loop.add_reader(self.mailbox.fileno(), _Doorbell(self))

    @property
    def inherited(self) -> bool:
        """Whether it began in a process of which this one is a fork."""
        return self.generation != _tenure.generation()

    @property
    def over(self) -> bool:
        """Whether it ended together with its event loop, so that no task of it goes on."""
        return self.closed and (self.ending is None or self.loop.is_closed())

    def own(self) -> "Life":
        """Itself; raises in a fork of the process that began it."""
        if self.inherited:
            raise forked()
        return self

    async def open(self, settings: Dict[str, Any]) -> _tenure.Member:
        """Starts the member."""
        if self._connect_fn is not None:
            settings = dict(settings, dsn=await self._first_dsn(self._connect_fn), renew=True)
        _end_with_the_process()

        def start(op: int) -> None:
            self._opening = op
            self.native = _tenure.Member(self.mailbox, settings, op)

        await self.ask(start)
        assert self.native is not None
        return self.native

    async def _first_dsn(self, connect_fn: Callable[[], Any]) -> str:
        """What ``connect_fn`` gives before the first session, or why it never can. It asks again for every
        session, so a database that is away now is told and no error. A shutdown does not wait for it."""
        asked = asyncio.ensure_future(connection_string(connect_fn))
        try:
            first: "Set[asyncio.Future[Any]]" = {asked, self._interrupted}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self.closed:
                raise Interrupted()
            return asked.result()
        except (TypeError, errors.TenureError):
            raise
        except Exception as error:
            for lock in self.locks:
                lock._fail_to_connect(error)
            return _NOWHERE
        finally:
            if not asked.cancel() and not asked.cancelled():
                asked.exception()  # Read, or asyncio would complain that it was not.

    def open_in_memory(self, group: _tenure.MemoryGroup, role: Dict[str, Any]) -> _tenure.Member:
        """Starts a member of a group in memory."""
        _end_with_the_process()
        self.native = _tenure.Member.in_memory(self.mailbox, group, role)
        return self.native

    async def ask(self, operation: Callable[[int], None]) -> Any:
        """Asks for an operation and waits for its answer."""
        op = next(self._numbers)
        future: "asyncio.Future[Any]" = self.loop.create_future()
        self._asked[op] = future
        try:
            operation(op)
            return await future
        finally:
            self._asked.pop(op, None)

    def read(self) -> None:
        """Reads the mailbox."""
        for letter in self.mailbox.take():
            kind = letter[0]
            if kind == "told":
                self.locks[letter[1]]._deliver(letter[2:])
            elif kind == "done":
                self._answer(*letter[1:])
            else:
                self.spawn_until_closed(self._renew(letter[1]))
        for level, text in _tenure.take_log():
            _logging.relay(level, text)

    def _answer(self, op: int, value: Any, failure: Any) -> None:
        future = self._asked.get(op)
        if future is None or future.done():
            return
        if failure is None:
            future.set_result(value)
        else:
            name, text = failure
            future.set_exception(getattr(errors, name)(text))

    async def _renew(self, number: int) -> None:
        assert self._connect_fn is not None and self.native is not None
        try:
            self.native.renewed(number, await connection_string(self._connect_fn), None)
        except Exception as error:
            for lock in self.locks:
                lock._fail_to_connect(error)
            # The text of a stranger's exception may hold a secret; its kind does not.
            self.native.renewed(number, None, f"connect_fn raised {type(error).__name__}")

    def spawn(self, coroutine: Any) -> "asyncio.Task[None]":
        """Runs a coroutine beside, and keeps it alive."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn_until_closed(self, coroutine: Any) -> None:
        """Runs a coroutine beside, and cancels it when no letters are read any more, unless :meth:`outlast`
        was called."""
        task = self.spawn(coroutine)
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    def outlast(self) -> None:
        """The task that runs now is not cancelled at the end."""
        task = asyncio.current_task()
        assert task is not None
        self._passing.discard(task)

    def forget_tasks(self) -> None:
        """The loop was closed under its tasks. Their end is known: asyncio need not warn of it."""
        for task in [*self._tasks, *(lock._task for lock in self.locks), self.ending]:
            if task is not None and not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]

    def leave(self) -> None:
        """Releases everything in the background. Safe from anywhere, also without a loop."""
        self.closed = True
        if self.native is not None:
            self.native.leave()

    def interrupt(self) -> None:
        """Ends a start: it may wait for a server that is silent, and the member leaves once it has started."""
        self.leave()
        if not self._interrupted.done():
            self._interrupted.set_result(None)
        opening = self._asked.get(self._opening)
        if opening is not None and not opening.done():
            opening.set_exception(Interrupted())

    def close(self) -> None:
        """Reads no letters any more."""
        self.closed = True
        if not self.loop.is_closed() and not self.inherited:
            self.loop.remove_reader(self.mailbox.fileno())
            for task in self._passing:
                task.cancel()
