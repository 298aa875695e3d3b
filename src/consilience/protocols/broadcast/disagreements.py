"""Objections in the report of `broadcast`: disagreements of the last coordination and flags that stand, with their fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consilience.domain.report import Objection, ObjectionFate
from consilience.engine.analysis import MIN_RESTATED_OVERLAP
from consilience.engine.session import Session
from consilience.engine.similarity import jaccard
from consilience.engine.work import Reply
from consilience.protocols._common.conclusion import Conclusion
from consilience.protocols.broadcast.executions import BroadcastRun, Disagreement, Execution, IterationResult, TextReply
from consilience.protocols.broadcast.replies import CoordinatorSynthesis, Deciding
from consilience.protocols.broadcast.report import PastDisagreement
from consilience.protocols.broadcast.settings import BroadcastSettings


def all_objections(session: Session, settings: BroadcastSettings, course: BroadcastRun) -> Iterator[Objection]:
    """Every family's disagreements of its last coordination, from the leaves up, then critical flags and contradictions that stand
    at the root."""
    shown = session.shown()
    for iteration, rulings in _families(course):
        for child in iteration.children:
            for disagreement in child.disagreements:
                yield _disagreement(child.agent, disagreement, rulings, shown)
    root = course.rulings
    for flag in course.standing:
        critical = flag.tag in settings.critical_flags
        if not critical and flag.tag != "contradiction_detected":
            continue
        fate, ruling = _ruling(flag.message.id, root)
        parents = session.topology.parents.get(flag.node, ()) if critical else ()
        yield Objection(
            id=flag.message.id,
            agent=flag.node,
            to=next(iter(parents), ""),
            text=flag.message.text,
            read=flag.message.id in shown,
            fate="refuted" if fate == "refuted" and not critical else "stands",
            ruling=ruling,
        )


def past_disagreements(
    session: Session, runs: Sequence[Execution], objections: Sequence[Objection]
) -> Iterator[PastDisagreement]:
    """Disagreements before a family's last coordination that their author did not raise again in nearly the same words."""
    known = {objection.id for objection in objections}
    raised = [(objection.agent, objection.to, objection.text) for objection in objections]
    made = [(run, disagreement) for run in runs for disagreement in (*run.superseded, *run.disagreements)]
    for run, disagreement in reversed(made):
        to, text = disagreement.to, disagreement.text
        if disagreement.message.id in known or any(
            (run.agent, to) == (agent, target) and jaccard(text, words) >= MIN_RESTATED_OVERLAP
            for agent, target, words in raised
        ):
            continue
        known.add(disagreement.message.id)
        raised.append((run.agent, to, text))
        yield PastDisagreement(id=disagreement.message.id, agent=run.agent, to=to, text=text, path=run.path)


def _families(course: BroadcastRun) -> Iterator[tuple[IterationResult, Sequence[TextReply]]]:
    """The last iteration of every parent in its last execution, with the replies in which it may decide about disagreements."""
    if not course.iterations:
        return
    for child in course.iterations[-1].children:
        for run in child.last_walk():
            if run.iterations:
                yield run.iterations[-1], [run.response] if run.response is not None else []
    yield course.iterations[-1], course.rulings


def _disagreement(
    agent: str, disagreement: Disagreement, rulings: Sequence[TextReply], shown: frozenset[str]
) -> Objection:
    id = disagreement.message.id
    fate, ruling = _ruling(id, rulings)
    read = any(id in reply.shown for reply in rulings)
    return Objection(
        id=id,
        agent=agent,
        to=disagreement.to,
        text=disagreement.text,
        read=id in shown,
        fate=fate or ("stands" if read else "unanswered"),
        ruling=ruling,
    )


def _ruling(id: str, rulings: Sequence[TextReply]) -> tuple[ObjectionFate | None, str]:
    """The latest decision about a message: `refuted` if it is named in `against`, with the words there; `yielded` if the result
    takes its side."""
    for reply in reversed(rulings):
        value = reply.value
        if isinstance(value, Conclusion | CoordinatorSynthesis):
            for entry in value.against:
                if entry.text.strip() and _names(reply, entry.ids, id):
                    return "refuted", entry.text.strip()
        if isinstance(value, Deciding) and _names(reply, value.followed, id):
            return "yielded", ""
    return None, ""


def _names(reply: Reply[object], labels: Sequence[str], id: str) -> bool:
    return any(reply.labels.get(label.strip().strip("[]")) == id for label in labels)
