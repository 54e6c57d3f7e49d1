"""Two processes and real faults. The lease is 3 s."""

from __future__ import annotations

import signal
import time
from typing import Any

import psycopg
import pytest

#: A statement that is slow only because the machine is busy does not cost a session.
FAST = {"health_interval_s": 0.7, "lease_s": 3.0, "statement_deadline_s": 1.0}
#: Lease, two margins of 10 % + 250 ms, 1.2 heartbeats; and room for a loaded machine.
BOUND_S = 3.0 + 2 * 0.55 + 0.84 + 1.5


def pair(programs: Any, **options: Any) -> Any:
    first = programs.start(**options)
    first.expect("acquired")
    second = programs.start(**options)
    second.expect("started")
    return first, second


def test_sigkill(programs: Any) -> None:
    first, second = pair(programs, **FAST)
    killed = first.signal(signal.SIGKILL)
    at, _ = second.expect("acquired")
    assert at - killed < BOUND_S


def test_sigkill_under_fenced_takes_milliseconds(programs: Any) -> None:
    first, second = pair(programs, policy="fenced")
    killed = first.signal(signal.SIGKILL)
    at, _ = second.expect("acquired")
    assert at - killed < 1.0, f"{at - killed:.3f} s: a lease is 3 s"


def test_sigstop_and_a_frozen_process_finds_its_gate_shut(programs: Any) -> None:
    first, second = pair(programs, **FAST)
    stopped = first.signal(signal.SIGSTOP)
    at, _ = second.expect("acquired")
    assert at - stopped < BOUND_S
    first.tell("is_leader")
    first.signal(signal.SIGCONT)
    assert first.expect("is_leader")[1] == "is_leader False"
    first.expect("lost")


def test_a_terminated_session(programs: Any, dsn: str) -> None:
    first, second = pair(programs, **FAST)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(s.pid) from tenure.role r"
            " join pg_stat_activity s on s.application_name = left('tenure seat ' || r.holder, 63)"
        )
    first.expect("lost")
    until = time.monotonic() + 10
    # Either of them may win the next term.
    while not any("acquired" in line for line in first.said[-1:]):
        assert time.monotonic() < until
        try:
            second.expect("acquired", 0.2)
            break
        except AssertionError:
            pass
        try:
            first.expect("acquired", 0.2)
        except AssertionError:
            pass


def test_a_partition(programs: Any, proxy: Any, server: Any) -> None:
    database = programs.dsn.rsplit("/", 1)[1]
    first = programs.start(dsn=server.dsn(database, port=proxy.port), **FAST)
    first.expect("acquired")
    second = programs.start(**FAST)
    second.expect("started")
    proxy.partition()
    cut = time.monotonic()
    at, _ = second.expect("acquired")
    assert at - cut < BOUND_S
    first.tell("is_leader")
    assert first.expect("is_leader")[1] == "is_leader False"


def test_a_step_down_hands_over_at_once_with_default_settings(programs: Any) -> None:
    first, second = pair(programs)
    first.tell("step_down")
    released, _ = first.expect("released")
    at, _ = second.expect("acquired")
    assert abs(at - released) < 1.0, "milliseconds, on an idle machine"


def test_a_closed_standard_input_ends_in_good_order(programs: Any) -> None:
    first, second = pair(programs)
    begun = time.monotonic()
    first.process.stdin.close()
    assert first.wait() == 0
    at, _ = second.expect("acquired")
    assert at - begun < 2.5
