"""Every mistake: one paragraph that says what, where and what to do; exit 2; nothing recorded, nothing asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded

RUN = ("emergence", TASK, "--model", MODEL)

Prepare = Callable[[Path], None]


def _files(here: Path) -> None:
    (here / "binary.bin").write_bytes(b"\x00\xff\xfe\x01")
    (here / "empty.txt").write_text(" \n")
    (here / "big.txt").write_bytes(b"word " * 2_100_000)
    (here / "long.txt").write_bytes(b"word " * 300_000)
    (here / "barren").mkdir()
    (here / "barren" / "x.bin").write_bytes(b"\x00")
    (here / "bad.env").write_text("FINE=1\nnot a line\n")
    (here / "broken.toml").write_text("name = ")
    (here / "file").write_text("x")
    (here / "prompts").mkdir()
    (here / "prompts" / "unknown.j2").write_text("x")


MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "depth 1": ((*RUN, "--depth", "1"), ("depth", "not 1", "--depth", "Change it")),
    "negative children": ((*RUN, "--children", "-3"), ("children", "not -3")),
    "absurd tree": ((*RUN, "--children", "64", "--depth", "8"), ("agents", "the limit is 500")),
    "absurd rounds": ((*RUN, "--max-rounds", "1000000"), ("max_rounds",)),
    "no such detail": ((*RUN, "--detail", "long"), ("--detail", "'long' is not one of 'auto', 'full', 'brief'")),
    "no number": ((*RUN, "--children", "many"), ("--children", "whole number")),
    "bad pattern": ((*RUN, "--answer-pattern", "("), ("answer_pattern", "at position 0")),
    "pattern with too large a count": ((*RUN, "--answer-pattern", "a{99999999999}"), ("answer_pattern", "too large")),
    "unknown option": ((*RUN, "--childern", "3"), ("--childern", "--children")),
    "no task": (("emergence",), ("TASK",)),
    "empty task": (("emergence", "  ", "--model", MODEL), ("the task is empty",)),
    "empty stdin": (("emergence", "-", "--model", MODEL), ("the task is empty", "standard input")),
    "missing task file": (("emergence", "@nowhere.txt", "--model", MODEL), ("nowhere.txt", "does not exist")),
    "binary task file": (("emergence", "@binary.bin", "--model", MODEL), ("binary.bin", "not UTF-8 text")),
    "10 MB task": (("emergence", "@big.txt", "--model", MODEL), ("10 MB", "big.txt")),
    "1.5 MB task": (("emergence", "@long.txt", "--model", MODEL), ("1,500,000 characters", "documents (sources)")),
    "unknown provider": (("emergence", TASK, "--model", "opnai:gpt"), ("opnai", "openai")),
    "unknown model": (("emergence", TASK, "--model", "smollm2"), ("smollm2",)),
    "unknown local model": (("emergence", TASK, "--model", "local:nothing"), ("nothing", "smollm2-135m")),
    "missing gguf": (("emergence", TASK, "--model", "local:./nothing.gguf"), ("nothing.gguf",)),
    "no gguf": (("emergence", TASK, "--model", "local:binary.gguf"), ("binary.gguf",)),
    "empty model": (("emergence", TASK, "--models", "a:b,,c:d"), ("empty", "--models")),
    "two ways of models": ((*RUN, "--models", "ollama:x"), ("--model and --models",)),
    "unknown model that nobody is dealt": (("solo", TASK, "--models", f"{MODEL},nosuch:1"), ("nosuch",)),
    "agent spelt badly": ((*RUN, "--agent", "L2N1"), ("--agent", "ID=MODEL", "L1N1, L2N1")),
    "agent without model": ((*RUN, "--agent", "L2N1="), ("ID=MODEL",)),
    "unknown agent": ((*RUN, "--agent", "L9N9=ollama:x"), ("L9N9", "L1N1, L2N1")),
    "agent twice": ((*RUN, "--agent", "L2N1=ollama:x", "--agent", "L2N1=ollama:y"), ("two models",)),
    "no encoder": ((*RUN, "--similarity", "embedding"), ("--encoder",)),
    "unknown encoder": ((*RUN, "--encoder", "nobody:x"), ("nobody:x",)),
    "unknown panel": ((*RUN, "--panel", "polcy"), ("polcy", "policy")),
    "broken panel": ((*RUN, "--panel", "broken.toml"), ("broken.toml", "TOML")),
    "panel and persona": ((*RUN, "--panel", "policy", "--persona", "x"), ("--panel and --persona",)),
    "empty persona": ((*RUN, "--persona", " "), ("persona 1",)),
    "missing source": ((*RUN, "--source", "nowhere.md"), ("nowhere.md", "does not exist")),
    "binary source": ((*RUN, "--source", "binary.bin"), ("binary.bin", "not UTF-8 text")),
    "empty source": ((*RUN, "--source", "empty.txt"), ("empty.txt", "empty")),
    "directory without text": ((*RUN, "--source", "barren"), ("barren", "no text")),
    "source for nobody": ((*RUN, "--source", "L9N9=file"), ("L9N9", "ID=FILE")),
    "source of an agent that is not chosen yet": (
        ("ask", TASK, "--model", MODEL, "--source", "L2N1=file"),
        ("nor an agent 'L2N1'", "name a protocol: consilience emergence TASK --source ID=FILE"),
    ),
    "missing prompts": ((*RUN, "--prompts", "nowhere"), ("nowhere",)),
    "unknown prompt": ((*RUN, "--prompts", "prompts"), ("unknown.j2",)),
    "seat of nobody": (
        ("compare", TASK, "--model", MODEL, "--source", "L2N1=file"),
        ("nor a seat 'L2N1'", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …"),
    ),
    "empty perspective": ((*RUN, "--perspectives", ""), ("a text is empty", "--perspectives")),
    "program that is a directory": (
        (*RUN, "--agent", "L2N1=exec:./barren"),
        ("'./barren' is not an executable program",),
    ),
    "program that may not be run": (
        (*RUN, "--agent", "L2N1=exec:./file -x"),
        ("'./file' is not an executable program",),
    ),
    "negative calls": ((*RUN, "--max-calls", "-1"), ("--max-calls", "-1")),
    "negative money": ((*RUN, "--max-cost", "-0.5"), ("--max-cost", "-0.5")),
    "no money at all": ((*RUN, "--max-cost", "nan"), ("--max-cost",)),
    "endless calls": ((*RUN, "--max-calls", "1" + "0" * 400), ("--max-calls", "at most 9223372036854775807")),
    "endless time": ((*RUN, "--max-time", "inf"), ("--max-seconds", "inf")),
    "endless time of one": ((*RUN, "--agent-limit", "L2N1:seconds=inf"), ("--agent-limit", "finite number")),
    "a kind twice": ((*RUN, "--agent-limit", "L2N1:calls=1,calls=2"), ("--agent-limit", "names one kind twice")),
    "tree too large": ((*RUN, "--depth", "8"), ("a tree of 3 children and depth 8", "--depth")),
    "one option": (("debate", TASK, "--option", "yes"), ("one option is no choice", "--option")),
    "hot": ((*RUN, "--temperature", "9"), ("temperature must be at most 2, not 9.0", "--temperature")),
    "no phase": ((*RUN, "--phase-limit", "nosuch:calls=2", "--dry-run"), ("no phase 'nosuch'", "leaf_respond")),
    "no index": ((*RUN, "--phase-limit", "leaf_respond/x:calls=1"), ("--phase-limit", "NAME/INDEX with a number")),
    "quorum of 2": ((*RUN, "--quorum", "2"), ("--quorum", "0 to 1")),
    "out is a file": ((*RUN, "--out", "file"), ("file", "--out DIR")),
    "out below a file": ((*RUN, "--out", "file/below"), ("file/below",)),
    "missing environment file": ((*RUN, "--env-file", "no.env"), ("no.env", "--env-file")),
    "bad environment file": ((*RUN, "--env-file", "bad.env"), ("bad.env, line 2",)),
    "question without quotation marks": (
        ("Should", "we", "reopen", "the halt?", "--dry-run"),
        ("quotation marks: consilience 'Should we reopen the halt?'",),
    ),
    "search": (("search", "railway", "halt"), ("Try: consilience sessions list railway halt",)),
    "unknown session": (("show", "r123"), ("recorded",)),
    "unknown session to resume": (("resume", "r123"), ("recorded",)),
    "unknown session to replay": (("replay", "last"), ("recorded",)),
    "unknown weights to pull": (("models", "pull", "gpt"), ("gpt", "smollm2-135m")),
    "unknown weights to remove": (("models", "rm", "gpt"), ("gpt", "smollm2-135m")),
    "unknown panel to show": (("panels", "show", "x"), ("policy",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_command_line_is_one_paragraph_and_exit_code_2(name: str, cli: Cli, town: Town, here: Path) -> None:
    _files(here)
    (here / "binary.gguf").write_bytes(b"no weights")
    arguments, output = MISTAKES[name]
    result = cli(*arguments)
    assert result.exit_code == 2, result.output
    for words in output:
        assert words in result.stderr, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Value error" not in result.stderr
    assert sum(line.startswith("Error: ") for line in result.stderr.splitlines()) == 1
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert recorded() == []
    assert town.requests == []


ERROR = Path(__file__).parent.parent.parent / "docs" / "schema" / "error.schema.json"


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_command_line_is_json_with_the_option(name: str, cli: Cli, town: Town, here: Path) -> None:
    _files(here)
    (here / "binary.gguf").write_bytes(b"no weights")
    arguments, expected = MISTAKES[name]
    result = cli(*arguments, "--json")
    output = json.loads(result.stdout)
    jsonschema.validate(output, json.loads(ERROR.read_text()))
    assert (result.exit_code, output["exit_code"], output["session"]) == (2, 2, None)
    for words in expected:
        assert words in f"{output['what']} {output['where']} {output['do']}"
    assert output["what"] in result.stderr


def test_task_text_like_json_option_does_not_switch_to_json(cli: Cli, town: Town) -> None:
    result = cli("emergence", "--model", "nosuch", "--", "--json")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model = ", "not valid TOML"),
        ("a." * 5_000 + "a = 1", "A key has more than 32 parts"),
        ("a = " + "[" * 20_000, "nested too deeply"),
        ("modle = 'x'", "Did you mean 'model'?"),
        ("model = 3", "must be a name"),
        ("confirm_above = 'much'", "number of dollars"),
        ("confirm_above = -1", "number of dollars"),
        ("emergence = 3", "the settings of emergence must be a table"),
        ("[emergnce]\nchildren = 3", "Did you mean 'emergence'?"),
        ("[emergence]\nchild = 3", "Did you mean 'children'?"),
        ("[emergence]\nchildren = 'many'", "children"),
        ("[emergence]\ndepth = 1", "depth"),
        ("[emergence]\ndepth = 8", "a tree of 3 children and depth 8"),
    ],
)
def test_invalid_configuration_is_one_line_that_names_file_and_key(
    text: str, expected: str, cli: Cli, town: Town, here: Path
) -> None:
    (here / "consilience.toml").write_text(text)
    result = cli("emergence", TASK)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "consilience.toml" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert recorded() == []


def test_a_missing_key_is_named_before_anything_is_recorded(cli: Cli) -> None:
    result = cli("emergence", TASK, "--model", "openai:gpt-4o", "--yes")
    assert result.exit_code == 2
    assert "OPENAI_API_KEY" in result.stderr.splitlines()[-1]
    assert recorded() == []


def test_damaged_weights_are_reported_before_anything_is_recorded(
    cli: Cli, town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "other"
    (home / "weights").mkdir(parents=True)
    (home / "weights" / "smollm2-135m.gguf").write_bytes(b"GGUF and then nothing")
    monkeypatch.setenv("CONSILIENCE_HOME", str(home))
    monkeypatch.setattr("importlib.util.find_spec", _as_if_installed(__import__("importlib.util").util.find_spec))
    result = cli("emergence", TASK, "--model", "local:smollm2-135m")
    assert result.exit_code == 2
    assert "damaged" in result.stderr
    assert "consilience models pull smollm2-135m" in result.stderr
    assert recorded() == []


def _as_if_installed(find: Callable[..., object]) -> Callable[..., object]:
    return lambda name, *rest: object() if name == "xllamacpp" else find(name, *rest)


def test_a_runtime_that_is_not_installed_is_named(cli: Cli, town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "xllamacpp" else find(name, *rest)
    )
    result = cli("emergence", TASK, "--model", "local")
    assert result.exit_code == 2
    assert "pip install 'consilience[local]'" in result.stderr


def test_unwritable_journal_is_reported(cli: Cli, town: Town, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").write_text("x")
    monkeypatch.setenv("CONSILIENCE_HOME", str(here / "file" / "below"))
    result = cli(*RUN)
    assert result.exit_code == 2
    assert "the journal cannot be stored there: a file is in its way" in result.stderr
    assert str(here / "file") in result.stderr
    assert "CONSILIENCE_HOME" in result.stderr
    assert town.requests == []


def test_file_that_is_not_a_journal_is_refused(cli: Cli, town: Town, home: Path) -> None:
    (home / "journal.db").write_text("This is no database, and long enough to be taken for one. " * 20)
    for command in (RUN, ("show", "last"), ("sessions", "list")):
        result = cli(*command)
        assert result.exit_code == 2, command
        assert "the journal cannot be used" in result.stderr


def test_invalid_model_error_names_its_variable_or_file(cli: Cli, town: Town, here: Path) -> None:
    result = cli("emergence", TASK, env={"CONSILIENCE_MODEL": "opnai:x"})
    assert "Where: CONSILIENCE_MODEL is set." in result.stderr
    (here / "consilience.toml").write_text('model = "opnai:x"')
    assert "Where: consilience.toml names it." in cli("emergence", TASK).stderr
