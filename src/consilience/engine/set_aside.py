"""What later calls will cost, kept from the calls made before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from consilience.domain.tokens import estimate_tokens
from consilience.engine.sizes import NOTHING

if TYPE_CHECKING:
    from consilience.engine.ledger import BranchBudget
    from consilience.engine.state import State
    from consilience.engine.work import Ask


class SetAside:
    """A context manager: inside its `with` block, `keep` sets the amount."""

    def __init__(self, state: State, budget: BranchBudget) -> None:
        self._state, self._budget = state, budget
        self._held = budget.set_aside()

    def __enter__(self) -> SetAside:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.join(self._budget)

    def keep(self, asks: Callable[[], Sequence[Ask[Any]]], growth: int = 0) -> None:
        """Keep what these calls cost if their prompts become `growth` characters longer, or what is left of that, in place of what
        was kept before. Without a limit on calls, tokens or money nothing is kept, and `asks` is not called."""
        if not self._budget.limited:
            return
        sizes, more = self._state.ledger.sizes, estimate_tokens("x" * growth)
        needs = [
            sizes.ask(ask.agent, self._state.render(ask.agent, ask.prompt).tokens + more, ask.max_tokens).need
            for ask in asks()
        ]
        self._held.hold(sum(needs, NOTHING))
