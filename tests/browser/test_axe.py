"""axe finds nothing on any page: light and dark, at the widths of a phone, a laptop and a large screen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import Gate, Reader
from browser.steps import LINES, button, debate_of_two_cruxes, finished, look, submit, write
from browser.test_hostile_texts import CASES
from cli.loopback import Provider
from consilience.journal.sqlite import SqliteStore
from consilience.reporting.record import read_record
from consilience.reporting.summary import summary_page
from server.served import Served, environment_of, serving

pytestmark = pytest.mark.processes
SOURCES = [{"name": "minutes.md", "text": LINES}]
SEATED = {"protocol": "vote", "settings": {"votes": 2}, "models": ["openai-chat:stub", "human"]}
RUNNING = dict.fromkeys(CASES, 3) | {"solo": 0, "vote": 1, "review": 1}
"""Answers that a session of each protocol has when its page is looked at while it runs."""


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize(("protocol", "answers"), RUNNING.items())
def test_axe_finds_nothing_on_the_pages_of_a_session(
    reader: Reader, served: Served, gate: Gate, tmp_path: Path, axe: Any, protocol: str, answers: int
) -> None:
    session = served.begin(protocol=protocol, settings=CASES[protocol], sources=SOURCES)
    reader.open(served, session)
    if answers:
        gate.let(answers)
    reader.until(f"document.querySelector('progress')?.value >= {answers}")
    look(axe, reader)
    gate.let(10_000)
    served.wait(session)
    for path in ("", "/at/9"):
        reader.open(served, session, path)
        look(axe, reader)
    views = re.findall(r'href="(/sessions/[^"/]+/views/[^"]+)"', reader.page.content())
    for view in views:
        reader.go(served.url + view)
        look(axe, reader)
    file = tmp_path / "report.html"
    file.write_text(served.request("GET", f"/api/sessions/{session}/export?format=html")[1])
    reader.go(file.as_uri())
    look(axe, reader)


def test_axe_finds_nothing_on_a_map_of_cruxes(reader: Reader, served: Served, tmp_path: Path, axe: Any) -> None:
    session = debate_of_two_cruxes(tmp_path)
    reader.open(served, session)
    assert reader.page.locator("#crux-map svg a").count() == 2
    look(axe, reader)
    file = tmp_path / "report.html"
    file.write_text(served.request("GET", f"/api/sessions/{session}/export?format=html")[1])
    reader.go(file.as_uri())
    assert reader.page.locator("#crux-map svg a").count() == 2
    look(axe, reader)


def test_axe_finds_nothing_on_the_pages_around_sessions(
    browser: Any, reader: Reader, served: Served, gate: Gate, axe: Any
) -> None:
    page = reader.page
    waiting = served.begin(**SEATED)
    gate.let(10_000)
    first = finished(served, protocol="debate", settings={"debaters": 2, "max_messages": 24}, sources=SOURCES)
    second = finished(served, protocol="vote", settings={"votes": 2})
    reader.go(served.url)
    look(axe, reader)
    page.locator("#task").evaluate("field => field.required = false")
    submit(reader, button(reader, "Show the plan"))  # nothing is typed
    assert page.locator(".problem").count()
    look(axe, reader)
    write(reader, page.locator("#task"), "Cats or dogs?")
    submit(reader, button(reader, "Show the plan"))
    look(axe, reader)
    shared, opinion = (
        served.post(f"/api/sessions/{first}/share", {"days": 1, "asks": True}, 201)["url"] for _ in range(2)
    )
    seat = served.post(f"/api/sessions/{waiting}/seats/V2/link", {"days": 1}, 201)["url"]
    call = re.findall(rf'href="(/sessions/{first}/calls/[^"?]+)"', served.request("GET", f"/sessions/{first}/calls")[1])
    for address in (
        "/sessions",
        "/sessions?q=nothing+like+it",
        "/sessions/none",
        f"/sessions/{waiting}",
        f"/sessions/{first}/compare/{second}",
        f"/sessions/{first}/calls",
        call[0],
        f"/sessions/{first}/documents/1",
        f"/sessions/{first}/fork",
        f"/sessions/{first}/tell",
        f"/sessions/{first}/links",
        f"/sessions/{first}/delete",
        f"/sessions/{first}?before=9",
        seat.removeprefix(served.url),
        shared.removeprefix(served.url),
        "/share/none",
        "/seat/none",
    ):
        reader.go(served.url + address)
        look(axe, reader)
    reader.go(opinion)
    page.locator("[name=vote]").first.evaluate("field => field.form.noValidate = true")
    submit(reader, button(reader, "Give it"))  # nothing is chosen
    assert page.locator("#vote-wrong").count()
    look(axe, reader)
    page.locator("[name=vote]").first.check()
    write(reader, page.locator("#objection"), "Who pays for it?")
    submit(reader, button(reader, "Give it"))
    reader.has("blockquote", "Who pays for it?")
    look(axe, reader)


def test_axe_finds_nothing_on_the_files_of_those_who_were_not_there(
    reader: Reader, served: Served, gate: Gate, tmp_path: Path, axe: Any
) -> None:
    gate.let(10_000)
    session = finished(served, protocol="vote", settings={"votes": 2})
    shared = served.post(f"/api/sessions/{session}/share", {"days": 1}, 201)["url"]
    status, report = served.request("GET", f"{shared.removeprefix(served.url)}/report")
    assert status == 200
    store = SqliteStore(tmp_path / "journal.db")
    record = read_record(store, session)
    assert record.report is not None
    summary = summary_page(record.report, record)
    store.close()
    for name, page in (("report", report), ("summary", summary)):
        file = tmp_path / f"{name}.html"  # where scripts may run, which the page behind the link forbids
        file.write_text(page)
        reader.go(file.as_uri())
        look(axe, reader)


def test_axe_finds_nothing_on_the_login(reader: Reader, tmp_path: Path, model: Provider, axe: Any) -> None:
    file = tmp_path / "tokens.toml"
    add = [sys.executable, "-m", "consilience", "serve", "--token-file", str(file), "--new-owner", "anna"]
    subprocess.run(add, env=environment_of(tmp_path, model), capture_output=True, check=True)
    with serving(tmp_path, model, "--token-file", str(file)) as served:
        reader.go(f"{served.url}/sessions")
        look(axe, reader)
        write(reader, reader.page.locator("#token"), "guessed")
        submit(reader, button(reader, "Log in"))
        assert reader.page.locator("[role=alert]").count()
        look(axe, reader)
