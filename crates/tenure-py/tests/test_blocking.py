"""The start and the end of the locks for threads, and locks on a loop that is not theirs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from typing import Any, Callable, Dict, List, Optional

import psycopg
import pytest

import tenure
from tenure import LeaderLock, LockState, blocking
from tenure.testing import MemoryGroup


class Caller:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: Optional[BaseException] = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.error = error

    def end(self, within_s: float = 20.0) -> "Caller":
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "it hangs"
        return self


def hanging(asked: threading.Event) -> Callable[[], Any]:
    async def connect() -> Any:
        asked.set()
        await asyncio.Event().wait()

    return connect


def threads_of_locks() -> int:
    return sum(thread.name == "tenure-callbacks" for thread in threading.enumerate())


def test_a_shutdown_while_another_thread_starts_ends_both() -> None:
    before = threads_of_locks()
    for _ in range(20):
        asked = threading.Event()
        lock = blocking.LeaderLock(role="r", connect_fn=hanging(asked))
        starting = Caller(lock.start)
        assert asked.wait(10)
        waiting = Caller(lock.wait_for_leadership)
        endings = [Caller(lock.shutdown) for _ in range(2)]
        for ending in endings:
            assert ending.end().error is None
        assert isinstance(starting.end().error, tenure.LockError)
        assert str(starting.error) == "it was shut down while it started"
        # It waited for the start that failed, or came after it.
        assert waiting.end().answer is False or isinstance(waiting.error, tenure.LockError)
        assert lock.state is LockState.STOPPED
    assert threads_of_locks() == before


def test_starts_and_shutdowns_at_any_moment_leave_no_caller_behind(dsn: str) -> None:
    lock = blocking.LeaderLock(dsn, role="r", health_interval_s=0.3, lease_s=1, policy="fenced")
    for round in range(40):
        starting = Caller(lock.start)
        waiting = Caller(lambda: lock.wait_for_leadership(0.02))
        asking = Caller(lock.leader)
        time.sleep(round * 0.001)  # Another moment of the start each time; nothing is waited for.
        assert Caller(lock.shutdown).end().error is None
        starting.end()
        assert starting.error is None or str(starting.error) == "it was shut down while it started"
        assert waiting.end().error is None or isinstance(waiting.error, tenure.LockError)
        assert asking.end().error is None or isinstance(asking.error, tenure.TenureError)
        lock.shutdown()  # A start that came last goes on otherwise.
    lock.start()
    assert lock.wait_for_leadership(20)
    lock.shutdown()
    assert not lock.is_leader


def test_what_comes_while_the_thread_ends_is_answered(dsn: str, monkeypatch: Any) -> None:
    """The moment between the loop's last round and its close, made long."""
    ends, go_on = threading.Event(), threading.Event()
    real = asyncio.all_tasks

    def slow(loop: Any = None) -> Any:
        if threading.current_thread().name == "tenure-callbacks":
            ends.set()
            go_on.wait(10)
        return real(loop)

    lock = blocking.LeaderLock(dsn, role="r")
    lock.start()
    thread = lock._thread
    assert thread is not None
    monkeypatch.setattr("tenure._thread.asyncio.all_tasks", slow)
    stopping = Caller(lock.shutdown)
    assert ends.wait(10)
    waiting = Caller(lambda: thread.run(lock._lock.wait_for_leadership(1)))
    waiting.end()
    assert isinstance(waiting.error, tenure.LockError)
    assert lock.wait_for_leadership() is False
    go_on.set()
    assert stopping.end().error is None


def test_a_wait_after_a_shutdown_says_no_and_before_a_start_what_to_do(dsn: str) -> None:
    lock = blocking.LeaderLock(dsn, role="r")
    with pytest.raises(tenure.LockError, match="not started"):
        lock.wait_for_leadership(1)
    lock.start()
    lock.shutdown()
    assert lock.wait_for_leadership() is False
    with pytest.raises(tenure.LockError, match="not started"):
        lock.leader()


def test_timeouts_hold_while_a_callback_blocks(dsn: str) -> None:
    begun, go_on = threading.Event(), threading.Event()
    lock = blocking.LeaderLock(dsn, role="r")

    @lock.on_released
    def blocks() -> None:
        begun.set()
        go_on.wait(30)

    lock.start()
    assert lock.wait_for_leadership(20)
    stepping = Caller(lock.step_down)
    assert begun.wait(20)
    since = time.monotonic()
    assert not lock.wait_for_leadership(0.2)
    with pytest.raises(tenure.ShutdownError, match="did not end within 0.2 s"):
        lock.shutdown(0.2)
    assert time.monotonic() - since < 10
    thread = lock._thread
    assert thread is not None
    go_on.set()
    assert stepping.end().error is None
    thread._thread.join(20)
    assert not thread._thread.is_alive(), "what was begun goes on, and ends"
    assert not lock.is_leader and lock.state is LockState.STOPPED
    lock.start()
    assert lock.wait_for_leadership(20)
    lock.shutdown()


def test_a_signal_handler_may_shut_down_whatever_it_interrupts(dsn: str) -> None:
    lock = blocking.LeaderLock(dsn, role="r")
    lock.start()
    assert lock.wait_for_leadership(20)
    thread = lock._thread
    assert thread is not None

    class Interrupted(Dict[Any, Any]):
        """The signal comes while a call holds what guards the thread."""

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            if threading.current_thread() is threading.main_thread() and not ended:
                signal.raise_signal(signal.SIGUSR1)

    ended: List[bool] = []

    def end(*_: Any) -> None:
        ended.append(True)
        lock.shutdown(20)

    def hangs(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGUSR1, end), signal.signal(signal.SIGALRM, hangs)
    try:
        thread._work = Interrupted(thread._work)
        signal.alarm(30)
        # It is answered, or told that the lock was shut down meanwhile.
        with contextlib.suppress(tenure.LockError):
            lock.leader()
        thread._thread.join(20)
        assert ended and not thread._thread.is_alive()
        assert lock.state is LockState.STOPPED and not lock.is_leader
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])


async def test_a_lock_is_used_on_its_own_loop_alone() -> None:
    group = MemoryGroup(health_interval_s=1)  # A busy machine must not end the lease.

    def elsewhere(call: Callable[[], Any]) -> None:
        with pytest.raises(tenure.LockError, match="another event loop"):
            asyncio.run(asyncio.wait_for(call(), 10))

    async with group.lock("r") as lock:
        assert await lock.wait_for_leadership(20)
        epoch = lock.epoch
        for call in (lock.wait_for_leadership, lock.step_down, lock.leader, lock.shutdown, lock.start):
            await asyncio.to_thread(elsewhere, call)
        assert lock.is_leader and lock.epoch == epoch, "nothing was done"


async def test_a_task_that_waits_on_another_loop_is_told(tenure_group: MemoryGroup) -> None:
    lock = tenure_group.lock("r")
    waits = threading.Event()

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(waits.set)
        with pytest.raises(tenure.LockError, match="another event loop"):
            await asyncio.wait_for(lock.wait_for_leadership(), 20)

    other = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(wait())))
    assert await asyncio.to_thread(waits.wait, 10)
    async with lock:
        await other


@pytest.mark.parametrize("by_event", [False, True])
async def test_a_connect_fn_that_does_not_answer_does_not_delay_the_end(by_event: bool) -> None:
    asked, event, dropped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def connect() -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()

    lock = LeaderLock(role="r", connect_fn=connect, shutdown_event=event)
    starting = asyncio.ensure_future(lock.start())
    await asked.wait()
    if by_event:
        event.set()
        await asyncio.wait_for(starting, 5)
    else:
        await asyncio.wait_for(lock.shutdown(), 5)
        with pytest.raises(tenure.LockError, match="while it started"):
            await starting
    assert lock.state is LockState.STOPPED
    await asyncio.wait_for(dropped.wait(), 5)


async def test_the_text_of_what_connect_fn_raises_is_not_logged(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    errors: List[Exception] = []
    told = asyncio.Event()

    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect("host=127.0.0.1 user=app password=my s3cret")

    lock = LeaderLock(role="r", connect_fn=connect)
    lock.on_error(lambda error: (errors.append(error), told.set()))
    async with lock:
        await asyncio.wait_for(told.wait(), 10)
    lines = [record.getMessage() for record in caplog.records]
    assert any("connect_fn raised ProgrammingError" in line for line in lines), lines
    assert not any("s3cret" in line for line in lines), lines
    assert isinstance(errors[0], psycopg.ProgrammingError), "on_error has it as it is"


async def test_lock_only_has_no_epoch_and_tells_no_leader(dsn: str, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    async with LeaderLock(dsn, role="r", lock_only=True, health_interval_s=0.3, lease_s=1) as lock:

        @tenure.while_leading(lock)
        async def work(token: "tenure.LeaderToken") -> None:
            begun.set()
            await asyncio.Event().wait()

        begun = asyncio.Event()
        working = asyncio.ensure_future(work())
        assert await lock.wait_for_leadership(20)
        await asyncio.wait_for(begun.wait(), 10)
        token = lock.gate.require_leader()
        assert lock.is_leader and lock.epoch is None and token.epoch is None and "epoch=None" in repr(token)
        with lock.gate.begin_act(0.1) as act:
            assert act.epoch is None
        with pytest.raises(tenure.LockError, match="lock_only has no tables"):
            await lock.leader()
        with psycopg.connect(dsn) as connection, pytest.raises(TypeError, match="lock_only has none"):
            tenure.fence(connection, "r", token.epoch)
        await lock.step_down()
        assert not working.done(), "the work of the term has ended, and waits for the next one"
        await lock.shutdown()
        await asyncio.wait_for(working, 10)
    assert not any("epoch=" in record.getMessage() for record in caplog.records)


WRONG: Dict[str, "tuple[Callable[[], Any], type, str]"] = {
    "role": (lambda: LeaderLock(role=5), TypeError, "^role must be a str"),  # type: ignore[arg-type]
    "preempt": (lambda: LeaderLock(role="r", preempt="yes"), TypeError, "^preempt must be True or False"),  # type: ignore[arg-type]
    "text": (lambda: LeaderLock(role="r", health_interval_s="1"), TypeError, "^health_interval_s must be a number"),  # type: ignore[arg-type]
    "negative": (lambda: LeaderLock(role="r", health_interval_s=-1), ValueError, "^health_interval_s .* not -1"),
    "priority": (lambda: LeaderLock(role="r", priority="high"), TypeError, "^priority must be an int"),  # type: ignore[arg-type]
    "large": (lambda: LeaderLock(role="r", priority=2**40), ValueError, "^priority .* 32 bits"),
    "connect_fn": (lambda: LeaderLock(role="r", connect_fn=5), TypeError, "^connect_fn must be a callable"),  # type: ignore[arg-type]
    "class": (lambda: LeaderLock(role="r", retry_strategy=tenure.FixedInterval), TypeError, r"FixedInterval\(\)"),  # type: ignore[arg-type]
    "event": (
        lambda: LeaderLock(role="r", shutdown_event=threading.Event()),  # type: ignore[arg-type]
        TypeError,
        "^shutdown_event must be an asyncio.Event, not threading.Event",
    ),
    "roles": (lambda: tenure.Member("", "ab"), TypeError, r"^roles takes a list of names, as in \['ab'\]"),
    "a role": (lambda: tenure.Member("", [3]), TypeError, "^a role is a name or a tenure.Role, not int"),  # type: ignore[list-item]
    "Role": (lambda: tenure.Role("r", candidate=1), TypeError, "^candidate must be True or False"),  # type: ignore[arg-type]
    "early": (lambda: LeaderLock(role="r").set_priority(3), tenure.LockError, "not started; start it first"),
    "set_priority": (lambda: LeaderLock(role="r").set_priority("a"), TypeError, "^priority must be an int"),  # type: ignore[arg-type]
    "add_role": (lambda: asyncio.run(tenure.Member().add_role(5)), TypeError, "^a role is a name"),  # type: ignore[arg-type]
    "wait": (
        lambda: asyncio.run(LeaderLock(role="r").wait_for_leadership("a")),  # type: ignore[arg-type]
        TypeError,
        "^timeout_s must be a number of seconds, not str",
    ),
    "shutdown": (lambda: asyncio.run(LeaderLock(role="r").shutdown(-1)), ValueError, "^timeout_s must be"),
    "to": (lambda: asyncio.run(LeaderLock(role="r").step_down(to=5)), TypeError, "^to must be a str"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_argument_is_named(which: str) -> None:
    make, kind, text = WRONG[which]
    with pytest.raises(kind, match=text):
        make()
