"""The parts of a recorded prompt, as journals hold them: a line for each text, quoted message and document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from consilience.domain.document_shares import Lines


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text: `i` for the instructions of the session, `k` for its task, `t` for another one."""

    kind: Literal["i", "k", "t"]
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


@dataclass(frozen=True, slots=True)
class QuotedMessage:
    """A message that the prompt quotes under a label, which has no colon."""

    label: str
    message: str
    """Its id."""

    def __str__(self) -> str:
        return f"q:{self.label}:{self.message}"


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document, or lines of it."""

    id: str
    lines: Lines | None = None

    @property
    def reference(self) -> str:
        """Its name in the prompt: `S4`, or `S4:120-380` for lines."""
        return f"{self.id}:{self.lines[0]}-{self.lines[1]}" if self.lines else self.id

    def __str__(self) -> str:
        return f"s:{self.reference}"


@dataclass(frozen=True, slots=True)
class RelatedLines:
    """Lines of several documents that are shown together because they are related to what else the prompt shows."""

    parts: tuple[ShownDocument, ...]

    def __str__(self) -> str:
        return f"r:{','.join(part.reference for part in self.parts)}"


PromptPart = PromptText | QuotedMessage | ShownDocument | RelatedLines


def read_part(line: str) -> PromptPart:
    """Return the part that a line of a recorded prompt stands for."""
    kind, _, rest = line.partition(":")
    if kind == "q":
        return QuotedMessage(*rest.split(":", 1))
    if kind == "s":
        return _read_document(rest)
    if kind == "r":
        return RelatedLines(tuple(map(_read_document, rest.split(","))))
    return PromptText(kind, rest)  # type: ignore[arg-type]


def shown_documents(part: PromptPart) -> tuple[ShownDocument, ...]:
    """Return the documents, or lines of them, that a part shows."""
    match part:
        case ShownDocument():
            return (part,)
        case RelatedLines(parts):
            return parts
    return ()


def _read_document(reference: str) -> ShownDocument:
    id, _, lines = reference.partition(":")
    first, _, last = lines.partition("-")
    return ShownDocument(id, (int(first), int(last)) if lines else None)
