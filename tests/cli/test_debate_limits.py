"""Warnings, before a run, of limits that the stages of a debate before the evidence use up."""

from __future__ import annotations

import pytest

from cli.town import TASK, Cli


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        (("--max-messages", "12"), "a limit of 12 messages leaves none for the debate itself"),
        (("--max-messages", "15"), "leaves at most 2 for the debate itself"),
        (("--max-messages", "15"), "Set --max-messages to 16 or more"),
        (("--max-steps", "5"), "Set --max-steps to 16 or more"),
        (("--max-messages", "16", "--persona", "Ann", "--persona", "Bob"), ""),
        (("--max-messages", "14", "--debaters", "2"), ""),
        (("--max-calls", "28"), "need at least 29 calls"),
        (("--max-calls", "29"), ""),
        (("--max-calls", "26", "--as-is", "--no-single-call"), "need at least 27 calls"),
        ((), ""),
    ],
)
def test_plan_and_first_lines_warn_of_limits_too_small_for_a_debate(
    cli: Cli, arguments: tuple[str, ...], warned: str
) -> None:
    run = ("debate", TASK, "--model", "exec:cat", *arguments)
    refused = cli(*run)
    assert refused.exit_code == 2
    assert "Give --yes to agree" in refused.stderr
    for shown in (cli(*run, "--dry-run").stdout, refused.stderr):
        assert ("Warning: " in shown) == bool(warned)
        assert warned in shown
