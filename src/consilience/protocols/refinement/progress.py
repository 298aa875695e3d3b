"""A refinement that is not finished, folded from its notes: the passes so far, and what flows in the one under way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consilience.domain.events import Noted
from consilience.domain.hierarchies import Hierarchy
from consilience.domain.notes import load_note
from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import (
    Bar,
    Block,
    Details,
    Diff,
    Presentation,
    ProgressColumn,
    Section,
    extend_presentation,
)
from consilience.domain.wording import count, percent
from consilience.protocols.refinement.report_data import (
    HANDED_NOTE,
    PASS_NOTE,
    HandedDown,
    PassReport,
    RecordedPass,
    RefinementState,
    pass_name,
)
from consilience.protocols.refinement.views import describe_verdict, distances_view, flow_view, passes_view

MAX_ISSUES = 6
"""Issues with a part that its column lists, the first ones."""


def state_so_far(session: UnfinishedSession) -> RefinementState:
    """Return the passes that have ended, and what was handed down so far. Of the distances only those of roles with vectors are
    known."""
    started = session.started
    notes = [event for event in session.events if isinstance(event, Noted)]
    passes = [load_note(RecordedPass, note, session.text) for note in notes if note.name == PASS_NOTE]
    handed = [load_note(HandedDown, note, session.text) for note in notes if note.name == HANDED_NOTE]
    return RefinementState(
        settings=started.settings,
        agents=started.agents,
        topology=started.topology,
        passes=tuple(recorded.report for recorded in passes),
        distances=hierarchy_of(session).distances,
        handed_down=tuple(text for note in handed for text in note.texts),
        contributions=tuple(contribution for recorded in passes for contribution in recorded.contributions),
    )


def hierarchy_of(session: UnfinishedSession) -> Hierarchy:
    return Hierarchy.model_validate(session.started.settings["hierarchy"])


def extend_progress(common: Presentation, session: UnfinishedSession) -> Presentation:
    """Add to a presentation what shows an unfinished refinement: its parts, its passes with their differences, the flow."""
    state = state_so_far(session)
    parents = state.topology.parents
    distances = distances_view(state.settings, state.distances, parents, finished=False)
    return extend_presentation(
        common,
        sections=tuple(_differences(state)),
        views=(passes_view(state), flow_view(state), distances),
        columns=tuple(_columns(state, hierarchy_of(session).sections)),
    )


def _differences(state: RefinementState) -> Iterator[Section]:
    """Yield what the passes changed in the whole text, the last one unfolded."""
    changed = [entry for entry in state.passes if entry.diff]
    if changed:
        *earlier, last = changed
        blocks: list[Block] = [_difference(last, state)]
        blocks += [Details(summary=_pass_words(entry, state), blocks=(_difference(entry, state),)) for entry in earlier]
        yield Section(name="differences", part="answer", heading="What the passes changed", blocks=tuple(blocks))


def _difference(entry: PassReport, state: RefinementState) -> Diff:
    return Diff(heading=f"{_pass_words(entry, state)} (− removed, + added):", text=entry.diff)


def _pass_words(entry: PassReport, state: RefinementState) -> str:
    """Return `Pass 2, from pass 1: 0.77, needed 0.80, not met`."""
    return f"{entry.name.capitalize()}, from {pass_name(entry.base)}: {describe_verdict(entry, state)}"


def _columns(state: RefinementState, sections: Sequence[str]) -> Iterator[ProgressColumn]:
    """Yield the parts of the text as the last pass left them: quality, change, and what the critic said."""
    last = next((entry for entry in reversed(state.passes) if entry.sections), None)
    for name in sections:
        part = last.sections.get(name) if last else None
        if last is None or part is None:
            yield ProgressColumn(heading=name, badge="not written yet", part=name)
            continue
        value = part.confidence if state.measure.unit else part.overall
        change = f", {percent(part.change)} new" if part.change is not None else ""
        more = [f"and {len(part.issues) - MAX_ISSUES} more"] if len(part.issues) > MAX_ISSUES else []
        yield ProgressColumn(
            heading=name,
            badge=f"after {last.name}: {'written' + change if part.written else 'kept'}",
            lines=(count(len(part.issues), "issue"), *part.issues[:MAX_ISSUES], *more),
            part=name,
            bar=None if value is None else Bar(name=state.measure.unit or "quality", value=value),
        )
