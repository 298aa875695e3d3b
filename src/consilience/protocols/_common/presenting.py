"""What the reports of several protocols show alike: figures, positions and ballots, as sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from consilience.domain.outcome import Check
from consilience.domain.positions import Ballot
from consilience.domain.report import Report
from consilience.domain.sections import Block, Bullets, HeldPosition, Item, KeyFigure, Paragraph, Section

_SHARES: Mapping[str, str] = {
    "novelty": "Sentences of the answer that no agent had written before",
    "revision_rate": "Texts changed after reading those of others",
}
_OMITTED = frozenset({"facts", "fact_survival", "conformity", "dropped_labels"})
"""Reported elsewhere (with the changes of position, as a warning), or misleading: `fact_survival` counted only sentences that an
answer repeats nearly word for word."""

_REVIEWED_CALLS = 5
"""Calls of `solo` with two reviews."""


def share(part: float) -> str:
    """`45 %`."""
    return f"{part:.0%}".replace("%", " %")


def two_places(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def plural(n: int, noun: str) -> str:
    """`1 flag`, `2 flags`."""
    return f"{n:,} {noun if n == 1 else noun + 's'}"


def bullets(items: Iterable[Item]) -> tuple[Block, ...]:
    """A list; nothing without items."""
    found = tuple(items)
    return (Bullets(items=found),) if found else ()


def figures_of(
    metrics: Mapping[str, float | int | None],
    *,
    step: str = "round",
    shares: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[KeyFigure]:
    """Metrics under readable names. `shares` and `names` are those of the protocol, beside the common ones."""
    shares, names = {**_SHARES, **(shares or {})}, names or {}
    by_step: dict[str, list[str]] = {}
    for name, value in metrics.items():
        series = _series(name, step)
        if series:
            said = two_places(value) if name.startswith("sibling") else "–" if value is None else share(value)
            by_step.setdefault(series, []).append(said)
        elif name in shares:
            yield KeyFigure(name=shares[name], value="–" if value is None else share(float(value)))
        elif name not in _OMITTED:
            number = two_places(value) if value is None or isinstance(value, float) else f"{value:,}"
            yield KeyFigure(name=names.get(name, name.replace("_", " ")), value=number)
    for series, values in by_step.items():
        yield KeyFigure(name=series, value=", ".join(values))


def _series(name: str, step: str) -> str:
    """What a figure that comes once for every step is called: `NAME/STEP` or `NAME/PHASE/STEP`."""
    first, _, rest = name.partition("/")
    if first == "sibling_similarity":
        return f"Similarity among siblings, {rest.rpartition('/')[0]}, by {step} (1 = identical)"
    return f"Share of sentences that changed, by {step}" if first == "change" else ""


def trajectory(name: str, scores: Sequence[float | None], check: Check | None) -> Iterator[KeyFigure]:
    """The score of every check that had one, in order, against the threshold of the last."""
    known = [score for score in scores if score is not None]
    if not known and check is not None and check.score is not None:
        known = [check.score]
    if known:
        needed = f", needed {check.threshold:g}" if check and check.threshold is not None else ""
        yield KeyFigure(name=name, value=" → ".join(f"{score:.2f}" for score in known) + needed)


def position_blocks(position: str | None, remark: str = "") -> tuple[Block, ...]:
    """The extracted position, above the answer."""
    if not position:
        return ()
    return (Paragraph(lead=f"Position: {position}", text=remark),)


def ballot_section(ballots: Sequence[Ballot], pool: Mapping[str, float]) -> Section:
    """The last ballot of each agent, counted, and the pool of all."""
    blocks: tuple[Block, ...] = ()
    if ballots:
        final = {ballot.agent: ballot.position for ballot in ballots}
        line = " · ".join(f"{n} {position}" for position, n in Counter(final.values()).most_common())
        if pool:
            shares = ", ".join(f"{position} {share(part)}" for position, part in pool.items())
            line += f". All ballots of all rounds pooled: {shares}"
        blocks = (Paragraph(lead="Final ballots, cast in private:", text=line),)
    return Section(name="ballots", part="answer", blocks=blocks)


def held_positions(ballots: Sequence[Ballot], step: str) -> tuple[HeldPosition, ...]:
    return tuple(HeldPosition(agent=b.agent, step=f"{step} {b.step}", text=b.position) for b in ballots)


def single_call_section(report: Report) -> Section:
    """Name the cheaper rivals of a run in which one model filled all seats from the same material; else no blocks."""
    spent = report.ledger.actual
    models = {agent.model for agent in report.agents}
    seats_alike = len(models) == 1 and not spent.fallbacks and not any(map(_is_outside, models))
    made = spent.calls + spent.inherited + spent.cached
    blocks: tuple[Block, ...] = ()
    if report.answer is not None and report.same_material and seats_alike and made > _REVIEWED_CALLS:
        tokens = "" if made > spent.calls else f" and {spent.tokens_in + spent.tokens_out:,} tokens"
        text = (
            "Copies of one model with the same material often add little to one careful call. "
            f"This run: {plural(made, 'call')}{tokens}; consilience solo: 1 call; "
            f"consilience solo --reviews 2: {_REVIEWED_CALLS} calls. consilience compare measures which is better on your tasks."
        )
        blocks = bullets([Item(text=text)])
    return Section(name="single-call", part="trust", blocks=blocks)


def _is_outside(model: str) -> bool:
    """Whether a person or a program answers, or nothing is known of the model."""
    return not model or model.partition(":")[0] in ("human", "exec")
