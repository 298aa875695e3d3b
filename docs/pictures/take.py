"""Take the pictures of pages that the documentation shows: `make pictures`. Writes docs/pictures/*.png.

Each is the page of a kept session (tests/fixtures/runs), or of the debate of `debate.py`, in a real Chromium, served by a real
server.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser

from debate import play
from study_page import chromium, serving

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "fixtures" / "runs"
OUT = Path(__file__).parent
DEBATE = "debate"
"""In place of a session: the one of `debate.py`, whose id is new each time."""
WIDE, PHONE = (1280, 800), (390, 844)


@dataclass(frozen=True)
class Picture:
    name: str
    session: str
    path: str = ""
    """Below the session's page; `/at/N` is the session as it was after N events."""
    size: tuple[int, int] = WIDE
    scheme: Literal["light", "dark"] = "light"
    top: str = ""
    """The heading that is scrolled to the top; the page's own for none."""
    shared: bool = False
    """What a link shows to people who were not there."""


PICTURES = (
    Picture("answer", "r7c9588"),
    Picture("answer-phone", "r7c9588", size=PHONE, scheme="dark"),
    Picture("running", "r7c9588", "/at/14", scheme="dark"),
    Picture("running-phone", "r7c9588", "/at/14", size=PHONE),
    Picture("findings", "r6dd796", top="Findings across documents"),
    Picture("debate", DEBATE),
    Picture("debate-dark", DEBATE, scheme="dark", top="Crux map"),
    Picture("debate-phone", DEBATE, size=PHONE, top="Crux 1."),
    Picture("debate-running", DEBATE, "/at/170", top="Agents"),
    Picture("debate-running-phone", DEBATE, "/at/170", size=PHONE, scheme="dark", top="Agents"),
    Picture("shared", DEBATE, size=(900, 1100), shared=True),
    Picture("shared-phone", DEBATE, size=PHONE, shared=True),
)


def shared_address(address: str, session: str) -> str:
    """Make a link that asks for an opinion; return its address."""
    body = json.dumps({"days": 1, "asks": True}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}/api/sessions/{session}/share", body, headers)
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["url"])


def take(browser: Browser, address: str, session: str, picture: Picture) -> None:
    width, height = picture.size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=picture.scheme)
    page = context.new_page()
    page.goto(shared_address(address, session) if picture.shared else f"{address}/sessions/{session}{picture.path}")
    if picture.top:
        page.get_by_role("heading", name=picture.top).first.evaluate("heading => heading.scrollIntoView()")
    page.screenshot(path=OUT / f"{picture.name}.png")
    context.close()


@contextmanager
def home_of(session: str, played: Path) -> Iterator[Path]:
    """A home whose journal has the session."""
    if session == DEBATE:
        yield played
        return
    with tempfile.TemporaryDirectory() as home:
        shutil.copy(RUNS / f"{session}.db", Path(home) / "journal.db")
        yield Path(home)


def main() -> None:
    with tempfile.TemporaryDirectory() as played:
        ids = {DEBATE: play(Path(played))}  # before the browser, whose event loop runs in this thread
        with chromium() as browser:
            for session in dict.fromkeys(picture.session for picture in PICTURES):
                with home_of(session, Path(played)) as home, serving(home) as server:
                    for picture in PICTURES:
                        if picture.session == session:
                            take(browser, server.address, ids.get(session, session), picture)


if __name__ == "__main__":
    main()
