"""A person takes a seat: at a terminal, and by answering when the process is long gone. Real processes throughout."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess

import pytest

from cli.test_process import PATIENCE, PROGRAM
from cli.town import MODEL, recorded
from consilience.domain.events import CallCompleted
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore
from kit import forks
from kit.forks import PYTHONPATH

pytestmark = pytest.mark.processes

TASK = "Should the market be daily?"
RUN = ("emergence", TASK, "--model", MODEL, "--agent", "L2N1=human", "--children", "2", "--max-rounds", "1")
LEAF = "round-1/leaf_respond/L2N1"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command with a scripted model behind one name."""
    for name, value in (("PYTHONPATH", PYTHONPATH), ("TERM", "xterm"), ("COLUMNS", "100"), ("LINES", "40")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    path = tmp_path / "consilience_with_a_town.py"
    path.write_text(PROGRAM.format(latency="0.0"))
    return [sys.executable, str(path)]


class Terminal:
    """A process on a pseudo terminal, and somebody who types."""

    def __init__(self, arguments: list[str]) -> None:
        self.process, self.fd = forks.on_terminal(arguments)
        self.seen = ""
        self._from = 0

    def until(self, words: str) -> str:
        """What came since the last time, up to these words."""
        end = time.monotonic() + PATIENCE
        while words not in self.seen[self._from :]:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self.fd, 65536) if ready else b""
            assert piece, f"{words!r} never came: {self.seen[self._from :]}"
            self.seen += piece.decode("utf-8", "replace")
        at = self.seen.index(words, self._from) + len(words)
        found, self._from = self.seen[self._from : at], at
        return found

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """The exit code, everything read."""
        end = time.monotonic() + PATIENCE
        while True:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            try:
                piece = os.read(self.fd, 65536) if ready else b""
            except OSError:
                piece = b""
            if not piece:
                break
            self.seen += piece.decode("utf-8", "replace")
        os.close(self.fd)
        if time.monotonic() >= end:
            self.process.kill()
        return self.process.wait()


Sit = Callable[..., Terminal]


@pytest.fixture
def open_terminal(program: list[str]) -> Iterator[Sit]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal([*program, *arguments]))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()


def run(program: list[str], *arguments: str, input: str | None = None) -> CompletedProcess[str]:
    command = [*program, *arguments]
    return forks.run(command, input=input, stdin=DEVNULL, capture_output=True, text=True, timeout=PATIENCE)


def said(session: str) -> dict[str, str]:
    """The replies of a session by key."""
    store = SqliteStore(journal_path())
    try:
        return {e.key: store.text(e.text) for e in store.read(session) if isinstance(e, CallCompleted)}
    finally:
        store.close()


def test_a_person_at_the_terminal_is_asked_field_by_field(open_terminal: Sit) -> None:
    terminal = open_terminal(*RUN, "--quiet")
    question = terminal.until("an empty line ends the list")
    assert "=== L2N1 is asked: round 1 · own answers ===" in question
    assert TASK in question
    terminal.type("One fact.\n")
    terminal.until("an empty line ends the list")
    terminal.type("\n")
    terminal.until("a single dot")
    terminal.type("Yes,\nand soon.\n.\n")
    question = terminal.until("stance (one of kept, changed):")
    assert (
        "A:\r\n  | Yes,\r\n  | and soon.\r\n  | \r\n  | points:\r\n  | - One fact.\r\n\r\nB:\r\n  | L2N2 thinks of"
        in question
    )
    assert "<quote" not in question.partition("# Task")[2]
    terminal.type("kept\n")
    terminal.until("add one?")
    terminal.type("y\n")
    terminal.until("objections.to (one of B):")
    terminal.type("Z\n")
    terminal.until("Objections.to must be one of B.")
    terminal.until("objections.to (one of B):")
    terminal.type("b\n")
    terminal.until("objections.words (words):")
    terminal.type("The answer is yes.\n")
    terminal.until("objections.text (words):")
    terminal.type("\n")
    terminal.until("Objections.text must not be empty.")
    terminal.until("objections.text (words):")
    terminal.type("Who pays?\n")
    terminal.until("add one?")
    terminal.type("\n")
    terminal.until("a single dot")
    terminal.type("I keep my answer.\n\x04")
    assert terminal.end() == 0
    (session,) = recorded()
    replies = said(session)
    assert json.loads(replies[LEAF]) == {"points": ["One fact."], "text": "Yes,\nand soon."}
    assert json.loads(replies["round-1/lateral/L2N1"]) == {
        "stance": "kept",
        "objections": [{"to": "B", "words": "The answer is yes.", "text": "Who pays?"}],
        "text": "I keep my answer.",
    }
    assert "Stopped" in terminal.seen


def test_display_is_hidden_while_a_person_is_asked(open_terminal: Sit) -> None:
    terminal = open_terminal(*RUN)
    terminal.until("is asked")
    asked = terminal.until("an empty line ends the list")
    assert "composing" not in asked
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l"), "the cursor is the person's"
    terminal.type("later\n")
    assert terminal.end() == 5


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("typed", ["\x03", "later\n", "\x04"])
def test_person_who_leaves_parks_the_session_and_answers_later(
    typed: str, open_terminal: Sit, program: list[str]
) -> None:
    terminal = open_terminal(*RUN, "--quiet")
    terminal.until("an empty line ends the list")
    terminal.type(typed)
    assert terminal.end() == 5
    (session,) = recorded()
    message = " ".join(terminal.seen.split())
    assert f"consilience sessions answer {session} {LEAF} TEXT" in message
    assert list(said(session)) == ["round-1/leaf_respond/L2N2"], "others went on meanwhile"
    shown = run(program, "sessions", "answer", session)
    assert shown.returncode == 0
    assert f"=== {LEAF}: L2N1 is asked ===" in shown.stdout
    assert f"# Task\n{TASK}" in shown.stdout
    assert "Or simply write your answer as text." in shown.stdout
    answered = run(program, "sessions", "answer", session, LEAF, "-", input="From another day.\n")
    assert answered.returncode == 0, answered.stderr
    assert f"Resume: consilience resume {session}" in answered.stderr
    parked = run(program, "resume", session)
    assert parked.returncode == 5, parked.stderr
    key = "round-1/lateral/L2N1"
    assert f"consilience sessions answer {session} {key} TEXT" in parked.stderr
    asked = json.loads(run(program, "sessions", "answer", session, "--json").stdout)
    assert [question["key"] for question in asked] == [key]
    assert "A:\n  | From another day." in asked[0]["text"]
    reply = json.dumps({"objections": [{"to": "B", "text": "Who pays?"}], "text": "Still yes."})
    assert run(program, "sessions", "answer", session, key, reply, "--by", "Ada").returncode == 0
    done = run(program, "resume", session)
    assert done.returncode == 0, done.stderr
    assert json.loads(said(session)[key]) == json.loads(reply)
    assert run(program, "replay", session).returncode == 0


def test_person_without_a_terminal_parks_at_once(program: list[str]) -> None:
    began = time.monotonic()
    done = run(program, *RUN)
    assert done.returncode == 5, done.stderr
    assert time.monotonic() - began < 25, "nobody to be patient with"
    assert done.stdout == ""


def test_answered_question_is_not_listed_as_open(program: list[str]) -> None:
    assert run(program, *RUN).returncode == 5
    (session,) = recorded()
    assert f"**Waiting for an answer to: {LEAF}**" in run(program, "show", session).stdout
    first = run(program, "sessions", "answer", session, LEAF, "Yes.")
    assert f"Recorded the answer to {LEAF}. Resume" in first.stderr
    shown = run(program, "show", session).stdout
    assert f"**Answered, to be read when it is resumed: {LEAF}**" in shown
    assert "sessions answer" not in shown
    assert "in flight" not in shown
    assert f"Resume: `consilience resume {session}`" in shown
    told = json.loads(run(program, "show", session, "--json").stdout)
    assert (told["state"], told["awaited"], told["answered"]) == ("unfinished", [], [LEAF])
    assert json.loads(run(program, "sessions", "list", "--json").stdout)[0]["state"] == "unfinished"
    second = run(program, "sessions", "answer", session, LEAF, "No.")
    assert f"Recorded the answer to {LEAF}, replacing the earlier one." in " ".join(second.stderr.split())
    again = run(program, "resume", session)
    assert "in flight" not in again.stderr
    assert said(session)[LEAF] == "No."


@pytest.mark.parametrize("kept", [True, False])
def test_parked_run_and_answer_print_json(kept: bool, program: list[str]) -> None:
    done = run(program, *RUN, "--json", *([] if kept else ["--no-store"]))
    assert done.returncode == 5
    parked = json.loads(done.stdout)
    assert (parked["state"], parked["awaited"]) == ("waiting", [LEAF])
    assert [call["key"] for call in parked["calls"]] == ["round-1/leaf_respond/L2N2"]
    assert ("resume" in parked) is kept
    if not kept:
        return
    session, (key,) = parked["session"], parked["awaited"]
    for replaced in (False, True):
        answered = run(program, "sessions", "answer", session, key, "Yes.", "--json")
        assert (answered.returncode, answered.stderr) == (0, "")
        assert json.loads(answered.stdout) == {
            "session": session,
            "key": LEAF,
            "replaced": replaced,
            "awaited": [],
            "resume": f"consilience resume {session}",
        }
    for command in (["resume", session], ["fork", session, "--at", "end"]):
        again = run(program, *command, "--json")
        assert again.returncode == 5, again.stderr
        assert json.loads(again.stdout)["awaited"] == ["round-1/lateral/L2N1"]


def test_no_store_with_an_open_question_ends_the_run(program: list[str]) -> None:
    done = run(program, *RUN, "--no-store")
    assert done.returncode == 5
    assert "nothing is kept (--no-store): the run ends here" in done.stderr
    assert "resume" not in done.stderr


def test_question_and_answer_survive_a_kill(open_terminal: Sit, program: list[str], tmp_path: Path) -> None:
    terminal = open_terminal(*RUN, "--quiet")
    terminal.until("an empty line ends the list")
    terminal.process.kill()
    assert terminal.end() == -signal.SIGKILL
    (session,) = recorded()
    state = run(program, "show", session).stdout
    assert f"Asked and not answered: {LEAF}." in state.replace("\\", "")
    assert f"Read the question and answer it: `consilience sessions answer {session}`." in state
    shown = run(program, "sessions", "answer", session)
    assert f"# Task\n{TASK}" in shown.stdout
    note = tmp_path / "answer.txt"
    note.write_text("Written meanwhile.")
    assert run(program, "sessions", "answer", session, LEAF, f"@{note}").returncode == 0
    assert "(answered; delivered when the session is resumed)" in run(program, "sessions", "answer", session).stdout
    again = open_terminal("resume", session, "--quiet")
    question = again.until("stance (one of kept, changed):")
    assert "round 1 · replies to one another" in question
    assert "A:\r\n  | Written meanwhile." in question
    again.type("kept\n")
    again.until("add one?")
    again.type("\n")
    again.until("a single dot")
    again.type("Still so.\n.\n")
    assert again.end() == 0
    assert "lost calls" not in again.seen


def test_invalid_answer_is_reported(open_terminal: Sit, program: list[str]) -> None:
    terminal = open_terminal(*RUN, "--quiet")
    terminal.until("an empty line ends the list")
    (session,) = recorded()
    terminal.type("later\n")
    assert terminal.end() == 5
    for given, complaint in (
        ('{"points": "none", "text": "x"}', "points must be a list"),
        ('{"point": [], "text": "x"}', "there is no field point"),
        ('{"points": [], "text": " "}', "text must not be empty"),
        (" ", "empty"),
    ):
        wrong = run(program, "sessions", "answer", session, LEAF, given)
        assert wrong.returncode == 2
        assert complaint in wrong.stderr
    for nothing in ("", "  "):
        empty = run(program, "sessions", "answer", session, LEAF, nothing)
        assert (empty.returncode, empty.stdout) == (2, "")
        assert f"the answer to {LEAF} is empty" in empty.stderr
    unknown = run(program, "sessions", "answer", session, "round-9/x", "Yes.")
    assert unknown.returncode == 2
    assert f"Open questions: {LEAF}" in unknown.stderr
    assert len(said(session)) == 1


def test_several_people_are_asked_in_turn(open_terminal: Sit) -> None:
    run_of_two = [*RUN]
    run_of_two[run_of_two.index("L2N1=human")] = "L2N1=human:Ada"
    terminal = open_terminal(*run_of_two, "--agent", "L2N2=human:Ben", "--quiet")
    for name, person in (("L2N1", "Ada"), ("L2N2", "Ben")):
        asked = terminal.until("an empty line ends the list")
        assert [line for line in asked.splitlines() if line.startswith("===")] == [
            f"=== {person} ({name}) is asked: round 1 · own answers ==="
        ]
        terminal.type("\n")
        terminal.until("a single dot")
        terminal.type(f"{name} says no.\n.\n")
    terminal.until("stance (one of kept, changed):")
    terminal.type("later\n")
    assert terminal.end() == 5
    (session,) = recorded()
    assert {json.loads(text)["text"] for text in said(session).values()} == {"L2N1 says no.", "L2N2 says no."}
    assert "round-1/lateral/L2N2" in terminal.seen, "leaving one question leaves the others too"


def test_a_deadline_for_people_is_recorded_and_shown_with_the_question(program: list[str]) -> None:
    began = time.time()
    run_of_anna = [*RUN]
    run_of_anna[run_of_anna.index("L2N1=human")] = "L2N1=human:Anna"
    parked = run(program, *run_of_anna, "--human-deadline", "3600")
    assert parked.returncode == 5
    assert f"needs an answer to {LEAF} from Anna." in parked.stderr
    (session,) = recorded()
    shown = run(program, "show", session).stdout
    assert f"Waiting for an answer to: {LEAF} from Anna" in shown.replace("\\", "")
    assert "UTC; later a resume goes on without an answer." in shown
    assert "=== round-1/leaf_respond/L2N1: Anna (L2N1) is asked" in run(program, "sessions", "answer", session).stdout
    (question,) = json.loads(run(program, "sessions", "answer", session, "--json").stdout)
    assert began + 3590 < question["until"] < time.time() + 3610
    assert "UTC; a session resumed later continues without" in run(program, "sessions", "answer", session).stdout
    wrong = run(program, *RUN, "--human-deadline", "0")
    assert wrong.returncode == 2
    assert "human_deadline must be greater than 0, not 0.0. Where: --human-deadline." in " ".join(wrong.stderr.split())


def test_three_people_answer_by_mailed_forms_over_a_resume_and_a_crash(program: list[str], tmp_path: Path) -> None:
    seats = [word for n, name in enumerate(("Ada", "Ben", "Cy"), 1) for word in ("--agent", f"L2N{n}=human:{name}")]
    emergence = ("emergence", TASK, "--model", MODEL, "--children", "3", "--max-rounds", "1", *seats)
    assert run(program, *emergence).returncode == 5
    (session,) = recorded()
    answered: list[str] = []
    for step in range(20):
        forms = tmp_path / f"forms-{step}"
        written = run(program, "sessions", "answer", session, "--out", str(forms))
        assert written.returncode == 0, written.stderr
        for form in sorted(forms.glob("*.md")):
            page = form.with_suffix(".html").read_text()
            person = form.name.partition("-")[0]
            assert f"A question to {person}" in page
            assert "not been assigned a part of the task" not in page, "that is said to models"
            if step % 2:  # as the page saves it
                key = json.loads(page.partition('id="facts">')[2].partition("</script>")[0])["key"]
                saved = {"session": session, "key": key, "answer": answer_of(page, person)}
                form = form.with_suffix(".json")
                form.write_text(json.dumps(saved))
            else:
                form.write_text(filled_in(form.read_text(), person))
            done = run(program, "sessions", "answer", session, f"@{form}", "--by", person)
            assert done.returncode == 0, done.stderr
            answered.append(person)
        crashed = {"CONSILIENCE_FAULT": "after_commit#2"} if step == 0 else {}
        resumed = forks.run(
            [*program, "resume", session, "--yes"], capture_output=True, text=True, env=os.environ | crashed, timeout=60
        )
        if resumed.returncode == 0:
            break
        assert resumed.returncode in (5, -signal.SIGKILL), resumed.stderr
    assert set(answered) == {"Ada", "Ben", "Cy"}
    shown = run(program, "show", session).stdout
    for name in ("Ada", "Ben", "Cy"):
        assert f"person: {name}" in shown or f"{name} (" in shown or f"{name}," in shown


def test_form_of_another_session_is_refused_by_its_name(program: list[str], tmp_path: Path) -> None:
    for protocol in ("vote", "solo"):
        run(program, protocol, TASK, "--model", "human")
    of_vote, of_solo = recorded()
    run(program, "sessions", "answer", of_vote, "V1", "--out", str(tmp_path / "forms"))
    (form,) = (tmp_path / "forms").glob("*.md")
    refused = run(program, "sessions", "answer", of_solo, f"@{form}")
    assert (refused.returncode, f"the form is of session {of_vote}, not of {of_solo}" in refused.stderr) == (2, True)


def filled_in(form: str, person: str) -> str:
    """The form with words below each heading: the first of the options where there are any."""
    lines = []
    for line in form.split("\n"):
        lines.append(line)
        if line.startswith("> One of "):
            lines.append(line.removeprefix("> One of ").rstrip(".").split(",")[0])
        elif line.startswith("> List") or "leave it empty" in line:
            pass
        elif line.startswith("> "):
            lines.append(f"{person} says no.")
    return "\n".join(lines)


def answer_of(page: str, person: str) -> dict[str, str]:
    """What the page's form would give: its first options, and words in every text field that is not a list."""
    answer = {}
    for name, explanation, control in re.findall(
        r'<label for="[^"]*">(\S+)\n<small>(.*?)</small></label>\n(.*?)(?=<label|<button)', page, re.DOTALL
    ):
        option = re.search(r"<option>(.+?)</option>", control)
        answer[name] = (
            option[1] if option else "" if "List" in explanation or "empty" in explanation else f"{person} says no."
        )
    return answer
