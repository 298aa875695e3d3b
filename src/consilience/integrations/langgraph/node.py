"""Any protocol as a node of somebody's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models, Options
from consilience.engine.similarity import Encoder
from consilience.integrations.langgraph.visit import Update, Visit, node_of, read, session_of, streaming
from consilience.integrations.sessions import Deliberation
from consilience.journal.store import Store

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable, RunnableConfig

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

    `task` and `sources` are keys of the state or functions of it; the other settings are those of `consilience.deliberate`. The
    node is recorded as one session in `store`. Its id follows from the thread, the node's visit in it, the task and the protocol
    (`session` may give another), so a retry of the node, or a run that goes on from its checkpoint, goes on with that session: a
    completed call is never paid for twice; a call in flight at a crash may be, and is reported.

    A run that ended without an answer writes None; the report's `stop_reason` says why. A seat for a person interrupts the graph
    with the questions by key, and is resumed with `Command(resume={key: answer})`. Events are written to the `custom` stream.
    """
    how = Deliberation(
        protocol=protocol,
        model=model,
        panel=panel,
        seed=seed,
        limits=limits,
        quorum=quorum,
        encoder=encoder,
        store=store,
        prompts=prompts,
        options=options or Options(),
    )

    def plan(state: Any, config: RunnableConfig) -> Visit[Report]:
        question = _task(state, task)
        return _Whole(
            how,
            session(state, config) if session else session_of(how, question, config),
            question,
            _sources(state, sources),
            streaming(how.options, config),
            (answer, report),
        )

    return node_of(plan, protocol.name)


@dataclass
class _Whole(Visit[Report]):
    """A visit that runs a session from where it is to its end."""

    deliberation: Deliberation
    session: str
    task: str
    sources: Sequence[Source | str]
    options: Options
    keys: tuple[str, str | None]

    async def run(self) -> Report:
        return await self.deliberation.take_up(self.session, self.task, sources=self.sources, options=self.options)

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


def _sources(state: Any, given: Read | None) -> Sequence[Source | str]:
    found = None if given is None else read(state, given) if isinstance(given, str) else given(state)
    return [found] if isinstance(found, str | Source) else list(found or ())
