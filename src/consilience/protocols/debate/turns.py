"""What a published message changes: the typed fields of each move, taken into the state of its thread."""

from __future__ import annotations

from typing import Any

from consilience.domain.positions import LEVELS
from consilience.engine.work import Reply
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.moves import LEADS, MOVES, TopSide, is_question, would_flip
from consilience.protocols.debate.notes import SteelmanGraded, SteelmanNote
from consilience.protocols.debate.records import (
    Commitment,
    Concession,
    DebateMessage,
    Evidence,
    SteelmanAttempt,
)
from consilience.protocols.debate.replies import (
    CommitReply,
    FalsifierTurn,
    GradeTurn,
    SteelmanTurn,
    TurnReply,
    falsifier_of,
)
from consilience.protocols.debate.threads import Thread


def spoken_words(floor: Floor, message: DebateMessage, value: Any, of: str | None) -> str:
    """The words by which prompts quote a message: its move, what it answers, its text and its typed parts."""
    target = floor.by_id.get(message.reply_to or "")
    about = f" of {floor.letters[of]}" if of else f" on {target.label}" if target else ""
    first = f"{message.move}{about}"
    match value:
        case CommitReply():
            first = f"COMMIT_POSITION {value.side}, {value.confidence}, horizon {value.horizon}"
        case GradeTurn():
            first = f"GRADE_STEELMAN{about} {value.grade}"
        case _:
            pass
    return f"{first}: {message.words}"


def declared_parts(value: Any) -> tuple[str, ...]:
    """What a reply declares beside its text, in words."""
    parts: list[str] = []
    match value:
        case CommitReply() | FalsifierTurn():
            if (falsifier := falsifier_of(value)) is not None:
                parts.append(f"{LEADS['metric']}: {falsifier.words()}.")
        case SteelmanTurn():
            parts.append(f"{LEADS['metric']}: {value.falsifier_represented}")
        case GradeTurn() if value.grade != "ACCURATE":
            parts.append(f"{LEADS['corrections']}: {value.corrections}")
        case TurnReply():
            parts += _turn_parts(value)
        case _:
            pass
    return tuple(parts)


def _turn_parts(value: TurnReply) -> list[str]:
    said = {name: getattr(value, name, "").strip() for name in MOVES[value.move].fields if name in LEADS}
    if "metric" in said:
        named = (" ".join(getattr(value, name, "").split()) for name in ("metric", "threshold", "deadline"))
        said["metric"] = ", ".join(filter(None, named))
    return [f"{lead}: {said[name]}" for name, lead in LEADS.items() if said.get(name, "") not in ("", "unchanged")]


def record_turn(
    floor: Floor,
    thread: Thread,
    message: DebateMessage,
    reply: Reply[Any],
    of: str | None,
    earlier: SteelmanAttempt | None,
) -> None:
    """Take a published reply into its thread."""
    match reply.value:
        case CommitReply():
            _commit(thread, message, reply.value)
        case FalsifierTurn():
            _declare(thread, message.agent, reply.value)
        case SteelmanTurn():
            assert of is not None
            _steelman(floor, thread, message, of, reply.value)
        case GradeTurn():
            assert earlier is not None
            _grade(floor, thread, message, reply.value, earlier)
        case TurnReply():
            _turn(floor, thread, message, reply.value)


def _commit(thread: Thread, message: DebateMessage, value: CommitReply) -> None:
    agent = message.agent
    thread.commitments[agent] = Commitment(
        agent=agent,
        side=value.side,
        statement=message.text,
        confidence=LEVELS[value.confidence],
        horizon=value.horizon,
        falsifier=falsifier_of(value),
        would_flip=value.would_flip,
        gives_up_if=value.gives_up_if,
        flip_confidence=LEVELS[value.flip_confidence],
        why=value.why.strip(),
        message=message.id,
    )
    if agent in thread.to_commit:
        thread.to_commit.remove(agent)


def _declare(thread: Thread, agent: str, value: FalsifierTurn) -> None:
    falsifier, commitment = falsifier_of(value), thread.commitments.get(agent)
    if agent in thread.to_falsify:
        thread.to_falsify.remove(agent)
    if falsifier is not None and commitment is not None:
        thread.commitments[agent] = commitment.model_copy(update={"falsifier": falsifier})


def _update(thread: Thread, message: DebateMessage, value: TurnReply) -> None:
    """Replace in a commitment what an update or a concession changes. A falsifier of another position holds no more."""
    before = thread.commitments.get(message.agent)
    if before is None:
        return
    moved = message.new_side not in (None, before.side)
    update: dict[str, object] = {"falsifier": falsifier_of(value, kept=None if moved else before.falsifier)}
    level: Any = getattr(value, "confidence", "unchanged")
    if level != "unchanged":
        update["confidence"] = LEVELS[level]
    if message.new_side is not None:
        update |= {"side": message.new_side, "statement": message.text, "message": message.id}
        if before.gives_up_if is not None:
            update["would_flip"] = would_flip(message.new_side, before.gives_up_if)
    thread.commitments[message.agent] = before.model_copy(update=update)


def _steelman(floor: Floor, thread: Thread, message: DebateMessage, of: str, value: SteelmanTurn | TurnReply) -> None:
    attempt = SteelmanAttempt(
        agent=message.agent,
        of=of,
        claim=getattr(value, "claim_represented", message.text).strip(),
        reason=getattr(value, "strongest_reason", "").strip(),
        falsifier=getattr(value, "falsifier_represented", "").strip(),
        message=message.id,
        required=(message.agent, of) in (thread.required or ()),
    )
    thread.steelmen.append(attempt)
    shared = attempt.model_dump(include={"agent", "of", "message", "required"})
    floor.note(SteelmanNote(at=floor.now, thread=thread.id, **shared))


def _grade(floor: Floor, thread: Thread, message: DebateMessage, value: GradeTurn, earlier: SteelmanAttempt) -> None:
    place = next(n for n, steelman in enumerate(thread.steelmen) if steelman.message == earlier.message)
    corrections = "" if value.grade == "ACCURATE" else value.corrections.strip()
    thread.steelmen[place] = earlier.model_copy(update={"grade": value.grade, "corrections": corrections})
    note = SteelmanGraded(
        at=floor.now,
        thread=thread.id,
        agent=earlier.agent,
        of=earlier.of,
        grade=value.grade,
        corrections=corrections,
    )
    floor.note(note)


def _turn(floor: Floor, thread: Thread, message: DebateMessage, value: Any) -> None:
    question = " ".join(getattr(value, "question", "").split())
    if "question" in MOVES[value.move].fields and is_question(question):
        floor.question_of[message.id] = question
    match value.move:
        case "PROPOSE_CRUX" if thread.stage == "DISCOVERY":
            thread.propose(message, question)
            floor.progress()
        case "PROVIDE_EVIDENCE":
            verified = sum(quotation.verified for quotation in message.quotations)
            thread.evidence.append(
                Evidence(
                    agent=message.agent,
                    text=message.text,
                    message=message.id,
                    at=message.at,
                    bears_on=message.bears_on,
                    verified=verified,
                )
            )
        case "UPDATE_POSITION":
            _update(thread, message, value)
        case "CONCEDE":
            thread.concessions.append(_concession(floor, message, value))
            _update(thread, message, value)
        case "STEELMAN":
            _steelman(floor, thread, message, floor.agent_of[value.steelman_of], value)
        case _:
            pass
    claim = " ".join(getattr(value, "claim", "").split())
    if claim and message.top_claim is not None:
        floor.claims[message.agent] = claim
    for id in message.refs:
        thread.support(id, message.agent)


def _concession(floor: Floor, message: DebateMessage, value: Any) -> Concession:
    opening = floor.openings.get(message.agent)
    before: TopSide | None = None
    if message.top_claim is not None and opening is not None and opening.positions:
        before = "NUANCED" if opening.positions[0] == "UNCERTAIN" else opening.positions[0]
    return Concession(
        agent=message.agent,
        proposition=value.conceded.strip(),
        message=message.id,
        top_claim=message.top_claim,
        before=before,
    )
