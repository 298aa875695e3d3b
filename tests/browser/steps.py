"""What a person does on the pages, in a real browser."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from browser.conftest import Reader
from consilience import Debate, deliberate
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.debating import Debaters, related_cruxes
from server.served import Served, typed

MAX_TABS = 400
WIDTHS = (390, 1280, 1920)
THEMES = ("light", "dark")
ONLY_VIOLATIONS = {"resultTypes": ["violations"]}
"""All rules are run; of what passes, the page sends one element a rule."""
LINES = "The queue held 9,400 messages a second.\nThe vacuum stalled for 38 minutes.\n"


def citing(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
    """A reply as `typed` gives it, whose text quotes the second of `LINES`."""
    status, answer = typed(body, headers)
    message = answer["choices"][0]["message"]  # type: ignore[index]
    if body.get("response_format"):
        value = json.loads(message["content"])
        for name in {"text", "answer"} & set(value):
            value[name] = f'{value[name]} Yes: "The vacuum stalled for 38 minutes" [S1:2].'
        message["content"] = json.dumps(value)
    return status, answer


def reach(reader: Reader, target: Any) -> None:
    """Go to an element by Tab alone; its focus is seen."""
    target.wait_for(state="attached")
    for _ in range(MAX_TABS):
        if target.evaluate("e => e === document.activeElement"):
            assert target.evaluate("e => e.matches(':focus-visible') && getComputedStyle(e).outlineStyle !== 'none'")
            return
        reader.page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {target}")


def press(reader: Reader, target: Any, key: str = "Enter") -> None:
    reach(reader, target)
    reader.page.keyboard.press(key)


def submit(reader: Reader, target: Any) -> None:
    """Press a button or a link and wait for the page to which it leads."""
    reach(reader, target)
    with reader.page.expect_navigation():
        reader.page.keyboard.press("Enter")


def write(reader: Reader, target: Any, words: str) -> None:
    reach(reader, target)
    reader.page.keyboard.press("Control+a")
    reader.page.keyboard.type(words)


def drop(reader: Reader, place: str, *files: Path) -> None:
    """Drop files on an element, as a browser gets them from the desktop."""
    reader.page.locator(place).scroll_into_view_if_needed()
    box = reader.page.locator(place).bounding_box()
    assert box is not None
    devtools = reader.page.context.new_cdp_session(reader.page)
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    for kind in ("dragEnter", "dragOver", "drop"):
        devtools.send("Input.dispatchDragEvent", {"type": kind, **where, "data": data})
    devtools.detach()


def session_of(reader: Reader) -> str:
    """The session whose page is open."""
    return urlsplit(reader.page.url).path.split("/")[2]


def button(reader: Reader, name: str) -> Any:
    return reader.page.get_by_role("button", name=name, exact=True)


def link(reader: Reader, name: str) -> Any:
    return reader.page.get_by_role("link", name=name, exact=True).first


def begin(reader: Reader) -> str:
    """From a filled form over its plan to the session's page; return the session."""
    submit(reader, button(reader, "Show the plan"))
    reader.has("#plan-heading", "The plan")
    submit(reader, button(reader, "Begin"))
    reader.watch_to_the_end()
    return session_of(reader)


def finished(served: Served, **body: object) -> str:
    session = served.begin(**body)
    served.wait(session)
    return session


def debate_of_two_cruxes(home: Path, words: str = "") -> str:
    """Record a debate whose first crux entails its second, in the journal of a server; return the session.

    `words` begin all free texts of its agents.
    """
    debaters = Debaters(related_cruxes("ENTAILS", hold=[1]))

    def reply(request: ModelRequest) -> str:
        value = json.loads(debaters(request))
        free = value.keys() & {"text", "question", "why", "claim", "reason", "metric"}
        return json.dumps(value | {name: words + value[name] for name in free})

    def record() -> str:
        store = SqliteStore(home / "journal.db")
        try:
            protocol = Debate(debaters=4, option=("queues", "streams"), test_cruxes=0)
            model = ScriptedModel(reply)
            return asyncio.run(deliberate("Queues or streams?", protocol, model=model, store=store)).session
        finally:
            store.close()

    with ThreadPoolExecutor(1) as executor:  # Playwright's loop runs in this thread
        return executor.submit(record).result()


def make_link(reader: Reader) -> str:
    """Make the link of the page that is open; return its address."""
    submit(reader, button(reader, "Make the link"))
    return str(reader.page.locator(".token").inner_text())


def look(axe: Any, reader: Reader) -> None:
    """Look at the page that is open, with all that is folded. It needs scripts, which the report behind a link forbids."""
    page = reader.page
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found = axe.run(page, options=ONLY_VIOLATIONS)
            assert found.response["passes"], "axe looked at nothing"
            assert found.violations_count == 0, f"{page.url} {theme} {width}\n{found.generate_report()}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (page.url, width)
