"""The parts of a recorded prompt, as journals hold them: a line for each text, quoted message and document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from consilience.domain.messages import Lines


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


PromptPart = PromptText | QuotedMessage | ShownDocument


def read_part(line: str) -> PromptPart:
    """Return the part that a line of a recorded prompt stands for."""
    kind, _, rest = line.partition(":")
    if kind == "q":
        return QuotedMessage(*rest.split(":", 1))
    if kind == "s":
        id, _, lines = rest.partition(":")
        first, _, last = lines.partition("-")
        return ShownDocument(id, (int(first), int(last)) if lines else None)
    return PromptText(kind, rest)  # type: ignore[arg-type]
