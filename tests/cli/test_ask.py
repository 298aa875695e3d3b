"""`consilience ask`: what it chooses and says before it spends, and what the agents are shown."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from cli.loopback import MODEL, Provider, command, environment, prose, provider
from cli.town import recorded
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore
from kit.forks import PYTHONPATH
from kit.golden import Golden

pytestmark = pytest.mark.processes


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "CONSILIENCE_HOME": str(home),
        "HOME": str(here),
        "OPENAI_API_KEY": "none-needed",
    }


def reader(reading: dict[str, object]) -> Any:
    """Answers a reading of the task with `reading`, any other request in prose."""

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        status, reply = prose(body, headers)
        if "You say what kind of task it is" in str(body["messages"]):
            assert isinstance(reply, dict)
            reply["choices"][0]["message"]["content"] = json.dumps(reading)
        return status, reply

    return answer


def ask(server: Provider, env: dict[str, str], here: Path, *words: str) -> tuple[int, str, str]:
    done = command("ask", *words, "--model", MODEL, env={**env, **environment(server.url)}, cwd=here)
    return done.returncode, done.stdout, done.stderr


def protocols() -> list[str]:
    store = SqliteStore(journal_path())
    try:
        begun = [store.beginning(session) for session in recorded()]
        return [started.protocol for started in begun if started is not None]
    finally:
        store.close()


def test_plain_question_is_read_and_answered_by_one_model_that_reviews_itself(
    env: dict[str, str], here: Path, golden: Golden
) -> None:
    """Its time is not known from one reading, which is shorter than other calls."""
    with provider(reader({"kind": "answer", "why": "It asks for a fact."})) as server:
        code, out, err = ask(server, env, here, "How deep is the lake?")
    assert code == 0, err
    golden(err)
    golden(out, "answer")
    assert protocols() == ["choose", "solo"]


def test_question_in_place_of_a_command_is_asked(env: dict[str, str], here: Path) -> None:
    with provider(reader({"kind": "answer"})) as server:
        done = command("How deep?", "--model", MODEL, "--json", env={**env, **environment(server.url)}, cwd=here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["protocol"] == "solo"


def test_decision_that_divides_is_debated(env: dict[str, str], here: Path, golden: Golden) -> None:
    """The reading is one of the eight calls. No reply is usable."""
    with provider(reader({"kind": "decision", "divides": True})) as server:
        code, _, err = ask(server, env, here, "Bridge or ferry?", "--max-calls", "8")
    golden(err[: err.index("debate r")])
    assert code == 1
    assert protocols() == ["choose", "debate"]


def test_debate_says_how_many_calls_are_usual_and_how_long_they_take(env: dict[str, str], here: Path) -> None:
    with provider(reader({"kind": "decision", "divides": True})) as server:
        _, _, err = ask(server, env, here, "Bridge or ferry?")
        assert "Costs nothing; about 49 calls, at most 180. Time not known" in err
        assert (
            command("solo", "Deep?", "--model", MODEL, env={**env, **environment(server.url)}, cwd=here).returncode == 0
        )
        _, _, err = ask(server, env, here, "Bridge or ferry?")
        assert "if all are made one after another: 49 calls of " in err
        run = ("debate", "Bridge or ferry?", "--model", MODEL, "--dry-run")
        options = (("--max-messages", "24", "--test-cruxes", "0", "--as-is"), ())
        plans = [command(*run, *more, env={**env, **environment(server.url)}, cwd=here).stdout for more in options]
    assert re.search(r"- Calls estimated: 8–\d+, usually about 33\n", plans[0])
    assert "- Calls estimated: 1–400\n" in plans[1], "longer debates are not on record"


def test_files_belong_to_the_question_and_a_change_is_reviewed_without_a_reading(
    env: dict[str, str], here: Path
) -> None:
    (here / "notes.md").write_text("The lake is 40 metres deep.\n")
    (here / "a.diff").write_text("diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n")
    with provider(reader({"kind": "answer"})) as server:
        code, _, err = ask(server, env, here, "How deep is the lake?", "notes.md")
        assert code == 0, err
        first, *others = (str(body["messages"]) for body in server.asked)
        assert "notes.md, about" in first
        assert "40 metres" not in first
        assert all("40 metres" in other for other in others)
        del server.asked[:]
        _, _, err = ask(server, env, here, "Is it safe?", "a.diff")
        assert "if all are made one after another" in err
        assert not any("You say what kind of task" in str(body["messages"]) for body in server.asked)
    assert protocols() == ["choose", "solo", "review"]


def test_follow_up_reads_answer_and_names_its_session(env: dict[str, str], here: Path) -> None:
    (here / "notes.md").write_text("The lake is 40 metres deep.\n")
    with provider(reader({"kind": "answer"})) as server:
        ask(server, env, here, "How deep is the lake?", "notes.md")
        session = recorded()[-1]
        del server.asked[:]
        code, _, err = ask(server, env, here, session, "And in feet?")
        assert code == 0, err
        read = str(server.asked[-1]["messages"])
        assert "Task: How deep is the lake?" in read
        assert "40 metres" in read
        assert f"the answer of session {session}" in read
        code, _, err = ask(server, env, here, "r000000", "And in feet?")
        assert (code, "r000000" in err) == (2, True)
        code, _, err = ask(server, env, here, "last")
        assert (code, "no question after the session" in err) == (2, True)
        reading = recorded()[-2]
        code, _, err = ask(server, env, here, reading, "And in feet?")
        assert (code, "has no answer to follow up" in err) == (2, True)


def test_follow_up_shows_a_document_that_is_given_again_once_and_keeps_what_was_left_out(
    env: dict[str, str], here: Path
) -> None:
    (here / "docs").mkdir()
    (here / "docs" / "notes.md").write_text("The lake is 40 metres deep.\n")
    (here / "docs" / "photo.png").write_bytes(b"\x89PNG\x00")
    with provider(reader({"kind": "answer"})) as server:
        ask(server, env, here, "How deep is the lake?", "docs")
        for again in ((), ("docs",)):
            code, out, err = ask(server, env, here, recorded()[1], "And in feet?", *again, "--json")
            assert code == 0, err
            assert str(server.asked[-1]["messages"]).count("40 metres") == 1
            report = json.loads(out)
            assert [document["name"] for document in report["documents"][:-1]] == ["docs/notes.md"]
            assert "docs: left out: binary: docs/photo.png" in report["warnings"]


def test_dry_run_calls_nobody_and_says_what_depends_on_the_reading(
    env: dict[str, str], here: Path, golden: Golden
) -> None:
    with provider() as server:
        code, out, err = ask(server, env, here, "Bridge or ferry?", "--dry-run")
        assert (code, server.asked) == (0, [])
        golden(err)
        golden(out, "plan")
        code, out, _ = ask(server, env, here, "Bridge or ferry?", "--dry-run", "--json")
        choice = json.loads(out)["choice"]
        assert (choice["protocol"], choice["rule"], choice["reading"]) == ("solo", "one", None)
    assert not journal_path().exists()


def test_cost_without_consent_is_refused_before_anything_is_sent(
    env: dict[str, str], here: Path, golden: Golden
) -> None:
    with provider() as server:
        bought = {**env, "OPENAI_BASE_URL": f"{server.url}/v1"}
        done = command("ask", "Bridge or ferry?", "--model", "openai-chat:gpt-5-mini", env=bought, cwd=here)
        assert (done.returncode, server.asked) == (2, [])
    golden(done.stderr)


def test_unusable_reading_says_how_to_name_a_protocol(env: dict[str, str], here: Path, golden: Golden) -> None:
    with provider() as server:
        code, _, err = ask(server, env, here, "Bridge or ferry?")
    assert code == 2
    golden(err.splitlines()[-1])


def test_limit_that_leaves_too_few_calls_ends_after_the_reading(
    env: dict[str, str], here: Path, golden: Golden
) -> None:
    with provider(reader({"kind": "answer"})) as server:
        code, _, err = ask(server, env, here, "How deep?", "--max-calls", "1")
    assert code == 2
    golden(err.splitlines()[-1])
    assert protocols() == ["choose"]


def test_directory_that_cannot_be_written_is_refused_before_the_reading(
    env: dict[str, str], here: Path, golden: Golden
) -> None:
    with provider(reader({"kind": "answer"})) as server:
        code, _, err = ask(server, env, here, "How deep?", "--out", "report.md")
        assert (code, server.asked) == (2, [])
    golden(err)


def test_question_without_spaces_in_another_script_is_asked(env: dict[str, str], here: Path) -> None:
    with provider() as server:
        command_line = ("周末去哪里", "--model", MODEL, "--dry-run")
        done = command(*command_line, env={**env, **environment(server.url)}, cwd=here)
    assert (done.returncode, "Solo" in done.stderr) == (0, True), done.stderr


def test_words_that_are_no_files_are_refused(env: dict[str, str], here: Path, golden: Golden) -> None:
    (here / "notes.md").write_text("The lake is 40 metres deep.\n")
    with provider() as server:
        for label, words in (("three words", ("Bridge", "or", "ferry?")), ("a file alone", ("notes.md",))):
            code, _, err = ask(server, env, here, *words)
            assert code == 2
            golden(err, label)
        assert server.asked == []


def test_notes_of_the_plan_are_printed_before_the_run(env: dict[str, str], here: Path) -> None:
    (here / "papers").mkdir()
    (here / "papers" / "notes.md").write_text("The lake is 40 metres deep.\n")
    (here / "papers" / "photo.png").write_bytes(b"\x89PNG\x00")
    (here / "a.diff").write_text("diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n")
    personas = [word for name in "ABC" for word in ("--persona", f"{name}: You speak for {name}.")]
    with provider(reader({"kind": "answer"})) as server:
        code, _, err = ask(server, env, here, "How deep?", "papers")
        assert code == 0, err
        before = err[: err.index("solo r")]
        assert before.count("papers: left out: binary: papers/photo.png\n") == 1
        _, _, err = ask(server, env, here, "Is it safe?", "a.diff", *personas)
    assert err[: err.index("review r")].count("Personas without a seat: C; ") == 1


def test_every_persona_that_is_named_has_a_seat(env: dict[str, str], here: Path) -> None:
    personas = [word for name in "ABCD" for word in ("--persona", f"{name}: You speak for {name}.")]
    with provider(reader({"kind": "answer"})) as server:
        code, out, err = ask(server, env, here, "How deep?", *personas, "--json")
    assert code == 0, err
    assert {agent["persona"] for agent in json.loads(out)["agents"]} == {"", "A", "B", "C", "D"}


def test_key_that_is_not_sent_is_named_once_before_the_task_is_read(env: dict[str, str], here: Path) -> None:
    with provider(reader({"kind": "answer"})) as server:
        (here / "consilience.toml").write_text(f'model = "{server.url}/v1#m"\n')
        done = command("ask", "How deep?", "--yes", env={**env, "CONSILIENCE_ENDPOINT_KEY": "k"}, cwd=here)
    assert done.returncode == 0, done.stderr
    note = f"No key is sent to {server.url}/v1, which you have not named."
    assert (done.stderr.count(note), note in done.stderr[: done.stderr.index("choose r")]) == (1, True)
