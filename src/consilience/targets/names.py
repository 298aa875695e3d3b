"""The names that a change is about: what it defines, redefines, removes or touches, what its lines use, and its files."""

from __future__ import annotations

import builtins
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath

from consilience.engine.sources import Document
from consilience.targets.diffs import FileChange, parse_changes
from consilience.targets.ignore import parse_patterns
from consilience.targets.outline import Definition, FileOutline, is_code, outline_of, outlines_of, written_names

MIN_NAME_CHARS = 3
MAX_SYMBOLS, MAX_USED, MAX_SPELLINGS = 80, 80, 120
"""Names that are looked up, at most."""

REDEFINED, TOUCHED, USES, HOLDS, NEW = 1.0, 0.7, 0.4, 0.3, 0.2
"""How much it matters who names a symbol: one that is gone or whose head changed; whose body changed; that uses such a one in the
same file; the class around it; one that is new."""
MOVED_FILE, CHANGED_FILE, COMMAND = 1.0, 0.1, 0.5
"""The same of a file: renamed or deleted; changed; as a command."""

TEST_FILES = parse_patterns(
    (
        *("test_*.py", "*_test.*", "*.test.*", "*.spec.*", "*_spec.rb"),
        *("*Test.java", "*Tests.java", "*Test.kt", "*Tests.cs"),
        *("test/", "tests/", "__tests__/", "spec/", "testing/"),
    )
)
_HISTORY = parse_patterns(
    (
        "CHANGELOG*",
        "CHANGES*",
        "HISTORY*",
        "NEWS*",
        "changelog*",
        "changes*",
        "news/",
        "newsfragments/",
        "release*notes*",
    )
)
_PROSE_FILES = (".md", ".rst", ".txt", ".adoc")
_USED = re.compile(r"\b(?:[A-Za-z_]\w+(?=\()|_?[A-Z]\w{2,})")
"""What is called, classes and constants."""
_KEY = re.compile(r"""(["'`])(--?[\w-]{2,}|[A-Za-z][\w]*[_.-][\w.-]+|[A-Z][A-Z0-9_]{3,}|[a-z][\w]{4,})["'`]""")
"""A word in quotation marks: an option, a key, a variable of the environment."""
_ATTRIBUTE = re.compile(r"^\s*(?:self|this)\.(\w+)\s*(?::[^=]+)?=(?!=)")
PROSE = re.compile(r"""//.*|(?:^|(?<=\s))#.*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
"""Comments and strings of one line, in most languages."""
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class ChangedName:
    """A name to look for elsewhere."""

    weight: float
    of: tuple[str, ...]
    """The changed files that it is from."""
    owners: frozenset[str] = frozenset()
    """Classes of which it is a member, if it is one in all of these files."""
    is_key: bool = False
    """Whether it stands in quotation marks: an option, a key, a variable of the environment."""
    imported: frozenset[str] = frozenset()
    """Of a name that is used, the words in the imports of the files that use it."""

    def may_be_defined_in(self, name: str, path: str, files: int, owner: str = "") -> bool:
        """Return whether a file, and in it a class, defines this name as it is used: one that is imported or beside it; else
        the only one, of what is no member."""
        is_beside = any(directory_of(path) == directory_of(other) for other in self.of)
        *above, parent = ("", *directory_of(path).split("/"))
        is_named = is_beside or parent in self.imported or not any(above)
        if owner in self.imported or (module_of(path) in self.imported and is_named):
            return True
        return name not in self.imported and not is_plain(name) and (is_beside or (files == 1 and not owner))


@dataclass(frozen=True)
class ChangedNames:
    """The names of a change, the weightiest first."""

    symbols: Mapping[str, ChangedName] = field(default_factory=dict)
    """What the change defines, redefines, removes or touches."""
    files: Mapping[str, ChangedName] = field(default_factory=dict)
    """How other files spell a changed file."""
    used: Mapping[str, ChangedName] = field(default_factory=dict)
    """What changed lines name and their file does not define."""

    @property
    def wanted(self) -> Mapping[str, ChangedName]:
        """Whose mention elsewhere matters."""
        return {**self.files, **self.symbols}

    @property
    def qualifiers(self) -> frozenset[str]:
        """Classes and modules by which a file shows that it means a symbol and not another thing of that name."""
        modules = {module_of(path) for name in self.symbols.values() for path in name.of}
        return frozenset({owner for name in self.symbols.values() for owner in name.owners} | modules) - {""}


def is_test(path: str) -> bool:
    return TEST_FILES.covers(path)


def is_history(path: str) -> bool:
    """Return whether a file says what was, so that it need not fit a change."""
    return (is_prose(path) or "." not in path.rpartition("/")[2]) and _HISTORY.covers(path)


def is_prose(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in _PROSE_FILES


def module_of(path: str) -> str:
    """Return the word by which an import names a file: its stem, or its directory where that is the unit."""
    pure = PurePosixPath(path)
    is_directory = pure.suffix == ".go" or pure.stem in ("__init__", "index", "mod")
    return pure.parent.name if is_directory else pure.stem


def directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def is_plain(name: str) -> bool:
    """Return whether a name may be a word of English: `update`, `Command`."""
    return name.isalpha() and (name.islower() or name.istitle())


def imported_words(lines: Sequence[str], outline: FileOutline) -> frozenset[str]:
    return frozenset(word for a, b in outline.imports for line in lines[a - 1 : b] for word in re.findall(r"\w+", line))


@lru_cache(maxsize=4)
def names_of(documents: tuple[Document, ...]) -> ChangedNames:
    """Return the names of a change: the first document is its diff, others have the new texts of its files."""
    changes = parse_changes(documents)
    if changes is None:
        return ChangedNames()
    by_id = {document.id: document for document in documents}
    outlines = outlines_of(documents)
    symbols, files, used = _Names(), _Names(), _Names()
    diff = by_id[changes.document].text.splitlines()
    for file in changes.files:
        states = _States(file, by_id.get(file.document or ""), outlines.get(file.document or ""), diff)
        if not is_test(file.path):
            for weight, name, owner in (*states.symbols(), *states.attributes()):
                symbols.note(name, weight, file, owner)
            for weight, name in states.written():
                symbols.note(name, weight, file)
            for weight, key in _keys(states):
                symbols.note(key, weight, file, is_key=True)
        for weight, spelling in _spellings(file):
            files.note(spelling, weight, file)
        for name in states.used():
            used.note(name, 1.0, file, imported=states.imported)
    found = symbols.result(MAX_SYMBOLS)
    return ChangedNames(found, files.result(MAX_SPELLINGS), used.result(MAX_USED, but=found))


class _Names:
    """Names as they are found."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[float, str, str, bool, frozenset[str]]]] = defaultdict(list)

    def note(
        self,
        name: str,
        weight: float,
        file: FileChange,
        owner: str = "",
        *,
        is_key: bool = False,
        imported: frozenset[str] = frozenset(),
    ) -> None:
        if len(name) >= MIN_NAME_CHARS:
            self._found[name].append((weight, file.path, owner, is_key, imported))

    def result(self, limit: int, but: Collection[str] = ()) -> dict[str, ChangedName]:
        names = {name: _merged(*zip(*found, strict=True)) for name, found in self._found.items() if name not in but}
        return dict(sorted(names.items(), key=lambda item: -item[1].weight)[:limit])


def _merged(
    weights: Sequence[float],
    paths: Sequence[str],
    owners: Sequence[str],
    are_keys: Sequence[bool],
    imported: Sequence[frozenset[str]],
) -> ChangedName:
    return ChangedName(
        max(weights),
        tuple(dict.fromkeys(paths)),
        frozenset(owners) if all(owners) else frozenset(),
        all(are_keys),
        frozenset().union(*imported),
    )


class _States:
    """A changed file before and after."""

    def __init__(
        self, file: FileChange, new: Document | None, outline: FileOutline | None, diff: Sequence[str]
    ) -> None:
        self.file = file
        self.removed = [diff[line - 1][1:] for line in file.places if diff[line - 1][:1] == "-"]
        self.added = [diff[line - 1][1:] for line in file.places if diff[line - 1][:1] == "+"]
        self._headers = [line for line in diff[file.diff_lines[0] - 1 : file.diff_lines[1]] if line.startswith("@@")]
        self._text = new.text.splitlines() if new else []
        self._new = outline or FileOutline()
        self.imported = imported_words(self._text, self._new)
        self._old_text, self._removed, self._added = self._before(diff)
        self._old = (
            outline_of(file.old_path, "\n".join([*self._old_text, ""])) if is_code(file.old_path) else FileOutline()
        )

    def _before(self, diff: Sequence[str]) -> tuple[list[str], set[int], set[int]]:
        """Return the old text, and the numbers of the removed lines in it and of the added ones in the new text, without those that
        only moved and without blank ones."""
        file = self.file
        old: list[str] = []
        removed, added = set(), set()
        at = 1
        for line, (side, number) in file.places.items():
            mark, text = diff[line - 1][:1], diff[line - 1][1:]
            if side == "new":
                old += self._text[at - 1 : number - 1]
                at = number + 1
                if mark == "+":
                    if text.strip() and not file.is_moved("new", number, number):
                        added.add(number)
                    continue
            old.append(text)
            if mark == "-" and text.strip() and not file.is_moved("old", number, number):
                removed.add(len(old))
        return [*old, *self._text[at - 1 :]], removed, added

    def symbols(self) -> Iterator[tuple[float, str, str]]:
        """Yield what others can name, as weight, name and class: what is gone, redefined, touched or new; the classes around; and
        what uses it in the same file."""
        weights: dict[Definition, float] = {}
        kept = {(d.owner, d.name) for d in self._old.definitions}, {(d.owner, d.name) for d in self._new.definitions}
        for outline, lines, others in ((self._old, self._removed, kept[1]), (self._new, self._added, kept[0])):
            for definition, weight in _hit(outline, lines).items():
                is_apart = (definition.owner, definition.name) not in others
                lone = REDEFINED if outline is self._old else NEW
                weights[definition] = max(weights.get(definition, 0), lone if is_apart else weight)
            if outline is self._old:
                gone = (d for d in outline.definitions if not d.is_local and (d.owner, d.name) not in others)
                weights |= dict.fromkeys(gone, REDEFINED)
        classes = {d.name: d.owner for d in (*self._old.definitions, *self._new.definitions) if not d.is_function}
        for definition, weight in (*weights.items(), *self._users(weights)):
            is_special = definition.name.startswith("__") and definition.name.endswith("__")
            if not is_special:
                yield weight, definition.name, definition.owner
            if definition.owner in classes:
                is_signature = is_special and definition.is_function and weight == REDEFINED
                yield weight * (1 if is_signature else HOLDS), definition.owner, classes[definition.owner]

    def _users(self, changed: Mapping[Definition, float]) -> Iterator[tuple[Definition, float]]:
        """Yield what in the new text names a definition that is not new, a member in its own class: callers are changed, too."""
        names = {d.name: d for d, weight in changed.items() if weight != NEW and len(d.name) >= MIN_NAME_CHARS}
        if not names:
            return
        pattern = re.compile(rf"(\.?)\b({'|'.join(map(re.escape, names))})\b")
        known = {(definition.owner, definition.name) for definition in changed}
        found: dict[Definition, float] = {}
        for number, line in enumerate(self._text, 1):
            for mark, name in pattern.findall(line):
                user, owner = _innermost_visible(self._new.around(number, number)), names[name].owner
                if user and (user.owner, user.name) not in known and (user.owner == owner if mark else not owner):
                    found[user] = max(found.get(user, 0), changed[names[name]] * USES)
        yield from found.items()

    def attributes(self) -> Iterator[tuple[float, str, str]]:
        """Yield attributes of objects that changed lines assign."""
        sides = ((self._removed, self._old, self._old_text), (self._added, self._new, self._text))
        assigned: list[set[tuple[str, str]]] = [set(), set()]
        for into, (lines, outline, text) in zip(assigned, sides, strict=True):
            for line in (line for line in lines if line <= len(text)):  # a link has no text
                if match := _ATTRIBUTE.match(text[line - 1]):
                    owners = [d.name for d in outline.around(line, line) if not d.is_function and not d.is_local]
                    into.update((match[1], owner) for owner in owners[-1:])
        kept = {match[1] for line in self._text if (match := _ATTRIBUTE.match(line))}
        yield from ((TOUCHED if name in kept else REDEFINED, name, owner) for name, owner in assigned[0])
        yield from ((NEW, name, owner) for name, owner in assigned[1] - assigned[0])

    def written(self) -> Iterator[tuple[float, str]]:
        """Yield what changed lines define, and what the headers of hunks name, in a language without an outline."""
        if self._new.definitions or self._old.definitions or not is_code(self.file.path):
            return
        after = {name for line in self.added for name in written_names(line)}
        for name in (name for line in self.removed for name in written_names(line)):
            yield REDEFINED, name
            after.discard(name)
        yield from ((NEW, name) for name in after)
        for header in self._headers:
            yield from ((TOUCHED, name) for name in written_names(header.rpartition("@@")[2].strip()))

    def used(self) -> Iterator[str]:
        """Yield what changed lines call or name as a class or constant and the file does not define."""
        if not is_code(self.file.path) or is_test(self.file.path):
            return
        own = {definition.name for definition in self._new.definitions} | _BUILTINS
        for line in (*self.added, *self.removed):
            yield from (name for name in _USED.findall(PROSE.sub(" ", line)) if name not in own)


def _innermost_visible(around: Iterable[Definition]) -> Definition | None:
    """Return the innermost of nested definitions that can be named from outside."""
    visible = [definition for definition in around if not definition.is_local]
    return visible[-1] if visible else None


def _hit(outline: FileOutline, lines: Iterable[int]) -> dict[Definition, float]:
    """Return the definitions that lines change, each in its head or in its body. A docstring is no part of the head here."""
    hit: dict[Definition, float] = {}
    texts = {n for first, last in outline.texts for n in range(first, last + 1)}
    for line in lines:
        if definition := _innermost_visible(outline.around(line, line)):
            is_head = definition.first <= line <= definition.head and line not in texts
            weight = REDEFINED if is_head else TOUCHED
            hit[definition] = max(hit.get(definition, 0), weight)
    return hit


def _keys(states: _States) -> Iterator[tuple[float, str]]:
    """Yield the words in quotation marks that are only in the removed or only in the added lines."""
    marks = "'\"" if is_code(states.file.path) else "'\"`"
    before, after = (
        dict.fromkeys(key for line in lines for mark, key in _KEY.findall(line) if mark in marks)
        for lines in (states.removed, states.added)
    )
    yield from ((TOUCHED, key) for key in before if key not in after)
    yield from ((NEW, key) for key in after if key not in before and not is_plain(key))


def _spellings(file: FileChange) -> Iterator[tuple[float, str]]:
    """Yield how other files may spell this one: by path, as a module, and in prose as a command: `poetry new` for a `new.py` in a
    directory `poetry`."""
    is_moved = file.old_path != file.path or file.document is None
    if is_test(file.path) and not is_moved:
        return
    weight = MOVED_FILE if is_moved and not file.is_new else CHANGED_FILE
    for path in dict.fromkeys(filter(None, (file.old_path, file.path))):
        pure = PurePosixPath(path)
        *above, parent = ("", *pure.parent.parts) if pure.parent.parts else ("", "")
        yield weight, f"{parent}/{pure.name}".lstrip("/")
        if is_code(path) and parent:
            yield weight, f"{parent}/{pure.stem}"
            yield weight, f"{parent}.{pure.stem}"
            yield from ((COMMAND, f"{directory} {pure.stem}") for directory in filter(None, above))
        if is_moved and not file.is_new:
            yield weight, pure.name
