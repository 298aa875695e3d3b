"""Take the pictures of pages that the documentation shows: `make pictures`. Writes docs/pictures/*.png.

Each is the page of a kept session (tests/fixtures/runs) in a real Chromium, served by a real server.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser

from study_page import chromium, serving

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "fixtures" / "runs"
OUT = Path(__file__).parent
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


PICTURES = (
    Picture("answer", "r7c9588"),
    Picture("answer-phone", "r7c9588", size=PHONE, scheme="dark"),
    Picture("running", "r7c9588", "/at/14", scheme="dark"),
    Picture("running-phone", "r7c9588", "/at/14", size=PHONE),
    Picture("findings", "r6dd796", top="Findings across documents"),
)


def take(browser: Browser, address: str, picture: Picture) -> None:
    width, height = picture.size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=picture.scheme)
    page = context.new_page()
    page.goto(f"{address}/sessions/{picture.session}{picture.path}")
    if picture.top:
        page.get_by_role("heading", name=picture.top).first.evaluate("heading => heading.scrollIntoView()")
    page.screenshot(path=OUT / f"{picture.name}.png")
    context.close()


def main() -> None:
    with chromium() as browser:
        for session in dict.fromkeys(picture.session for picture in PICTURES):
            with tempfile.TemporaryDirectory() as home:
                shutil.copy(RUNS / f"{session}.db", Path(home) / "journal.db")
                with serving(Path(home)) as server:
                    for picture in PICTURES:
                        if picture.session == session:
                            take(browser, server.address, picture)


if __name__ == "__main__":
    main()
