"""Parts of presentations that several protocols share: figures, positions, ballots, and the report of a run on a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from consilience.domain.objections import Objection
from consilience.domain.outcome import Check
from consilience.domain.positions import Ballot
from consilience.domain.report import Report, StrangeLoop
from consilience.domain.sections import (
    Block,
    Bullets,
    HeldPosition,
    Item,
    KeyFigure,
    Paragraph,
    SeatNote,
    Section,
    Table,
    View,
)
from consilience.domain.wording import count, percent

_SHARES: Mapping[str, str] = {
    "novelty": "Sentences of the answer that no agent had written before",
    "revision_rate": "Texts changed after reading those of others",
}
_OMITTED = frozenset({"facts", "fact_survival", "conformity", "dropped_labels", "void_objections"})
"""Reported elsewhere, or misleading: `fact_survival` counted only sentences that an answer repeats nearly word for word."""

_REVIEWED_CALLS = 5
"""Calls of `solo` with two reviews."""


class TreeReport(Report):
    """Report of a run on a tree."""

    strange_loops: tuple[StrangeLoop, ...] = ()
    position: str | None = None
    """The extracted answer, if an `answer_pattern` was set."""

    def final_loops(self) -> list[dict[str, object]]:
        """Return the self-reviews as the seeds' exports have them."""
        return [loop.model_dump(mode="json") for loop in self.strange_loops]

    def seed_state(self, children: Mapping[str, str | None], nodes: Mapping[str, str | None]) -> dict[str, object]:
        """Return the fields of seed 001's `State` that both of its modes have, at the end and at the root, from the texts of its
        children and of all agents below it."""
        (root,) = self.topology.roots
        return {
            "task": self.task,
            "original_task": self.task,
            "response": self.answer,
            "final_response": self.answer,
            "strange_loops": self.final_loops(),
            "child_responses": dict(children),
            "nodes": {agent: {"response": text} for agent, text in {**nodes, root: self.answer}.items()},
            "current_node": root,
        }


def describe_unheard(report: Report, heard: Collection[str]) -> str:
    """Return how many agents below the root are not in `heard`: `2 of 2 specialists`; empty if all are."""
    below = [agent for agent in report.agents if agent.id not in report.topology.roots]
    silent = [agent for agent in below if agent.id not in heard]
    roles = {agent.role for agent in silent}
    noun = roles.pop() if len(roles) == 1 else "agent"
    of = [agent for agent in below if noun in (agent.role, "agent")]
    return f"{len(silent)} of {count(len(of), noun)}" if silent else ""


def describe_calls(keys: Iterable[str]) -> str:
    """Return calls in words: `iteration-2/1/evaluate/L2N1` is `evaluate by L2N1 (iteration 2.1)`."""
    return ", ".join(_describe_call(*key.split("/")) for key in keys)


def _describe_call(*parts: str) -> str:
    *steps, call, agent = parts
    place = ".".join(steps).replace("-", " ")
    return f"{call.replace('-', ' ')} by {agent}" + (f" ({place})" if place else "")


def format_score(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def bullets(items: Iterable[Item]) -> tuple[Block, ...]:
    """Return a list, or no block without items."""
    entries = tuple(items)
    return (Bullets(items=entries),) if entries else ()


def empty_view(name: str, heading: str, why: str) -> View:
    """Return a view that says why there is nothing to show."""
    return View(name=name, heading=heading, blocks=(Paragraph(text=why),), is_empty=True)


def objections_view(objections: Sequence[Objection], names: Mapping[str, str]) -> View:
    """Return the objections, each with who raised it against whom and its outcome."""
    name, heading = "objections", "Objections and outcomes"
    if not objections:
        return empty_view(name, heading, "No agent has raised an objection.")
    rows = tuple(_objection_row(objection, names) for objection in objections)
    table = Table(heads=("objection", "raised by → against", "outcome"), rows=rows, left=3)
    return View(name=name, heading=heading, blocks=(table,))


def _objection_row(objection: Objection, names: Mapping[str, str]) -> tuple[str, str, str]:
    outcome = f"{objection.outcome}: {objection.how}" if objection.how else objection.outcome
    direction = f"{names.get(objection.agent, objection.agent)} → {names.get(objection.to, objection.to)}"
    return objection.text, direction, " · ".join(filter(None, (outcome, objection.ruling_words)))


def objection_notes(objections: Iterable[Objection], names: Mapping[str, str]) -> dict[str, SeatNote]:
    """Return, by agent, the objections to its texts with their outcomes, for the picture of the agents."""
    received: dict[str, list[Objection]] = {}
    for objection in objections:
        received.setdefault(objection.to, []).append(objection)
    return {agent: _objection_note(to_agent, names) for agent, to_agent in received.items() if agent}


def _objection_note(received: Sequence[Objection], names: Mapping[str, str]) -> SeatNote:
    standing = sum(objection.is_open for objection in received)
    outcomes = ", ".join(f"{o.outcome.lower()} ({names.get(o.agent, o.agent)})" for o in received)
    return SeatNote(
        text=f"{count(len(received), 'objection')} to its text: {outcomes}",
        short=f"{count(len(received), 'objection')}, {f'{standing} open' if standing else 'none open'}",
    )


OBJECTIONS_LEGEND = "objections: those of other agents to what the agent wrote"


def threshold_in(settings: Mapping[str, object], name: str = "threshold") -> float | None:
    """Return a threshold in recorded settings; None if there is none."""
    value = settings.get(name)
    return float(value) if isinstance(value, int | float) else None


def key_figures(
    metrics: Mapping[str, float | int | None],
    *,
    step: str = "round",
    shares: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[KeyFigure]:
    """Yield the metrics under readable names. `shares` and `names` are the protocol's, in addition to the common ones."""
    shares, names = {**_SHARES, **(shares or {})}, names or {}
    by_step: dict[str, list[str]] = {}
    for name, value in metrics.items():
        series = _series(name, step)
        if series:
            figure = format_score(value) if name.startswith("sibling") else "–" if value is None else percent(value)
            by_step.setdefault(series, []).append(figure)
        elif name in shares:
            yield KeyFigure(name=shares[name], value="–" if value is None else percent(float(value)))
        elif name not in _OMITTED:
            number = format_score(value) if value is None or isinstance(value, float) else f"{value:,}"
            yield KeyFigure(name=names.get(name, name.replace("_", " ")), value=number)
    for series, values in by_step.items():
        yield KeyFigure(name=series, value=", ".join(values))


def _series(name: str, step: str) -> str:
    """Return the name of a figure with one value per step (`NAME/STEP` or `NAME/PHASE/STEP`), else nothing."""
    first, _, rest = name.partition("/")
    if first == "sibling_similarity":
        return f"Similarity among siblings, {rest.rpartition('/')[0]}, by {step} (1 = identical)"
    return f"Share of sentences that changed, by {step}" if first == "change" else ""


def trajectory(name: str, scores: Sequence[float | None], check: Check | None) -> Iterator[KeyFigure]:
    """Yield the scores of all checks in order, with the threshold of the last."""
    measured = [score for score in scores if score is not None]
    if not measured and check is not None and check.score is not None:
        measured = [check.score]
    if measured:
        threshold_note = f", needed {check.threshold:g}" if check and check.threshold is not None else ""
        yield KeyFigure(name=name, value=" → ".join(f"{score:.2f}" for score in measured) + threshold_note)


def position_blocks(position: str | None, remark: str = "") -> tuple[Block, ...]:
    """Return the extracted position, to stand above the answer."""
    return (Paragraph(lead=f"Position: {position}", text=remark),) if position else ()


def ballot_section(ballots: Sequence[Ballot], pool: Mapping[str, float]) -> Section:
    """Return the count of the last ballots, and the pool of all."""
    blocks: tuple[Block, ...] = ()
    if ballots:
        final = {ballot.agent: ballot.position for ballot in ballots}
        line = " · ".join(f"{n} {position}" for position, n in Counter(final.values()).most_common())
        if pool:
            shares = ", ".join(f"{position} {percent(part)}" for position, part in pool.items())
            line += f". All ballots of all rounds pooled: {shares}"
        blocks = (Paragraph(lead="Final ballots, cast in private:", text=line),)
    return Section(name="ballots", part="answer", blocks=blocks)


def held_positions(ballots: Sequence[Ballot], step: str) -> tuple[HeldPosition, ...]:
    return tuple(HeldPosition(agent=b.agent, step=f"{step} {b.step}", text=b.position) for b in ballots)


def single_call_section(report: Report) -> Section:
    """Name the cheaper alternatives to a run in which one model filled all seats from the same material; else no blocks."""
    usage = report.ledger.actual
    models = {agent.model for agent in report.agents}
    are_models = all(agent.model and not agent.is_outside for agent in report.agents)
    seats_alike = len(models) == 1 and not usage.fallbacks and are_models
    calls = usage.calls + usage.inherited + usage.cached
    blocks: tuple[Block, ...] = ()
    if report.answer is not None and report.same_material and seats_alike and calls > _REVIEWED_CALLS:
        tokens = "" if calls > usage.calls else f" and {usage.tokens_in + usage.tokens_out:,} tokens"
        text = (
            "Copies of one model with the same material often add little to one careful call. "
            f"This run: {count(calls, 'call')}{tokens}; solo: 1 call; solo with 2 reviews: "
            f"{_REVIEWED_CALLS} calls. Only a comparison on your own tasks shows which is better."
        )
        blocks = bullets([Item(text=text)])
    return Section(name="single-call", part="trust", blocks=blocks)
