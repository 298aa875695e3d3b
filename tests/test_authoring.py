"""The tutorial for authors: its package is written from the page alone, installed, and used from outside."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

import consilience
from consilience import protocol as face
from consilience.domain.detail import CAPS
from consilience.domain.errors import SessionWaiting
from consilience.domain.events import Noted
from consilience.domain.sections import ReportPart, Tone
from consilience.engine.protocol import installed_protocols
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.reporting.record import read_record
from consilience.reporting.views import view_text
from consilience.testing import AnyModel, ScriptedModel, shake
from kit import forks

PAGE = (Path(__file__).parent.parent / "docs" / "authoring.md").read_text()
FILES = dict(re.findall(r"^```\w+ title=\"(\S+)\"\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def names_of_block(word: str) -> dict[str, Any]:
    """Run the block of the page that contains a word, up to its report, and return what it defines."""
    (code,) = [block for block in BLOCKS if word in block]
    names: dict[str, Any] = {}
    exec(compile(code.partition("\nreport = ")[0], "authoring.md", "exec", dont_inherit=True), names)
    return names


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which pip installed the tutorial's package, which is built from the files of the page."""
    directory = tmp_path_factory.mktemp("tutorial")
    project, installed = directory / "project", directory / "site"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(project)]
    subprocess.run(pip, check=True, timeout=300)
    (installed / "agent.py").write_text(FILES["agent.py"])
    return installed


def command(site: Path, *arguments: str, code: int = 0) -> str:
    source = str(Path(consilience.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), source])}
    program = [sys.executable, "-m", "consilience", *arguments]
    done = forks.run(program, cwd=site, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_tutorial_class_is_short() -> None:
    lines = [line for line in FILES["premortem/__init__.py"].splitlines() if line.strip()]
    assert len(lines) <= 60


def test_tutorial_package_runs_replays_forks_resumes_and_exports(site: Path, home: Path) -> None:
    assert "premortem A premortem: agents imagine that the plan failed" in " ".join(command(site, "--help").split())
    assert "--seats N" in command(site, "premortem", "--help")
    assert "5" in command(site, "premortem", "Launch in June", "--seats", "4", "--dry-run", "--model", "local")
    model = ("--model", f"exec:{sys.executable} {site / 'agent.py'}", "--yes", "--json")
    report = json.loads(command(site, "premortem", "Launch in June", *model))
    assert (report["stop_reason"], len(report["risks"]), report["protocol"]) == ("settled", 3, "premortem")
    id = report["session"]
    command(site, "replay", id)
    assert json.loads(command(site, "resume", id, "--json"))["answer"] == report["answer"]
    forked = json.loads(command(site, "fork", id, "--at", "plan", "--set", "seats=4", "--yes", "--json"))
    assert (len(forked["risks"]), forked["parent"]) == (4, id)
    for calls, code in ((0, 3), (1, 3), (3, 0)):
        cut = json.loads(command(site, "premortem", "Launch", "--max-calls", str(calls), *model, code=code))
        assert (cut["stop_reason"], cut["answer"] is None) == ("exhausted_budget", calls == 0)
    for shown in (command(site, "show", id), command(site, "export", id, "--format", "markdown")):
        assert "Risks" in shown
        assert "of 5" in shown
    assert "2 of 5 The supplier was late. — agent (A1)" in command(site, "show", id, "--view", "severity")
    assert " · other views: severity, glossary\n" in command(site, "show", id)
    assert "- **2 of 5** The supplier was late. — *agent (A1)*" in command(site, "export", id, "--view", "severity")
    html = site / "report.html"
    command(site, "export", id, "--format", "html", "--out", str(html))
    page = html.read_text()
    assert all(text in page for text in ("The supplier was late.", "Risks", "Severity of the risks", "<svg"))
    with closing(SqliteStore(home / "journal.db")) as store:
        notes = [event for event in store.read(id) if isinstance(event, Noted)]
        assert [note.name for note in notes] == ["risk_named"] * 3
        assert notes[0].data["severity"] == report["risks"][0][1]


@pytest.fixture
def importable(site: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        installed_protocols.cache_clear()
        yield
    installed_protocols.cache_clear()
    sys.modules.pop("premortem", None)


def test_tutorial_tests_pass(importable: None, home: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(FILES["test_premortem.py"], "test_premortem.py", "exec", dont_inherit=True), names)
    names["test_premortem"]()


def test_unfinished_session_is_shown_as_the_page_says(importable: None, home: Path) -> None:
    from consilience.cli.main import app

    class Watched(importlib.import_module("premortem").Premortem):  # type: ignore[misc]
        report = names_of_block("note_line")["PremortemReport"]

    models = {"A1": "human", "A2": AnyModel(), "A3": AnyModel()}
    with closing(SqliteStore(home / "journal.db")) as store:
        run = consilience.Deliberation(Watched(), model=models, store=store, options=Options(patience=0))
        with pytest.raises(SessionWaiting):
            run.run_sync("Launch in June", session="s")
        store.post("s", "answer", "risk/A1", json.dumps({"severity": 5, "text": "Nobody bought it."}))
        with pytest.raises(SessionWaiting):
            run.resume_sync("s")
    shown = CliRunner().invoke(app, ["show", "s"]).stdout
    assert "3 of 4 estimated calls done" in shown
    assert "## Risks\n\n- A1 named a risk of severity 5\n- A" in shown
    assert shown.index("## Risks") < shown.index("## Replies so far")


def test_stop_test_of_the_page_is_shown_with_its_score_and_threshold(home: Path) -> None:
    rounds = names_of_block("record_check")["rounds"]

    class Rounds(face.Protocol):
        templates = {"instructions": "Answer with a number."}

        def topology(self) -> face.Topology:
            return face.complete(4)

        def estimate(self) -> face.Estimate:
            return face.Estimate(min=4, max=8)

        async def run(self, session: face.Session) -> face.Report:
            return await session.close(face.Report, None, first=[], stop_reason=await rounds(session, 2))

    model = ScriptedModel(lambda request: request.agent if "round-1" in request.key else "7")
    with closing(SqliteStore(home / "journal.db")) as store:
        report = consilience.run_sync("How much?", Rounds(), model=model, store=store)
        shown = view_text("convergence", read_record(store, report.session))
    assert report.stop_reason == face.StopReason.CONVERGED
    lines = [" ".join(line.split()) for line in shown.splitlines() if line.strip()]
    assert lines[0] == "agreement (scale 0 to 1)"
    assert lines[1:5] == [
        "after round 1 ···············|··············· 0.00, needed 0.5: not met", "100% differ",
        "after round 2 ███████████████|███████········ 0.75, needed 0.5: met", "25% differ",
    ]  # fmt: skip


def test_clock_protocol_of_the_page_passes_shake(home: Path) -> None:
    shaken = shake(names_of_block("clock.spawn")["Hall"](), orders=10, kills=10)
    assert shaken.orders > 1


def test_subclass_of_the_page_keeps_bounds_and_adds_no_template_variable(home: Path) -> None:
    doubtful = names_of_block("class Doubtful")["Doubtful"]
    with pytest.raises(consilience.UserError, match="max_rounds"):
        doubtful(max_rounds=10)

    class Toned(doubtful):  # type: ignore[misc, valid-type]
        tone: str = "calm"
        templates = {"leaf_respond": "{{ seat }} Answer in a {{ tone }} voice."}

    assert (Toned.name, Toned.summary) == ("toned", doubtful.summary)
    with pytest.raises(consilience.UserError, match="'tone' is undefined"):
        consilience.run_sync("Why?", Toned(), model=AnyModel())


def test_report_of_the_page_has_the_views_of_its_protocol_and_its_own(home: Path) -> None:
    report = consilience.run_sync("Why?", names_of_block("class WordVote")["WordVote"](votes=2), model=AnyModel())
    assert (report.protocol, report.warnings) == ("word-vote", ())
    assert [view.name for view in report.presentation().views] == ["words"]
    assert report.presentation().figures == consilience.VoteReport.presentation(report).figures


def test_tutorial_protocol_passes_shake(importable: None) -> None:
    module = importlib.import_module("premortem")
    shaken = shake(module.Premortem(seats=3), orders=10, kills=10)
    assert shaken.orders > 1
    assert sum(shaken.kills.values()) >= 10


def test_reference_lists_values_of_parts_tones_and_caps() -> None:
    reference = (Path(__file__).parent.parent / "docs" / "reference" / "authoring.md").read_text()
    values = re.findall(r"^\| .*? \| (`.*) \|$", reference, re.MULTILINE)
    part, name, paragraph, tone, caps = (re.findall(r"`(\w+)`", words) for words in values)
    assert part == list(get_args(ReportPart))
    assert set(name) <= set(re.findall(r"`(\w+)`", face.Section.__doc__ or ""))
    assert paragraph == list(get_args(face.Paragraph.model_fields["tone"].annotation))
    assert tone == list(get_args(Tone))
    sizes = re.findall(r"`(\w+)` \((\d+), (\d+)\)", values[-1])
    assert caps == [size[0] for size in sizes] == [field.name for field in fields(face.Caps)]
    for cap, full, brief in sizes:
        assert (getattr(CAPS["full"], cap), getattr(CAPS["brief"], cap)) == (int(full), int(brief))


def test_page_lists_every_name_of_the_author_module() -> None:
    table = PAGE.partition("## Everything in")[2]
    assert set(re.findall(r"`(\w+)`", re.sub(r" \| [^|]* \|$", "", table, flags=re.MULTILINE))) == set(face.__all__)
