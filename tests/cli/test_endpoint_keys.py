"""Which endpoints get the user's key: the real command in directories of other people, against servers that note each key."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import consilience
from cli.loopback import Provider, command, prose, provider
from cli.test_privacy import PYTHONPATH
from consilience.domain.errors import Rejected
from consilience.models.embeddings import ProviderEncoder

KEY = "zq7-wintermute-plum-4410"
QUESTION = "Should the market be daily?"
TREE = ("emergence", QUESTION, "--children", "2", "--max-rounds", "1", "--yes")
KILL = {"CONSILIENCE_FAULT": "after_commit@leaf_respond/1#2"}
NOTHING = "Bearer api-key-not-set"


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home), "HOME": str(here)}
    return {**own, "CONSILIENCE_ENDPOINT_KEY": KEY, "OPENAI_API_KEY": "sk-of-openai-0123456789"}


@contextmanager
def listening(status: int = 200) -> Iterator[tuple[Provider, list[str]]]:
    """Yield a server and the `Authorization` of each request to it."""
    heard: list[str] = []

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        assert not [
            name for name, value in headers.items() if name != "authorization" and (KEY in value or "sk-" in value)
        ]
        heard.append(headers.get("authorization", ""))
        return prose(body, headers) if status == 200 else (status, {"error": {"message": "who are you?"}})

    with provider(answer) as server:
        yield server, heard


def names(path: Path, model: str, more: str = "") -> None:
    """Write a configuration file that names a model."""
    (path / "consilience.toml").write_text(f"model = {json.dumps(model)}\n{more}")


def panel(here: Path, model: str) -> Path:
    """Write the file of a panel whose one persona has a model."""
    persona = f'name = "CFO"\ndescription = "You ask who pays."\nmodel = {json.dumps(model)}\n'
    (here / "panel.toml").write_text(f'name = "p"\ndescription = "d"\n[[personas]]\n{persona}')
    return here / "panel.toml"


@pytest.mark.parametrize(
    "run",
    [
        ("solo", QUESTION),
        ("vote", QUESTION, "--votes", "2"),
        ("solo", QUESTION, "--reviews", "1", "--quiet"),
        ("compare", QUESTION, "--protocols", "solo", "--budget-calls", "1"),
        ("solo", QUESTION, "--panel", "auto"),
        ("review", "code.py"),
    ],
)
def test_a_stranger_s_directory_gets_no_key(run: tuple[str, ...], env: dict[str, str], here: Path) -> None:
    (here / "code.py").write_text("def first(values):\n    return values[1]\n")
    with listening() as (server, heard):
        table = f'[endpoints."{server.url}/v1"]\nkey_variable = "OPENAI_API_KEY"\nfree = true\n'
        names(here, f"{server.url}/v1#m", table)
        done = command(*run, "--yes", env=env, cwd=here)
    assert heard, done.stderr
    assert set(heard) == {NOTHING}
    assert (f"No key is sent to {server.url}/v1, which you have not named." in done.stderr) == ("--quiet" not in run)


@pytest.mark.parametrize(
    "model",
    [
        "{0}/v1/#m",
        "HTTP{1}/v1#m",
        "http://127.0.0.1:9/v1#m|{0}/v1#m",
        " {0}/v1#m",
        "{0}/v2#m",
        "http://localhost:{2}/v1#m",
    ],
)
def test_no_spelling_of_another_address_gets_the_key(model: str, env: dict[str, str], here: Path, home: Path) -> None:
    with listening() as (server, heard):
        port = server.url.rpartition(":")[2]
        names(here, model.format(server.url, server.url.removeprefix("http"), port))
        names(home, "https://corp.example/v1#m", f'[endpoints."{server.url}"]\nfree = true\n')
        done = command(
            "solo", QUESTION, "--yes", env={**env, "CONSILIENCE_FREE_ENDPOINTS": f"{server.url}/v10"}, cwd=here
        )
    assert heard, done.stderr
    assert set(heard) == {NOTHING}


def test_an_endpoint_without_a_key_works_from_a_directory_s_file(env: dict[str, str], here: Path) -> None:
    del env["CONSILIENCE_ENDPOINT_KEY"]
    with listening() as (server, heard):
        names(here, f"{server.url}/v1#m")
        done = command("solo", QUESTION, "--yes", "--json", env=env, cwd=here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answer"]
    assert heard == [NOTHING]
    assert "No key" not in done.stderr


@pytest.mark.parametrize(
    "way",
    [
        "--model",
        "--models",
        "--agent",
        "--key-to",
        "CONSILIENCE_MODEL",
        "CONSILIENCE_FREE_ENDPOINTS",
        "env file",
        "model",
        "endpoints",
    ],
)
def test_an_endpoint_that_the_user_names_gets_the_key(way: str, env: dict[str, str], here: Path, home: Path) -> None:
    with listening() as (server, heard):
        address, name = f"{server.url}/v1", f"{server.url}/v1#m"
        names(here, name)
        options = {"--model": name, "--models": f"{name},{name}", "--agent": f"S1={name}", "--key-to": f"{address}/"}
        run = ["solo", QUESTION, "--yes", *((way, options[way]) if way in options else ())]
        if way.startswith("CONSILIENCE"):
            env[way] = name if way == "CONSILIENCE_MODEL" else address
        elif way == "env file":
            (here / "my.env").write_text(f"CONSILIENCE_MODEL={name}\n")
            run += ["--env-file", "my.env"]
        elif way == "model":
            names(home, f"local|{address}#other")
        elif way == "endpoints":
            (home / "consilience.toml").write_text(
                f'[endpoints."{address}#m"]\nkey_variable = "CONSILIENCE_ENDPOINT_KEY"\n'
            )
        done = command(*run, env=env, cwd=here)
    assert heard == [f"Bearer {KEY}"], done.stderr
    assert "No key is sent" not in done.stderr


def test_a_panel_file_names_no_endpoint(env: dict[str, str], here: Path) -> None:
    with listening() as (server, heard):
        name = f"{server.url}/v1#m"
        run = ("solo", QUESTION, "--yes", "--panel", str(panel(here, name)))
        done = command(*run, env=env, cwd=here)
        assert heard == [NOTHING]
        assert "No key is sent" in done.stderr
        command(*run, "--agent", f"S1={name}", env=env, cwd=here)
        command(*run, "--key-to", f"{server.url}/v1", env=env, cwd=here)
    assert heard == [NOTHING, f"Bearer {KEY}", f"Bearer {KEY}"]


def test_listing_the_models_of_an_unnamed_endpoint_sends_no_key(env: dict[str, str], here: Path) -> None:
    with provider(listing={"data": [{"id": "large"}]}, key=KEY) as server:
        names(here, f"{server.url}/v1")
        assert "large" not in command("solo", QUESTION, "--yes", env=env, cwd=here).stderr
        shown = command("panels", "show", str(panel(here, f"{server.url}/v1")), env=env, cwd=here)
        assert "names an endpoint without a model" in shown.stderr
        assert "large" not in shown.stderr
        asked = command("solo", QUESTION, "--yes", "--model", f"{server.url}/v1", env=env, cwd=here)
    assert "large" in asked.stderr


def test_a_recorded_endpoint_gets_no_key(env: dict[str, str], here: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with listening() as (server, heard):
        names(here, f"{server.url}/v1#m")
        killed = command(*TREE, env={**env, **KILL}, cwd=here)
        assert killed.returncode == -signal.SIGKILL
        resumed = command("resume", "last", "--yes", env=env, cwd=elsewhere)
        assert resumed.returncode == 0, resumed.stderr
        assert f"give --key-to {server.url}/v1, or write" in resumed.stderr
        forked = command("fork", "last", "--at", "0", "--yes", env=env, cwd=elsewhere)
        assert "No key is sent" in forked.stderr
        assert set(heard) == {NOTHING}
        heard.clear()
        command(
            "fork", "last", "--at", "0", "--yes", "--replace-agent", f"L2N1={server.url}/v1#m", env=env, cwd=elsewhere
        )
        assert set(heard) == {f"Bearer {KEY}"}
        heard.clear()
        replayed = command("replay", "last", env=env, cwd=elsewhere)
        assert (replayed.returncode, heard) == (0, [])


def test_a_resume_gets_the_key_by_the_option(env: dict[str, str], here: Path) -> None:
    with listening() as (server, heard):
        killed = command(*TREE, "--model", f"{server.url}/v1#m", env={**env, **KILL}, cwd=here)
        assert killed.returncode == -signal.SIGKILL
        resumed = command("resume", "last", "--yes", "--key-to", f"{server.url}/v1", env=env, cwd=here)
    assert resumed.returncode == 0, resumed.stderr
    assert set(heard) == {f"Bearer {KEY}"}


@pytest.mark.parametrize("named", ["by the option", "in the environment"])
def test_an_interrupted_command_prints_the_option(named: str, env: dict[str, str], here: Path) -> None:
    with listening() as (server, _):
        run = ("solo", QUESTION, "--yes", "--agent", "S1=human", "--model", f"{server.url}/v1#m")
        if named == "in the environment":
            env["CONSILIENCE_FREE_ENDPOINTS"] = f"{server.url}/v1"
        done = command("vote", *run[1:3], "--votes", "2", "--agent", "V1=human", *run[5:], env=env, cwd=here)
    assert done.returncode == 5, done.stderr
    assert (f"--key-to {server.url}/v1" in done.stderr) == (named == "by the option")


@pytest.mark.parametrize("address", ["127.0.0.1:9/v1", "#m", ""])
def test_key_to_something_else_is_refused(address: str, env: dict[str, str], here: Path) -> None:
    refused = command("solo", QUESTION, "--yes", "--model", "local", "--key-to", address, env=env, cwd=here)
    assert refused.returncode == 2
    assert "--key-to" in refused.stderr


def test_a_refusal_without_a_key_says_why(env: dict[str, str], here: Path) -> None:
    with listening(status=401) as (server, heard):
        names(here, f"{server.url}/v1#m")
        done = command("solo", QUESTION, "--yes", "--json", env=env, cwd=here)
        assert done.returncode == 1, done.stderr
        assert heard == [NOTHING]
        for text in (done.stdout, done.stderr):
            assert f"No key is sent to {server.url}/v1, which you have not named." in text
            assert f"--key-to {server.url}/v1" in text
        named = command("solo", QUESTION, "--yes", "--json", "--model", f"{server.url}/v1#m", env=env, cwd=here)
    assert "Set CONSILIENCE_ENDPOINT_KEY to a valid key." in named.stdout
    assert KEY not in done.stdout + done.stderr + named.stdout + named.stderr


def test_a_redirect_does_not_carry_the_key(env: dict[str, str], here: Path) -> None:
    with listening() as (other, heard), provider() as server:
        server.answer = lambda body, headers: (307, {"error": "elsewhere"})
        server.headers["Location"] = f"{other.url}/v1/chat/completions"
        done = command("solo", QUESTION, "--yes", "--model", f"{server.url}/v1#m", env=env, cwd=here)
    assert (done.returncode, heard) == (1, [])
    assert len(server.asked) == 1


def test_plan_doctor_and_consent_name_the_endpoint(env: dict[str, str], here: Path, home: Path) -> None:
    with listening() as (server, heard):
        names(here, f"{server.url}/v1#m")
        note = f"No key is sent to {server.url}/v1, which you have not named."
        for run in (("solo", QUESTION), ("compare", QUESTION, "--protocols", "solo")):
            assert note in " ".join(command(*run, "--dry-run", env=env, cwd=here).stdout.split())
            plan = json.loads(command(*run, "--dry-run", "--json", env=env, cwd=here).stdout)
            assert [words.startswith(note) for words in plan["withheld_keys"]] == [True]
        refused = command("solo", QUESTION, env=env, cwd=here)
        assert refused.returncode == 2
        assert note in refused.stderr
        assert note in command("doctor", env=env, cwd=here).stdout
        (home / "consilience.toml").write_text(
            f'[endpoints."{server.url}/v1"]\nkey_variable = "CONSILIENCE_ENDPOINT_KEY"\n'
        )
        assert "No key" not in command("doctor", env=env, cwd=here).stdout
        named = json.loads(command("solo", QUESTION, "--dry-run", "--json", env=env, cwd=here).stdout)
    assert (named["withheld_keys"], heard) == ([], [])


def test_an_address_is_quoted_for_the_shell(env: dict[str, str], here: Path) -> None:
    names(here, "http://127.0.0.1:9/$(touch${IFS}pwned)#m")
    plan = command("solo", QUESTION, "--dry-run", "--json", env=env, cwd=here).stdout
    assert "--key-to 'http://127.0.0.1:9/$(touch${IFS}pwned)'" in json.loads(plan)["withheld_keys"][0]


class TestPython:
    @pytest.fixture(autouse=True)
    def key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONSILIENCE_ENDPOINT_KEY", KEY)

    async def test_a_program_names_the_models_that_it_passes(self) -> None:
        for given in ("name", "list", "mapping", "panel"):
            with listening() as (server, heard):
                name = f"{server.url}/v1#m"
                persona = consilience.Persona(name="CFO", description="You ask who pays.", model=name)
                panel = consilience.Panel(name="p", description="d", personas=(persona,))
                models = {"name": name, "list": [name], "mapping": {"S1": name}, "panel": "local"}
                await consilience.deliberate(
                    QUESTION, consilience.Solo(), model=models[given], panel=panel if given == "panel" else None
                )
            assert heard == [f"Bearer {KEY}"]

    async def test_a_panel_s_path_and_a_recorded_session_name_nothing(self, here: Path) -> None:
        with listening() as (server, heard):
            name = f"{server.url}/v1#m"
            deliberation = consilience.Deliberation(consilience.Solo(), model="local", panel=panel(here, name))
            await deliberation.run(QUESTION, session="first")
            prepared = await deliberation.prepare(QUESTION, session="second")
            await consilience.resume(prepared)
            await consilience.fork("first", at=0)
            assert heard == [NOTHING] * 3
            await consilience.fork("first", at=0, replace={"S1": name})
            assert heard[3:] == [f"Bearer {KEY}"]

    async def test_a_declared_endpoint_gets_the_key_on_resume(self, here: Path) -> None:
        with listening() as (server, heard):
            path = panel(here, f"{server.url}/v1#m")
            deliberation = consilience.Deliberation(consilience.Solo(), model="local", panel=path)
            prepared = await deliberation.prepare(QUESTION)
            known = consilience.Endpoints().declare(f"{server.url}/v1", key_variable="CONSILIENCE_ENDPOINT_KEY")
            await consilience.resume(prepared, options=consilience.Options(endpoints=known))
        assert heard == [f"Bearer {KEY}"]

    async def test_deliberation_that_is_not_run_names_nothing(self, here: Path) -> None:
        with listening() as (server, heard):
            name = f"{server.url}/v1#m"
            consilience.Deliberation(consilience.Solo(), model=name, encoder=name)
            await consilience.deliberate(QUESTION, consilience.Solo(), model="local", panel=panel(here, name))
        assert heard == [NOTHING]

    async def test_deliberations_side_by_side_do_not_see_each_other_s_endpoints(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ANN_KEY", "of-ann-0123456789")
        with listening() as (server, heard):
            name = f"{server.url}/v1#m"
            untrusted = consilience.Deliberation(consilience.Solo(), model="local", panel=panel(here, name))
            free = consilience.Endpoints().declare(name, free=True)
            priced = consilience.Endpoints().declare(name, input_price=1000, output_price=1000, key_variable="ANN_KEY")
            reports = await asyncio.gather(
                consilience.deliberate(
                    QUESTION, consilience.Solo(), model=name, options=consilience.Options(endpoints=free)
                ),
                consilience.deliberate(
                    QUESTION, consilience.Solo(), model=name, options=consilience.Options(endpoints=priced)
                ),
                untrusted.run(QUESTION),
            )
        assert sorted(heard) == sorted([f"Bearer {KEY}", "Bearer of-ann-0123456789", NOTHING])
        costs = [report.ledger.actual.cost for report in reports]
        assert (costs[0], bool(costs[1]), costs[2]) == (0.0, True, None)

    async def test_a_recorded_encoder_gets_no_key(self) -> None:
        with listening(status=401) as (server, heard), pytest.raises(Rejected, match="No key is sent to"):
            await ProviderEncoder(f"{server.url}/v1#bge-m3").encode(["one"])
        assert heard == [NOTHING]
