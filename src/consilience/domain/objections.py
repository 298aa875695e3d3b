"""Objections to the texts of other agents, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from consilience.domain.validation import Frozen

ObjectionFate = Literal["yielded", "refuted", "stands", "unanswered"]
"""The outcome of an objection. `yielded`: the target changed its text. `refuted`: the target refuted it. `stands`: it was raised
again after a refutation. `unanswered`: the run ended before the target's next turn."""


OUTCOMES: Mapping[str | None, str] = {
    "yielded": "Conceded",
    "refuted": "Refuted",
    "upheld": "Upheld",
    "rejected": "Rejected",
    None: "Open",
}
"""Fates and rulings as readers see them."""


class Objection(Frozen):
    """An objection to a text of another agent."""

    id: str
    agent: str
    to: str
    """The agent whose text is objected to."""
    text: str
    read: bool
    """Whether a later prompt quoted it."""
    fate: ObjectionFate | None = None
    """None in old sessions, which list only unanswered objections."""
    how: str = ""
    """The target's answer, in its words."""
    answer: str | None = None
    """Id of the message with the target's answer, if the protocol has separate messages for answers. If that is an objection, too,
    both are one disagreement."""
    ruled: Literal["upheld", "rejected"] | None = None
    """The ruling of the common parent of both agents: its text follows the objection or not. None without a ruling."""
    ruling: str = ""
    """The decision of their common parent, in its words."""

    @property
    def is_met(self) -> bool:
        """Whether its target yielded to it or refuted it."""
        return self.fate in ("yielded", "refuted")

    @property
    def outcome(self) -> str:
        """The outcome for readers: that of its target if it met it, else that of a ruling, else `Open`."""
        return OUTCOMES[self.fate if self.is_met else self.ruled]

    @property
    def ruling_words(self) -> str:
        """The ruling for readers, led by `upheld` where its target refuted it; empty without one, and if the target conceded."""
        is_contrary = self.fate == "refuted" and self.ruled == "upheld"
        words = ": ".join(filter(None, (OUTCOMES["upheld"].lower() if is_contrary else "", self.ruling)))
        return f"Ruling: {words}" if words and self.fate != "yielded" else ""

    @property
    def is_open(self) -> bool:
        """Whether neither its target met it nor their common parent followed it."""
        return not self.is_met and self.ruled != "upheld"
