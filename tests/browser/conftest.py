"""A real Chromium, and a server process whose model answers when it is let."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.loopback import Answer, Provider, provider
from server.served import Served, serving, typed

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 180
"""Seconds. A browser, a server and a model share two cores with other tests."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser that CHROMIUM names, or one of `NAMES`, or the one that `playwright install chromium` has installed.

    Without one the test is skipped; with REQUIRE_BROWSER it fails. One for each file: while Playwright is started, its event
    loop runs in this thread, where tests of other files could run none.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        installed = started.chromium.executable_path
        executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, (*NAMES, installed))), None)
        if executable is None:
            refuse = pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip
            refuse("there is no Chromium; CONTRIBUTING.md says how to install one")
        yield started.chromium.launch(executable_path=executable, args=["--no-sandbox"])


@dataclass
class Gate:
    """Answers of a model, of which so many are let out as `let` says."""

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    answers: Answer = typed

    def let(self, answers: int) -> None:
        self.permits.release(answers)

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        assert self.permits.acquire(timeout=PATIENCE)
        return self.answers(body, headers)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.let(10_000)


@pytest.fixture
def model(gate: Gate) -> Iterator[Provider]:
    with provider(gate.answer) as found:
        yield found


@pytest.fixture
def served(tmp_path: Path, model: Provider) -> Iterator[Served]:
    with serving(tmp_path, model) as found:
        yield found


@dataclass
class Reader:
    """A page of the browser, and what went wrong on it."""

    page: Any
    problems: list[str]
    foreign: list[str]
    """Addresses of other machines that it asked."""

    def entries(self) -> list[str]:
        """Ids of the messages, in order."""
        found: list[str] = self.page.eval_on_selector_all("#log article", "all => all.map(one => one.id)")
        return found

    def go(self, address: str) -> None:
        """Load a page. No page loads another by itself, so nothing interrupts this but a form or link used just before."""
        self.page.goto(address)

    def open(self, served: Served, session: str, path: str = "") -> None:
        self.go(f"{served.url}/sessions/{session}{path}")

    def watch_to_the_end(self) -> None:
        """Wait until the page of a session that runs has become that of a finished one."""
        self.page.locator("#live[data-layout=finished]").wait_for(state="attached")

    def has(self, place: str, words: str) -> None:
        """Wait until a part of the page has some words."""
        self.page.locator(place).filter(has_text=words).first.wait_for(state="attached", timeout=1000 * PATIENCE)

    def until(self, script: str) -> None:
        """Wait until a script is true. Playwright's own wait evaluates strings, which the page's policy forbids."""
        end = time.monotonic() + PATIENCE
        while not self.page.evaluate(script):
            assert time.monotonic() < end, script
            self.page.wait_for_timeout(30)


@pytest.fixture
def reader(browser: Any) -> Iterator[Reader]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield new_reader(context)
    context.close()


def new_reader(context: Any) -> Reader:
    context.set_default_timeout(1000 * PATIENCE)
    reader = Reader(context.new_page(), [], [])

    def note(message: Any) -> None:
        refused = (
            "net::ERR_" in message.text or "Failed to load resource" in message.text
        )  # of a server that was killed
        if message.type in ("error", "warning") and not refused:
            reader.problems.append(message.text)

    reader.page.on("console", note)
    reader.page.on("pageerror", lambda error: reader.problems.append(str(error)))
    reader.page.on("request", lambda asked: None if "//127.0.0.1:" in asked.url else reader.foreign.append(asked.url))
    return reader


@pytest.fixture
def axe() -> Any:
    return pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
