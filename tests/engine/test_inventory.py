"""Inventories of dealt documents: rows are checked, joined across readers and judged, for every protocol alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from consilience.deliberation import Deliberation
from consilience.domain.across import AcrossDocuments
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine import dealing
from consilience.engine.execution import Options
from consilience.engine.faults import Crash
from consilience.engine.protocol import Protocol
from consilience.engine.readers import INVENTORY_TOKENS
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.debate import Debate
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from kit import runner
from kit.cases import CASES, broadcasting, disputing, dividing, emergent

LEASE = "The lease of the Zephyr warehouse ends on 30 June."
VACATED = "The Zephyr warehouse has to be vacated by 31 March."
Script = Callable[[ModelRequest], Any]
refining: Any = next(case for case in CASES if case.name == "refinement").script


class Reader:
    """Notes every line on a thing that it is shown in a document, and calls every pair a contradiction."""

    def __init__(self, script: Any, *, thing: str = "Zephyr", extra: list[dict[str, Any]] | None = None) -> None:
        self.script, self.thing, self.extra = script, thing, extra or []

    def __call__(self, request: ModelRequest) -> Any:
        if request.key.startswith("inventory/"):
            return json.dumps({"rows": [*self.rows(request.text), *self.extra]})
        if request.key.startswith("matching/"):
            pairs = dict.fromkeys(re.findall(r"^P\d+$", request.text, re.MULTILINE))
            worth = {"first_worth": "signed", "second_worth": "a note"}
            judged = {"says": "contradiction", "why": "Two ends of one lease."}
            return json.dumps({"pairs": [{"pair": pair, **judged, **worth} for pair in pairs]})
        return self.script(request)

    def rows(self, prompt: str) -> list[dict[str, Any]]:
        rows = []
        for block in re.findall(r"<quote \w+ from (?:document|related).*?</quote", prompt, re.DOTALL):
            head = re.search(r"from document (S\d+)", block)
            for document, line, words in re.findall(rf"^(?:(S\d+):)?(\d+)\| (.*{self.thing}.*)$", block, re.MULTILINE):
                value = words.rpartition(" on ")[2] if " on " in words else words.rpartition(" by ")[2]
                place = {"document": document or (head[1] if head else ""), "line": line}
                rows.append(
                    {"entity": words.partition(" ware")[0], "attribute": "end of lease", "value": value, **place}
                )
                rows[-1] |= {"entity": "Zephyr warehouse", "quotation": words}
        return rows


def filler(subject: str) -> str:
    return "\n".join(f"Part {n} of the {subject} plan is under way." for n in range(30))


def material(*more: Source) -> list[Source]:
    texts = {
        "tenancy": f"{filler('tenancy')}\n{LEASE}",
        "roads": f"{VACATED}\n{filler('roads')}",
        "fuel": filler("fuel"),
    }
    return [*(Source(text, name=f"{name}.md") for name, text in texts.items()), *more]


async def run(
    protocol: Protocol, script: Script, sources: list[Source], store: SqliteStore | None = None, **fields: Any
) -> tuple[Report, ScriptedModel]:
    model = ScriptedModel(script)
    fields.setdefault("options", Options(deal="document"))
    with closing(store or SqliteStore(":memory:")) as opened:
        report = await runner.start(
            "Which terms differ?", protocol, models=model, store=opened, session="s", sources=sources, **fields
        )
        assert (await runner.replay("s", store=opened)).digest() == report.digest()
    return report, model


def across(report: Report) -> AcrossDocuments:
    assert report.across is not None
    return report.across


PROTOCOLS = [
    (Emergence(max_rounds=1), emergent),
    (Broadcast(max_iterations=1), broadcasting),
    (Decompose(), dividing),
    (Debate(max_messages=12), disputing),
    (Refinement(max_passes=1), refining),
]


@pytest.mark.parametrize(("protocol", "script"), PROTOCOLS, ids=lambda value: getattr(value, "name", None))
async def test_what_two_readers_hold_is_joined_judged_and_told_in_every_protocol(
    protocol: Protocol, script: Any
) -> None:
    report, model = await run(protocol, Reader(script), material())
    (pair,) = across(report).findings
    assert {pair.first.words, pair.second.words} == {LEASE, VACATED}
    assert {(side.document, side.line, side.value) for side in (pair.first, pair.second)} == {
        ("S1", 31, "30 June."),
        ("S2", 1, "31 March."),
    }
    assert pair.judge in {pair.first.reader, pair.second.reader}
    assert (pair.why, pair.first.worth) == ("Two ends of one lease.", "signed")
    kinds = [request.key.partition("/")[0] for request in model.requests]
    readers = kinds.count("inventory")
    assert kinds[: readers + 1] == ["inventory"] * readers + ["matching"]
    later = [request for request in model.requests[readers + 1 :] if "from document" in request.text]
    assert later
    assert all(LEASE in request.text and VACATED in request.text for request in later), "in one prompt"
    assert report.ledger.actual.calls <= report.ledger.estimated.max
    assert report.markdown().count("### Findings across documents") == 1
    for text in (report.markdown(), report.html(), report.model_dump_json()):
        assert LEASE in text
        assert VACATED in text
        assert "Two ends of one lease." in text


async def test_rows_whose_quotation_does_not_stand_are_left_out_and_lines_corrected() -> None:
    wrong = {"entity": "Zephyr warehouse", "attribute": "end of lease", "value": "1 May", "document": "S1", "line": 1}
    extra = [
        wrong | {"quotation": "The lease of the Zephyr warehouse ends on 1 May."},
        wrong | {"quotation": LEASE, "document": "S9"},
        wrong | {"quotation": ""},
        wrong | {"quotation": "plan", "line": 31},
        wrong | {"quotation": "The lease of the Zephyr warehouse", "line": "S1:7-9"},
    ]
    report, _ = await run(Decompose(), Reader(dividing, extra=extra), material())
    readers = 3
    assert across(report).rows == 3 + 2, (
        "one reader is shown both lines; the last row is true of those that are shown the lease"
    )
    assert across(report).rows_dropped == len(extra) * readers - 2
    assert any("rows left out" in warning for warning in report.warnings)
    lines = {(side.document, side.line) for pair in across(report).pairs for side in (pair.first, pair.second)}
    assert lines == {("S1", 31), ("S2", 1)}


async def test_private_documents_are_shown_to_their_owners_only() -> None:
    """The first reader alone has one document, another one is of the second: what they state otherwise stays there."""
    secrets = ("The Zephyr warehouse can be used until by 5 May.", "The Zephyr warehouse is let by 7 July.")
    own = [Source(secret, name=f"{n}.md", agents=(f"L2N{n}",)) for n, secret in enumerate(secrets, 1)]
    report, model = await run(Decompose(), Reader(dividing), material(*own))
    for request in model.requests:
        for n, secret in enumerate(secrets, 1):
            assert (secret in request.text) <= (request.agent == f"L2N{n}"), request.key
    judges = {pair.judge for pair in across(report).pairs if {*pair.documents} & {"S4", "S5"}}
    assert judges <= {"", "L2N1", "L2N2"}
    (between,) = [pair for pair in across(report).pairs if {*pair.documents} == {"S4", "S5"}]
    assert between.verdict == "not judged"
    assert "not judged, because no agent may read both documents" in report.markdown()


async def test_join_that_floods_is_bounded_and_says_what_it_left_out() -> None:
    sides = [
        Source("\n".join(f"Zephyr item{n} ends on {n % 27 + 1} {month}." for n in range(100)), name=f"{month}.md")
        for month in ("June", "July")
    ]

    def noting(request: ModelRequest) -> Any:
        if not request.key.startswith("inventory/"):
            return Reader(dividing)(request)
        found = re.findall(r"^(?:(S\d+):)?(\d+)\| (Zephyr (item\d+) ends on (.*))\.$", request.text, re.MULTILINE)
        (document,) = set(re.findall(r"from document (S\d+)", request.text))
        return json.dumps(
            {
                "rows": [
                    {"entity": entity, "attribute": "end", "value": value, "quotation": words}
                    | {"document": named or document, "line": int(line)}
                    for named, line, words, entity, value in found
                ]
            }
        )

    report, model = await run(Decompose(children=2), noting, sides)
    shown = [request for request in model.requests if request.key.startswith("matching/")]
    assert {request.agent for request in shown} == {"L2N1", "L2N2"}, "both take a part"
    assert len(across(report).pairs) + across(report).left_out == 100
    for request in shown:
        listed = re.search(r"from the inventories>\n(.*?)</quote", request.text, re.DOTALL)
        assert listed is not None
        assert len(listed[1]) < INVENTORY_TOKENS * 3.5 * 1.1
    assert f"{across(report).left_out} pairs of rows with different values were shown to no agent" in str(
        report.warnings
    )
    last = model.requests[-1].text
    assert "further ones left out" in last, "findings in prompts are bounded, too"
    named = re.findall(r"^\* item\d+, end: [^\[\"]+ \[S1:\d+\] against [^\[\"]+ \[S2:\d+\]$", last, re.MULTILINE)
    assert named, "those whose passages have no room are named with values and places"


async def test_agreeing_and_dismissed_pairs_are_no_findings() -> None:
    def dismissing(request: ModelRequest) -> Any:
        if request.key.startswith("matching/"):
            return json.dumps({"pairs": [{"pair": "P1", "says": "no contradiction", "why": "Two leases."}]})
        return Reader(dividing)(request)

    report, model = await run(Decompose(), dismissing, material())
    assert [pair.verdict for pair in across(report).pairs] == ["no contradiction"]
    assert "judged that these passages" not in model.requests[-1].text
    agreeing = [Source(LEASE, name="a.md"), Source("The Zephyr warehouse is let until by 30 June.", name="b.md")]
    report, _ = await run(Decompose(children=2), Reader(dividing), agreeing)
    assert across(report).pairs == ()
    assert across(report).rows >= 2


async def test_inventories_can_be_left_out_and_need_room_in_the_limits() -> None:
    options = Options(deal="document", inventory_tokens=0)
    report, model = await run(Decompose(), Reader(dividing), material(), options=options)
    assert report.across is None
    assert not [request for request in model.requests if "inventory" in request.key]
    report, model = await run(Decompose(), Reader(dividing), material(), limits=Limits(calls=5))
    assert report.across is None
    assert any("no inventories" in warning for warning in report.warnings)
    report, model = await run(Decompose(), Reader(dividing), material(), options=Options())
    assert report.across is None, "undealt"


async def test_reader_without_a_usable_reply_leaves_the_others() -> None:
    def failing(request: ModelRequest) -> Any:
        return "" if request.key == "inventory/L2N3" else Reader(dividing)(request)

    report, _ = await run(Decompose(), failing, material())
    assert [call.key for call in report.failed_calls] == ["inventory/L2N3"]
    assert report.answer


@pytest.mark.parametrize("point", ["inventory", "matching"])
async def test_session_killed_among_inventories_goes_on_where_it_was(point: str, tmp_path: Path) -> None:
    def strike(name: str, phase: tuple[str, int] | None) -> None:
        if name == "after_commit" and phase == (point, 1):
            raise Crash("struck")

    whole, _ = await run(Decompose(), Reader(dividing), material())
    deliberation = Deliberation(
        Decompose(),
        model=ScriptedModel(Reader(dividing)),
        sources=material(),
        store=SqliteStore(tmp_path / "j.sqlite"),
        options=Options(deal="document", faults=strike),
    )
    with pytest.raises(Crash):
        await deliberation.run("Which terms differ?", session="s")
    with closing(SqliteStore(tmp_path / "j.sqlite")) as store:
        report = await runner.resume("s", store=store, models=ScriptedModel(Reader(dividing)))
    assert report.digest() == whole.digest()


async def test_fork_inherits_inventories() -> None:
    with closing(SqliteStore(":memory:")) as store:
        await runner.start(
            "Which terms differ?",
            Decompose(),
            models=ScriptedModel(Reader(dividing)),
            store=store,
            session="s",
            sources=material(),
            options=Options(deal="document", inventory_tokens=1_500),
        )
        model = ScriptedModel(Reader(dividing))
        report = await runner.fork("s", store=store, models=model, at="matching/1", session="f")
        assert store.read("f")[0].model_dump()["inventory_tokens"] == 1_500
    assert len(across(report).findings) == 1
    assert not [request for request in model.requests if "inventory" in request.key or "matching" in request.key]
    assert all(LEASE in request.text and VACATED in request.text for request in model.requests)


async def test_people_are_asked_for_no_inventory() -> None:
    from consilience.domain.errors import SessionWaiting

    model = ScriptedModel(Reader(dividing))
    seats = {"L1N1": model, "L2N1": "human", "L2N2": model, "L2N3": model}
    with closing(SqliteStore(":memory:")) as store, pytest.raises(SessionWaiting) as waiting:
        await runner.start(
            "Which?",
            Decompose(),
            models=seats,
            store=store,
            sources=material(),
            options=Options(deal="document", patience=0),
        )
    assert [key for key in waiting.value.awaited if "inventory" in key] == []
    assert {request.key for request in model.requests if "inventory" in request.key} == {
        "inventory/L2N2",
        "inventory/L2N3",
    }


class Asking(Reader):
    """The second reader asks for passages."""

    def __init__(self, *requests: dict[str, Any]) -> None:
        super().__init__(dividing)
        self.requests = requests

    def __call__(self, request: ModelRequest) -> Any:
        reply = super().__call__(request)
        asks = request.key == "inventory/L2N2"
        return json.dumps(json.loads(reply) | {"requests": self.requests}) if asks else reply


def asked(document: str, lines: object) -> dict[str, Any]:
    return {"document": document, "lines": lines, "why": "To see the plan."}


async def test_passages_asked_for_are_shown_by_the_engine_from_the_next_prompt_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dealing, "RELATED_SHARE", 0.0)
    holder = {"S1": "tenancy", "S2": "roads", "S3": "fuel"}
    wanted = {id: f"Part 5 of the {subject} plan is under way." for id, subject in holder.items()}
    report, model = await run(Decompose(), Asking(*(asked(id, [5, 7]) for id in holder)), material())
    prompts = {request.key: request.text for request in model.requests}
    own = {id for id in holder if wanted[id] in prompts["inventory/L2N2"]}
    assert len(own) == 1, "its share"
    for key, text in prompts.items():
        if key.endswith("L2N2") and not key.startswith("inventory"):
            assert all(wanted[id] in text for id in holder.keys() - own), key
        elif not key.endswith("L2N2"):
            assert sum(words in text for words in wanted.values()) <= 1, key
    for passage in across(report).requests:
        assert (passage.refusal, passage.shown) == (
            ("shown already", None) if passage.document in own else ("", (5, 7))
        )
    for document in report.documents:
        if document.id not in own:
            (lines,) = [reader.lines for reader in document.readers if reader.agent == "L2N2"]
            assert any(first <= 5 and last >= 7 for first, last in lines), "coverage counts them"
    assert "shown 5-7" in report.markdown()
    assert "To see the plan." in report.html()


async def test_requests_are_bounded_and_private_documents_stay_private() -> None:
    secret = "The Zephyr warehouse is to be sold by 5 May."
    long = Source(f"{filler('long')}\n" * 20, name="long.md")
    private = Source(f"Only for one.\n{secret}", name="private.md", agents=("L2N1",))
    requests = [
        asked("S5", "1-2"),
        asked("S9", "1"),
        asked("S4", "0-3"),
        asked("S4:1-600", "S4:1-600"),
        asked("S2", "3"),
    ]
    report, model = await run(Decompose(), Asking(*requests), material(long, private))
    for request in model.requests:
        assert secret not in request.text or request.agent == "L2N1", request.key
    told = [request.text for request in model.requests if request.agent == "L2N2" and "inventory/" not in request.key]
    assert told
    for text in told:
        assert "- S5:1-2: not shown, not open to this agent" in text
        assert "- S9:1-1: not shown, no such document" in text
    by_place = {(p.document, p.lines): p for p in across(report).requests}
    assert by_place["S5", (1, 2)].refusal == "not open to this agent"
    assert by_place["S9", (1, 1)].refusal == "no such document"
    assert by_place["S4", (0, 3)].refusal == "no such lines"
    assert by_place["S2", (3, 3)].refusal == "more than 4 requests"
    shown = by_place["S4", (1, 600)].shown
    if shown is not None:  # else the whole is its share
        text = "\n".join(long.text.splitlines()[: shown[1]])
        assert 800 < len(text) / 3.5 < 1_000
    else:
        assert by_place["S4", (1, 600)].refusal == "shown already"
    assert "not open to this agent" in report.markdown()


async def test_passages_are_found_by_words_where_nobody_knows_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "RELATED_SHARE", 0.0)
    secret = "The crane of the new harbour is to be sold."
    manual = "\n".join(
        f"## Machine {n}\n" + "\n".join(f"Part {m} is checked weekly." for m in range(40)) for n in range(8)
    )
    crane = (
        "\n\n## Lifting\n\nThe crane of the new\nharbour lifts 45 tonnes.\nIts rope is new.\n\n## Ropes\n\nKept dry."
    )
    sources = [
        *material(),
        Source(manual.replace("## Machine 5", f"{crane}\n## Machine 5"), name="manual.md"),
        Source(secret, name="private.md", agents=("L2N3",)),
    ]
    wanted = ("crane harbour", "machine 7", "zeppelin", "sold")
    requests = [asked(document, words) for document, words in zip(("S4", "S4", "S4", "S5"), wanted, strict=True)]
    report, model = await run(Decompose(), Asking(*requests), sources)
    told = [request.text for request in model.requests if request.agent == "L2N2" and "inventory/" not in request.key]
    assert told
    found = {passage.words: passage for passage in across(report).requests}
    first, last = found["crane harbour"].shown or (0, 0)
    lines = sources[3].text.splitlines()
    assert lines[first - 1 : last] == ["The crane of the new", "harbour lifts 45 tonnes.", "Its rope is new."]
    assert lines[(found["machine 7"].shown or (0, 0))[0] - 1] == "## Machine 7"
    assert (found["zeppelin"].lines, found["zeppelin"].refusal) == (None, "no such words")
    assert found["sold"].refusal == "not open to this agent"
    for text in told:
        assert "harbour lifts 45 tonnes." in text
        assert f'- S4:{first}-{last} "crane harbour": shown' in text
        assert '- S4 "zeppelin": not shown, no such words' in text
        assert secret not in text
    assert f'S4:{first}-{last} "crane harbour", shown {first}-{last}' in report.markdown()


async def test_words_too_common_for_the_room_are_shown_in_part() -> None:
    long = Source("\n".join(f"The harbour has crane {n}." for n in range(2_000)), name="long.md")
    report, _ = await run(
        Decompose(), Asking(*[asked("S4", f"crane {n * 400}") for n in range(1, 5)]), [*material(), long]
    )
    shown = [passage.shown for passage in across(report).requests if passage.refusal != "shown already"]
    assert shown
    for lines in shown:
        assert lines is not None, "the room is divided among the requests"
        assert lines[1] - lines[0] > 5


@pytest.mark.parametrize("tokens", [500, 2_000, 8_000])
async def test_the_rows_that_are_asked_for_fit_the_reply_with_room_to_spare(tokens: int) -> None:
    """Rows and requests as large as in the recorded run of two contracts."""
    _, model = await run(
        Decompose(), Reader(dividing), material(), options=Options(deal="document", inventory_tokens=tokens)
    )
    asking = [request for request in model.requests if request.key.startswith("inventory/")]
    assert asking
    for request in asking:
        (rows,) = map(int, re.findall(r"write at most (\d+) rows", request.text))
        assert f"may have {tokens:,} tokens" in " ".join(request.text.split())
        assert rows * 83 + 4 * 59 < 0.95 * request.max_tokens
        assert rows >= 0.6 * (request.max_tokens - 4 * 59) / 83
        assert "all of them together in at most" in request.text


@pytest.mark.parametrize(
    ("quotation", "stands"),
    [
        ("| Zephyr warehouse | 12,000 | 30 June |", True),
        ("Zephyr warehouse | 12,000", True),
        ("Zephyr warehouse 30 June", False),
    ],
)
async def test_cells_of_a_row_of_a_table_are_quoted_with_the_marks_between_them(quotation: str, stands: bool) -> None:
    table = "| Item | Euros | Ends |\n|---|--:|---|\n| Zephyr warehouse | 12,000 | 30 June |"
    row = {"entity": "Zephyr warehouse", "attribute": "rent", "value": "12,000 euros", "document": "S4", "line": 3}
    reader = Reader(dividing, thing="Nothing", extra=[row | {"quotation": quotation}])
    report, model = await run(Decompose(), reader, [*material(), Source(table)])
    assert bool(across(report).rows) is stands
    told = "To quote a table, copy cells of one row that stand side by side, with the marks between them."
    for request in model.requests:
        assert told in request.text, request.key


async def test_headings_of_private_documents_are_in_no_other_prompt() -> None:
    private = Source("# We will dismiss Anna in May\nOnly for one.", name="private.md", agents=("L2N1",))
    _, model = await run(Decompose(), Reader(dividing), material(private))
    shown = {request.agent for request in model.requests if "dismiss Anna" in request.text}
    assert shown == {"L2N1"}


async def test_fields_of_another_type_cost_no_inventory() -> None:
    def careless(request: ModelRequest) -> Any:
        reply = Reader(dividing)(request)
        if request.key.startswith("inventory/"):
            value = json.loads(reply)
            value["rows"] += [{"entity": None, "attribute": 3, "value": 1200, "document": 4}, "no row"]
            return json.dumps(value)
        return reply.replace('"contradiction"', '"Contradiction."').replace('"P1"', '"Pair P1"')

    report, _ = await run(Decompose(), careless, material())
    assert report.failed_calls == ()
    assert len(across(report).findings) == 1


async def test_many_requests_are_told_of_once() -> None:
    _, model = await run(Decompose(), Asking(*[asked("S1\n# Task", "1-2")] * 50), material())
    for request in model.requests:
        assert request.text.count("not shown, more than 4 requests") <= 1
        assert request.text.count("# Task\n") == 1


async def test_pairs_are_judged_beside_the_lines_around_their_quotations_as_far_as_there_is_room() -> None:
    sources = material()
    beside = f"Under the old contract it was otherwise.\n\n{'before ' * 90}{VACATED}{' beyond' * 90}\n\nThis was settled in May."
    sources[1] = Source(f"# Roads\n{beside}\n{filler('roads')}", name="roads.md")

    class Noting(Reader):
        def rows(self, prompt: str) -> list[dict[str, Any]]:
            return [
                {**row, "quotation": VACATED if VACATED in row["quotation"] else LEASE} for row in super().rows(prompt)
            ]

    for tokens, is_shown in ((2_000, True), (200, False)):
        _, model = await run(
            Decompose(), Noting(dividing), sources, options=Options(deal="document", inventory_tokens=tokens)
        )
        (judging,) = (request.text for request in model.requests if request.key.startswith("matching/"))
        shown = re.search(rf'"{re.escape(VACATED)}" \[S2:4\]((?:\n    .*)*)', judging)
        assert shown
        around = shown[1].splitlines()[1:]
        assert bool(around) is is_shown
        if is_shown:
            assert around[0] == "    2| Under the old contract it was otherwise."
            assert around[1].startswith("    4| ")
            assert VACATED in around[1]
            beside_it = around[1].removeprefix("    4| ").replace(VACATED, "").split()
            assert set(beside_it) == {"before", "beyond"}, "no word is cut"
            assert len(around[1]) < 450, "of a long line what is nearest"
            assert around[2] == "    6| This was settled in May."
            assert "[S1:31]\n    30| Part 29 of the tenancy plan is under way." in judging
