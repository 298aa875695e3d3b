"""Chooses how a task is worked on: by rules where they suffice, else from a model's reading of the task.

The rules and their sources: docs/ask.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from consilience.domain.errors import Command, SettingsError
from consilience.domain.messages import Source
from consilience.domain.tokens import estimate_tokens
from consilience.engine.dealing import MAX_SHARES, SHARE_OF_WINDOW, deal_to_agents
from consilience.engine.protocol import Protocol
from consilience.engine.seats import choose_detail, longest_thinking, smallest_window
from consilience.models.endpoints import Endpoints
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.choose import Choose, TaskReading
from consilience.protocols.debate import Debate
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.protocols.review import Review
from consilience.reporting.markdown import chapter_markdown
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import report_document

MAX_SEATS = MAX_SHARES
"""Agents, at most, of a run that is chosen here."""
ASSUMED_WINDOW = 32_768
"""The window (tokens) that is assumed of a model whose window is not known."""
DEBATE_MESSAGES = 24
"""Max messages of a debate that is chosen here."""
ROUNDS_WITH_ANSWERS = 2
"""Rounds of emergence in which the target of an objection answers it. In one round only the integrator rules on it."""

CHANGES = (".diff", ".patch")
"""Endings of files that are changes."""
PROSE = frozenset(
    {"", ".md", ".txt", ".rst", ".html", ".htm", ".eml", ".mht", ".pdf", ".docx", ".xlsx", ".pptx", ".epub", ".csv"}
)
"""Endings of files that are no code."""

Rule = Literal[
    "change", "embedded", "review", "divides", "record", "large", "whole", "models", "personas", "short answer", "fields", "one"
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Given:
    """What is known of a task before anybody has read it."""

    documents: Sequence[Source] = ()
    models: Sequence[str] = ()
    """Different models, people and programs at hand."""
    window: int | None = None
    """Tokens; the smallest of these models, None if it is not known of any."""
    is_change: bool = False
    """Whether the documents are a change, such as a diff."""
    is_target: bool = False
    """Whether `review` can read the documents: they are files."""
    embedded: bool = False
    """Whether a seat has an embedded model."""
    personas: int = 0
    """Personas that were named."""
    thinking: int = 0
    """Most tokens of thinking before a reply."""

    @cached_property
    def tokens(self) -> int:
        """Size of all documents."""
        return sum(estimate_tokens(document.text) for document in self.documents)

    @property
    def room(self) -> int:
        """Tokens of documents for which one reading is enough."""
        return int((self.window or ASSUMED_WINDOW) * SHARE_OF_WINDOW)

    @property
    def is_large(self) -> bool:
        return self.tokens > self.room

    def fit_whole(self, replies: int) -> bool:
        """Whether all documents and so many replies of full length fit the window."""
        return self.tokens + replies * Solo().max_reply_tokens <= (self.window or ASSUMED_WINDOW)

    @cached_property
    def dealt(self) -> tuple[Protocol, tuple[Source, ...]] | None:
        """`Emergence` with the fewest seats whose share has room, and the documents, dealt to its leaves.

        None if a document already has readers, if a line is larger than a share, or if too many seats were needed. It is asked
        for before and after the task is read, and to deal large documents takes seconds.
        """
        if any(document.agents for document in self.documents):
            return None
        window = self.window or ASSUMED_WINDOW
        try:
            protocol, dealt = deal_to_agents(
                Emergence(max_rounds=1), self.documents, "document", window, thinking=self.thinking
            )
        except SettingsError:
            return None
        return protocol, tuple(dealt)


def given_for(
    documents: Sequence[Source],
    models: Sequence[str],
    known: Endpoints,
    *,
    files: Sequence[str],
    personas: int = 0,
    is_follow_up: bool = False,
) -> Given:
    """Return what is known of a task with these documents, `files` among them, on these models."""
    agents = Choose().agents(None)
    return Given(
        documents=documents,
        models=models,
        window=smallest_window(models, known),
        thinking=longest_thinking(models, known, None),
        is_change=bool(files) and all(Path(file).suffix in CHANGES for file in files),
        is_target=bool(files) and not is_follow_up,
        personas=personas,
        embedded=any(choose_detail("auto", agents, {agents[0].id: name}) == "brief" for name in models),
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolChoice:
    """The protocol for a task, and the rule that chose it."""

    protocol: Protocol
    rule: Rule
    given: Given
    reading: TaskReading | None = None
    documents: Sequence[Source] = ()
    """The documents, dealt to the agents by the rule `large`."""


def choose(given: Given, reading: TaskReading | None = None) -> ProtocolChoice | None:
    """Return how a task is worked on; None if that depends on what it asks for, which a model has to read.

    Raises `SettingsError` for documents that fit neither one reading nor the seats, also without a reading.
    """
    choice = _by_facts(given)
    if choice is None and reading is not None:
        choice = _by_reading(given, reading)
    return choice and replace(choice, reading=reading, documents=choice.documents or given.documents)


def reading_of(documents: Sequence[Source]) -> Choose:
    """Return the protocol whose report has a model's reading of a task with these documents. It is one call."""
    return Choose(
        material_index=tuple(f"{source.name}, about {estimate_tokens(source.text):,} tokens" for source in documents)
    )


def _by_facts(given: Given) -> ProtocolChoice | None:
    if given.is_change:
        return ProtocolChoice(protocol=Review(), rule="change", given=given)
    if given.is_large and not given.is_target and given.dealt is None:
        _whole(given)
    if given.embedded and not given.is_large:
        return ProtocolChoice(protocol=Solo(), rule="embedded", given=given)
    return None


def _by_reading(given: Given, reading: TaskReading) -> ProtocolChoice:
    seats = min(len(given.models), MAX_SEATS)
    is_review = reading.kind == "review" and given.is_target
    is_prose = all(Path(document.name).suffix.lower() in PROSE for document in given.documents)

    def chosen(rule: Rule, protocol: Protocol) -> ProtocolChoice:
        return ProtocolChoice(protocol=protocol, rule=rule, given=given)

    if is_review and not (given.is_large and is_prose):
        return chosen("review", Review())
    if given.is_large:
        dealt = None if reading.shape == "ordered" else given.dealt
        if dealt is None:
            return chosen("whole", _whole(given))
        protocol, documents = dealt
        return replace(chosen("large", protocol), documents=documents)
    divides = reading.kind == "decision" and reading.divides
    if divides or (reading.record and reading.kind != "text"):
        debaters = {"debaters": seats} if seats > 1 else {}
        return chosen("divides" if divides else "record", Debate(max_messages=DEBATE_MESSAGES, **debaters))
    if reading.record or given.personas > 1:
        heard = min(max(len(given.models), given.personas), MAX_SEATS)
        children = {"children": heard} if heard > 1 else {}
        if reading.record:
            return chosen("record", Emergence(max_rounds=ROUNDS_WITH_ANSWERS, **children))
        return chosen("personas", Emergence(max_rounds=1, **children))
    if seats > 1:
        if reading.kind in ("answer", "decision"):
            return chosen("short answer", Vote(votes=seats))
        return chosen("models", Emergence(children=seats, max_rounds=1))
    if reading.kind == "text" and reading.shape == "separate":
        return chosen("fields", Refinement())
    return chosen("one", Solo(reviews=1))


def _whole(given: Given) -> Solo:
    """Return the protocol of one seat that is shown all documents. Raises `SettingsError` if they do not fit its window."""
    for reviews, replies in ((1, 3), (0, 1)):
        if given.fit_whole(replies):
            return Solo(reviews=reviews)
    raise _too_large(given)


def _too_large(given: Given) -> SettingsError:
    largest = max(given.documents, key=lambda document: estimate_tokens(document.text))
    window = f"{given.window or ASSUMED_WINDOW:,} tokens" + ("" if given.window else ", which is assumed")
    return SettingsError(
        f"the documents have about {given.tokens:,} tokens and do not fit the context window ({window}); the largest, "
        f"{largest.name}, has {estimate_tokens(largest.text):,}, and a share of one of several seats {given.room:,}",
        field="sources",
        do="Name a model with a larger window, or leave documents out.",
    )


def follow_up_sources(record: SessionRecord) -> list[Source]:
    """Return what a session leaves for a follow-up: its documents, in their order, since the answer refers to their numbers; its
    answer, its objections, what would overturn it. Raises `SettingsError`."""
    session, report, started = record.session, record.report, record.state.started
    if report is None or report.answer is None or started is None or started.protocol == Choose.name:
        raise SettingsError(
            f"session {session} has no answer to follow up",
            do="See how it stands",
            command=Command("show", session),
        )
    sources = [
        Source(text=record.text(document.text), name=document.name, remarks=document.remarks)
        for document in started.sources
        if document.agents is None
    ]
    sources.append(Source(text=f"Task: {report.task}\n\n{report.answer}", name=f"the answer of session {session}"))
    objections = [f"- {objection.text} ({objection.outcome.lower()})" for objection in report.objections]
    objections += [f"- {dissent.text}" for dissent in report.dissent if dissent.text not in report.answer]
    if objections:
        text = "\n".join(dict.fromkeys(objections))
        sources.append(Source(text=text, name=f"the objections of session {session}"))
    overturning = chapter_markdown(report_document(report, record.presentation), "unknown")
    if overturning:
        sources.append(Source(text=overturning, name=f"what would overturn the answer of session {session}"))
    return sources


REASONS: Mapping[Rule, str] = {
    "change": "a change is to be checked",
    "embedded": "more calls of the embedded model gain nothing",
    "review": "something is to be checked",
    "divides": "informed people would decide this differently",
    "record": "objections are to be on record",
    "large": "the documents exceed half of the window and are dealt to several agents",
    "whole": "the documents exceed half of the window and cannot be dealt, and all fit it",
    "models": "different models are at hand",
    "personas": "several points of view are named",
    "short answer": "different models are at hand, and one answer is wanted",
    "fields": "the text needs several fields",
    "one": "one careful reading is enough",
}
"""Why, by rule, as clauses."""


def choice_json(choice: ProtocolChoice, *, unread: bool) -> dict[str, object]:
    """Return what was chosen and why, for programs."""
    return {
        "protocol": choice.protocol.name,
        "rule": choice.rule,
        "why": REASONS[choice.rule],
        "reading": choice.reading.model_dump() if choice.reading and not unread else None,
        "tokens": choice.given.tokens,
        "room": choice.given.room,
    }
