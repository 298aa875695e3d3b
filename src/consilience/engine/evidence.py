"""What agents read of the documents of a session, and whether their quotations are true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from consilience.domain.document_shares import Lines
from consilience.domain.events import CallCompleted, CallFailed, Ended
from consilience.domain.messages import Quotation, ReadDocument
from consilience.engine.sources import find_quotations
from consilience.engine.state import State


def quotations_in_replies(state: State, replies: Iterable[CallCompleted]) -> tuple[Quotation, ...]:
    """Quotations of documents in replies, in their order, verified. A repeated quotation is listed at each place."""
    if not state.opening.documents:
        return ()  # no text need be read
    messages = ((state.find_message(event.key), event) for event in replies)
    texts = ((message.text, event) for message, event in messages if message is not None)
    return tuple(q for text, event in texts for q in quotations_in(state, text, event.key, event.agent))


def quotations_in(state: State, text: str, key: str, agent: str) -> list[Quotation]:
    """Quotations in a text that an agent wrote in a call, verified against all that it was shown: documents, or the lines of them
    that the call named, and texts by others."""
    documents = state.opening.documents
    if not documents:
        return []
    opening, shown = state.opening, state.documents.get(key)
    told = state.told.get(key, opening.notes.get(agent, "") if shown is None else "")
    if shown is None and opening.index:
        shown = opening.documents_for(agent)  # of dealt documents, its share
    return find_quotations(text, documents, agent, shown=shown, read=(told, *_read_texts(state, key, agent)))


def _read_texts(state: State, key: str, agent: str) -> Iterator[str]:
    """Yield the texts by others that a call was shown, also those behind the agent's own texts: a text may repeat what it had read
    when it wrote the one before."""
    calls, seen = [_call_of(state, key)], set[str]()
    while calls:
        for id in state.shown.get(calls.pop(), ()):
            if id in seen:
                continue
            seen.add(id)
            message, call = state.message(id), _call_of(state, id)
            if message.sender == agent and call:
                calls.append(call)
            else:
                yield message.text


def _call_of(state: State, id: str) -> str:
    """Return the key of the call that a message is from, or is a part of; "" for one that the protocol made."""
    while id and id not in state.shown:
        id = id.rpartition("/")[0]
    return id


def read_documents(state: State, attempts: Iterable[Ended]) -> tuple[ReadDocument, ...]:
    """Return the documents, each with the agents that replied to a call which showed it."""
    documents = state.opening.documents
    shown: dict[str, dict[str, set[Lines | None]]] = {document.id: {} for document in documents}
    whole_readings = set[tuple[str, int]]()
    for event in attempts if documents else ():
        if isinstance(event, CallFailed):
            continue
        age = state.ages.get(event.key, 0)
        parts = state.documents.get(event.key)
        if parts is None:
            if (event.agent, age) in whole_readings:
                continue
            whole_readings.add((event.agent, age))
            parts = state.opening.documents_for(event.agent)
        for document in parts:
            if document.generations is None or document.generations >= age:  # else a fork added it after the call
                shown[document.id].setdefault(event.agent, set()).add(document.lines)
    return tuple(
        ReadDocument(
            id=document.id,
            name=document.name,
            lines=document.line_count,
            characters=len(document.text),
            agents=document.agents,
            remarks=document.remarks,
        ).read_by(shown[document.id])
        for document in documents
    )
