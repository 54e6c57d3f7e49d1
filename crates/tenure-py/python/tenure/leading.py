"""Work that runs only while its process leads."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Coroutine, Optional, TypeVar

from ._role import RoleLock
from ._tenure import Token
from .errors import NotLeader
from .models import LockState

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _P = ParamSpec("_P")

__all__ = ["while_leading"]

_T = TypeVar("_T")

#: The gate is looked at this often although no event came: a deadline passes without one.
_LOOK_S = 0.25


def while_leading(
    lock: RoleLock,
) -> "Callable[[Callable[Concatenate[Token, _P], Awaitable[_T]]], Callable[_P, Coroutine[Any, Any, Optional[_T]]]]":
    """Decorates ``async def work(token, …)`` so that it runs only while ``lock`` leads.

    A call waits for leadership, runs the work with the term's token, and cancels it the moment the
    gate shuts or begins to drain; with the next term it runs again. It returns what the work returns
    once the work ends by itself, or ``None`` when the lock stops. A step-down waits until work that was
    cancelled has ended; so does a caller that is cancelled.
    """

    def decorate(
        work: "Callable[Concatenate[Token, _P], Awaitable[_T]]",
    ) -> "Callable[_P, Coroutine[Any, Any, Optional[_T]]]":
        @functools.wraps(work)
        async def run(*arguments: "_P.args", **options: "_P.kwargs") -> Optional[_T]:
            while await lock.wait_for_leadership():
                try:
                    token = lock.gate.require_leader()
                    act = lock.gate.begin_act(0.0)
                except NotLeader:
                    # It drains, or was lost just now; the callback that tells so has not run yet.
                    await _next_event(lock)
                    continue
                try:
                    done, value = await _term(lock, token, work(token, *arguments, **options))
                finally:
                    # Counted out, without a verdict: the work knows by its own acts what it did.
                    act.__exit__(Exception, None, None)
                if done:
                    return value
            return None

        return run

    return decorate


async def _term(lock: RoleLock, token: Token, work: Awaitable[_T]) -> "tuple[bool, Optional[_T]]":
    """Runs the work during one term; says whether it ended by itself, and with what. However this ends, the
    work has ended before."""
    task = asyncio.ensure_future(work)
    changed = asyncio.Event()
    lock._watching.add(changed.set)
    ended_by_us = False
    try:
        while not task.done():
            look = asyncio.ensure_future(changed.wait())
            left = min(_LOOK_S, max(0.001, lock.gate.remaining_s))
            try:
                await asyncio.wait({task, look}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                look.cancel()
            changed.clear()
            if not task.done() and lock._number_of_term() != token._number_of_term():
                ended_by_us = True
                task.cancel()
                await asyncio.wait({task})
        try:
            return True, task.result()
        except asyncio.CancelledError:
            if ended_by_us:
                return False, None
            raise
    finally:
        lock._watching.discard(changed.set)
        if not task.done():
            await _cancelled(task)


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    """Ends the work of a caller that was cancelled, which goes on being cancelled afterwards. An exception of
    the work takes its place, as if the caller had awaited the work itself."""
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            pass  # Told to the work, in the next round.
    if not task.cancelled():
        task.result()


async def _next_event(lock: RoleLock) -> None:
    if lock.state is LockState.STOPPED:
        return
    changed = asyncio.Event()
    lock._watching.add(changed.set)
    try:
        await asyncio.wait_for(changed.wait(), _LOOK_S)
    except asyncio.TimeoutError:
        pass
    finally:
        lock._watching.discard(changed.set)
