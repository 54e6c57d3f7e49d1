"""Forks, and the end of processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

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
    """How many descriptors of this process are connections to that port."""
    found = 0
    ports = set()
    with open("/proc/self/net/tcp") as table:
        for line in table.readlines()[1:]:
            words = line.split()
            if int(words[2].split(":")[1], 16) == port:
                ports.add(words[9])
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in ports:
            found += 1
    return found


def test_importing_starts_no_thread() -> None:
    source = "import tenure, tenure.blocking, tenure.pgleaderlock, os; print(len(os.listdir('/proc/self/task')))"
    told = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, timeout=30)
    assert told.stdout.strip() == "1"


def test_a_child_inherits_a_shut_gate_and_no_session(dsn: str, server: Any) -> None:
    with LeaderLock(dsn, role="r") as lock:
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
        ):
            answer = in_child(use)
            assert "ForkError" in answer and "make a new" in answer, answer
        assert in_child(lock.shutdown) == "None", "nothing of the parent is released by a child"
        assert lock.is_leader and seats(dsn) == 1, "the parent goes on"
        act.finish()


def test_a_fork_from_c_shuts_the_gate_too(dsn: str) -> None:
    libc = ctypes.CDLL(None)
    with LeaderLock(dsn, role="r") as lock:
        assert lock.wait_for_leadership(20)
        pid = libc.fork()
        if pid == 0:
            os._exit(7 if lock.is_leader else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert lock.is_leader


def test_the_server_hears_nothing_of_a_child(dsn: str) -> None:
    with LeaderLock(dsn, role="r", health_interval_s=0.5) as lock:
        assert lock.wait_for_leadership(20)
        epoch = lock.epoch
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


def _pool_worker(dsn: str) -> bool:
    lock = LeaderLock(dsn, role="pool")
    lock.start()
    return lock.wait_for_leadership(20)


def test_multiprocessing_releases_at_the_end_of_its_worker(dsn: str) -> None:
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_pool_worker, args=(dsn,))
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0
    begun = time.monotonic()
    with LeaderLock(dsn, role="pool") as lock:
        assert lock.wait_for_leadership(20)
    assert time.monotonic() - begun < 2.5, "released, not waited out"


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
        import asyncio, os, sys, time, tenure
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


def test_a_blocking_lock_that_is_never_shut_down_ends_with_the_program(programs: Any) -> None:
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
