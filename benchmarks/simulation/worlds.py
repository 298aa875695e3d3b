"""A planted world: one proposition, the statements that bear on it, and agents whose beliefs and grounds are known; and a model
that answers from it.

An agent answers the proposition by its camp. Its answer rests on its *grounds*: with any of them established otherwise than it
believes, it would answer the proposition the other way. So what divides a world follows from its beliefs and is not a label:

- a **crux** is disputed and a ground of at least two agents;
- a **distractor** is disputed and a ground of nobody;
- an **agreed** statement is believed alike by all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel

Truth = Literal["YES", "NO", "UNCERTAIN"]
Firm = Literal["YES", "NO"]
StatementKind = Literal["crux", "distractor", "agreed"]

PROPOSITION = "Should the harbour town replace its night ferry by a bridge before 2031?"
SUBJECTS = (
    "winter traffic", "school bus", "toll income", "ground water", "bird reserve", "storm season", "island clinic",
    "crew wages", "fuel price", "building permit", "summer tourism", "harbour dredging",
)  # fmt: skip
DEVIATION = 0.1
"""The chance that an agent differs from its camp on a crux that is no ground of its camp."""


@dataclass(frozen=True)
class Statement:
    """A yes/no question other than the proposition."""

    question: str
    subject: str
    """Two words."""
    kind: StatementKind


@dataclass(frozen=True)
class Mind:
    """What one agent believes."""

    agent: str
    camp: int
    beliefs: Mapping[str, Firm]
    """By question, the proposition included."""
    grounds: frozenset[str]
    """Questions on which its answer to the proposition rests."""

    def answer(self, question: str, established: Mapping[str, Firm]) -> Firm:
        """Answer a question with some others taken as established."""
        if question in established:
            return established[question]
        belief = self.beliefs[question]
        if question == PROPOSITION and any(
            established.get(q, self.beliefs[q]) != self.beliefs[q] for q in self.grounds
        ):
            return opposite(belief)
        return belief


@dataclass(frozen=True)
class World:
    """Beliefs of agents, and how faithfully they report them."""

    seed: int
    statements: tuple[Statement, ...]
    minds: Mapping[str, Mind]
    """By agent."""
    sycophancy: float = 0.0
    """The chance that a public statement follows the visible majority instead of the belief, 0 to 1."""
    ballot_noise: float = 0.0
    """The chance that one answer on a private ballot is one of the other two of YES, NO and UNCERTAIN, 0 to 1."""
    misreport: float = 0.0
    """The chance that an agent declares wrongly whether its answer rests on a question, the same each time it is asked, 0 to 1."""

    def sides(self, question: str) -> set[Firm]:
        return {mind.beliefs[question] for mind in self.minds.values()}

    @property
    def cruxes(self) -> frozenset[str]:
        """Questions that divide the agents and on which the answers of two at least rest."""
        return frozenset(
            statement.question
            for statement in self.statements
            if len(self.sides(statement.question)) == 2
            and sum(statement.question in mind.grounds for mind in self.minds.values()) >= 2
        )

    @property
    def agreed(self) -> frozenset[str]:
        return frozenset(
            statement.question for statement in self.statements if len(self.sides(statement.question)) == 1
        )

    @property
    def camps(self) -> list[int]:
        """The camp of each agent, in their order."""
        return [mind.camp for mind in self.minds.values()]

    def random(self, *parts: object) -> random.Random:
        """A generator that depends on the world's seed and `parts` alone."""
        return random.Random("/".join(map(str, (self.seed, *parts))))


def opposite(side: Firm) -> Firm:
    return "NO" if side == "YES" else "YES"


def plant(
    seed: int,
    *,
    agents: int | None = None,
    consensus: bool = False,
    dissenter: bool = False,
    sycophancy: float = 0.0,
    ballot_noise: float = 0.0,
    misreport: float = 0.0,
) -> World:
    """Plant a world: 4 to 8 agents in two or three camps, 3 or 4 cruxes, 1 to 3 distractors, 1 or 2 agreed statements. With
    `consensus` all agents believe alike; with `dissenter` all are of one camp but one agent."""
    draw = random.Random(f"world/{seed}")
    size = draw.randint(4, 8) if agents is None else agents
    subjects = draw.sample(SUBJECTS, len(SUBJECTS))
    counts: dict[StatementKind, int] = {
        "crux": draw.randint(3, 4),
        "distractor": draw.randint(1, 3),
        "agreed": draw.randint(1, 2),
    }
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    statements = tuple(
        Statement(f"Does the {subject} speak for the bridge?", subject, kind)
        for kind, subject in zip(kinds, subjects, strict=False)
    )
    cruxes = [statement.question for statement in statements if statement.kind == "crux"]
    views, grounds = _camps(draw, cruxes, 3 if size >= 6 and draw.random() < 0.5 else 2)
    order = [n % len(views) for n in range(size)]
    draw.shuffle(order)
    if consensus or dissenter:
        order = [0] * size
    if dissenter:
        order[draw.randrange(size)] = 1
    common: dict[str, Firm] = {
        statement.question: draw.choice(("YES", "NO")) for statement in statements if statement.kind != "crux"
    }
    tastes = {
        statement.question: _split(draw, size)
        for statement in statements
        if statement.kind == "distractor" and not consensus
    }
    minds: dict[str, Mind] = {}
    for n, camp in enumerate(order):
        beliefs = {**common, **views[camp]} | {question: sides[n] for question, sides in tastes.items()}
        for question in cruxes:
            if not consensus and question not in grounds[camp] and draw.random() < DEVIATION:
                beliefs[question] = opposite(beliefs[question])
        agent = f"D{n + 1}"
        minds[agent] = Mind(agent, camp, beliefs, grounds[camp])
    return World(seed, statements, minds, sycophancy, ballot_noise, misreport)


def _camps(draw: random.Random, cruxes: list[str], number: int) -> tuple[list[dict[str, Firm]], list[frozenset[str]]]:
    """The beliefs and grounds of each camp. The first two differ in everything; a third shares about half with each. Every crux is
    a ground of one camp or two."""
    first: dict[str, Firm] = {question: draw.choice(("YES", "NO")) for question in (PROPOSITION, *cruxes)}
    second = {question: opposite(side) for question, side in first.items()}
    half = set(draw.sample(cruxes, len(cruxes) // 2))
    third = {question: first[question] if question in half else second[question] for question in first}
    views = [first, second, third][:number]
    grounds: list[set[str]] = [set() for _ in views]
    for n, question in enumerate(draw.sample(cruxes, len(cruxes))):
        grounds[n % number].add(question)
        if draw.random() < 0.5:
            grounds[(n + 1) % number].add(question)
    return views, [frozenset(questions) for questions in grounds]


def _split(draw: random.Random, size: int) -> list[Firm]:
    """Sides on a distractor, independent of the camps, with at least one agent on each."""
    sides: list[Firm] = ["YES", "NO", *(draw.choice(("YES", "NO")) for _ in range(size - 2))]
    draw.shuffle(sides)
    return sides


Simulate = Callable[[ModelRequest, World], Mapping[str, object]]
"""A protocol's answer to one of its own requests: it may read the request, and of the world the mind of `request.agent`."""


class SimulatedModel(ScriptedModel):
    """Answers every request of a protocol from a planted world. `simulate` is the protocol's, such as that of `debate`."""

    def __init__(self, world: World, simulate: Simulate) -> None:
        super().__init__(self.reply, name="simulated")
        self.world, self._simulate = world, simulate

    def reply(self, request: ModelRequest) -> str:
        """Return the reply to a request, without fields that its schema does not have."""
        answer = self._simulate(request, self.world)
        properties = (request.schema or {}).get("properties")
        names = properties if isinstance(properties, Mapping) else answer
        return json.dumps({name: value for name, value in answer.items() if name in names})
