"""Errors as a paragraph and an exit code."""

from __future__ import annotations

import json
import signal

import pytest

from consilience.cli.errors import Declined, StoppedBySignal, exit_code_of
from consilience.domain.errors import (
    ConsilienceError,
    ReplayMiss,
    RequestMismatch,
    SessionBusy,
    SessionWaiting,
    SettingsError,
    StoreUnusable,
    UnknownName,
)

RESUME = "consilience resume r1"


@pytest.mark.parametrize(
    ("error", "code", "expected", "resumable"),
    [
        (
            SettingsError("too deep", where="depth", do="Give less."),
            2,
            "Error: too deep. Where: depth. Give less.",
            True,
        ),
        (UnknownName("no such thing"), 2, "Error: no such thing.", True),
        (StoreUnusable("the disk is full"), 2, "Error: the disk is full.", True),
        (SessionBusy("process 7 runs it"), 2, "Error: process 7 runs it.", False),
        (
            SessionWaiting("r1", ("round-1/ask/L2N1",)),
            5,
            "Waiting: session r1 needs an answer to round-1/ask/L2N1.",
            True,
        ),
        (RequestMismatch("the key differs"), 1, "Error: the key differs", True),
        (ReplayMiss("not there"), 1, "Error: not there", True),
        (ConsilienceError("odd"), 1, "Error: odd", True),
        (KeyError("x"), 1, "Error: this is a defect in consilience, not a mistake of yours: KeyError: 'x'.", True),
        (KeyboardInterrupt(), 130, "Interrupted.", True),
        (StoppedBySignal(signal.SIGTERM), 143, "Stopped by SIGTERM.", True),
    ],
)
def test_exit_code_and_message_follow_the_error(
    error: BaseException, code: int, expected: str, resumable: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(error, session="r1") == code
    err = capsys.readouterr().err
    assert err.startswith(expected)
    assert len(err.splitlines()) == 1
    assert (RESUME in err) == resumable
    exit_code_of(error)
    assert (RESUME in capsys.readouterr().err) == (code == 5)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SettingsError("too deep", where="depth", do="Give less."), (2, "too deep", "depth", "Give less.")),
        (ReplayMiss("not\nthere"), (1, "not there", "", "")),
        (KeyError("x"), (1, "a defect in consilience: KeyError: 'x'", "", "")),
        (KeyboardInterrupt(), (130, "interrupted", "", "")),
        (StoppedBySignal(signal.SIGTERM), (143, "stopped by SIGTERM", "", "")),
        (Declined("Nothing was spent."), (2, "Nothing was spent.", "", "")),
    ],
)
def test_failure_is_printed_as_json(
    error: BaseException, expected: tuple[int, str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, what, where, do = expected
    assert exit_code_of(error, as_json=True) == code
    fields = {"exit_code": code, "what": what, "where": where, "do": do, "session": None}
    assert json.loads(capsys.readouterr().out) == fields
    exit_code_of(error, session="r1", as_json=True)
    go_on = f"{do} Resume with: {RESUME}".strip()
    assert json.loads(capsys.readouterr().out) == {**fields, "do": go_on, "session": "r1"}


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize(
    "error", [UnknownName("no model 'plum-wintermute-4410'"), RuntimeError("plum-wintermute-4410 did not fit")]
)
def test_key_in_a_provider_error_is_not_printed(
    error: BaseException, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "plum-wintermute-4410")
    monkeypatch.setenv("CONSILIENCE_DEBUG", debug)
    exit_code_of(error, session="r1", as_json=True)
    out, err = capsys.readouterr()
    assert "plum" not in out + err
    assert "***" in err
    assert RESUME in err


def test_control_characters_in_an_error_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(ConsilienceError("it said \x1b[2J\x9b31m\u202eno")) == 1
    assert capsys.readouterr().err == "Error: it said [2J31mno\n"
