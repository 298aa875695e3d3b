"""Any protocol as a node of somebody's graph: synchronous or not, interrupted for people, always the same session."""

from __future__ import annotations

import hashlib
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from consilience.blocking import run_blocking
from consilience.deliberation import Deliberation, deliberation_from
from consilience.domain.errors import SessionWaiting, SettingsError
from consilience.domain.events import CallStarted, Event
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models, Options
from consilience.engine.similarity import Encoder
from consilience.integrations import need
from consilience.journal.open_store import opened
from consilience.journal.store import Store
from consilience.reporting.questions import pending_questions

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable, RunnableConfig


T = TypeVar("T")

Update = dict[str, object]


class Visit(ABC, Generic[T]):
    """What a node does when the graph comes to it. `run` may be called again after people have answered."""

    deliberation: Deliberation[Any]
    session: str

    @abstractmethod
    async def run(self) -> T: ...

    @abstractmethod
    def update(self, result: T) -> Update:
        """What the node writes into the state."""

    def asked(self, waiting: SessionWaiting, error: str) -> dict[str, object]:
        """What an interrupt says: the session, every question as the person reads it, and what was wrong with the last answers."""
        with opened(self.deliberation.store) as store:
            found = pending_questions(store.read(self.session), store.text, store.prompt)
        asked = {
            question.key: {
                "agent": question.agent,
                "text": question.text,
                "schema": question.form.schema if question.form else None,
            }
            for question in found
            if question.key in waiting.awaited
        }
        said: dict[str, object] = {"session": self.session, "questions": asked}
        return said | {"error": error} if error else said

    def answer(self, waiting: SessionWaiting, given: object) -> str:
        """Record what the graph was resumed with; says in words what of it is no answer.

        Nothing is raised: a node that is resumed hears all its earlier answers again, and would never get beyond a wrong one.
        """
        if not isinstance(given, Mapping):
            return f"answers are given by key, as in {{{waiting.awaited[0]!r}: …}}, not as {type(given).__name__}"
        with opened(self.deliberation.store) as store:
            found = {q.key: q for q in pending_questions(store.read(self.session), store.text, store.prompt)}
            for key in waiting.awaited:
                if key not in given or key not in found:
                    continue
                form, text = found[key].form, str(given[key]).strip()
                try:
                    reply = form.read(text) if form else text
                except ValueError as wrong:
                    return f"that is no answer to {key}: {wrong}"
                if not reply:
                    return f"the answer to {key} is empty"
                store.answer(self.session, key, reply, by="langgraph")
        strays = [repr(key) for key in given if key not in waiting.awaited]
        left = [repr(key) for key in waiting.awaited if key not in given]
        if not strays or not left:
            return ""
        return f"no question waits under {', '.join(strays)}; answers are awaited under {', '.join(left)}"


Plan = Callable[[Any, "RunnableConfig"], Visit[Any]]


def node_of(plan: Plan, name: str) -> Runnable[Any, Update]:
    """A node that works under `invoke` and `ainvoke`, `stream` and `astream`."""
    types, lambdas = need("langgraph.types", "langgraph"), need("langchain_core.runnables", "langgraph")

    def visit(state: Any, config: RunnableConfig) -> Update:
        here, error = plan(state, config), ""
        while True:
            try:
                return here.update(run_blocking(here.run()))
            except SessionWaiting as parked:
                waiting = parked
            error = here.answer(waiting, types.interrupt(here.asked(waiting, error)))

    async def avisit(state: Any, config: RunnableConfig) -> Update:
        here, error = plan(state, config), ""
        while True:
            try:
                return here.update(await here.run())
            except SessionWaiting as parked:
                waiting = parked
            error = here.answer(waiting, types.interrupt(here.asked(waiting, error)))

    found: Runnable[Any, Update] = lambdas.RunnableLambda(visit, afunc=avisit, name=name)
    return found


def session_of(protocol: Protocol, seed: int, task: str, config: RunnableConfig) -> str:
    """The id of the session of this visit: derived from the thread, the node and its visit in it, and what is deliberated.

    So a retry, or a run that goes on from its checkpoint, comes back to it. Outside a graph every call is a session of its own.
    """
    place = _place(config)
    if not place:
        return f"r{secrets.token_hex(4)}"
    thread = str(config.get("configurable", {}).get("thread_id", ""))
    parts = [thread, place, task, protocol.name, protocol.model_dump(mode="json"), seed]
    return f"g{hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]}"


def streaming(options: Options | None, config: RunnableConfig) -> Options | None:
    """The same, with every event of the session also written to the graph's `custom` stream, where there is a graph."""
    if not _place(config):
        return options
    write = need("langgraph.config", "langgraph").get_stream_writer()

    def observe(event: Event) -> None:
        if not isinstance(event, CallStarted):
            write({"consilience": event.model_dump(mode="json")})

    return (options or Options()).observed_by(observe)


def _place(config: RunnableConfig) -> str:
    """The visit of a node in its thread, those of the graphs around it included; the same when it is tried again."""
    return str((config.get("metadata") or {}).get("langgraph_checkpoint_ns") or "")


def read(state: Any, key: str) -> Any:
    """A field of a state, be it a mapping or an object. None where it has none."""
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)


Read = str | Callable[[Any], Any]
"""A key of the state, or a function of it."""


def protocol_node(
    protocol: Protocol,
    *,
    model: Models | None = None,
    task: Read = "task",
    sources: Read | None = None,
    answer: str = "answer",
    report: str | None = "report",
    session: Callable[[Any, RunnableConfig], str] | None = None,
    panel: Panel | str | Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    quorum: float = 0.5,
    encoder: str | Encoder | None = None,
    store: Store | None = None,
    prompts: Path | None = None,
    options: Options | None = None,
) -> Runnable[Any, Update]:
    """A node that puts the state's `task` before the agents of a protocol and writes `answer` and `report` (as plain data) into it.

    `task` and `sources` are keys of the state or functions of it; `sources` gives `Source`s and paths, never texts alone. The other
    settings are those of `consilience.deliberate`. The
    node is recorded as one session in `store`. Its id follows from the thread, the node's visit in it, the task and the protocol
    (`session` may give another), so a retry of the node, or a run that goes on from its checkpoint, goes on with that session: a
    completed call is never paid for twice; a call in flight at a crash may be, and is reported.

    A run that ended without an answer writes None; the report's `stop_reason` says why. A seat for a person interrupts the graph
    with the questions by key, and is resumed with `Command(resume={key: answer})`. Events are written to the `custom` stream.
    """
    how: Deliberation[Report] = deliberation_from(protocol, locals(), sources=())

    def plan(state: Any, config: RunnableConfig) -> Visit[Report]:
        question = _task(state, task)
        return _Whole(
            replace(how, sources=_sources(state, sources), options=streaming(how.options, config)),
            session(state, config) if session else session_of(protocol, seed, question, config),
            question,
            (answer, report),
        )

    return node_of(plan, protocol.name)


@dataclass
class _Whole(Visit[Report]):
    """A visit that runs a session from where it is to its end."""

    deliberation: Deliberation[Report]
    session: str
    task: str
    keys: tuple[str, str | None]

    async def run(self) -> Report:
        return await self.deliberation.run_or_resume(self.session, self.task)

    def update(self, result: Report) -> Update:
        answer, report = self.keys
        return {answer: result.answer} | ({report: result.model_dump(mode="json")} if report else {})


def _task(state: Any, given: Read) -> str:
    found = read(state, given) if isinstance(given, str) else given(state)
    if not isinstance(found, str) or not found.strip():
        where = f"the key {given!r} of the graph's state" if isinstance(given, str) else "what `task` made of the state"
        raise SettingsError(
            f"there is no task to deliberate: a text is needed, and there is {type(found).__name__} {found!r:.80}",
            where=where,
            do="Write the task there before this node, or name another key: protocol_node(…, task=…).",
        )
    return found


def _sources(state: Any, given: Read | None) -> Sequence[Source | Path]:
    found: Any = None if given is None else read(state, given) if isinstance(given, str) else given(state)
    alone = isinstance(found, str | Path | Source)
    return [found] if alone else list(found or ())
