"""The differences between two sessions: their setup, where their replies diverge, and their results."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from consilience.domain.events import CallCompleted
from consilience.domain.report import Report
from consilience.domain.sections import Block, Bullets, Diff, Item, Paragraph, Subheading, Table
from consilience.reporting.formatting import (
    count,
    duration,
    money,
    one_line,
    percent,
    printable,
    reply_text,
    seat_labels,
)
from consilience.reporting.record import SessionRecord, changed_settings, prompt_setting
from consilience.reporting.report_sections import Chapter, ReportDocument, describe_stop

MAX_SETTING_CHARS = 120
MAX_EXCERPT_CHARS = 240
_SIDES = {True: "yes", False: "no", None: "uncertain"}


@dataclass(frozen=True)
class ChangedSide:
    """An agent whose side on a question differs between two sessions: True for yes; None without a firm side."""

    agent: str
    question: str
    a: bool | None
    b: bool | None


@dataclass(frozen=True)
class SessionDiff:
    """Two sessions, compared by the keys of their calls. A reply is the same if its text is."""

    a: SessionRecord
    b: SessionRecord

    @cached_property
    def settings(self) -> dict[str, tuple[str, str]]:
        """Settings that differ, by name."""
        return changed_settings(self.a.state.started, self.b.state.started, self.a.text)

    @cached_property
    def templates(self) -> dict[str, tuple[str, str]]:
        """Texts of the prompt templates that differ, by name; none if the sessions use different protocols or sets of prompts."""
        a, b = self.a.state.started, self.b.state.started
        if a is None or b is None or (a.protocol, a.detail) != (b.protocol, b.detail):
            return {}
        names = [name for name in a.templates | b.templates if a.templates.get(name) != b.templates.get(name)]
        return {name: (_template(self.a, name), _template(self.b, name)) for name in names}

    @cached_property
    def replies(self) -> tuple[dict[str, str], dict[str, str]]:
        """Texts of the replies of either session, by key."""
        return _replies(self.a), _replies(self.b)

    @cached_property
    def same(self) -> list[str]:
        first, second = self.replies
        return [key for key in first if key in second and first[key] == second[key]]

    @cached_property
    def differing(self) -> list[str]:
        """In the order of `a`: the sessions diverge at the first of these."""
        first, second = self.replies
        return [key for key in first if key in second and first[key] != second[key]]

    @cached_property
    def only(self) -> tuple[list[str], list[str]]:
        """Calls that only one of the sessions made."""
        first, second = self.replies
        return [key for key in first if key not in second], [key for key in second if key not in first]

    @cached_property
    def results(self) -> dict[str, tuple[str, str]]:
        first, second = _results(self.a), _results(self.b)
        return {name: (first[name], second[name]) for name in first}

    @cached_property
    def changed_sides(self) -> list[ChangedSide]:
        """Agents whose side on a question that both sessions have is not the same in both."""
        first, second = _sides(self.a), _sides(self.b)
        return [
            ChangedSide(agent, question, before.get(agent), after.get(agent))
            for question, before in first.items()
            if (after := second.get(question)) is not None
            for agent in before | after
            if before.get(agent) != after.get(agent)
        ]

    def as_json(self) -> dict[str, object]:
        only_a, only_b = self.only
        return {
            "a": self.a.session,
            "b": self.b.session,
            "setup": {name: list(pair) for name, pair in self.settings.items()},
            "templates": {name: list(pair) for name, pair in self.templates.items()},
            "calls": {"same": len(self.same), "differing": self.differing, "only_a": only_a, "only_b": only_b},
            "outcome": {name: list(pair) for name, pair in self.results.items()},
            "sides": [asdict(change) for change in self.changed_sides],
            "answers": [side.report.answer if side.report else None for side in (self.a, self.b)],
        }


def _sides(record: SessionRecord) -> dict[str, dict[str, bool]]:
    """Return the final firm sides of agents by question."""
    names = seat_labels(record.state.agents)
    return {f.question: {names.get(id, id): side for id, (side, _) in f.sides.items()} for f in record.forecasts}


def _template(record: SessionRecord, name: str) -> str:
    started = record.state.started
    id = started.templates.get(name) if started else None
    return record.text(id) if id else ""


def _replies(record: SessionRecord) -> dict[str, str]:
    return {event.key: record.text(event.text) for event in record.events if isinstance(event, CallCompleted)}


def _results(record: SessionRecord) -> dict[str, str]:
    state, report = record.state, record.report
    score = state.checks[-1].check.score if state.checks else None
    level = report.confidence.level if report else None
    stop = f"{describe_stop(report, record.presentation)} ({report.stop_reason.value})" if report else "not finished"
    return {
        "stopped": stop,
        "steps": str(report.steps) if report else "–",
        "last score": "–" if score is None else f"{score:.2f}",
        "confidence": "–" if level is None else percent(level),
        "dissent": str(_count_dissent(report)) if report else "–",
        "calls made": str(state.made),
        "tokens": f"{state.tokens_in + state.tokens_out:,}",
        "cost": money(state.cost),
        "time": duration(state.seconds),
    }


def _count_dissent(report: Report) -> int:
    """Disagreements and open objections; one that is both counts once."""
    return sum(dissent.id is None for dissent in report.dissent) + sum(o.is_open for o in report.objections)


def diff_document(diff: SessionDiff) -> ReportDocument:
    a, b = diff.a.session, diff.b.session
    status = f"Different settings: {len(diff.settings)}" if diff.settings else "The same settings"
    chapters = [
        Chapter("Replies", (Bullets(items=tuple(_reply_items(diff))),)),
        Chapter("Results", (_pairs_table(diff, diff.results),)),
        Chapter("Answers", (_answers(diff),)),
    ]
    if diff.changed_sides:
        rows = tuple(
            (change.agent, change.question, _SIDES[change.a], _SIDES[change.b]) for change in diff.changed_sides
        )
        chapters.insert(2, Chapter("Who changed", (Table(heads=("agent", "question", a, b), rows=rows),)))
    if diff.templates:
        chapters.insert(0, Chapter("Prompt templates", tuple(_template_blocks(diff))))
    shown = {prompt_setting(name) for name in diff.templates}
    if settings := {name: pair for name, pair in diff.settings.items() if name not in shown}:
        chapters.insert(0, Chapter("Settings", (_pairs_table(diff, settings),)))
    return ReportDocument(f"`{a}` and `{b}`", status, tuple(chapters))


def _pairs_table(diff: SessionDiff, pairs: Mapping[str, tuple[str, str]]) -> Table:
    rows = [(name, one_line(x, MAX_SETTING_CHARS), one_line(y, MAX_SETTING_CHARS)) for name, (x, y) in pairs.items()]
    return Table(heads=("what", diff.a.session, diff.b.session), rows=tuple(rows))


def _reply_items(diff: SessionDiff) -> Iterator[Item]:
    yield Item(text=f"{count(len(diff.same), 'reply')} the same in both")
    if diff.differing:
        yield Item(text=f"{count(len(diff.differing), 'reply')} to the same call, worded differently")
    for record, keys in zip((diff.a, diff.b), diff.only, strict=True):
        if keys:
            replies = count(len(keys), "reply")
            yield Item(text=f"{replies} only in `{record.session}`, from {record.place(keys[0])} on")
    if diff.differing:
        key = diff.differing[0]
        yield Item(text=f"They diverge at `{key}`:")
        for record, replies_by_key in zip((diff.a, diff.b), diff.replies, strict=True):
            excerpt = one_line(reply_text(replies_by_key[key]), MAX_EXCERPT_CHARS)
            yield Item(text=f"`{record.session}`: {excerpt}", depth=1)


def _answers(diff: SessionDiff) -> Block:
    first, second = (side.report.answer if side.report else None for side in (diff.a, diff.b))
    if first is None and second is None:
        return Paragraph(text="Neither has an answer.")
    if first == second:
        return Paragraph(text="The same, word for word.")
    return _text_diff(diff, first or "", second or "")


def _template_blocks(diff: SessionDiff) -> Iterator[Block]:
    for name, (first, second) in diff.templates.items():
        yield Subheading(text=f"{name}.j2")
        sessions = (diff.a.session, diff.b.session)
        lines = difflib.unified_diff(_lines(first), _lines(second), *sessions, lineterm="")
        yield Diff(text="\n".join(lines))


def _text_diff(diff: SessionDiff, first: str, second: str) -> Diff:
    """Return both texts in one, with the changes marked."""
    sessions = (diff.a.session, diff.b.session)
    lines = difflib.unified_diff(_sentences(first), _sentences(second), *sessions, lineterm="", n=1_000_000)
    return Diff(text="\n".join(line for line in lines if not line.startswith("@@")))


def _lines(template: str) -> list[str]:
    return printable(template).split("\n")


def _sentences(answer: str) -> list[str]:
    """Sentences, so that one changed word does not mark a whole paragraph."""
    return [line for line in re.split(r"(?<=[.!?])\s+|\n+", printable(answer)) if line.strip()]
