"""The report of `broadcast`, and the seed's export of it."""

from __future__ import annotations

from typing import Literal

from consilience.domain.positions import Ballot
from consilience.domain.report import Frozen, Report, StrangeLoop
from consilience.protocols.broadcast.replies import Severity, Tag


class Flag(Frozen):
    """A flag that was raised. `stands` at the root when the run ended, `critical` by the settings; `read`: a later call was
    shown it. `path` are the iterations it was raised in, the root's first."""

    id: str
    tag: Tag
    severity: Severity
    critical: bool
    node: str
    path: tuple[int, ...] = ()
    text: str
    stands: bool = False
    read: bool = False


class Iteration(Frozen):
    """One iteration of a parent. `path` are the iterations of its ancestors and this one. `satisfied` is computed: every rating
    readable, their `mean` at the threshold, no critical flag; `said_satisfied` is what the evaluator says, and decides nothing.
    `caused_by` names what made it broadcast once more: the flags and the evaluation of the iteration before."""

    node: str
    path: tuple[int, ...]
    broadcast: str | None = None
    caused_by: tuple[str, ...] = ()
    ratings: dict[str, float | None] = {}
    mean: float | None = None
    coordination_rounds: int = 0
    flags: tuple[str, ...] = ()
    feedback: str | None = None
    said_satisfied: bool | None = None
    satisfied: bool = False


class AgentState(Frozen):
    """An agent in the last execution in which it said anything. `response` is what it first wrote there, `text` what it went up
    with, `refined` whether these differ, `missing` what it found wanting in it; `iterations` those it made as a parent (a leaf
    makes 1); `executions` how often it was asked anew."""

    role: str
    response: str | None = None
    text: str | None = None
    refined: bool = False
    missing: str = ""
    iterations: int = 1
    executions: int = 0
    satisfaction: float | None = None
    flags: tuple[Tag, ...] = ()


class BroadcastReport(Report):
    """`total_iterations` and `total_coordination_rounds` are the root's; `iterations` has everybody's. `signal_chain` lists every
    flag that was raised, each tag and node once. `position` is the extracted answer where an `answer_pattern` was set, `pool` the
    share of every position over all ballots."""

    protocol: Literal["broadcast"] = "broadcast"
    total_iterations: int = 0
    total_coordination_rounds: int = 0
    root_satisfaction: float | None = None
    signal_chain: tuple[str, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    states: dict[str, AgentState] = {}
    flags: tuple[Flag, ...] = ()
    strange_loops: tuple[StrangeLoop, ...] = ()
    ballots: tuple[Ballot, ...] = ()
    pool: dict[str, float] = {}
    position: str | None = None

    def mca_metadata(self) -> dict[str, object]:
        """As the seed prints it."""
        return {
            "mode": "mca",
            "total_iterations": self.total_iterations,
            "total_coordination_rounds": self.total_coordination_rounds,
            "root_satisfaction": self.root_satisfaction,
            "signal_chain": list(self.signal_chain),
            "satisfaction_map": {agent: state.satisfaction for agent, state in self.states.items()},
        }

    def final_state(self) -> dict[str, object]:
        """The seed's `final_state.json`."""
        (root,) = self.topology.roots
        return {
            "task": self.task,
            "final_response": self.answer,
            "strange_loops": [loop.model_dump(mode="json") for loop in self.strange_loops],
            "child_responses": {
                child: self.states[child].text for child in self.topology.children[root] if child in self.states
            },
            "mca_metadata": self.mca_metadata(),
        }
