"""`workspace`: tickets from a shell."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.town import Cli
from consilience.coordination import Workspace, claim, sweep

STRANGE = "my [review] ü"


@pytest.fixture
def review(cli: Cli, here: Path) -> str:
    """A workspace with a blank and brackets in its path, and the agents red and blue."""
    assert cli("workspace", "new", STRANGE, "--agents", "red,blue").exit_code == 0
    return str(here / STRANGE)


def run(cli: Cli, *arguments: str, exit_code: int = 0, **more: Any) -> str:
    result = cli("workspace", *arguments, **more)
    assert result.exit_code == exit_code, result.output
    return result.stdout


def claim_in(text: str) -> str:
    """The claim in the output of `claim`, found as a shell script finds it."""
    return text.splitlines()[0].removeprefix("claim: ")


def test_new_prints_the_path_and_makes_the_agents(cli: Cli, here: Path) -> None:
    assert run(cli, "new", "a", "--agents", "red", "--agents", "blue").strip() == str(here / "a")
    made = json.loads(run(cli, "new", "b", "--type", "skill", "--gates", "specific_examples", "--json"))
    assert made["marker"] == f"[SESSION_DIR:{here / 'b'}]"
    shown = json.loads(run(cli, "show", "b", "--json"))
    assert shown["session_id"] == made["session_id"]
    assert shown["convergence"]["review_type"] == "skill"
    assert [gate["id"] for gate in shown["convergence"]["convergence_gates"]] == ["specific_examples"]
    assert "red: idle" in run(cli, "show", "a")


def test_ticket_is_claimed_and_answered(cli: Cli, review: str, here: Path) -> None:
    ticket = run(cli, "ticket", review, "--for", "red", "--topic", "Release", "Is it safe? Answer yes or no.").strip()
    text = run(cli, "claim", review, "--agent", "red")
    assert f"ticket: {ticket}, initial_analysis, iteration 1, attempt 1 of 2" in text
    assert text.endswith("\n\nTopic: Release\n\nIs it safe? Answer yes or no.\n")
    (here / "answer.md").write_text("yes\n")
    path = run(cli, "submit", review, "answer.md", "--claim", claim_in(text), "--summary", "Safe.").strip()
    assert Path(path).read_text() == "yes\n"
    assert run(cli, "wait", review, ticket) == f"{ticket}\tred\t{path}\n"
    assert f"{ticket}  red  iteration 1  completed  Release" in run(cli, "show", review)
    assert json.loads(run(cli, "show", review, ticket, "--json"))["result"]["summary"] == "Safe."


def test_command_that_claim_prints_submits(cli: Cli, review: str, here: Path) -> None:
    run(cli, "ticket", review, "Why?")
    line = run(cli, "claim", review, "--agent", "blue").splitlines()[1]
    assert line.startswith("submit: ")
    (here / "FILE").write_text("because\n")
    program, *arguments = shlex.split(line.removeprefix("submit: "))
    assert program == "consilience"
    assert cli(*arguments).exit_code == 0
    (ticket,) = json.loads(run(cli, "wait", review, "--json"))["results"]
    assert Path(ticket["path"]).read_text() == "because\n"


def test_claim_takes_the_oldest_ticket_of_the_agent_or_of_any(cli: Cli, review: str) -> None:
    for number, agent in enumerate(("blue", "red", "", "human")):
        run(cli, "ticket", review, "--id", f"t{number}", "--for", agent, "Why?")
    claimed = [json.loads(run(cli, "claim", review, "--agent", "red", "--json"))["ticket"]["id"] for _ in range(3)]
    assert claimed == ["t1", "t2", "t3"]
    assert json.loads(run(cli, "claim", review, "--agent", "red", "--json", exit_code=3)) == {
        "exit_code": 3,
        "what": "no ticket is pending for red",
        "where": review,
        "do": "Wait for one with --wait SECONDS.",
        "session": None,
    }
    run(cli, "claim", review, "t0", "--agent", "red", exit_code=2)
    run(cli, "claim", review, "t1", "--agent", "red", exit_code=3)


def test_json_outputs_contain_no_claim_token_of_another_claim(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "Why?")
    claimed = json.loads(run(cli, "claim", review, "--agent", "red", "--json"))
    token = claimed["claim"].rpartition(":")[2]
    assert token in claimed["submit"]
    for arguments in (["show", review], ["show", review, "t1"], ["wait", review, "--timeout", "0"]):
        assert token not in cli("workspace", *arguments, "--json").output
        assert token not in cli("workspace", *arguments).output


def test_show_says_since_and_until_when_a_ticket_is_held_and_when_its_agent_was_seen(cli: Cli, review: str) -> None:
    """A process that died goes on holding its ticket."""
    run(cli, "ticket", review, "--id", "t1", "--ttl", "300", "Why?")
    assert "red: idle, last seen 2" in run(cli, "show", review)
    run(cli, "claim", review, "--agent", "red")
    claimed_at = Workspace.open(review).ticket("t1").claimed_at
    assert claimed_at is not None
    since, until = (
        datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds") for time in (claimed_at, claimed_at + 300)
    )
    _, red, ticket = run(cli, "show", review).splitlines()[1:]
    assert red.startswith(f"red: working t1, since {since}, until {until}, last seen {since[:-8]}")
    assert f"active since {since} until {until}" in ticket
    run(cli, "ticket", review, "--id", "t2", "--ttl", "0.001", "Why?")
    run(cli, "claim", review, "--agent", "blue")
    assert ", expired 2" in run(cli, "show", review).splitlines()[1]


def test_submit_with_a_swept_claim_is_refused_and_another_claim_counts(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "--ttl", "300", "Why?")
    late = claim_in(run(cli, "claim", review, "--agent", "red"))
    workspace = Workspace.open(review)
    claimed_at = workspace.ticket("t1").claimed_at
    assert claimed_at is not None
    sweep(workspace, now=claimed_at + 301)
    assert "no result from red within 300 s of its claim; offered again" in run(cli, "show", review)
    text = run(cli, "claim", review, "--agent", "blue")
    assert "attempt 2 of 2" in text
    result = cli("workspace", "submit", review, "-", "--claim", late, input="late")
    assert result.exit_code == 2
    assert "the claim of ticket t1 by red has ended: blue has claimed it since" in result.stderr
    run(cli, "submit", review, "-", "--claim", claim_in(text), input="in time")
    assert json.loads(run(cli, "wait", review, "--json"))["results"][0]["claimed_by"] == "blue"


def test_renew_claim_restarts_its_ttl(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "--ttl", "300", "Why?")
    claim = claim_in(run(cli, "claim", review, "--agent", "red"))
    workspace = Workspace.open(review)
    claimed_at = workspace.ticket("t1").claimed_at
    assert claimed_at is not None
    assert run(cli, "renew", review, "--claim", claim).startswith("t1: expires 20")
    renewed_at = json.loads(run(cli, "renew", review, "--claim", claim, "--json"))["claimed_at"]
    assert renewed_at > claimed_at
    sweep(workspace, now=(claimed_at + renewed_at) / 2 + 300)  # the first time is over, the second is not
    run(cli, "submit", review, "-", "--claim", claim, input="in time")
    ended = cli("workspace", "renew", review, "--claim", claim)
    assert ended.exit_code == 2
    assert "has ended: it is completed" in ended.stderr


def test_renew_claim_of_a_persons_ticket_does_not_expire(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "--for", "human", "Why?")
    claim = claim_in(run(cli, "claim", review, "--agent", "anna"))
    assert run(cli, "renew", review, "--claim", claim) == "t1: does not expire\n"


def test_withdrawn_ticket_ends_its_claim_and_is_missing_at_once(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "Why?")
    run(cli, "ticket", review, "--id", "t2", "Why not?")
    claim = claim_in(run(cli, "claim", review, "t1", "--agent", "red"))
    assert (
        run(cli, "withdraw", review, "t1", "--reason", "too late") == "t1: permanently failed (withdrawn: too late)\n"
    )
    assert json.loads(run(cli, "withdraw", review, "t2", "--json"))["withdrawn"] == "not needed any more"
    refused = cli("workspace", "submit", review, "-", "--claim", claim, input="late")
    assert refused.exit_code == 2
    assert "withdrawn: too late" in refused.stderr
    run(cli, "wait", review, "t1", "--timeout", "3600", exit_code=3)


def test_withdraw_completed_ticket_keeps_its_result(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "Why?")
    run(cli, "submit", review, "-", "--claim", claim_in(run(cli, "claim", review, "--agent", "red")), input="yes")
    assert run(cli, "withdraw", review, "t1") == "t1: completed\n"
    run(cli, "wait", review, "t1")


def test_wait_sweeps_the_expired_claim_of_its_ticket(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "--ttl", "300", "--max-requeues", "0", "Why?")
    workspace = Workspace.open(review)
    assert claim(workspace, "t1", "red", now=1.0) is not None
    waited = cli("workspace", "wait", review, "t1", "--timeout", "3600")
    assert waited.exit_code == 3
    assert "no result from red within 300 s of its claim" in waited.stderr


def test_ticket_failed_twice_is_reported_as_missing(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "--for", "red", "Why?")
    for state in ("pending", "permanently failed"):
        claim = claim_in(run(cli, "claim", review, "--agent", "red"))
        assert state in run(cli, "submit", review, "--claim", claim, "--fail", "no network")
    result = cli("workspace", "wait", review, "--timeout", "3600")  # at once: the result can no longer come
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr == "No result of t1 (red): permanently failed (no network).\n"


def test_wait_returns_with_a_quorum(cli: Cli, review: str) -> None:
    for id in ("t1", "t2", "t3"):
        run(cli, "ticket", review, "--id", id, "Why?")
    for _ in range(2):
        run(cli, "submit", review, "-", "--claim", claim_in(run(cli, "claim", review, "--agent", "red")), input="so")
    assert len(run(cli, "wait", review, "--quorum", "2").splitlines()) == 2
    run(cli, "wait", review, "--timeout", "0", exit_code=3)
    assert (
        json.loads(run(cli, "wait", review, "t1", "t3", "--timeout", "0", "--json", exit_code=3))["complete"] is False
    )
    run(cli, "wait", review, "--quorum", "4", exit_code=2)


def test_gate_exits_with_4_unless_every_text_meets_it(cli: Cli, here: Path) -> None:
    (here / "good.md").write_text("## A\n\nExample: this.\n\n## B\n\nYou should fix it.\n\n## C\n\nMore.\n")
    (here / "bad.md").write_text("Read the address.\n")
    assert run(cli, "gate", "good.md").count("met  ") == 3
    text = run(cli, "gate", "good.md", "bad.md", "--gates", "actionable_recommendations", exit_code=4)
    assert text.startswith("missed  actionable_recommendations: ")
    assert "bad.md: Say for each finding what is to be done" in text
    tried = json.loads(run(cli, "gate", "-", "--json", exit_code=4, input="## A\n\n```\ncode\n```\n"))
    assert [(gate["id"], gate["met"]) for gate in tried["gates"]] == [
        ("comprehensive_coverage", False),
        ("specific_examples", True),
        ("actionable_recommendations", False),
    ]


def test_claim_describes_the_gates_of_a_ticket(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--gates", "specific_examples", "Why?")
    assert "Gates: specific_examples (at least one concrete example" in run(cli, "claim", review, "--agent", "red")


def test_shutdown_ends_a_waiting_claim_and_archives(cli: Cli, review: str, here: Path) -> None:
    run(cli, "ticket", review, "--id", "t1", "--for", "blue", "Why?")
    assert run(cli, "shutdown", review, "--keep", "--wait", "0", "--reason", "done").strip() == review
    result = cli("workspace", "claim", review, "--agent", "red", "--wait", "inf")  # ends at once
    assert result.exit_code == 3
    advice = result.stderr.partition("Acknowledge it: ")[2]
    assert cli(*shlex.split(advice)[1:]).exit_code == 0
    ended = json.loads(run(cli, "shutdown", review, "--wait", "0", "--json"))
    assert (ended["acknowledged"], ended["missing"]) == (["red"], ["blue"])
    assert Path(ended["archive"]) == here / f"archive_{STRANGE}"
    assert Workspace.open(ended["archive"]).ticket("t1").withdrawn == "the session has ended: done"
    run(cli, "claim", review, "--agent", "red", exit_code=2)


def test_acknowledgement_is_not_overwritten(cli: Cli, review: str) -> None:
    first = json.loads(run(cli, "ack", review, "--agent", "red", "--note", "early", "--json"))
    assert json.loads(run(cli, "ack", review, "--agent", "red", "--note", "late", "--json")) == first
    ended = cli("workspace", "shutdown", review, "--wait", "0")
    assert ended.stderr == "Not acknowledged by blue.\n"


def test_gc_abandons_idle_workspaces_and_deletes_them_later(cli: Cli, here: Path) -> None:
    (here / "shop").mkdir()
    for name in ("idle", "used"):
        run(cli, "new", f"shop/{name}")
    run(cli, "ticket", "shop/used", "--for", "human:ann", "Why?")
    (here / "shop" / "papers").mkdir()
    (here / "shop" / "papers" / "mine.txt").write_text("keep")
    lines = run(cli, "gc", "shop", "--idle", "0").splitlines()
    assert lines[0] == "renamed: idle to abandoned_idle"
    assert "kept: papers (not only a workspace: mine.txt)" in lines
    collected = json.loads(run(cli, "gc", "shop", "--idle", "0", "--kept", "0", "--json"))
    assert collected["deleted"] == ["abandoned_idle"]
    assert {path.name for path in (here / "shop").iterdir()} == {"used", "papers"}


def test_ticket_posted_twice_is_one_ticket(cli: Cli, review: str) -> None:
    for _ in range(2):
        assert run(cli, "ticket", review, "--id", "t1", "Why?") == "t1\n"
    assert len(Workspace.open(review).tickets()) == 1
    result = cli("workspace", "ticket", review, "--id", "t1", "Why not?")
    assert result.exit_code == 2
    assert "another ticket has the id t1" in result.stderr


def test_texts_come_from_files_and_standard_input(cli: Cli, review: str, here: Path) -> None:
    (here / "task.md").write_text("Read it.\n")
    run(cli, "ticket", review, "--id", "t1", "@task.md")
    run(cli, "ticket", review, "--id", "t2", "-", "--context", "@task.md", "--focus", "loops", input="Read that.\n")
    workspace = Workspace.open(review)
    assert workspace.ticket("t1").instructions == "Read it.\n"
    text = run(cli, "claim", review, "t2", "--agent", "red")
    assert "Read that.\n\n\nFocus: loops\n\nContext: Read it.\n" in text


def test_workspace_is_found_from_a_prompt(cli: Cli, review: str) -> None:
    assert review in run(cli, "show", f"[SESSION_DIR:{review}] Review the change.")
    result = cli("workspace", "show", "[SESSION_DIR:relative] Review the change.")
    assert result.exit_code == 2
    assert "relative" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "nowhere"], "nowhere"),
        (["show", "."], "not a workspace"),
        (["new", STRANGE], "cannot be made"),
        (["new", "w", "--agents", "../red"], "invalid name of an agent: '../red'"),
        (["new", "w", "--type", "novel"], "'novel' is not one of"),
        (["ticket", STRANGE, "--id", "../../x", "Why?"], "id: must be an id of letters"),
        (["ticket", STRANGE, "--for", "a/b", "Why?"], "assigned_to: must be"),
        (["ticket", STRANGE, "--ttl", "nan", "Why?"], "nan"),
        (["ticket", STRANGE, "@missing.md"], "missing.md"),
        (["ticket", STRANGE, "--gates", "beauty", "Why?"], "there is no gate 'beauty'"),
        (["new", "w", "--gates", "os:system"], "'os:system' is not a gate"),
        (["gate", "missing.md"], "missing.md"),
        (["gate", "-", "--gates", "beauty"], "there is no gate 'beauty'"),
        (["ticket", STRANGE, ""], "empty"),
        (["claim", STRANGE, "--agent", "red\x1b[2J"], "invalid name of an agent"),
        (["claim", STRANGE, "no-such", "--agent", "red"], "no ticket no-such"),
        (["submit", STRANGE, "f"], "--claim"),
        (["submit", STRANGE, "--claim", "t1:red:00"], "either an answer or a reason"),
        (["submit", STRANGE, "-", "--claim", "t1"], "invalid claim: 't1'"),
        (["submit", STRANGE, "-", "--claim", "../t1:red:00"], "invalid ticket id"),
        (["submit", STRANGE, "-", "--claim", "t9:red:00"], "no ticket t9"),
        (["wait", STRANGE, "no-such"], "no ticket no-such"),
        (["wait", STRANGE, "--timeout", "nan"], "nan"),
        (["claim", STRANGE, "--agent", "red", "--wait", "nan"], "nan"),
    ],
)
def test_invalid_workspace_arguments_are_a_usage_error(cli: Cli, review: str, arguments: list[str], words: str) -> None:
    result = cli("workspace", *arguments, input="text")
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert "\x1b" not in result.stderr
    problem = json.loads(cli("workspace", *arguments, "--json", input="text").stdout)
    assert problem["exit_code"] == 2


def test_control_characters_of_a_ticket_do_not_reach_the_terminal(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--id", "t1", "--topic", "a\x1b[2Jb", "c\x1b]0;x\x07d")
    for arguments in (["show", review], ["show", review, "t1"], ["claim", review, "--agent", "red"]):
        for more in ([], ["--json"]):
            text = cli("workspace", *arguments, *more).output
            assert "\x1b" not in text
            assert "\x07" not in text


CLAIM_IMPORTS_NOTHING_OF = ("asyncio", "sqlite3", "rich", "jinja2", "httpx", "consilience.engine", "consilience.models")


def test_claim_from_a_shell_loads_neither_engine_nor_models(review: str) -> None:
    code = (
        "import sys\n"
        "from consilience.cli.main import app\n"
        f"try:\n    app(['workspace', 'claim', {review!r}, '--agent', 'red'], prog_name='consilience')\n"
        "except SystemExit as ended:\n    print('CODE', ended.code)\n"
        f"print('HEAVY', [m for m in {CLAIM_IMPORTS_NOTHING_OF!r} if m in sys.modules])"
    )
    workspace = Workspace.open(review)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-2:] == ["CODE 3", "HEAVY []"], done.stdout + done.stderr
    assert workspace.tickets() == []


def test_ticket_with_a_damaged_record_is_named(cli: Cli, review: str) -> None:
    for id in ("p", "q"):
        run(cli, "ticket", review, "--id", id, "Is it safe?")
    Path(review, "tickets/history/p~1.json").write_text("")
    assert "p: no record is readable" in run(cli, "show", review)
    assert json.loads(run(cli, "show", review, "--json"))["unreadable"] == ["p"]
    assert "No record of p is readable" in cli("workspace", "wait", review, "--timeout", "0").stderr
    run(cli, "wait", review, "--timeout", "0", exit_code=3)


def test_workspace_after_shutdown_refuses_tickets_and_claims(cli: Cli, review: str) -> None:
    run(cli, "shutdown", review, "--wait", "0", "--keep")
    run(cli, "ticket", review, "Is it safe?", exit_code=2)
    run(cli, "claim", review, "--agent", "red", exit_code=3)


def test_ticket_with_an_excessive_ttl_is_refused(cli: Cli, review: str) -> None:
    run(cli, "ticket", review, "--ttl", "1e12", "Is it safe?", exit_code=2)
