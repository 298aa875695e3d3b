"""Any protocol as a node of a graph: synchronous or not, interrupted for people, always the same session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from consilience.blocking import run_blocking
from consilience.deliberation import Deliberation
from consilience.domain.errors import SessionWaiting, SettingsError
from consilience.domain.events import CallStarted, Event
from consilience.domain.messages import Source
from consilience.domain.report import Report
from consilience.domain.session_ids import new_session_id
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models, Options
from consilience.integrations import DeliberationSettings, need
from consilience.journal.open_store import opened
from consilience.reporting.questions import pending_questions

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable, RunnableConfig


Update = dict[str, object]


@dataclass(frozen=True)
class Visit:
    """One visit of the graph to a node."""

    deliberation: Deliberation[Any]
    session: str
    run: Callable[[], Coroutine[Any, Any, Update]]
    """Returns what the node writes into the state. It is called again after people have answered."""

    def asked(self, waiting: SessionWaiting, error: str) -> dict[str, object]:
        """Return the value of an interrupt: the session, the questions as people read them, the error of the last answers."""
        with opened(self.deliberation.store) as store:
            questions = pending_questions(store.read(self.session), store.text, store.prompt)
        asked = {
            question.key: {
                "agent": question.agent,
                "text": question.text,
                "schema": question.form.schema if question.form else None,
            }
            for question in questions
            if question.key in waiting.awaited
        }
        value: dict[str, object] = {"session": self.session, "questions": asked}
        return value | {"error": error} if error else value

    def answer(self, waiting: SessionWaiting, answers: object) -> str:
        """Record the answers that the graph was resumed with. Returns the first error in them, "" for none.

        Nothing is raised: a resumed node receives all its earlier answers again, so an exception would block it forever.
        """
        if not isinstance(answers, Mapping):
            return f"answers are given by key, as in {{{waiting.awaited[0]!r}: …}}, not as {type(answers).__name__}"
        with opened(self.deliberation.store) as store:
            questions = {q.key: q for q in pending_questions(store.read(self.session), store.text, store.prompt)}
            for key in waiting.awaited:
                if key not in answers or key not in questions:
                    continue
                form, text = questions[key].form, str(answers[key]).strip()
                try:
                    reply = form.reply_from(text) if form else text
                except ValueError as wrong:
                    return f"invalid answer to {key}: {wrong}"
                if not reply:
                    return f"the answer to {key} is empty"
                store.post(self.session, "answer", key, reply, by="langgraph")
        strays = [repr(key) for key in answers if key not in waiting.awaited]
        unanswered_keys = [repr(key) for key in waiting.awaited if key not in answers]
        if not strays or not unanswered_keys:
            return ""
        return f"no question waits under {', '.join(strays)}; answers are awaited under {', '.join(unanswered_keys)}"


VisitPlan = Callable[[Any, "RunnableConfig"], Visit]


def node_of(plan: VisitPlan, name: str) -> Runnable[Any, Update]:
    """Return a node that works under `invoke` and `ainvoke`, `stream` and `astream`."""
    types, lambdas = need("langgraph.types", "langgraph"), need("langchain_core.runnables", "langgraph")

    async def avisit(state: Any, config: RunnableConfig) -> Update:
        prepared, error = plan(state, config), ""
        while True:
            try:
                return await prepared.run()
            except SessionWaiting as parked:
                waiting = parked
            error = prepared.answer(waiting, types.interrupt(prepared.asked(waiting, error)))

    def visit(state: Any, config: RunnableConfig) -> Update:
        prepared, error = plan(state, config), ""
        while True:  # `avisit` in another thread would be outside the graph
            try:
                return run_blocking(prepared.run())
            except SessionWaiting as parked:
                waiting = parked
            error = prepared.answer(waiting, types.interrupt(prepared.asked(waiting, error)))

    node: Runnable[Any, Update] = lambdas.RunnableLambda(visit, afunc=avisit, name=name)
    return node


def session_of(protocol: Protocol, seed: int, task: str, config: RunnableConfig) -> str:
    """Return the session id of this visit, derived from the thread, the node, the visit and what is deliberated.

    A retry, or a run that continues from its checkpoint, gets the same id. Outside a graph every call is a new session.
    """
    place = _place(config)
    if not place:
        return new_session_id()
    thread = str(config.get("configurable", {}).get("thread_id", ""))
    parts = [thread, place, task, protocol.name, protocol.model_dump(mode="json"), seed]
    return f"g{hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]}"


def streaming(options: Options | None, config: RunnableConfig) -> Options | None:
    """Return options that also write each event of the session to the `custom` stream of the graph, if there is one."""
    if not _place(config):
        return options
    write = need("langgraph.config", "langgraph").get_stream_writer()

    def observe(event: Event) -> None:
        if not isinstance(event, CallStarted):
            write({"consilience": event.model_dump(mode="json")})

    return (options or Options()).observed_by(observe)


def _place(config: RunnableConfig) -> str:
    """The visit of a node in its thread, including those of outer graphs; a retry has the same."""
    return str((config.get("metadata") or {}).get("langgraph_checkpoint_ns") or "")


def read(state: Any, key: str) -> Any:
    """Return a field of a state that is a mapping or an object; None if it is missing."""
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)


StateReader = str | Callable[[Any], Any]
"""A key of the state, or a function of it."""


def protocol_node(
    protocol: Protocol,
    *,
    model: Models | None = None,
    task: StateReader = "task",
    sources: StateReader | None = None,
    answer: str = "answer",
    report: str | None = "report",
    session: Callable[[Any, RunnableConfig], str] | None = None,
    **settings: Unpack[DeliberationSettings],
) -> Runnable[Any, Update]:
    """Return a node in which the agents of a protocol work on the state's `task`; it writes `answer` and `report` (plain data).

    `task` and `sources` are keys of the state or functions of it; `sources` gives `Source`s and paths, not strings. `settings`
    are further fields of `Deliberation`. The node is recorded as one session. Its id is derived from the thread, the node's visit,
    the task and the protocol (`session` may return another), so a retry of the node, or a run that continues from its checkpoint,
    resumes that session: a completed call is never paid for twice; a call in flight at a crash may be, and is reported.

    A run without an answer writes None; the report's `stop_reason` is the reason. A seat for a person interrupts the graph with
    questions by key, and is resumed with `Command(resume={key: answer})`. Events are written to the `custom` stream.
    """
    deliberation = Deliberation[Report](protocol, model=model, **settings)

    def plan(state: Any, config: RunnableConfig) -> Visit:
        question = _task(state, task)
        visit = replace(deliberation, sources=_sources(state, sources), options=streaming(deliberation.options, config))
        id = session(state, config) if session else session_of(protocol, deliberation.seed, question, config)

        async def run() -> Update:
            result = await visit.run_or_resume(id, question)
            return {answer: result.answer} | ({report: result.model_dump(mode="json")} if report else {})

        return Visit(visit, id, run)

    return node_of(plan, protocol.name)


def _task(state: Any, reader: StateReader) -> str:
    task = read(state, reader) if isinstance(reader, str) else reader(state)
    if not isinstance(task, str) or not task.strip():
        where = f"the key {reader!r} of the graph's state" if isinstance(reader, str) else "the result of `task`"
        raise SettingsError(
            f"no task to deliberate: expected a text, got {type(task).__name__} {task!r:.80}",
            where=where,
            do="Write the task there before this node, or name another key: protocol_node(…, task=…).",
        )
    return task


def _sources(state: Any, reader: StateReader | None) -> Sequence[Source | Path]:
    sources: Any = None if reader is None else read(state, reader) if isinstance(reader, str) else reader(state)
    alone = isinstance(sources, str | Path | Source)
    return [sources] if alone else list(sources or ())
