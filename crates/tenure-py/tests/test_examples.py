"""The examples run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

import psycopg
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def start(name: str, dsn: str) -> "subprocess.Popen[str]":
    environment = dict(os.environ, DATABASE_URL=dsn, EVERY_S="0.1")
    return subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLES / name)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )


def until(told: Any, word: str) -> List[str]:
    lines = []
    for line in told.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(f"ended without {word!r}: {lines}")


def test_fastapi_lifespan(dsn: str, monkeypatch: Any) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import fastapi_app

    with TestClient(fastapi_app.app) as client:
        end = time.monotonic() + 20
        while True:
            answer = client.get("/leader").json()
            if answer["here"] and answer["rounds"] > 2:
                break
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        assert answer["leader"] == fastapi_app.lock.identity
        assert client.post("/only-leader").json() == {"epoch": fastapi_app.lock.epoch}
    assert not fastapi_app.lock.is_leader


def test_beat_fires_every_slot_once_across_a_kill(dsn: str) -> None:
    first = start("beat.py", dsn)
    until(first, "fired")
    second = start("beat.py", dsn)
    try:
        until(first, "fired")
        first.kill()
        until(second, "fired")
        until(second, "fired")
        second.send_signal(signal.SIGTERM)
        assert "stopped" in "".join(until(second, "stopped"))
        assert second.wait(20) == 0
    finally:
        for program in (first, second):
            program.kill()
            program.wait()
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select slot, epoch from beat order by slot").fetchall()
    assert len({epoch for _, epoch in rows}) == 2
    assert [epoch for _, epoch in rows] == sorted(epoch for _, epoch in rows), "terms do not mix"


def test_worker_writes_through_the_fence(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table job (id bigserial primary key, done_by bigint)")
        connection.execute("insert into job select from generate_series(1, 5)")
    worker = start("worker.py", dsn)
    try:
        for _ in range(5):
            until(worker, "did a job")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
