"""What a gate check costs from Python, and how long a takeover takes between two processes.

    make bench-python

Each gate check stands beside its yardsticks of the same run: a plain attribute read; the flag of a lock as
pgleaderlock has it (a state behind a property); the clock alone.
"""

from __future__ import annotations

import asyncio
import enum
import os
import platform
import signal
import statistics
import sys
import time
import timeit
from pathlib import Path
from typing import Any, Callable, List

sys.path.insert(0, str(Path(__file__).parent))

from programs import Programs
from server import Server

import tenure


class State(enum.Enum):
    LEADER = "leader"


class Plain:
    """What pgleaderlock's ``is_leader`` is: a comparison with a state that a task keeps."""

    def __init__(self) -> None:
        self.flag = True
        self._state = State.LEADER

    @property
    def is_leader(self) -> bool:
        return self._state == State.LEADER


def per_call(statement: str, **names: Any) -> float:
    """Nanoseconds, the best of many short rounds: a loaded machine interrupts long ones."""
    timer = timeit.Timer(statement, globals=names)
    number = 500
    return min(timer.repeat(2000, number)) / number * 1e9


def show(name: str, nanos: float, base: float = 0.0) -> None:
    more = f"  (+{nanos - base:5.0f} ns over an attribute)" if base else ""
    print(f"  {name:<34}{nanos:8.0f} ns {1e3 / nanos:8.1f} M/s{more}")


async def gate(dsn: str) -> None:
    async with tenure.LeaderLock(dsn, role="r") as lock:
        assert await lock.wait_for_leadership(20)
        plain, held, epoch = Plain(), lock.gate, lock.epoch
        base = per_call("x.flag", x=plain)
        print("gate checks")
        show("attribute", base)
        show("property with a state (pgleaderlock)", per_call("x.is_leader", x=plain), base)
        show("clock_gettime(CLOCK_BOOTTIME)", per_call("f(7)", f=time.clock_gettime_ns), base)
        show("lock.is_leader", per_call("x.is_leader", x=lock), base)
        show("gate.is_leader", per_call("x.is_leader", x=held), base)
        show("gate.require_leader()", per_call("x.require_leader()", x=held), base)
        show("gate.ensure_epoch(epoch)", per_call("x.ensure_epoch(e)", x=held, e=epoch), base)
        show("with gate.begin_act(): pass", per_call("with x.begin_act(): pass", x=held), base)


def takeovers(server: Server, name: str, rounds: int, fault: Callable[[Any], float], **options: Any) -> None:
    times: List[float] = []
    programs = Programs(server.database())
    try:
        for _ in range(rounds):
            first = programs.start(**options)
            first.expect("acquired")
            second = programs.start(**options)
            second.expect("started")
            begun = fault(first)
            at, _ = second.expect("acquired")
            times.append((at - begun) * 1e3)
            second.process.stdin.close()
            second.wait()
            programs.end()
    finally:
        programs.end()
    print(f"  {name:<34}median {statistics.median(times):8.1f} ms   max {max(times):8.1f} ms   of {rounds}")


def step_down(program: Any) -> float:
    program.tell("step_down")
    return time.monotonic()


def main() -> None:
    rounds = int(os.environ.get("ROUNDS", "10"))
    server = Server()
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        clock = source.read_text().strip() if source.exists() else "unknown"
        print(f"clock source {clock};", end=" ")
        print(f"CPython {platform.python_version()}, {platform.machine()}, load {os.getloadavg()[0]:.1f}")
        asyncio.run(gate(server.database()))
        print("takeovers between two Python processes, with default timings")
        takeovers(server, "step-down", rounds, step_down)
        takeovers(server, "SIGKILL, fenced", rounds, lambda p: p.signal(signal.SIGKILL), policy="fenced")
        takeovers(server, "SIGKILL, exclusive", max(3, rounds // 3), lambda p: p.signal(signal.SIGKILL))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
