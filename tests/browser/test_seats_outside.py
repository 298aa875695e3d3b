"""Seats that are answered from outside, in a real browser: a workspace's agents by tickets, and a person whose list is checked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import PATIENCE, Gate, Reader
from browser.steps import look, write
from browser.test_hostile_texts import SHORT, attacks
from browser.test_pictures import FINDING, REVIEW, above, holds, reviewing
from browser.test_session_page import check
from cli.loopback import MODEL, Provider, begin
from consilience.coordination import Workspace, claim_next, submit
from server.served import Served, environment_of

pytestmark = pytest.mark.processes


def answer_ticket(workspace: Workspace, agent: str, verdict: str) -> str:
    """Claim the next ticket of an agent and answer it with a review, or a judgement of findings; return its instructions."""
    end = time.monotonic() + PATIENCE
    while (claimed := claim_next(workspace, agent)) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    asked = claimed.instructions
    reason = f"It was read. {SHORT}"
    reply: dict[str, object] = {"verdicts": [{"finding": "F1", "verdict": verdict, "reason": reason}]}
    if '"vote"' in asked:
        reply = {"findings": [FINDING], "vote": "changes", "confidence": 0.8, "reason": "A sealed reason."}
    submit(workspace, claimed, json.dumps(reply))
    return asked


def test_review_by_agents_of_a_workspace_shows_its_tickets_and_gates(
    reader: Reader, served: Served, gate: Gate, model: Provider, tmp_path: Path, axe: Any
) -> None:
    gate.answers = reviewing
    workspace = Workspace.create(tmp_path / "shop", agents=["anna"])
    (tmp_path / "first.py").write_text(str(REVIEW["sources"][0]["text"]))
    env = environment_of(tmp_path, model)
    seat = ("--agent", "red=workspace:shop#anna", "--max-iterations", "2")
    running = begin("review", "first.py", "--model", MODEL, *seat, "--yes", env=env, cwd=tmp_path)
    try:
        session = ""
        while not session:
            session = next((one["session"] for one in served.get("/api/sessions")["sessions"]), "")
            time.sleep(0.05)
        reader.open(served, session)
        reader.has("#seats", "Tickets")
        ticket = reader.page.locator("#seats tr").filter(has=reader.page.get_by_role("cell", name="open", exact=True))
        assert "red" in ticket.inner_text()
        loaded = reader.page.evaluate("performance.timeOrigin")
        answer_ticket(workspace, "anna", "refute")
        reader.has("#seats tr", "answered")
        gate.let(1)
        reader.has("#report h3, #report h4", "first.py")
        assert "A sealed reason." not in reader.page.locator("#report").inner_text()
        gate.let(10_000)
        reader.until(holds("#gates", "iteration 1"))
        assert reader.page.locator("#live").get_attribute("data-layout") == "running", "its next ticket waits"
        assert above(reader, "#gates", "#messages")
        assert reader.page.locator("#questions").count() == 0, "a ticket is no question to a person"
        reader.until("document.getElementById('connection').textContent === ''")
        look(axe, reader)
        while reader.page.locator("#live").get_attribute("data-layout") == "running":
            if claim_waits(workspace):
                answer_ticket(workspace, "anna", "confirm")
            reader.page.wait_for_timeout(100)
        reader.watch_to_the_end()
        assert reader.page.evaluate("performance.timeOrigin") == loaded
        reader.has("#report", "first.py")
        assert attacks(reader) == {}
        check(reader)
    finally:
        running.kill()
        running.communicate()


def claim_waits(workspace: Workspace) -> bool:
    return any((workspace.path / "tickets" / "pending").iterdir())


@pytest.mark.parametrize("by_link", [False, True])
def test_long_list_of_a_person_is_checked_while_it_is_typed(
    reader: Reader, served: Served, gate: Gate, axe: Any, by_link: bool
) -> None:
    gate.answers = reviewing
    session = served.begin(**REVIEW, models={"red": "human"})
    page, address = reader.page, f"{served.url}/sessions/{session}"
    if by_link:
        address = served.post(f"/api/sessions/{session}/seats/red/link", {"days": 1}, 201)["url"]
    reader.go(address)
    now, field = page.locator("[id='field:findings-now']"), page.locator("[id='field:findings']")
    write(reader, field, "- severity: huge")
    now.filter(has_text="everity must be").wait_for()
    assert not field.evaluate("field => field.validity.valid")
    look(axe, reader)
    field.focus()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    reader.until("document.getElementById('field:findings-now').textContent === ''")
    assert field.evaluate("field => field.validity.valid")
    assert page.evaluate("document.activeElement.id") == "field:findings"
    check(reader)
