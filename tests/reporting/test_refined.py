"""The report of `refinement`: its passes, complete or cut off, for any content."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pytest

from adversaries.nasty import TEXTS
from adversaries.reading import STEERING, headings, skeleton
from consilience.domain.outcome import Limits, StopReason
from consilience.domain.presenting import present
from consilience.domain.report import Report
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.reporting import html
from consilience.reporting.export import as_markdown
from consilience.reporting.markdown import blocks_markdown, markdown
from consilience.reporting.record import AnyReport, SessionRecord
from consilience.reporting.report_sections import folded_sections
from consilience.reporting.session_diff import SessionDiff
from consilience.reporting.views import view_text
from kit import runner
from kit.cases import blog
from kit.golden import Golden, lines_with, section
from reporting.refinements import editing, refined
from reporting.sessions import ran


def report_of(record: SessionRecord) -> AnyReport:
    assert record.report is not None
    return record.report


async def test_refinement_report_has_scores_open_issues_and_what_was_reached(
    store: SqliteStore, golden: Golden
) -> None:
    golden(markdown(report_of(await refined(store))))


def criticism(report: Report) -> str:
    """The folded section with what the critic said, as Markdown."""
    (section,) = [section for section in folded_sections(report, present(report)) if section.name == "revisions"]
    return blocks_markdown(section.blocks)


async def test_criticism_is_listed_with_the_change(store: SqliteStore, golden: Golden) -> None:
    """That of the last pass, which nothing followed, stands at the end."""
    record = await refined(store)
    golden(criticism(report_of(record)))
    page = html.page(record)
    assert page.index("Dissent") < page.index("<summary>Criticism and revisions</summary>") < page.index("All figures")


@pytest.mark.parametrize("kind", ["length", "self"])
async def test_quality_and_critic_scores_are_separate(
    store: SqliteStore, kind: Literal["length", "self"], golden: Golden
) -> None:
    shown = report_of(await refined(store, blog(confidence=kind, threshold=0.99, max_passes=2)))
    golden(f"{lines_with('Quality by pass', markdown(shown))}\n\n{section(markdown(shown), 'Scores')}")
    golden(lines_with("^[*][*]", criticism(shown)), "criticism, by the critic's own score")


async def test_heuristic_critic_names_its_measure(store: SqliteStore, golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent == "body":
            return json.dumps({"confidence": "unsure", "text": f"Short. {request.key}."})
        return editing(request)

    protocol = blog(critic="heuristic", confidence="self", threshold=0.9, max_passes=2)
    shown = report_of(await refined(store, protocol, reply=reply))
    golden(section(markdown(shown), "Scores"))
    golden(criticism(shown), "criticism")


async def test_long_changes_are_cut_and_counted(store: SqliteStore) -> None:
    def rewriting(request: ModelRequest) -> Any:
        if "/revise/" in request.key:
            step = request.key[5]
            text = " ".join(f"Version {step} of sentence {n} ends here." for n in range(11))
            return json.dumps({"confidence": "certain", "text": text})
        return editing(request)

    lines = criticism(report_of(await refined(store, blog(max_passes=2), reply=rewriting))).splitlines()
    first = lines[: lines.index("```", lines.index("```diff") + 1)]
    assert sum(line.startswith("-Version") for line in first) == 8
    assert "-and 3 more." in first
    assert "+and 3 more." in first


async def test_refinement_figures_are_sentences(store: SqliteStore, golden: Golden) -> None:
    text = view_text("figures", await refined(store), 200)
    names = [line.partition(": ")[0] for line in text.splitlines()]
    assert not [name for name in names if "_" in name or name[:1].islower()]
    golden(text)


@pytest.mark.parametrize("reason", [StopReason.CONVERGED, StopReason.STALLED])
async def test_stop_reasons_of_refinement_speak_of_passes_and_critic(
    store: SqliteStore, reason: StopReason, golden: Golden
) -> None:
    protocol = blog(critic="heuristic", confidence="self", threshold=0.7 if reason is StopReason.CONVERGED else 0.9)
    shown = report_of(await refined(store, protocol))
    assert shown.stop_reason is reason
    golden(lines_with("^[*][*](Finished|Stopped|Dissent)", markdown(shown)))


async def test_missing_part_without_issues_is_not_approval(store: SqliteStore, golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent != "critic":
            return "{}" if request.agent == "body" else editing(request)
        marks = dict.fromkeys(("coherence", "accuracy", "depth", "overall"), "excellent")
        assert request.schema is not None
        return json.dumps({part: {**marks, "issues": []} for part in request.schema["required"]})  # type: ignore[attr-defined]

    text = markdown(report_of(await refined(store, blog(max_passes=1), reply=reply)))
    golden(lines_with("Dissent:", text))


async def test_unjudged_text_is_marked_as_unjudged(store: SqliteStore, golden: Golden) -> None:
    golden(markdown(report_of(await refined(store, limits=Limits(calls=9)))))


async def test_run_cut_in_the_second_pass_keeps_the_first(store: SqliteStore, golden: Golden) -> None:
    shown = report_of(await refined(store, limits=Limits(calls=20)))
    golden(f"{lines_with('Quality by pass', markdown(shown))}\n\n{section(markdown(shown), 'Scores')}")
    golden(lines_with("^[*][*]", criticism(shown)), "criticism")


async def test_unusable_critique_is_in_the_headline(store: SqliteStore, golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        return "I like it." if request.agent == "critic" else editing(request)

    golden(markdown(report_of(await refined(store, reply=reply))))


async def test_issue_of_the_last_pass_is_open_and_not_handed_back(store: SqliteStore, golden: Golden) -> None:
    golden(section(markdown(report_of(await refined(store, blog(max_passes=1)))), "Dissent and open objections"))


async def test_other_protocols_have_no_refinement_sections(store: SqliteStore) -> None:
    record = await ran(store)
    text = as_markdown(record)
    for words in ("Quality", "Scores", "Criticism and", "Critique after", "Passes"):
        assert words not in text
    assert "Rounds: 2 of at most 2" in view_text("figures", record)


# --- whatever is in it


@pytest.mark.parametrize("expected", TEXTS.values(), ids=TEXTS)
async def test_agent_text_does_not_break_the_report(store: SqliteStore, expected: str) -> None:
    words = expected[:300].encode("utf-8", "replace").decode()

    async def written(words: str, session: str) -> str:
        protocol = blog(max_passes=2)
        return markdown(report_of(await refined(store, protocol, reply=lambda r: editing(r, words), session=session)))

    text = await written(words, "nasty")
    assert skeleton(text) == skeleton(await written("harmless", "tame"))
    assert not STEERING.search(text)


async def test_report_of_an_older_version_omits_missing_fields(store: SqliteStore) -> None:
    whole = report_of(await refined(store)).model_dump(mode="json")
    odd = {
        **whole,
        "passes": [{"index": 2, "sections": {"intro": {"scores": None}}, "quality": "good"}, 7],
        "revisions": {},
    }
    text = markdown(AnyReport.model_validate(odd))
    assert "## Answer" in text
    assert "Scores" not in headings(text)
    bare = {name: value for name, value in whole.items() if name in AnyReport.model_fields}
    assert "Quality" not in markdown(AnyReport.model_validate(bare))


async def test_replayed_report_renders_like_the_stored_one(store: SqliteStore) -> None:
    record = await refined(store)
    again, read_back = markdown(await runner.replay("s", store=store)), markdown(report_of(record))
    time = r" · [0-9.]+ s · "  # a replay takes time of its own
    assert re.sub(time, "", again) == re.sub(time, "", read_back)


@pytest.mark.parametrize("protocol", ["emergence", "refinement"])
async def test_compare_counts_dissent_that_is_an_objection_once(store: SqliteStore, protocol: str) -> None:
    record = await (ran(store) if protocol == "emergence" else refined(store))
    report = report_of(record)
    assert report.objections
    assert [entry.id for entry in report.dissent] == [
        objection.id for objection in report.objections if objection.is_open
    ]
    outcome = SessionDiff(record, record).as_json()["outcome"]
    assert outcome["dissent"] == [str(len(report.dissent))] * 2  # type: ignore[index]
