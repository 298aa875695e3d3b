"""Imports point downward only: every floor may use the floors below it and no room beside it.

Counted are all imports, also those inside functions, those for type checking only, and `import_module("…")`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import consilience

PACKAGE = "consilience"
SOURCE = Path(consilience.__file__).parent

# Top floor first; each floor is a tuple of rooms. A room is a module or package of `consilience` with all it holds.
# `protocols.*` makes a room of each thing in `protocols` that is not named itself; `protocols` is then only its `__init__`.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("server", "evaluation", "integrations"),
    ("__init__",),
    ("api", "run_plans", "testing", "executor"),
    ("deliberation",),
    ("configuration", "choosing", "planning", "sessions"),
    ("model_words", "prices"),
    ("protocols", "protocols.*"),
    ("protocols._common", "reporting.formats"),
    ("protocol", "targets"),
    ("engine",),
    ("models", "journal", "coordination", "reporting", "documents", "ui"),
    ("domain", "blocking"),
)


@dataclass(frozen=True, slots=True)
class Import:
    """Module names are relative to the package: `engine.session`; the package itself is `__init__`."""

    importer: str
    imported: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {self.importer} imports {self.imported}"


def room_of(module: str) -> str | None:
    """The room a module is in, or None if no floor names it."""
    top, _, rest = module.partition(".")
    rooms = {room for floor in FLOORS for room in floor}
    if (named := f"{top}.{rest.partition('.')[0]}") in rooms:
        return named
    if rest and f"{top}.*" in rooms:
        return f"{top}.{rest.partition('.')[0]}"
    return top if top in rooms else None


def floor_of(room: str) -> int:
    """Height of a room's floor; the lowest is 0."""
    named = any(room in floor for floor in FLOORS)
    pattern = room if named else f"{room.partition('.')[0]}.*"
    return next(height for height, floor in enumerate(reversed(FLOORS)) if pattern in floor)


def modules_in(source: Path) -> dict[str, Path]:
    """Every module below `source`, by its name relative to the package."""
    modules: dict[str, Path] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        modules[name] = path
    return modules


def imports_of(module: str, path: Path, known: set[str]) -> Iterator[Import]:
    """Imports of the package's own modules by one module, each resolved to the module it reaches."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        for imported in _targets(node, module, path.name == "__init__.py", known):
            yield Import(module, imported, f"{path}:{getattr(node, 'lineno', 0)}")


def _targets(node: ast.AST, module: str, is_package: bool, known: set[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (_relative(alias.name) for alias in names if _ours(alias.name))
        case ast.ImportFrom(module=base, level=level, names=names):
            origin = _absolute(module, is_package, level, base or "")
            if _ours(origin):
                for alias in names:
                    submodule = _relative(f"{origin}.{alias.name}")
                    yield submodule if submodule in known else _relative(origin)
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ) if _ours(name):
            yield _relative(name)


def _absolute(module: str, is_package: bool, level: int, base: str) -> str:
    if level == 0:
        return base
    parts = [PACKAGE] if module == "__init__" else [PACKAGE, *module.split(".")]
    up = level - 1 if is_package else level
    return ".".join([*parts[: len(parts) - up], *([base] if base else [])])


def _ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _relative(name: str) -> str:
    return name.removeprefix(PACKAGE).removeprefix(".") or "__init__"


def violations(source: Path) -> list[str]:
    """One sentence for each import that does not point downward, and for each module without a floor."""
    modules = modules_in(source)
    wrong: list[str] = []
    for module, path in modules.items():
        room = room_of(module)
        if room is None:
            wrong.append(f"{path}: no floor is named for {module}; give it one in FLOORS of tests/test_layers.py")
            continue
        for imported in imports_of(module, path, set(modules)):
            target = room_of(imported.imported)
            if target is None:
                wrong.append(f"{imported}, which has no floor")
            elif target != room and floor_of(target) >= floor_of(room):
                where = "beside it" if floor_of(target) == floor_of(room) else "above it"
                wrong.append(f"{imported}, a room {where}")
    return wrong


def test_imports_point_downward() -> None:
    wrong = violations(SOURCE)
    assert not wrong, "imports point downward only (docs/design, and CONTRIBUTING.md):\n" + "\n".join(wrong)


def circle(source: Path) -> list[str]:
    """The modules of one import circle, the first one repeated at the end; empty if there is none."""
    modules = modules_in(source)
    below = {
        module: {edge.imported for edge in imports_of(module, path, set(modules))} & modules.keys() - {module}
        for module, path in modules.items()
    }
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    modules = circle(SOURCE)
    assert not modules, "an import circle: " + " imports ".join(reversed(modules))


# --- the check itself


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A made-up package with a module in every kind of room."""
    source = tmp_path / PACKAGE
    for name in (
        "__init__.py",
        "__main__.py",
        "api.py",
        "testing.py",
        "cli/__init__.py",
        "cli/main.py",
        "server/__init__.py",
        "evaluation/__init__.py",
        "protocols/__init__.py",
        "protocols/debate/__init__.py",
        "protocols/debate/protocol.py",
        "protocols/debate/settings.py",
        "protocols/review/__init__.py",
        "protocols/review/report.py",
        "engine/__init__.py",
        "engine/session.py",
        "models/__init__.py",
        "journal/__init__.py",
        "journal/store.py",
        "domain/__init__.py",
        "domain/errors.py",
    ):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return source


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("cli/main.py", "import consilience.engine.session"),
        ("cli/main.py", "from consilience import Debate, __version__"),
        ("cli/main.py", "from consilience.server import app"),
        ("__main__.py", "from consilience.cli.main import main"),
        ("__init__.py", "from consilience.protocols.debate import Debate"),
        ("__init__.py", "from .api import deliberate"),
        ("api.py", "def load():\n    import consilience.protocols.debate"),
        ("testing.py", "from consilience.models import scripted"),
        ("protocols/debate/protocol.py", "from consilience.protocols.debate.settings import Settings"),
        ("protocols/debate/protocol.py", "from .settings import Settings"),
        ("protocols/debate/__init__.py", "from . import protocol"),
        ("protocols/debate/protocol.py", "from consilience.engine.session import Session"),
        ("engine/session.py", "from consilience.journal import store\nimport consilience.domain.errors"),
        ("journal/store.py", "from consilience.domain.errors import UserError"),
        ("domain/errors.py", "import asyncio, consilience_other\nfrom pydantic import BaseModel"),
        ("domain/errors.py", "importlib.import_module(name)"),
    ],
)
def test_import_that_points_downward_is_allowed(tree: Path, file: str, code: str) -> None:
    (tree / file).write_text(code)
    assert violations(tree) == []


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("domain/errors.py", "import consilience.engine.session", "imports engine.session, a room above it"),
        ("domain/errors.py", "import consilience", "imports __init__, a room above it"),
        ("domain/errors.py", "from consilience import journal", "imports journal, a room above it"),
        ("domain/errors.py", "from ..engine import session", "imports engine.session, a room above it"),
        ("domain/__init__.py", "from ..models import x", "imports models, a room above it"),
        ("engine/session.py", "def f():\n    from consilience.api import deliberate", "imports api, a room above it"),
        (
            "engine/session.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from consilience.protocols.debate import Debate",
            "session.py:3: engine.session imports protocols.debate, a room above it",
        ),
        ("engine/session.py", "import_module('consilience.cli.main')", "imports cli.main, a room above it"),
        ("engine/session.py", "importlib.import_module('consilience.cli')", "imports cli, a room above it"),
        ("journal/store.py", "from consilience.models import x", "imports models, a room beside it"),
        ("protocols/debate/protocol.py", "from consilience.protocols.review.report import Report", "beside it"),
        ("protocols/debate/protocol.py", "from consilience.protocols import review", "imports protocols.review"),
        ("protocols/debate/protocol.py", "from ..review import report", "imports protocols.review.report"),
        ("protocols/debate/protocol.py", "from .. import review", "imports protocols.review, a room beside it"),
        ("protocols/debate/protocol.py", "from consilience.protocols import registry", "imports protocols, a room"),
        ("protocols/__init__.py", "from consilience.protocols.debate import Debate", "beside it"),
        ("protocols/debate/protocol.py", "from consilience import Session", "imports __init__, a room above it"),
        ("testing.py", "from consilience.api import deliberate", "imports api, a room beside it"),
        ("evaluation/__init__.py", "import consilience.server", "imports server, a room beside it"),
        ("cli/main.py", "import consilience.plugins", "imports plugins, which has no floor"),
    ],
)
def test_import_that_does_not_point_downward_is_found(tree: Path, file: str, code: str, expected: str) -> None:
    (tree / file).write_text(code)
    wrong = violations(tree)
    assert len(wrong) == 1
    assert expected in wrong[0]
    assert str(tree / file) in wrong[0]


def test_module_without_a_layer_is_found(tree: Path) -> None:
    (tree / "misc.py").write_text("")
    (tree / "plugins").mkdir()
    (tree / "plugins" / "one.py").write_text("")
    wrong = violations(tree)
    assert len(wrong) == 2
    assert "no floor is named for misc" in wrong[0]
    assert "no floor is named for plugins.one" in wrong[1]


def test_no_package_is_in_two_layers() -> None:
    rooms = [room for floor in FLOORS for room in floor]
    assert len(set(rooms)) == len(rooms)


def test_import_cycle_with_a_lazy_import_is_found(tmp_path: Path) -> None:
    source = tmp_path / PACKAGE
    source.mkdir()
    (source / "__init__.py").write_text("")
    (source / "a.py").write_text("from consilience import b\n")
    (source / "b.py").write_text("def f() -> None:\n    from consilience.a import b\n")
    assert set(circle(source)) == {"a", "b"}
    (source / "b.py").write_text("")
    assert circle(source) == []


# --- one type, one name

SAME_IN_TWO_PROTOCOLS = {"ClosingReply"}
"""Types of replies, whose names are in recorded requests."""


def types_in(root: Path) -> Iterator[tuple[str, Path]]:
    """Each class and each alias of a type that a module below `root` defines, but private ones."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                yield from ((name, path) for name in names if name[0].isupper() and not name.isupper())


def names_of_two_types(root: Path) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for name, path in types_in(root):
        owners.setdefault(name, []).append(str(path.relative_to(root)))
    return {name: places for name, places in owners.items() if len(places) > 1 and len(name) > 1}


def test_no_type_name_is_defined_twice() -> None:
    assert set(names_of_two_types(SOURCE)) == SAME_IN_TWO_PROTOCOLS


def test_type_name_defined_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Role: ...\nT = int\nMAX = 1\n")
    (tmp_path / "two.py").write_text("Role = str\nT = str\nMAX = 2\n_Role = int\n")
    assert names_of_two_types(tmp_path) == {"Role": ["one.py", "two.py"]}
