"""What the readers of dealt documents found across documents: pairs of passages, each checked against its document."""

from __future__ import annotations

from typing import Literal

from consilience.domain.document_shares import Lines
from consilience.domain.validation import Frozen

PairVerdict = Literal["contradiction", "no contradiction", "not judged"]


class NotedPassage(Frozen):
    """One side of a pair. Its words stand in the document, where it says."""

    document: str
    """Id of the document (`S4`)."""
    line: int
    """Where the words begin, from 1."""
    words: str
    value: str
    """What it states, as its reader noted it."""
    reader: str
    """The agent that noted it in its inventory."""
    worth: str = ""
    """What the passage is worth, by the agent that judged the pair."""


class DocumentPair(Frozen):
    """Two passages that speak of one thing and state different values, brought together from the inventories of their readers."""

    entity: str
    attribute: str
    first: NotedPassage
    second: NotedPassage
    verdict: PairVerdict = "not judged"
    """Whether an agent that was shown both passages says that they contradict each other."""
    judge: str = ""
    """That agent."""
    why: str = ""

    @property
    def documents(self) -> tuple[str, str]:
        return self.first.document, self.second.document


class AskedPassage(Frozen):
    """A passage of a document that an agent asked for, and what the engine did."""

    agent: str
    document: str
    lines: Lines | None
    """None for lines that cannot be read, and for words that stand nowhere in the document."""
    words: str = ""
    """What it asked for, if it named words and no lines."""
    why: str
    shown: Lines | None
    """The lines that the agent was shown from then on; None for none."""
    refusal: str = ""

    @property
    def place(self) -> str:
        """What it asked for, as in `S4:120-140` or `S4:120-140 "discount rate"`."""
        lines = f":{self.lines[0]}-{self.lines[1]}" if self.lines else ""
        return f"{self.document}{lines}" + (f' "{self.words}"' if self.words else "")


class AcrossDocuments(Frozen):
    """What the inventories of dealt documents gave."""

    rows: int = 0
    """Rows whose quotation stands in a document that their reader was shown."""
    rows_dropped: int = 0
    """Rows whose quotation does not."""
    pairs: tuple[DocumentPair, ...] = ()
    """The pairs that an agent was shown, and those that no agent may be shown."""
    left_out: int = 0
    """Further pairs, which are less sure to speak of one thing, for which the judging agents had no room."""
    requests: tuple[AskedPassage, ...] = ()

    @property
    def findings(self) -> tuple[DocumentPair, ...]:
        """The pairs that an agent called a contradiction: first those with two passages that no earlier one has, since pairs that
        share a passage often state one contradiction."""
        seen = set[tuple[str, int]]()
        first, again = list[DocumentPair](), list[DocumentPair]()
        for pair in self.pairs:
            if pair.verdict == "contradiction":
                places = {(side.document, side.line) for side in (pair.first, pair.second)}
                (again if places & seen else first).append(pair)
                seen |= places
        return (*first, *again)
