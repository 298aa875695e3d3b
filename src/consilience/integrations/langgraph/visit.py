"""One visit of a graph to a node: synchronous or not, interrupted for people, always the same session."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from consilience.api import blocking
from consilience.domain.errors import SessionWaiting
from consilience.domain.events import CallStarted, Event
from consilience.engine.runner import Options
from consilience.integrations import need
from consilience.integrations.sessions import Deliberation
from consilience.journal.sqlite import opened
from consilience.reporting.question import questions

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable, RunnableConfig

T = TypeVar("T")

Update = dict[str, object]


class Visit(ABC, Generic[T]):
    """What a node does when the graph comes to it. `run` may be called again after people have answered."""

    deliberation: Deliberation
    session: str

    @abstractmethod
    async def run(self) -> T: ...

    @abstractmethod
    def update(self, result: T) -> Update:
        """What the node writes into the state."""

    def asked(self, waiting: SessionWaiting, error: str) -> dict[str, object]:
        """What an interrupt says: the session, every question as the person reads it, and what was wrong with the last answers."""
        with opened(self.deliberation.store) as store:
            found = questions(store.read(self.session), store.text, store.prompt)
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
            found = {q.key: q for q in questions(store.read(self.session), store.text, store.prompt)}
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
                return here.update(blocking(here.run()))
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


def session_of(deliberation: Deliberation, task: str, config: RunnableConfig) -> str:
    """The id of the session of this visit: derived from the thread, the node and its visit in it, and what is deliberated.

    So a retry, or a run that goes on from its checkpoint, comes back to it. Outside a graph every call is a session of its own.
    """
    place = _place(config)
    if not place:
        return f"r{secrets.token_hex(4)}"
    return f"g{deliberation.digest(task, str(config.get('configurable', {}).get('thread_id', '')), place)}"


def streaming(options: Options, config: RunnableConfig) -> Options:
    """The same, with every event of the session also written to the graph's `custom` stream, where there is a graph."""
    if not _place(config):
        return options
    write = need("langgraph.config", "langgraph").get_stream_writer()

    def observe(event: Event) -> None:
        if options.observer is not None:
            options.observer(event)
        if not isinstance(event, CallStarted):
            write({"consilience": event.model_dump(mode="json")})

    return replace(options, observer=observe)


def _place(config: RunnableConfig) -> str:
    """The visit of a node in its thread, those of the graphs around it included; the same when it is tried again."""
    return str((config.get("metadata") or {}).get("langgraph_checkpoint_ns") or "")


def read(state: Any, key: str) -> Any:
    """A field of a state, be it a mapping or an object. None where it has none."""
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
