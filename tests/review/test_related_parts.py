"""`review --type documentation`: what contradicts across parts meets in one call, and a finding may cite either side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from consilience.deliberation import Deliberation
from consilience.domain.tokens import estimate_tokens
from consilience.engine.dealing import RELATED_SHARE
from consilience.engine.sources import number_documents
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.review import Review
from consilience.protocols.review.settings import ReviewType
from kit import runner
from kit.reviewing import documents_of, finding, review, script
from simulation.document_sets import PlantedPair, make_document_set

DOCUMENTS = make_document_set(3, tokens=14_000, documents=8, across=8, within=4)
PAIRS = DOCUMENTS.of("across")


def together(requests: list[ModelRequest], pairs: Sequence[PlantedPair] = PAIRS) -> int:
    reviews = [request.text for request in requests if request.key.startswith("review")]
    return sum(any(pair.first.text in text and pair.second.text in text for text in reviews) for pair in pairs)


async def reviewed(kind: ReviewType) -> tuple[Review, list[ModelRequest]]:
    protocol = Review(review_type=kind, part_tokens=4_000)
    model = ScriptedModel(script({}))
    store = SqliteStore(":memory:")
    report = await runner.start("Review it.", protocol, models=model, store=store, sources=DOCUMENTS.sources)
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()
    return Review.model_validate(report.settings), model.requests


async def test_parts_of_documentation_are_shown_with_the_related_lines_of_other_parts() -> None:
    settings, requests = await reviewed("documentation")
    assert len(settings.parts) > 3
    assert together(requests) == len(PAIRS)
    assert len(settings.related_lines) == len(settings.parts)
    own = {part for parts in settings.parts for part in parts}
    assert own.isdisjoint(line for lines in settings.related_lines for line in lines)
    assert sum(settings.call_kinds[0].documents == part for part in settings.parts) == 1
    assert settings.related_tokens == int(4_000 * RELATED_SHARE)


@pytest.mark.parametrize(("window", "tokens"), [(16_000, 30_000), (32_000, 30_000), (128_000, 70_000)])
async def test_most_contradictions_across_parts_meet_in_one_prompt_that_fits_the_window(
    window: int, tokens: int
) -> None:
    documents = make_document_set(5, tokens=tokens, documents=12)
    model = ScriptedModel(script({}), context_window=window)
    protocol = Review(review_type="documentation", reviewers=1, max_iterations=1)
    deliberation = Deliberation(protocol, model=model, sources=documents.sources, store=SqliteStore(":memory:"))
    report = await deliberation.run("Review it.")
    assert len(Review.model_validate(report.settings).parts) > 1
    assert len(documents.of("across")) == 10
    assert together(model.requests, documents.of("across")) >= 8
    assert all(estimate_tokens(request.text) + request.max_tokens <= window for request in model.requests)


async def test_other_reviews_read_their_parts_alone() -> None:
    settings, requests = await reviewed("code")
    assert settings.related_lines == ()
    assert together(requests) < len(PAIRS)
    whole = (
        Review(review_type="documentation")
        .with_detail("full")
        .with_documents(number_documents(DOCUMENTS.sources), None)
    )
    assert len(whole.parts) > 1
    one = Review(review_type="documentation", part_tokens=100_000).with_documents(
        number_documents(DOCUMENTS.sources), None
    )
    assert (len(one.parts), one.related_lines) == (1, ())


async def test_related_lines_without_room_are_counted_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for share, is_warned in ((RELATED_SHARE, False), (0.1, True)):
        monkeypatch.setattr("consilience.protocols.review.settings.RELATED_SHARE", share)
        report = await runner.start(
            "Review it.",
            Review(review_type="documentation", part_tokens=4_000),
            models=ScriptedModel(script({})),
            store=SqliteStore(":memory:"),
            sources=DOCUMENTS.sources,
        )
        left_out = Review.model_validate(report.settings).related_left_out
        assert (left_out > 0) is is_warned
        assert any(f"{left_out:,} passages left out, because" in warning for warning in report.warnings) is is_warned


@pytest.mark.parametrize("window", [16_000, 64_000])
async def test_finding_may_cite_a_related_line_and_judges_are_shown_it(window: int) -> None:
    cited: list[str] = []

    def citing(request: ModelRequest) -> str:
        """Cite the other side of a pair of which this part has one."""
        own, _, beside = request.text.partition("from related lines of other parts>")
        for pair in PAIRS:
            for side, other in ((pair.first, pair.second), (pair.second, pair.first)):
                document = f"S{other.document + 1}"
                if side.text in own and f"| {other.text}\n" in beside and document not in documents_of(request):
                    line = DOCUMENTS.sources[other.document].text.splitlines().index(other.text) + 1
                    cited.append(other.text)
                    return review([finding(other.text, line, document)])(request)
        return review()(request)

    protocol = Review(review_type="documentation", part_tokens=4_000)
    model = ScriptedModel(script(dict.fromkeys(protocol.plan.reviewers, citing)), context_window=window)
    report = await Deliberation(protocol, model=model, sources=DOCUMENTS.sources, store=SqliteStore(":memory:")).run(
        "Review it."
    )
    assert cited
    kept = {found.quotation for found in report.findings}
    assert kept == set(cited), [dropped.reason for dropped in report.dropped]
    judged = [request for request in model.requests if request.key.startswith("judge")]
    assert all(any(text in request.text for text in cited) for request in judged)
