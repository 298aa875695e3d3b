"""Inventory first: before a protocol begins, each reader of dealt documents notes what its share states, as typed rows.

The engine checks the quotation of each row, joins the rows of all readers by entity and attribute, and shows each reader the pairs
of rows that one of its own is in; it says which of them are contradictions. From then on every agent is shown the contradictions of
documents that it may read. A protocol does nothing for this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from consilience.documents.joining import RowPair, StatedRow, join_rows
from consilience.domain.across import AcrossDocuments, DocumentPair, NotedPassage, PairVerdict
from consilience.domain.agents import Agent
from consilience.domain.tokens import estimate_tokens
from consilience.engine.document_index import reader_numbers
from consilience.engine.inventory_words import (
    PRIVATE_NOTE,
    compare_words,
    describe_pair,
    duty_of,
    findings_note,
    inventory_words,
    lines_around,
    requests_note,
)
from consilience.engine.passages import MAX_REQUESTS, PassageRequest, answer_requests, granted_parts
from consilience.engine.prompt import Opening, Prompt
from consilience.engine.readers import judging_tokens, readers_of
from consilience.engine.session import Session
from consilience.engine.sources import Document
from consilience.engine.state import State
from consilience.engine.work import Reply

INVENTORY, MATCHING = "inventory", "matching"
"""Phases, kinds of replies, and beginnings of keys."""
MAX_UNSHOWN_PAIRS = 50
"""Pairs in the report of which no agent may be shown both sides."""
MAX_QUOTATION_CHARS = 400
"""A longer quotation is cut there: its beginning is as true."""
MAX_FIELD_CHARS = 300
"""Any other text of a row or a judgement is cut there."""
MIN_FREE_WORDS = 3
"""Fewer words are accepted in the line that the row names only, since they may stand in many."""


_ID, _PAIR = re.compile(r"\bS\d{1,6}\b"), re.compile(r"\bP\d{1,6}\b")


def _first_number(value: object) -> object:
    """Return the first line of `12`, `"12"`, `"12-14"` or `"S4:12"`; 0 for anything else."""
    digits = str(value).rpartition(":")[2].partition("-")[0].strip()
    return int(digits[:9]) if digits.isdecimal() else 0


def _as_text(value: object) -> object:
    """Return a number or a truth value that stands for a text as one, and nothing as an empty one."""
    return "" if value is None else str(value) if isinstance(value, int | float) else value


def _objects(value: object) -> object:
    """Leave out of a list what is no object, so that the others count."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else value


FieldText = Annotated[str, BeforeValidator(_as_text)]


class InventoryRow(BaseModel):
    """What a passage states of one thing."""

    entity: FieldText = ""
    attribute: FieldText = ""
    value: FieldText = ""
    document: FieldText = ""
    line: Annotated[int, BeforeValidator(_first_number)] = 0
    quotation: FieldText = ""


class Inventory(BaseModel):
    """The first report of a reader of dealt documents."""

    rows: Annotated[list[InventoryRow], BeforeValidator(_objects)] = Field(default_factory=list)
    requests: Annotated[list[PassageRequest], Field(json_schema_extra={"maxItems": MAX_REQUESTS})] = Field(
        default_factory=list
    )


class PairJudgement(BaseModel):
    """What a reader says of a pair of rows."""

    pair: FieldText = ""
    says: Annotated[
        Literal["contradiction", "no contradiction"],
        BeforeValidator(lambda said: said.strip(" .").lower() if isinstance(said, str) else said),
    ]
    why: FieldText = ""
    first_worth: FieldText = ""
    second_worth: FieldText = ""


class PairJudgements(BaseModel):
    pairs: Annotated[list[PairJudgement], BeforeValidator(_objects)] = Field(default_factory=list)


async def take_inventories(session: Session, state: State) -> None:
    """Ask the readers for their inventories, join and judge them, and note what every later prompt shows of it."""
    tokens, opening = state.started.inventory_tokens, state.opening
    readers = readers_of(opening.documents, session.agents) if tokens else []
    if not readers:
        return
    least = state.started.estimate.min + len(readers)  # which counts one call of each
    is_fork = state.started.parent is not None  # its parent has paid for them
    if session.limits.calls is not None and session.limits.calls < least and not is_fork:
        session.warn("no inventories of the documents: the limit on calls has no room for them")
        return
    state.told |= {f"{INVENTORY}/{reader.id}": "" for reader in readers}
    duties = {reader.id: duty_of(reader, n) for n, reader in enumerate(readers)}
    closed = [document for document in opening.documents if document.agents is not None]
    private = {
        reader.id: PRIVATE_NOTE if any(reader.id in (document.agents or ()) for document in closed) else ""
        for reader in readers
    }
    notes = {reader.id: (duties[reader.id], private[reader.id]) for reader in readers}
    inventories = await _inventories(session, readers, notes, tokens, opening.aside_tokens)
    rows, dropped = _checked_rows(inventories, opening)
    asked = tuple(
        passage
        for reply in inventories
        for passage in answer_requests(
            reply.agent,
            reply.value.requests,
            opening.documents,
            opening.documents_for(reply.agent),
            opening.aside_tokens,
        )
    )
    granted = {reader.id: granted_parts(asked, reader.id, opening.documents) for reader in readers}
    for reader in readers:  # the passages that follow were not in its first prompt
        state.documents[f"{INVENTORY}/{reader.id}"] = opening.documents_for(reader.id)
    room = judging_tokens(tokens, opening.window)
    dealt = _Pairs(join_rows(rows), opening.documents, [reader.id for reader in readers], room)
    fates = {reader.id: requests_note(passage for passage in asked if passage.agent == reader.id) for reader in readers}
    told = {reader.id: "\n\n".join(filter(None, (private[reader.id], fates[reader.id]))) for reader in readers}
    judgements = await _judge(session, state, dealt, granted, told)
    pairs = [_pair(pair, judgements.get(n), dealt.judges.get(n, "")) for n, pair in dealt.reported()]
    state.across = AcrossDocuments(
        rows=len(rows), rows_dropped=dropped, pairs=tuple(pairs), left_out=dealt.left_out, requests=asked
    )
    for warning in _warnings(state.across):
        session.warn(warning)
    shown = {agent.id: _findings_for(agent.id, state.across, opening) for agent in session.agents}
    for reader in readers:
        shown[reader.id] = "\n\n".join(filter(None, (duties[reader.id], fates[reader.id], shown[reader.id])))
    state.opening = replace(opening, notes=shown, granted=granted)


async def _inventories(
    session: Session, readers: Sequence[Agent], notes: Mapping[str, Sequence[str]], tokens: int, passage_tokens: int
) -> list[Reply[Inventory]]:
    async with session.phase(INVENTORY, 1):
        replies = await session.gather(
            [
                session.ask(
                    reader.id,
                    Prompt(
                        inventory_words(reader, notes[reader.id], tokens, passage_tokens), asks_for_quotations=False
                    ),
                    key=f"{INVENTORY}/{reader.id}",
                    returns=Inventory,
                    kind=INVENTORY,
                    max_tokens=tokens,
                )
                for reader in readers
            ]
        )
    return [reply for reply in replies if isinstance(reply, Reply)]


def _checked_rows(replies: Sequence[Reply[Inventory]], opening: Opening) -> tuple[list[StatedRow], int]:
    """Return the rows whose words stand in lines that their reader was shown, at the place where they do, and how many others
    there are."""
    rows, dropped = list[StatedRow](), 0
    for reply in replies:
        shown: dict[str, list[Document]] = {}
        for part in opening.documents_for(reply.agent):
            shown.setdefault(part.id, []).append(part)
        for row in reply.value.rows:
            stated = _checked(row, reply.agent, shown)
            rows += [stated] if stated else []
            dropped += stated is None
    return rows, dropped


def _checked(row: InventoryRow, reader: str, shown: Mapping[str, Sequence[Document]]) -> StatedRow | None:
    words = " ".join(row.quotation.split())[:MAX_QUOTATION_CHARS].strip('"“” ')
    if not (words and row.entity.strip() and row.attribute.strip() and row.value.strip()):
        return None
    named = _ID.search(row.document)
    id = named[0] if named else ""
    places = [lines[0] for part in shown.get(id, ()) if (lines := part.find(words, row.line))]
    if not places:
        return None
    line = min(places, key=lambda place: (abs(place - row.line), place))
    if line != row.line and len(words.split()) < MIN_FREE_WORDS:
        return None
    fields = (" ".join(text.split())[:MAX_FIELD_CHARS] for text in (row.entity, row.attribute, row.value))
    return StatedRow(reader, id, line, words, *fields)


@dataclass
class _Pairs:
    """Which pairs are shown to which reader: one of the two that noted them, the one with more room, as long as there is any."""

    pairs: Sequence[RowPair]
    documents: Sequence[Document]
    readers: Sequence[str]
    room: int
    """Tokens of pairs, at most, for each reader."""
    judges: dict[int, str] = field(default_factory=dict)
    """By pair."""
    unshown: list[int] = field(default_factory=list)
    """Pairs of which neither reader may be shown both sides."""
    left_out: int = 0
    described: dict[int, str] = field(default_factory=dict)
    """The pairs as their judges are shown them: the surest with the lines around, where there is room left."""

    def __post_init__(self) -> None:
        used = Counter[str]()
        open_to = {document.id: document.agents for document in self.documents}
        for n, pair in enumerate(self.pairs):
            sides = [open_to[row.document] for row in (pair.first, pair.second)]
            may = [
                reader
                for reader in dict.fromkeys((pair.first.reader, pair.second.reader))
                if all(agents is None or reader in agents for agents in sides)
            ]
            if not may and len(self.unshown) < MAX_UNSHOWN_PAIRS:
                self.unshown.append(n)
                continue
            size = estimate_tokens(describe_pair(n, pair))
            judge = min(may, key=lambda reader: (used[reader], self.readers.index(reader)), default="")
            if not judge or used[judge] + size > self.room:
                self.left_out += 1
                continue
            used[judge] += size
            self.judges[n] = judge
        lines = {document.id: document.text.splitlines() for document in self.documents if self.judges}
        for n, judge in self.judges.items():
            pair = self.pairs[n]
            plain = describe_pair(n, pair)
            whole = describe_pair(
                n, pair, [lines_around(row, lines[row.document]) for row in (pair.first, pair.second)]
            )
            more = estimate_tokens(whole) - estimate_tokens(plain)
            fits = used[judge] + more <= self.room
            used[judge] += more * fits
            self.described[n] = whole if fits else plain

    def shown_to(self, reader: str) -> list[int]:
        return [n for n, judge in self.judges.items() if judge == reader]

    def reported(self) -> Iterator[tuple[int, RowPair]]:
        for n in sorted((*self.judges, *self.unshown)):
            yield n, self.pairs[n]


async def _judge(
    session: Session,
    state: State,
    dealt: _Pairs,
    granted: Mapping[str, Sequence[Document]],
    told: Mapping[str, str],
) -> dict[int, PairJudgement]:
    """Ask each reader about the pairs that it is shown, beside the passages that it asked for; return the judgements by pair."""
    asked = {reader: pairs for reader in dealt.readers if (pairs := dealt.shown_to(reader))}
    words = {
        reader: compare_words([dealt.described[n] for n in pairs], told[reader]) for reader, pairs in asked.items()
    }
    state.told |= {f"{MATCHING}/{reader}": text for reader, text in words.items()}
    async with session.phase(MATCHING, 1):
        replies = await session.gather(
            [
                session.ask(
                    reader,
                    Prompt(words[reader], documents=(), related=tuple(d.reference for d in granted[reader])),
                    key=f"{MATCHING}/{reader}",
                    returns=PairJudgements,
                    kind=MATCHING,
                    max_tokens=dealt.room,
                )
                for reader in asked
            ]
        )
    judgements: dict[int, PairJudgement] = {}
    for reply in replies:
        if isinstance(reply, Reply):
            labels = {f"P{n + 1}": n for n in asked[reply.agent]}
            for judgement in reply.value.pairs:
                named = _PAIR.search(judgement.pair.upper())
                if named and (n := labels.get(named[0])) is not None:
                    judgements.setdefault(n, judgement)
    return judgements


def _pair(pair: RowPair, judgement: PairJudgement | None, judge: str) -> DocumentPair:
    worth = (judgement.first_worth, judgement.second_worth) if judgement else ("", "")
    first, second = (
        NotedPassage(
            document=row.document,
            line=row.line,
            words=row.words,
            value=row.value,
            reader=row.reader,
            worth=words.strip()[:MAX_FIELD_CHARS],
        )
        for row, words in zip((pair.first, pair.second), worth, strict=True)
    )
    verdict: PairVerdict = judgement.says if judgement else "not judged"
    return DocumentPair(
        entity=pair.first.entity,
        attribute=pair.first.attribute,
        first=first,
        second=second,
        verdict=verdict,
        judge=judge if judgement else "",
        why=judgement.why.strip()[:MAX_FIELD_CHARS] if judgement else "",
    )


def _findings_for(agent: str, across: AcrossDocuments, opening: Opening) -> str:
    """Return the contradictions between documents that the agent may read, as its prompts show them."""
    open_to = {document.id: document.agents for document in opening.documents}
    allowed = [
        pair
        for pair in across.findings
        if all((agents := open_to[id]) is None or agent in agents for id in pair.documents)
    ]
    return findings_note(allowed, reader_numbers(opening.documents), opening.aside_tokens)


def _warnings(across: AcrossDocuments) -> Iterator[str]:
    if across.rows_dropped:
        yield (
            f"inventories: {across.rows_dropped:,} of {across.rows + across.rows_dropped:,} rows left out, because their "
            "quotation is not in the lines that their reader was shown"
        )
    if across.left_out:
        yield f"inventories: {across.left_out:,} pairs of rows with different values were shown to no agent, for want of room"
