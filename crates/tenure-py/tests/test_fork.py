"""Forks, and the end of processes."""

from __future__ import annotations

import asyncio
import copy
import ctypes
import gc
import inspect
import multiprocessing
import os
import pickle
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any, Iterator, List

import psycopg
import pytest

import tenure
from tenure.blocking import LeaderLock


def in_child(work: Any) -> str:
    """What ``work`` returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = f"raised {error!r}"
        os.write(writer, str(answer).encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        answer = told.read()
    os.waitpid(pid, 0)
    return answer


def seats(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as admin:
        row = admin.execute(
            "select count(*) from pg_stat_activity where application_name like 'tenure seat %'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def sockets_to(port: int) -> int:
    """How many descriptors of this process are connections to the server of that port, TCP or Unix."""
    import socket

    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:["):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copied:
                peer = copied.getpeername()
        except OSError:
            continue
        if isinstance(peer, tuple) and peer[1] == port or str(peer).endswith(f"/.s.PGSQL.{port}"):
            found += 1
    return found


@pytest.fixture
def place(request: Any, dsn: str, server: Any) -> Iterator[str]:
    """The database, reached by TCP, by TLS or by a Unix socket."""
    if request.param == "tls":
        root = server.tls(True)
        yield f"{dsn}?sslmode=verify-full&sslrootcert={root}"
        server.tls(False)
    else:
        yield dsn if request.param == "tcp" else server.unix_dsn(dsn)


def test_importing_starts_no_thread() -> None:
    source = "import tenure, tenure.blocking, tenure.pgleaderlock, os; print(len(os.listdir('/proc/self/task')))"
    told = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, timeout=30)
    assert told.stdout.strip() == "1"


@pytest.mark.parametrize("place", ["tcp", "tls", "unix"], indirect=True)
def test_a_child_inherits_a_shut_gate_and_no_session(place: str, dsn: str, server: Any) -> None:
    with LeaderLock(place, role="r") as lock:
        assert lock.wait_for_leadership(20)
        gate = lock.gate
        token = gate.require_leader()
        act = gate.begin_act()
        assert sockets_to(server.port) >= 1
        assert in_child(lambda: (lock.is_leader, gate.is_leader, lock.epoch, token.remaining_s)) == (
            "(False, False, None, 0.0)"
        )
        assert in_child(lambda: sockets_to(server.port)) == "0"
        for use in (
            gate.require_leader,
            gate.begin_act,
            lambda: gate.ensure_epoch(token.epoch),
            act.finish,
            lock.start,
            lock.step_down,
            lambda: lock.wait_for_leadership(1),
            lambda: lock.set_ready(False),
            lambda: lock.set_priority(1),
        ):
            answer = in_child(use)
            assert "ForkError" in answer and "make a new" in answer, answer
        assert in_child(lock.shutdown) == "None", "nothing of the parent is released by a child"
        assert lock.is_leader and seats(dsn) == 1, "the parent goes on"
        act.finish()


def test_an_asyncio_lock_of_the_parent_is_an_error_in_the_child(dsn: str) -> None:
    member = tenure.Member(dsn, ["a"])
    lock = tenure.LeaderLock(dsn, role="r")

    @tenure.while_leading(lock)
    async def work(token: tenure.LeaderToken) -> None:
        raise AssertionError("it does not lead")

    async def begin() -> None:
        await member.start()
        await lock.start()
        assert await lock.wait_for_leadership(20)

    async def end() -> None:
        await lock.shutdown()
        await member.shutdown()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    for use in (
        lock.start,
        lock.step_down,
        lock.leader,
        lock.wait_for_leadership,
        work,
        member.start,
        lambda: member.add_role("late"),
        member.lock("a").wait_for_leadership,
    ):
        answer = in_child(lambda: asyncio.run(asyncio.wait_for(use(), 10)))
        assert "ForkError" in answer and "make a new" in answer, answer
    assert in_child(lambda: asyncio.run(asyncio.wait_for(end(), 10))) == "None"
    assert lock.is_leader, "the parent goes on"
    loop.run_until_complete(end())
    loop.close()


def c_fork(name: str) -> int:
    """Forks in C: by ``fork``, by ``_Fork``, which runs no handlers, or by the bare system call."""
    libc = ctypes.PyDLL(None)
    if name == "syscall":
        if platform.machine() != "x86_64":
            pytest.skip("the number of the system call is that of x86-64")
        return int(libc.syscall(57))
    if not hasattr(libc, name):
        pytest.skip(f"this C library has no {name}")
    return int(getattr(libc, name)())


@pytest.mark.parametrize("name", ["fork", "_Fork", "syscall"])
def test_a_fork_from_c_shuts_the_gate_too(dsn: str, server: Any, name: str) -> None:
    with LeaderLock(dsn, role="r") as lock:
        assert lock.wait_for_leadership(20)
        gate, token = lock.gate, lock.gate.require_leader()
        pid = c_fork(name)
        if pid == 0:
            code = 3
            try:
                if lock.is_leader or gate.is_leader or lock.epoch is not None or token.remaining_s:
                    code = 7
                elif sockets_to(server.port):
                    code = 8
            except BaseException:
                code = 9
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert lock.is_leader and gate.require_leader().epoch == token.epoch


def test_a_fork_from_a_thread_and_a_fork_of_a_fork(dsn: str) -> None:
    answers: List[str] = []
    with LeaderLock(dsn, role="r") as lock:
        assert lock.wait_for_leadership(20)

        def fork() -> None:
            answers.append(in_child(lambda: (lock.is_leader, in_child(lambda: lock.is_leader))))

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join(30)
        assert answers == ["(False, 'False')"] and lock.is_leader


def test_a_program_that_is_started_inherits_no_session(dsn: str, server: Any) -> None:
    with LeaderLock(dsn, role="r") as lock:
        assert lock.wait_for_leadership(20)
        source = textwrap.dedent(inspect.getsource(sockets_to)) + f"\nimport os\nprint(sockets_to({server.port}))"
        for close_fds in (True, False):
            told = subprocess.run(
                [sys.executable, "-c", source], close_fds=close_fds, stdout=subprocess.PIPE, text=True, timeout=30
            )
            assert told.stdout.strip() == "0"


@pytest.mark.slow
def test_children_that_are_forked_while_locks_start_do_not_hang(programs: Any) -> None:
    """A fork may find any thread of the runtime anywhere."""
    program = programs.start(
        """
        import os, sys, threading, time
        from tenure.blocking import LeaderLock
        dsn, rounds = os.environ["DSN"], eval(os.environ["OPTIONS"])["rounds"]

        def churn(number):
            while not ended.is_set():
                lock = LeaderLock(dsn, role=f"churn {number}")
                lock.start()
                lock.wait_for_leadership(5)
                lock.shutdown()

        ended = threading.Event()
        threads = [threading.Thread(target=churn, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for round in range(rounds):
            pid = os.fork()
            if pid == 0:
                own = LeaderLock(dsn, role="own")
                own.start()
                led = own.wait_for_leadership(30)
                own.shutdown()
                os._exit(0 if led else 4)
            assert os.waitpid(pid, 0)[1] == 0, round
        ended.set()
        for thread in threads:
            thread.join()
        print(time.monotonic_ns(), "all", rounds, flush=True)
        """,
        rounds=int(os.environ.get("TENURE_FORKS", "10")),
    )
    program.expect("all", 60 if "TENURE_FORKS" not in os.environ else 600)


@pytest.mark.parametrize("place", ["tcp", "tls", pytest.param("unix", marks=pytest.mark.slow)], indirect=True)
def test_the_server_hears_nothing_of_a_child(place: str, dsn: str, request: Any) -> None:
    with LeaderLock(place, role="r", health_interval_s=0.5) as lock:
        assert lock.wait_for_leadership(20)
        epoch = lock.epoch
        with psycopg.connect(dsn) as admin:
            seat = admin.execute(
                "select s.ssl, a.client_addr is null from pg_stat_activity a join pg_stat_ssl s using (pid)"
                " where a.application_name like 'tenure seat %'"
            ).fetchall()
        kind = request.node.callspec.params["place"]
        assert seat == [(kind == "tls", kind == "unix")], "it is reached in the way that is tested"
        for _ in range(5):
            # The child drops what it inherited, collects garbage and ends in good order.
            pid = os.fork()
            if pid == 0:
                try:
                    import gc

                    inner = lock._lock
                    lock.__dict__.clear()
                    del inner
                    gc.collect()
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        until = time.monotonic() + 2.0  # More than a lease, which is 1.5 s.
        while time.monotonic() < until:
            assert lock.is_leader and lock.epoch == epoch
            time.sleep(0.01)


def test_a_new_lock_works_in_the_child_of_a_leader(dsn: str) -> None:
    def child() -> Any:
        with LeaderLock(dsn, role="other") as own:
            assert own.wait_for_leadership(20)
            nested = in_child(lambda: own.is_leader)
            return own.is_leader, nested

    with LeaderLock(dsn, role="r") as lock:
        assert lock.wait_for_leadership(20)
        assert in_child(child) == "(True, 'False')"
        assert lock.is_leader


def test_a_lock_made_before_the_fork_may_be_started_after_it(dsn: str) -> None:
    lock = LeaderLock(dsn, role="r")

    def child() -> Any:
        with lock:
            return lock.wait_for_leadership(20)

    assert in_child(child) == "True"
    with lock:
        assert lock.wait_for_leadership(20)


def _pool_worker(dsn: str) -> None:
    lock = LeaderLock(dsn, role="pool")
    lock.start()
    assert lock.wait_for_leadership(20)


SLOW_METHODS = [pytest.param(name, marks=pytest.mark.slow) for name in ("forkserver", "spawn")]


@pytest.mark.parametrize("method", ["fork", *SLOW_METHODS])
def test_multiprocessing_releases_at_the_end_of_its_worker(dsn: str, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with LeaderLock(dsn, role="r") as leader:
        assert leader.wait_for_leadership(20)
        worker = context.Process(target=_pool_worker, args=(dsn,))
        worker.start()
        worker.join(30)
        assert worker.exitcode == 0
        assert leader.is_leader
    begun = time.monotonic()
    with LeaderLock(dsn, role="pool") as lock:
        assert lock.wait_for_leadership(20)
    assert time.monotonic() - begun < 2.5, "released, not waited out"


def test_a_lock_is_not_handed_to_another_process() -> None:
    for lock in (LeaderLock("", role="r"), tenure.LeaderLock("", role="r"), tenure.Member("", ["r"])):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="make it in the process"):
                copied(lock)


def test_a_killed_master_with_a_living_child_is_taken_over_at_once(programs: Any, dsn: str) -> None:
    """The child of a leader must not keep its session alive."""
    master = programs.start(
        """
        import os, sys, time
        from tenure.blocking import LeaderLock
        lock = LeaderLock(os.environ["DSN"], role="r", policy="fenced")
        lock.start()
        lock.wait_for_leadership()
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
        print(time.monotonic_ns(), "leads", pid, flush=True)
        time.sleep(3600)
        """
    )
    master.expect("leads")
    with LeaderLock(dsn, role="r", policy="fenced") as second:
        assert not second.wait_for_leadership(0.3)
        killed = master.signal(signal.SIGKILL)
        assert second.wait_for_leadership(10)
        took = time.monotonic() - killed
    assert took < 1.0, f"{took:.3f} s: a lease is 3 s"


@pytest.mark.parametrize("end", ["exit", "exception", "sigint", "sys_exit"])
def test_the_end_of_the_interpreter_releases_and_hangs_nothing(programs: Any, dsn: str, end: str) -> None:
    program = programs.start(
        f"""
        import asyncio, os, signal, sys, time, tenure
        locks = []
        async def main():
            lock = tenure.LeaderLock(os.environ["DSN"], role="r")
            locks.append(lock)
            await lock.start()
            await lock.wait_for_leadership()
            print(time.monotonic_ns(), "leads", flush=True)
            if {end!r} == "sigint":
                await asyncio.sleep(3600)
            if {end!r} == "exception":
                raise RuntimeError("mine")
            if {end!r} == "sys_exit":
                sys.exit(3)
        asyncio.run(main())
        """
    )
    program.expect("leads")
    begun = time.monotonic()
    if end == "sigint":
        program.signal(signal.SIGINT)
    code = program.wait(10)
    assert code == {"exit": 0, "exception": 1, "sigint": -2, "sys_exit": 3}[end], program.said
    with LeaderLock(dsn, role="r") as lock:
        assert lock.wait_for_leadership(20)
    assert time.monotonic() - begun < 2.8, "released, not waited out"


def test_a_blocking_lock_that_is_never_shut_down_ends_with_the_program(programs: Any, dsn: str) -> None:
    program = programs.start(
        """
        import os, time
        from tenure.blocking import LeaderLock
        lock = LeaderLock(os.environ["DSN"], role="r")
        lock.start()
        lock.wait_for_leadership()
        print(time.monotonic_ns(), "leads", flush=True)
        """
    )
    program.expect("leads")
    assert program.wait(10) == 0, program.said
    # A process that only dies leaves its name in the row, and its successor waits out the lease.
    with psycopg.connect(dsn) as admin:
        assert admin.execute("select holder from tenure.role").fetchall() == [(None,)], "it was released"


@pytest.mark.slow
def test_an_unreachable_database_does_not_hold_up_the_end(programs: Any, proxy: Any, server: Any) -> None:
    """The release is tried for 10 s at most; a lease that is over needs none."""
    database = programs.dsn.rsplit("/", 1)[1]
    program = programs.start(
        """
        import os, sys, time
        from tenure.blocking import LeaderLock
        lock = LeaderLock(os.environ["DSN"], role="r", health_interval_s=0.5)
        lock.start()
        lock.wait_for_leadership()
        print(time.monotonic_ns(), "leads", flush=True)
        sys.stdin.readline()
        """,
        dsn=server.dsn(database, port=proxy.port),
    )
    program.expect("leads")
    proxy.partition()
    program.tell("end")
    assert program.wait(15) == 0, program.said


def test_locks_leave_no_sockets_pipes_or_threads_behind(dsn: str, server: Any) -> None:
    def count() -> "tuple[int, int, int]":
        names = len(os.listdir("/proc/self/fd"))
        return sockets_to(server.port), names, threading.active_count()

    def once() -> None:
        with LeaderLock(dsn, role="r") as lock:
            assert lock.wait_for_leadership(20)

    once()
    gc.collect()
    before = count()
    for _ in range(5):
        once()
    gc.collect()
    until = time.monotonic() + 5
    while count() > before:
        assert time.monotonic() < until, (before, count())
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["start", "wait", "shutdown"])
def test_an_interrupt_ends_a_call_that_blocks(programs: Any, dsn: str, where: str) -> None:
    """SIGINT while a thread waits for its lock: a traceback, no complaint of asyncio, and a free role."""
    program = programs.start(
        f"""
        import os, time
        from tenure.blocking import LeaderLock
        first = LeaderLock(os.environ["DSN"], role="r")
        first.start()
        first.wait_for_leadership()
        away = "postgresql://postgres@127.0.0.1:1/none"
        second = LeaderLock(away if {where!r} == "start" else os.environ["DSN"], role="r")
        calls = dict(start=second.start, wait=second.wait_for_leadership, shutdown=first.shutdown)
        if {where!r} == "wait":
            second.start()
        act = first.gate.begin_act()  # A shutdown waits for it.
        print(time.monotonic_ns(), "waits", flush=True)
        calls[{where!r}]()
        """
    )
    program.expect("waits")
    time.sleep(0.3)  # Until it is inside the call; earlier the test would only be less.
    program.signal(signal.SIGINT)
    assert program.wait(20) == -signal.SIGINT
    rest = list(iter(program.lines.get, ""))
    assert "KeyboardInterrupt" in rest
    assert not any(word in line for line in rest for word in ("destroyed", "never", "Task")), rest
    with LeaderLock(dsn, role="r", policy="exclusive") as lock:
        assert lock.wait_for_leadership(20)


@pytest.mark.slow
def test_development_mode_has_nothing_to_warn_of(programs: Any) -> None:
    source = """
        import asyncio, os, time, tenure
        from tenure.blocking import LeaderLock

        async def main():
            async with tenure.LeaderLock(os.environ["DSN"], role="r") as lock:
                await lock.wait_for_leadership()
                await lock.step_down()

        asyncio.run(main(), debug=True)
        with LeaderLock(os.environ["DSN"], role="other") as lock:
            lock.wait_for_leadership()
        print(time.monotonic_ns(), "done", flush=True)
        """
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(source)]
    program = programs.start(command=command)
    program.expect("done", 40)
    assert program.wait() == 0
    rest = program.said + list(iter(program.lines.get, ""))
    assert not any("Warning" in line or "Traceback" in line for line in rest), rest
