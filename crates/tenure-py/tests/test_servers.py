"""Real servers that fork: gunicorn with preloading, and Celery's prefork pool."""

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

from server import free_port
from tenure.blocking import LeaderLock

pytestmark = pytest.mark.slow

APP = """
import os, threading
from tenure.blocking import LeaderLock

# Preloaded: the master runs this, and leads.
master = LeaderLock(os.environ["DSN"], role="master", policy="fenced")
if os.environ.get("MASTER_LEADS"):
    master.start()
    assert master.wait_for_leadership(20)
workers = LeaderLock(os.environ["DSN"], role="worker", policy="fenced")

def app(environ, start_response):
    try:
        master.gate.require_leader()
        inherited = "open"
    except Exception as error:
        inherited = type(error).__name__
    body = f"{os.getpid()} {master.is_leader} {inherited} {workers.is_leader}".encode()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]

def post_fork(server, worker):
    workers.start()
"""

CONF = "import app\npost_fork = app.post_fork\n"


def get(port: int) -> List[str]:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        return answer.read().decode().split()


def gunicorn(folder: Path, dsn: str, **environment: str) -> Any:
    pytest.importorskip("gunicorn")
    (folder / "app.py").write_text(APP)
    (folder / "conf.py").write_text(CONF)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", f"127.0.0.1:{port}",
         "-c", "conf.py", "--graceful-timeout", "10", "app:app"],
        cwd=folder, env=dict(os.environ, DSN=dsn, **environment), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    end = time.monotonic() + 40
    while True:
        try:
            get(port)
            return process, port
        except OSError:
            assert process.poll() is None and time.monotonic() < end, process.stdout.read()
            time.sleep(0.1)


def end(process: Any) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def answers(port: int, wanted: Any) -> "dict[str, List[str]]":
    """Asks until ``wanted`` holds of what the workers said."""
    said: "dict[str, List[str]]" = {}
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        pid, *rest = get(port)
        said[pid] = rest
        if wanted(said):
            return said
        time.sleep(0.02)
    raise AssertionError(said)


def test_gunicorn_workers_do_not_lead_in_the_masters_name(tmp_path: Path, dsn: str) -> None:
    process, port = gunicorn(tmp_path, dsn, MASTER_LEADS="1")
    try:
        said = answers(port, lambda said: len(said) >= 2 and any(rest[2] == "True" for rest in said.values()))
        for leads, inherited, _ in said.values():
            assert (leads, inherited) == ("False", "ForkError")
        assert sum(rest[2] == "True" for rest in said.values()) == 1, "one worker leads its own role"
        with LeaderLock(dsn, role="master", policy="fenced") as other:
            assert not other.wait_for_leadership(0.3)
            os.kill(process.pid, signal.SIGKILL)  # The workers live on for a moment.
            killed = time.monotonic()
            assert other.wait_for_leadership(10)
            took = time.monotonic() - killed
        assert took < 1.0, f"{took:.3f} s: a lease is 3 s"
    finally:
        end(process)


def test_gunicorn_ends_in_good_order_and_releases(tmp_path: Path, dsn: str) -> None:
    process, port = gunicorn(tmp_path, dsn)
    try:
        answers(port, lambda said: any(rest[2] == "True" for rest in said.values()))
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
        begun = time.monotonic()
        with LeaderLock(dsn, role="worker", policy="fenced") as other:
            assert other.wait_for_leadership(20)
        assert time.monotonic() - begun < 2.5
    finally:
        end(process)


CELERY = """
import os
from celery import Celery
from celery.signals import worker_process_init
from tenure.blocking import LeaderLock

app = Celery("tasks", broker="filesystem://", backend="file://" + os.environ["RESULTS"])
app.conf.broker_transport_options = {
    "data_folder_in": os.environ["QUEUE"], "data_folder_out": os.environ["QUEUE"],
    "control_folder": os.environ["CONTROL"],
}
parent = LeaderLock(os.environ["DSN"], role="parent", policy="fenced")
parent.start()
parent.wait_for_leadership(20)
own = LeaderLock(os.environ["DSN"], role="own", policy="fenced")

@worker_process_init.connect
def init(**_):
    own.start()

@app.task
def look():
    own.wait_for_leadership(10)
    return [os.getpid(), parent.is_leader, own.is_leader]
"""


def test_celery_prefork(tmp_path: Path, dsn: str) -> None:
    pytest.importorskip("celery")
    for name in ("queue", "results", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "tasks.py").write_text(CELERY)
    environment = dict(
        os.environ, DSN=dsn, QUEUE=str(tmp_path / "queue"), RESULTS=str(tmp_path / "results"),
        CONTROL=str(tmp_path / "control"), C_FORCE_ROOT="1",
    )
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", "prefork", "-c", "1", "-l", "WARNING",
         "--without-gossip", "--without-mingle", "--without-heartbeat"],
        cwd=tmp_path, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        ask = (
            "import os, tasks; tasks.parent.shutdown();"
            "print(*tasks.look.delay().get(timeout=60))"
        )
        # The asker imports the same module, and so takes part in the parent's role too.
        told = subprocess.run(
            [sys.executable, "-c", ask], cwd=tmp_path, env=environment, timeout=120,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        words = told.stdout.split()
        assert words[-2:] == ["False", "True"], told.stdout
        with psycopg.connect(dsn) as connection:
            row = connection.execute("select count(*) from tenure.role where holder is not null").fetchone()
        assert row == (2,), "the parent goes on, and its child leads its own role"
        os.kill(worker.pid, signal.SIGTERM)
        worker.wait(30)
        begun = time.monotonic()
        with LeaderLock(dsn, role="own", policy="fenced") as other:
            assert other.wait_for_leadership(20)
        assert time.monotonic() - begun < 2.5, "released at the end of the child"
    finally:
        end(worker)
