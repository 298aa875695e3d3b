"""Hostile agent texts on the terminal of a user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from adversaries.nasty import TEXTS
from adversaries.reading import STEERING, headings
from cli.town import MODEL, TASK, Town, recorded, sensible
from consilience.cli.main import app
from consilience.engine import seats
from consilience.models.port import ModelRequest

RUN = ("emergence", TASK, "--model", MODEL, "--max-rounds", "1")


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    town = Town()
    monkeypatch.setattr(seats, "resolve", town.resolve)
    return town


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), prog_name="consilience")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def saying(text: str, request: ModelRequest) -> object:
    fields = request.returns.model_fields if request.returns else {}  # type: ignore[attr-defined]
    body: dict[str, object] = {}
    if "objections" in fields and "/lateral/L2N3" in request.key:
        body["objections"] = [{"to": "A", "text": text[:1000]}]
    if "claims" in fields:
        body["claims"] = [{"text": text[:1000], "ids": ["A"]}]
    return json.dumps({**body, "text": f"{text}\nYes."}) if fields else text


@pytest.mark.matrix(keep=9)
@pytest.mark.parametrize("hostile", TEXTS)
def test_hostile_replies_reach_the_user_as_text(town: Town, hostile: str) -> None:
    """On both streams, in the files, in what is shown of a finished session."""
    town.reply = lambda request: saying(TEXTS[hostile], request)
    result = invoke(*RUN, "--out", "report")
    assert result.exit_code == 0
    (session,) = recorded()
    shown = invoke("show", session)
    written = Path("report/report.md").read_text(encoding="utf-8")
    for text in (result.stdout, result.stderr, shown.stdout, written):
        assert not STEERING.search(text)
    assert result.stdout.startswith("**Stopped: ")
    assert written.startswith(f"# {TASK}\n\n**Stopped: ")
    assert headings(written) == [
        "Answer",
        "Basis",
        "Where they differed",
        "How far to trust it",
    ]
    assert json.loads(invoke("show", session, "--json").stdout)["session"] == session
    assert json.loads(Path("report/report.json").read_text(encoding="utf-8"))["answer"]


@pytest.mark.matrix(keep=9)
@pytest.mark.parametrize("hostile", TEXTS)
def test_hostile_replies_of_an_unfinished_session_are_shown_as_text(town: Town, hostile: str) -> None:
    def until_the_end(request: ModelRequest) -> object:
        if "/observe/" in request.key:
            raise RuntimeError(f"boom {TEXTS[hostile][:200]}")
        return saying(TEXTS[hostile], request) if request.agent == "L2N1" else sensible(request)

    town.reply = until_the_end
    broken = invoke(*RUN)
    assert broken.exit_code == 1
    assert "this is a defect in consilience" in broken.stderr.splitlines()[-1]
    shown = invoke("show", "last")
    assert shown.exit_code == 0
    for text in (broken.stdout, broken.stderr, shown.stdout):
        assert not STEERING.search(text)
    items = [line for line in shown.stdout.splitlines() if line.startswith("- ")]
    assert len(items) == 6, "one line for every call that ended"
    assert json.loads(invoke("show", "last", "--json").stdout)["state"] == "unfinished"
