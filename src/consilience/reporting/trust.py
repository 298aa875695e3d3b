"""How far to trust a report: independence, failed calls, quotations, warnings; and what its words mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from consilience.domain.agents import Agent, author_of, voices
from consilience.domain.document_shares import Lines
from consilience.domain.messages import Quotation, ReadDocument
from consilience.domain.report import Report
from consilience.domain.sections import Block, Bullets, Item, Presentation, Table
from consilience.reporting.formatting import count, describe_phase_of, describe_place, one_line, seat_labels

MAX_REASON_CHARS = 200
MAX_LISTED_QUOTATIONS = 5
"""Quotations that are not verified, listed in a report; its JSON has all of them."""

QuotationFault = Literal["absent", "misplaced", "unseen"]
FAULTS: Mapping[QuotationFault, tuple[str, str]] = {
    "absent": ("Not found", "not found"),
    "misplaced": ("At another place", "at another place"),
    "unseen": ("Not shown", "in lines that the author was not shown"),
}
"""What a quotation that is not verified is called in a list, and how such are counted, in the order of their weight."""

Names = Mapping[str, str]
"""Names of agents by id."""

MAX_RANGES = 8
"""Ranges of lines that are listed of a document; the JSON report has all."""

GLOSSARY: Mapping[str, str] = {
    "agent": "one participant: a language model, a program or a person with a task and a point of view of its own",
    "L1N1, V2, D3 …": "short names of the agents",
    "dissent": "what an agent still held against the answer at the end",
    "service seat": "a model that organises the work and takes no side",
    "tokens": "the units, about four characters each, in which models read, write and are paid",
}
"""Words of every report of several agents."""


def authors(report: Report, ids: Iterable[str], names: Names) -> str:
    """Return the authors of messages, once each, with a mark at those whose text was cut."""
    return ", ".join(dict.fromkeys(f"{author_of(id, names)}{cut_mark(report, id)}" for id in ids))


def cut_mark(report: Report, id: str) -> str:
    """Return a mark for a message from a reply that was cut at its token limit."""
    is_cut = any(id == key or id.startswith(f"{key}/") for key in report.cut_replies)
    return " [its text was cut off]" if is_cut else ""


def has_one_voice(report: Report) -> bool:
    return len(voices(report.agents)) == 1


def glossary_blocks(report: Report, presentation: Presentation) -> tuple[Block, ...]:
    """Return what the words of the report mean, for a reader who has never seen one."""
    glossary = (presentation.glossary if has_one_voice(report) else {**GLOSSARY, **presentation.glossary}).items()
    items = (Item(lead=f"{word}:", text=f"{meaning}.") for word, meaning in sorted(glossary))
    return (Bullets(items=tuple(items)),) if glossary else ()


def failed_items(report: Report, names: Names, labels: Mapping[str, str]) -> Iterator[Item]:
    """Yield failed calls, grouped by phase and reason."""
    agents: dict[tuple[str, str], Counter[str]] = {}
    for call in report.failed_calls:
        phase = describe_place(call.key, call.agent, labels)
        if call.phase:
            phase = describe_phase_of(call.key, call.phase, labels)
        reason = one_line(f"{call.kind.value}: {call.detail}".rstrip(": "), 300)
        agents.setdefault((phase, reason), Counter())[names.get(call.agent, call.agent)] += 1
    for (phase, reason), calls in agents.items():
        callers = ", ".join(name if n == 1 else f"{name} ×{n}" for name, n in calls.items())
        yield Item(text=f"{phase}: {callers}", note=reason)


def documents_blocks(documents: Sequence[ReadDocument], agents: Sequence[Agent], names: Names) -> Iterator[Block]:
    """Yield the documents of a session with who read which lines of them, who could not see them and what was left out."""
    closed = any(document.agents is not None for document in documents)
    heads = ("document", "read by", *(["could not be seen by"] if closed else []), "lines", "characters")
    rows = []
    for document in documents:
        open_to = {agent.id for agent in agents} if document.agents is None else document.agents
        others = ", ".join(names.get(agent.id, agent.id) for agent in agents if agent.id not in open_to)
        name = f"{document.id} {one_line(document.name)}".rstrip()
        figures = f"{document.lines:,}", f"{document.characters:,}"
        rows.append((name, _readers(document, len(agents), names), *([others] if closed else []), *figures))
    if rows:
        yield Table(heads=heads, rows=tuple(rows), left=len(heads) - 2)
    if remarks := _document_remarks(documents):
        yield Bullets(items=tuple(Item(text=f"{remark}.") for remark in remarks))


def _document_remarks(documents: Iterable[ReadDocument]) -> list[str]:
    return [remark for document in documents for remark in document.remarks]


def _readers(document: ReadDocument, agents: int, names: Names) -> str:
    """Return the agents, of so many, that read a document: `all 4 agents`, `legal, cash flow (lines 1-120, 300-380)`."""
    whole = {reader.agent for reader in document.readers if not reader.lines}
    if len(whole) == agents > 1:
        return f"all {len(whole)} agents"
    readers = [
        names.get(reader.agent, reader.agent) + (f" ({_ranges(reader.lines)})" if reader.lines else "")
        for reader in document.readers
    ]
    unread = f"; no agent read {_ranges(document.unread)}" if readers and document.unread else ""
    return (", ".join(readers) or "no agent") + unread


def _ranges(lines: Sequence[Lines]) -> str:
    """`line 3`, `lines 1-120, 300`, `lines 1, 3, 7 and 20 further ranges`."""
    ranges = ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in lines[:MAX_RANGES])
    if len(lines) > MAX_RANGES:
        ranges += f" and {count(len(lines) - MAX_RANGES, 'further range')}"
    return f"line{'' if len(lines) == 1 and lines[0][0] == lines[0][1] else 's'} {ranges}"


def trust_items(report: Report, names: Names) -> Iterator[Item]:
    if embedded := dict.fromkeys(agent.model for agent in report.agents if agent.is_embedded):
        yield Item(
            text=f"{', '.join(embedded)}: an embedded model, for trying things out. Do not rely on what it says."
        )
    for line in _independence(report):
        yield Item(text=line)
    yield from _prose(report, names)
    yield from _quotations(report, names)
    if memory := sum(claim.from_memory for claim in report.claims):
        yield Item(text=f"Claims from the model's memory, marked †: {memory} of {len(report.claims)}.")
    if report.facts is not None and report.facts.total:
        kept, total = report.facts.kept, report.facts.total
        verb, drafts = "is" if kept == 1 else "are", "draft" if len(voices(report.agents)) == 1 else "drafts"
        text = f"{kept} of the {total} figures, names and quotations in the first {drafts} {verb} still in the answer."
        yield Item(text=text)
    if report.replaced_prompts:
        yield Item(text=f"Prompt templates replaced: {', '.join(report.replaced_prompts)}.")
    elsewhere = set(_document_remarks(report.documents))
    yield from (Item(text=f"{capitalised(warning)}.") for warning in report.all_warnings if warning not in elsewhere)


def _prose(report: Report, names: Names) -> Iterator[Item]:
    if prose := report.prose_replies:
        of = f"{len(prose)} of {count(report.typed_replies, 'reply')}"
        yield Item(
            text=f"Not in the requested form: {of}. Each was read as plain text; the other fields of its form are empty.",
            by=authors(report, prose, names) if len(prose) < report.typed_replies else "",
        )


def capitalised(warning: str) -> str:
    """Return a warning as a sentence. A name at its beginning, such as that of a file, stays as it is."""
    first, *_ = warning.split(maxsplit=1) or [""]
    return warning[:1].upper() + warning[1:] if first.isalpha() else warning


def _quotations(report: Report, names: Names) -> Iterator[Item]:
    if not report.quotations:
        return
    missed = [quotation for quotation in report.quotations if not quotation.verified]
    kinds = Counter(map(_fault, missed))
    verified = f"{len(report.quotations) - len(missed)} verified"
    if relayed := sum(quotation.relayed for quotation in report.quotations):
        verified += f" ({relayed} of them known to the author from another agent's text only)"
    faults = (f"{kinds[fault]} {words}" for fault, (_, words) in FAULTS.items() if kinds[fault] or fault == "absent")
    yield Item(text=f"Quotations from the documents: {', '.join((verified, *faults))}.")
    order = list(FAULTS)
    listed = list(dict.fromkeys(sorted(missed, key=lambda quotation: order.index(_fault(quotation)))))
    for quotation in listed[:MAX_LISTED_QUOTATIONS]:
        fault = _fault(quotation)
        note = f"claimed at {quotation.reference}" + (f", but at {quotation.stands}" if quotation.stands else "")
        if fault == "unseen":
            note = f"in {quotation.reference}, which this agent was not shown"
        words, by = one_line(quotation.words, MAX_REASON_CHARS), names.get(quotation.agent, quotation.agent)
        yield Item(text=f"{FAULTS[fault][0]}: “{words}”", by=by, note=note)
    if len(listed) > MAX_LISTED_QUOTATIONS:
        yield Item(text=f"{len(listed) - MAX_LISTED_QUOTATIONS} more, in the report's JSON.")


def describe_fault(quotation: Quotation) -> str:
    """Return what is wrong with a quotation that is not verified: `not found`, `at another place: S2:43`."""
    words = FAULTS[_fault(quotation)][1]
    return f"{words}: {quotation.stands}" if quotation.is_wrong and quotation.stands else words


def _fault(quotation: Quotation) -> QuotationFault:
    """Return what is wrong with a quotation that is not verified."""
    if not quotation.stands:
        return "absent"
    return "misplaced" if quotation.is_wrong else "unseen"


def _independence(report: Report) -> Iterator[str]:
    agents = voices(report.agents)
    total, people = len(agents), [agent for agent in agents if agent.is_person]
    if people:
        names = ", ".join(seat_labels(people).values())
        yield f"{_share(len(people), total)} {'is a person' if len(people) == 1 else 'are people'}: {names}."
    for shared in report.independence.shared:
        number = len(shared.agents)
        yield f"{_share(number, total)} run on {shared.model}, so they are not {_number(number)} independent voices."
    if total == 1:
        yield "Single agent; no other agent reviewed the answer."
    elif (models := total - len(people)) > 1 and not report.independence.shared:
        commands = sum(agent.is_program for agent in agents)
        own = (
            "model or command of its own; several commands may start one program"
            if commands > 1
            else "model of its own"
        )
        yield f"Each of the {f'other {models}' if people else models} agents has a {own}."
    if report.independence.effective is not None and report.independence.shared:
        yield f"They count as about {report.independence.effective:.1f} independent voices."


def _share(number: int, total: int) -> str:
    """Return `All 3 agents`, `Both agents`, `2 of the 4 agents`, `1 of the 4 agents`."""
    if number == total > 1:
        return f"{'Both' if total == 2 else f'All {total}'} agents"
    return f"{number} of the {total} agents" if total > 1 else "The agent"


def _number(number: int) -> str:
    words = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[number - 2] if number - 2 < len(words) else str(number)
