"""A report as a document: sections that follow from the header common to all protocols, and the protocol's own.

A session without a report and the comparison of two sessions are documents too. Renderers know nothing else.

Parts are in a fixed order: the answer, its basis, differences and their outcome, what would overturn it, trust. Figures are one
line. Folded sections, such as all figures, open on demand in HTML and are views elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from consilience.domain.agents import author_of, voices
from consilience.domain.outcome import CUT_SHORT, FailureKind, StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.report import FailedCall, Objection, ObjectionFate, Report, labels_of
from consilience.domain.sections import (
    FIGURES,
    WORDS,
    AgentText,
    Block,
    Bullets,
    Item,
    KeyFigures,
    Paragraph,
    Presentation,
    ReportPart,
    Section,
    Subheading,
)
from consilience.reporting.across import across_blocks, requests_blocks
from consilience.reporting.figures import further_calls, key_figures, timed_out
from consilience.reporting.formatting import (
    STOP_PHRASES,
    count,
    describe_cost,
    describe_output_tokens,
    describe_place,
    duration,
    escape_markdown,
    one_line,
    plural,
    seat_labels,
)
from consilience.reporting.limits import limit_words, use_words, way_on
from consilience.reporting.trust import (
    MAX_REASON_CHARS,
    Names,
    authors,
    cut_mark,
    documents_blocks,
    failed_items,
    glossary_blocks,
    has_one_voice,
    trust_items,
)

MAX_TITLE_CHARS = 160
MAX_TASK_CHARS = 2_000

HEADINGS: Mapping[ReportPart, str] = {
    "answer": "Answer",
    "basis": "Basis",
    "differences": "Where they differed",
    "unknown": "What would overturn it",
    "trust": "How far to trust it",
    "figures": "Figures",
}

FATES: tuple[ObjectionFate, ...] = ("stands", "unanswered", "refuted", "yielded")
"""The order in which objections are listed, open ones first."""


@dataclass(frozen=True)
class Chapter:
    """Blocks under a heading."""

    heading: str
    """Plain text; "" if the blocks follow what is above them."""
    blocks: tuple[Block, ...]
    part: ReportPart | None = None
    """Which part of a report it is; None in another document."""

    @property
    def anchor(self) -> str:
        """The id of the heading on a page."""
        return "part-" + "-".join(re.findall(r"\w+", self.heading.lower()))


@dataclass(frozen=True)
class ReportDocument:
    """A document in the order of its fields. Texts are plain, on one line, with code spans."""

    title: str | None
    """None for a session that never began."""
    status: str
    """Set in bold."""
    chapters: tuple[Chapter, ...] = ()
    footer: str = ""
    """Below a rule: figures."""
    commands: str = ""
    """Markdown for whoever ran the session: commands that lead on. Not on an HTML page, which is sent to others."""
    answer_stands: bool = False
    """Whether nothing takes the answer's basis away, so that a page may print it before the status."""
    task: str = ""
    """Below the title: the task, if the title does not hold all of it."""
    folded: tuple[Section, ...] = ()
    """Sections that open on demand in HTML and are views elsewhere."""


def report_document(report: Report, presentation: Presentation, *, stored: bool = True) -> ReportDocument:
    """Return a report as a document. `stored`: the session is in a journal, and the footer names the commands that read it."""
    sections = _sections(report, presentation)
    headings = HEADINGS if report.answer is not None else {**HEADINGS, "answer": "No answer"}
    parts = groupby((section for section in sections if not section.folded), lambda section: section.part)
    folded = tuple(section for section in sections if section.folded)
    return ReportDocument(
        title=one_line(report.task, MAX_TITLE_CHARS),
        status=headline(report, presentation),
        chapters=tuple(Chapter(headings[part], tuple(_part_blocks(sections)), part) for part, sections in parts),
        footer=figures_line(report, presentation),
        commands=_commands(report, presentation, folded) if stored and report.session else "",
        folded=folded,
        answer_stands=_answer_stands(report),
        task=task_below_title(report.task),
    )


def task_below_title(task: str) -> str:
    """Return a task on one line if a title cannot hold it."""
    return one_line(task, MAX_TASK_CHARS) if len(task) > MAX_TITLE_CHARS else ""


def _commands(report: Report, presentation: Presentation, folded: Sequence[Section]) -> str:
    words = [section.name for section in folded if section.name == WORDS]
    others = [section.name for section in reversed(folded) if section.name not in (FIGURES, WORDS)]
    others += [*(view.name for view in presentation.views if not view.is_empty), *words]
    ways = (
        "" if report.stop_reason is StopReason.FAILED else f"`consilience replay {report.session}`",
        f'new fact: `consilience tell {report.session} "…"`' if presentation.can_tell else "",
        f"more: `consilience show {report.session} --view {FIGURES}`",
        f"other views: {escape_markdown(', '.join(others))}" if others else "",
    )
    return "\n\n".join(filter(None, (" · ".join(filter(None, ways)), way_on(report, presentation))))


def _answer_stands(report: Report) -> bool:
    """Whether enough agents replied, and the answer is whole and more than what existed when a limit cut in."""
    return not (
        report.answer is None
        or report.answer_cut
        or not report.quorum_met
        or is_single_reply(report)
        or report.stop_reason in (*CUT_SHORT, StopReason.FAILED)
    )


def _part_blocks(sections: Iterable[Section]) -> Iterator[Block]:
    for section in sections:
        if section.heading:
            yield Subheading(text=section.heading)
        yield from section.blocks


def folded_sections(report: Report, presentation: Presentation) -> list[Section]:
    """Return the sections shown on demand, each with a heading; the last one has the figures."""
    return [section for section in _sections(report, presentation) if section.folded]


def _sections(report: Report, presentation: Presentation) -> list[Section]:
    """Return sections with content, ordered by part. A protocol's section replaces the common one of the same name.

    Those that it lists before a replacement, in the same part, stand before it. In the part on trust, sections without a
    heading come first, or they would seem to belong to the section with a heading before them.
    """
    sections = list(presentation.sections)
    replaced = {section.name for section in sections}
    ordered: list[Section] = []
    for common in _common(report, presentation):
        position = next((n for n, section in enumerate(sections) if section.name == common.name), None)
        if position is not None:
            ordered += [section for section in sections[: position + 1] if section.part == sections[position].part]
            sections = [section for section in sections if section not in ordered]
        elif common.name not in replaced:
            ordered.append(common)
    order = {part: n for n, part in enumerate(get_args(ReportPart))}
    return sorted(
        (section for section in (*ordered, *sections) if section.blocks),
        key=lambda section: (order[section.part], section.part == "trust" and bool(section.heading)),
    )


def headline(report: Report, presentation: Presentation) -> str:
    """Return how the run stopped, why it does not count as converged, and what is missing: agents, replies, a quorum."""
    words = _ending(report, presentation)
    if report.stop_reason is StopReason.FAILED:
        services = {agent.id for agent in report.agents if not agent.voice}
        is_service = bool(report.failed_calls) and services.issuperset(call.agent for call in report.failed_calls)
        few = not report.quorum_met and not is_service
        words = "too few agents replied" if few else "nothing could be concluded"
    elif report.limit_reached:
        words += use_words(report, report.limit_reached)
    unmet = (one_line(reason, MAX_REASON_CHARS) for reason in report.unmet)
    done = report.stop_reason in (StopReason.CONVERGED, StopReason.SETTLED) and not report.limit_reached
    outcome = "Finished" if done else "Stopped"
    opening = f"{outcome}: {words}" if words else outcome
    line = " · ".join((opening + _reservations(report, presentation), *unmet))
    if report.degraded:
        line += f" · {missing_words(report)}"
        line += "" if report.quorum_met or report.stop_reason is StopReason.FAILED else f" · {_without_quorum(report)}"
    return line


def _without_quorum(report: Report) -> str:
    if report.answer is None:
        return "too few replies for an answer"
    return "without a quorum: one agent's text" if is_single_reply(report) else "without a quorum"


def describe_stop(report: Report, presentation: Presentation) -> str:
    """Return how a run stopped, in words; which limit ended it, if one did."""
    return (_ending(report, presentation) or "finished") + _reservations(report, presentation)


def _reservations(report: Report, presentation: Presentation) -> str:
    is_none = report.limit_reached or not presentation.reservations
    return "" if is_none else f", but {'; '.join(presentation.reservations)}"


def _ending(report: Report, presentation: Presentation) -> str:
    """Return what stopped a run, in words; "" if it finished and no more is known."""
    if report.limit_reached:
        return limit_words(report.limit_reached)
    if presentation.ending:
        return presentation.ending
    if report.stop_reason is StopReason.EXHAUSTED_STEPS:
        max_steps = presentation.max_steps
        if max_steps and 0 < report.steps < max_steps:
            return f"reached the limit on steps after {count(report.steps, presentation.step)}"
        if max_steps == 1:
            return f"reached the limit of 1 {presentation.step}"
        if max_steps:
            return f"reached the limit of {max_steps} {plural(presentation.step)} before it converged"
    return STOP_PHRASES[report.stop_reason]


def figures_line(report: Report, presentation: Presentation) -> str:
    """Return calls (with those possibly charged unseen), tokens, money, time and how the run stopped."""
    spent = report.ledger.actual
    calls = count(spent.calls, "call") + (f" in {spent.requests} requests" if spent.requests > spent.calls else "")
    calls += f" ({timed_out(spent)})" if spent.timed_out else ""
    calls += "".join(f", and {more}" for more in further_calls(spent))
    together = "in all: " if spent.inherited or spent.cached else ""
    calls += f" ({together}{presentation.calls})" if presentation.calls else ""
    tokens = f"{spent.tokens_in:,} tokens read, {describe_output_tokens(spent.tokens_out, spent.tokens_thought)}"
    figures = (calls, tokens, describe_cost(spent), duration(spent.seconds), describe_stop(report, presentation))
    return " · ".join(figures)


def is_single_reply(report: Report) -> bool:
    """Whether only one of several agents replied, so that the answer is its own."""
    return report.answer is not None and len(voices(report.agents)) > 1 and report.replied == 0


def missing_words(report: Report) -> str:
    """Return what a degraded run lacks; "" for a run that lacks nothing."""
    return " · ".join(_lacks(report)) if report.degraded else ""


def _lacks(report: Report) -> Iterator[str]:
    """Yield what a degraded run lacks; its failed calls, which are listed below, only by number and kind."""
    if report.is_mostly_prose:
        prose = len(report.prose_replies)
        yield f"{prose} of {count(report.typed_replies, 'reply')} not in the requested form"
    if report.replied < report.asked:
        yield f"{report.replied} of {report.asked} agents replied in the first phase"
    yield from _missing_replies(report.failed_calls)


def _missing_replies(calls: Iterable[FailedCall]) -> Iterator[str]:
    """Yield how many calls failed, how many a limit refused or ended, and how many were cancelled."""
    groups: dict[str, list[FailureKind]] = {"failed": [], "limit": [], "cancelled": []}
    for call in calls:
        is_cancelled = call.kind is FailureKind.CANCELLED
        groups["cancelled" if is_cancelled else "limit" if call.kind.is_limit else "failed"].append(call.kind)
    for group, kinds in groups.items():
        words = (
            group
            if group != "limit"
            else "refused or ended by a limit"
            if FailureKind.TIME in kinds
            else "refused by a limit"
        )
        if kinds:
            named = "" if group == "cancelled" else f" ({', '.join(dict.fromkeys(kinds))})"
            yield f"{count(len(kinds), 'call')} {words}{named}"


def _common(report: Report, presentation: Presentation) -> Iterator[Section]:
    names, labels = seat_labels(report.agents) | presentation.names, labels_of(report.protocol, presentation)
    yield Section(name="answer", part="answer", blocks=tuple(_answer(report, presentation)))
    yield Section(name="claims", part="basis", blocks=_list(_claims(report, names)))
    across = across_blocks(report.across, report.documents, names)
    yield Section(name="across", part="basis", heading="Findings across documents", blocks=tuple(across))
    yield Section(name="dissent", part="differences", blocks=tuple(_differences(report, names, presentation)))
    changes = (_change(change, names, presentation.step) for change in report.position_changes)
    yield Section(name="changes", part="differences", heading="Changes of position", blocks=_list(changes))
    yield Section(name="conditions", part="unknown", blocks=_list(_conditions(report, names)))
    missing = (
        Item(
            text=f"{names.get(m.agent, m.agent)}: no usable reply since {describe_place(m.since, m.agent, labels)}",
            note="" if any(call.agent == m.agent for call in report.failed_calls) else one_line(m.reason, 300),
        )
        for m in report.missing
    )
    yield Section(name="missing", part="trust", heading="Missing agents", blocks=_list(missing))
    yield Section(
        name="failed", part="trust", heading="Calls without a reply", blocks=_list(failed_items(report, names, labels))
    )
    yield Section(name="trust", part="trust", blocks=_list(trust_items(report, names)))
    read = (*documents_blocks(report.documents, report.agents, names), *requests_blocks(report.across, names))
    yield Section(name="documents", part="trust", heading="What was read", blocks=read)
    figures = KeyFigures(figures=tuple(key_figures(report, presentation)))
    yield Section(name=FIGURES, part="figures", heading="All figures", blocks=(figures,), folded=True)
    yield Section(
        name=WORDS, part="figures", heading="Words used here", blocks=glossary_blocks(report, presentation), folded=True
    )


def _list(items: Iterable[Item]) -> tuple[Block, ...]:
    item_list = tuple(items)
    return (Bullets(items=item_list),) if item_list else ()


# --- answer, basis


def _answer(report: Report, presentation: Presentation) -> Iterator[Block]:
    yield from presentation.above_answer
    if report.answer is None:
        yield Paragraph(text="The run ended before anything could be concluded.")
        return
    if is_single_reply(report):
        yield Paragraph(text="No other agent replied: the answer is one agent's alone.", tone="remark")
    elif report.stop_reason in (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME):
        yield Paragraph(text="A limit cut in: the answer rests on what existed by then.", tone="remark")
    elif report.stop_reason is StopReason.CANCELLED:
        yield Paragraph(text="It was cancelled: the answer rests on what existed by then.", tone="remark")
    if report.answer_cut:
        yield Paragraph(
            text="Incomplete: this text was cut off at the token limit.",
            tone="remark",
        )
    yield AgentText(text=report.answer or " ")
    if report.answer_cut:
        yield Paragraph(text="[cut off here]", tone="remark")
    yield from presentation.below_answer


def _claims(report: Report, names: Names) -> Iterator[Item]:
    for claim in report.claims:
        if claim.text.strip():
            by = authors(report, claim.ids, names) or ("" if has_one_voice(report) else "names no text")
            yield Item(text=claim.text, by=by, note="† from memory, no document quoted" if claim.from_memory else "")


# --- differences


def _differences(report: Report, names: Names, presentation: Presentation) -> Iterator[Block]:
    """Yield disagreements with the answer and objections with their outcome; an objection that is both is listed once."""
    listed_ids = {objection.id for objection in report.objections}
    items = [
        Item(
            text=f"“{dissent.text}”",
            by=names.get(dissent.agent, dissent.agent) + (f", for {dissent.position}" if dissent.position else ""),
            note=cut_mark(report, dissent.id or "").strip(),
        )
        for dissent in report.dissent
        if dissent.id not in listed_ids
    ]
    items += [_unanswered(report, objection, names) for objection in report.objections if objection.fate is None]
    answered = [objection for objection in report.objections if objection.fate is not None]
    if items:
        yield Subheading(text="Dissent and open objections")
        yield Bullets(items=tuple(items))
    if answered:
        yield Bullets(items=tuple(_objection_items(report, _open_first(answered), names)))
    is_open = bool(items) or any(objection.is_open for objection in answered)
    was_asked = report.answer is not None and not has_one_voice(report) and not is_single_reply(report)
    if presentation.asks_for_dissent and was_asked and not is_open:
        unheard = presentation.unheard
        words = "no objection is open" if answered else "none was declared"
        if unheard:
            words += f", but {unheard} gave no reply in which an objection could stand"
        elif not answered:
            words += ", and no objection is open"
        yield Paragraph(lead="Dissent:", text=f"{words}.")


def _open_first(objections: Iterable[Objection]) -> list[Objection]:
    return sorted(
        objections, key=lambda objection: (not objection.is_open, FATES.index(objection.fate or "unanswered"))
    )


def _objection_items(report: Report, objections: Iterable[Objection], names: Names) -> Iterator[Item]:
    """Yield objections. Two that answer each other are one item, with the words of both sides."""
    waiting = {objection.id: objection for objection in objections}
    while waiting:
        objection = waiting.pop(next(iter(waiting)))
        item, other = _objection_item(report, objection, names), waiting.pop(objection.answer or "", None)
        if other is not None:
            outcome = "" if other.outcome == objection.outcome else f" ({other.outcome.lower()})"
            words = f"{names.get(other.agent, other.agent)}: {other.text}{cut_mark(report, other.id)}{outcome}"
            below = " ".join(filter(None, (item.below, other.ruling_words)))
            item = item.model_copy(update={"note": " ".join(filter(None, (item.note, words))), "below": below})
        yield item


def _objection_item(report: Report, objection: Objection, names: Names) -> Item:
    """Return an objection, led by its outcome: how its target met it, or the ruling on an open one."""
    lead, note = objection.outcome, objection.how
    if objection.ruled and not objection.is_met:
        parents = report.topology.parents.get(objection.agent, ())
        by_root = not any(report.topology.parents.get(parent) for parent in parents)
        lead += " in the answer" if by_root else " in the synthesis"
    elif objection.fate == "unanswered":
        note = "Not answered before the run ended."
    return Item(
        lead=f"{lead}:",
        text=f"{objection.text}{cut_mark(report, objection.id)}",
        by=" → ".join(names.get(id, id) for id in (objection.agent, objection.to) if id),
        note=note,
        below=objection.ruling_words,
    )


def _unanswered(report: Report, objection: Objection, names: Names) -> Item:
    """Return an objection of a session whose agents did not declare how they met objections."""
    addressee = f" to {names.get(objection.to, objection.to)}" if objection.to else ""
    unread_note = "" if objection.read else "; no agent read it"
    agent = names.get(objection.agent, objection.agent)
    mark = cut_mark(report, objection.id)
    return Item(text=f"“{objection.text}”", note=f"objection of {agent}{addressee}, never answered{unread_note}{mark}")


def _change(change: PositionChange, names: Names, step: str) -> Item:
    cause = "named no argument for it (conformity)"
    if not change.conformity:
        cause = f"because of what {author_of(change.cause or '', names)} wrote"
    agent = names.get(change.agent, change.agent)
    return Item(text=f"{agent}: {change.before} → {change.after} in {step} {change.step}, {cause}")


# --- what would overturn it


def _conditions(report: Report, names: Names) -> Iterator[Item]:
    yield from (Item(text=condition) for condition in report.would_change)
    yield from (Item(lead="Unknown:", text=unknown) for unknown in report.unknown)
    printed_rulings = {objection.ruling for objection in report.objections if objection.fate not in (None, "yielded")}
    for rank, against in enumerate(report.against):
        if against.text in printed_rulings:
            continue
        lead = "Also against:" if rank else "Strongest argument against:"
        yield Item(lead=lead, text=against.text, by=authors(report, against.ids, names))
