"""`emergence` as the seed's flat graph. The session is an ordinary one; the graph continues it node by node.

A node resumes the session with the calls of later phases held back, reads the new state from the journal, and leaves. The reason is
in docs/design/integrations.md.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from consilience.deliberation import Deliberation, deliberation_from
from consilience.domain.errors import SessionHeld, SettingsError
from consilience.domain.events import CallEvent, CheckRecorded, Event, SessionStarted
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine import validation
from consilience.engine.activity import Phase
from consilience.engine.runner import Models, Options
from consilience.engine.similarity import Encoder
from consilience.integrations import need
from consilience.integrations.langgraph.node import Update, Visit, node_of, read, session_of, streaming
from consilience.integrations.langgraph.rounds import restore_rounds
from consilience.journal.open_store import opened
from consilience.journal.store import Store
from consilience.protocols._common.trees import ROOT
from consilience.protocols.emergence import Emergence, EmergenceReport
from consilience.protocols.emergence.report import Round, agent_state, rounds_of

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable, RunnableConfig
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Checkpointer


class EmergenceAgentState(TypedDict, total=False):
    """The state of one agent."""

    responses: list[str]
    """One text per round in which the agent had one."""
    signals_received: list[str]
    converged: bool
    """Informational."""


class EmergenceState(TypedDict, total=False):
    """The state of the graph, as the seed defines it; the last three fields are additions."""

    original_task: str
    """The input."""
    agent_states: Annotated[dict[str, EmergenceAgentState], operator.or_]
    parent_signals: Annotated[dict[str, str], operator.or_]
    current_round: int
    max_rounds: int
    convergence_threshold: float
    converged: bool
    final_response: str | None
    strange_loops: list[dict[str, Any]]
    round_history: Annotated[list[dict[str, Any]], operator.add]
    """The rounds that have been checked."""
    session: str
    """Id of the recorded session."""
    another_round: bool
    """Whether the graph turns back for another round."""
    report: dict[str, Any]
    """Set at the end."""


Moment = tuple[float, int]
"""A round and a node in it, by its place in the round's order."""

END: Moment = (math.inf, 0)


def emergence_graph(
    protocol: Emergence | None = None,
    *,
    model: Models | None = None,
    sources: Sequence[Source | Path] = (),
    panel: Panel | str | Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    quorum: float = 0.5,
    encoder: str | Encoder | None = None,
    store: Store | None = None,
    prompts: Path | None = None,
    options: Options | None = None,
    checkpointer: Checkpointer = None,
    **settings: Any,
) -> CompiledStateGraph[EmergenceState, None, EmergenceState, EmergenceState]:
    """Return the compiled graph. Invoke it with `{"original_task": …}`.

    init → leaf_respond → lateral_leaves → [observe_Lk → lateral_Lk from the deepest internal level up] → observe_root →
    signal_down → check_convergence, and back to leaf_respond or on to finalize. `settings` are those of `Emergence`, instead
    of a `protocol`. The other parameters are as in `consilience.deliberate`; files are read here. The recursion limit is
    max_rounds · (nodes + 5).

    The run is recorded as an ordinary session of `emergence` (`state["session"]`): the same calls, answer and report.
    """
    if protocol is not None and settings:
        raise SettingsError("settings are given both as a protocol and by name", do="Give one of the two.")
    protocol = protocol or Emergence(**settings)
    deliberation = deliberation_from(protocol, locals(), sources=validation.load_sources(sources))
    build = need("langgraph.graph", "langgraph")
    order = nodes_of(protocol)
    graph = build.StateGraph(EmergenceState)
    graph.add_node("init", _init(deliberation, protocol))
    for name in (*order, "finalize"):
        graph.add_node(name, _node(deliberation, protocol, name))
    path = [build.START, "init", *order]
    for before, after in pairwise(path):
        graph.add_edge(before, after)
    graph.add_conditional_edges(
        "check_convergence",
        lambda state: "next_round" if state["another_round"] else "finalize",
        {"next_round": order[0], "finalize": "finalize"},
    )
    graph.add_edge("finalize", build.END)
    compiled = graph.compile(checkpointer=checkpointer, name="emergence")
    graph_with_limit: CompiledStateGraph[EmergenceState, None, EmergenceState, EmergenceState] = compiled.with_config(
        recursion_limit=protocol.max_rounds * (len(path) + 5)  # len(path): START out, finalize in
    )
    return graph_with_limit


def nodes_of(protocol: Emergence) -> tuple[str, ...]:
    """Return the nodes of one round in order."""
    levels = [name for level in range(protocol.depth - 1, 1, -1) for name in (f"observe_L{level}", f"lateral_L{level}")]
    return ("leaf_respond", "lateral_leaves", *levels, "observe_root", "signal_down", "check_convergence")


def moment_of(phase: Phase, order: Sequence[str]) -> Moment:
    """Return the node that makes the calls of a phase. Ballots belong to the texts they follow, the judge to the root's text."""
    name, index = phase
    if name == "finalize":
        return END
    if name == "ballot":
        return (1, order.index("leaf_respond")) if index == 0 else (index, order.index("lateral_leaves"))
    return (index, order.index("observe_root" if name == "check_convergence" else name))


def _init(deliberation: Deliberation[EmergenceReport], protocol: Emergence) -> Runnable[Any, Update]:
    """Initialises the state, also of a thread that is used again. Makes no call."""
    types, lambdas = need("langgraph.types", "langgraph"), need("langchain_core.runnables", "langgraph")

    def init(state: Any, config: RunnableConfig) -> Update:
        task = read(state, "original_task")
        if not isinstance(task, str) or not task.strip():
            raise SettingsError("the graph was given no task", do='Invoke it with {"original_task": "Should we …?"}.')
        first_state: Update = {
            "agent_states": {agent: agent_state(agent, ()) for agent in protocol.topology().agents},
            "parent_signals": {},
            "round_history": [],
        }
        return {
            **{key: types.Overwrite(value) if read(state, key) else value for key, value in first_state.items()},
            "current_round": 1,
            "max_rounds": protocol.max_rounds,
            "convergence_threshold": protocol.threshold,
            "converged": False,
            "final_response": None,
            "strange_loops": [],
            "session": session_of(protocol, deliberation.seed, task, config),
            "another_round": False,
            "report": {},
        }

    node: Runnable[Any, Update] = lambdas.RunnableLambda(init)
    return node


def _node(deliberation: Deliberation[EmergenceReport], protocol: Emergence, name: str) -> Runnable[Any, Update]:
    def plan(state: Any, config: RunnableConfig) -> Visit:
        order = nodes_of(protocol)
        moment = END if name == "finalize" else (read(state, "current_round"), order.index(name))
        task, session = read(state, "original_task"), read(state, "session")
        streamed = replace(deliberation, options=streaming(deliberation.options, config))
        return Visit(streamed, session, _PhaseVisit(streamed, session, protocol, task, name, moment).run)

    return node_of(plan, name)


@dataclass(frozen=True)
class RecordedRounds:
    """What is recorded up to a node."""

    rounds: tuple[Round, ...]
    met: bool
    """Whether the latest check was met."""
    another: bool
    """Whether another round follows."""
    report: Report | None
    """Set once the session has ended."""


@dataclass
class _PhaseVisit:
    """Continues the session to the end of one node's phase."""

    deliberation: Deliberation[EmergenceReport]
    session: str
    protocol: Emergence
    task: str
    name: str
    here: Moment

    @cached_property
    def order(self) -> tuple[str, ...]:
        return nodes_of(self.protocol)

    async def run(self) -> Update:
        options = replace(
            self.deliberation.options or Options(),
            hold=lambda phase: phase is not None and self._moment(phase) > self.here,
        )
        report: Report | None = None
        ahead: list[Moment] = []
        try:
            report = await replace(self.deliberation, options=options).run_or_resume(self.session, self.task)
        except SessionHeld as stopped:
            ahead = [self._moment(phase) for phase in stopped.held.values() if phase is not None]
        return self._update(self._seen(report, ahead))

    def _seen(self, report: Report | None, ahead: Sequence[Moment]) -> RecordedRounds:
        """Events later than this node are ignored, so an earlier checkpoint shows the state at that time."""
        with opened(self.deliberation.store) as store:
            events = store.read(self.session)
            started = next(event for event in events if isinstance(event, SessionStarted))
            course = restore_rounds(
                [e for e in events if self._made_at(e) <= self.here], store.text, spoken=self._spoken
            )
        moments = [*ahead, *map(self._made_at, events)]
        check = course.checks[-1] if course.checks else None
        return RecordedRounds(
            rounds=tuple(rounds_of(started.agents, self.protocol.threshold, course)),
            met=check is not None and check.met,
            another=any((self.here[0] + 1, 0) <= moment < END for moment in moments),
            report=report,
        )

    def _moment(self, phase: Phase) -> Moment:
        return moment_of(phase, self.order)

    def _made_at(self, event: Event) -> Moment:
        if isinstance(event, CallEvent) and event.phase is not None:
            return self._moment(event.phase)
        return self._moment(("check_convergence", event.index)) if isinstance(event, CheckRecorded) else (0, 0)

    def _spoken(self, number: int, agent: str) -> bool:
        """Whether an agent has had its turn before or in this node."""
        topology = self.protocol.topology()
        name = "leaf_respond" if not topology.children[agent] else f"observe_L{topology.levels[agent]}"
        return (number, self.order.index("observe_root" if agent == ROOT else name)) <= self.here

    def _update(self, result: RecordedRounds) -> Update:
        number = self.here[0]
        latest = result.rounds[-1] if result.rounds and result.rounds[-1].round == number else None
        match self.name:
            case "finalize":
                return _final(result.report)
            case "check_convergence":
                return {
                    "converged": result.met,
                    "another_round": result.another,
                    "current_round": number + result.another,
                    "round_history": [latest.model_dump(mode="json")] if latest else [],
                }
            case "signal_down":
                turns = latest.agents if latest else {}
                return {
                    "parent_signals": {agent: turn.signal_sent for agent, turn in turns.items() if turn.signal_sent}
                }
        return {"agent_states": {agent: agent_state(agent, result.rounds) for agent in self._speakers()}}

    def _speakers(self) -> tuple[str, ...]:
        """The agents whose node this is."""
        topology = self.protocol.topology()
        if self.name == "observe_root":
            return (ROOT,)
        if self.name in ("leaf_respond", "lateral_leaves"):
            return topology.leaves
        level = int(self.name.rpartition("_L")[2])
        return tuple(agent for agent in topology.agents if topology.levels[agent] == level)


def _final(report: Report | None) -> Update:
    assert isinstance(report, EmergenceReport), "no call is held back"
    final_state = report.final_state()
    fields = ("agent_states", "parent_signals", "current_round", "converged", "final_response", "strange_loops")
    return {name: final_state[name] for name in fields} | {
        "another_round": False,
        "report": report.model_dump(mode="json"),
    }
