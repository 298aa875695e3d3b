"""How figures and endings are said, in words a reader needs no manual for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from consilience.domain.agents import Agent
from consilience.domain.outcome import Estimate, StopReason

STOPPED: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "stable, nothing moved any more",
    StopReason.SETTLED: "it ran its course",
    StopReason.EXHAUSTED_STEPS: "ran out of rounds before it was stable",
    StopReason.EXHAUSTED_BUDGET: "the budget ran out",
    StopReason.EXHAUSTED_TIME: "the time ran out",
    StopReason.STALLED: "nobody moves any more, and they still differ",
    StopReason.INCONCLUSIVE: "no question came up that could be decided",
    StopReason.CANCELLED: "it was cancelled",
    StopReason.FAILED: "it failed",
}

_STOPPED_OTHERWISE: Mapping[str, Mapping[StopReason, str]] = {
    "pass": {
        StopReason.CONVERGED: "the text is good enough",
        StopReason.EXHAUSTED_STEPS: "ran out of passes before the text was good enough",
        StopReason.STALLED: "nothing more was criticised, and the text is not good enough",
        StopReason.INCONCLUSIVE: "nobody could say how good the text is",
    },
    "iteration": {
        StopReason.CONVERGED: "everybody is satisfied, and no critical flag stands",
        StopReason.EXHAUSTED_STEPS: "ran out of iterations before everybody was satisfied",
    },
}
"""Where the steps of a session are no rounds, by what they are called."""

_LONGEST_VIEW = 40
# Escape sequences could repaint a reader's terminal, marks of direction reorder what is read, and half a character pair,
# which JSON can hold, cannot be written at all.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAK = re.compile("\r\n|[\u2028\u2029]")


def in_passes(settings: Mapping[str, object]) -> bool:
    """Whether a session goes over one text again and again, in passes rather than in rounds."""
    return step_word(settings) == "pass"


def step_word(settings: Mapping[str, object]) -> str:
    """What a step of a session with these settings is called: a pass, an iteration, a round."""
    return next((word for word in _STOPPED_OTHERWISE if most_steps(word) in settings), "round")


def most_steps(word: str) -> str:
    """The setting that bounds steps so called: `max_passes`."""
    return f"max_{several(word)}"


def several(word: str) -> str:
    """`passes`, `rounds`."""
    return f"{word}es" if word.endswith("s") else f"{word}s"


def stopped(reason: StopReason, settings: Mapping[str, object]) -> str:
    """How a session with these settings ended."""
    return _STOPPED_OTHERWISE.get(step_word(settings), {}).get(reason, STOPPED[reason])


def printable(text: str) -> str:
    """Text of a model or file without characters that steer a terminal; line breaks and tabs stay."""
    return _CONTROL.sub("", _BREAK.sub("\n", text))


def escaped(json: str) -> str:
    """JSON whose strings hold no raw character that steers a terminal; the same to every reader of JSON."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def one_line(text: str, most: int = 0) -> str:
    """Printable, on one line, cut at `most` characters with an ellipsis (0: never)."""
    line = " ".join(printable(text).split())
    return f"{line[: most - 1].rstrip()}…" if most and len(line) > most else line


def count(n: int, noun: str, plural: str = "") -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def calls_words(estimate: Estimate) -> str:
    """`1 call`, `7–15 calls`."""
    return f"{span(estimate.min, estimate.max)} {'call' if estimate.min == estimate.max == 1 else 'calls'}"


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


def share(part: float) -> str:
    return f"{part:.0%}".replace("%", " %")


def view(agent: Agent) -> str:
    """What an agent stands for, in a few words: its persona, a short perspective, else its role."""
    if agent.persona:
        return one_line(agent.persona, _LONGEST_VIEW)
    if agent.perspective:
        return one_line(agent.perspective, _LONGEST_VIEW)
    return agent.role


def seats(agents: Iterable[Agent]) -> dict[str, str]:
    """`L2N1 (analytical)` by id; the id alone where it says the same."""
    return {agent.id: agent.id if view(agent) == agent.id else f"{agent.id} ({view(agent)})" for agent in agents}


def place(key: str) -> str:
    """Where in a run a call stands, from its key: `round 2 · lateral` for `round-2/lateral/L2N1`, `finalize 1` for `finalize/1`."""
    parts = key.split("/")
    if len(parts) == 2 and parts[1].isdigit():
        return f"{parts[0]} {parts[1]}"
    named = [re.sub(r"^([a-z]+)-(\d+)$", r"\1 \2", part) for part in parts]
    return " · ".join(named[:-1] if len(named) > 1 else named)
