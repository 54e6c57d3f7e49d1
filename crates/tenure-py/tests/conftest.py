from __future__ import annotations

import asyncio
import inspect
import os
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from programs import Programs
from server import Proxy, Server

from tenure.testing import tenure_group  # noqa: F401 (a fixture)

#: No test of one event loop takes longer; one that hangs is a failure with a traceback.
LIMIT_S = 60.0


def pytest_generate_tests(metafunc: Any) -> None:
    """``TENURE_REPEAT=30`` runs every test so often: a test of faults is trusted only after that."""
    times = int(os.environ.get("TENURE_REPEAT", "1"))
    if times > 1:
        metafunc.fixturenames.append("round")
        metafunc.parametrize("round", range(times))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Any:
    """A coroutine function is run on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), LIMIT_S))
    return True


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def dsn(server: Server) -> str:
    """A database of its own."""
    return server.database()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def programs(dsn: str) -> Iterator[Programs]:
    """Starts other Python processes, and ends them after the test."""
    programs = Programs(dsn)
    yield programs
    programs.end()
