"""Findings across documents, in the order in which they are shown."""

from __future__ import annotations

from consilience.domain.across import AcrossDocuments, DocumentPair, NotedPassage, PairVerdict


def pair(first: int, second: int, verdict: PairVerdict = "contradiction") -> DocumentPair:
    def passage(document: str, line: int) -> NotedPassage:
        return NotedPassage(document=document, line=line, words="w", value=str(line), reader="a")

    return DocumentPair(
        entity="e", attribute="a", first=passage("S1", first), second=passage("S2", second), verdict=verdict
    )


def test_findings_that_repeat_a_passage_come_after_those_that_do_not() -> None:
    across = AcrossDocuments(pairs=(pair(1, 2), pair(1, 3), pair(9, 9, "no contradiction"), pair(4, 5), pair(9, 3)))
    assert across.findings == (pair(1, 2), pair(4, 5), pair(1, 3), pair(9, 3))
