"""What the page of a session draws of each protocol while it runs, in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import Gate, Reader
from browser.steps import debate_of_two_cruxes, press
from browser.test_session_page import DEBATE, EMERGENCE, check
from server.served import Served, typed

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


CODE = 'def first(values):\n    return values[1]\n\n\ndef save(path, text):\n    open(path, "w").write(text)\n'
REVIEW = {
    "protocol": "review",
    "settings": {"max_iterations": 2},
    "task": "Review it.",
    "sources": [{"name": "first.py", "text": CODE}, {"name": "notes.md", "text": "It is so.\n"}],
}
FINDING = {
    "severity": "major",
    "category": "bounds",
    "document": "S1",
    "line": 2,
    "quotation": "return values[1]",
    "claim": "The first value is at index 0.",
    "check": {"kind": "read", "text": "line 2"},
}


def reviewing(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
    """A reply as `typed` gives it; in the reviews of red one finding, in those of blue none, of a judge a refutation."""
    status, answer = typed(body, headers)
    message = answer["choices"][0]["message"]  # type: ignore[index]
    value = json.loads(message["content"]) if message["content"].startswith("{") else {}
    if "findings" in value:
        is_red = any("You are red:" in str(sent["content"]) for sent in body["messages"])
        value |= {"findings": [FINDING] if is_red else [], "vote": "reject", "reason": "A sealed reason."}
    for verdict in value.get("verdicts", ()):
        verdict |= {"verdict": "refute", "reason": "It is meant so."}
    message["content"] = json.dumps(value) if value else message["content"]
    return status, answer


def holds(place: str, words: str) -> str:
    """A script that says whether a part of the page has some words."""
    return f"[...document.querySelectorAll({place!r})].some(part => part.textContent.includes({words!r}))"


def above(reader: Reader, upper: str, lower: str) -> bool:
    """Return whether one part of the page stands above another."""
    tops = [reader.page.locator(place).first.bounding_box()["y"] for place in (upper, lower)]
    return bool(tops[0] < tops[1])


def test_review_that_runs_shows_findings_by_file_with_votes_and_gates(
    reader: Reader, served: Served, gate: Gate
) -> None:
    gate.answers = reviewing
    session = served.begin(**REVIEW)
    reader.open(served, session)
    reader.has(".column .composing", "is composing")
    reader.has(".column .badge", "0 of 2 reviews")
    gate.let(2)  # whichever of the two is first
    reader.has("#report h3, #report h4", "first.py")
    reader.has("#report pre", "return values[1]")
    reader.has("#report", "not judged")
    assert above(reader, "#report pre", "#messages"), "the picture does not move down with every message"
    assert "A sealed reason." not in reader.page.locator("#report").inner_text()
    for place, words in (
        ("#gates", "iteration 1"),
        ("#findings", "first.py"),
        ("#report", "refuted by"),
        ("#report", "It is meant so."),
    ):
        for _ in range(20):
            if reader.page.evaluate(holds(place, words)):
                break
            gate.let(1)
            reader.page.wait_for_timeout(700)  # a page is folded at most four times a second
        reader.has(place, words)
        assert reader.page.locator("#live").get_attribute("data-layout") == "running"
    check(reader)
    gate.let(100)
    reader.watch_to_the_end()
    reader.has("#report", "refuted by")


def test_refinement_that_runs_shows_its_parts_its_passes_and_their_differences(
    reader: Reader, served: Served, gate: Gate
) -> None:
    session = served.begin(protocol="refinement", settings={"max_passes": 3}, task="A post on batteries.")
    reader.open(served, session)
    reader.has(".column .badge", "not written yet")
    gate.let(1)
    reader.has("#flow", "pass 1")
    for place, words in (
        (".column .badge", "after pass 1"),
        ("#passes", "pass 1"),
        ("#differences, #report", "Pass 2"),
    ):
        step_until(reader, gate, holds(place, words))
    assert reader.page.locator("#live").get_attribute("data-layout") == "running"
    reader.has("#report", "What the passes changed")
    assert reader.page.locator("#report pre ins, #report pre").first.inner_text()
    assert above(reader, "#passes", "#messages")
    check(reader)


def test_crux_on_the_map_leads_to_its_message_on_the_same_page(reader: Reader, served: Served, tmp_path: Path) -> None:
    session = debate_of_two_cruxes(tmp_path)
    nodes = reader.page.locator("#crux-map svg a")
    for n in range(2):
        reader.open(served, session)
        assert nodes.count() == 2
        assert str(nodes.nth(n).get_attribute("aria-label")).startswith(f"{n + 1}. Would ")
        press(reader, nodes.nth(n))
        anchor = nodes.nth(n).get_attribute("href").rpartition("#")[2]
        assert reader.page.evaluate("location.hash") == f"#{anchor}"
        assert reader.page.locator(f"#log #{anchor}").evaluate("e => e.matches(':target')")
    assert reader.page.url.startswith(f"{served.url}/sessions/{session}#"), "the page was not left"
    check(reader)


def test_replay_shows_who_was_composing_then(reader: Reader, served: Served, gate: Gate) -> None:
    session = served.begin(**EMERGENCE)
    reader.open(served, session)
    reader.has("#seats", "composing")
    reader.page.wait_for_timeout(300)  # so that the replies are later than the questions
    gate.let(1000)
    reader.watch_to_the_end()
    reader.open(served, session, "/at/2")
    leaf = reader.page.locator("#seats tr").nth(2)
    assert re.search(r"composing \(for [\d.]+ s\), 0 replies", leaf.inner_text())
    assert "waits for analytical (L2N1), creative (L2N2)" in reader.page.locator("#seats tr").nth(1).inner_text()
    reader.has("#tree", "composing")
    total = int(reader.page.locator("#slider").get_attribute("max"))
    states = set()
    reader.page.locator("#slider").focus()
    for n in range(3, total):
        reader.page.keyboard.press("ArrowRight")
        reader.until(f"location.pathname.endsWith('/at/{n}')")
        states.add(re.sub(r" \(for .*\)", "", leaf.locator("td").first.inner_text()))
    assert "composing, 1 reply" in states
    assert any(state.startswith("waits for integrator (L1N1), ") for state in states)
    check(reader)
