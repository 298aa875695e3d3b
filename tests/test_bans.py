"""What protocols may not touch, how long files and functions may be, and what tests themselves are kept from.

A run is a function of its settings, task, sources and seed, so `protocols/` reach the world through `Session` only.
"""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import consilience
from consilience.domain.paths import weights_dir

SOURCE = Path(consilience.__file__).parent
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

# Module that protocols may not import: what to use instead.
CONCURRENCY = "session.gather and session.start"
CLOCK = "session.clock (virtual time)"
DRAWS = "session.rng"
FILES = "session.sources and session.artifacts"
WORLD = "session.ask; what waits in the world waits beneath it"
BANNED_MODULES = {
    "asyncio": CONCURRENCY,
    "anyio": CONCURRENCY,
    "trio": CONCURRENCY,
    "concurrent": CONCURRENCY,
    "multiprocessing": CONCURRENCY,
    "threading": CONCURRENCY,
    "queue": CONCURRENCY,
    "time": CLOCK,
    "datetime": CLOCK,
    "random": DRAWS,
    "secrets": DRAWS,
    "uuid": DRAWS,
    "os": FILES,
    "pathlib": FILES,
    "tempfile": FILES,
    "shutil": FILES,
    "glob": FILES,
    "subprocess": WORLD,
    "socket": WORLD,
    "signal": WORLD,
    "http": WORLD,
    "urllib": WORLD,
    "httpx": WORLD,
    "sqlite3": WORLD,
}
BANNED_CALLS = {"open": FILES, "input": WORLD, "print": "session.publish"}
OPENERS = ("builtins", "io", "codecs")


def python_files(root: Path) -> Iterator[Path]:
    return iter(sorted(root.rglob("*.py")))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


# --- protocols


def banned_in(path: Path) -> list[str]:
    """One sentence for each thing in this file that a protocol may not do."""
    tree = parse(path)
    sessions = _sessions(tree)
    uses: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for module in _imported(node):
            instead = BANNED_MODULES.get(module.partition(".")[0])
            if instead:
                uses.append((line, f"imports {module}; use {instead}"))
        call = _called(node)
        if call in BANNED_CALLS:
            uses.append((line, f"calls {call}(); use {BANNED_CALLS[call]}"))
        if isinstance(node, ast.Attribute) and _private(node.attr) and _is_session(node.value, sessions):
            uses.append((line, f"reaches into the session: {ast.unparse(node)}; use its public methods"))
    return [f"{path}:{line}: {what}" for line, what in sorted(uses)]


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr="open")) if module in OPENERS:
            return "open"
    return ""


def _private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _sessions(tree: ast.Module) -> set[str]:
    """Names by which this file knows a session: `session`, arguments annotated so, and what these are assigned to."""
    names = {"session"}
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=annotation) if annotation is not None:
                if "Session" in ast.unparse(annotation):
                    names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if "Session" in ast.unparse(annotation):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_session(value, names):
                names.add(name)
    return names


def _is_session(node: ast.expr, names: Iterable[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return name.lstrip("_") == "session"
    return False


def test_protocols_use_only_the_session_for_clock_files_and_network() -> None:
    uses = [what for path in python_files(SOURCE / "protocols") for what in banned_in(path)]
    assert not uses, "protocols touch the world through Session only:\n" + "\n".join(uses)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import asyncio", "imports asyncio; use session.gather"),
        ("def f():\n    import random", ":2: imports random; use session.rng"),
        ("import json, time as t", "imports time"),
        ("from datetime import UTC", "imports datetime"),
        ("import os.path", "imports os.path"),
        ("from pathlib import Path", "imports pathlib"),
        ("import threading", "imports threading"),
        ("import queue", "imports queue"),
        ("import subprocess", "imports subprocess"),
        ("import socket", "imports socket"),
        ("import secrets", "imports secrets"),
        ("import uuid", "imports uuid"),
        ("import tempfile", "imports tempfile"),
        ("from concurrent.futures import Future", "imports concurrent.futures"),
        ("if TYPE_CHECKING:\n    from asyncio import Task", ":2: imports asyncio"),
        ("importlib.import_module('time')", "imports time"),
        ("__import__('os')", "imports os"),
        ("text = open('x').read()", "calls open()"),
        ("io.open('x')", "calls open()"),
        ("print('x')", "calls print(); use session.publish"),
        ("session._journal.append(x)", "reaches into the session: session._journal"),
        ("self.session._x", "reaches into the session: self.session._x"),
        ("async def run(self, s: Session) -> None:\n    s._x()", ":2: reaches into the session: s._x"),
        ("def run(s: 'Session | None'):\n    s._x", "reaches into the session: s._x"),
        ("mine = session\nmine._x", "reaches into the session: mine._x"),
    ],
)
def test_banned_use_in_a_sample_is_found(tmp_path: Path, code: str, expected: str) -> None:
    path = tmp_path / "protocol.py"
    path.write_text(code)
    uses = banned_in(path)
    assert len(uses) == 1
    assert expected in uses[0]
    assert str(path) in uses[0]


@pytest.mark.parametrize(
    "code",
    [
        "import json, re, math, itertools, collections.abc",
        "from consilience.engine.session import Session",
        "from .time import horizon",
        "self._x = session.rng('draw')",
        "thread.open(question)",
        "session.__class__",
        "self._session.ask(agent)",
        "other._replace(x=1)",
        "reopen(thread)",
    ],
)
def test_allowed_use_in_a_sample_is_not_reported(tmp_path: Path, code: str) -> None:
    path = tmp_path / "protocol.py"
    path.write_text(code)
    assert banned_in(path) == []


# --- length


def too_long_in(path: Path) -> list[str]:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    problems = (
        [f"{path}: {lines} lines, at most {MAX_FILE_LINES}; split it by concept"] if lines > MAX_FILE_LINES else []
    )
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                problems.append(f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}")
    return problems


NAME_PREFIXES = {"exec:", "human", "human:", "workspace:", "local", "local:", "http://", "https://"}


def test_only_the_grammar_asks_a_model_what_it_is_by_its_name() -> None:
    """`domain.model_names` reads names, `models` has what follows from them; nothing else compares how a name begins."""
    asked = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in python_files(SOURCE)
        if path.relative_to(SOURCE).parts[0] != "models" and path.name not in ("model_names.py", "paths.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith"
        if any(isinstance(leaf, ast.Constant) and leaf.value in NAME_PREFIXES for leaf in ast.walk(node))
    ]
    assert not asked


def test_files_and_functions_are_within_the_length_limits() -> None:
    problems = [what for path in python_files(SOURCE) for what in too_long_in(path)]
    assert not problems, "\n".join(problems)


def function(name: str, lines: int) -> str:
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


def test_too_long_files_and_functions_are_found(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text(function("good", 60) + "\n\n" + "async " + function("bad", 61))
    assert too_long_in(path) == [f"{path}:63: bad has 61 lines, at most 60"]
    path.write_text("x = 1\n" * 500)
    assert too_long_in(path) == []
    path.write_text("x = 1\n" * 501)
    assert too_long_in(path) == [f"{path}: 501 lines, at most 500; split it by concept"]


# --- tests themselves


def test_connection_beyond_loopback_in_a_test_is_refused() -> None:
    with socket.socket() as outside, pytest.raises((RuntimeError, UserWarning), match=r"192\.0\.2\.1"):
        outside.connect(("192.0.2.1", 80))
    with pytest.raises(RuntimeError, match=r"looked up the host 'example\.org'"):
        socket.create_connection(("example.org", 80))


def test_connection_to_loopback_in_a_test_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for name in ("127.0.0.1", "localhost"):
            with socket.create_connection((name, port)):
                pass


def test_home_of_a_test_is_a_temporary_directory(home: Path, tmp_path: Path, shared_weights: Path) -> None:
    assert os.environ["CONSILIENCE_HOME"] == str(home)
    assert home.is_relative_to(tmp_path)
    assert [entry.name for entry in home.iterdir()] == ["weights"]
    assert weights_dir().resolve() == shared_weights.resolve()
    assert not shared_weights.is_relative_to(home)
    assert not [name for name in os.environ if name.endswith("_API_KEY")]


def test_sample_is_seeded_and_keeps_the_order(sample: object, whole: bool) -> None:
    assert callable(sample)
    items = range(1000)
    drawn = sample(items, 10)
    assert drawn == sample(items, 10)
    assert drawn == sorted(drawn)
    assert len(drawn) == len(set(drawn)) == (1000 if whole else 10)
    assert whole or drawn != sample(items, 10, seed=1)
    assert sample("abc", 5) == ["a", "b", "c"]
    assert len(sample(items, 10, whole=20)) == (20 if whole else 10)


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize("case", range(12))
def test_matrix_is_sampled_to_its_bound(case: int, request: pytest.FixtureRequest, whole: bool) -> None:
    cases = [item for item in request.session.items if item.nodeid.startswith(request.node.nodeid.partition("[")[0])]
    assert len(cases) <= (12 if whole else 3)


@pytest.mark.matrix(keep=3, whole=6)
@pytest.mark.parametrize("case", range(12))
def test_matrix_with_a_whole_bound_is_sampled_under_whole(
    case: int, request: pytest.FixtureRequest, whole: bool
) -> None:
    cases = [item for item in request.session.items if item.nodeid.startswith(request.node.nodeid.partition("[")[0])]
    assert len(cases) <= (6 if whole else 3)
