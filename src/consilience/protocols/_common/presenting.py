"""What the reports of several protocols show alike: figures, positions and ballots, as sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from consilience.domain.outcome import Check
from consilience.domain.positions import Ballot
from consilience.domain.sections import Block, Bullets, HeldPosition, Item, KeyFigure, Paragraph, Section

_SHARES: Mapping[str, str] = {
    "novelty": "Sentences of the answer that no agent had written before",
    "revision_rate": "Texts changed after reading those of others",
}
_OMITTED = frozenset({"facts", "fact_survival", "conformity", "dropped_labels"})
"""Reported elsewhere (with the changes of position, as a warning), or misleading: `fact_survival` counted only sentences that an
answer repeats nearly word for word."""


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
