"""What a Python program takes from configuration files: `model` and the endpoints of the user's own, nothing of the directory's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import consilience
from cli.loopback import prose, provider
from consilience.domain.errors import SettingsError
from consilience.journal.sqlite import SqliteStore
from consilience.testing import ScriptedModel

SOLO = consilience.Solo()


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The address of a server, and the headers of each request to it."""
    seen: list[dict[str, str]] = []

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        seen.append(headers)
        return prose(body, headers)

    with provider(answer) as serving:
        yield f"{serving.url}/v1", seen


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def write(directory: Path, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "consilience.toml").write_text(text)


def test_model_of_the_own_file_is_used_with_its_price_and_key(
    server: tuple[str, list[dict[str, str]]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, seen = server
    monkeypatch.setenv("CORP_KEY", "zq7-plum")
    table = f'[endpoints."{address}"]\ninput_price = 1000.0\noutput_price = 1000.0\nkey_variable = "CORP_KEY"\n'
    write(home, f'model = "{address}#m"\n{table}')
    report = consilience.run_sync("Why?", SOLO, limits=consilience.Limits(cost=50))
    assert [agent.model for agent in report.agents] == [f"{address}#m"]
    assert report.ledger.actual.cost
    assert [headers["authorization"] for headers in seen] == ["Bearer zq7-plum"]


def test_directory_s_file_is_not_read(server: tuple[str, list[dict[str, str]]], home: Path, here: Path) -> None:
    address, seen = server
    write(home, f'model = "{address}#own"\n[solo]\nreviews = 3\n')
    write(here, 'model = "exec:touch pwned"\nnonsense = 1\n')
    report = consilience.run_sync("Why?", SOLO)
    assert [agent.model for agent in report.agents] == [f"{address}#own"]
    assert report.settings["reviews"] == 0
    assert len(seen) == 1
    assert not (here / "pwned").exists()


def test_argument_and_environment_precede_the_own_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, 'model = "exec:false"\n')
    model = ScriptedModel(["One.", "Two."])
    assert consilience.run_sync("Why?", SOLO, model=model).answer == "One."
    monkeypatch.setenv("CONSILIENCE_MODEL", "exec:echo From the environment.")
    assert consilience.run_sync("Why?", SOLO).answer == "From the environment."
    monkeypatch.delenv("CONSILIENCE_MODEL")
    assert consilience.run_sync("Why?", SOLO).stop_reason == "failed"


def test_declaration_of_the_program_precedes_that_of_the_own_file(
    server: tuple[str, list[dict[str, str]]], home: Path
) -> None:
    address, _ = server
    write(home, f'[endpoints."{address}"]\ninput_price = 1000.0\noutput_price = 1000.0\n')
    consilience.configure_endpoint(address, free=True)
    assert consilience.run_sync("Why?", SOLO, model=f"{address}#m").ledger.actual.cost == 0


@pytest.mark.parametrize(("text", "words"), [("modle = 1\n", "'modle'"), ("model = \n", "not valid TOML")])
def test_mistake_in_the_own_file_is_reported_before_a_call(text: str, words: str, home: Path) -> None:
    write(home, text)
    model = ScriptedModel(["One."])
    with pytest.raises(SettingsError, match=words) as caught:
        consilience.run_sync("Why?", SOLO, model=model)
    assert str(home / "consilience.toml") in str(caught.value)
    assert not model.requests


async def test_resume_and_fork_know_the_price_of_the_own_file(
    server: tuple[str, list[dict[str, str]]], home: Path
) -> None:
    address, _ = server
    table = f'[endpoints."{address}"]\ninput_price = 1000.0\noutput_price = 1000.0\n'
    write(home, table)
    await consilience.Deliberation(SOLO, model=f"{address}#m").prepare("Why?", session="s")
    write(home, table.replace("1000", "2000"))
    assert (await consilience.resume("s")).ledger.actual.cost
    forked = await consilience.fork("s", at=1, limits=consilience.Limits(cost=50))
    assert forked.ledger.actual.cost


def test_program_without_a_home_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "own.db")
    monkeypatch.setenv("CONSILIENCE_HOME", "~nobody-of-that-name/x")
    assert consilience.run_sync("Why?", SOLO, model=ScriptedModel(["One."]), store=store).answer == "One."
    store.close()
