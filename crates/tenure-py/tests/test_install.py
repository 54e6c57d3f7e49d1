"""What a newcomer does: install the package into a fresh environment, and run the README's example."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, List

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def run(*words: Any, **options: Any) -> str:
    told = subprocess.run(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, **options
    )
    assert told.returncode == 0, told.stdout
    return told.stdout


def readme(dsn: str) -> str:
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert found is not None
    code = found[1].replace("postgresql://localhost/app", dsn)
    assert dsn in code
    body = textwrap.indent(code.replace("...", "print('acted under epoch', act.epoch)", 1), "    ")
    return f"import asyncio, tenure\n\nasync def main():\n{body}\nasyncio.run(main())\n"


def interpreters() -> List[str]:
    """This interpreter, and every other one from 3.9 on that is installed."""
    found = [sys.executable]
    for minor in range(9, 20):
        name = f"python3.{minor}"
        places = [shutil.which(name), *glob.glob(str(Path.home() / f".pyenv/versions/3.{minor}.*/bin/python3"))]
        for place in filter(None, places):
            works = subprocess.run([place, "-c", "import venv"], stderr=subprocess.DEVNULL).returncode == 0
            if works and minor != sys.version_info.minor:
                found.append(place)
                break
    return found


def wheel() -> Path:
    wheels = sorted((ROOT / "target/wheels").glob("tenure-*-abi3-*.whl"), key=os.path.getmtime)
    assert wheels, "run make wheel first"
    return wheels[-1]


def check(folder: Path, dsn: str, interpreter: str, what: Path) -> None:
    python = folder / "venv/bin/python"
    run(interpreter, "-m", "venv", folder / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what)
    assert "acted under epoch 1" in run(python, "-W", "error", "-c", readme(dsn), cwd=folder)
    # Nothing else was installed with it, and the command says what it needs.
    run(python, "-c", "import importlib.util as u; assert not any(map(u.find_spec, ('psycopg', 'click')))")
    missing = subprocess.run(
        [str(folder / "venv/bin/pgleaderlock"), "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert missing.returncode != 0 and "pip install 'tenure[cli]'" in missing.stdout


def test_pip_installs_from_the_source(tmp_path: Path, dsn: str) -> None:
    check(tmp_path, dsn, sys.executable, ROOT / "crates/tenure-py")


@pytest.mark.parametrize("interpreter", interpreters())
def test_the_wheel_serves_every_interpreter(tmp_path: Path, dsn: str, interpreter: str) -> None:
    check(tmp_path, dsn, interpreter, wheel())
