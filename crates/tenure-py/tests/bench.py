"""What a gate check costs from Python, and how long a takeover takes between two processes.

    make bench-python            ROUNDS=30 for more takeovers

Everything stands beside its yardsticks of the same run. A gate check: a plain attribute read; the flag of
pgleaderlock, for which a stand-in is taken, since no registry has it; the clock alone. A takeover: the Rust library
between two processes of its own, and pgleaderlock's stand-in, whose followers poll; where the others step down, it
is shut down. Takeovers of the three alternate, so that a loaded machine is loaded for all of them.
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import signal
import statistics
import sys
import time
import timeit
from pathlib import Path
from typing import Any, Callable, Dict, List

sys.path.insert(0, str(Path(__file__).parent))

import standin
from programs import MEMBER, Programs
from server import Server

import tenure


class Plain:
    def __init__(self) -> None:
        self.flag = True


def per_call(statement: str, **names: Any) -> float:
    """Nanoseconds, the best of many short rounds: a loaded machine interrupts long ones."""
    timer = timeit.Timer(statement, globals=names)
    number = 500
    return min(timer.repeat(2000, number)) / number * 1e9


def show(name: str, nanos: float, base: float = 0.0) -> None:
    more = f"  (+{nanos - base:5.0f} ns over an attribute)" if base else ""
    print(f"  {name:<34}{nanos:8.0f} ns {1e3 / nanos:8.1f} M/s{more}")


async def gate(dsn: str) -> None:
    async with tenure.LeaderLock(dsn, role="r") as lock, standin.LeaderLock(dsn, 1, 2) as other:
        assert await lock.wait_for_leadership(20) and await other.wait_for_leadership(20)
        plain, held, epoch = Plain(), lock.gate, lock.epoch
        base = per_call("x.flag", x=plain)
        print("gate checks")
        show("attribute", base)
        show("is_leader, pgleaderlock (stand-in)", per_call("x.is_leader", x=other), base)
        show("clock_gettime(CLOCK_BOOTTIME)", per_call("f(7)", f=time.clock_gettime_ns), base)
        show("lock.is_leader", per_call("x.is_leader", x=lock), base)
        show("gate.is_leader", per_call("x.is_leader", x=held), base)
        show("gate.require_leader()", per_call("x.require_leader()", x=held), base)
        show("gate.ensure_epoch(epoch)", per_call("x.ensure_epoch(e)", x=held, e=epoch), base)
        show("with gate.begin_act(): pass", per_call("with x.begin_act(): pass", x=held), base)


#: A member that is a process, by the name under which its figures are shown.
STANDIN = MEMBER.replace("import tenure", "import standin").replace(
    'tenure.LeaderLock(os.environ["DSN"], role="r", **eval(os.environ.get("OPTIONS", "{}")))',
    'standin.LeaderLock(os.environ["DSN"], 1, 2)',
).replace('"lost", "stopped"', '"lost"').replace("lock.identity", "1")


def starters(rust: str, policy: str) -> "Dict[str, Callable[[Programs], Any]]":
    kinds: "Dict[str, Callable[[Programs], Any]]" = {
        "Rust": lambda programs: programs.start(command=[rust], environment={"POLICY": policy}),
        "Python": lambda programs: programs.start(policy=policy),
    }
    if policy == "exclusive":
        here = str(Path(__file__).parent)
        kinds["stand-in"] = lambda programs: programs.start(STANDIN, environment={"PYTHONPATH": here})
    return kinds


def takeover(server: Server, start: "Callable[[Programs], Any]", fault: Callable[[Any], float], phase: float) -> float:
    """Milliseconds from the fault to the successor's word that it leads.

    What a successor must wait for depends on when the last heartbeat was. ``phase`` says when the fault comes after
    one, in heartbeats of a second: the same for all kinds of program, although they start at different paces.
    """
    programs = Programs(server.database())
    try:
        first = start(programs)
        led, _ = first.expect("acquired")
        second = start(programs)
        begun, _ = second.expect("started")
        # It has been refused once by then, so that it waits as a follower does.
        beats = math.ceil(begun + 0.3 - led - phase)
        time.sleep(max(0.0, led + beats + phase - time.monotonic()))
        begun = fault(first)
        at, _ = second.expect("acquired", 60)
        return (at - begun) * 1e3
    finally:
        programs.end()


def takeovers(server: Server, rust: str, name: str, policy: str, rounds: int, fault: Callable[[Any], float]) -> None:
    kinds = starters(rust, policy)
    times: "Dict[str, List[float]]" = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind, start in kinds.items():
            done = shut_down if kind == "stand-in" and fault is step_down else fault
            times[kind].append(takeover(server, start, done, (number + 0.5) / rounds))
    base = statistics.median(times["Rust"])
    for kind, taken in times.items():
        middle = statistics.median(taken)
        words = f"median {middle:8.1f} ms   max {max(taken):8.1f} ms   {middle / base:5.2f} x Rust"
        print(f"  {name + ', ' + kind:<34}{words}   of {rounds}")


def step_down(program: Any) -> float:
    """Counted from the program's own call, not from the way of the order to it."""
    program.tell("step_down")
    return float(program.expect("asked")[0])


def shut_down(program: Any) -> float:
    """For the stand-in, which wins again at once after a step-down and so hands nothing over."""
    program.process.stdin.close()
    return time.monotonic()


def main() -> None:
    rounds, rust = int(os.environ.get("ROUNDS", "10")), os.environ["RUST_MEMBER"]
    server = Server()
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        clock = source.read_text().strip() if source.exists() else "unknown"
        print(f"clock source {clock};", end=" ")
        print(f"CPython {platform.python_version()}, {platform.machine()}, load {os.getloadavg()[0]:.1f}")
        asyncio.run(gate(server.database()))
        print("takeovers between two processes, with default timings")
        kill = lambda program: program.signal(signal.SIGKILL)  # noqa: E731
        takeovers(server, rust, "step-down", "exclusive", rounds, step_down)
        takeovers(server, rust, "SIGKILL, fenced", "fenced", rounds, kill)
        takeovers(server, rust, "SIGKILL, exclusive", "exclusive", max(3, rounds // 3), kill)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
