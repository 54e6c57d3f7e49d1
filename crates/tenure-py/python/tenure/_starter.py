"""The start and the end of a member: the same for a lock of its own and for a member of many roles."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Optional, TypeVar

from . import _check
from ._life import Interrupted, Life, OfOneProcess, here
from ._logging import StructuredLogger, get_logger
from .errors import LockError, RefusedError, ShutdownError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from . import _tenure
    from ._role import RoleLock
    from .models import Role

    ConnectFn = Callable[[], Awaitable[AsyncConnection[Any]]]

_Self = TypeVar("_Self", bound="Starter")

#: How long the end of an ``async with`` block that raised may take.
EXCEPTION_TIMEOUT_S = 10.0


class Starter(OfOneProcess):
    """Starts a member with its roles, and ends it. At most one life goes on at a time."""

    _logger: StructuredLogger = get_logger("tenure")
    #: The group in memory that stands for the database, in tests.
    _group: "Optional[_tenure.MemoryGroup]" = None
    _life: Optional[Life] = None
    #: Done when the start under way is over.
    _starting: Optional["asyncio.Future[None]"] = None
    _settings: Dict[str, Any]
    _connect_fn: "Optional[ConnectFn]"

    def _all(self) -> "List[tuple[RoleLock, Role]]":
        """The roles, each with its handle, in the order of their numbers."""
        raise NotImplementedError

    def _running(self) -> Optional[Life]:
        """The life that goes on, if one does; raises in a fork of the process that began it."""
        return None if self._life is None else self._life.own()

    def _here(self) -> Optional[Life]:
        """The same; raises also on an event loop that is not the life's own."""
        return here(self._running())

    async def start(self) -> None:
        """Takes part in the race. Idempotent; after a stop it starts anew.

        A database that cannot be reached is no error: the roles follow and keep trying. A set-up on
        which the promises cannot hold raises :class:`tenure.errors.RefusedError`.
        """
        while True:
            life = self._here()
            if life is None or life.over:
                break
            if self._starting is not None:
                await asyncio.shield(self._starting)
            if life.ending is None:
                return
            await asyncio.wait({life.ending})
        await self._start()

    async def _start(self) -> None:
        starting: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        # A failure is told to the caller of this start; the others see it if they wait.
        starting.add_done_callback(lambda future: future.cancelled() or future.exception())
        life = Life(self._connect_fn)
        self._starting, self._life = starting, life
        try:
            await self._open(life)
        except BaseException as cause:
            if life.ending is None or life.ending.done():
                life.leave()
                self._close(life)
            # Otherwise the shutdown that met it closes the life, once all is released.
            error = cause
            if isinstance(cause, LockError) and not isinstance(cause, RefusedError) and life.ending is not None:
                # However far it had come when the shutdown met it.
                error = Interrupted()
            # A cancelled start is not another caller's cancellation.
            told = error if isinstance(error, Exception) else ShutdownError("the start was cancelled")
            starting.set_exception(told)
            if error is not cause:
                raise error from None
            raise
        finally:
            self._starting = None
        starting.set_result(None)

    async def _open(self, life: Life) -> None:
        roles = []
        for lock, role in self._all():
            lock._unbind()
            life.locks.append(lock)
            lock._lock_only = bool(self._settings["lock_only"])
            lock._begin(life)
            roles.append(role._settings())
        if self._group is not None:
            native = life.open_in_memory(self._group, roles[0])
        else:
            native = await life.open(dict(self._settings, roles=roles))
        for lock in life.locks:
            lock._bind(native, lock._number)

        life.races = True
        await asyncio.gather(*(lock._join(life, native) for lock in life.locks))

    async def shutdown(self, timeout_s: Optional[float] = None) -> None:
        """Releases everything and stops. Idempotent. Past ``timeout_s`` everything is dropped, and
        :class:`tenure.errors.ShutdownError` is raised. A caller that finds a shutdown under way waits for
        it, within its own ``timeout_s``."""
        _check.seconds("timeout_s", timeout_s)
        life = self._life
        if life is None or life.inherited or life.over:
            # A child of a fork has nothing to release: it is its parent's.
            return
        here(life)
        joins = life.ending is not None
        ending = self._end_soon(life, timeout_s)
        if any(lock._in_callback() for lock in life.locks):
            return
        if joins and not (await asyncio.wait({ending}, timeout=timeout_s))[0]:
            raise ShutdownError(
                f"the shutdown that was under way did not end within {timeout_s} s; it goes on in the background"
            )
        await asyncio.shield(ending)

    def _end_soon(self, life: Life, timeout_s: Optional[float]) -> "asyncio.Task[None]":
        if life.ending is None:
            life.ending = life.loop.create_task(self._end(life, timeout_s))
            # Told to the callers that wait; without any it is not lost in the log.
            life.ending.add_done_callback(lambda task: task.cancelled() or task.exception())
        return life.ending

    async def _end(self, life: Life, timeout_s: Optional[float]) -> None:
        starting = self._starting
        try:
            if starting is not None and not life.races:
                # It holds nothing yet.
                if not life.stopped:
                    life.interrupt()
                await asyncio.wait({starting}, timeout=timeout_s)
            native = life.native
            if native is not None and not life.closed:
                await life.ask(lambda op: native.shutdown(op, timeout_s))
                await asyncio.gather(*(lock._told(lock._stopped) for lock in life.locks))
            if starting is not None:
                # What it waits for has stopped.
                await asyncio.wait({starting}, timeout=timeout_s)
        except BaseException:
            life.leave()
            raise
        finally:
            self._close(life)

    def _close(self, life: Life) -> None:
        life.close()
        if self._life is life:
            self._life = None
        for lock in life.locks:
            lock._leave(life)

    async def __aenter__(self: _Self) -> _Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not exc or exc[0] is None:
            await self.shutdown()
            return
        try:
            await self.shutdown(EXCEPTION_TIMEOUT_S)
        except ShutdownError as error:
            # The block's own exception goes on: it says what went wrong first.
            self._logger.error("shutdown_failed", error=str(error))


def settings(
    dsn: str,
    *,
    health_interval_s: float,
    lease_s: Optional[float],
    statement_deadline_s: Optional[float],
    reconnect_grace_s: Optional[float],
    lock_only: bool,
    migrate: bool,
    scope: Optional[str],
    instance: Optional[str],
) -> Dict[str, Any]:
    """What a member is made of, but for its roles, as the extension reads it."""
    if not isinstance(dsn, str):
        raise TypeError(f"dsn must be a str, not {type(dsn).__name__}")
    _check.seconds("health_interval_s", health_interval_s)
    _check.seconds("lease_s", lease_s)
    _check.seconds("statement_deadline_s", statement_deadline_s)
    _check.seconds("reconnect_grace_s", reconnect_grace_s)
    _check.switch("lock_only", lock_only)
    _check.switch("migrate", migrate)
    _check.text("scope", scope)
    _check.text("instance", instance)
    return {
        "dsn": dsn or None,
        "heartbeat_s": health_interval_s,
        "lease_s": lease_s,
        "statement_deadline_s": statement_deadline_s,
        "reconnect_grace_s": reconnect_grace_s,
        "lock_only": lock_only,
        "migrate": migrate,
        "scope": scope,
        "instance": instance,
    }
