"""Publishes what a rated reply holds in addition to its text: flags, disagreements, and what its author finds missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from consilience.domain.messages import Message, is_empty_remark
from consilience.engine.analysis import MIN_RESTATED_OVERLAP
from consilience.engine.session import Session
from consilience.engine.similarity import jaccard
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import Conclusion
from consilience.protocols._common.tree_run import publish_from
from consilience.protocols.broadcast.executions import (
    AgentExecution,
    Disagreement,
    FlagRaised,
    Rated,
    Remarks,
    has_conclusion,
)
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
    """Publishes remarks as messages for their readers, and records ratings and flags as notes."""

    session: Session
    settings: BroadcastSettings
    labels: Mapping[str, str]

    def publish(self, run: AgentExecution, reply: Reply[Any] | Failure) -> Remarks:
        """Publish and return the remarks of `run`'s next reply."""
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

    def _flags(self, run: AgentExecution, reply: Reply[Any], value: RatedReply) -> tuple[FlagRaised, ...]:
        """Publish flags for the parents up to the root. One raised before in nearly the same words already stands."""
        raised: list[FlagRaised] = []
        texts = [(flag.tag, self.session.message(flag.id).text) for flag in run.flags]
        new: list[str] = []
        for entry in value.flags[:MAX_FLAGS]:
            text = f"{entry.tag}: {entry.text.strip()}".rstrip(": ")
            again = any(tag == entry.tag and jaccard(earlier, text) >= MIN_RESTATED_OVERLAP for tag, earlier in texts)
            if again or text in new:
                continue
            new.append(text)
            message = publish_from(self.session, reply, "flag", len(new), text, self._ancestors(run.agent))
            flag = FlagRaised(
                id=message.id,
                tag=entry.tag,
                severity=SEVERITY[entry.tag],
                critical=entry.tag in self.settings.critical_flags,
                node=run.agent,
                path=run.path,
                text=entry.text.strip(),
            )
            raised.append(flag)
            self.session.note("flag", flag)
        return tuple(raised)

    def _disagreements(self, run: AgentExecution, reply: Reply[Any], value: RatedReply) -> tuple[Disagreement, ...]:
        """Publish disagreements for siblings and the parent. Empty ones and those not with a sibling are dropped before the cap."""
        if not isinstance(value, Coordination | SealedCoordination):
            return ()
        made: list[Disagreement] = []
        siblings = self.session.topology.siblings(run.agent)
        readers = (*siblings, *self.session.topology.parents[run.agent])
        for entry in value.disagreements:
            target = next((self.session.message(id).sender for id in self.session.named(reply, [entry.to])), run.agent)
            if target not in siblings or is_empty_remark(entry.text) or len(made) == self.session.caps.objections:
                continue
            text = entry.text.strip()
            quoted = f"against {self.labels[target]}: {text}"
            message = publish_from(self.session, reply, "disagreement", len(made) + 1, quoted, readers)
            made.append(Disagreement(id=message.id, agent=run.agent, to=target, text=text, path=run.path))
        return tuple(made)

    def _missing(self, run: AgentExecution, reply: Reply[Any], value: RatedReply) -> Message | None:
        """Publish it for the parent, whose next broadcast it may cause."""
        parents = self.session.topology.parents.get(run.agent, ())
        if not isinstance(value, Reflecting) or not value.has_missing or not parents:
            return None
        return publish_from(self.session, reply, "missing", 1, value.missing.strip(), parents)

    def publish_conclusion(self, reply: Reply[Any]) -> Message | None:
        """Publish what the root declares in addition to its text, for its own reviews; None if it declares nothing."""
        value = reply.value
        assert isinstance(value, Conclusion)
        if not has_conclusion(value):
            return None
        lists = {
            "claims": [f"{claim.text} [{', '.join(claim.ids)}]" for claim in value.claims],
            "against": [f"{entry.text} [{', '.join(entry.ids)}]" for entry in value.against],
            "would_change": value.would_change,
            "unknown": value.unknown,
        }
        text = "\n".join("\n- ".join([f"{name}:", *entries]) for name, entries in lists.items() if entries)
        return publish_from(self.session, reply, "conclusion", 1, text, ())

    def _ancestors(self, agent: str) -> tuple[str, ...]:
        """Return its parents up to the root."""
        ancestors: list[str] = []
        while parents := self.session.topology.parents.get(agent):
            (agent,) = parents
            ancestors.append(agent)
        return tuple(ancestors)
