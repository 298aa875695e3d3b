"""The Python face, as a user calls it."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

import consilience
from consilience.domain.errors import SettingsError, UserError
from consilience.engine.runner import Options
from consilience.integrations import DeliberationSettings
from consilience.integrations.inspect_ai import deliberation as inspect_deliberation
from consilience.integrations.langgraph.emergence import emergence_graph
from consilience.integrations.langgraph.node import protocol_node
from consilience.integrations.textarena import DeliberatingAgent
from consilience.models.port import Completion, Model, ModelRequest
from consilience.testing import Scripted, ScriptedModel


def model(**more: Any) -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.agent} has a view of {request.key}.", **more)


def test_run_sync_records_in_the_default_journal(home: Path) -> None:
    report = consilience.run_sync(
        "Why?", consilience.Emergence(children=2, max_rounds=1), model=model(), panel="markets"
    )
    assert report.answer
    assert any(warning.startswith("personas without a seat: ") for warning in report.warnings)
    assert (home / "journal.db").exists()
    again = asyncio.run(consilience.replay(report.session))
    assert again.digest() == report.digest()
    assert asyncio.run(consilience.resume(report.session)) == report


def test_api_functions_share_parameter_names() -> None:
    wanted = inspect.signature(consilience.deliberate).parameters
    assert inspect.signature(consilience.run_sync).parameters == wanted
    assert inspect.signature(consilience.live).parameters == wanted


API_FUNCTIONS = [
    consilience.deliberate,
    consilience.run_sync,
    consilience.live,
    consilience.fork,
    protocol_node,
    emergence_graph,
    inspect_deliberation,
    DeliberatingAgent,
]


@pytest.mark.parametrize("face", API_FUNCTIONS)
def test_every_api_function_has_the_fields_of_a_deliberation_with_their_defaults(face: Callable[..., object]) -> None:
    """A field that a face lacks could not be set there; another default would be another deliberation."""
    wanted = {field.name: field.default for field in dataclasses.fields(consilience.Deliberation)}
    parameters = inspect.signature(face).parameters
    own = {"protocol", "sources"} if face not in API_FUNCTIONS[:3] else {"protocol"}
    own |= {"detail"}  # these take it with `options`
    if face is consilience.fork:
        own |= {"panel", "seed", "quorum", "encoder"}
    if face in (
        protocol_node,
        inspect_deliberation,
        DeliberatingAgent,
    ):  # their keywords go to `Deliberation` unchanged
        assert parameters["settings"].kind is inspect.Parameter.VAR_KEYWORD
        own |= DeliberationSettings.__annotations__.keys()
    assert {n: parameters[n].default for n in wanted if n not in own} == {
        n: d for n, d in wanted.items() if n not in own
    }


@pytest.mark.parametrize("name", ["run_sync", "live"])
def test_unknown_argument_error_names_the_function_called(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'modell'"):
        getattr(consilience, name)("Why?", consilience.Emergence(), modell="local")


async def test_run_sync_inside_a_running_loop_returns_the_report() -> None:
    report = consilience.run_sync("Why?", consilience.Emergence(children=2, max_rounds=1), model=model())
    assert report.answer


class Interrupted(ScriptedModel):
    """Ctrl-C is pressed at the second request, which is never answered."""

    def __init__(self) -> None:
        super().__init__(lambda request: "Yes.")
        self.cancelled = False

    async def complete(self, request: ModelRequest) -> Completion:
        if not self.requests:
            return await super().complete(request)
        self.requests.append(request)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            return await asyncio.wait_for(asyncio.Event().wait(), 20)  # type: ignore[return-value]
        except asyncio.CancelledError:
            self.cancelled = True
            raise


SEQUENTIAL_CALLS = consilience.Emergence(children=1, max_rounds=4)


@contextmanager
def notebook() -> Iterator[None]:
    """In one, SIGINT raises `KeyboardInterrupt` in the main thread."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def test_interrupt_beside_a_running_loop_stops_the_run() -> None:
    model = Interrupted()
    with notebook(), pytest.raises(KeyboardInterrupt):
        consilience.run_sync("Why?", SEQUENTIAL_CALLS, model=model, session="s")
    assert model.cancelled, "it has ended when the caller gets control back"
    assert len(model.requests) == 2
    assert (await consilience.resume("s", model=ScriptedModel(lambda request: "Yes."))).answer


def test_interrupt_of_a_run_that_blocks_the_loop_stops_it() -> None:
    """There `asyncio.run` takes the signal, and cancels the task that waits."""
    model = Interrupted()

    async def main() -> None:
        consilience.run_sync("Why?", SEQUENTIAL_CALLS, model=model)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert model.cancelled
    assert len(model.requests) == 2


async def test_error_of_a_run_beside_a_running_loop_is_raised_to_the_caller() -> None:
    with pytest.raises(SettingsError, match="the task is empty"):
        consilience.run_sync(" ", consilience.Emergence(), model=model())


async def test_models_are_assigned_in_agent_order_or_by_agent_id() -> None:
    first, two = ScriptedModel(lambda r: "a", name="one"), ScriptedModel(lambda r: "b", name="two")
    protocol = consilience.Emergence(children=3, max_rounds=1)
    report = await consilience.deliberate("Why?", protocol, model=[first, two])
    assert [a.model for a in report.agents] == ["one", "two", "one", "two"]
    assert [(s.model, s.agents) for s in report.independence.shared] == [
        ("one", ("L1N1", "L2N2")),
        ("two", ("L2N1", "L2N3")),
    ]
    by_agent = {"L1N1": first, "L2N1": first, "L2N2": two, "L2N3": two}
    report = await consilience.deliberate("Why?", protocol, model=by_agent)
    assert [a.model for a in report.agents] == ["one", "one", "two", "two"]
    with pytest.raises(SettingsError, match="none for L2N3"):
        await consilience.deliberate("Why?", protocol, model={"L1N1": first, "L2N1": first, "L2N2": two})


@pytest.mark.parametrize("task", ["", "  \n", "x" * 1_000_001])
async def test_invalid_task_is_refused_before_anything_is_recorded(task: str, home: Path) -> None:
    with pytest.raises(SettingsError, match="task"):
        await consilience.deliberate(task, consilience.Emergence(), model=model())
    assert consilience.SqliteStore(home / "journal.db").sessions() == []


SOLO = consilience.Solo()
NOTE = consilience.Source("Rents rose.", "note")


@pytest.mark.parametrize(
    ("task", "protocol", "settings", "expected"),
    [
        ("Why?", consilience.Solo, {}, r"Solo is a class, not a protocol.* Write Solo\(\)\."),
        ("Why?", "solo", {}, r"'solo' \(str\) is not a protocol.* consilience\.Solo\(\)\."),
        ("Why?", None, {}, "is not a protocol"),
        (5, SOLO, {}, r"5 \(int\) is not a text.* task"),
        (None, SOLO, {}, "is not a text"),
        ("x" * 1_000_001, SOLO, {}, r"1,000,001 characters.* \(sources\)"),
        ("Why?", SOLO, {"store": "x.db"}, r"consilience\.SqliteStore\('x\.db'\)"),
        ("Why?", SOLO, {"sources": "abc"}, r"sources=\[pathlib\.Path\("),
        (
            "Why?",
            SOLO,
            {"sources": ["a.txt"]},
            r"source 1.* pathlib\.Path\('a\.txt'\) .* consilience\.Source\(text, name\)",
        ),
        ("Why?", SOLO, {"sources": ["Rents\nrose."]}, r"source 1.* pathlib\.Path\(\"file\.txt\"\) "),
        ("Why?", SOLO, {"sources": [NOTE, {"text": "two"}]}, "source 2"),
        ("Why?", SOLO, {"limits": 5}, r"Limits\(calls=20, "),
        ("Why?", SOLO, {"limits": {"cals": 5}}, "cals"),
        ("Why?", SOLO, {"quorum": "half"}, "quorum"),
        ("Why?", SOLO, {"seed": "x"}, "seed"),
        ("Why?", SOLO, {"panel": ["a", "b"]}, "panel"),
        ("Why?", SOLO, {"encoder": 5}, "encoder"),
        ("Why?", SOLO, {"prompts": "here"}, "prompts"),
        ("Why?", SOLO, {"session": 5}, "session"),
        ("Why?", SOLO, {"options": {"cache": True}}, "Options"),
    ],
)
def test_invalid_argument_error_shows_the_right_form(
    task: Any, protocol: Any, settings: dict[str, Any], expected: str, home: Path
) -> None:
    asked = model()
    with pytest.raises(SettingsError, match=expected) as mistake:
        consilience.run_sync(task, protocol, model=asked, **settings)
    assert not isinstance(mistake.value.__context__, RuntimeError), "no absent loop stands above it in a traceback"
    assert asked.requests == []
    assert not (home / "journal.db").exists()


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"calls": -1}, "calls must be at least 0, not -1"),
        ({"calls": 10**400}, "calls must be at most 9223372036854775807"),
        ({"calls": "many"}, "calls must be a whole number, not 'many'"),
        ({"foo": 1}, "foo is unknown"),
        ({"cost": float("nan")}, "cost must be a finite number"),
        ({"seconds": float("inf")}, "seconds must be a finite number"),
        ({"agents": {"L2N1": {"calls": -1}}}, r"agents\.L2N1\.calls must be at least 0"),
        ({"phases": {"leaf_respond/x": {"calls": 1}}}, "phases: 'leaf_respond/x' is not a phase"),
    ],
)
def test_invalid_limit_is_a_user_error_in_every_form(inputs: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=rf"^invalid limits: {expected}.* Where: limits\. Give "):
        consilience.Limits(**inputs)
    with pytest.raises(SettingsError, match=expected):
        consilience.run_sync("Why?", SOLO, model=model(), limits=inputs)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):  # in a journal it is damage
        consilience.Limits.model_validate(inputs)


class Own(Model):
    name = "own:1"

    async def complete(self, request: ModelRequest) -> Completion:
        return Completion("Yes.", self.name, cost=0.0)


class Half:
    name = "half"
    complete = Own.complete


class ReturnsText(Own):
    async def complete(self, request: ModelRequest) -> Completion:
        return "Yes."  # type: ignore[return-value]


class IsNotAsync(Own):
    def complete(self, request: ModelRequest) -> Completion:  # type: ignore[override]
        return Completion("Yes.", self.name)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Half(), "Half has no account and no price and no close"),
        (Own, r"Own is a class, not a model\. Pass an object: Own\(\)"),
        (3, "int is not a model.* account, complete, price"),
        (ReturnsText(), "`complete` of the model own:1 returns str"),
        (IsNotAsync(), "`complete` of the model own:1 returns Completion, not awaitable"),
    ],
)
def test_invalid_model_object_is_explained(given: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        consilience.run_sync("Why?", SOLO, model=given)


def test_report_with_one_unpriced_seat_shows_the_known_cost() -> None:
    priced = ScriptedModel(lambda _: Scripted("Yes.", cost=0.25), name="priced:1")
    unpriced = ScriptedModel(lambda _: Scripted("Yes.", cost=None), name="unpriced:1")
    report = consilience.run_sync("Why?", consilience.Vote(votes=3), model=[priced, unpriced])
    spent = report.ledger.actual
    assert (spent.cost, spent.known_cost, spent.unpriced) == (None, 0.5, 1)
    assert "$0.50, and 1 call of unknown price" in report.markdown()


def test_own_model_without_price_and_tokens_keeps_its_cost() -> None:
    report = consilience.run_sync("Why?", SOLO, model=Own())
    assert report.ledger.actual.cost == 0.0
    with pytest.raises(UserError, match="pass the object again from Python"):
        consilience.fork_sync(report.session, at=0)


@pytest.mark.parametrize("limits", [{"cost": 1}, {"agents": {"*": {"cost": 1}}}, {"phases": {"answer": {"cost": 1}}}])
def test_limit_on_money_needs_known_prices(limits: dict[str, Any]) -> None:
    unpriced, priced = model(name="half:1", price=None), model(price=1e-6)
    with pytest.raises(SettingsError, match=r"does not bound the cost of half:1, whose price is not known.*`price`"):
        consilience.run_sync("Why?", SOLO, model=unpriced, limits=consilience.Limits(**limits))
    assert not unpriced.requests
    allowed = consilience.Options(allow_unpriced=True)
    assert consilience.run_sync(
        "Why?", SOLO, model=unpriced, limits=consilience.Limits(**limits), options=allowed
    ).answer
    assert consilience.run_sync("Why?", SOLO, model=priced, limits=consilience.Limits(**limits)).answer


def test_limit_on_money_bounds_a_declared_endpoint() -> None:
    name = "http://127.0.0.1:9/v1#m"
    limits = consilience.Limits(cost=0.000001)
    with pytest.raises(SettingsError, match="declare"):
        consilience.run_sync("Why?", SOLO, model=name, limits=limits)
    options = consilience.Options(endpoints=consilience.Endpoints().declare(name, input_price=2, output_price=8))
    report = consilience.run_sync("Why?", SOLO, model=name, limits=limits, options=options)
    assert (report.stop_reason, report.ledger.actual.cost) == ("exhausted_budget", 0.0)


def test_invalid_limit_of_an_agent_is_a_user_error() -> None:
    with pytest.raises(SettingsError, match="seconds must be a finite number"):
        consilience.SpendingLimits(seconds=float("inf"))
    assert consilience.Limits(calls=2**63 - 1, phases={"leaf_respond/1": consilience.SpendingLimits(calls=0)}).calls


async def test_invalid_store_is_a_user_error_in_every_function() -> None:
    for begun in (consilience.resume("s", store="x.db"), consilience.replay("s", store=Path("x.db"))):  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match=r"SqliteStore\('x\.db'\)"):
            await begun


@pytest.mark.parametrize(
    ("inputs", "wrong"),
    [
        ((3, "report"), "'text' of the source must be text, not 3. Where: Source(…)."),
        (("Rents rose.", 3), "'name' of the source must be text, not 3. Where: Source(…)."),
        (
            ("Rents rose.", "", "L2N1"),
            "'agents' of the source must be a list in square brackets, not 'L2N1'.",
        ),
    ],
)
def test_document_of_another_type_error_shows_the_right_form(inputs: tuple[object, ...], wrong: str) -> None:
    with pytest.raises(SettingsError) as refused:
        consilience.Source(*inputs)  # type: ignore[arg-type]
    assert wrong in str(refused.value)
    assert 'Write Source("The text.", name="report.md", agents=("L2N1",))' in str(refused.value)


def test_source_takes_the_text_first() -> None:
    named = consilience.Source(text="Rents rose.", name="report", agents=("L2N1",))
    assert consilience.Source("Rents rose.", "report", ("L2N1",)) == named
    assert consilience.Source.model_validate_json(named.model_dump_json()) == named


async def _deliberated(sources: list[Any], asked: ScriptedModel) -> consilience.Report:
    return await consilience.deliberate("Why?", SOLO, model=asked, sources=sources)


async def _run_sync(sources: list[Any], asked: ScriptedModel) -> consilience.Report:
    return await asyncio.to_thread(consilience.run_sync, "Why?", SOLO, model=asked, sources=sources)


async def _live(sources: list[Any], asked: ScriptedModel) -> consilience.Report:
    async with consilience.live("Why?", SOLO, model=asked, sources=sources) as session:
        return await session.report()


BEGUN = [_deliberated, _run_sync, _live]


@pytest.mark.parametrize("begun", BEGUN)
async def test_path_among_sources_is_read(begun: Any, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(b"line one\r\nline two\n")
    asked = model()
    report = await begun([file, NOTE], asked)
    assert report.answer
    for document in (f"{file}\n1| line one\n2| line two\n", "note\n1| Rents rose.\n"):
        assert document in asked.requests[0].text


@pytest.mark.parametrize("begun", BEGUN)
async def test_plain_text_among_sources_is_refused(begun: Any, tmp_path: Path, home: Path) -> None:
    (tmp_path / "notes.txt").write_text("line one\n")
    asked = model()
    with pytest.raises(SettingsError, match=r"neither a Source nor a path.* source 1\. Write pathlib\.Path\("):
        await begun([str(tmp_path / "notes.txt")], asked)
    assert (asked.requests, (home / "journal.db").exists()) == ([], False)


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "does not exist"), (b"\xff\x00", "is not UTF-8 text"), (b" \n", "is empty")]
)
async def test_file_that_is_not_a_document_is_refused(content: bytes | None, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    if content is not None:
        file.write_bytes(content)
    asked = model()
    with pytest.raises(UserError, match=f"the document {expected}.* Where: .*notes.txt"):
        await _deliberated([file], asked)
    with pytest.raises(UserError, match="the document cannot be read"):
        await _deliberated([tmp_path], asked)
    assert asked.requests == []


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("naïve".encode("cp1252"), "It may be WINDOWS-1252: iconv -f WINDOWS-1252 -t UTF-8 .*notes.txt > NEW"),
        ("naive".encode("utf-16-le"), "It may be UTF-16LE: iconv"),
        ("naive".encode("utf-16-be"), "It may be UTF-16BE: iconv"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x10", "It is binary: give text"),
    ],
)
async def test_file_of_another_encoding_is_refused_with_its_remedy(content: bytes, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(UserError, match=rf"the document is not UTF-8 text.* Where: .*notes.txt\. {remedy}"):
        await _deliberated([tmp_path / "notes.txt"], model())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xd0\xcf\x11\xe0\xff", "it is an old Word, Excel, PowerPoint or Outlook file"),
        (b"{\\rtf1\\ansi words}", "it is RTF"),
        (b"\x1f\x8b\x08\x00", "it is compressed"),
    ],
)
async def test_file_of_a_format_that_is_not_read_is_refused_with_its_name(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(UserError, match=rf"the document cannot be read: {reason}.* Save it as PDF, .docx"):
        await _deliberated([tmp_path / "notes.txt"], model())


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
async def test_file_with_a_byte_order_mark_is_read(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes("Ünï one\r\ntwo".encode(encoding))
    asked = model()
    await _deliberated([tmp_path / "notes.txt"], asked)
    assert "Ünï one\n" in asked.requests[0].text
    assert "\ufeff" not in asked.requests[0].text


FILES = Path(__file__).parent / "fixtures" / "documents"


async def test_converted_documents_are_shown_with_their_pages_and_the_report_warns_of_what_they_lack() -> None:
    asked = model()
    report = await _deliberated([FILES / "columns.pdf", FILES / "costs.xlsx"], asked)
    assert "4| " in asked.requests[0].text
    assert "| [page 3]\n" in asked.requests[0].text
    assert "| 2: Fuel | 2025 | 131500.5 | 2025-03-01\n" in asked.requests[0].text
    assert f"{FILES / 'columns.pdf'}: pages without text, such as scans: 2" in report.warnings
    assert f"{FILES / 'costs.xlsx'}: hidden sheets left out: 1" in report.warnings


class Taken(consilience.Solo):
    """Another protocol under a name that is taken."""

    name: ClassVar[str] = "solo"


async def test_protocol_under_a_taken_name_is_refused_before_anything_is_recorded(home: Path) -> None:
    with pytest.raises(SettingsError, match=r"the name 'solo' of Taken is taken by .*\.Solo"):
        await consilience.deliberate("Why?", Taken(), model=model())
    assert consilience.SqliteStore(home / "journal.db").sessions() == []


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"task": "caf\udce9"}, "the task contains"),
        ({"sources": [consilience.Source(text="caf\udce9")]}, "document 1 contains"),
        ({"sources": [consilience.Source(text="x", name="caf\udce9")]}, "the name of document 1 contains"),
        ({"model": ScriptedModel(["x"], name="caf\udce9")}, "not valid Unicode"),
        ({"session": "caf\udce9"}, "invalid session id"),
    ],
)
async def test_lone_surrogate_in_arguments_is_refused_before_anything_is_recorded(
    inputs: dict[str, Any], says: str, home: Path
) -> None:
    with pytest.raises(SettingsError, match=says):
        await consilience.deliberate(protocol=SOLO, **{"task": "Why?", "model": model(), **inputs})
    assert consilience.SqliteStore(home / "journal.db").sessions() == []


async def test_lone_surrogate_in_a_reply_does_not_end_the_run() -> None:
    completion = Scripted("caf\udce9", finish_reason="\udce9")
    report = await consilience.deliberate("Why?", SOLO, model=ScriptedModel([completion]))
    assert report.answer == "caf?"


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"repairs": -1}, "repairs must be at least 0, not -1"),
        ({"repairs": 11}, "repairs must be at most 10, not 11"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": -0.1}, "temperature must be at least 0, not -0.1"),
        ({"pace": None}, "pace must be a number, not None"),
        ({"deadline": 0}, "deadline must be greater than 0, not 0"),
        ({"patience": "long"}, "patience must be a number, not 'long'"),
        ({"cache": "no"}, "cache must be true or false, not 'no'"),
        ({"allow_unpriced": 1}, "allow_unpriced must be true or false, not 1"),
        ({"accounts": 3}, "accounts must be an instance of Accounts, not 3"),
        ({"endpoints": {}}, "endpoints must be an instance of Endpoints, not {}"),
        ({"deliveries": {"format": 3}}, r"deliveries\.format must be text, not 3"),
    ],
)
def test_invalid_options_are_refused(inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{says}\. Where: Options\(…\)\. Change it"):
        Options(**inputs)
