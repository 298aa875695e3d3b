"""From the course of a run to its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consilience.domain.outcome import StopReason
from consilience.engine.analysis import novelty
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols._common.answers import extract
from consilience.protocols._common.conclusion import conclusion_fields
from consilience.protocols.decompose.report import DecomposeReport, Part
from consilience.protocols.decompose.settings import Settings
from consilience.protocols.decompose.work import Course, Job


async def conclude(session: Session, settings: Settings, course: Course, stop: StopReason) -> DecomposeReport:
    """The report. Nobody contradicts anybody here, so it has no dissent to tell of."""
    closing, jobs = course.closing, course.jobs
    position = extract(settings.answer_pattern, closing.text) if settings.answer_pattern and closing else None
    idle = tuple(agent for agent in session.topology.agents if jobs and agent not in {job.agent for job in jobs})
    declared = conclusion_fields(session, closing)
    _warn(session, settings, course, position)
    return await session.report(
        DecomposeReport,
        first=_first(session, jobs),
        stop_reason=stop,
        steps=1 if jobs else 0,
        answer=closing.text if closing else None,
        answer_cut=closing is not None and closing.cut,
        closing=drawn_on(closing, course.all_failures),
        **declared,
        metrics=_metrics(session, course),
        parts=tuple(_parts(jobs)),
        idle=idle,
        strange_loops=tuple(course.loops),
        position=position,
    )


def _first(session: Session, jobs: Sequence[Job]) -> list[Reply[object] | Failure]:
    """What each leaf came to that was asked."""
    leaves = sorted(
        (job for job in jobs if job.agent in session.topology.leaves),
        key=lambda job: session.topology.leaves.index(job.agent),
    )
    return [job.text if job.text is not None else job.failures[0] for job in leaves]


def _parts(jobs: Sequence[Job]) -> Iterator[Part]:
    for parent in jobs:
        for job in parent.below:
            yield Part(
                agent=job.agent,
                parent=parent.agent,
                title=job.part.title.strip() if job.part else "",
                instructions=job.part.instructions.strip() if job.part else "",
                given=job.part is not None,
                text=job.text.text if job.text is not None else None,
            )


def _metrics(session: Session, course: Course) -> dict[str, float | int | None]:
    texts = [job.text.text for job in course.jobs if job.text is not None and job.agent in session.topology.leaves]
    answer = course.closing.text if course.closing else ""
    said = [job.text.text for job in course.jobs[1:] if job.text is not None]
    return {
        "novelty": novelty(answer, [*said, *(document.text for document in session.sources)]),
        "dropped_labels": session.dropped,
        "sibling_similarity/execute/1": mean_pairwise(texts),
    }


def _warn(session: Session, settings: Settings, course: Course, position: str | None) -> None:
    jobs = course.jobs
    asked = {job.agent for job in jobs}
    without = [job.agent for job in jobs if any(not below.part for below in job.below)]
    if without:
        session.warn(f"{', '.join(without)} gave no parts out; those beneath had the task as a whole")
    if idle := [leaf for leaf in session.topology.leaves if jobs and leaf not in asked]:
        session.warn(f"too few parts were found for all agents; not asked: {', '.join(idle)}")
    if surplus := sum(job.surplus for job in jobs):
        session.warn(f"parts beyond the number of agents were left out: {surplus}")
    lost = [job.agent for job in course.jobs[1:] if job.text is None and any(below.text for below in job.below)]
    if lost:
        session.warn(f"{', '.join(lost)} did not put together what was done beneath; it did not go up")
    if session.dropped:
        session.warn(f"references to texts that were not shown were dropped: {session.dropped}")
    if settings.answer_pattern and course.closing is not None and position is None:
        session.warn("the answer holds nothing that the answer_pattern looks for")
    if course.loops and course.loops[-1].after is None:
        session.warn("the last review of the answer failed; the answer is the one before it")
