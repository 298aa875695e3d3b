"""The report of `decompose`, and the seed's export of it."""

from __future__ import annotations

from consilience.domain.report import Frozen, Report, StrangeLoop
from consilience.domain.sections import Presentation
from consilience.protocols._common.presenting import figures_of, position_blocks


class Part(Frozen):
    """What an agent was given to do, and what it made of it. Where the split failed nothing was `given`: it then had the task
    as a whole. `text` is None where it made nothing."""

    agent: str
    parent: str
    title: str = ""
    instructions: str = ""
    given: bool = True
    text: str | None = None


class DecomposeReport(Report):
    """`parts` are those that were handed out, parents first; `idle` the agents for whom there was none. `position` is the
    extracted answer where an `answer_pattern` was set."""

    protocol: str = "decompose"
    parts: tuple[Part, ...] = ()
    idle: tuple[str, ...] = ()
    strange_loops: tuple[StrangeLoop, ...] = ()
    position: str | None = None

    def presentation(self) -> Presentation:
        return (
            super()
            .presentation()
            .model_copy(
                update={"above_answer": position_blocks(self.position), "figures": tuple(figures_of(self.metrics))}
            )
        )

    def final_state(self) -> dict[str, object]:
        """The seed's `final_state.json`, as it is without its `mca_mode`."""
        (root,) = self.topology.roots
        return {
            "task": self.task,
            "final_response": self.answer,
            "strange_loops": [loop.model_dump(mode="json") for loop in self.strange_loops],
            "child_responses": {part.agent: part.text for part in self.parts if part.parent == root},
        }
