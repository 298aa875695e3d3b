"""The report of a run of `review`: what is listed, what was dropped, and what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from consilience.domain.document_shares import Purpose
from consilience.domain.findings import DroppedFinding, FileRead, Finding, PartRead
from consilience.domain.messages import Quotation
from consilience.domain.outcome import StopReason
from consilience.domain.report import Claim, Dissent
from consilience.domain.tokens import estimate_tokens
from consilience.domain.wording import count
from consilience.engine.analysis import independence
from consilience.engine.sources import Document, parse_reference
from consilience.engine.work import Failure, Reply
from consilience.protocols.review.ballots import milder_votes, reasons, verdict_of, vote_changes
from consilience.protocols.review.parts import files_of_part, unshown_documents
from consilience.protocols.review.presenting import count_dropped, describe_dropped
from consilience.protocols.review.report import ReviewReport
from consilience.protocols.review.requests import cut_words
from consilience.protocols.review.rounds import ReviewRun
from consilience.protocols.review.settings import ReviewSettings
from consilience.protocols.review.vetting import listed


def _without_room(run: ReviewRun) -> Iterator[str]:
    """Yield warnings about what prompts had no room for."""
    if run.unjudged:
        yield f"not judged: {count(run.unjudged, 'finding')} that did not fit into the prompt of a judge"
    if run.untold:
        yield f"not shown to the lead, which wrote without them: {count(run.untold, 'finding')}"
    if passages := run.settings.related_left_out:
        yield f"related lines of other parts: {count(passages, 'passage')} left out, because there was no room"


async def conclude(run: ReviewRun, stop: StopReason) -> ReviewReport:
    session = run.session
    findings, over = listed(run.fold.findings, run.settings.max_findings)
    dropped = (*run.fold.dropped, *over)
    withdrawn = {agent for agent, _ in run.withdrawn}
    missing = _missing_reviews(run)
    for agent in sorted(withdrawn & missing.keys()):
        session.warn(missing.pop(agent))
    parts = _parts_read(run)
    for warning in _without_room(run):
        session.warn(warning)
    for submitted in run.fold.submitted.values():
        if submitted.reply.vote is None or len(submitted.reply.findings) >= run.requests.room:
            session.warn(
                f"{submitted.agent} reported as many findings on part {submitted.part} as its reply has room for, "
                "so there may be more; use smaller parts (--part-tokens) or longer replies (--reply-tokens)"
            )
    for name in unshown_documents(session.sources, run.settings.parts, run.changes):
        session.warn(f"{name} is in no part and was not reviewed")
    claims = _claims(run)
    evaluation = run.evaluations[-1] if run.evaluations else None
    text = run.fold.with_places(run.closing.text) if run.closing is not None else None
    first = tuple(ballot for assignment, ballot in run.first_ballots.items() if assignment in run.final_ballots)
    return await session.close(
        ReviewReport,
        run.closing,
        first=_first_results(run),
        stop_reason=stop,
        enough=True,
        unmet=(*missing.values(), *_unread(parts)),
        check=run.check,
        steps=len(run.evaluations) or min(len(run.replies), 1),
        answer=text if text is not None else _answer(run, parts, findings, dropped) if run.replies else None,
        claims=claims,
        quotations=_quotations(findings, dropped),
        facts=None,  # a finding is listed beside the answer, which is not to repeat it
        dissent=_dissent(run, findings),
        metrics={
            "findings": len(findings),
            "false_quotations": sum(finding.reason == "false quotation" for finding in dropped),
            "quality": evaluation.quality if evaluation else None,
            "dropped_labels": session.dropped,
        },
        findings=findings,
        dropped=dropped,
        ballots=run.ballots,
        first_ballots=first,
        position_changes=vote_changes(first, run.ballots),
        verdict=verdict_of(run.ballots),
        evaluations=tuple(run.evaluations),
        parts=parts,
        questions=_questions(run.settings),
        files=_files_read(run),
        **_of_target(run.settings),
        shown_beside=_beside(run),
        not_shown=(*_not_shown(run.settings), *run.settings.not_searched),
        hunks=run.changes.hunks if run.changes else (),
        **_asked(run),
    )


def _of_target(settings: ReviewSettings) -> dict[str, object]:
    """Return what settings and report both have of the target."""
    names = ("left_out", "unread_files", "known_findings", "reviewed_commit", "reviewed_base")
    return {name: getattr(settings, name) for name in names}


def _asked(run: ReviewRun) -> dict[str, object]:
    """Return who took part, if a quick review did not ask its second reviewer: one that said nothing is no second voice."""
    if not run.settings.plan.spares_readers:
        return {}
    asked = {agent for agent, _ in run.assignments}
    agents = tuple(agent for agent in run.session.agents if agent.id in asked)
    return {"agents": agents, "independence": independence(agents)}


def _beside(run: ReviewRun) -> dict[Purpose, tuple[str, ...]]:
    """Return the names of what any part was shown that is not under review."""
    shown = {reference.partition(":")[0] for part in run.settings.shown_beside for reference in part}
    names: dict[Purpose, tuple[str, ...]] = {}
    for document in run.session.sources:
        if document.purpose and document.id in shown:
            names[document.purpose] = (*names.get(document.purpose, ()), document.name or document.id)
    return names


def _not_shown(settings: ReviewSettings) -> Iterator[str]:
    """Yield what had no room beside each part."""
    for part, cut in enumerate(settings.without_room, 1):
        if words := cut_words(cut):
            yield f"{f'beside part {part}' if len(settings.parts) > 1 else 'for lack of room'}: {', '.join(words)}"


def _dissent(run: ReviewRun, findings: Sequence[Finding]) -> tuple[Dissent, ...]:
    """Return the votes that are milder than the verdict, and who refutes which finding."""
    refuted = (
        Dissent(agent=judgement.agent, text=f"{finding.file}:{finding.first_line} is no defect: {judgement.reason}")
        for finding in findings
        for judgement in finding.judgements
        if judgement.verdict == "refute"
    )
    return (*milder_votes(run.ballots), *refuted)


def _questions(settings: ReviewSettings) -> dict[str, str]:
    plan, parts = settings.plan, len(settings.parts)
    questions = {agent: plan.question(agent, parts, settings.review_type) for agent in plan.reviewers}
    return {agent: question for agent, question in questions.items() if question}


def _quotations(findings: tuple[Finding, ...], dropped: tuple[DroppedFinding, ...]) -> tuple[Quotation, ...]:
    """Return the quotations of the findings listed and the false ones; those in the prose of a reply are not evidence here."""
    true = [
        Quotation(words=f.quotation, source=f.source, line=f.source_line, verified=True, agent=f.by[0])
        for f in findings
    ]
    false = [finding for finding in dropped if finding.reason == "false quotation"]
    return (
        *true,
        *(Quotation(words=d.quotation, source=d.file, line=d.line, verified=False, agent=d.by) for d in false),
    )


def _first_results(run: ReviewRun) -> list[Reply[object] | Failure]:
    """Return a reply of each reviewer, of its failures the first if there is none."""
    results: list[Reply[object] | Failure] = []
    for agent in run.settings.plan.reviewers:
        replies = [reply for (reader, _), reply in run.replies.items() if reader == agent]
        failures = [failure for failure in run.failures if failure.agent == agent]
        results += replies[:1] or failures[:1]
    return results


def _missing_reviews(run: ReviewRun) -> dict[str, str]:
    """Return which reviews of an agent are missing, and why. One that reviewed in an earlier iteration lacks a further one."""
    return {
        agent: f"no {'' if agent in run.absent else 'further '}review by {run.absent.get(agent, agent)} ({reason})"
        for agent, reason in run.missing_by_agent.items()
    }


def _unread(parts: Sequence[PartRead]) -> tuple[str, ...]:
    """Return how many parts nobody reviewed, if any."""
    unread = sum(not part.readers for part in parts)
    return (f"{unread} of {count(len(parts), 'part')} not reviewed",) if unread else ()


def _answer(
    run: ReviewRun,
    parts: Sequence[PartRead],
    findings: tuple[Finding, ...],
    dropped: tuple[DroppedFinding, ...],
) -> str:
    """Return the answer of a run without a closing text: what is missing. The findings are counted above it and listed below it."""
    all_files = len(_files(run, run.settings.parts))
    read_files = len(_files(run, [part.documents for part in parts if part.readers]))
    files = count(all_files, "file") if read_files == all_files else f"{read_files} of {count(all_files, 'file')}"
    unjoined = "; several findings may be one defect" if len(findings) > 1 else ""
    these = "these findings" if len(findings) > 1 else "this finding"
    unwritten = f"A quick review: no agent judged {these}" if not run.settings.closing else "The lead wrote no review"
    sentences = [f"{unwritten}{unjoined}." if findings else f"No findings in {files}."]
    verdict = verdict_of(run.ballots)
    if verdict is not None and verdict.vote != "approve" and not findings:
        against = [ballot for ballot in run.ballots if ballot.vote != "approve"]
        sentences.append(f"Yet not every reviewer approves: {reasons(against)}.")
    if dropped and not findings:
        counts = count_dropped(dropped)
        sentences.append(f"{count(counts.total(), 'finding')} not listed ({describe_dropped(counts)}).")
    sentences += [f"{unread}." for unread in _unread(parts)]
    if absent := run.absent:
        covered = "the others" if all(name == agent for agent, name in absent.items()) else "the rest"
        sentences.append(f"No review by {', '.join(absent.values())}: this covers {covered} only.")
    return " ".join(sentences)


def _claims(run: ReviewRun) -> tuple[Claim, ...]:
    """Return what the closing text stands on. A claim that names a finding rests on its verified quotation."""
    if run.closing is None:
        return ()
    claims = [claim for claim in run.closing.value.claims if claim.text.strip()][: run.session.caps.claims]
    published = {message.id for message in run.messages.values()}
    named = [[id for id in run.session.named(run.closing, claim.ids) if id in published] for claim in claims]
    return tuple(
        Claim(text=run.fold.with_places(claim.text), ids=tuple(ids), from_memory=not ids)
        for claim, ids in zip(claims, named, strict=True)
    )


def _parts_read(run: ReviewRun) -> tuple[PartRead, ...]:
    documents = run.session.sources
    return tuple(
        PartRead(
            index=index,
            documents=references,
            tokens=sum(estimate_tokens(parse_reference(reference, documents).numbered) for reference in references),
            readers=tuple(agent for agent in run.settings.plan.reviewers if (agent, index) in run.replies),
            assigned=tuple(agent for agent, part in run.assignments if part == index),
            names=tuple(_name(parse_reference(reference, documents)) for reference in references),
        )
        for index, references in enumerate(run.settings.parts, 1)
    )


def _name(document: Document) -> str:
    """Return the name of a document, with the lines of it that were shown."""
    name = document.name or document.id
    return f"{name}:{document.lines[0]}-{document.lines[1]}" if document.lines else name


def _files_read(run: ReviewRun) -> tuple[FileRead, ...]:
    """Return the documents with what reviewers said of each; the diff only if it is all that there is."""
    remarks: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for submitted in run.fold.submitted.values():
        ids = {name: shown.id for shown in submitted.shown for name in (shown.id, shown.reference, shown.name)}
        for read in submitted.reply.read:
            if (id := ids.get(read.document.strip(" []`"))) and read.remark.strip():
                remarks[id].append((submitted.agent, read.remark.strip()))
    return tuple(
        FileRead(file=document.name or document.id, remarks=tuple(dict.fromkeys(remarks[document.id])))
        for document in _files(run, run.settings.parts)
    )


def _files(run: ReviewRun, parts: Iterable[Sequence[str]]) -> list[Document]:
    """Return the documents of these parts; the diff only if it is all that there is."""
    shown = [parse_reference(reference, run.session.sources) for part in parts for reference in part]
    names = files_of_part(shown, run.changes)
    under_review = [document for document in run.session.sources if not document.purpose]
    files = [document for document in under_review if (document.name or document.id) in names]
    return files or [document for document in under_review if document.id in {part.id for part in shown}]
