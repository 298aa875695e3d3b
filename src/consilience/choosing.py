"""Chooses how a task is worked on: by rules where they suffice, else from a model's reading of the task.

The rules and their sources: docs/ask.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.tokens import estimate_tokens
from consilience.engine.protocol import Protocol
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.choose import TaskReading
from consilience.protocols.debate import Debate
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.protocols.review import Review

SHARE_OF_WINDOW = 0.5
"""Share of a context window that documents may take in one reading."""
ASSUMED_WINDOW = 32_768
"""The window (tokens) that is assumed of a model whose window is not known."""
DEBATE_MESSAGES = 24
"""Max messages of a debate that is chosen here."""
MAX_SEATS = 12

Rule = Literal["change", "embedded", "review", "divides", "large", "ordered", "models", "short answer", "fields", "one"]


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

    @property
    def tokens(self) -> int:
        """Size of all documents."""
        return sum(estimate_tokens(document.text) for document in self.documents)

    @property
    def room(self) -> int:
        """Tokens of documents for which one reading is enough."""
        return int((self.window or ASSUMED_WINDOW) * SHARE_OF_WINDOW)


@dataclass(frozen=True, kw_only=True)
class ProtocolChoice:
    """The protocol for a task, and the rule that chose it."""

    protocol: Protocol
    rule: Rule
    given: Given
    reading: TaskReading | None = None
    documents: Sequence[Source] = ()
    """The documents, dealt to the agents by the rule `large`."""

    @property
    def is_one_call(self) -> bool:
        return isinstance(self.protocol, Solo)


def choose(given: Given, reading: TaskReading | None = None) -> ProtocolChoice | None:
    """Return how a task is worked on; None if that depends on what it asks for, which a model has to read.

    Raises `SettingsError` for documents that fit neither one reading nor a seat.
    """
    choice = _by_facts(given)
    if choice is None and reading is not None:
        choice = _by_reading(given, reading)
    return choice and replace(choice, reading=reading, documents=choice.documents or given.documents)


def _by_facts(given: Given) -> ProtocolChoice | None:
    if given.is_change:
        return ProtocolChoice(protocol=Review(), rule="change", given=given)
    if given.embedded and given.tokens <= given.room:
        return ProtocolChoice(protocol=Solo(), rule="embedded", given=given)
    return None


def _by_reading(given: Given, reading: TaskReading) -> ProtocolChoice:
    seats = min(len(given.models), MAX_SEATS)
    is_large = given.tokens > given.room

    def chosen(rule: Rule, protocol: Protocol) -> ProtocolChoice:
        return ProtocolChoice(protocol=protocol, rule=rule, given=given)

    if reading.kind == "review" and given.is_target:
        return chosen("review", Review())
    if is_large and reading.shape == "ordered":
        if given.window is None or given.tokens > given.window - 2 * Solo().max_reply_tokens:
            raise _too_large(given)
        return chosen("ordered", Solo(reviews=1))
    if is_large:
        dealt, leaves = deal(given)
        return replace(chosen("large", Emergence(children=leaves)), documents=dealt)
    if reading.record or (reading.kind == "decision" and reading.divides):
        debaters = {"debaters": seats} if seats > 1 else {}
        return chosen("divides", Debate(max_messages=DEBATE_MESSAGES, **debaters))
    if seats > 1:
        if reading.kind == "answer":
            return chosen("short answer", Vote(votes=seats))
        return chosen("models", Emergence(children=seats, max_rounds=2))
    if reading.kind == "text" and reading.shape == "separate":
        return chosen("fields", Refinement())
    return chosen("one", Solo(reviews=1))


def deal(given: Given) -> tuple[tuple[Source, ...], int]:
    """Return the documents, each given to one leaf of `Emergence(children=n)`, and n: the fewest seats whose share has room.

    The largest document goes first, to the seat that has least. Raises `SettingsError` if a document is larger than a share.
    """
    sizes = [(estimate_tokens(document.text), n) for n, document in enumerate(given.documents)]
    largest_first = sorted(sizes, reverse=True)
    if largest_first[0][0] > given.room or any(document.agents for document in given.documents):
        raise _too_large(given)
    for children in range(2, MAX_SEATS + 1):
        held, holder = [0] * children, {}
        for size, n in largest_first:
            holder[n] = held.index(min(held))
            held[holder[n]] += size
        if max(held) <= given.room:
            leaves = Emergence(children=children).topology().leaves
            dealt = (d.model_copy(update={"agents": (leaves[holder[n]],)}) for n, d in enumerate(given.documents))
            return tuple(dealt), children
    raise _too_large(given)


def _too_large(given: Given) -> SettingsError:
    largest = max(given.documents, key=lambda document: estimate_tokens(document.text))
    return SettingsError(
        f"the documents have about {given.tokens:,} tokens, the largest about {estimate_tokens(largest.text):,}, and one "
        f"reading has room for {given.room:,}",
        where=largest.name,
        do="Name a model with a larger window, or leave documents out.",
    )


REASONS: Mapping[Rule, str] = {
    "change": "a change is to be checked",
    "embedded": "the embedded model gains nothing by more calls",
    "review": "what is given is to be checked",
    "divides": "informed people may differ on this, or objections are to be on record",
    "large": "the documents exceed half of the window, so they are dealt to several agents",
    "ordered": "each part of the work builds on the one before, so that it is not divided",
    "models": "different models are at hand",
    "short answer": "different models are at hand for a short answer",
    "fields": "a text from several fields",
    "one": "one kind of question, and all that is given fits one reading",
}
"""Why, by rule, as clauses."""
