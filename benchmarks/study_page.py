"""What the page of a session weighs, how fast it is and what it needs, in a real Chromium: `python benchmarks/study_page.py`.

Model, server and browser are processes of their own on this machine. It prints a table:

- bytes sent, seconds to open and memory of the browser, for the page of a session of 2,000 messages and of a debate
- how long after its commit a message is on a page that is open
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

import workload
from consilience.domain.events import SessionFinished
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.debate import Debate
from debates import Talkers
from study_server import SECOND, ServerUnderStudy, process

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHILDREN, DEPTH, ROUNDS = 10, 3, 9
POLL_SECONDS = 0.003
SHOWN = r"""
    window.arrivals = [];
    new MutationObserver(all => {
        for (const change of all) for (const node of change.addedNodes)
            if (node.nodeName === "ARTICLE") arrivals.push([Number(node.id.replace(/\D/g, "")), Date.now() / 1000]);
    }).observe(document, { childList: true, subtree: true });
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser that CHROMIUM names, or one of `NAMES`, or Playwright's own."""
    with sync_playwright() as playwright:
        installed = playwright.chromium.executable_path
        path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, (*NAMES, installed))), None)
        if path is None:
            raise SystemExit("There is no Chromium; CONTRIBUTING.md says how to install one.")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def serving(home: Path, latency: float = 0.0) -> Iterator[ServerUnderStudy]:
    with process("provide", str(latency)) as (_, model):
        variables = {
            "CONSILIENCE_HOME": str(home),
            "VLLM_BASE_URL": f"{model}/v1",
            "CONSILIENCE_FREE_ENDPOINTS": f"{model}/v1",
            "OPENAI_API_KEY": "none-needed",
        }
        with process("serve", **variables) as (server, address):
            yield ServerUnderStudy(server, address)


# --- a page that is opened


async def record(home: Path) -> dict[str, str]:
    """Record the long sessions in the journal of a home; return their ids by name."""
    path = home / "journal.db"
    await workload.run(workload.emergence(CHILDREN, DEPTH, ROUNDS), path, session="messages")
    store = SqliteStore(path)
    try:
        from consilience import deliberate

        debate = Debate(debaters=12, max_messages=400)
        report = await deliberate(workload.TASK, debate, model=Talkers(lambda request: 0.0, True), store=store)
        calls = sum(1 for event in store.read("messages") if event.type == "call_completed")
    finally:
        store.close()
    return {f"emergence, {calls:,} messages": "messages", f"a debate of {report.steps} messages": report.session}


def opened(browser: Browser, url: str) -> tuple[float, int, int, float, float]:
    """Open a page in a fresh context; return seconds to its load, bytes sent, bytes of its HTML, and MB of its heap and process."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    devtools = context.new_cdp_session(page)
    sent: list[float] = []
    devtools.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
    devtools.send("Network.enable")
    devtools.send("Performance.enable")
    began = time.perf_counter()
    page.goto(url, wait_until="load")
    seconds = time.perf_counter() - began
    html = len(page.content().encode())
    figures = (seconds, int(sum(sent)), html, heap(devtools), resident(page))
    context.close()
    return figures


def heap(devtools: CDPSession) -> float:
    devtools.send("HeapProfiler.collectGarbage")
    metrics: dict[str, Any] = devtools.send("Performance.getMetrics")
    return float(next(m["value"] for m in metrics["metrics"] if m["name"] == "JSHeapUsedSize") / 1e6)


def resident(page: Page) -> float:
    """Return the proportional set size of the renderer that has used most, in MB: that of the page, since the others are idle."""
    sizes = []
    for directory in Path("/proc").iterdir():
        try:
            command = (directory / "cmdline").read_text() if directory.name.isdecimal() else ""
            if "--type=renderer" in command:
                found = re.search(r"Pss:\s+(\d+)", (directory / "smaps_rollup").read_text())
                sizes.append(int(found[1]) / 1000 if found else 0.0)
        except OSError:
            continue
    return max(sizes)


def opening(repeats: int) -> Iterator[tuple[str, float, str]]:
    with tempfile.TemporaryDirectory() as home:
        sessions = asyncio.run(record(Path(home)))
        for name, session in sessions.items():
            with serving(Path(home)) as server, chromium() as browser:
                yield "the page to begin: bytes sent, kB", opened(browser, server.address)[1] / 1000, "≤ 60"
                path = f"{server.address}/sessions/{session}"
                first = opened(browser, path)
                later = [opened(browser, path) for _ in range(repeats)]
                yield f"{name}: bytes sent, kB", first[1] / 1000, "≤ 60"
                yield "its HTML before compression, kB", first[2] / 1000, "≤ 300"
                yield "opened for the first time, s", first[0], "≤ 1"
                yield f"opened again (median of {repeats}), s", statistics.median(one[0] for one in later), "≤ 1"
                yield "heap of its script, MB", first[3], ""
                yield "memory of its process, MB", max(one[4] for one in (first, *later)), "≤ 150"


# --- messages that come


def arriving(repeats: int) -> Iterator[tuple[str, float, str]]:
    """Compare when the messages of a session were committed with when they were on its page."""
    firsts, delays = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as home, serving(Path(home), 0.3) as server, chromium() as browser:
        server.wait(server.begin(SECOND))  # imports
        store = SqliteStore(Path(home) / "journal.db")
        for _ in range(repeats):
            page = browser.new_page()
            page.add_init_script(SHOWN)
            session = server.begin(SECOND)
            page.goto(f"{server.address}/sessions/{session}")
            committed = commits(store, session)
            page.locator("#live[data-layout=finished]").wait_for(state="attached")
            shown: dict[int, float] = dict(reversed(page.evaluate("arrivals")))
            found = [shown[n] - at for n, at in committed.items() if n in shown]
            firsts.append(found[0])
            delays += found
            page.close()
        store.close()
    yield f"first message after its commit, s (median of {repeats})", statistics.median(firsts), "≤ 0.5"
    yield "the same, latest, s", max(firsts), "≤ 0.5"
    yield f"any of {len(delays)} messages, s (median)", statistics.median(delays), ""
    yield "the same, latest, s", max(delays), "≤ 0.5"


def commits(store: SqliteStore, session: str) -> dict[int, float]:
    """Watch a session to its end; return when each of its events was committed that was not there at the beginning."""
    last, committed = store.last(session), dict[int, float]()
    while not isinstance(store.read(session, after=last - 1)[-1], SessionFinished):
        while store.last(session) == last:
            time.sleep(POLL_SECONDS)
        last, before = store.last(session), last
        committed |= dict.fromkeys(range(before + 1, last + 1), time.time())
    return committed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", choices=("opening", "arriving"), help="this one alone")
    options = parser.parse_args()
    print("| measure | value | target |\n|---|--:|--:|")
    for measure in (opening, arriving):
        if options.measure in (None, measure.__name__):
            for name, value, target in measure(options.repeats):
                print(f"| {name} | {value:,.2f} | {target} |", flush=True)
    print(f"\nLoad average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
