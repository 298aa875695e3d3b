"""What differs between two sessions: how they were set up, where they part, and what they came to."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from consilience.domain.events import AnyEvent, CallCompleted
from consilience.domain.report import Report
from consilience.domain.sections import Presentation
from consilience.reporting.fork_tree import Text, setup
from consilience.reporting.formatting import (
    count,
    describe_place,
    duration,
    escape_markdown,
    money,
    one_line,
    printable,
    reply_text,
)
from consilience.reporting.markdown import AnyReport
from consilience.reporting.record import presentation_of
from consilience.reporting.report_sections import describe_stop
from consilience.reporting.session_state import SessionState, fold_events

_LONGEST = 120


@dataclass(frozen=True)
class Side:
    """One of two sessions, read back."""

    session: str
    course: SessionState
    report: Report | None
    presentation: Presentation
    said: Mapping[str, str]
    """Texts of replies by key."""


@dataclass(frozen=True)
class Changes:
    """`setup` maps what was set to the two values; `parted` is the first call, in the order of `a`, that has another reply."""

    a: Side
    b: Side
    setup: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    same: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def parted(self) -> str | None:
        return self.differing[0] if self.differing else None

    def as_json(self) -> dict[str, object]:
        return {
            "a": self.a.session,
            "b": self.b.session,
            "setup": {name: list(pair) for name, pair in self.setup.items()},
            "calls": {
                "same": len(self.same),
                "differing": list(self.differing),
                "only_a": list(self.only_a),
                "only_b": list(self.only_b),
            },
            "outcome": {name: list(pair) for name, pair in _outcome(self.a, self.b).items()},
            "answers": [side.report.answer if side.report else None for side in (self.a, self.b)],
        }


def side(session: str, events: Sequence[AnyEvent], text: Text) -> Side:
    """A session as one side. Reads the texts of its replies."""
    course = fold_events(events)
    report = AnyReport.model_validate_json(text(course.finished.report)) if course.finished else None
    said = {event.key: text(event.text) for event in events if isinstance(event, CallCompleted)}
    return Side(session, course, report, presentation_of(session, course, events, text), said)


def changes(a: Side, b: Side, text: Text) -> Changes:
    """Compare by key: a reply is the same when its words are."""
    both = [key for key in a.said if key in b.said]
    return Changes(
        a,
        b,
        setup=setup(a.course.started, b.course.started, text),
        same=tuple(key for key in both if a.said[key] == b.said[key]),
        differing=tuple(key for key in both if a.said[key] != b.said[key]),
        only_a=tuple(key for key in a.said if key not in b.said),
        only_b=tuple(key for key in b.said if key not in a.said),
    )


def _outcome(a: Side, b: Side) -> dict[str, tuple[str, str]]:
    return {name: (first, second) for (name, first), (_, second) in zip(_came_to(a), _came_to(b), strict=True)}


def _came_to(one: Side) -> list[tuple[str, str]]:
    course, report = one.course, one.report
    score = course.checks[-1].check.score if course.checks else None
    level = report.confidence.level if report else None
    return [
        (
            "stopped",
            f"{describe_stop(report, one.presentation)} ({report.stop_reason.value})" if report else "not finished",
        ),
        ("steps", str(report.steps) if report else "–"),
        ("last score", "–" if score is None else f"{score:.2f}"),
        ("confidence", "–" if level is None else f"{level:.0%}".replace("%", " %")),
        ("dissent", str(_against(report)) if report else "–"),
        ("calls made", str(course.made)),
        ("tokens", f"{course.tokens_in + course.tokens_out:,}"),
        ("money", money(course.cost)),
        ("time", duration(course.seconds)),
    ]


def _against(report: Report) -> int:
    """Who is against the answer, and open objections; one that is both counts once."""
    return sum(dissent.id is None for dissent in report.dissent) + sum(one.is_open for one in report.objections)


def changes_markdown(found: Changes) -> str:
    """For readers: settings, where they part, outcome, the answers' lines that differ."""
    a, b = found.a.session, found.b.session
    parts = [f"# `{a}` and `{b}`"]
    if found.setup:
        rows = [
            f"| {escape_markdown(name)} | {escape_markdown(one_line(x, _LONGEST))} | {escape_markdown(one_line(y, _LONGEST))} |"
            for name, (x, y) in found.setup.items()
        ]
        parts.append(f"## Set differently\n\n| what | `{a}` | `{b}` |\n|---|---|---|\n" + "\n".join(rows))
    else:
        parts.append("Both were set alike.")
    parts.append("## What was said\n\n" + "\n".join(_said(found)))
    rows = [
        f"| {name} | {escape_markdown(x)} | {escape_markdown(y)} |"
        for name, (x, y) in _outcome(found.a, found.b).items()
    ]
    parts.append(f"## Results\n\n| | `{a}` | `{b}` |\n|---|---|---|\n" + "\n".join(rows))
    parts.append("## Answers\n\n" + _answers(found))
    return "\n\n".join(parts) + "\n"


def _said(found: Changes) -> list[str]:
    lines = [f"- {count(len(found.same), 'reply', 'replies')} the same in both"]
    if found.differing:
        lines.append(f"- {count(len(found.differing), 'reply', 'replies')} to the same call, in other words")
    for name, keys in ((found.a.session, found.only_a), (found.b.session, found.only_b)):
        if keys:
            lines.append(
                f"- {count(len(keys), 'reply', 'replies')} only in `{name}`, from {escape_markdown(describe_place(keys[0]))} on"
            )
    if found.parted is not None:
        lines.append(f"- They part at `{found.parted}`:")
        for side in (found.a, found.b):
            lines.append(
                f"  - `{side.session}`: {escape_markdown(one_line(reply_text(side.said[found.parted]), 2 * _LONGEST))}"
            )
    return lines


def _answers(found: Changes) -> str:
    first, second = (side.report.answer if side.report else None for side in (found.a, found.b))
    if first is None and second is None:
        return "Neither has one."
    if first == second:
        return "The same, word for word."
    lines = difflib.unified_diff(
        _lines(first), _lines(second), found.a.session, found.b.session, lineterm="", n=1_000_000
    )
    kept = [line for line in lines if not line.startswith("@@")]
    fence = "`" * (max((len(line) - len(line.lstrip("+- `")) for line in kept), default=0) + 3)
    return f"{fence}diff\n" + "\n".join(kept) + f"\n{fence}"


def _lines(answer: str | None) -> list[str]:
    """Sentences, so that a changed word does not mark a whole paragraph."""
    import re

    return [line for line in re.split(r"(?<=[.!?])\s+|\n+", printable(answer or "")) if line.strip()]
