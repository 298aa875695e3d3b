"""Gates: conditions that the artifacts of a review must meet before it may converge.

The built-in gates judge a written review in Markdown. They read its structure, because counting characters is easily deceived:
"address" contains "add", and `##` may stand in a code block.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from consilience.coordination.files import MAX_ARTIFACT_BYTES, open_folder
from consilience.domain.errors import UnknownName, UserError, WorkspaceError
from consilience.domain.messages import is_empty_remark

if TYPE_CHECKING:
    from markdown_it.token import Token

T = TypeVar("T")

GATE_ENTRY_POINTS = "consilience.gates"
MIN_SECTIONS = 3


@dataclass(frozen=True)
class Gate:
    """A condition, judged over the artifacts of all agents of one iteration."""

    description: str
    """What an artifact must have, as a noun phrase: `at least one concrete example`."""
    add: str
    """What an agent that missed the gate is asked to do, as a sentence."""
    missed_by: Callable[[Mapping[str, str]], Collection[str]]
    """Returns the agents, of the given texts by agent, that miss the gate."""

    def is_met(self, text: str) -> bool:
        """Return whether one artifact alone meets the gate."""
        return not self.missed_by({"": text})


def gate(description: str, *, add: str = "") -> Callable[[Callable[[str], bool]], Gate]:
    """Make a gate of a function that returns whether a text meets it. Every agent must meet it.

    `add` is what an agent that missed it is asked to do, by default to provide what `description` names.
    """

    def make(is_met: Callable[[str], bool]) -> Gate:
        return balance_gate(description, add=add)(
            lambda texts: [name for name, text in texts.items() if not is_met(text)]
        )

    return make


def balance_gate(
    description: str, *, add: str = ""
) -> Callable[[Callable[[Mapping[str, str]], Collection[str]]], Gate]:
    """Make a gate of a function over the texts of all agents, by name, that returns the agents that miss it."""
    return lambda missed_by: Gate(description, add or f"Provide {description}.", missed_by)


def load_gate(gate_id: str) -> Gate:
    """Return a built-in gate, the gate installed under this entry point, or the one at `module:attribute`. Raises `UnknownName`."""
    if gate_id in BUILT_IN_GATES:
        return BUILT_IN_GATES[gate_id]
    try:
        return load_plugin(gate_id, GATE_ENTRY_POINTS, Gate)
    except UnknownName as error:
        do = (
            error.do
            or f"Built in: {', '.join(BUILT_IN_GATES)}. A gate of your own is an entry point or module:function."
        )
        raise UnknownName(error.what, do=do) from error


# --- gates and hooks by name
#
# Names also stand in the files of a workspace, which every participant can write. So only an object that its author made for this
# purpose is taken, and no module is imported from within a workspace.


def load_plugin(name: str, group: str, kind: type[T]) -> T:
    """Return the object of type `kind` that is installed as entry point `name` of `group`, or is `module:attribute`.

    Raises `UnknownName` if there is none, if it cannot be imported, or if it is of another type.
    """
    from importlib.metadata import entry_points  # slow to import

    place = next((point.value for point in entry_points(group=group) if point.name == name), name)
    module, separator, attribute = place.partition(":")
    if not (
        separator and attribute and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])
    ):
        raise UnknownName(f"there is no {kind.__name__.lower()} {name!r:.80}")
    parts = module.split(".")
    if place == name and any(_lies_in_workspace(".".join(parts[:n])) for n in range(1, len(parts) + 1)):
        raise UnknownName(
            f"the module of {name!r:.80} lies in a workspace, where any participant can write it",
            do="Move it to a directory of your own.",
        )
    try:
        plugin: object = importlib.import_module(module)
        for part in attribute.split("."):
            plugin = getattr(plugin, part)
    except Exception as error:  # whatever the module does while it is imported
        raise UnknownName(
            f"{name!r:.80} cannot be imported: {type(error).__name__}: {error}",
            do="Check the spelling and that the module is on Python's path.",
        ) from error
    if not isinstance(plugin, kind):
        raise UnknownName(
            f"{name!r:.80} is not a {kind.__name__.lower()}",
            do=f"Decorate the function with consilience.coordination.{kind.__name__.lower()}.",
        )
    return plugin


def _lies_in_workspace(module: str) -> bool:
    if module in sys.modules:
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    files = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return any(
        (directory / "session_id.txt").is_file()
        for file in files
        if file
        for path in (Path(os.path.abspath(file)), Path(file).resolve())
        for directory in (path, *path.parents)
    )


# --- judging


def check_gate_in_artifact(gate_id: str, artifact_path: Path | str) -> bool:
    """Return whether the text in this file alone meets the gate; False for an unknown gate.

    Raises `WorkspaceError` unless it is a regular file that can be read.
    """
    path = Path(artifact_path)
    with open_folder(path.parent) as folder:
        data = folder.read(path.name, MAX_ARTIFACT_BYTES)
    if data is None:
        raise WorkspaceError("there is no such artifact", where=str(path))
    try:
        gate = load_gate(gate_id)
    except UnknownName:
        return False
    return not gate_misses(gate_id, gate, {"": data.decode("utf-8", "replace")})


def gate_misses(gate_id: str, gate: Gate, texts: Mapping[str, str]) -> list[str]:
    """Return the agents that miss a gate, in the order of `texts`. Raises `UserError` if a gate's function fails."""
    try:
        missed = set(gate.missed_by(texts))
    except Exception as error:
        raise UserError(
            f"the gate {gate_id!r} failed: {type(error).__name__}: {error}", do="Fix the gate or leave it out."
        ) from error
    return [name for name in texts if name in missed]


# --- Markdown, as far as gates need it

_QUOTED_LINE = re.compile(r"^[ \t]*>.*\n(?=[ \t]*[^\s>])", re.MULTILINE)
"""A line of a quotation before one without a mark, which Markdown would count to it; its author's own words often stand there."""
_NOT_READ = ("autolink", "emphasis", "entity", "html_inline", "image", "link", "reference")
"""What gates leave as it is written. Some of it takes time in proportion to the square of a text of brackets."""
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_PLACEHOLDERS = frozenset({"todo", "tbd", "tba", "fixme", "wip", "placeholder", "n/a"})


@dataclass
class _Section:
    """A heading with what follows it up to the next heading; the first has level 0 and no heading."""

    level: int = 0
    heading: str = ""
    prose: list[str] = field(default_factory=list)
    """Lines outside code, comments and quotations."""
    other: list[str] = field(default_factory=list)
    """Lines of code and quotations."""

    def has_text(self) -> bool:
        text = " ".join([*self.prose, *self.other])
        return _has_words(text) and not _is_placeholder(text)


@dataclass
class _Document:
    sections: list[_Section]
    has_code: bool = False
    """Whether a fence has words in it."""


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def _is_placeholder(text: str) -> bool:
    return text.strip(" .:*_-()[]#/").casefold() in _PLACEHOLDERS


_NO_EXAMPLE = re.compile(
    r"(?:there[ \t]+(?:is|are)[ \t]+)?(?:none|nothing|not?)(?:[ \t]+(?:an?|any|known|given|needed|available|applicable|"
    r"possible|found|yet|here|such|necessary|required|concrete|specific|examples?))*",
    re.IGNORECASE,
)


def _is_no_example(text: str) -> bool:
    """Whether a text says that there is no example, or stands for one to come."""
    words = text.strip(" \t.:*_-()[]!#/;,`")
    return _is_placeholder(text) or is_empty_remark(words) or _NO_EXAMPLE.fullmatch(words) is not None


@lru_cache(maxsize=2)  # several gates read the same text
def _parse(markdown: str) -> _Document:
    from markdown_it import MarkdownIt

    document = _Document([_Section()])
    quotations = 0
    is_heading = False
    parser = MarkdownIt("commonmark").disable([*_NOT_READ])
    for token in parser.parse(_QUOTED_LINE.sub(r"\g<0>\n", markdown)):
        section = document.sections[-1]
        if token.type == "heading_open" and token.level == 0:
            document.sections.append(_Section(int(token.tag[1])))
            is_heading = True
        elif token.type.startswith("blockquote"):
            quotations += token.nesting
        elif token.type in ("fence", "code_block"):
            lines = token.content.splitlines()
            section.other += lines
            document.has_code |= token.type == "fence" and any(_has_words(n) and not _is_no_example(n) for n in lines)
        elif token.type in ("inline", "html_block"):
            lines = _COMMENT.sub("", _without_inline_code(token)).splitlines()
            if is_heading:
                section.heading = " ".join(lines).strip()
                is_heading = False
            else:
                (section.other if quotations else section.prose).extend(lines)
    return document


def _without_inline_code(token: Token) -> str:
    """Return the lines of a paragraph, heading or block of HTML, with `…` in place of code."""
    parts = {"code_inline": " … ", "softbreak": "\n", "hardbreak": "\n"}
    return "".join(parts.get(part.type, part.content) for part in token.children or [token])


# --- the built-in gates

_EXAMPLE = re.compile(r"(?<!\bno )(?<!\bwithout )\bexamples?(?:[ \t]+\d{1,3})?[*_]{0,3}:[*_]{0,3}", re.IGNORECASE)
_RECOMMENDATION = re.compile(
    r"\b(?:should|must)(?:n['’]t)?\b"
    r"|(?<!\bnothing to )(?<!\bthe )(?<!\ba )\b(?:implement|fix|add|remove)\b",
    re.IGNORECASE,
)
_VERBS = (
    "adapt|adjust|allow|apply|assert|avoid|await|catch|choose|clarify|convert|create|declare|define|delete|describe|disable|"
    "distinguish|drop|enable|encode|ensure|escape|explain|expose|extend|extract|forbid|give|include|initiali[sz]e|inline|"
    "introduce|keep|make|merge|migrate|normali[sz]e|parse|pin|prefer|prevent|protect|provide|put|quote|raise|reduce|refactor|"
    "refuse|reject|rename|replace|require|restore|restrict|reuse|revert|rewrite|sanitize|separate|serialize|shorten|simplify|"
    "specify|split|store|throw|treat|truncate|unify|update|"
    r"use(?![ \t]+(?:of|cases?|is|was)\b)|validate|verify|write"
)
_VERBS_AND_NOUNS = (
    "bound|cache|call|cap|change|check|close|copy|cut|document|guard|handle|hash|hold|limit|link|list|lock|log|mark|move|name|"
    "open|order|pass|record|release|report|retry|return|run|set|show|sort|start|state|stop|test|turn|wait|warn|wrap"
)
_OBJECT = (
    r"(?:(?:an?|the|this|that|these|those|each|every|all|any|both|one|two|only|its?|their|them|with|for|before|after|instead|"
    r"from|into|once|whether|what|how|up|off|no)\b|[`\"'“‘(…])"
)
_IMPERATIVE = re.compile(
    r"(?:^[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?)?|[.!?:;,)—–][*_]{0,3}[ \t]+)[*_]{0,3}"
    r"(?:(?:please|always|never|do[ \t]+not|don['’]t|instead|then|also|first|next|finally),?[ \t]+)?"
    rf"(?:(?:{_VERBS})[ \t]+[\w`\"'“‘(…]|(?:{_VERBS_AND_NOUNS})[ \t]+{_OBJECT})",
    re.IGNORECASE,
)
"""A sentence or list item that begins with a verb and its object, as "Use of globals" and "Test coverage" do not."""


@gate(
    f"at least {MIN_SECTIONS} headed sections with text",
    add="Cover every key aspect, each in a section with a heading and text of its own.",
)
def comprehensive_coverage(text: str) -> bool:
    headed = [section for section in _parse(text).sections if _has_words(section.heading)]
    levels = [section.level for section in headed]
    if len(levels) > 1 and levels[0] < min(levels[1:]):
        headed = headed[1:]  # the title of the document
    # a section that is copied counts once
    return len({(s.heading, *s.prose, *s.other) for s in headed if s.has_text()}) >= MIN_SECTIONS


@gate(
    'at least one concrete example: a fenced code block with code in it, or "Example:" followed by text',
    add="Add a concrete example for each finding, in a fenced code block or after 'Example:'.",
)
def specific_examples(text: str) -> bool:
    document = _parse(text)
    return document.has_code or any(_has_labelled_example(section) for section in document.sections)


def _has_labelled_example(section: _Section) -> bool:
    is_awaited = False
    for line in (*section.prose, *section.other):
        for number, part in enumerate(_EXAMPLE.split(line)):
            is_awaited |= number > 0
            if is_awaited and _has_words(part):
                if not _is_no_example(part):
                    return True
                is_awaited = False
    return False


@gate(
    "at least one recommendation: a sentence with should or must, or one that begins with what is to be done (fix, add, use)",
    add="Say for each finding what is to be done: what to implement, fix, add, remove or replace.",
)
def actionable_recommendations(text: str) -> bool:
    return any(
        _RECOMMENDATION.search(line) or _IMPERATIVE.search(line)
        for section in _parse(text).sections
        if section.has_text()
        for line in (section.heading, *section.prose)
    )


BUILT_IN_GATES: Mapping[str, Gate] = {
    "comprehensive_coverage": comprehensive_coverage,
    "specific_examples": specific_examples,
    "actionable_recommendations": actionable_recommendations,
}
