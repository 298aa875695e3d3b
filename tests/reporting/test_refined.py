"""The report of `refinement`: its passes, complete or cut off, for any content."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pytest
from markdown_it import MarkdownIt

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
from reporting.refinements import ISSUES, editing, refined
from reporting.sessions import ran


def report_of(record: SessionRecord) -> AnyReport:
    assert record.report is not None
    return record.report


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading, as they are read."""
    tokens = (
        MarkdownIt("commonmark")
        .enable("table")
        .parse(re.split(r"\n##+ ", text.partition(f"# {heading}\n")[2], maxsplit=1)[0])
    )
    rows: list[list[str]] = []
    for n, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("td_open", "th_open"):
            rows[-1].append("".join(child.content for child in tokens[n + 1].children or ()))
    return rows


async def test_refinement_report_has_sections_in_order(store: SqliteStore) -> None:
    text = markdown(report_of(await refined(store)))
    order = [
        "**Stopped: ran out of passes before the text was good enough**",
        "## Answer",
        "The whole was put together in pass 2.",
        "**Quality by pass:** 0.47, whole 0.50 → 0.77, whole 0.80 (the answer) → 0.57, whole 0.60, needed 0.80",
        "## Dissent and open objections",
        "— *critic → intro (author)* Handed back, and still not resolved.",
        "## Scores",
        "## How far to trust it",
    ]
    places = [text.find(words) for words in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert "Criticism and revisions" not in text
    assert "Critique after" not in text
    assert (
        "--view figures` · other views: revisions, passes, flow, distances, glossary\n\nTo go on beyond 3 passes:"
        in text
    )


async def test_score_table_has_every_part_and_pass(store: SqliteStore) -> None:
    assert table(markdown(report_of(await refined(store))), "Scores") == [
        ["pass", "quality", "whole", "intro", "body", "conclusion"],
        ["1", "0.47", "0.50 (1 issue)", "0.40 (2 issues)", "0.50 (1 issue)", "0.50 (2 issues)"],
        ["2, the answer", "0.77", "0.80", "0.70 (2 issues)", "0.80", "0.80"],
        ["3", "0.57", "0.60", "0.50 (2 issues)", "0.60, kept", "0.60, kept"],
    ]


def criticism(report: Report) -> str:
    """The folded section with what the critic said, as Markdown."""
    (section,) = [section for section in folded_sections(report, present(report)) if section.name == "revisions"]
    assert section.heading == "Criticism and revisions"
    return blocks_markdown(section.blocks)


def revisions(report: Report) -> dict[str, str]:
    """What stands under each heading of the criticism."""
    section = criticism(report).partition("\n### ")[0]
    parts = re.split(r"^\*\*(.*)\*\*$", section, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))


async def test_criticism_is_listed_with_the_change(store: SqliteStore) -> None:
    changes = revisions(report_of(await refined(store)))
    assert list(changes) == [
        "intro, pass 1, 0.40 → 0.70; rewritten in pass 2",
        "body, pass 1, 0.50 → 0.80; rewritten in pass 2",
        "conclusion, pass 1, 0.50 → 0.80; rewritten in pass 2",
        "whole, pass 1, 0.50 → 0.80; put together again in pass 2",
        "intro, pass 2, 0.70 → 0.50; rewritten in pass 3, which was discarded",
    ]
    intro = changes["intro, pass 1, 0.40 → 0.70; rewritten in pass 2"]
    assert [line for line in intro.splitlines() if line[:2] == "- "] == [f"- {issue}" for issue in ISSUES]
    assert "\n-In pass 1 the intro added figure 1.\n+In pass 2 the intro added figure 2.\n" in intro


@pytest.mark.parametrize(
    ("kind", "word", "what", "figures"),
    [
        ("length", "length", "what each part has of a full length", ("0.61", "0.59", "0.58", "0.66")),
        ("self", "declared", "what its author declares of each part", ("0.78", "0.95", "0.70", "0.70")),
    ],
)
async def test_quality_and_critic_scores_are_separate(
    store: SqliteStore, kind: Literal["length", "self"], word: str, what: str, figures: tuple[str, ...]
) -> None:
    protocol = blog(confidence=kind, threshold=0.99, max_passes=2)
    shown = report_of(await refined(store, protocol))
    text = markdown(shown)
    assert (
        f"**Quality by pass ({word}):** {figures[0]}, whole 0.50 → {figures[0]}, whole 0.80 (the answer), needed 0.99"
        in text
    )
    assert f"From 0 to 1: {what}, then the critic's overall score, with the number of issues." in text
    quality, intro, body, conclusion = figures
    _, first, second = table(text, "Scores")
    assert first == [
        "1",
        quality,
        "0.50 (1 issue)",
        f"{intro}, critic 0.40 (2 issues)",
        f"{body}, critic 0.50 (1 issue)",
        f"{conclusion}, critic 0.50 (2 issues)",
    ]
    assert second[2:] == [
        "0.80",
        f"{intro}, critic 0.70 (2 issues)",
        f"{body}, critic 0.80",
        f"{conclusion}, critic 0.80",
    ]
    moved = next(iter(revisions(shown)))
    assert moved.startswith("intro, pass 1, 0.40 → 0.70; "), "the critic's own, beside its issues"


async def test_heuristic_critic_names_its_measure(store: SqliteStore) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent == "body":
            return json.dumps({"confidence": "unsure", "text": f"Short. {request.key}."})
        return editing(request)

    protocol = blog(critic="heuristic", confidence="self", threshold=0.9, max_passes=2)
    shown = report_of(await refined(store, protocol, reply=reply))
    text = markdown(shown)
    assert "From 0 to 1: what its author declares of each part, with the number of issues." in text
    assert table(text, "Scores")[1] == ["1, the answer", "0.68", "–", "0.95", "0.40 (2 issues)", "0.70"]
    ((heading, output),) = revisions(shown).items()
    assert heading == "body, pass 1, declared 0.40 → 0.40; rewritten in pass 2, which was discarded"
    assert output.startswith("- too short")


async def test_long_changes_are_cut_and_counted(store: SqliteStore) -> None:
    def rewriting(request: ModelRequest) -> Any:
        if "/revise/" in request.key:
            step = request.key[5]
            text = " ".join(f"Version {step} of sentence {n} ends here." for n in range(11))
            return json.dumps({"confidence": "certain", "text": text})
        return editing(request)

    shown = report_of(await refined(store, blog(max_passes=2), reply=rewriting))
    lines = next(iter(revisions(shown).values())).splitlines()
    assert sum(line.startswith("-Version") for line in lines) == 8
    assert "-and 3 more." in lines
    assert "+and 3 more." in lines


async def test_last_critique_of_every_part_is_listed(store: SqliteStore) -> None:
    record = await refined(store)
    lines = criticism(report_of(record)).partition("### Critique after pass 3\n\n")[2].splitlines()
    assert [line.partition(":**")[0] for line in lines] == [
        "- **intro",
        "- **body",
        "- **conclusion",
        "- **whole",
    ]
    assert ISSUES[1] in lines[0]
    assert "overall 5 of 10" in lines[0]
    assert "Critique after pass 3" in view_text("revisions", record), "the view that the report's last line names"
    page = html.page(record)
    assert page.index("Dissent") < page.index("<summary>Criticism and revisions</summary>") < page.index("All figures")


async def test_refinement_figures_are_sentences(store: SqliteStore) -> None:
    lines = view_text("figures", await refined(store), 200).splitlines()
    rows = dict(line.partition(": ")[::2] for line in lines)
    assert rows["Passes"] == "3 of at most 3"
    assert (
        rows["Quality from pass to pass (critic)"]
        == "0.47, whole 0.50 → 0.77, whole 0.80 → 0.57, whole 0.60, needed 0.8"
    )
    assert rows["Confidence"] == "77 % (quality by critic)"
    assert rows["Share of what was handed down that was shown"] == "100 %"
    assert rows["How far the critic's score moved of a text that had not changed, on average (0 to 1)"] == "0.20"
    assert "Similarity among siblings, revise, by pass (1 = identical)" in rows
    assert not [name for name in rows if "_" in name or name[:1].islower()]


@pytest.mark.parametrize(
    ("reason", "expected", "left"),
    [
        (StopReason.CONVERGED, "the text is good enough", "nobody has an issue left with this text."),
        (
            StopReason.STALLED,
            "nothing more was criticised, and the text is not good enough",
            "no issue was named, but the text is not good enough: 0.78 of the 0.90 needed.",
        ),
    ],
)
async def test_stop_reasons_of_refinement_speak_of_passes_and_critic(
    store: SqliteStore, reason: StopReason, expected: str, left: str
) -> None:
    protocol = blog(critic="heuristic", confidence="self", threshold=0.7 if reason is StopReason.CONVERGED else 0.9)
    text = markdown(report_of(await refined(store, protocol)))
    opening = "Finished" if reason is StopReason.CONVERGED else "Stopped"
    assert f"**{opening}: {expected}**" in text
    assert f"**Dissent:** {left}\n" in text
    assert "Critique after" not in text


async def test_missing_part_without_issues_is_not_approval(store: SqliteStore) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent != "critic":
            return "{}" if request.agent == "body" else editing(request)
        marks = dict.fromkeys(("coherence", "accuracy", "depth", "overall"), "excellent")
        assert request.schema is not None
        return json.dumps({part: {**marks, "issues": []} for part in request.schema["required"]})  # type: ignore[attr-defined]

    text = markdown(report_of(await refined(store, blog(max_passes=1), reply=reply)))
    assert "**Dissent:** no issue was named, but not every part was judged.\n" in text


async def test_unjudged_text_is_marked_as_unjudged(store: SqliteStore) -> None:
    text = markdown(report_of(await refined(store, limits=Limits(calls=9))))
    assert "**Dissent:** none was declared, but nobody judged this text either." in text
    assert "Quality by pass" not in text
    assert "Scores" not in headings(text)


async def test_run_cut_in_the_second_pass_keeps_the_first(store: SqliteStore) -> None:
    shown = report_of(await refined(store, limits=Limits(calls=20)))
    text = markdown(shown)
    assert "**Quality by pass:** 0.47, whole 0.50 (the answer) → –, needed 0.80" in text
    assert [row[0] for row in table(text, "Scores")] == ["pass", "1, the answer"]
    assert "intro, pass 1, 0.40 → –; rewritten in pass 2, which was discarded" in revisions(shown)


async def test_unusable_critique_is_in_the_headline(store: SqliteStore) -> None:
    def reply(request: ModelRequest) -> Any:
        return "I like it." if request.agent == "critic" else editing(request)

    text = markdown(report_of(await refined(store, reply=reply)))
    assert (
        "**Stopped: nothing shows that the text is good enough · no reply: critique by critic (pass 1) · "
        "1 call failed (malformed)**"
    ) in text
    assert "nobody judged this text either" in text
    assert "- critic: no usable reply since pass 1 · critique" in text


async def test_issue_of_the_last_pass_is_open_and_not_handed_back(store: SqliteStore) -> None:
    text = markdown(report_of(await refined(store, blog(max_passes=1))))
    assert "- **Open:** " in text
    assert "Handed back" not in text


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
