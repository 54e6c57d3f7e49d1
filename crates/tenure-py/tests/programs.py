"""Other Python processes, and what they say."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any, List, Optional

#: What most programs are: a lock that says what happens to it.
MEMBER = """
    import asyncio, os, sys, time
    import tenure

    def say(*words):
        print(time.monotonic_ns(), *words, flush=True)

    async def main():
        lock = tenure.LeaderLock(os.environ["DSN"], role="r", **eval(os.environ.get("OPTIONS", "{}")))
        for name in ("acquired", "released", "lost", "stopped"):
            getattr(lock, "on_" + name)(lambda name=name: say(name))
        lock.on_error(lambda error: say("error", error))
        await lock.start()
        say("started", lock.identity)
        loop = asyncio.get_running_loop()
        while True:
            line = await loop.run_in_executor(None, sys.stdin.readline)
            if not line:
                break
            if line.strip() == "step_down":
                say("asked")
                await lock.step_down()
            if line.strip() == "is_leader":
                say("is_leader", lock.is_leader)
        await lock.shutdown()

    asyncio.run(main())
"""


class Program:
    """One process; its lines begin with the time at which it wrote them."""

    def __init__(self, source: str, environment: Any, command: Optional[List[str]] = None) -> None:
        self.process = subprocess.Popen(
            command or [sys.executable, "-u", "-c", textwrap.dedent(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
            # Whatever ran the tests: a shell has what runs in the background ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: "queue.Queue[str]" = queue.Queue()
        self.said: List[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put("")

    def expect(self, word: str, within_s: float = 20.0) -> "tuple[float, str]":
        """The next line that contains ``word``: when it was written (seconds), and what it says."""
        until = time.monotonic() + within_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {word!r} within {within_s} s; said {self.said}") from None
            if not line and self.process.poll() is not None:
                raise AssertionError(f"ended without {word!r}; said {self.said}")
            self.said.append(line)
            at, _, rest = line.partition(" ")
            if word in rest and at.isdigit():
                return int(at) / 1e9, rest

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> float:
        os.kill(self.process.pid, number)
        return time.monotonic()

    def wait(self, within_s: float = 20.0) -> int:
        return self.process.wait(within_s)


class Programs:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._all: List[Program] = []

    def start(
        self,
        source: str = MEMBER,
        *,
        dsn: Optional[str] = None,
        command: Optional[List[str]] = None,
        environment: "Optional[dict[str, str]]" = None,
        **options: Any,
    ) -> Program:
        variables = dict(os.environ, DSN=dsn or self.dsn, OPTIONS=repr(options), PYTHONUNBUFFERED="1")
        program = Program(source, {**variables, **(environment or {})}, command)
        self._all.append(program)
        return program

    def end(self) -> None:
        for program in self._all:
            try:
                os.killpg(program.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            program.process.wait()
