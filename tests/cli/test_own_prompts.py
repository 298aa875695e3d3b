"""`--prompts DIR`, and `show --prompt KEY`: which templates are replaced, and what a model was sent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded

SMALL = ("--model", MODEL, "--max-rounds", "1")


@pytest.fixture
def own(here: Path) -> Path:
    directory = here / "ep"
    directory.mkdir()
    return directory


def test_dry_run_names_the_replaced_templates(cli: Cli, town: Town, own: Path) -> None:
    (own / "leaf_respond.j2").write_text("{{ seat }} Be short.")
    (own / "judge.j2").write_text("Compare.")
    arguments = ("emergence", TASK, *SMALL, "--prompts", "ep")
    assert "- Prompts: full, with judge, leaf_respond from ep\n" in cli(*arguments, "--dry-run").stdout
    assert json.loads(cli(*arguments, "--dry-run", "--json").stdout)["replaced_prompts"] == ["judge", "leaf_respond"]
    result = cli(*arguments)
    assert " · full prompts, with judge, leaf_respond from ep · " in result.stderr.splitlines()[0]
    assert "Prompt templates replaced: judge, leaf_respond." in result.stdout


def test_dry_run_refuses_a_template_with_an_unknown_variable(cli: Cli, town: Town, own: Path) -> None:
    (own / "leaf_respond.j2").write_text("{{ taks }}")
    result = cli("emergence", TASK, *SMALL, "--prompts", "ep", "--dry-run")
    assert result.exit_code == 2
    assert "leaf_respond.j2 uses 'taks'" in result.stderr
    assert "Where: ep/leaf_respond.j2. Use only: seat." in result.stderr


@pytest.mark.parametrize(
    ("files", "arguments", "says"),
    [
        (
            [],
            ["ep"],
            "contains no prompt template, so none would be replaced. Where: ep. Add one of: ballot.j2, finalize.j2, ",
        ),
        (["judge.txt"], ["ep"], "Add one of: ballot.j2, finalize.j2, "),
        (["full/judge.j2", "brief/judge.j2"], ["ep"], "Where: ep. Name the folder that contains them: ep/full."),
        (["brief/judge.j2"], ["ep"], "Where: ep. Name the folder that contains them: ep/brief."),
        (["judge.j2"], ["ep/judge.j2"], "the prompts are a file. Where: ep/judge.j2. Name its directory: ep."),
        ([], ["nowhere"], "there is no such directory of prompts. Where: nowhere."),
        (["judge.j2"], ["ep", "ep"], "2 directories of prompts are given. Where: --prompts. Give one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_prompts_that_replace_nothing_are_refused_before_the_run(
    cli: Cli, town: Town, own: Path, files: list[str], arguments: list[str], says: str
) -> None:
    for name in files:
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).write_text("Compare.")
    result = cli("emergence", TASK, *SMALL, *(word for directory in arguments for word in ("--prompts", directory)))
    assert result.exit_code == 2
    assert says in result.stderr
    assert not recorded()


def test_templates_are_listed_printed_and_copied_to_edit(cli: Cli, town: Town) -> None:
    listed = cli("prompts", "emergence").stdout
    assert re.search(r"^leaf_respond +seat$", listed, re.MULTILINE)
    original = cli("prompts", "emergence", "leaf_respond").stdout
    assert cli("prompts", "emergence", "leaf_respond", "--detail", "brief").stdout != original
    assert "consilience prompts vote answer --detail brief\n" in cli("prompts", "vote", "--detail", "brief").stdout
    assert json.loads(cli("prompts", "emergence", "leaf_respond", "--json").stdout)["leaf_respond"] == original
    copied = cli("prompts", "emergence", "leaf_respond", "--out", "mine")
    assert copied.exit_code == 0
    assert (Path("mine") / "leaf_respond.j2").read_text() == original
    assert "full prompts, with leaf_respond from mine" in cli("emergence", TASK, *SMALL, "--prompts", "mine").stderr
    assert "leaf_respond.j2 exists already. Where: mine." in cli("prompts", "emergence", "--out", "mine").stderr
    assert "emergence has no prompt template 'leaf'. Use one of: " in cli("prompts", "emergence", "leaf").stderr


def test_failing_template_is_reported_with_the_fork_that_helps_and_no_resume(cli: Cli, town: Town, own: Path) -> None:
    (own / "lateral.j2").write_text("{{ seat.nothing }}")
    result = cli("emergence", TASK, *SMALL, "--prompts", "ep", "--json")
    assert result.exit_code == 2
    (session,) = recorded()
    assert "resume" not in result.stderr.splitlines()[-1]
    problem = json.loads(result.stdout)
    assert problem["where"] == "ep/lateral.j2"
    assert problem["do"].endswith(f"consilience fork {session} --at end --prompts ep")
    assert problem["session"] is None
    (own / "lateral.j2").write_text("{{ seat }}")
    assert cli("fork", session, "--at", "end", "--prompts", "ep").exit_code == 0


@pytest.mark.parametrize(
    ("at", "template", "point"),
    [("end", "leaf_respond", "0"), ("lateral_leaves/1", "leaf_respond", "0"), ("end", "lateral", "leaf_respond/1")],
)
def test_fork_names_the_replaced_template_that_only_inherited_calls_use(
    cli: Cli, town: Town, own: Path, at: str, template: str, point: str
) -> None:
    cli("emergence", TASK, *SMALL)
    (parent,) = recorded()
    (own / f"{template}.j2").write_text("{{ seat }} Be short.")
    arguments = ("fork", parent, "--at", at, "--prompts", "ep")
    again = f"consilience fork {parent} --at {point} --prompts"
    line = (
        f"Prompt template {template}: all 3 recorded calls with it are inherited and keep their replies; to ask again: "
    )
    assert f"- {line}{again} ep\n" in cli(*arguments, "--dry-run").stdout
    result = cli(*arguments)
    assert f"{line}{again} ep" in result.stderr
    if at == "end":
        assert (result.exit_code, recorded()) == (2, [parent]), "a fork that makes no call is refused"
    else:
        assert f"Prompt templates replaced without effect: {template} (all 3" in result.stdout
        assert cli("replay", "last").exit_code == 0
    town.requests.clear()
    effective = cli("fork", parent, "--at", point, "--prompts", "ep")
    assert "recorded calls with it" not in effective.stderr
    assert "without effect" not in effective.stdout
    assert sum(request.user.endswith("Be short.") for request in town.requests) == 3
    later = cli("fork", "last", "--at", "lateral_leaves/1")
    assert later.exit_code == 0, later.stderr
    assert "without effect" not in later.stdout, "its calls were asked with the template"


def test_one_reason_is_given_once_for_all_templates_without_effect(cli: Cli, town: Town, own: Path) -> None:
    cli("emergence", TASK, *SMALL)
    (parent,) = recorded()
    for template in ("leaf_respond", "lateral", "judge"):
        (own / f"{template}.j2").write_text("Be short.")
    arguments = ("fork", parent, "--at", "lateral_leaves/1", "--prompts", "ep")
    reason = f"all 6 recorded calls with them are inherited and keep their replies; to ask again: consilience fork {parent} --at 0"
    plan = cli(*arguments, "--dry-run").stdout
    assert f"- Prompt templates lateral, leaf_respond: {reason}" in plan
    assert f"- Prompt template judge: no call of {parent} uses it." in plan
    report = cli(*arguments).stdout
    assert f"without effect: judge (no call of this run uses it), lateral, leaf_respond ({reason}" in report
    assert report.count("to ask again") == 1


def test_report_names_the_replaced_template_that_no_call_uses(cli: Cli, town: Town, own: Path) -> None:
    (own / "judge.j2").write_text("Compare.")
    result = cli("emergence", TASK, *SMALL, "--prompts", "ep")
    assert "Prompt templates replaced without effect: judge (no call of this run uses it)." in result.stdout
    forked = cli("fork", "last", "--at", "leaf_respond/1", "--prompts", "ep")
    assert "without effect: judge (no call" in forked.stdout


def test_show_prompt_prints_instructions_text_schema_and_reply(cli: Cli, town: Town) -> None:
    cli("emergence", TASK, *SMALL)
    key = "round-1/leaf_respond/L2N1"
    assert f"[{key}]" in cli("show", "last", "--events").stdout
    out = cli("show", "last", "--prompt", key).stdout
    request = next(request for request in town.requests if request.key == key)
    assert out.startswith(f"=== {key} to L2N1 ({MODEL}), attempt 1")
    assert request.system in out
    assert request.user in out
    assert '"points": {' in out
    _, _, reply = out.partition("\n=== Reply\n\n")
    assert json.loads(reply)["text"] == f"L2N1 thinks of {key}. The answer is yes."
    (prompt,) = json.loads(cli("show", "last", "--prompt", key, "--json").stdout)
    assert (prompt["system"], prompt["user"], prompt["schema"]) == (request.system, request.user, request.schema)
    cli("solo", TASK, "--model", MODEL)
    key = town.requests[-1].key
    plain = cli("show", "last", "--prompt", key).stdout
    assert plain.endswith(f"=== Reply\n\nS1 thinks of {key}. The answer is yes.\n")
    assert "JSON schema" not in plain


def test_show_prompt_of_an_unknown_key_is_a_mistake(cli: Cli, town: Town) -> None:
    cli("emergence", TASK, *SMALL)
    result = cli("show", "last", "--prompt", "leaf_respond/L2N1")
    assert result.exit_code == 2
    assert "Similar keys: round-1/leaf_respond/L2N1" in result.stderr


def test_diff_shows_the_changed_template_as_text(cli: Cli, town: Town, own: Path) -> None:
    cli("emergence", TASK, *SMALL)
    original = cli("prompts", "emergence", "leaf_respond").stdout
    text = original.replace("{{ seat }}\n", "{{ seat }} Be short. Be clear.\n\n", 1)
    (own / "leaf_respond.j2").write_text(text)
    cli("fork", "last", "--at", "0", "--prompts", "ep")
    first, second = recorded()
    out = cli("diff", first, second).stdout
    _, _, after = out.partition("## Prompt templates\n\n### leaf_respond.j2\n")
    diff = f"--- {first}\n+++ {second}\n@@ -1,4 +1,5 @@\n-{{{{ seat }}}}\n+{{{{ seat }}}} Be short. Be clear.\n+\n"
    assert diff in after.partition("## Replies")[0]
    assert "| prompt leaf_respond |" not in out, "no digest in addition"
    assert f"`{second}` (this one) from event 0: prompt leaf_respond changed" in cli("show", second).stdout.replace(
        "**", ""
    )
    templates = json.loads(cli("diff", first, second, "--json").stdout)["templates"]
    assert templates["leaf_respond"][1] == text


def test_diff_of_two_sets_of_prompts_names_the_sets_without_their_texts(cli: Cli, town: Town) -> None:
    for detail in ("full", "brief"):
        cli("emergence", TASK, *SMALL, "--detail", detail)
    text = cli("diff", *recorded()).stdout
    assert "| set of prompts | full | brief |" in text
    assert "## Prompt templates" not in text
