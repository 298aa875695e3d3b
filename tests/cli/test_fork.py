"""Forking a session, comparing two, and showing a run again as it went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded, sensible
from consilience.cli import setup
from consilience.cli.event_lines import listing
from consilience.domain.errors import Rejected
from consilience.domain.events import Noted
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import Scripted
from kit.golden import Golden, lines_with, section, steady

RUN = ("emergence", TASK, "--model", MODEL, "--max-rounds", "2", "--children", "2")


@pytest.fixture
def parent(cli: Cli, town: Town) -> str:
    assert cli(*RUN).exit_code == 0
    town.requests.clear()
    return recorded()[-1]


def test_fork_makes_only_later_calls_and_prints_inherited_ones(
    cli: Cli, town: Town, parent: str, golden: Golden
) -> None:
    result = cli("fork", parent, "--at", "round-1/observe/L1N1", "--set", "max_rounds=1", "--out", "report")
    assert result.exit_code == 0, result.stderr
    assert town.requests == []
    child = recorded()[-1]
    assert child != parent
    golden(result.stderr, "progress")
    golden(lines_with("inherited", cli("show", child, "--view", "figures").stdout), "figures")
    report = json.loads(Path("report/report.json").read_text())
    assert (report["parent"], report["settings"]["max_rounds"]) == (parent, 1)
    again = cli("replay", child, "--json")
    assert json.loads(again.stdout)["calls"] == 0


def test_fork_changes_models_perspectives_and_limits(cli: Cli, town: Town, parent: str) -> None:
    result = cli(
        "fork", parent, "--at", "leaf_respond/1", "--replace-agent", "L2N1=ollama:other",
        "--perspective", "L2N2=a grocer", "--max-calls", "2", "--json",
    )  # fmt: skip
    report = json.loads(result.stdout)
    models = {agent["id"]: agent["model"] for agent in report["agents"]}
    assert models == {"L1N1": MODEL, "L2N1": "ollama:other", "L2N2": MODEL}
    assert report["stop_reason"] == "exhausted_budget"
    assert len(town.requests) == 2
    assert all("a grocer" in r.text for r in town.requests if r.agent == "L2N2")
    everybody = cli("fork", parent, "--at", "0", "--model", "ollama:third", "--dry-run", "--json")
    plan = json.loads(everybody.stdout)
    assert (plan["models"], plan["parent"], plan["inherited"]) == (["ollama:third"], parent, 0)


def test_fork_changes_documents_and_task(cli: Cli, town: Town, parent: str, tmp_path: Path) -> None:
    (tmp_path / "weather.txt").write_text("It rained.\n")
    (tmp_path / "wind.txt").write_text("It blew.\n")
    asked = len(town.requests)
    result = cli(
        *("fork", parent, "--at", "leaf_respond/1", "--task", "Will it be so?"),
        *("--source", str(tmp_path / "weather.txt"), "--source", f"L2N1={tmp_path / 'wind.txt'}"),
    )
    assert result.exit_code == 0, result.stderr
    new = town.requests[asked:]
    assert new
    assert all("Will it be so?" in request.text and TASK not in request.text for request in new)
    assert {request.agent for request in new if "document S2" in request.text} == {"L2N1"}
    assert all("1| It rained." in request.text for request in new)
    assert cli("fork", parent, "--at", "0", "--source", "L9=x", "--dry-run").exit_code == 2


def test_first_line_of_a_fork_shows_the_thinking_level(
    cli: Cli, parent: str, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    result = cli("fork", parent, "--at", "0", "--model", "openai:o4-mini", "--thinking", "high", "--yes")
    golden(result.stderr.splitlines()[0])


def test_first_line_of_a_fork_names_no_thinking_level_that_nobody_asked_for(cli: Cli, parent: str) -> None:
    model = "http://127.0.0.1:9/v1#any"
    arguments = ("fork", parent, "--at", "0", "--model", model, "--dry-run")
    unasked, asked = cli(*arguments).stdout, cli(*arguments, "--thinking", "low").stdout
    assert "plus up to 4,096 for thinking" in unasked
    assert "not sent to" not in unasked
    assert f"(low; not sent to {model})" in asked


def test_set_reads_lists_from_json_and_keeps_plain_text(cli: Cli, town: Town, parent: str) -> None:
    result = cli(
        "fork", parent, "--at", "0", "--set", 'perspectives=["a baker","a mayor"]', "--set", "answer_pattern=yes|no"
    )
    assert result.exit_code == 0, result.stderr
    assert {"a baker", "a mayor"} <= {word for r in town.requests for word in ("a baker", "a mayor") if word in r.text}
    assert any("/ballot" in r.key for r in town.requests)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--at", "999"], "has the events 1 to"),
        (["--at", "round-1/leaf_respnd/L2N1"], "Did you mean 'round-1/leaf_respond/L2N1'"),
        (
            ["--at", "nowhere"],
            "Phases: leaf_respond/1–2, lateral_leaves/1–2, observe_root/1–2, signal_down/1. See its calls: consilience show ",
        ),
        (["--at", "end", "--set", "max_rounds"], "is not KEY=VALUE"),
        (["--at", "end", "--set", "rounds=3"], "Did you mean 'max_rounds'"),
        (["--at", "end", "--set", "max_rounds=lots"], "max_rounds"),
        (["--at", "end", "--set", "max_rounds=1", "--set", "max_rounds=2"], "given twice"),
        (["--at", "end", "--replace-agent", "L9N9=local"], "no agent 'L9N9'"),
        (["--at", "end", "--perspective", "L9N9=x"], "no agent 'L9N9'"),
        (["--at", "end", "--set", "foo=1"], "emergence has no setting 'foo'. Where: --set. Known: "),
        (["--at", "end", "--set", 'agents=["x"]'], "emergence has no setting 'agents'"),
        (["--at", "end", "--set", "childern=1"], "Did you mean 'children'? Known: "),
        (["--at", "end", "--agent-limit", "L2N1=3"], "is not a limit"),
        (["--at", "end", "--agent-limit", "L2N1:calls=-3"], "invalid limit"),
        (["--at", "end", "--agent-limit", "nobody:calls=3"], "no agent 'nobody'"),
        (["--at", "end", "--max-calls", "-1"], "calls must be at least 0, not -1. Where: --max-calls. "),
        (["--at", "end", "--model", "nonsense"], "nonsense"),
        ([], "--at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_fork_mistakes_are_reported_and_record_nothing(cli: Cli, parent: str, arguments: list[str], says: str) -> None:
    result = cli("fork", parent, *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert recorded() == [parent]


def test_limits_of_agents_and_phases_are_options_of_every_run(cli: Cli, town: Town) -> None:
    result = cli(*RUN, "--agent-limit", "L2N1:calls=1", "--phase-limit", "lateral_leaves:calls=9,tokens=5000", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["stop_reason"] == "exhausted_budget"
    assert sum(r.agent == "L2N1" for r in town.requests) == 1
    assert "refused by the limit of agent L2N1" in " ".join(report["warnings"])
    assert "limit of agent L2N1" in cli("show", "last").stdout


def test_show_prints_the_tree_of_forks(cli: Cli, town: Town, parent: str, golden: Golden) -> None:
    assert "## Forks" not in cli("show", parent).stdout
    cli("fork", parent, "--at", "end", "--set", "max_rounds=1")
    child = recorded()[-1]
    cli("fork", child, "--at", "3", "--set", "max_rounds=3")
    family = section(cli("show", child).stdout, "Forks")
    assert [line.count(id) for line, id in zip(family.splitlines()[2:], (parent, child, recorded()[-1]), strict=True)]
    golden(family)


def test_diff_prints_settings_first_difference_and_results(cli: Cli, town: Town, parent: str, golden: Golden) -> None:
    def otherwise(request: ModelRequest) -> object:
        return Scripted(json.dumps({"text": f"Something else entirely on {request.key}."}), tokens_in=1, tokens_out=1)

    town.reply = otherwise
    cli("fork", parent, "--at", "leaf_respond/1", "--perspective", "L2N2=a grocer")
    child = recorded()[-1]
    golden(cli("diff", parent, child).stdout)
    output = json.loads(cli("diff", parent, child, "--json").stdout)
    assert output["setup"] == {"perspective of L2N2": ["creative", "a grocer"]}
    assert output["calls"]["same"] == 2
    assert output["calls"]["only_a"] == output["calls"]["only_b"] == []
    golden(cli("diff", parent, parent).stdout, "a session and itself")


def test_events_are_listed_with_the_numbers_and_keys_a_fork_takes(cli: Cli, parent: str) -> None:
    lines = cli("show", parent, "--events").stdout.splitlines()
    store = SqliteStore(journal_path())
    events = store.read(parent)
    store.close()
    assert [int(line.split()[0]) for line in lines] == [event.seq for event in events]
    assert any(line.endswith("[round-2/observe/L1N1]  phase observe_root/2") for line in lines)
    assert lines[-1].endswith("session finished: exhausted_steps")
    rows = json.loads(cli("show", parent, "--events", "--json").stdout)
    assert [row["type"] for row in rows] == [event.type for event in events]


def test_listed_note_without_a_line_of_its_protocol_has_name_and_data() -> None:
    noted = Noted(seq=1, place="0", name="risk_named", data={"agent": "A1", "severity": 4})
    assert listing([noted])[0].endswith('noted risk_named: {"agent": "A1", "severity": 4}')


def test_resume_of_a_fork_counts_its_inherited_calls(cli: Cli, town: Town, parent: str) -> None:
    def broken(request: ModelRequest) -> object:
        raise KeyboardInterrupt

    town.reply = broken
    cli("fork", parent, "--at", "leaf_respond/1", "--set", "max_rounds=1")
    child = recorded()[-1]
    town.reply = sensible
    assert cli("resume", child).stderr.startswith(f"Resuming {child}: 2 calls inherited")


def test_session_ended_by_a_limit_states_the_limit_and_the_fork_that_goes_on(
    cli: Cli, town: Town, golden: Golden
) -> None:
    stopped = cli(*RUN, "--max-calls", "7")
    id = recorded()[-1]
    assert f"`consilience fork {id} --at end --max-calls N`" in stopped.stdout
    golden(stopped.stdout, "stopped")
    report = json.loads(cli("show", id, "--json").stdout)
    assert (report["limits"]["calls"], report["ledger"]["actual"]["requests"]) == (7, 6)
    assert report["ledger"]["held_back"] == 1
    golden(cli("resume", id).stderr, "resumed")
    town.requests.clear()
    forked = cli("fork", id, "--at", "end", "--max-calls", "40")
    golden(forked.stderr, "forked, progress")
    golden(forked.stdout, "forked, report")
    assert len(town.requests) == 5


def test_limit_of_a_phase_is_stated_with_the_option_that_raises_it(cli: Cli, town: Town, golden: Golden) -> None:
    golden(lines_with("lateral_leaves", cli(*RUN, "--phase-limit", "lateral_leaves:calls=1").stdout))


def test_failed_session_names_the_fork_that_makes_the_failed_calls_again(cli: Cli, town: Town, golden: Golden) -> None:
    whole = town.reply
    town.reply = lambda request: Rejected("the key is wrong")
    failed = cli(*RUN)
    id = recorded()[-1]
    golden(lines_with("fork SESSION", steady(failed.stdout)))
    town.reply = whole
    forked = cli("fork", id, "--at", "end")
    golden(forked.stderr.splitlines()[0], "forked")
    assert "failed" not in forked.stdout.splitlines()[0]


def test_fork_announces_unusable_replies_until_their_agent_has_another_model(cli: Cli, town: Town) -> None:
    whole = town.reply
    town.reply = lambda request: "" if request.key == "round-1/leaf_respond/L2N1" else whole(request)
    cli(*RUN)
    id = recorded()[-1]
    town.reply = whole
    same = cli("fork", id, "--at", "end", "--dry-run", "--json")
    assert [json.loads(same.stdout)[name] for name in ("failures_inherited", "asked_again")] == [1, 0]
    assert (
        "1 call without a usable reply inherited (malformed)"
        in cli("fork", id, "--at", "end", "--set", "max_rounds=3", "--dry-run").stdout
    )
    assert "(malformed) are made again with another model" in cli("fork", id, "--at", "end").stderr
    assert f"`consilience fork {id} --at end --replace-agent L2N1=MODEL`" in cli("show", id).stdout
    other = cli("fork", id, "--at", "end", "--replace-agent", "L2N1=ollama:other", "--dry-run", "--json")
    assert [json.loads(other.stdout)[name] for name in ("failures_inherited", "asked_again")] == [0, 1]


SPELLINGS = {
    "local": "local:qwen2.5-coder-1.5b",
    "local:local|ollama:x": "local|ollama:x",
    "http://127.0.0.1:9/v1#m": "HTTP://127.0.0.1:9/v1/#m",
}


@pytest.mark.parametrize(("recorded_as", "asked_as"), [*SPELLINGS.items(), *((b, a) for a, b in SPELLINGS.items())])
def test_fork_with_another_spelling_of_the_recorded_model_makes_no_failed_call_again(
    cli: Cli, town: Town, recorded_as: str, asked_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "local_weights", lambda models: [])
    whole = town.reply
    town.reply = lambda request: "" if request.key == "round-1/leaf_respond/L2N1" else whole(request)
    cli(*RUN, "--agent", f"L2N1={recorded_as}", "--yes")
    plan = cli("fork", recorded()[-1], "--at", "end", "--replace-agent", f"L2N1={asked_as}", "--dry-run", "--json")
    assert [json.loads(plan.stdout)[name] for name in ("failures_inherited", "asked_again")] == [1, 0]


def test_unfinished_session_shows_its_limits(cli: Cli, town: Town) -> None:
    def interrupt(request: ModelRequest) -> object:
        raise KeyboardInterrupt

    town.reply = interrupt
    cli(*RUN, "--max-calls", "7", "--agent-limit", "L2N1:tokens=9000")
    id = recorded()[-1]
    assert "Limits: 7 calls; agent L2N1: 9,000 tokens." in cli("show", id).stdout
    assert json.loads(cli("show", id, "--json").stdout)["limits"]["calls"] == 7


def test_resume_and_fork_keep_the_deadline_of_requests_unless_it_is_given_again(cli: Cli, town: Town) -> None:
    whole = town.reply

    def interrupt(request: ModelRequest) -> object:
        raise KeyboardInterrupt

    town.reply = interrupt
    cli(*RUN, "--deadline", "7")
    id = recorded()[-1]
    cli("resume", id)
    cli("resume", id, "--deadline", "8")
    town.reply = whole
    cli("resume", id)
    cli("fork", id, "--at", "0")
    cli("fork", recorded()[-1], "--at", "0")
    cli("fork", id, "--at", "0", "--deadline", "9")
    assert town.deadlines == [7, 7, 8, 7, 7, 7, 9]


@pytest.mark.parametrize("arguments", [(), ("--max-steps", "3"), ("--model", "ollama:other"), ("--max-calls", "9")])
def test_fork_that_would_make_no_call_is_an_error_that_says_what_to_change(
    cli: Cli, town: Town, parent: str, arguments: tuple[str, ...]
) -> None:
    result = cli("fork", parent, "--at", "end", *arguments)
    assert result.exit_code == 2
    assert f"the fork would make no call: session {parent} is finished" in result.stderr
    assert "--set max_rounds=N" in result.stderr
    assert recorded() == [parent]
    (note,) = json.loads(cli("fork", parent, "--at", "end", *arguments, "--dry-run", "--json").stdout)["notes"]
    assert note.startswith("This fork will be refused: the fork would make no call")
    assert note in cli("fork", parent, "--at", "end", *arguments, "--dry-run").stdout.replace("\\", "")


def test_session_that_ran_out_of_steps_names_the_fork_that_goes_on(cli: Cli, town: Town) -> None:
    stopped = cli("emergence", TASK, "--model", MODEL, "--max-rounds", "1")
    id = recorded()[-1]
    way = f"`consilience fork {id} --at end --set max_rounds=N`."
    assert stopped.stdout.rstrip().endswith(way)
    assert cli("show", id).stdout.rstrip().endswith(way)
    town.requests.clear()
    assert cli("fork", id, "--at", "end", "--set", "max_rounds=2").exit_code == 0
    assert town.requests
    cli("emergence", TASK, "--model", MODEL, "--max-steps", "1")
    assert "--at end --max-steps N`" in cli("show", "last").stdout
    town.requests.clear()
    cli("fork", "last", "--at", "end", "--max-steps", "2")
    assert town.requests


def test_failed_call_of_a_finished_session_names_the_fork_that_makes_it_again(cli: Cli, town: Town) -> None:
    whole = town.reply
    town.reply = lambda request: Rejected("no") if request.agent == "V2" else whole(request)
    stopped = cli("vote", TASK, "--votes", "3", "--model", MODEL)
    assert f"`consilience fork {recorded()[-1]} --at end`" in stopped.stdout


def test_fork_asks_for_a_cut_reply_again_if_replies_may_be_longer(cli: Cli, town: Town) -> None:
    town.reply = lambda request: Scripted("Only half", tokens_in=9, tokens_out=9, finish_reason="length")
    stopped = cli("solo", TASK, "--model", MODEL, "--reply-tokens", "100")
    id = recorded()[-1]
    assert f"`consilience fork {id} --at end --set reply_tokens=N`" in stopped.stdout
    assert "--at end --set reply_tokens=N" in cli("fork", id, "--at", "end").stderr
    town.reply = lambda request: "The whole answer."
    forked = cli("fork", id, "--at", "end", "--set", "reply_tokens=200")
    assert "The whole answer." in forked.stdout


@pytest.mark.parametrize(("option", "limit"), [("--max-tokens", "9000"), ("--max-cost", "0.05")])
def test_way_on_after_a_limit_on_tokens_or_money_names_one_that_is_enough(
    cli: Cli, town: Town, monkeypatch: pytest.MonkeyPatch, option: str, limit: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    town.price = 1e-5
    run = ("emergence", TASK, "--model", "openai:gpt-4o", "--max-rounds", "2", "--children", "2", "--yes")
    stopped = cli(*run, option, limit)
    assert "% of their size, to fit the limits" in stopped.stderr.splitlines()[0]
    way = stopped.stdout.splitlines()[-1]
    assert "The next call and the closing answer may need up to" in way
    enough = way.partition(f"{option} ")[2].partition("`")[0]
    town.requests.clear()
    assert cli("fork", recorded()[-1], "--at", "end", "--yes", option, enough).exit_code == 0
    assert town.requests


def test_interrupted_fork_shows_how_many_calls_it_inherited(cli: Cli, town: Town, parent: str) -> None:
    def interrupt(request: ModelRequest) -> object:
        raise KeyboardInterrupt

    town.reply = interrupt
    cli("fork", parent, "--at", "leaf_respond/1")
    shown = cli("show", "last").stdout
    assert "estimated calls done, 2 more inherited, 0 tokens read" in shown
    assert "up to the last recorded event." in shown
