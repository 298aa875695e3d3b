"""What the page of a session draws of each protocol while it runs, in a real browser."""

from __future__ import annotations

import pytest

from browser.conftest import Gate, Reader
from browser.test_session_page import DEBATE, EMERGENCE, check
from server.served import Served

pytestmark = pytest.mark.processes


def test_debate_that_runs_shows_who_is_composing_in_which_thread(reader: Reader, served: Served, gate: Gate) -> None:
    session = served.begin(**DEBATE)
    reader.open(served, session)
    step_until(reader, gate, "document.querySelector('.column')")
    reader.has(".column .composing", "is composing (since")
    assert reader.page.locator(".column h3").first.inner_text().startswith("1. ")
    assert reader.page.locator(".column .badge").first.inner_text()
    assert reader.page.locator(".column meter").first.get_attribute("max") == "1"
    step_until(reader, gate, "document.getElementById('report')?.innerText.includes('gives up its claim')")
    check(reader)


def step_until(reader: Reader, gate: Gate, script: str) -> None:
    """Let out an answer at a time, and wait until the page counts it, until a script is true."""
    made = "document.querySelector('progress').value"
    while not reader.page.evaluate(script):
        before = reader.page.evaluate(made)
        gate.let(1)
        reader.until(f"{script} || {made} > {before}")


def test_tree_that_runs_shows_who_waits_for_whom(reader: Reader, served: Served, gate: Gate) -> None:
    session = served.begin(**EMERGENCE)
    reader.open(served, session)
    root = reader.page.locator("#seats tr", has_text="integrator")
    root.filter(has_text="waits for analytical (L2N1), creative (L2N2)").wait_for()
    reader.has("#tree", "waits for analytical")
    gate.let(4)
    root.filter(has_text="composing").wait_for()
    reader.has("#seats", "waits for integrator (L1N1)")
    check(reader)
