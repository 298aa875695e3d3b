"""The engine and `reporting` know no protocol: no import and no string of theirs names one, its settings, fields or kinds.

`reporting.formats` writes findings, which the domain defines, for other programs, whose keys are theirs. It imports no protocol
either.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import consilience
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol

SOURCE = Path(consilience.__file__).parent
PLACES = ("engine", "reporting")
FORMATS = SOURCE / "reporting" / "formats"
_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHIPPED: dict[str, type[Protocol]] = {
    name: pkgutil.resolve_name(place) for name, place in _PROJECT["entry-points"]["consilience.protocols"].items()
}
"""From the project's file: an installation may be older than a protocol that was added since."""

ALLOWED: dict[str, str] = {
    "added": "of what a settled round left: the texts that were put after replies",
    "children": "in an example of a call of the Python interface, which an error shows",
    "closing_reply_tokens": "a setting of every protocol, which the engine defines",
    "confidence": "a field of the common header",
    "convergence": "a view of every session: its checks, which are the engine's",
    "draft": "in the address of a JSON Schema dialect",
    "dropped": "of what a settled round left: labels that replies named without having been shown them",
    "fallback": "of models: the one asked where the first does not answer",
    "messages": "what agents publish, in the domain",
    "panel": "of personas, in the domain",
    "parts": "of a prompt",
    "personas": "of a panel, in the domain",
    "pass": "a verb in what an error advises",
    "perspectives": "an argument of every fork",
    "position": "of agents, in the common header",
    "questions": "what calls of people ask",
    "reply_tokens": "a setting of every protocol, which the engine defines",
    "rounds": "what steps are called where no protocol names them",
    "seats": "of a panel, which the engine fills",
    "similarity": "of texts, which the engine compares",
}
"""Ordinary words that some protocol uses as a name too, each with what it means in the engine or in `reporting`."""


def words_of(protocol: type[Protocol]) -> set[str]:
    """Names that belong to a protocol: its own, its settings, its report's fields beyond the header, its kinds and notes."""
    report = protocol.report
    names = {protocol.name, *protocol.model_fields, *report.asides, *protocol.must_be_read, *protocol.notes}
    names |= set(report.model_fields) - set(Report.model_fields)
    return names


ALL_WORDS = {word for protocol in SHIPPED.values() for word in words_of(protocol)}


def strings_in(path: Path) -> Iterator[tuple[str, int]]:
    """String constants, docstrings aside."""
    module = ast.parse(path.read_text())
    documented = {
        id(node.value)
        for parent in ast.walk(module)
        if isinstance(parent, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for node in parent.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value, node.lineno


def files() -> list[Path]:
    return [path for place in PLACES for path in sorted((SOURCE / place).rglob("*.py"))]


def test_protocol_words_are_collected() -> None:
    assert {"emergence", "broadcast", "refinement", "decompose", "solo", "vote", "propose", "debate"} <= set(SHIPPED)
    assert {"max_passes", "ballots", "nudge", "satisfaction_threshold", "aggregated_children", "weighed"} <= ALL_WORDS


def test_engine_and_reporting_strings_name_no_protocol() -> None:
    words = ALL_WORDS - ALLOWED.keys()
    uses = [
        f"{path.relative_to(SOURCE)}:{line}: {word!r} in {text[:80]!r}"
        for path in files()
        if FORMATS not in path.parents
        for text, line in strings_in(path)
        for word in sorted(words & set(re.findall(r"[a-z_]+", text)))
    ]
    assert not uses, "the engine and reporting know no protocol:\n" + "\n".join(uses)


def test_engine_and_reporting_import_no_protocol() -> None:
    imports = []
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imports += [f"{path}: {module}" for module in modules if module.startswith("consilience.protocols")]
    assert not imports


def test_every_allowed_word_is_used() -> None:
    used = {word for path in files() for text, _ in strings_in(path) for word in re.findall(r"[a-z_]+", text)}
    assert not ALLOWED.keys() - (ALL_WORDS & used)
