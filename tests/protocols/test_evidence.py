"""Evidence across seats: private documents of four owners, whose words others repeat, in part, at wrong lines, or make up."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from consilience.domain.detail import Detail
from consilience.domain.messages import Quotation, Source
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.reporting.formatting import seat_labels
from consilience.reporting.html import page, report_page
from consilience.reporting.markdown import markdown
from consilience.reporting.record import read_record
from kit import runner
from kit.cases import CASES, Case

LEAD = "L1N1"
SOURCES = [
    Source(f"Contract {n}\nThe fee {n} is due\nwithin {n} days.\nUnsaid rule {n}.", f"contract-{n}.md", (f"L2N{n}",))
    for n in range(1, 5)
]
PROTOCOLS = [
    Emergence(children=4, max_rounds=1, strange_loops=1),
    Broadcast(children=4, max_iterations=1, strange_loops=1),
    Decompose(children=4, strange_loops=1),
]

REPEATED = " ".join(f'"the fee {n} is due within {n} days" [S{n}:2]' for n in range(1, 5))
ANSWER = (
    f'{REPEATED}, in part "fee 1 is due" [S1:2], "within 2 days" [S2:2] and "within 3 days" [S3:3]; '
    'at a wrong line "the fee 4 is due" [S4:1]; in another document "The fee 4 is due" [S3:2]; '
    'unread "unsaid rule 3" [S3:4]; made up "the fee is waived" [S1:2].'
)


def fields(request: ModelRequest, text: str) -> str:
    parts = [{"title": f"Part {n}", "instructions": "read"} for n in range(1, 5)]
    return json.dumps({"parts": parts, "rating": 9, "satisfied": True, "text": text})


def quoting(request: ModelRequest) -> str:
    """Each owner quotes its own document. The lead repeats that, and reviews its answer with nothing but the answer in sight."""
    number = request.agent[-1]
    own = f'"The fee {number} is due within {number} days." [S{number}:2]'
    read_all = all(f"due within {n} days" in request.text for n in range(1, 5))
    return fields(request, f"I read {own}." if request.agent != LEAD else ANSWER if read_all else "Go on.")


async def go(protocol: Protocol, reply: Any = quoting) -> tuple[Report, SqliteStore]:
    store = SqliteStore(":memory:")
    report = await runner.start(
        "What is due?", protocol, models=ScriptedModel(reply), store=store, sources=SOURCES, session="s"
    )
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    return report, store


def by_lead(report: Report) -> dict[tuple[str, str], set[Quotation]]:
    found: dict[tuple[str, str], set[Quotation]] = {}
    for quotation in report.quotations:
        if quotation.agent == LEAD:
            found.setdefault((quotation.words, quotation.reference), set()).add(quotation)
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_true_quotation_of_another_seat_is_never_not_found(protocol: Protocol) -> None:
    """Neither in the call that read the owners nor in the review that read only the answer."""
    report, _ = await go(protocol)
    owners = [q for q in report.quotations if q.agent != LEAD]
    assert len(owners) >= 4
    assert all(q.verified and not q.relayed and not q.stands for q in owners)
    lead = by_lead(report)
    assert all(len(judged) == 1 for judged in lead.values())
    judged = {place: next(iter(quotations)) for place, quotations in lead.items()}
    relayed = [*((f"the fee {n} is due within {n} days", f"S{n}:2") for n in range(1, 5))]
    relayed += [("fee 1 is due", "S1:2"), ("within 2 days", "S2:2"), ("within 3 days", "S3:3")]
    assert [(judged[key].verified, judged[key].relayed, judged[key].stands) for key in relayed] == [
        (True, True, "")
    ] * 7
    others = {key: (q.verified, q.stands, q.is_wrong) for key, q in judged.items() if key not in relayed}
    assert others == {
        ("the fee 4 is due", "S4:1"): (False, "S4:2", True),
        ("The fee 4 is due", "S3:2"): (False, "S4:2", True),
        ("unsaid rule 3", "S3:4"): (False, "S3:4", False),
        ("the fee is waived", "S1:2"): (False, "", True),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_report_says_of_a_quotation_where_its_words_stand(protocol: Protocol) -> None:
    report, store = await go(protocol)
    text = markdown(report).replace("\\", "")
    times = len([q for q in report.quotations if q.agent == LEAD]) // 11
    verified = len(report.quotations) - 4 * times
    assert (
        f"Quotations from the documents: {verified} verified ({7 * times} of them known to the author from another agent's "
        f"text only), {times} not found, {2 * times} at another place, {times} in lines that the author was not shown."
    ) in text
    lead = next(agent.role for agent in report.agents if agent.id == LEAD)
    assert f"Not found: “the fee is waived” — *{lead} (L1N1)* claimed at S1:2" in text
    assert f"At another place: “the fee 4 is due” — *{lead} (L1N1)* claimed at S4:1, but at S4:2" in text
    assert f"At another place: “The fee 4 is due” — *{lead} (L1N1)* claimed at S3:2, but at S4:2" in text
    assert f"Not shown: “unsaid rule 3” — *{lead} (L1N1)* in S3:4, which this agent was not shown" in text
    assert "more, in the report's JSON" not in text
    assert all(claim.from_memory is False for claim in report.claims)
    store.close()


async def test_words_that_an_agent_made_up_do_not_vouch_for_themselves() -> None:
    """A seat that repeats its own unread words, true by chance, has still not read them."""

    def guessing(request: ModelRequest) -> str:
        guess = '"Unsaid rule 2." [S2:4], "unsaid rule" [S2:4], "The fee 2 is due" [S2:9]'
        return fields(request, f"So: {guess}." if request.agent == "L2N1" else "Nothing.")

    report, _ = await go(Emergence(children=4, max_rounds=2, threshold=1.0), guessing)
    of_guesser = {(q.words, q.verified, q.stands) for q in report.quotations if q.agent == "L2N1"}
    assert of_guesser == {
        ("Unsaid rule 2.", False, "S2:4"),
        ("unsaid rule", False, "S2:4"),
        ("The fee 2 is due", False, "S2:2"),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_every_format_lists_who_read_and_who_could_not_see_a_document(protocol: Protocol) -> None:
    report, store = await go(protocol)
    assert [(d.id, d.name, d.lines, d.agents) for d in report.documents] == [
        (f"S{n}", f"contract-{n}.md", 4, (f"L2N{n}",)) for n in range(1, 5)
    ]
    assert [[(r.agent, r.lines) for r in d.readers] for d in report.documents] == [
        [(f"L2N{n}", ())] for n in range(1, 5)
    ]
    seats = seat_labels(report.agents)
    unseen = ", ".join(name for id, name in seats.items() if id != "L2N2")
    text = markdown(report).replace("\\", "")
    assert "### What was read" in text
    assert f"| S2 contract-2.md | {seats['L2N2']} | {unseen} | 4 | 57 |" in text
    assert json.loads(report.model_dump_json())["documents"][1]["readers"] == [{"agent": "L2N2", "lines": []}]
    for html in (page(read_record(store, "s")), report_page(report)):
        assert "What was read</h3>" in html
        assert f"<td>{unseen}</td>" in html
    store.close()


async def test_bare_reference_leads_to_the_document_on_a_page() -> None:
    def citing(request: ModelRequest) -> str:
        return fields(request, "Due, see [S2:2-3] and [S1, S4:4]; not [S9:1], not [S], `[S3:1]`.")

    report, store = await go(Decompose(children=4), citing)
    html = page(read_record(store, "s"))
    second = '<a href="#document-2-2" title="contract-2.md">S2:2-3</a>'
    answer, words = html.partition("<p>Due")[2], html.partition('id="transcript"')[2]
    assert answer.startswith(f", see [{second}]")
    assert words.count(f"[{second}]") == 6, "in the transcript of six texts"
    assert (
        '[<a href="#document-1" title="contract-1.md">S1</a>, <a href="#document-4-4" title="contract-4.md">S4:4</a>]'
        in html
    )
    assert "[S9:1], not [S]" in html
    assert 'id="document-2"' in html
    alone = report_page(report)
    assert '[<span title="contract-2.md">S2:2-3</span>]' in alone
    assert "#document-2" not in alone
    store.close()


@pytest.mark.parametrize("detail", ["full", "brief"])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_lead_without_documents_is_told_to_repeat_references(protocol: Protocol, detail: Detail) -> None:
    """Only where there are documents: a small model would make up references in a session without."""

    async def instructions(sources: list[Source]) -> set[str]:
        model, store = ScriptedModel(quoting), SqliteStore(":memory:")
        fields = {"sources": sources, "options": Options(detail=detail)}
        await runner.start("What is due?", protocol, models=model, store=store, session="s", **fields)
        assert not any("Unsaid rule" in r.text for r in model.requests if r.agent == LEAD), "it reads none"
        store.close()
        return {"[S1:2]" in request.text.partition("# Task")[0] for request in model.requests}

    assert (await instructions(SOURCES), await instructions([])) == ({True}, {False})


@pytest.mark.parametrize("case", [case for case in CASES if not case.outside and not case.tools], ids=lambda c: c.name)
async def test_unfinished_session_lists_who_has_read_what_so_far(case: Case) -> None:
    """With all its events but the last as its report does, with fewer no more than that."""
    store = SqliteStore(":memory:")
    sources = case.sources or [Source("The fee is due.\n\nWithin 2 days.", "contract.md")]
    report = await runner.start(
        "What is due?", case.protocol, models=ScriptedModel(case.script), store=store, sources=sources, session="s"
    )
    record = read_record(store, "s")
    assert len(report.documents) == len(sources)
    ends = [*range(1, len(record.events) - 1, 7), len(record.events) - 1]
    lists = [replace(record, events=record.events[:end]).documents for end in ends]
    readers = [{(d.id, reader.agent) for d in documents for reader in d.readers} for documents in lists]
    assert not readers[0]
    assert all(fewer <= more for fewer, more in pairwise(readers))
    assert lists[-1] == report.documents == record.documents
