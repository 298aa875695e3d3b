"""The page of a session in a real browser, against the real server."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from browser.conftest import PATIENCE, Gate, Reader, new_reader
from cli.loopback import Provider
from server.served import Served, serving, typed

pytestmark = pytest.mark.processes
EMERGENCE = {"protocol": "emergence", "settings": {"children": 2, "max_rounds": 2}}
SEATED = {
    "protocol": "emergence",
    "settings": {"children": 2, "max_rounds": 2, "answer_pattern": "yes|no"},
    "models": {"L2N1": "human"},
    "task": "Is it so, yes or no?",
}
DEBATE = {"protocol": "debate", "settings": {"debaters": 2, "max_messages": 24}}


def check(reader: Reader) -> None:
    """Nothing went wrong on the page, each message is there once and in order, and nothing is wider than the page."""
    assert reader.problems == []
    assert reader.foreign == []
    numbers = [int(re.sub(r"\D", "", id)) for id in reader.entries()]
    assert numbers == sorted(set(numbers))
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_emergence_is_watched_from_its_first_second_to_its_end(reader: Reader, served: Served, gate: Gate) -> None:
    session = served.begin(**EMERGENCE)
    reader.open(served, session)
    reader.has("#seats", "composing")
    assert reader.page.locator("#seats tbody tr").count() == 3
    assert reader.entries() == []
    reader.page.evaluate("marked = true")
    gate.let(3)
    reader.until("document.querySelectorAll('#log article').length === 3")
    assert reader.page.evaluate("marked"), "the page was not loaded again"
    assert "3 of" in reader.page.locator("#live-state").inner_text()
    gate.let(1000)
    reader.watch_to_the_end()
    assert reader.page.evaluate("marked"), "the report came into the page that was open"
    report = served.wait(session)
    assert report["answer"] in reader.page.locator("#report").inner_text()
    assert len(reader.entries()) >= 6
    check(reader)


def test_debate_is_read_after_its_end_back_and_forth(reader: Reader, served: Served, gate: Gate) -> None:
    gate.let(10_000)
    session = served.begin(**DEBATE)
    reader.open(served, session)
    reader.watch_to_the_end()
    cited = reader.page.locator("#report .refs a").first
    address = cited.get_attribute("href")
    cited.click()
    target = urlsplit(address).fragment
    reader.page.locator(f"#{target}").wait_for(state="visible")
    reader.page.locator("#log a", has_text="prompt and reply").last.click()
    reader.has("h3", "Prompt")
    reader.open(served, session)
    total = int(reader.page.locator("#slider").get_attribute("max"))
    reader.page.locator("#slider").fill(str(total // 2))
    reader.page.locator("#replay button", has_text="Show").click()
    reader.has("#live-state", f"event {total // 2:,} of")
    before = len(reader.entries())
    reader.page.locator("#slider").focus()
    for _ in range(total - total // 2):
        reader.page.keyboard.press("ArrowRight")
    reader.until(f"location.pathname.endsWith('/at/{total}')")
    reader.has("#live-report", "Answer")
    assert len(reader.entries()) > before
    reader.page.locator("#live-steps a", has_text="Previous").click()
    reader.has("#live-state", f"event {total - 1:,} of")
    check(reader)


def test_reload_in_mid_run_shows_what_was_there_and_goes_on(reader: Reader, served: Served, gate: Gate) -> None:
    session = served.begin(**EMERGENCE)
    reader.open(served, session)
    gate.let(2)
    reader.until("document.querySelectorAll('#log article').length === 2")
    seen = reader.entries()
    reader.page.reload()
    assert reader.entries() == seen
    gate.let(1)
    reader.until("document.querySelectorAll('#log article').length === 3")
    assert reader.entries()[:2] == seen
    gate.let(1000)
    reader.watch_to_the_end()
    check(reader)


FORM = """<form action="/tried" method="post"><input type="hidden" name="key" value="k">
<label>Words <textarea name="words"></textarea></label></form>"""


def with_form(route: Any) -> None:
    """What the server sends, with a form that it sends again each time."""
    try:
        answer = route.fetch()
    except Exception:  # it was killed
        route.abort()
        return
    body = answer.json()
    body["parts"]["actions"] = FORM
    route.fulfill(response=answer, json=body)


def test_killed_server_costs_neither_messages_nor_a_half_typed_reply(
    reader: Reader, tmp_path: Path, model: Provider, gate: Gate
) -> None:
    with serving(tmp_path, model) as served:
        session = served.begin(**EMERGENCE)
        reader.open(served, session)
        gate.let(2)
        reader.until("document.querySelectorAll('#log article').length === 2")
        reader.page.route("**/fragments?*", with_form)
        reader.page.evaluate("html => replacePart('actions', html)", FORM)
        words = reader.page.locator("textarea[name=words]")
        words.fill("I do not thi")
        words.focus()
        reader.page.evaluate("document.activeElement.setSelectionRange(4, 4); marked = true")
        served.kill()
        reader.has("#connection", "Reconnecting")
    with serving(tmp_path, model, "--port", str(urlsplit(served.url).port)):
        gate.let(4)  # some of them for requests of the server that is gone
        reader.until("document.querySelectorAll('#log article').length >= 3")
        reader.until("document.getElementById('connection').textContent === ''")
        assert reader.page.evaluate("marked")
        assert words.input_value() == "I do not thi"
        assert reader.page.evaluate("[document.activeElement.name, document.activeElement.selectionStart]") == [
            "words",
            4,
        ]
        gate.let(1000)
        reader.has("#connection", "The session has ended")
        assert words.input_value() == "I do not thi"
    check(reader)


@pytest.mark.parametrize("by_link", [False, True])
def test_killed_server_costs_nothing_of_what_a_person_types_in_a_seat(
    reader: Reader, tmp_path: Path, model: Provider, gate: Gate, by_link: bool
) -> None:
    """The words, the caret and the page stay, also if it is sent meanwhile; the server that comes after gets the reply."""
    page = reader.page
    text, point = page.locator("[id='field:text']"), page.locator("[id='field:points.1']")
    with serving(tmp_path, model) as served:
        session = served.begin(**SEATED)
        gate.let(1)
        address = f"{served.url}/sessions/{session}"
        if by_link:
            address = served.post(f"/api/sessions/{session}/seats/L2N1/link", {"days": 1}, 201)["url"]
        reader.go(address)
        text.wait_for()
        text.fill("Yes, since spr")
        point.fill("It was measu")
        page.keyboard.press("ArrowLeft")
        loaded = page.evaluate("performance.timeOrigin")
        served.process.send_signal(signal.SIGKILL)
        assert served.process.wait(PATIENCE) == -signal.SIGKILL
        reader.has("#connection", "Reconnecting")
        page.get_by_role("button", name="Answer", exact=True).click()
        reader.has("#connection", "Nothing was sent")
        point.focus()
        page.keyboard.type("t")  # before the u
    with serving(tmp_path, model, "--port", str(urlsplit(served.url).port)) as again:
        gate.let(1)
        reader.until("document.getElementById('connection').textContent === ''")
        assert page.evaluate("performance.timeOrigin") == loaded
        assert page.evaluate("[document.activeElement.id, document.activeElement.selectionStart]") == [
            "field:points.1",
            len("It was meast"),
        ]
        assert (text.input_value(), point.input_value()) == ("Yes, since spr", "It was meastu")
        page.keyboard.press("Backspace")
        page.keyboard.press("End")
        page.keyboard.type("red.")
        text.focus()
        page.keyboard.press("End")
        page.keyboard.type("ing.")
        with page.expect_navigation():
            page.get_by_role("button", name="Answer", exact=True).click()
        assert page.locator("[role=alert]").count() == 0
        gate.let(10_000)
        reader.go(f"{served.url}/sessions/{session}")
        reader.has("#log", "Yes, since spring.")
        assert "It was measured." in again.request("GET", f"/api/sessions/{session}/export?format=html")[1]
    check(reader)


CHOICE = '<p><a href="#main">To the top</a></p><select name="vote"><option>yes<option>no</select>'


def test_part_waits_while_it_is_pressed_or_chosen_from(reader: Reader, served: Served, gate: Gate) -> None:
    reader.open(served, served.begin(**EMERGENCE))
    page = reader.page
    put = "html => replacePart('contents', html)"
    page.evaluate(put, CHOICE)
    select, link = page.locator("select[name=vote]"), page.get_by_role("link", name="To the top")
    for hold, release in (
        (select.focus, select.blur),
        (lambda: (link.hover(), page.mouse.down()), page.mouse.up),
    ):
        page.evaluate("held = document.querySelector('select[name=vote]')")
        hold()
        page.evaluate(put, CHOICE)
        assert page.evaluate("held.isConnected")
        release()
        reader.until("!held.isConnected")
    assert page.evaluate("location.hash") == "#main", "the link that was pressed leads where it says"
    check(reader)


def test_words_that_an_input_method_composes_are_not_disturbed(reader: Reader, served: Served, gate: Gate) -> None:
    reader.open(served, served.begin(**EMERGENCE))
    page = reader.page
    put = "html => replacePart('actions', html)"
    page.evaluate(put, FORM)
    page.locator("textarea[name=words]").focus()
    devtools = page.context.new_cdp_session(page)
    devtools.send("Input.imeSetComposition", {"text": "にほ", "selectionStart": 2, "selectionEnd": 2})
    page.evaluate("held = document.activeElement")
    page.evaluate(put, FORM)
    assert page.evaluate("held.isConnected")
    devtools.send("Input.insertText", {"text": "日本"})
    reader.until("!held.isConnected")
    assert page.locator("textarea[name=words]").input_value() == "日本"
    assert page.evaluate("document.activeElement.name") == "words"
    check(reader)


def test_eight_tabs_of_one_browser_all_load_and_follow(browser: Any, served: Served, gate: Gate) -> None:
    """Over HTTP/1.1 a browser has six connections to a server: a tab that is hidden keeps none."""
    session = served.begin(**EMERGENCE)
    context = browser.new_context()
    hide = (
        "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    readers = []
    for _ in range(8):
        readers.append(new_reader(context))
        readers[-1].open(served, session)
        readers[-1].has("#seats", "composing")
        readers[-1].page.evaluate(hide % "true")
    gate.let(3)
    for reader in readers:
        reader.page.evaluate(hide % "false")
        reader.until("document.querySelectorAll('#log article').length === 3")
        check(reader)
        reader.page.evaluate(hide % "true")
    context.close()


def noting(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
    """Readers note the line on the lease that they are shown, and call every pair a contradiction."""
    status, answer = typed(body, headers)
    text = "\n".join(str(message["content"]) for message in body["messages"])
    fields = body.get("response_format", {}).get("json_schema", {}).get("schema", {}).get("properties", {})
    reply: dict[str, Any] = {}
    if "rows" in fields:
        found = re.findall(r"^(?:(S\d+):)?(\d+)\| (The lease of Zephyr ends on (.*)\.)$", text, re.MULTILINE)
        (own,) = set(re.findall(r"from document (S\d+)", text))
        about = {"entity": "Zephyr", "attribute": "end of lease"}
        reply["rows"] = [
            {**about, "value": value, "document": named or own, "line": int(line), "quotation": words}
            for named, line, words, value in found
        ]
        reply["requests"] = []
    elif "pairs" in fields:
        judged = {"says": "contradiction", "why": "It ends once.", "first_worth": "signed", "second_worth": "a note"}
        reply["pairs"] = [{"pair": "P1", **judged}]
    if reply:
        answer["choices"][0]["message"]["content"] = json.dumps(reply)  # type: ignore[index]
    return status, answer


def test_page_shows_findings_across_documents_and_who_read_which_lines(
    reader: Reader, served: Served, gate: Gate
) -> None:
    gate.answers = noting
    gate.let(1_000)
    texts = (
        "Every tenant pays.\n\nThe lease of Zephyr ends on 30 June.",
        "Roads are mended.\n\nThe lease of Zephyr ends on 31 March.",
    )
    sources = [{"text": text, "name": f"{name}.md"} for name, text in zip(("tenancy", "roads"), texts, strict=True)]
    session = served.begin(protocol="decompose", settings={"children": 2}, sources=sources, deal="document")
    (pair,) = served.wait(session)["across"]["pairs"]
    assert pair["verdict"] == "contradiction"
    reader.open(served, session)
    reader.has("#report", "Findings across documents")
    table = reader.page.locator("#report table", has_text="worth")
    rows = [row.split("\t") for row in table.inner_text().splitlines()]
    assert rows[0] == ["", "S1 tenancy.md", "S2 roads.md"]
    assert "ends on 30 June." in rows[1][1]
    assert "ends on 31 March." in rows[1][2]
    assert rows[-1] == ["worth", "signed", "a note"]
    read = reader.page.locator("#report table", has_text="read by").locator("tr", has_text="tenancy.md").inner_text()
    lines = {
        row["agent"]: row["lines"]
        for row in served.get(f"/api/sessions/{session}")["report"]["documents"][0]["readers"]
    }
    assert sorted(lines.values()) == [[], [[3, 3]]]
    assert all(agent in read for agent in lines)
    assert "(line 3)" in read, "the related line of the other share"
    check(reader)
    link = table.locator("a", has_text="S2:3").first
    with reader.page.expect_navigation():
        link.click()
    assert "/documents/" in reader.page.url
    reader.has("body", texts[1].splitlines()[-1])
