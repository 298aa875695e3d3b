"""Figures, stop reasons and names as text, and texts of models made safe to print.

`demote_markdown` keeps the lists, tables and code of a model's Markdown inside a document. It contains what could break out:
high headings, HTML (an unclosed comment hides what follows), and unclosed code blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from html import escape
from itertools import groupby
from types import MappingProxyType

from consilience.domain.agents import Agent, point_of_view, seat_names
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.usage import UsageTotals
from consilience.domain.wording import count as count
from consilience.domain.wording import percent as percent
from consilience.domain.wording import plural as plural

STOP_PHRASES: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "the answer stopped changing",
    StopReason.SETTLED: "",
    StopReason.EXHAUSTED_STEPS: "reached the limit of rounds before it converged",
    StopReason.EXHAUSTED_BUDGET: "the budget ran out",
    StopReason.EXHAUSTED_TIME: "the time ran out",
    StopReason.STALLED: "positions stopped changing without agreement",
    StopReason.INCONCLUSIVE: "the run does not count as converged",
    StopReason.CANCELLED: "cancelled",
    StopReason.FAILED: "failed",
}

# Escape sequences can repaint a terminal, direction marks reorder text, lone surrogates cannot be encoded as UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
_BREAK = re.compile("\r\n|[\u2028\u2029]")

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r"^((?:[ \t]*(?:[-+*>]|\d{1,9}[.)]))*[ \t]*)(#{1,6})(?=\s|$)")
"""With the list and quotation marks that may precede it."""
_UNDERLINE = re.compile(r"[ \t>]*(?:=+|-+)[ \t]*")
_SPAN = r"(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
_TAG = r"\\.|<(?=[A-Za-z/!?])"
_NAME = r"(?<=[/.])_{1,2}[^\W_]\w{0,60}?_{1,2}(?!\w)|(?<!\w)_{1,2}[^\W_]\w{0,60}?_{1,2}(?=[/.]\w|\(|:\d)"
"""What Markdown would take for emphasis in the name of a file or function, such as `src/__init__.py`."""
_TAGS = re.compile(_TAG)
_MARKS_OUTSIDE_CODE = re.compile(f"{_SPAN}|{_TAG}|{_NAME}")

_MARKUP = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_+|(?<!_)_++(?!\w)|(?<!\S)#|~(?=~)|(?<=~)~|&(?=#?\w+;))")
CODE = re.compile(r"((?<!`)`(?!`)[^`]+`(?!`))")
"""A code span on one line."""
_ITEM = re.compile(r"^(\d{0,9})([-+=.)])(?=[-=\s]|$)")
"""What starts a list, a heading or a rule at the beginning of a line."""


def printable(text: str) -> str:
    """Return text without terminal control characters; line breaks and tabs stay."""
    return _CONTROL.sub("", _BREAK.sub("\n", text))


def escape_json(json: str) -> str:
    """Return equivalent JSON in which terminal control characters are escaped."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", json)


def one_line(text: str, max_chars: int = 0) -> str:
    """Return printable text on one line, cut with an ellipsis at `max_chars` (0: never)."""
    line = " ".join(printable(text).split())
    return f"{line[: max_chars - 1].rstrip()}…" if max_chars and len(line) > max_chars else line


def describe_output_tokens(tokens_out: int, tokens_thought: int) -> str:
    """Return `1,751 written`; with thinking tokens apart: `351 written, 1,400 thinking`."""
    thinking = f", {tokens_thought:,} thinking" if tokens_thought else ""
    return f"{tokens_out - tokens_thought:,} written{thinking}"


def format_range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def describe_calls(estimate: Estimate) -> str:
    """Return `1 call`, `7–15 calls`."""
    return f"{format_range(estimate.min, estimate.max)} {'call' if estimate.min == estimate.max == 1 else 'calls'}"


def duration(seconds: float) -> str:
    """Return `0.4 s`, `12 s`, `2 min 3 s`, `1 h 4 min`; an int has no decimals."""
    if seconds < 9.95 and not isinstance(seconds, int):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def time_range(low: float, high: float) -> str:
    """Return `about 2 min`, or `about 1 min to 4 min` if the bounds differ by more than the estimate's error, or `up to 4 min`."""
    low_words, high_words = duration(round(low, -1)), duration(max(round(high, -1), 10))
    if high < 1.5 * low or low_words == high_words:
        return f"about {high_words}"
    return f"about {low_words} to {high_words}" if low >= 10 else f"up to {high_words}"


def money(dollars: float | None) -> str:
    """Return US dollars, with four decimals for small amounts, more for smaller ones; `not known` for None."""
    if dollars is None:
        return "not known"
    if 0 < dollars < 0.0001:
        return f"${Decimal(f'{dollars:.1g}'):f}"
    if dollars == 0:
        return "$0"
    return f"${dollars:.2f}" if dollars >= 0.095 else f"${dollars:.4f}".rstrip("0")


def price(dollars: float | None) -> str:
    """Return `money` for use among other figures, which needs a noun for None."""
    return "price not known" if dollars is None else money(dollars)


def describe_cost(spent: UsageTotals) -> str:
    """Return what a session cost; if some prices are unknown, the known part and the number of other calls."""
    if 0 < spent.unpriced < spent.calls:
        return f"{money(spent.known_cost)}, and {count(spent.unpriced, 'call')} of unknown price"
    return price(spent.cost)


def size(count_of_bytes: int) -> str:
    """Return `98 MB`, `1.1 GB`."""
    return f"{count_of_bytes / 1e9:.1f} GB" if count_of_bytes >= 1e9 else f"{count_of_bytes / 1e6:.0f} MB"


def describe_agent(agent: Agent) -> str:
    """Return the perspective of an agent in a few words."""
    return one_line(point_of_view(agent))


def describe_agents(agents: Iterable[Agent]) -> str:
    """Return `4 agents`, `4 agents (people: Anna, Ben)`, `4 agents and 2 service seats (moderator, crystallizer)`."""
    agents = tuple(agents)
    service = [agent.id for agent in agents if not agent.voice]
    words = count(len(agents) - len(service), "agent")
    if people := [agent.person or agent.id for agent in agents if agent.is_person]:
        words += f" ({'person' if len(people) == 1 else 'people'}: {', '.join(people)})"
    return f"{words} and {count(len(service), 'service seat')} ({', '.join(service)})" if service else words


def seat_labels(agents: Iterable[Agent]) -> dict[str, str]:
    """Return labels by id: `L2N1 (analytical)`, or the id alone if the name equals it."""
    return {id: one_line(name) for id, name in seat_names(agents).items()}


def describe_awaited(keys: Iterable[str], people: Mapping[str, str]) -> str:
    """Return calls with the names of the people who are asked, if they are known: `answer/V2 from Ada, answer/V3`."""
    return ", ".join(f"{key} from {people[key]}" if key in people else key for key in keys)


def describe_place(key: str, agent: str = "", labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the step and phase in a key: `round 2 · synthesis` for `round-2/observe/L1N1`, `message 3` for `turn/D1/3`.

    `agent` is the id of the caller, which is named beside the place and is left out of it. `labels` are those of the protocol.
    """
    *path, last = key.split("/")
    places: list[str] = []
    for part in [*path, *([last] if last.isdigit() or not path else [])]:
        if part == agent:
            continue
        if not part.isdigit():
            name, _, number = part.rpartition("-") if _NUMBERED_PART.fullmatch(part) else (part, "", "")
            places.append(f"{describe_phase(name, labels)} {number}".rstrip())
        elif places and not places[-1][-1].isdigit():
            places[-1] += f" {part}"
    return " · ".join(places) or describe_phase(key.partition("/")[0], labels)


def describe_phase_of(key: str, phase: tuple[str, int], labels: Mapping[str, str]) -> str:
    """Return the phase of a call with its step, `round 2 · synthesis`; without steps its number, if above 1."""
    name, number = phase
    step = key.partition("/")[0]
    words = describe_phase(name, labels)
    if _NUMBERED_PART.fullmatch(step):
        return f"{describe_place(step, labels=labels)} · {words}"
    return f"{words} {number}" if number > 1 else words


_NUMBERED_PART = re.compile(r"[a-z_]+-\d+")


def describe_phase(name: str, labels: Mapping[str, str]) -> str:
    """Return the words of a protocol for a phase or a part of a key; that of a level of the tree (`lateral_L2`) names the level."""
    kind, _, level = name.rpartition("_L")
    if name not in labels and kind and level.isdigit():
        return f"{describe_phase(kind, labels)}, level {level}"
    return labels.get(name, name.replace("_", " "))


# --- texts of models


def demote_markdown(text: str) -> str:
    """Return `text` with headings two levels lower, HTML escaped, open code fences closed and names of files as written."""
    lines = printable(text).strip().split("\n")
    demoted: list[str] = []
    fence = ""
    for line, tags in zip(lines, _tags_by_line(lines), strict=True):
        if fence:
            demoted.append(line)
            if re.fullmatch(rf" {{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*", line):
                fence = ""
        elif opening := _FENCE.match(line):
            fence = opening[1]
            demoted.append(line.lstrip(" "))  # at the margin it is in no list, so its end is known
        else:
            if demoted and demoted[-1].strip() and _UNDERLINE.fullmatch(line):
                demoted.append("")
            lower = _HEADING.sub(lambda match: match[1] + "#" * min(6, len(match[2]) + 2), line)
            demoted.append(tags.sub(_shown_as_written, lower))
    return "\n".join([*demoted, fence] if fence else demoted)


def _shown_as_written(match: re.Match[str]) -> str:
    if match[0].startswith("_"):
        return match[0].replace("_", r"\_")
    return r"\<" if match[0] == "<" else match[0]


_MARKS = re.compile(
    r"(`+)(?P<code>.+?)(?<!`)\1(?!`)"  # code is kept as it is, `__init__` too
    r"|\*\*(?P<strong>\S|\S.*?\S)\*\*"
    r"|(?<![\w*])\*(?P<emphasis>[^\s*]|[^\s*][^*\n]*?[^\s*])\*(?![\w*])"
)


def plain_text(text: str) -> str:
    """Return an agent's Markdown without marks of headings, quotations, emphasis and code, for a place that renders none."""
    lines = (re.sub(r"^\s{0,3}(#{1,6}|>)\s+", "", line) for line in text.split("\n") if not _FENCE.match(line))
    return _MARKS.sub(_unmarked, "\n".join(lines))


def _unmarked(match: re.Match[str]) -> str:
    return match["code"] or _MARKS.sub(_unmarked, match["strong"] or match["emphasis"])


def escape_markdown(text: str) -> str:
    """Return text on one line with Markdown escaped, also at the beginning of the line."""
    return _ITEM.sub(r"\1\\\2", escape_inline(text))


def escape_inline(text: str) -> str:
    """Return text on one line with Markdown escaped, for use inside a line. Code spans stay, unless a pipe in one would end a
    table cell."""
    parts = CODE.split(one_line(text))
    return "".join(part if n % 2 and "|" not in part else _MARKUP.sub(_escaped, part) for n, part in enumerate(parts))


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"\\{char}" for char in match[0])


def strip_invalid_xml(text: str) -> str:
    """Return printable text without characters that XML and HTML forbid."""
    return _NOT_XML.sub("\ufffd", printable(text))


def escape_xml(text: str) -> str:
    """Return text as character data of XML or HTML."""
    return escape(strip_invalid_xml(text))


def _tags_by_line(lines: Sequence[str]) -> Iterator[re.Pattern[str]]:
    """Yield for each line what to escape in it. Code within a line never reaches beyond its paragraph."""
    for _, paragraph in groupby(lines, key=lambda line: bool(line.strip())):
        together = list(paragraph)
        is_closed = all(_FENCE.match(line) or _has_closed_code(line) for line in together)
        yield from [_MARKS_OUTSIDE_CODE if is_closed else _TAGS] * len(together)


def _has_closed_code(line: str) -> bool:
    """Whether all code in a line ends in it, whatever the lines around it.

    A pipe in code may end a table cell, and with it the code.
    """
    if "`" not in line:
        return True
    spans = [match[0] for match in re.finditer(_SPAN, line)]
    return "\\`" not in line and "`" not in re.sub(_SPAN, "", line) and not any("|" in span for span in spans)


def reply_text(text: str) -> str:
    """Return the free text of a reply: the `text` of a typed one, without it its fields in words, else the whole reply.

    Invalid JSON is described; its raw text is in the report's JSON and in the transcript of the page.
    """
    body = text.strip().removeprefix("```json").removeprefix("```").strip()
    if not body.startswith(("{", "[")):
        return text
    try:
        value, _ = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError):
        cut_match = _CUT_TEXT.search(body)
        if cut_match is None:
            return (
                f"(a reply of {count(len(text), 'character')} in a form that could not be read)"
                if _is_json(body)
                else text
            )
        return f"{_unescaped(cut_match[1])} [cut off]"
    if isinstance(value, dict):
        free_text = value.get("text")
        return free_text if isinstance(free_text, str) else _fields(value)
    return _fields({"": value}) if value and not isinstance(value, str) and not _is_reference(value) else text


_CUT_TEXT = re.compile(r'"text"\s*:\s*"((?:[^"\\]|\\.)+)"?[\s}]*$', re.DOTALL)
"""The free text of an object that was cut in or after it."""


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


def _is_json(body: str) -> bool:
    return re.match(r'\{\s*"[^"]*"\s*:|\[\s*[{\["]', body) is not None


def _is_reference(value: object) -> bool:
    """Whether a list is a reference in a text, such as `[1]`, not a reply."""
    return isinstance(value, list) and not any(isinstance(entry, dict) for entry in value)


def _fields(value: Mapping[str, object]) -> str:
    """Return `position: yes · reasons: a; b`."""
    return " · ".join(
        f"{name}: {words}" if name else words for name, inner in value.items() if (words := _in_words(inner))
    )


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {words}" for name, inner in value.items() if (words := _in_words(inner)))
    if isinstance(value, list):
        return "; ".join(filter(None, map(_in_words, value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
