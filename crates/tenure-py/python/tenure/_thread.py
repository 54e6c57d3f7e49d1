"""An event loop on a thread, for the locks that block."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import Any, Callable, Coroutine, Dict, Optional, TypeVar

from .errors import LockError

_T = TypeVar("_T")

#: How long the end of a thread waits for what still runs on it.
_LAST_S = 1.0


class Gone(LockError):
    """The thread has ended, or ends, and answers nothing any more."""

    def __init__(self) -> None:
        super().__init__("the lock was shut down meanwhile; start it first")


class Late(Exception):
    """No answer came in time; what was asked for goes on."""


class LoopThread:
    """An event loop on a thread, in one process. It has two states, under its owner's lock: it takes work, or it
    ends and takes none. All work that it took is answered: by its end at the latest, with :class:`Gone`."""

    def __init__(self, changing: "threading.RLock") -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        #: How many starts and shutdowns are under way; it does not end before them. Under the owner's lock.
        self.users = 0
        #: It takes no work any more. Under the owner's lock.
        self.ending = False
        self._changing = changing
        #: What callers wait for, and the task that does it once it has begun. Only the loop changes tasks.
        self._work: Dict["concurrent.futures.Future[Any]", Optional["asyncio.Task[Any]"]] = {}
        # A daemon: the end of the interpreter releases the roles, and does not wait for the thread.
        self._thread = threading.Thread(target=self._run, name="tenure-callbacks", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether this is called by a callback, which must not wait for its own end."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            # A callback may have ended the loop by an exception, such as SystemExit.
            with self._changing:
                self.ending = True
            try:
                self.loop.run_until_complete(self._last())
            finally:
                for future in list(self._work):
                    _answer(future, Gone(), None)
                self.loop.close()

    async def _last(self) -> None:
        """What was taken before the end begins here; all that goes on is cancelled."""
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_S)
        await asyncio.sleep(0)

    def post(
        self, coroutine: "Coroutine[Any, Any, _T]", then: Optional[Callable[[], None]] = None
    ) -> "concurrent.futures.Future[_T]":
        """Begins it on the loop. ``then`` is called there at its end, before its answer is given."""
        future: "concurrent.futures.Future[_T]" = concurrent.futures.Future()

        def begin() -> None:
            task = self._work[future] = self.loop.create_task(coroutine)
            task.add_done_callback(over)
            if future.cancelled():
                task.cancel()

        def over(task: "asyncio.Task[_T]") -> None:
            self._work.pop(future, None)
            error = Gone() if task.cancelled() else task.exception()
            try:
                if then is not None:
                    then()
            finally:
                _answer(future, error, None if error is not None else task.result())

        with self._changing:
            if self.ending:
                coroutine.close()
                raise Gone()
            self._work[future] = None
            self.loop.call_soon_threadsafe(begin)
        return future

    def run(
        self,
        coroutine: "Coroutine[Any, Any, _T]",
        then: Optional[Callable[[], None]] = None,
        within_s: Optional[float] = None,
        *,
        drop: bool = False,
    ) -> _T:
        """Begins it and waits for its answer. Past ``within_s`` it raises :class:`Late`; with ``drop`` nothing
        goes on then."""
        future = self.post(coroutine, then)
        try:
            return future.result(within_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                # The answer itself, which came just now or is such an exception.
                return future.result()
            if drop:
                self._cancel(future)
            raise Late() from None
        except BaseException:
            # An interrupt while it waits: what was begun is cancelled there.
            self._cancel(future)
            raise

    def _cancel(self, future: "concurrent.futures.Future[Any]") -> None:
        def cancel() -> None:
            task = self._work.get(future)
            if task is not None:
                task.cancel()

        if future.cancel():
            with self._changing:
                if not self.ending:
                    self.loop.call_soon_threadsafe(cancel)

    def end(self) -> None:
        """Takes no work any more. Called with the owner's lock held."""
        self.ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def join(self) -> None:
        """Waits for the end, if it has begun; a callback does not wait for its own."""
        if self.ending and not self.is_current:
            self._thread.join(3 * _LAST_S)


def _answer(
    future: "concurrent.futures.Future[Any]", error: Optional[BaseException], value: Any
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
