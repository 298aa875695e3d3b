"""Sets of documents with planted contradictions, for measuring what agents that read shares of them bring together.

A set is about named sites. A *fact* is an attribute of a site with a value; it is stated in several documents, each time in other
words. Most facts are stated alike everywhere. Of a *planted pair*, two statements of one fact have different values. *Decoys* look
like contradictions and are none: two statements of one value in other words, another site with another value, and an unrelated
attribute of the same site with the same figure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.domain.messages import Source
from consilience.domain.tokens import estimate_tokens

Reach = Literal["within", "across"]
"""Whether both sides of a planted pair are in one document, or in documents of different owners."""

OWNERS = ("estates", "finance", "operations", "compliance")

_FIRST = (
    "Ash", "Birk", "Col", "Dun", "Elm", "Fair", "Glen", "Hals", "Ing", "Kirk", "Lang", "Mar", "Nor", "Oak", "Pen", "Quarr",
    "Ros", "Sel", "Thorn", "Ull", "Wick", "Yar",
)  # fmt: skip
_SECOND = ("bourne", "combe", "den", "field", "gate", "ham", "ley", "mere", "stead", "ton", "wick", "worth")
_KINDS = ("depot", "warehouse", "clinic", "school", "plant", "terminal")

_DATES = tuple(
    f"{day} {month} {year}" for year in (2027, 2028) for month in ("March", "June", "October") for day in (4, 15, 28)
)
_EUROS = tuple(f"{n},{m}00 euros" for n in (12, 18, 24, 31, 47, 56, 73, 88) for m in (1, 4, 6))
_DAYS = tuple(f"{n} days" for n in (10, 14, 21, 28, 30, 45, 60, 90))
_NUMBERS = tuple(str(n) for n in (9, 13, 17, 22, 26, 34, 41, 48, 55, 62))
_NAMES = ("Ms Aldous", "Mr Brandt", "Ms Corelli", "Mr Dufour", "Ms Eriksen", "Mr Falk", "Ms Grewal", "Mr Hoang")

ATTRIBUTES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "lease": (_DATES, (
        "The lease of {full} ends on {value}.",
        "{short} has to be vacated by {value}, when our tenancy is over.",
        "After {value} the landlord may let {full} to somebody else.",
        "Our right to stay at {short} runs until {value} and cannot be extended.",
    )),
    "rent": (_EUROS, (
        "The rent for {full} is {value} a month.",
        "Each month {short} costs us {value} for the premises alone.",
        "The landlord of {full} invoices {value} monthly.",
        "Occupying {short} takes {value} out of every monthly budget.",
    )),
    "notice": (_DAYS, (
        "Notice for {full} must be given {value} ahead.",
        "Whoever wants to leave {short} has to tell the owner {value} in advance.",
        "The contract on {full} can be terminated with a period of {value}.",
        "A termination at {short} takes effect {value} after the letter arrives.",
    )),
    "staff": (_NUMBERS, (
        "{value} people work at {full}.",
        "The headcount of {short} stands at {value}.",
        "{full} employs {value} people, part-time posts included.",
        "On the payroll of {short} there are {value} names.",
    )),
    "payment": (_DAYS, (
        "Suppliers of {full} are paid within {value}.",
        "Invoices that concern {short} fall due after {value}.",
        "The term of payment agreed for {full} is {value}.",
        "{short} settles its bills {value} after receipt.",
    )),
    "manager": (_NAMES, (
        "{value} is in charge of {full}.",
        "Decisions on {short} are taken by {value}.",
        "{full} reports to the board through {value}.",
        "The person responsible for {short} is {value}.",
    )),
    "repair": (_EUROS, (
        "Repairing the roof of {full} will cost {value}.",
        "For the leaking roof at {short} the builder asks {value}.",
        "The quotation for new slates on {full} amounts to {value}.",
        "{value} are set aside to make {short} watertight.",
    )),
    "inspection": (_DATES, (
        "The next safety inspection of {full} is on {value}.",
        "Inspectors are expected at {short} on {value}.",
        "{full} must show its safety records on {value}.",
        "The authority has announced a visit to {short} for {value}.",
    )),
    "capacity": (_NUMBERS, (
        "{full} has room for {value} vehicles.",
        "No more than {value} vans fit into the yard of {short}.",
        "The yard of {full} holds {value} vehicles at a time.",
        "Parking at {short} is limited to {value} vehicles.",
    )),
}  # fmt: skip
"""The attributes of a site: their values, and the wordings of a statement."""

_FILLER = (
    "The committee discussed the matter at length and asked for a written summary.",
    "Several members regretted that earlier minutes had not been circulated in time.",
    "It was agreed that the question would be taken up again when more is known.",
    "Visitors to {short} praised the friendly reception and the clear signs.",
    "A photograph of {full} is to appear on the cover of the annual review.",
    "The neighbours of {short} have been informed in a letter about the coming works.",
    "Nobody raised an objection, although two members abstained.",
    "The working group thanks everyone who answered its questionnaire.",
    "Weather permitting, the summer meeting will be held at {full}.",
    "How the service is seen by those who use it remains an open question.",
    "The archive of {short} has been moved to the second floor.",
    "Training for new colleagues will follow the pattern of last year.",
)
_SECTIONS = ("Background", "Premises", "Costs", "Contracts", "People", "Outlook", "Open points", "Annex")


@dataclass(frozen=True)
class FactStatement:
    """A fact as one document states it, on a line of its own."""

    site: str
    attribute: str
    value: str
    text: str
    document: int


@dataclass(frozen=True)
class PlantedPair:
    """Two statements that contradict each other."""

    first: FactStatement
    second: FactStatement
    reach: Reach


@dataclass(frozen=True)
class DocumentSet:
    """Documents in directories of their owners, and what is planted in them."""

    sources: tuple[Source, ...]
    pairs: tuple[PlantedPair, ...]
    statements: tuple[FactStatement, ...]
    """All statements of facts, with those of the pairs and the decoys."""

    @property
    def tokens(self) -> int:
        return sum(estimate_tokens(source.text) for source in self.sources)

    def of(self, reach: Reach) -> tuple[PlantedPair, ...]:
        return tuple(pair for pair in self.pairs if pair.reach == reach)


def make_document_set(
    seed: int, *, tokens: int = 56_000, documents: int = 16, across: int = 10, within: int = 8
) -> DocumentSet:
    """Return a set of about so many tokens, the same for the same arguments."""
    return _Writer(seed, documents).write(tokens, across, within)


class _Writer:
    def __init__(self, seed: int, documents: int) -> None:
        self.draw = random.Random(seed)
        self.documents = documents
        self.bodies: list[list[str]] = [[] for _ in range(documents)]
        self.statements: list[FactStatement] = []
        names = [first + second for first in _FIRST for second in _SECOND]
        self.draw.shuffle(names)
        self.names = names
        self.full: dict[str, str] = {}

    def owner(self, document: int) -> str:
        return OWNERS[document * len(OWNERS) // self.documents]

    def write(self, tokens: int, across: int, within: int) -> DocumentSet:
        sites = self.names[: max(tokens // 1_400, across + within, 12)]
        self.full = {site: f"the {site} {self.draw.choice(_KINDS)}" for site in sites}
        facts = [(site, attribute) for site in sites for attribute in ATTRIBUTES]
        self.draw.shuffle(facts)
        pairs = [self._pair(*facts.pop(), "across") for _ in range(across)]
        pairs += [self._pair(*facts.pop(), "within") for _ in range(within)]
        planted = {pair.first.site + pair.first.attribute for pair in pairs}
        room = tokens * 3.5 / self.documents
        for site, attribute in facts:
            if site + attribute not in planted and min(self._size(n) for n in range(self.documents)) < room * 0.8:
                self._agreeing(site, attribute)
        self._fill(room, sites)
        sources = tuple(
            Source("\n".join(self._laid_out(n)), f"{self.owner(n)}/report-{n + 1:02}.md") for n in range(self.documents)
        )
        return DocumentSet(sources, tuple(pairs), tuple(self.statements))

    def _pair(self, site: str, attribute: str, reach: Reach) -> PlantedPair:
        values, wordings = ATTRIBUTES[attribute]
        first, second = self.draw.sample(range(self.documents), 2)
        while self.owner(first) == self.owner(second):
            first, second = self.draw.sample(range(self.documents), 2)
        if reach == "within":
            second = first
        (one, other), (words, otherwise) = self.draw.sample(values, 2), self.draw.sample(wordings, 2)
        return PlantedPair(
            self._state(site, attribute, one, words, first),
            self._state(site, attribute, other, otherwise, second),
            reach,
        )

    def _agreeing(self, site: str, attribute: str) -> None:
        """State a fact in one to three documents, with one value: decoys where it is stated twice."""
        values, wordings = ATTRIBUTES[attribute]
        value, times = self.draw.choice(values), self.draw.choice((1, 1, 2, 3))
        places = self.draw.sample(range(self.documents), times)
        for document, words in zip(places, self.draw.sample(wordings, times), strict=True):
            self._state(site, attribute, value, words, document)

    def _state(self, site: str, attribute: str, value: str, words: str, document: int) -> FactStatement:
        text = self._worded(words, site, value)
        statement = FactStatement(site, attribute, value, text, document)
        self.statements.append(statement)
        self.bodies[document].append(text)
        return statement

    def _worded(self, words: str, site: str, value: str = "") -> str:
        text = words.format(full=self.full[site], short=site, value=value)
        return text[0].upper() + text[1:]

    def _size(self, document: int) -> int:
        return sum(len(line) + 1 for line in self.bodies[document])

    def _fill(self, room: float, sites: Sequence[str]) -> None:
        for document in range(self.documents):
            while self._size(document) < room:
                self.bodies[document].append(self._worded(self.draw.choice(_FILLER), self.draw.choice(sites)))
            self.draw.shuffle(self.bodies[document])

    def _laid_out(self, document: int) -> Iterator[str]:
        """Yield the lines: sections, and paragraphs of one to four sentences, each on a line of its own."""
        yield f"# Report {document + 1} of {self.owner(document)}"
        body, sections = list(self.bodies[document]), iter(_SECTIONS)
        step = max(len(body) // len(_SECTIONS), 1)
        for n, line in enumerate(body):
            if n % step == 0 and (title := next(sections, "")):
                yield from ("", f"## {title}", "")
            elif self.draw.random() < 0.3:
                yield ""
            yield line
