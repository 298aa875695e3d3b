"""Dealt documents: every line goes to one agent, all prompts say who holds what, and related lines meet in one of two shares."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise

import pytest

from consilience.deliberation import Deliberation
from consilience.documents.dealing import Deal
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.tokens import estimate_tokens
from consilience.engine import dealing
from consilience.engine.dealing import RELATED_SHARE, deal_rows, deal_to_agents
from consilience.engine.execution import Options
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.sources import number_documents
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.debate import Debate
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.protocols.review import Review
from consilience.reporting.markdown import markdown
from consilience.reporting.record import read_record
from consilience.reporting.trust import MAX_RANGES
from kit import runner
from kit.cases import CASES, broadcasting, disputing, dividing, emergent

WAYS: tuple[Deal, ...] = ("directory", "document", "size")
PLACES = ("Northgate", "Harbour", "Quarry", "Millbrook", "Eastfield", "Fernhill")
refining = next(case for case in CASES if case.name == "refinement").script


def report_on(subject: str, lines: int, seed: int) -> str:
    draw = random.Random(seed)
    body = (
        f"The {draw.choice(PLACES)} depot reports item {draw.randint(1, 999)} of the {subject} plan."
        if n % 6
        else f"\n## Part {n // 6 + 1} of {subject}"
        for n in range(lines)
    )
    return f"# {subject}\n" + "\n".join(body)


LEASE = "The lease of the Zephyr warehouse ends on 30 June."
VACATED = "Zephyr has to be vacated in March, when the lease of its warehouse ends."


@pytest.fixture
def material() -> list[Source]:
    sources = [
        Source(report_on(subject, 90, n), name=f"{'legal' if n < 2 else 'works'}/{subject}.md")
        for n, subject in enumerate(("tenancy", "staff", "fuel", "roads"))
    ]
    sources[0] = Source(f"{sources[0].text}\n\n{LEASE}", name=sources[0].name)
    sources[3] = Source(f"{sources[3].text}\n\n{VACATED}", name=sources[3].name)
    return sources


def held(sources: Sequence[Source]) -> list[list[str]]:
    """Return for each document who holds each of its lines."""
    holders: list[list[str]] = []
    for source in sources:
        lines = [""] * max(len(source.text.splitlines()), 1)
        for share in source.shares:
            for first, last in share.lines:
                for n in range(first, last + 1):
                    lines[n - 1] += f"{share.agent} "
        holders.append(lines)
    return holders


STRANGE = [
    Source("", name="empty.md"),
    Source("one line without an end", name="short.md"),
    Source("a\r\nb\r\n\r\nc", name="windows.md"),
    Source("same\ntext", name="same.md"),
    Source("same\ntext", name="again.md"),
    Source("\n\n\n", name="blank.md"),
    Source("\n".join(f"# {n}" for n in range(300)), name="deep/headings.md"),
    Source("caf\u00e9 \udcff \u2028 \x0c end", name="odd/\udcff.md"),
    Source("w" * 1_000_000, name="odd/long.md"),
]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("seats", [2, 3, 7])
def test_every_line_is_dealt_to_one_agent(how: Deal, seats: int, material: list[Source]) -> None:
    tiny = [Source(f"note {n}", name=f"notes/{n % 40}/{n}.md") for n in range(2_000)]
    for sources in (material, STRANGE, tiny, STRANGE[:1], material[:1]):
        _, dealt = deal_to_agents(Emergence(children=seats), sources, how, None)
        assert all(len(line.split()) == 1 for lines in held(dealt) for line in lines)
        assert [source.text for source in dealt] == [source.text for source in sources]


@pytest.mark.parametrize("how", WAYS)
def test_a_line_that_no_share_can_hold_is_named(how: Deal) -> None:
    sources = [Source("Short.", name="a.txt"), Source("\n" + "The harbour wall is long. " * 6_000, name="one.txt")]
    with pytest.raises(
        SettingsError, match=r"line 2 of one\.txt has about 44,\d+ tokens, and a share may have"
    ) as raised:
        deal_to_agents(Decompose(), sources, how, 16_000)
    assert "Break the line" in raised.value.do


@pytest.mark.parametrize("how", WAYS)
def test_shares_fit_the_window_in_as_few_agents_as_do(how: Deal, material: list[Source]) -> None:
    protocol, dealt = deal_to_agents(Emergence(), material, how, 11_000)
    rows = deal_rows(dealt)
    assert len(rows) == len(protocol.share_holders) <= 3
    assert max(row.tokens for row in rows) <= 5_500
    assert protocol.max_reply_tokens == 400, "what agents write to each other takes the rest"
    wide, _ = deal_to_agents(Emergence(), material, how, 64_000)
    assert wide.max_reply_tokens == Emergence().max_reply_tokens
    assert all(row.related_tokens <= RELATED_SHARE * row.tokens for row in rows)


def test_directory_stays_with_one_agent_and_a_document_larger_than_a_share_is_cut(material: list[Source]) -> None:
    protocol, dealt = deal_to_agents(Emergence(), material, "directory", None)
    assert len(protocol.share_holders) == 2, "one for each directory"
    holders = [{*lines} for lines in held(dealt)]
    assert holders[0] == holders[1] != holders[2] == holders[3]
    _, dealt = deal_to_agents(Emergence(), [Source(report_on("all", 600, 1), name="all.md")], "document", 16_000)
    (source,) = dealt
    lines = source.text.splitlines()
    ends = [last for share in source.shares for _, last in share.lines if last < len(lines)]
    assert ends
    assert all(lines[end].startswith("#") for end in ends), "cut where a section begins"


def test_auto_deals_what_exceeds_half_of_the_window_only(material: list[Source]) -> None:
    for window, is_dealt in ((None, False), (200_000, False), (11_000, True)):
        _, dealt = deal_to_agents(Emergence(), material, "auto", window)
        assert any(source.shares for source in dealt) is is_dealt
    for protocol in (Solo(), Vote()):
        assert deal_to_agents(protocol, material, "auto", 6_000) == (protocol, material)


def test_agents_that_the_user_set_and_private_documents_stay(material: list[Source]) -> None:
    private = material[1].model_copy(update={"agents": ("L2N1",)})
    sources = [material[0], private, *material[2:]]
    protocol, dealt = deal_to_agents(Emergence(children=5), sources, "document", 20_000)
    assert len(protocol.share_holders) == 5
    assert dealt[1] == private
    sizes = {row.agent: row.tokens for row in deal_rows(dealt)}
    assert "L2N1" not in sizes, "it has a document to read already"


@pytest.mark.parametrize(
    ("protocol", "sources", "window", "words"),
    [
        (Vote(), [Source("a")], None, "vote cannot deal documents"),
        (Solo(), [Source("a")], None, "solo cannot deal documents"),
        (Review(), [Source("a")], None, "review cannot deal documents"),
        (Emergence(), [Source("ok\n" + "x" * 90_000, name="log.txt")], 16_000, "line 2 of log.txt has about 25,"),
        (
            Emergence(children=2),
            [Source("some words\n" * 9_000)],
            16_000,
            "too many for 2 shares of 8,000 in a context window",
        ),
        (Debate(), [Source("some words\n" * 90_000)], 16_000, "too many for 12 shares of .* window of 16,000"),
    ],
)
def test_documents_that_cannot_be_dealt_are_refused_with_what_to_do(
    protocol: Protocol, sources: list[Source], window: int | None, words: str
) -> None:
    with pytest.raises(SettingsError, match=words) as raised:
        deal_to_agents(protocol, sources, "document", window)
    assert raised.value.do


SCRIPTS = [
    (Emergence(max_rounds=1), emergent),
    (Broadcast(max_iterations=1), broadcasting),
    (Decompose(), dividing),
    (Debate(max_messages=12), disputing),
    (Refinement(max_passes=1), refining),
]


@pytest.mark.parametrize(("protocol", "script"), SCRIPTS, ids=lambda value: getattr(value, "name", None))
async def test_session_with_dealt_documents_replays_resumes_and_reports_who_read_what(
    protocol: Protocol, script: object, material: list[Source]
) -> None:
    model = ScriptedModel(script)  # type: ignore[arg-type]
    options = Options(deal="document")
    with closing(SqliteStore(":memory:")) as store:
        report = await runner.start(
            "Which terms differ?", protocol, models=model, store=store, session="s", sources=material, options=options
        )
        assert model.requests
        for request in model.requests:
            assert request.text.count("from the index>") == 1, request.key
            assert "S1 legal/tenancy.md" in request.text
        replayed = await runner.replay("s", store=store)
        assert replayed.digest() == report.digest()
        readers = {document.id: document.readers for document in report.documents}
        whole = {id: [r.agent for r in by if not r.lines] for id, by in readers.items()}
        assert all(len(agents) <= 1 for agents in whole.values())
        assert read_record(store, "s").documents == report.documents
        assert all(not document.unread for document in report.documents if document.readers)
        sizes = {row.agent for row in deal_rows(deal_to_agents(protocol, material, "document", None)[1])}
        assert {reader.agent for by in readers.values() for reader in by} == sizes, "no other agent is shown a document"


async def test_prepared_session_is_resumed_with_the_shares_that_were_recorded(material: list[Source]) -> None:
    with closing(SqliteStore(":memory:")) as store:
        deliberation = Deliberation(
            Emergence(max_rounds=1),
            model=ScriptedModel(emergent),
            sources=material,
            store=store,
            options=Options(deal="size"),
        )
        await deliberation.prepare("Which?", session="s")
        model = ScriptedModel(emergent)
        report = await runner.resume("s", store=store, models=model)
        again = await deliberation.run_or_resume("s", "Which?")
    assert again.digest() == report.digest()
    leaves = [request for request in model.requests if "leaf_respond" in request.key]
    assert leaves
    assert all("related lines of other parts" in request.text for request in leaves)


async def test_related_passages_meet_in_one_share_and_are_verified_when_quoted(material: list[Source]) -> None:
    """Readers quote every line on Zephyr that they are shown, and those above them repeat the quotations."""

    def quoting(request: ModelRequest) -> str:
        shown = re.findall(r"^(?:(S\d+):)?(\d+)\| (.*Zephyr.*)$", request.text, re.MULTILINE)
        document = {LEASE: "S1", VACATED: "S4"}
        quotations = " ".join(f'"{words}" [{document[words]}:{line}]' for _, line, words in shown)
        quotations += " ".join(re.findall(r'"[^"\n]*Zephyr[^"\n]*" \[S\d+:\d+\]', request.text))
        return json.dumps({"text": quotations or "Nothing.", "points": [], "claims": []})

    model = ScriptedModel(quoting)
    report = await runner.start(
        "Which?",
        Emergence(max_rounds=1),
        models=model,
        store=SqliteStore(":memory:"),
        sources=material,
        options=Options(deal="document"),
    )
    first = [request for request in model.requests if "leaf_respond" in request.key and request.attempt == 1]
    assert len([r for r in first if LEASE in r.text and VACATED in r.text]) == 1, "the pair meets in one prompt"
    assert {quotation.source for quotation in report.quotations} == {"S1", "S4"}
    assert all(quotation.verified for quotation in report.quotations)


def test_related_lines_stay_within_their_cap_and_say_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shares of which every line is related to one of the other: most have no room."""
    monkeypatch.setattr(dealing, "RELATED_SHARE", 0.1)
    words = [f"{a}{b}" for a in "bcdfghklmn" for b in ("avon", "erin", "idel", "orat", "umis")]
    sides = [
        Source("\n".join(f"The {word} contract {text} {n} days." for n, word in enumerate(words)), name=f"{side}.md")
        for side, text in enumerate(("runs for", "was signed on a term of"))
    ]
    _, dealt = deal_to_agents(Emergence(children=2), sides, "document", None)
    rows = deal_rows(dealt)
    sent = sum(last - first + 1 for source in dealt for share in source.shares for first, last in share.related)
    assert sum(row.left_out for row in rows) + sent == 50, "each pair is sent once, or counted"
    for row in rows:
        assert 0 < row.related_tokens <= 0.1 * row.tokens
    assert any(row.left_out for row in rows)


def test_common_words_and_equal_figures_bring_no_passages_together() -> None:
    """A name that both have does, and so do several words."""
    plain = "\n".join(
        f"{n}.1 Nothing of note was said about {word}." for n, word in enumerate(("ropes", "tar", "oakum"))
    )
    one = [
        "4.2 The harbour wall is already 30 metres long.",
        "4.3 Two boats were repaired for 12 pounds.",
        "The pilots of Zephyr start at 8.",
        "4.5 Guests pay a deposit before boarding ferries, of 20 pounds.",
    ]
    other = [
        "4.2 Lemons already sell at 30 cents.",
        "4.3 She wrote 12 letters.",
        "Coal for Zephyr comes to 90 sacks.",
        "7.7 No deposit is due before boarding: 45 guests came.",
    ]
    sources = [Source("\n".join([*lines, plain])) for lines in (one, other)]
    _, dealt = deal_to_agents(Emergence(children=2), sources, "document", None)
    related = {
        source.text.splitlines()[line - 1]
        for source in dealt
        for share in source.shares
        for first, last in share.related
        for line in range(first, last + 1)
    }
    assert related & {one[2], other[2]}
    assert related & {one[3], other[3]}
    assert not related & {one[0], one[1], other[0], other[1]}


NAMES = {
    "Chinese": ("东港", "西河", "南山", "北湖", "青石", "白云"),
    "Hindi": ("कमलपुर", "रतनगढ़", "सूरजपुर", "विजयनगर", "दौलतपुर", "शांतिवन"),
    "Thai": ("ปากน้ำ", "บางรัก", "สาทร", "ดอนเมือง", "มีนบุรี", "ลาดพร้าว"),
    "Russian": ("Ольховка", "Берёзово", "Кленовск", "Сосновка", "Рябинино", "Дубровка"),
}
WORDINGS = {
    "Chinese": ("{name}仓库的租约将于2027年3月{day}日到期。", "我们必须在2027年5月{day}日之前搬出{name}。"),
    "Hindi": ("{name} गोदाम का पट्टा {day} मार्च 2027 को समाप्त होता है।", "हमें {day} मई 2027 तक {name} खाली करना है।"),
    "Thai": ("สัญญาเช่าโกดัง{name}สิ้นสุดวันที่ {day} มีนาคม 2570", "เราต้องย้ายออกจาก{name}ภายในวันที่ {day} พฤษภาคม 2570"),
    "Russian": (
        "Аренда склада {name} кончается {day} марта 2027 года.",
        "До {day} мая 2027 нам нужно выехать: {name}.",
    ),
}


@pytest.mark.parametrize("language", NAMES)
def test_passages_on_one_thing_meet_in_any_script(language: str) -> None:
    """Each name stands in one line of both documents, which else have few words in common."""
    lines = [
        [words.format(name=name, day=n + 10 + 7 * side) for n, name in enumerate(NAMES[language])]
        for side, words in enumerate(WORDINGS[language])
    ]
    _, dealt = deal_to_agents(Emergence(children=2), [Source("\n\n".join(side)) for side in lines], "document", None)
    related = {
        source.text.splitlines()[line - 1]
        for source in dealt
        for share in source.shares
        for first, last in share.related
        for line in range(first, last + 1)
    }
    assert all({one, other} & related for one, other in zip(*lines, strict=True))


async def test_what_was_left_out_is_a_warning_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "RELATED_SHARE", 0.1)
    words = [f"{a}{b}" for a in "bcdfghklmn" for b in ("avon", "erin", "idel", "orat", "umis")]
    sides = [
        Source("\n".join(f"The {w} contract {text} {n} days." for n, w in enumerate(words))) for text in ("a", "b c")
    ]
    report = await runner.start(
        "Which?",
        Emergence(children=2, max_rounds=1),
        models=ScriptedModel(emergent),
        store=SqliteStore(":memory:"),
        sources=sides,
        options=Options(deal="document"),
    )
    assert any("passages left out, because there was no room" in warning for warning in report.warnings)


async def test_index_of_many_documents_is_bounded() -> None:
    tiny = [Source(f"note {n}", name=f"notes/{'long' * 20}{n}.md") for n in range(2_000)]
    model = ScriptedModel(dividing)
    await runner.start(
        "Which?",
        Decompose(),
        models=model,
        store=SqliteStore(":memory:"),
        sources=tiny,
        options=Options(deal="size"),
        limits=Limits(calls=2),
    )
    lead = model.requests[0]
    assert lead.agent == "L1N1"
    assert "S1–S" in lead.text
    assert "note 7" not in lead.text
    assert len(lead.text) < 8_000
    assert "1. what the index gives to reader 1" in lead.text


@pytest.mark.parametrize(("window", "tokens"), [(None, 1_000), (16_000, 1_000), (32_000, 2_000), (128_000, 2_000)])
def test_index_has_headings_from_all_over_every_document_within_its_share_of_the_window(
    window: int | None, tokens: int
) -> None:
    deep = "\n".join(
        f"# Chapter {n}\n" + "\n".join(f"## Section {n}.{m}\ntext" for m in range(40)) for n in range(1, 6)
    )
    sources = [Source(deep, name=f"{n}.md") for n in range(4)]
    _, dealt = deal_to_agents(Emergence(), sources, "document", None)
    index = Opening("", "", number_documents(dealt), window=window).index
    assert 0.9 * tokens < estimate_tokens(index) < 1.05 * tokens
    of_each = [block.splitlines() for block in re.split(r"^S\d+ .*\n", index, flags=re.MULTILINE)[1:]]
    of_each[-1].pop()  # what is left out
    assert {len(block) for block in of_each} <= {len(of_each[0]), len(of_each[0]) - 1}, "equally many of each"
    for block in of_each:
        lines = [int(line.split(":")[0]) for line in block]
        assert lines == sorted(lines)
        assert {f"Chapter {n}" for n in range(1, 6)} <= {line.split(": ")[1] for line in block}
        assert max(b - a for a, b in pairwise([0, *lines, 405])) <= 405 // (len(block) - 5) + 25
    assert re.search(r"\(\d+ further headings left out\)$", index)


async def test_fork_without_the_agents_of_the_shares_is_refused(material: list[Source]) -> None:
    with closing(SqliteStore(":memory:")) as store:
        protocol = Emergence(max_rounds=1)
        options = Options(deal="document")
        await runner.start(
            "Why?",
            protocol,
            models=ScriptedModel(emergent),
            store=store,
            session="s",
            sources=material,
            options=options,
        )
        with pytest.raises(SettingsError, match="dealt to L2N3, and the fork has no such agents"):
            await runner.fork("s", store=store, models=ScriptedModel(emergent), settings={"children": 2})
        model = ScriptedModel(emergent)
        await runner.fork("s", store=store, models=model, at=0, session="f")
        assert store.read("f")[0].model_dump()["sources"] == store.read("s")[0].model_dump()["sources"]
        assert all("from the index>" in request.text for request in model.requests)


async def test_long_list_of_shown_lines_is_cut_in_the_report(material: list[Source]) -> None:
    with closing(SqliteStore(":memory:")) as store:
        report = await runner.start(
            "Which terms differ?",
            Decompose(),
            models=ScriptedModel(dividing),
            store=store,
            sources=material,
            options=Options(deal="document"),
        )
    most = max(len(reader.lines) for document in report.documents for reader in document.readers)
    assert most > MAX_RANGES
    assert f"and {most - MAX_RANGES} further ranges" in markdown(report)
