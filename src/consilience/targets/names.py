"""The names that a change is about: what it defines or removes, what its lines use, and the files that it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath

from consilience.engine.sources import Document
from consilience.targets.diffs import FileChange, parse_changes
from consilience.targets.ignore import parse_patterns
from consilience.targets.outline import FileOutline, is_code, outline_of, written_names

MIN_NAME_CHARS = 3
MAX_SYMBOLS, MAX_USED, MAX_FILES = 80, 80, 60
"""Names that are looked up, at most."""

TEST_FILES = parse_patterns(
    (
        *(
            "test_*.py",
            "*_test.*",
            "*.test.*",
            "*.spec.*",
            "*_spec.rb",
            "*Test.java",
            "*Tests.java",
            "*Test.kt",
            "*Tests.cs",
        ),
        *("test/", "tests/", "__tests__/", "spec/", "testing/"),
    )
)
_USED = re.compile(r"\b(?:[A-Za-z_]\w+(?=\()|_?[A-Z]\w{2,})")
"""What is called, classes and constants."""
_HISTORY = parse_patterns(("CHANGELOG*", "CHANGES*", "HISTORY*", "NEWS*", "changelog*", "changes.*", "release*notes*"))
_KEY = re.compile(r"""["'`](--?[\w-]{2,}|[A-Za-z][\w]*[_.-][\w.-]+|[A-Z][A-Z0-9_]{3,}|[a-z][\w]{4,})["'`]""")
"""A word in quotation marks: an option, a key, a variable of the environment."""
_PROSE = re.compile(r"""//.*|(?:^|\s)#.*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
"""Comments and strings of one line, in most languages."""
_GENERAL_STEMS = frozenset(
    {"__init__", "__main__", "index", "main", "mod", "lib", "setup", "README", "conftest", "utils", "types"}
)
_USUAL = frozenset(
    [
        "None",
        "True",
        "False",
        "self",
        "cls",
        "super",
        "print",
        "len",
        "str",
        "int",
        "float",
        "bool",
        "list",
        "dict",
        "set",
        "tuple",
        "range",
        "type",
        "isinstance",
        "return",
        "import",
        "from",
        "raise",
        "except",
        "class",
        "def",
        "for",
        "not",
        "and",
        "with",
        "while",
        "else",
        "elif",
        "async",
        "await",
        "lambda",
        "yield",
        "pass",
        "break",
        "continue",
        "assert",
        "try",
        "finally",
        "this",
        "new",
        "null",
        "true",
        "false",
        "undefined",
        "function",
        "const",
        "let",
        "var",
        "public",
        "private",
        "protected",
        "static",
        "void",
        "final",
        "string",
        "number",
        "boolean",
        "export",
        "default",
        "extends",
        "implements",
        "interface",
        "struct",
        "enum",
        "impl",
        "match",
        "use",
        "mod",
        "pub",
        "fmt",
        "err",
        "nil",
        "func",
        "package",
        "main",
        "error",
        "Error",
        "Exception",
        "ValueError",
        "TypeError",
        "KeyError",
        "object",
        "Object",
        "Array",
        "String",
        "Map",
        "Set",
        "get",
        "add",
        "append",
        "items",
        "keys",
        "values",
        "join",
        "split",
        "format",
        "name",
        "value",
        "data",
        "result",
        "args",
        "kwargs",
        "path",
        "key",
    ]
)
"""Words that say nothing about where to look."""


@dataclass(frozen=True)
class ChangedNames:
    """The names of a change, each with the changed files that it is from."""

    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the change defines, redefines or removes; those that are gone or whose definition itself changed come first."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How other files name a changed file."""
    used: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What changed lines name and the file does not define."""

    @property
    def wanted(self) -> Mapping[str, tuple[str, ...]]:
        """Whose mention elsewhere matters."""
        return {**self.files, **self.symbols}


def is_test(path: str) -> bool:
    return TEST_FILES.covers(path)


def is_history(path: str) -> bool:
    """Return whether a file says what was, so that it need not fit a change."""
    return _HISTORY.covers(path)


@lru_cache(maxsize=4)
def names_of(documents: tuple[Document, ...]) -> ChangedNames:
    """Return the names of a change: the first document is its diff, others have the new texts of its files."""
    changes = parse_changes(documents)
    if changes is None:
        return ChangedNames()
    by_id = {document.id: document for document in documents}
    redefined: dict[str, dict[str, None]] = {}
    touched: dict[str, dict[str, None]] = {}
    files: dict[str, dict[str, None]] = {}
    used: dict[str, dict[str, None]] = {}
    diff = by_id[changes.document].text.splitlines()
    for file in changes.files:
        document = by_id.get(file.document or "")
        outline = outline_of(document.name, document.text) if document else FileOutline()
        added, removed = _marked(file, diff)
        if not is_test(file.path):
            for line in (*removed, *added):
                _note(redefined, written_names(line), file)
            _note(redefined, _keys(removed, added), file)
            _note(touched, _touched(file, outline, diff), file)
        if not is_test(file.path) or file.is_new or file.old_path != file.path or file.document is None:
            _note(files, _file_names(file), file)
        if is_code(file.path):
            own = {definition.name for definition in outline.definitions}
            words = dict.fromkeys(word for line in (*added, *removed) for word in _USED.findall(_PROSE.sub(" ", line)))
            _note(used, (word for word in words if word not in own), file)
    symbols = _bounded(
        {**redefined, **{name: of for name, of in touched.items() if name not in redefined}}, MAX_SYMBOLS
    )
    others = {name: of for name, of in used.items() if name not in symbols}
    return ChangedNames(symbols, _bounded(files, MAX_FILES), _bounded(others, MAX_USED))


def _note(into: dict[str, dict[str, None]], names: Iterator[str] | Sequence[str], file: FileChange) -> None:
    for name in names:
        if len(name) >= MIN_NAME_CHARS and name not in _USUAL and not (name.startswith("__") and name.endswith("__")):
            into.setdefault(name, {})[file.path] = None


def _bounded(names: Mapping[str, Mapping[str, None]], limit: int) -> dict[str, tuple[str, ...]]:
    return {name: tuple(of) for name, of in list(names.items())[:limit]}


def _marked(file: FileChange, diff: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the added and the removed lines of a file."""
    lines = [diff[number - 1] for number in file.places]
    return [line[1:] for line in lines if line[:1] == "+"], [line[1:] for line in lines if line[:1] == "-"]


def _keys(removed: Sequence[str], added: Sequence[str]) -> Iterator[str]:
    """Yield the words in quotation marks that are only in the removed or only in the added lines."""
    before, after = (dict.fromkeys(key for line in lines for key in _KEY.findall(line)) for lines in (removed, added))
    yield from (key for key in before if key not in after)
    yield from (key for key in after if key not in before)


def _touched(file: FileChange, outline: FileOutline, diff: Sequence[str]) -> Iterator[str]:
    """Yield the innermost definition around each changed line; without an outline, what the header of the hunk names."""
    for first, last in file.added:
        around = outline.around(first, last)
        deepest = max((definition.depth for definition in around), default=0)
        for definition in around:
            if definition.depth == deepest or definition.first >= first:
                yield definition.name
        if any(definition.name == "__init__" for definition in around):
            yield from (definition.name for definition in around if definition.depth == deepest - 1)
    if not outline.definitions:
        for number in range(file.diff_lines[0], file.diff_lines[1] + 1):
            line = diff[number - 1]
            if line.startswith("@@"):
                yield from written_names(line.rpartition("@@")[2].strip())


def _file_names(file: FileChange) -> Iterator[str]:
    for path in dict.fromkeys(filter(None, (file.path, file.old_path))):
        pure = PurePosixPath(path)
        parent = pure.parent.name
        is_general = pure.stem in _GENERAL_STEMS
        yield f"{parent}/{pure.name}" if is_general and parent else pure.name
        if pure.suffix == ".py" and parent and not is_general and not is_test(path):
            yield f"{parent}.{pure.stem}"
