"""What README and docs say is run: code blocks, commands, the transcript, the links, the figures that can be checked."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from consilience.domain.errors import ServerError
from consilience.domain.events import Ended, StepCompleted
from consilience.domain.outcome import FailureKind, StopReason
from consilience.domain.report import Report
from consilience.engine import execution
from consilience.engine.protocol import find_protocol, installed_protocols
from consilience.engine.template_use import TemplateUse
from consilience.journal.sqlite import SqliteStore
from consilience.models.hosted import RETRIES
from consilience.models.limiter import Limited, Pace
from consilience.models.port import Model, ModelRequest
from consilience.models.scripted import Answer, ScriptedModel
from kit import runner
from kit.cases import CASES, Case
from kit.contained import contained
from targets.repository import Repository

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = (ROOT / "docs" / "compare.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


EXHAUSTED_BY_A_LIMIT = (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME)
SITE = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
GUIDE_PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "design" not in page.parts]
GUIDES = [README, *(page.read_text() for page in GUIDE_PAGES)]
CODE = [code for text in GUIDES for code in blocks("python", text)]


class RunBlock(Protocol):
    def __call__(self, code: str, local: Model | None = None) -> list[Report]: ...


@pytest.fixture
def run_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunBlock:
    """Runs a block as it stands and returns its reports. `local` replaces the local model; the default is a scripted one."""
    from consilience.engine import seats

    resolve = seats.resolve

    def reply(request: ModelRequest) -> str:
        if request.schema and "vote" in request.schema["required"]:  # type: ignore[operator]
            read = [{"document": "S1", "remark": "The bound is right."}]
            return json.dumps(
                {"vote": "approve", "read": read, "findings": [], "confidence": 0.5, "reason": "It is right."}
            )
        if "/critique/" in request.key and request.schema:
            marks = dict.fromkeys(("coherence", "accuracy", "depth", "overall"), 9)
            return json.dumps(dict.fromkeys(request.schema["required"], marks))  # type: ignore[call-overload]
        text = f"{request.agent} has a view of {request.key}."
        return text if request.returns is None else json.dumps({"text": text})

    monkeypatch.chdir(tmp_path)

    def run(code: str, local: Model | None = None) -> list[Report]:
        model = local or ScriptedModel(reply)
        served = "#any-model"  # by the server of a block
        monkeypatch.setattr(
            seats, "resolve", lambda name, **more: resolve(name, **more) if name.endswith(served) else model
        )
        names: dict[str, object] = {}
        with contained():
            exec(compile(code, "README", "exec", dont_inherit=True), names)
        return [value for value in names.values() if isinstance(value, Report)]

    return run


@pytest.mark.parametrize("code", CODE, ids=range(len(CODE)))
def test_python_block_of_a_page_runs(code: str, run_block: RunBlock, capsys: pytest.CaptureFixture[str]) -> None:
    """All agents reply and no limit ends a run, unless the block itself says which agent fails."""
    for report in run_block(code):
        assert report.answer
        assert report.stop_reason not in EXHAUSTED_BY_A_LIMIT
        assert "report.degraded" in code or (report.degraded, report.ledger.actual.retries) == (None, 0)


def test_limit_of_the_readme_example_allows_every_retry(run_block: RunBlock) -> None:
    """The worst model that still answers: every sending fails as often as it is retried, every first reply is malformed."""
    sent: Counter[tuple[str, int]] = Counter()

    def reply(request: ModelRequest) -> Answer:
        sent[request.key, request.attempt] += 1
        if sent[request.key, request.attempt] <= RETRIES:
            return ServerError("busy")
        malformed = request.attempt == 1 and request.returns is not None
        return "{" if malformed else f"{request.agent} has a view of {request.key}."

    model = Limited(
        ScriptedModel(reply), deadline=60, retries=RETRIES, pace=Pace(backoff_seconds=1e-4, max_backoff_seconds=1e-3)
    )
    (code,) = [code for code in blocks("python") if "Limits(" in code]
    (report,) = run_block(code, model)
    assert report.ledger.actual.retries > 100
    assert report.stop_reason not in EXHAUSTED_BY_A_LIMIT


def test_tool_agent_of_the_guide_uses_its_tool(run_block: RunBlock, home: Path) -> None:
    (code,) = [code for code in CODE if "ToolAgent" in code]
    (report,) = run_block(code)
    with closing(SqliteStore(home / "journal.db")) as store:
        steps = [event for event in store.read(report.session) if isinstance(event, StepCompleted)]
        assert "Nothing speaks against" in "".join(store.text(step.text) for step in steps if step.kind == "tool")


COMMANDS = [
    line
    for text in GUIDES
    for block in blocks("console", text)
    for line in block.splitlines()
    if line.startswith("consilience ")
]


def repository(directory: Path) -> None:
    """A repository with a commit on origin/main, and one after it."""
    made = Repository(directory)
    made.commit({"a.py": "def last(items):\n    return items[-1]\n"})
    made.git("update-ref", "refs/remotes/origin/main", "HEAD")
    made.commit({"a.py": "def last(items):\n    return items[0]\n"})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_a_page_passes_its_dry_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of README and docs gives its plan, with `--dry-run`, without a key."""
    from typer.testing import CliRunner

    from consilience.cli.main import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.txt").write_text("The committee concludes that it depends.\n")
    (tmp_path / "draft.md").write_text("# Outages\n\nThey happen.\n")
    (tmp_path / "my-hierarchy.toml").write_text("\n".join(blocks("toml", "\n".join(GUIDES))))
    (tmp_path / "my-agent").write_text("#!/bin/sh\ncat\n")
    (tmp_path / "my-agent").chmod(0o755)
    (tmp_path / "my-prompts").mkdir()
    (tmp_path / "my-prompts" / "leaf_respond.j2").write_text("{{ seat }} Answer in one line.\n")
    (tmp_path / "paper.md").write_text("# Paper\n\nAll is well.\n")
    repository(tmp_path)
    arguments = shlex.split(command, comments=True)[1:]
    if "--dry-run" not in arguments:
        arguments.append("--dry-run")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def test_task_shown_in_the_guide_is_valid() -> None:
    from consilience.evaluation import Task

    (line,) = blocks("json", GUIDE)
    task = Task.model_validate_json(line)
    assert task.private
    documented = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[\w`, ]+) \|", GUIDE, re.MULTILINE))))
    assert documented == set(Task.model_fields) - {"tolerance"}  # said with `kind`


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_fences_of_a_page_are_read_by_the_site(page: Path) -> None:
    """The site takes options in quotes only; it reads the end of any other block as the beginning of one."""
    for info in re.findall(r"^```(\w+ .*)$", page.read_text(), re.MULTILINE):
        assert re.fullmatch(r'\w+( \w+="[^"]*")+', info), info


def test_make_targets_named_on_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)(?=  |$)", text, re.MULTILINE))
    assert named
    for target in {first or second for first, second in named}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_of_a_page_resolve(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_readme_table_lists_the_installed_protocols() -> None:
    from importlib.metadata import entry_points

    from consilience.engine.protocol import ENTRY_POINT_GROUP, find_protocol
    from consilience.protocols.broadcast import Broadcast
    from consilience.protocols.debate import Debate
    from consilience.protocols.decompose import Decompose
    from consilience.protocols.emergence import Emergence

    listed = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert sorted(listed) == sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    assert all(find_protocol(name).name == name for name in listed)
    assert Emergence(children=3, max_rounds=2).estimate().max == 15
    assert Broadcast(children=3, max_iterations=2).estimate().max == 24
    assert Decompose(children=3).estimate().max == 5
    assert Debate().estimate().max == 400


def test_guide_lists_every_provider_with_its_keys() -> None:
    from consilience.models.providers import PROVIDERS

    guide = (ROOT / "docs" / "agents.md").read_text()
    for name, row in PROVIDERS.items():
        keys = " or ".join(f"`{key}`" for key in row.keys) or "–"
        assert row.server is not None or f"\n| `{name}` | {keys} | `{row.extra}` |\n" in guide


def test_reference_lists_every_exported_name() -> None:
    import consilience

    for name in consilience.__all__:
        assert getattr(consilience, name) is not None
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    assert sorted(re.findall(r"^::: consilience\.([A-Z]\w*|[a-z]+(?:_\w+)?)$", pages, re.MULTILINE)) == sorted(
        [*consilience.__all__, "coordination", "protocol", "testing"]
    )


@pytest.mark.parametrize("names", [StopReason, FailureKind])
def test_recipes_explain_every_stop_reason_and_failure(names: type[StopReason] | type[FailureKind]) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    listed = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[\w`, ]+`) \|", page, re.MULTILINE)))
    assert {name.value for name in names} <= set(listed)


PATHS = sorted({(page.name, path) for page in PAGES for path in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text())})
ROOTS = [ROOT, ROOT / "src" / "consilience"]


@pytest.mark.parametrize(("page", "path"), PATHS)
def test_module_path_on_a_page_exists(page: str, path: str) -> None:
    assert any((root / path).exists() for root in ROOTS), f"{page} names {path}"


JOURNEYS = (ROOT / "docs" / "design" / "README.md").read_text()
STEPS = sorted(set(re.findall(r'(?<=[`"])[a-z_]+(?:\.\w+)+(?=[`"])', JOURNEYS)))


@pytest.mark.parametrize("step", STEPS)
def test_function_named_in_a_design_diagram_exists(step: str) -> None:
    from pkgutil import resolve_name

    resolve_name(f"consilience.{step}")


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = [page for section in SITE["nav"] for pages in section.values() for page in pages]
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


COSTS = [
    (page.stem, *row)
    for page in GUIDE_PAGES
    if page.parent.name == "protocols"
    for row in re.findall(r"^\| (the defaults|`--[^`]+`) \| (\d+)(?: to (\d+))? \|$", page.read_text(), re.MULTILINE)
]


INDEX = [
    (name, options, *calls)
    for name, cell in re.findall(
        r"^\| \[`(\w+)`\].* \| ([^|]+) \|$", (ROOT / "docs" / "protocols" / "index.md").read_text(), re.MULTILINE
    )
    for *calls, options in re.findall(r"(?:^|; )(\d+)(?: to (\d+))?(?: with `([^`]+)`)?(?=;|$)", cell)
]
"""Each number of calls in the table of all protocols; prose in it is left out."""


@pytest.mark.parametrize(("name", "options", "least", "most"), COSTS + INDEX, ids=lambda value: value or "same")
def test_calls_of_a_protocols_page_are_those_of_its_dry_run(
    name: str, options: str, least: str, most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from consilience.cli.main import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "Why?").write_text("A task for most protocols, and a file for one that reads a target.\n")
    settings = [] if options == "the defaults" else shlex.split(options.strip("`"))
    result = CliRunner().invoke(app, [name, "Why?", *settings, "--model", "openai:gpt-5-mini", "--dry-run", "--json"])
    calls = json.loads(result.stdout)["estimate"]
    assert (calls["min"], calls["max"]) == (int(least), int(most or least))


def test_table_of_all_protocols_has_the_calls_of_each() -> None:
    assert {name for name, *_ in INDEX} == {name for name, *_ in COSTS}


def test_every_protocol_has_a_page_with_its_costs() -> None:
    from importlib.metadata import entry_points

    from consilience.engine.protocol import ENTRY_POINT_GROUP

    assert {name for name, *_ in COSTS} == {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}


RUNS = ROOT / "tests" / "fixtures" / "runs"
"""The journal of each session that a page shows, named by its id."""
LEFT_OUT = "[…]"
SHOWN = re.compile(r"<!-- transcript: consilience show (\w+) -->\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
TRANSCRIPTS = [match.groups() for text in GUIDES for match in SHOWN.finditer(text)]
(README_RUN, README_TRANSCRIPT) = TRANSCRIPTS[0]


def test_every_recorded_run_is_shown_on_a_page() -> None:
    assert {session for session, _ in TRANSCRIPTS} == {path.stem for path in RUNS.iterdir()}


@pytest.mark.parametrize(("session", "transcript"), TRANSCRIPTS)
def test_transcript_matches_show_of_the_recorded_run(session: str, transcript: str, home: Path) -> None:
    """Line by line and in order; where lines are left out, a line says so."""
    from typer.testing import CliRunner

    from consilience.cli.main import app

    shutil.copy(RUNS / f"{session}.db", home / "journal.db")
    result = CliRunner().invoke(app, ["show", session])
    assert result.exit_code == 0
    printed, place = result.stdout.splitlines(), 0
    for line in transcript.strip().splitlines():
        if line != LEFT_OUT:
            assert line in printed[place:], line
            place += printed[place:].index(line) + 1


@pytest.fixture
def recorded(home: Path) -> str:
    """The session of the README's transcript, in this test's journal."""
    shutil.copy(RUNS / f"{README_RUN}.db", home / "journal.db")
    return README_RUN


def test_readme_is_under_1000_words() -> None:
    """Under 1,000 words, the transcript aside."""
    assert len(README.replace(README_TRANSCRIPT, "").split()) < 1000


def test_storage_page_commands_list_and_remove_sessions(recorded: str, home: Path) -> None:
    """The commands of docs/storage.md, in their order, on a journal with one session that is a year old."""
    import sqlite3

    from typer.testing import CliRunner

    from consilience.cli.main import app

    db = sqlite3.connect(home / "journal.db")
    with db:
        db.execute("UPDATE sessions SET created = created - 31536000000")
    db.close()
    page = (ROOT / "docs" / "storage.md").read_text()
    commands = re.findall(r"`consilience (sessions [^`]+)`", page)
    assert [command.split()[1] for command in commands] == ["list", "rm", "gc"]
    outputs = {}
    for command in (commands[0], f"{commands[2]} --dry-run", f"{commands[1]} --yes", f"{commands[2]} --yes"):
        result = CliRunner().invoke(app, shlex.split(command.replace("ID...", recorded)))
        assert result.exit_code == 0, result.output
        outputs[command] = result.stdout
    assert recorded in outputs[commands[0]]
    assert "1 session would be removed" in outputs[f"{commands[2]} --dry-run"]
    assert f"1 session removed ({recorded})" in outputs[f"{commands[1]} --yes"]
    assert "monitoring gap" not in (home / "journal.db").read_bytes().decode("latin-1")


async def test_recorded_run_of_the_readme_replays_without_a_call(recorded: str) -> None:
    import consilience

    store = consilience.SqliteStore(consilience_home() / "journal.db")
    report = await consilience.replay(recorded, store=store)
    store.close()
    assert report.answer
    assert report.ledger.actual.calls == 7


def consilience_home() -> Path:
    from consilience.domain.paths import data_dir

    return data_dir()


SHIPPED = [case for case in CASES if case.protocol.name in installed_protocols()]


@pytest.mark.parametrize("name", sorted(installed_protocols()))
def test_page_of_a_protocol_lists_its_templates(name: str) -> None:
    listed = [template for cells in template_rows(name) for template in names(cells[0])]
    assert sorted(listed) == sorted(find_protocol(name).load_templates().sources)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SHIPPED])
async def test_page_of_a_protocol_names_the_phases_in_which_a_template_is_used(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses: list[TemplateUse] = []

    def watch_all(_: object, instructions: str) -> TemplateUse:
        uses.append(TemplateUse(case.protocol.load_templates().sources, instructions))
        return uses[-1]

    monkeypatch.setattr(execution, "TemplateUse", watch_all)
    store = SqliteStore(":memory:")
    model = ScriptedModel(case.script)
    await runner.start("Why?", case.protocol, models=model, store=store, session="s", sources=case.sources)
    phases = {e.key: e.phase[0] for e in store.read("s") if isinstance(e, Ended) and e.phase}
    store.close()
    documented = {template: cells[3] for cells in template_rows(case.protocol.name) for template in names(cells[0])}
    for template, calls in uses[-1].calls.items():
        listed, used = documented[template], {re.sub(r"_L\d+$", "_L2", phases[key]) for key in calls}
        if listed.startswith("all"):
            assert not used & names(listed)
        else:
            assert used <= names(listed), template


def template_rows(name: str) -> list[list[str]]:
    """The cells of each row in the table of templates on a protocol's page."""
    _, _, section = (ROOT / "docs" / "protocols" / f"{name}.md").read_text().partition("\n## Prompt templates\n")
    rows = re.findall(r"^\| (`.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return [row.split(" | ") for row in rows]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))
