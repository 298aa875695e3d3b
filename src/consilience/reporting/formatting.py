"""Words for readers: figures, endings and names; and texts of models made safe to print.

A model's Markdown keeps its lists, tables and code as a part of ours (`contained`). What could break out of its place is a heading
as high as ours, HTML (a comment without end hides what follows), and a code block without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from consilience.domain.agents import Agent, point_of_view, seat_names
from consilience.domain.outcome import Estimate, StopReason

STOP_PHRASES: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "the answer stopped changing",
    StopReason.SETTLED: "finished",
    StopReason.EXHAUSTED_STEPS: "reached the limit of rounds before the answer was stable",
    StopReason.EXHAUSTED_BUDGET: "the budget ran out",
    StopReason.EXHAUSTED_TIME: "the time ran out",
    StopReason.STALLED: "positions stopped changing without agreement",
    StopReason.INCONCLUSIVE: "the run does not count as converged",
    StopReason.CANCELLED: "cancelled",
    StopReason.FAILED: "failed",
}

# Escape sequences could repaint a reader's terminal, marks of direction reorder what is read, and half a character pair,
# which JSON can hold, cannot be written at all.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAK = re.compile("\r\n|[\u2028\u2029]")

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r"^((?:[ \t]*(?:[-+*>]|\d{1,9}[.)]))*[ \t]*)(#{1,6})(?=\s|$)")
"""With the marks of lists and quotations in which it may stand."""
_UNDERLINE = re.compile(r"[ \t>]*(?:=+|-+)[ \t]*")
_SPAN = r"(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
_TAG = r"\\.|<(?=[A-Za-z/!?])"
_TAGS = re.compile(_TAG)
_TAGS_BESIDE_CODE = re.compile(f"{_SPAN}|{_TAG}")

_MARKUP = re.compile(r"([\\`*\[\]<>|#]|(?<!\w)_|_(?!\w)|~(?=~)|(?<=~)~|&(?=#?\w+;))")
_ITEM = re.compile(r"^(\d{0,9})([-+=.)])(?=[-=\s]|$)")
"""What makes a list, a heading or a rule where it begins a line."""


def plural(word: str) -> str:
    """`passes`, `rounds`."""
    return f"{word}es" if word.endswith("s") else f"{word}s"


def printable(text: str) -> str:
    """Text of a model or file without characters that steer a terminal; line breaks and tabs stay."""
    return _CONTROL.sub("", _BREAK.sub("\n", text))


def escape_json(json: str) -> str:
    """JSON whose strings hold no raw character that steers a terminal; the same to every reader of JSON."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def one_line(text: str, most: int = 0) -> str:
    """Printable, on one line, cut at `most` characters with an ellipsis (0: never)."""
    line = " ".join(printable(text).split())
    return f"{line[: most - 1].rstrip()}…" if most and len(line) > most else line


def describe_output_tokens(tokens_out: int, tokens_thought: int) -> str:
    """`1,751 written`, with the tokens that went into thinking apart: `351 written, 1,400 thinking`."""
    thinking = f", {tokens_thought:,} thinking" if tokens_thought else ""
    return f"{tokens_out - tokens_thought:,} written{thinking}"


def count(n: int, noun: str, plural: str = "") -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def format_range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def describe_calls(estimate: Estimate) -> str:
    """`1 call`, `7–15 calls`."""
    return f"{format_range(estimate.min, estimate.max)} {'call' if estimate.min == estimate.max == 1 else 'calls'}"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `2 min 3 s`, `1 h 4 min`; whole seconds where whole ones are given."""
    if seconds < 9.95 and not isinstance(seconds, int):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def money(dollars: float | None) -> str:
    """US dollars, with enough digits to be told from nothing; None is a price nobody knows."""
    if dollars is None:
        return "not known"
    if dollars == 0:
        return "$0"
    return f"${dollars:.2f}" if dollars >= 0.095 else f"${dollars:.4f}".rstrip("0")


def size(count_of_bytes: int) -> str:
    """`98 MB`, `1.1 GB`."""
    return f"{count_of_bytes / 1e9:.1f} GB" if count_of_bytes >= 1e9 else f"{count_of_bytes / 1e6:.0f} MB"


def percent(part: float) -> str:
    return f"{part:.0%}".replace("%", " %")


def describe_agent(agent: Agent) -> str:
    """What an agent stands for, in a few words."""
    return one_line(point_of_view(agent))


def describe_agents(agents: Iterable[Agent]) -> str:
    """`4 agents`, `4 agents and 2 service seats (moderator, crystallizer)`."""
    agents = tuple(agents)
    service = [agent.id for agent in agents if not agent.voice]
    words = count(len(agents) - len(service), "agent")
    return f"{words} and {count(len(service), 'service seat')} ({', '.join(service)})" if service else words


def seat_labels(agents: Iterable[Agent]) -> dict[str, str]:
    """`L2N1 (analytical)` by id; the id alone where it says the same."""
    return {id: one_line(name) for id, name in seat_names(agents).items()}


def describe_place(key: str) -> str:
    """Where in a run a call stands, from its key: `round 2 · lateral` for `round-2/lateral/L2N1`, `finalize 1` for `finalize/1`."""
    parts = key.split("/")
    if len(parts) == 2 and parts[1].isdigit():
        return f"{parts[0]} {parts[1]}"
    named = [re.sub(r"^([a-z]+)-(\d+)$", r"\1 \2", part) for part in parts]
    return " · ".join(named[:-1] if len(named) > 1 else named)


# --- texts of models


def demote_markdown(text: str) -> str:
    """`text` with its headings two levels lower, and shown rather than obeyed where it is HTML; what it opens it closes."""
    lines = printable(text).strip().split("\n")
    tags = _TAGS_BESIDE_CODE if all(_FENCE.match(line) or _clear(line) for line in lines) else _TAGS
    made: list[str] = []
    fence = ""
    for line in lines:
        if fence:
            made.append(line)
            if re.fullmatch(rf" {{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*", line):
                fence = ""
        elif opened := _FENCE.match(line):
            fence = opened[1]
            made.append(line.lstrip(" "))  # at the margin no list can hold it, so it is known where it ends
        else:
            if made and made[-1].strip() and _UNDERLINE.fullmatch(line):
                made.append("")
            lower = _HEADING.sub(lambda found: found[1] + "#" * min(6, len(found[2]) + 2), line)
            made.append(tags.sub(lambda found: r"\<" if found[0] == "<" else found[0], lower))
    return "\n".join([*made, fence] if fence else made)


def escape_markdown(text: str) -> str:
    """One line of somebody's text, with what Markdown would read as markup escaped, also at the beginning of a line."""
    return _ITEM.sub(r"\1\\\2", escape_inline(text))


def escape_inline(text: str) -> str:
    """The same where it does not begin a line."""
    return _MARKUP.sub(r"\\\1", one_line(text))


def _clear(line: str) -> bool:
    """Whether every backtick of the line belongs to code that ends in it, however the lines around it are read.

    A pipe in code may end a cell of a table, and the code with it.
    """
    if "`" not in line:
        return True
    spans = [found[0] for found in re.finditer(_SPAN, line)]
    return "\\`" not in line and "`" not in re.sub(_SPAN, "", line) and not any("|" in span for span in spans)


def reply_text(text: str) -> str:
    """What a reply says: the `text` of a typed one, its fields in words where it has none, else all of it.

    JSON that cannot be read is described, never shown: its raw text is in the report's JSON and in the transcript of the page.
    """
    body = text.strip().removeprefix("```json").removeprefix("```").strip()
    if not body.startswith(("{", "[")):
        return text
    try:
        value, _ = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError):
        cut = _CUT_TEXT.search(body)
        if cut is None:
            return (
                f"(a reply of {count(len(text), 'character')} in a form that could not be read)"
                if _is_json(body)
                else text
            )
        return f"{_unescaped(cut[1])} [cut off]"
    if isinstance(value, dict):
        found = value.get("text")
        return found if isinstance(found, str) else _fields(value)
    return _fields({"": value}) if value and not isinstance(value, str) and not _is_marked(value) else text


_CUT_TEXT = re.compile(r'"text"\s*:\s*"((?:[^"\\]|\\.)+)"?[\s}]*$', re.DOTALL)
"""The free text of an object that was cut off in it, or behind it."""


def _unescaped(said: str) -> str:
    try:
        return str(json.loads(f'"{said}"', strict=False))
    except ValueError:
        return said


def _is_json(body: str) -> bool:
    return re.match(r'\{\s*"[^"]*"\s*:|\[\s*[{\["]', body) is not None


def _is_marked(value: object) -> bool:
    """Whether a list is a mark in a text such as `[1]`, and no reply."""
    return isinstance(value, list) and not any(isinstance(entry, dict) for entry in value)


def _fields(value: Mapping[str, object]) -> str:
    """`position: yes · reasons: a; b`."""
    return " · ".join(
        f"{name}: {said}" if name else said for name, inner in value.items() if (said := _in_words(inner))
    )


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {said}" for name, inner in value.items() if (said := _in_words(inner)))
    if isinstance(value, list):
        return "; ".join(filter(None, map(_in_words, value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
