"""What is public is documented, and the manual's snippets are Python."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest

import tenure

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "crates/tenure-py/README.md", *sorted((ROOT / "docs").glob("*.md"))]


def modules() -> Iterator[Any]:
    yield tenure
    for found in pkgutil.walk_packages(tenure.__path__, "tenure."):
        if not any(part.startswith("_") for part in found.name.split(".")[1:]):
            yield importlib.import_module(found.name)


def undocumented(name: str, thing: Any) -> Iterator[str]:
    if not (inspect.getdoc(thing) or "").strip():
        yield name
    if not inspect.isclass(thing) or issubclass(thing, enum.Enum):
        return
    for base in thing.__mro__:
        if not base.__module__.startswith("tenure"):
            continue
        for word, member in vars(base).items():
            if word.startswith("_") or not (callable(member) or inspect.isdatadescriptor(member)):
                continue
            if not (inspect.getdoc(getattr(thing, word)) or inspect.getdoc(member) or "").strip():
                yield f"{name}.{word}"


def test_all_that_is_public_has_a_docstring() -> None:
    missing: List[str] = []
    for module in modules():
        missing += [] if (module.__doc__ or "").strip() else [module.__name__]
        for word in getattr(module, "__all__", ()):
            thing = getattr(module, word)
            if inspect.isclass(thing) or inspect.isroutine(thing):
                missing += undocumented(f"{module.__name__}.{word}", thing)
    assert missing == []


def test_the_stub_names_what_the_extension_has() -> None:
    stub = ast.parse((Path(tenure.__file__).parent / "_tenure.pyi").read_text())
    native = importlib.import_module("tenure._tenure")
    told = {node.name: node for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert set(told) == {name for name in dir(native) if not name.startswith("__")}
    for name, node in told.items():
        if isinstance(node, ast.ClassDef):
            written = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            there = set(vars(getattr(native, name)))
            hidden = {"__doc__", "__module__", "__new__", "__repr__"}
            assert written - {"__init__"} == there - hidden, name


def snippets() -> "List[Tuple[str, str]]":
    found = []
    for page in PAGES:
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)):
            found.append((f"{page.name}-{number}", code))
    return found


@pytest.mark.parametrize("code", [code for _, code in snippets()], ids=[name for name, _ in snippets()])
def test_a_snippet_of_the_manual_compiles_and_uses_what_there_is(code: str) -> None:
    tree = compile(code, "snippet", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tenure":
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "tenure":
                assert hasattr(tenure, node.attr), ast.unparse(node)
            if node.value.id == "lock":
                assert hasattr(tenure.LeaderLock, node.attr), ast.unparse(node)
            if node.value.id == "member":
                assert hasattr(tenure.Member, node.attr), ast.unparse(node)
        if isinstance(node, ast.Call):
            check_call(node)


def check_call(call: ast.Call) -> None:
    """The arguments of a call fit the signature."""
    classes = {"tenure.LeaderLock": tenure.LeaderLock, "tenure.Member": tenure.Member, "tenure.Role": tenure.Role}
    known = classes.get(ast.unparse(call.func))
    if known is None or any(isinstance(argument, ast.Starred) for argument in call.args):
        return
    options = {word.arg: None for word in call.keywords if word.arg}
    inspect.signature(known.__init__).bind(None, *call.args, **options)
