"""The fields that a closing call returns in addition to its text, and the report fields they fill."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel, Field

from consilience.domain.messages import ClaimReply, Claims, FreeText, Label, is_empty_remark
from consilience.domain.report import Against, Claim
from consilience.engine.session import Session
from consilience.engine.work import Reply

MAX_AGAINST, MAX_CONDITIONS = 3, 5
"""Entries of one reply that a report keeps: positions decided against; conditions and unknowns each."""
_BARE_LABEL = re.compile(r"[A-Z](\d+[a-z]?)*(\.\w+)?|[0-9a-f]{8}|unknown")


class AgainstReply(BaseModel):
    """The strongest position decided against and why, with the labels of the texts that hold it."""

    text: str
    ids: Annotated[list[Label], Field(json_schema_extra={"maxItems": 3})] = Field(default_factory=list)


Conditions = Annotated[list[str], Field(json_schema_extra={"maxItems": MAX_CONDITIONS})]


class Conclusion(BaseModel):
    """A text that may be the answer, with what it rests on, what it decided against and what would overturn it.

    A reply with further fields names this base first, which keeps `text` last: `class RootReply(Conclusion, AnswersObjections)`.
    """

    claims: Claims = Field(default_factory=list)
    against: Annotated[list[AgainstReply], Field(json_schema_extra={"maxItems": MAX_AGAINST})] = Field(
        default_factory=list
    )
    would_change: Conditions = Field(default_factory=list)
    unknown: Conditions = Field(default_factory=list)
    text: FreeText


class ConclusionFields(TypedDict):
    """Header fields of a report."""

    claims: tuple[Claim, ...]
    against: tuple[Against, ...]
    would_change: tuple[str, ...]
    unknown: tuple[str, ...]


def conclusion_fields(session: Session, answer: Reply[Conclusion] | None) -> ConclusionFields:
    """Return what a closing reply declares, for `session.report(..., **conclusion_fields(session, answer))`.

    Labels become message ids; a label that the call was not shown is dropped and counted. Entries without content are dropped.
    """
    if answer is None:
        return ConclusionFields(claims=(), against=(), would_change=(), unknown=())
    reply = answer.value
    against = [entry for entry in reply.against if not is_empty_remark(entry.text)][:MAX_AGAINST]
    return ConclusionFields(
        claims=claims_of(session, answer),
        against=tuple(Against(text=entry.text.strip(), ids=session.named(answer, entry.ids)) for entry in against),
        would_change=_conditions(reply.would_change),
        unknown=_conditions(reply.unknown),
    )


def _conditions(entries: Iterable[str]) -> tuple[str, ...]:
    """Drop bare labels and ids: small models copy into these lists what they were shown."""
    stated = [entry.strip() for entry in entries if not is_empty_remark(entry)]
    return tuple([entry for entry in stated if not _BARE_LABEL.fullmatch(entry)][:MAX_CONDITIONS])


def claims_of(session: Session, answer: Reply[Any] | None) -> tuple[Claim, ...]:
    """Return the claims of an answer that hold text, with their labels resolved to message ids.

    If documents were given, a claim is marked `from_memory` when neither it nor a text it cites holds a verified quotation.
    """
    if answer is None:
        return ()
    claims: Sequence[ClaimReply] = [claim for claim in answer.value.claims if claim.text.strip()]
    return tuple(_claim(session, answer, claim) for claim in claims[: session.caps.claims])


def _claim(session: Session, answer: Reply[Any], claim: ClaimReply) -> Claim:
    ids = session.named(answer, claim.ids)
    from_memory = bool(session.sources) and not _quotes_a_document(session, answer, claim.text, ids)
    return Claim(text=claim.text, ids=ids, from_memory=from_memory)


def _quotes_a_document(session: Session, answer: Reply[Any], text: str, ids: Sequence[str]) -> bool:
    cited = [session.message(id) for id in ids]
    quotations = [session.quotations(text, answer), *(session.quotations(message.text, message) for message in cited)]
    return any(quotation.verified for found in quotations for quotation in found)
