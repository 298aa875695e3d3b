"""`consilience refinement` and `hierarchies`, as a writer uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.town import MODEL, Cli, Town, recorded
from consilience import RefinementReport
from consilience.models.port import ModelRequest

DRAFT = "---\ntitle: Loops\n---\nThey go round.\n\n```python\nwhile True: pass\n```\n"
ONE_ROLE = '[[roles]]\nname = "{}"\ndescription = "You work."\nchildren = {}\n'


def writing(request: ModelRequest) -> Any:
    if "/critique/" in request.key:
        mark = "weak" if request.key.startswith("pass-0/") else "good"
        marks = dict.fromkeys(("coherence", "accuracy", "depth", "overall"), mark)
        return json.dumps({part: {**marks, "issues": ["name one"]} for part in request.schema["required"]})  # type: ignore
    if "/integrate/" in request.key:
        return json.dumps({"text": "# Loops\n\nThey go round, and round again.\n\n[[code-1]]\n\nMind the end of them."})
    return "For beginners." if request.returns is None else json.dumps({"text": f"{request.agent} writes this part."})


@pytest.fixture
def writers(town: Town) -> Town:
    town.reply = writing
    return town


def test_draft_option_writes_document_and_report(cli: Cli, writers: Town, here: Path) -> None:
    (here / "draft.md").write_text(DRAFT)
    result = cli("refinement", "Make it better.", "--model", MODEL, "--draft", "draft.md", "--out", "report")
    assert result.exit_code == 0, result.output
    document = (here / "report" / "document.md").read_text()
    assert document.startswith("---\ntitle: Loops\n---\n# Loops")
    assert "```python\nwhile True: pass\n```" in document
    report = RefinementReport.model_validate_json((here / "report" / "report.json").read_text())
    assert report.document() == document
    assert report.settings["draft"] == DRAFT
    assert "They go round." in next(r.text for r in writers.requests if "/draft/" in r.key)


def test_draft_is_read_from_stdin(cli: Cli, writers: Town) -> None:
    result = cli("refinement", "Make it better.", "--model", MODEL, "--draft", "-", "--json", input="It was so.\n")
    assert json.loads(result.stdout)["settings"]["draft"] == "It was so.\n"


def test_resume_needs_no_draft_file(cli: Cli, writers: Town, here: Path) -> None:
    path = here / "draft.md"
    path.write_text(DRAFT)
    cli("refinement", "Make it better.", "--model", MODEL, "--draft", "draft.md")
    path.unlink()
    (session,) = recorded()
    assert cli("replay", session).exit_code == 0


def test_hierarchy_option_takes_a_file(cli: Cli, writers: Town, here: Path) -> None:
    roles = [("lead", '["left", "right"]'), ("left", "[]"), ("right", "[]")]
    (here / "mine.toml").write_text(
        'name = "mine"\ndescription = "Two parts."\n' + "".join(ONE_ROLE.format(*role) for role in roles)
    )
    result = cli("refinement", "Write.", "--model", MODEL, "--hierarchy", "mine.toml", "--filter", "never", "--json")
    assert [agent["id"] for agent in json.loads(result.stdout)["agents"]] == ["lead", "left", "right", "critic"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--hierarchy", "blgo"], "there is no hierarchy named 'blgo'. Did you mean 'blog'?"),
        (["--hierarchy", "gone.toml"], "there is no such hierarchy file"),
        (["--draft", "gone.md"], "the draft does not exist"),
        (["--draft", "empty.md"], "the draft is empty"),
        (["--protect", "tables"], "must be 'code' or 'front_matter', not 'tables'"),
        (["--critic", "heuristic"], "choose confidence 'length' or 'self'"),
        (
            ["--hierarchy", "bare.toml", "--filter", "always"],
            "Where: --encoder. Name one (minilm is offline and free), or give every role",
        ),
    ],
)
def test_invalid_refinement_options_are_refused_before_any_call(
    cli: Cli, writers: Town, here: Path, options: list[str], expected: str
) -> None:
    (here / "empty.md").write_text("\n")
    roles = ONE_ROLE.format("lead", '["left"]') + ONE_ROLE.format("left", "[]")
    (here / "bare.toml").write_text(f'name = "bare"\ndescription = "No vectors."\n{roles}')
    result = cli("refinement", "Write.", "--model", MODEL, *options)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert writers.requests == []


def test_hierarchies_are_listed_and_shown(cli: Cli) -> None:
    listed = cli("hierarchies", "list").stdout
    assert "blog               7 roles on 3 layers" in listed
    assert "research-summary   8 roles on 4 layers" in listed
    assert {row["name"] for row in json.loads(cli("hierarchies", "list", "--json").stdout)} >= {"blog"}
    shown = cli("hierarchies", "show", "blog").stdout
    assert "      researcher  You find facts" in shown
    assert "researcher  (as above)" in shown
    assert json.loads(cli("hierarchies", "show", "blog", "--json").stdout)["roles"][0]["name"] == "coordinator"
