"""What a published message changes: the typed fields of each move, taken into the state of its thread."""

from __future__ import annotations

from typing import Any

from consilience.domain.positions import LEVELS
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.moves import LEADS, MOVES, TopSide, is_question, would_flip
from consilience.protocols.debate.notes import SteelmanGraded
from consilience.protocols.debate.records import Commitment, DebateMessage, SteelmanAttempt
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


def declared_in(floor: Floor, message: DebateMessage, value: Any) -> dict[str, Any]:
    """What a free turn adds to its thread beside its message: a question that it proposes, what it concedes."""
    question = " ".join(getattr(value, "question", "").split())
    proposes = isinstance(value, TurnReply) and value.move in ("PROPOSE_CRUX", "REFRAME") and is_question(question)
    declared: dict[str, Any] = {"question": question} if proposes else {}
    if message.move == "CONCEDE":
        declared |= {"conceded": value.conceded.strip(), "before": _claim_before(floor, message)}
    return declared


def _claim_before(floor: Floor, message: DebateMessage) -> TopSide | None:
    opening = floor.openings.get(message.agent)
    if message.top_claim is None or opening is None or not opening.positions:
        return None
    return "NUANCED" if opening.positions[0] == "UNCERTAIN" else opening.positions[0]


def record_turn(
    floor: Floor, thread: Thread, message: DebateMessage, value: Any, of: str | None, earlier: SteelmanAttempt | None
) -> None:
    """Record what a published reply declares in its thread."""
    held, agent = thread.commitments.get(message.agent), message.agent
    match value:
        case CommitReply():
            floor.note(_commitment(message, value))
            if agent in thread.to_commit:
                thread.to_commit.remove(agent)
        case FalsifierTurn():
            if agent in thread.to_falsify:
                thread.to_falsify.remove(agent)
            if held is not None and (falsifier := falsifier_of(value)) is not None:
                floor.note(held.model_copy(update={"falsifier": falsifier, "statement": ""}))
        case GradeTurn():
            assert earlier is not None
            corrections = "" if value.grade == "ACCURATE" else value.corrections.strip()
            graded = {"message": earlier.message, "grade": value.grade, "corrections": corrections}
            floor.note(SteelmanGraded(at=floor.now, **graded))
        case TurnReply(move="UPDATE_POSITION" | "CONCEDE") if held is not None:
            floor.note(_updated(held, message, value))
        case TurnReply(move="STEELMAN"):
            named: str = getattr(value, "steelman_of", "")
            _steelman(floor, thread, message, floor.agent_of[named], value)
        case SteelmanTurn():
            assert of is not None
            _steelman(floor, thread, message, of, value)
    if isinstance(value, TurnReply):
        claim = " ".join(getattr(value, "claim", "").split())
        if claim and message.top_claim is not None:
            floor.claims[agent] = claim


def _commitment(message: DebateMessage, value: CommitReply) -> Commitment:
    return Commitment(
        agent=message.agent,
        side=value.side,
        confidence=LEVELS[value.confidence],
        horizon=value.horizon,
        falsifier=falsifier_of(value),
        would_flip=value.would_flip,
        gives_up_if=value.gives_up_if,
        flip_confidence=LEVELS[value.flip_confidence],
        why=value.why.strip(),
        message=message.id,
    )


def _updated(before: Commitment, message: DebateMessage, value: TurnReply) -> Commitment:
    """A commitment with what an update or a concession changes. A falsifier of another position holds no more."""
    moved = message.new_side not in (None, before.side)
    falsifier = falsifier_of(value, kept=None if moved else before.falsifier)
    update: dict[str, object] = {"falsifier": falsifier, "statement": ""}
    level: Any = getattr(value, "confidence", "unchanged")
    if level != "unchanged":
        update["confidence"] = LEVELS[level]
    if message.new_side is not None:
        update |= {"side": message.new_side, "message": message.id}
        if before.gives_up_if is not None:
            update["would_flip"] = would_flip(message.new_side, before.gives_up_if)
    return before.model_copy(update=update)


def _steelman(floor: Floor, thread: Thread, message: DebateMessage, of: str, value: SteelmanTurn | TurnReply) -> None:
    steelman = SteelmanAttempt(
        agent=message.agent,
        of=of,
        claim=getattr(value, "claim_represented", message.text).strip(),
        reason=getattr(value, "strongest_reason", "").strip(),
        falsifier=getattr(value, "falsifier_represented", "").strip(),
        message=message.id,
        required=(message.agent, of) in (thread.required or ()),
    )
    floor.note(steelman)
