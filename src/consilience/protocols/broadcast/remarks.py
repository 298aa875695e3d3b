"""What a rated reply holds beside its text, published as messages: flags, disagreements, what its author finds missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.domain.messages import Message, is_empty_remark
from consilience.engine.analysis import MIN_RESTATED_OVERLAP
from consilience.engine.session import Session
from consilience.engine.similarity import jaccard
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import Conclusion
from consilience.protocols.broadcast.executions import Disagreement, Execution, RaisedFlag, Remarks, declares
from consilience.protocols.broadcast.notes import FlagRaised, Rated
from consilience.protocols.broadcast.replies import (
    MAX_FLAGS,
    SEVERITY,
    Coordination,
    RatedReply,
    Reflecting,
    SealedCoordination,
)
from consilience.protocols.broadcast.settings import BroadcastSettings


@dataclass(frozen=True)
class Publisher:
    """Publishes remarks for those who may read them, and notes ratings and flags for views."""

    session: Session
    settings: BroadcastSettings
    labels: Mapping[str, str]

    def publish(self, run: Execution, reply: Reply[Any] | Failure) -> Remarks:
        """The remarks of `run`'s next reply; none of a failed call."""
        if isinstance(reply, Failure):
            return Remarks()
        value = reply.value
        assert isinstance(value, RatedReply)
        self.session.note("rating", Rated(agent=run.agent, path=run.path, call=reply.key, rating=value.rating))
        return Remarks(
            flags=self._flags(run, reply, value),
            disagreements=self._disagreements(run, reply, value),
            missing=self._missing(run, reply, value),
            surplus=len(value.flags[MAX_FLAGS:]),
        )

    def _flags(self, run: Execution, reply: Reply[Any], value: RatedReply) -> tuple[RaisedFlag, ...]:
        """For its parents up to the root. One raised before in nearly the same words stands already."""
        made: list[RaisedFlag] = []
        for given in value.flags[:MAX_FLAGS]:
            text = f"{given.tag}: {given.text.strip()}".rstrip(": ")
            again = any(
                flag.tag == given.tag and jaccard(flag.message.text, text) >= MIN_RESTATED_OVERLAP for flag in run.flags
            )
            if again or any(flag.message.text == text for flag in made):
                continue
            message = self._message(reply, "flag", len(made) + 1, text, self._above(run.agent))
            made.append(RaisedFlag(given.tag, message))
            self.session.note(
                "flag",
                FlagRaised(
                    id=message.id,
                    tag=given.tag,
                    severity=SEVERITY[given.tag],
                    critical=given.tag in self.settings.critical_flags,
                    node=run.agent,
                    path=run.path,
                    text=given.text.strip(),
                ),
            )
        return tuple(made)

    def _disagreements(self, run: Execution, reply: Reply[Any], value: RatedReply) -> tuple[Disagreement, ...]:
        """For siblings and the parent. Void ones (empty, or not against a sibling) are left out before the cap."""
        if not isinstance(value, Coordination | SealedCoordination):
            return ()
        made: list[Disagreement] = []
        siblings = self.session.topology.siblings(run.agent)
        for given in value.disagreements:
            target = next((self.session.message(id).sender for id in self.session.named(reply, [given.to])), run.agent)
            if target not in siblings or is_empty_remark(given.text) or len(made) == self.session.caps.objections:
                continue
            text = given.text.strip()
            near = (*siblings, *self.session.topology.parents[run.agent])
            said = f"against {self.labels[target]}: {text}"
            made.append(Disagreement(target, text, self._message(reply, "disagreement", len(made) + 1, said, near)))
        return tuple(made)

    def _missing(self, run: Execution, reply: Reply[Any], value: RatedReply) -> Message | None:
        """For the parent, whose next broadcast it may cause."""
        parents = self.session.topology.parents.get(run.agent, ())
        if not isinstance(value, Reflecting) or not value.wanting or not parents:
            return None
        return self._message(reply, "missing", 1, value.missing.strip(), parents)

    def conclusion(self, reply: Reply[Any]) -> Message | None:
        """What the root declares beside its text, for its own reviews; None if it declares nothing."""
        value = reply.value
        assert isinstance(value, Conclusion)
        if not declares(value):
            return None
        claims, against = (
            [f"{e.text} [{', '.join(e.ids)}]" for e in entries] for entries in (value.claims, value.against)
        )
        lists = {"claims": claims, "against": against, "would_change": value.would_change, "unknown": value.unknown}
        lines = [
            line for name, entries in lists.items() if entries for line in (f"{name}:", *(f"- {e}" for e in entries))
        ]
        return self._message(reply, "conclusion", 1, "\n".join(lines), ())

    def _message(self, reply: Reply[Any], kind: str, n: int, text: str, audience: Sequence[str]) -> Message:
        message = Message(
            id=f"{reply.key}/{kind}-{n}",
            sender=reply.agent,
            kind=kind,
            text=text,
            audience=tuple(audience),
            reply_to=reply.key,
            phase=self.session.message(reply.key).phase,
        )
        self.session.publish(message)
        return message

    def _above(self, agent: str) -> tuple[str, ...]:
        """Its parents up to the root."""
        found: list[str] = []
        while parents := self.session.topology.parents.get(agent):
            (agent,) = parents
            found.append(agent)
        return tuple(found)
