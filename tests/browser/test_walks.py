"""Every function of the pages as people use it: who asks, by keyboard alone; who holds a seat; who was not there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

from browser.conftest import Gate, Reader, new_reader
from browser.steps import LINES, begin, button, citing, drop, finished, link, make_link, press, reach, submit, write
from browser.test_session_page import SEATED
from browser.tls import tls_proxy
from cli.loopback import Provider
from reporting.test_summary import HOUSE_WORDS
from server.served import Served, environment_of, serving

pytestmark = pytest.mark.processes


def check(*readers: Reader) -> None:
    for reader in readers:
        assert reader.problems == []
        assert reader.foreign == []


def test_everything_that_is_done_is_done_by_keyboard_alone(
    reader: Reader, served: Served, gate: Gate, tmp_path: Path
) -> None:
    gate.let(10_000)
    page = reader.page
    file = tmp_path / "minutes.md"
    file.write_text(LINES)
    reader.go(served.url)
    page.keyboard.type("Cats or dogs?")
    with page.expect_file_chooser() as chooser:
        press(reader, page.locator("#sources"))
    chooser.value.set_files(file)
    reach(reader, page.locator("[name=protocol]:checked"))
    for _ in range(40):
        if page.locator("[name=protocol]:checked").get_attribute("value") == "vote":
            break
        page.keyboard.press("ArrowDown")
    press(reader, page.locator("summary", has_text="settings of vote"))
    write(reader, page.locator("[name='vote.votes']"), "2")
    parent = begin(reader)
    assert "Cats or dogs?" in page.locator("h1").inner_text()

    submit(reader, page.locator("#live-steps a", has_text="Previous"))
    reader.has("#live-state", "event")
    reach(reader, page.locator("#slider"))
    page.keyboard.press("Home")
    reader.until("location.pathname.endsWith('/at/1')")
    submit(reader, page.locator("#live-steps a", has_text="As it is now"))

    submit(reader, link(reader, "Fork it"))
    write(reader, page.locator("#at"), "0")
    write(reader, page.locator("#task"), "Cats, dogs or birds?")
    child = begin(reader)
    assert child != parent
    write(reader, page.locator("#other"), parent)
    submit(reader, button(reader, "Compare"))
    reader.has("#side-by-side", "side by side")
    assert page.locator(".side article").count() == 2
    submit(reader, link(reader, child))

    write(reader, page.locator("#follow-up"), "And fish?")
    submit(reader, button(reader, "Go on"))
    assert begin(reader) not in (parent, child)

    submit(reader, link(reader, "Links"))
    press(reader, page.locator("[name=asks]"), "Space")
    assert "/share/" in make_link(reader)
    submit(reader, button(reader, "Withdraw link 1"))
    reader.has("td", "ended")
    submit(reader, link(reader, "Back to the session"))
    with page.expect_download() as saved:
        press(reader, link(reader, "json"))
    assert saved.value.path().stat().st_size > 100
    submit(reader, page.locator("#live-actions a", has_text="Delete it"))
    press(reader, page.locator("[name=sure]"), "Space")
    submit(reader, page.locator("main form[action$=delete] button"))
    submit(reader, link(reader, "Sessions"))
    write(reader, page.locator("#q"), "birds")
    submit(reader, button(reader, "Search"))
    assert page.locator("table.sessions tbody tr").count() == 1
    check(reader)


def test_colleague_answers_by_link_in_fields_that_are_checked_and_then_passes(
    browser: Any, reader: Reader, served: Served, gate: Gate
) -> None:
    gate.let(1)  # the report of the other agent
    session = served.begin(**SEATED)
    reader.open(served, session)
    reader.has("#live-state", "Waiting")
    submit(reader, link(reader, "Links"))
    address = make_link(reader)

    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    colleague = new_reader(context)
    page = colleague.page
    colleague.go(address)
    assert "Is it so, yes or no?" in page.locator(".task").inner_text()
    assert page.locator("a").count() == 0, "the link opens nothing else"
    press(colleague, button(colleague, "Answer"))  # nothing is sent: a field is empty
    assert page.evaluate("document.activeElement.id") == "field:text"
    assert page.evaluate("document.activeElement.validity.valueMissing")
    write(colleague, page.locator("[id='field:text']"), "Yes, since spring.")
    assert page.evaluate("document.activeElement.validity.valid")
    write(colleague, page.locator("[id='field:points.1']"), "It was measured.")
    places = page.locator("input[id^='field:points.']")
    assert f"At most {places.count()};" in page.locator("[id='field:points'] small").first.inner_text()
    submit(colleague, button(colleague, "Answer"))
    assert page.url == address, "the seat's own page, which has no question until the parent has answered"

    loaded = page.evaluate("performance.timeOrigin")
    gate.let(10_000)
    colleague.has(".task", "Yes, since spring.")  # the next question, which the page finds by itself
    colleague.has("#connection", "There is a new question to you.")
    assert page.evaluate("performance.timeOrigin") == loaded
    reader.open(served, session)
    reader.has("#live-seats", "2 replies")
    submit(colleague, button(colleague, "Pass"))  # on the ballot
    colleague.has(".task", "A on k: text")  # what the other said
    while served.get(f"/api/sessions/{session}")["state"] != "finished":
        colleague.go(address)
        if button(colleague, "Pass").count():
            submit(colleague, button(colleague, "Pass"))
        else:
            assert re.search("Nothing is asked of you now|not valid", page.locator("main").inner_text())
    served.wait(session)
    colleague.go(address)
    assert "not valid" in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    reader.open(served, session)
    reader.watch_to_the_end()
    reader.has("#log", "Yes, since spring.")
    ended = re.compile("404|MIME type")  # a page whose link ended while it was loaded has no script either
    colleague.problems = [words for words in colleague.problems if not ended.search(words)]
    check(reader, colleague)
    context.close()


def test_half_typed_reply_of_a_colleague_stays_when_its_question_is_passed_elsewhere(
    browser: Any, reader: Reader, served: Served, gate: Gate
) -> None:
    gate.let(10_000)
    session = served.begin(**SEATED)
    reader.open(served, session)
    reader.has("#live-state", "Waiting")
    seat = served.post(f"/api/sessions/{session}/seats/L2N1/link", {"days": 1}, 201)["url"]
    reader.go(seat)
    write(reader, reader.page.locator("[id='field:text']"), "Half of")
    context = browser.new_context()
    other = new_reader(context)
    other.go(seat)
    submit(other, button(other, "Pass"))
    reader.has("#connection", "This is not asked any more.")
    assert reader.page.locator("[id='field:text']").input_value() == "Half of"
    assert reader.page.evaluate("document.activeElement.id") == "field:text"
    check(reader, other)
    context.close()


@pytest.mark.parametrize(
    ("name", "answers"), [("Cancel, with an answer from what is there", True), ("Cancel at once", False)]
)
def test_cancel_ends_in_a_report_with_or_without_an_answer(
    reader: Reader, served: Served, gate: Gate, name: str, answers: bool
) -> None:
    session = served.begin(protocol="emergence", settings={"children": 2, "max_rounds": 2})
    reader.open(served, session)
    gate.let(3)
    reader.until("document.querySelectorAll('#log article').length === 3")
    write(reader, reader.page.locator("#comment"), "It took too long.")
    submit(reader, button(reader, "Put it on the record"))
    reader.has("#live-state", "of")
    submit(reader, button(reader, name))
    gate.let(10_000)
    report = served.wait(session)
    assert bool(report["answer"]) is answers
    reader.has("#live-report", "It took too long.")
    check(reader)


def test_debate_from_dropped_documents_to_the_board(
    browser: Any, reader: Reader, served: Served, gate: Gate, tmp_path: Path
) -> None:
    """Begin, watch, follow cruxes, record what happened, tell a fact, save a file, share, and give an opinion."""
    gate.answers = citing
    gate.let(10_000)
    page = reader.page
    file = tmp_path / "minutes.md"
    file.write_text(LINES)
    reader.go(served.url)
    page.locator("#task").fill("Should we move to the new queue?")
    drop(reader, "#sources", file)
    page.locator("[name=protocol][value=debate]").check()
    page.locator("[name=protocol][value=debate]").locator("xpath=ancestor::li").locator("summary").click()
    page.locator("[name='debate.max_messages']").fill("24")
    page.locator("[name='debate.debaters']").fill("2")
    session = begin(reader)
    reader.has("#report", "Crux")

    crux = page.locator("#report h3:has-text('Crux 1') + p .refs a").first
    address = crux.get_attribute("href")
    crux.click()
    page.locator(f"#{address.rpartition('#')[2]}").wait_for(state="visible")

    reader.go(f"{served.url}/sessions")
    due = page.locator("form.due")
    before = due.count()
    assert before
    due.first.get_by_label("yes: it happened").check()
    with page.expect_navigation():
        due.first.get_by_role("button", name="Record").click()
    assert due.count() < before

    reader.open(served, session, "/tell")
    write(reader, page.locator("#fact"), "The queue held 12,400 messages a second.")
    told = begin(reader)
    assert told != session
    reader.has("main", "12,400")

    reader.open(served, session)
    with page.expect_download() as saved:
        link(reader, "html").click()
    report = tmp_path / "report.html"
    saved.value.save_as(report)
    offline = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
    board = new_reader(offline)
    board.go(report.as_uri())
    assert "Should we move to the new queue?" in board.page.locator("h1").inner_text()
    assert board.page.locator("#report").inner_text().count("Crux")
    assert board.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert board.foreign == [report.as_uri()]
    offline.close()

    reader.open(served, session, "/links")
    page.locator("[name=asks]").check()
    shared = make_link(reader)
    context = browser.new_context(viewport={"width": 390, "height": 800})
    absent = new_reader(context)
    absent.go(shared)
    words = absent.page.locator("body").inner_text().casefold()
    assert [word for word in HOUSE_WORDS if word in words] == []
    assert absent.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    press(absent, absent.page.locator("[name=vote]").first, "Space")
    write(absent, absent.page.locator("#objection"), "Who pays for it?")
    submit(absent, button(absent, "Give it"))
    absent.has("main", "1 agree, 0 do not agree, 0 are not sure")
    assert absent.page.locator("form").count() == 0, "one opinion for each link"
    sheets = pypdfium2.PdfDocument(absent.page.pdf(prefer_css_page_size=True))
    assert 1 <= len(sheets) <= 2
    sheets.close()
    reader.open(served, session, "/links")
    reader.has("main", "Who pays for it?")
    check(reader, absent)
    context.close()


def test_claim_leads_to_the_line_that_it_quotes(reader: Reader, served: Served, gate: Gate) -> None:
    gate.answers = citing
    gate.let(10_000)
    settings = {"children": 2, "max_rounds": 1}
    session = finished(served, protocol="emergence", settings=settings, sources=[{"name": "minutes.md", "text": LINES}])
    reader.open(served, session)
    press(reader, reader.page.locator("a[href*='/documents/1?line=2']").first)
    reader.page.locator("#document-1-2").wait_for(state="visible")
    assert "The vacuum stalled" in reader.page.locator("#document-1-2").inner_text()
    check(reader)


def test_login_over_tls(browser: Any, tmp_path: Path, model: Provider, gate: Gate) -> None:
    gate.let(10_000)
    file = tmp_path / "tokens.toml"
    add = [sys.executable, "-m", "consilience", "serve", "--token-file", str(file), "--new-owner", "anna"]
    printed = subprocess.run(add, env=environment_of(tmp_path, model), capture_output=True, text=True, check=True)
    token = printed.stdout.split()[-1]
    with tls_proxy() as proxy:
        access = ("--token-file", str(file), "--public-url", proxy.url, "--trusted-proxy", "127.0.0.1")
        with serving(tmp_path, model, *access) as served:
            proxy.target = served.url
            context = browser.new_context(ignore_https_errors=True)
            anna = new_reader(context)
            page = anna.page
            anna.go(f"{proxy.url}/sessions")
            write(anna, page.locator("#token"), "guessed")
            submit(anna, button(anna, "Log in"))
            assert page.locator("[role=alert]").is_visible()
            write(anna, page.locator("#token"), token)
            submit(anna, button(anna, "Log in"))
            anna.has("h1", "Sessions")
            kinds = {(cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) for cookie in context.cookies()}
            assert kinds == {(True, True, "Strict")}
            submit(anna, link(anna, "New session"))
            page.locator("#task").fill("Cats or dogs?")
            page.locator("[name=protocol][value=vote]").check()
            begin(anna)
            submit(anna, button(anna, "Log out"))
            anna.go(f"{proxy.url}/sessions")
            assert page.locator("#token").is_visible()
            context.close()
