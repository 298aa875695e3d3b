"""What a session knows of its messages, and what it says of itself in its report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from consilience.domain.messages import Message, Quotation, bare_label
from consilience.engine.evidence import quotations_in
from consilience.engine.header import call_usage
from consilience.engine.prompt import Quote
from consilience.engine.state import State
from consilience.engine.work import Reply, current_branch


class Messages:
    """The part of a `Session` that looks things up, and takes no places."""

    def __init__(self, state: State) -> None:
        self._state = state

    def message(self, id: str) -> Message:
        return self._state.message(id)

    def quote(self, reply: Reply[Any] | Message, label: str) -> Quote:
        return Quote(reply.key if isinstance(reply, Reply) else reply.id, label)

    def named(self, reply: Reply[Any], labels: Iterable[str]) -> tuple[str, ...]:
        """Return the ids of the messages whose labels a reply names, in order, once each. The report counts and names others."""
        ids: dict[str, None] = {}
        for label in labels:
            id = reply.labels.get(bare_label(label))
            if id is None:
                self._state.dropped[" ".join(label.split())] += 1
            else:
                ids[id] = None
        return tuple(ids)

    def quotations(self, text: str, quoting: Reply[Any] | Message) -> list[Quotation]:
        """Quotations of documents in a part of a reply or message, verified against the lines and texts that its call was shown."""
        key, agent = (quoting.key, quoting.agent) if isinstance(quoting, Reply) else (quoting.id, quoting.sender)
        return quotations_in(self._state, text, key, agent)

    @property
    def dropped(self) -> int:
        """Number of labels that replies named without having been shown them."""
        return self._state.dropped.total()

    def shown(self) -> frozenset[str]:
        """Ids of all messages that any call was shown so far. Read it only when all branches have joined."""
        return frozenset().union(*self._state.shown.values())

    def spent_on(self, key: str) -> tuple[int, int, float | None]:
        """Return tokens read, tokens written and the cost of a call that has ended, all its attempts together."""
        return call_usage(self._state, key)

    def warn(self, text: str) -> None:
        """Add a sentence to the report's warnings."""
        self._state.warnings.append((current_branch.get().prefix, text))
