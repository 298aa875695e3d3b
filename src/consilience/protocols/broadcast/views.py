"""Iterations and ratings of `broadcast` as plain data: of a report, and of a session without one, from its notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from consilience.domain.events import Noted as NotedEvent
from consilience.domain.events import load_note
from consilience.domain.report import Frozen, UnfinishedSession
from consilience.domain.sections import Bar, Bars, Item, Paragraph, SeatNote, Table, View
from consilience.protocols._common.presenting import bullets, plural, two_places
from consilience.protocols.broadcast.notes import NOTES, FlagRaised, GoalBroadcast, IterationEnded, Rated
from consilience.protocols.broadcast.replies import Severity, Tag

HEADING = "Why a goal was broadcast again"
SEATS_LEGEND = "the more colour, the better an agent rates what it wrote, from 0 to 1"


class Flag(Frozen):
    """A flag that was raised."""

    id: str
    tag: Tag
    severity: Severity
    critical: bool
    """By the settings."""
    node: str
    path: tuple[int, ...] = ()
    """The iterations it was raised in, the root's first."""
    text: str
    stands: bool = False
    """At the root, when the run ended."""
    read: bool = False
    """A later call was shown it."""

    @property
    def link(self) -> str:
        """As the seed writes it: `goal_mismatch (L3N2)`."""
        return f"{self.tag} ({self.node})"


class Iteration(Frozen):
    """One iteration of a parent."""

    node: str
    path: tuple[int, ...]
    """The iterations of its ancestors and this one."""
    broadcast: str | None = None
    """The goal as broadcast."""
    caused_by: tuple[str, ...] = ()
    """What made it broadcast again: flags, what children found missing, and the evaluation of the iteration before."""
    ratings: dict[str, float | None] = {}
    mean: float | None = None
    coordination_rounds: int = 0
    flags: tuple[str, ...] = ()
    feedback: str | None = None
    """The evaluation."""
    said_satisfied: bool | None = None
    """What the evaluator says. Its yes alone decides nothing."""
    satisfied: bool = False
    """Computed: every rating readable, their `mean` at the threshold, no critical flag, no failed call, and no evaluator's no."""
    unmet: str = ""
    """Why it is not satisfied."""
    running: bool = False
    """In a session without a report: not judged yet."""

    @property
    def verdict(self) -> str:
        if self.running:
            return "running"
        decided = "satisfied" if self.satisfied else "not satisfied"
        contradicted = self.said_satisfied is not None and self.said_satisfied != self.satisfied
        return f"{decided}, the evaluator said otherwise" if contradicted else decided


def iterations_view(iterations: Sequence[Iteration], flags: Sequence[Flag], threshold: object) -> View:
    """Every iteration of every parent: goal, ratings, flags, verdict, and what caused it."""
    if not iterations:
        return View(name="iterations", heading=HEADING, blocks=(Paragraph(text="Nothing was broadcast."),))
    needed = float(threshold) if isinstance(threshold, int | float) else None
    average = f", needed {needed:.2f} on average" if needed is not None else ""
    named = "Every broadcast of a parent, named by the iterations from the root's down"
    head = Paragraph(text=f"{named}; how its children rated themselves{average}.")
    known = {flag.id: flag for flag in flags}
    rows, bars, items = [], [], []
    for iteration in iterations:
        name, flagged = f"{iteration.node} {'.'.join(map(str, iteration.path))}", _flagged(iteration, known)
        ratings = " ".join(map(two_places, iteration.ratings.values())) or "–"
        rows.append((name, ratings, two_places(iteration.mean), str(len(iteration.flags)), iteration.verdict))
        bars.append(
            Bar(
                name=name,
                value=iteration.mean,
                dots=tuple(rating for rating in iteration.ratings.values() if rating is not None),
                note=f"{two_places(iteration.mean)} {iteration.verdict}",
                lines=(flagged,) if flagged else (),
            )
        )
        items += [Item(text=f"{name}: {line}") for line in _details(iteration, known, flagged)]
    return View(
        name="iterations",
        heading=HEADING,
        blocks=(
            head,
            Table(heads=("iteration", "ratings", "mean", "flags", "verdict"), rows=tuple(rows)),
            *bullets(items),
        ),
        picture=Bars(
            title="mean rating of the children, iteration by iteration",
            rows=tuple(bars),
            threshold=needed,
            legend=("bar: the mean · dots: each child's rating · dashed: what is needed",),
        ),
    )


def _details(iteration: Iteration, flags: Mapping[str, Flag], flagged: str) -> Iterator[str]:
    """What caused an iteration, its goal, its flags, why it does not satisfy, and the evaluation."""
    if iteration.caused_by:
        yield f"broadcast again because of {', '.join(_named(iteration.caused_by, flags))}"
    if iteration.broadcast:
        yield f"goal: {iteration.broadcast}"
    if flagged:
        yield flagged
    if iteration.unmet:
        yield f"not satisfied: {iteration.unmet}"
    if iteration.feedback:
        yield f"evaluation: {iteration.feedback}"


def _flagged(iteration: Iteration, flags: Mapping[str, Flag]) -> str:
    """How many flags, and which: the critical ones first."""
    if not iteration.flags:
        return ""
    critical = sum(flags[id].critical for id in iteration.flags if id in flags)
    of_these = f", {critical} critical" if critical else ""
    return f"{plural(len(iteration.flags), 'flag')}{of_these}: {', '.join(_named(iteration.flags, flags))}"


def _named(ids: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """Flags by tag and node; other messages by id."""
    ordered = sorted(ids, key=lambda id: not (id in flags and flags[id].critical))
    return [flags[id].link if id in flags else id for id in ordered]


def seat_note(rating: float | None, flags: Mapping[Tag, bool]) -> SeatNote:
    """An agent's rating and its tags; the value of a tag says whether it is critical."""
    tags = sorted(flags, key=lambda tag: not flags[tag])
    rated = "no rating" if rating is None else f"satisfied {rating:.2f}"
    critical = [tag for tag in tags if flags[tag]]
    return SeatNote(
        text=f"{rated}; flags: {', '.join(tags)}" if tags else rated,
        short=rated + (f"; {plural(len(tags), 'tag')}" if tags else ""),
        shade=rating,
        alert=f"critical: {', '.join(critical)}" if critical else "",
    )


@dataclass
class Noted:
    """A session so far, from its notes."""

    parents: Mapping[str, tuple[str, ...]]
    started: dict[tuple[str, tuple[int, ...]], Iteration] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)
    ratings: dict[str, float | None] = field(default_factory=dict)

    @property
    def iterations(self) -> Sequence[Iteration]:
        return tuple(self.started.values())

    def add(self, note: object) -> None:
        match note:
            case GoalBroadcast():
                self._update(note.node, note.path, broadcast=note.text)
            case Rated():
                self.ratings[note.agent] = note.rating
                for parent in self.parents.get(note.agent, ()):
                    ratings = {**self._iteration(parent, note.path).ratings, note.agent: note.rating}
                    self._update(parent, note.path, ratings=ratings)
            case FlagRaised():
                self.flags.append(Flag(**note.model_dump()))
                for parent in self.parents.get(note.node, ()):
                    flags = (*self._iteration(parent, note.path).flags, note.id)
                    self._update(parent, note.path, flags=flags)
            case IterationEnded():
                self._update(note.node, note.path, **note.model_dump(exclude={"node", "path"}), running=False)

    def flags_of(self, agent: str) -> dict[Tag, bool]:
        """The tags that an agent raised, and whether each is critical."""
        return {flag.tag: flag.critical for flag in self.flags if flag.node == agent}

    def _iteration(self, node: str, path: tuple[int, ...]) -> Iteration:
        return self.started.get((node, path)) or Iteration(node=node, path=path, running=True)

    def _update(self, node: str, path: tuple[int, ...], **values: object) -> None:
        self.started[node, path] = self._iteration(node, path).model_copy(update=values)


def fold(progress: UnfinishedSession) -> Noted:
    """Read the notes of a session that has no report yet."""
    noted = Noted(progress.started.topology.parents)
    for event in progress.events:
        if isinstance(event, NotedEvent) and event.name in NOTES:
            noted.add(load_note(NOTES[event.name], event, progress.text))
    return noted
