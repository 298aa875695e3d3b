"""Whole reports as their readers see them, of every protocol: the kept journals, shown by the code of today.

Their prompts and replies are recorded, so a page changes only with what makes a report of them.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.domain.report import Report
from consilience.domain.sections import View
from consilience.journal.sqlite import SqliteStore
from consilience.reporting.markdown import markdown, print_markdown
from consilience.reporting.partial_report import partial_markdown
from consilience.reporting.record import read_record
from consilience.reporting.summary import summary_page
from consilience.reporting.terminal import view_text
from kit import runner
from kit.golden import Golden
from reporting.test_html import parsed, words

JOURNALS = Path(__file__).parent.parent / "fixtures" / "journals"
PROTOCOLS = (
    "solo",
    "vote",
    "emergence",
    "broadcast",
    "decompose",
    "refinement",
    "debate",
    "review",
    "choose",
    "propose",
)
UNFINISHED = ("emergence", "refinement", "debate", "review")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    """The kept journal of the protocol of the test."""
    shutil.copy(JOURNALS / f"{request.node.callspec.params['protocol']}.db", tmp_path / "journal.db")
    store = SqliteStore(tmp_path / "journal.db")
    yield store
    store.close()


def session_of(protocol: str, state: str) -> str:
    """The name of the kept session in a state."""
    kept = json.loads((JOURNALS / f"{protocol}.json").read_text())
    return next(name for name in kept if name.rpartition("-")[2] == state)


async def report_of(protocol: str, state: str, store: SqliteStore) -> Report:
    return await runner.replay(session_of(protocol, state), store=store)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_report_of(protocol: str, store: SqliteStore, golden: Golden) -> None:
    golden.page(f"reports/{protocol}.md", markdown(await report_of(protocol, "plain", store)))


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in ("solo", "choose", "propose")])
async def test_report_of_a_run_that_a_limit_cut(protocol: str, store: SqliteStore, golden: Golden) -> None:
    golden.page(f"reports/{protocol}-limited.md", markdown(await report_of(protocol, "limited", store)))


@pytest.mark.parametrize("protocol", UNFINISHED)
def test_killed_session_of(protocol: str, store: SqliteStore, golden: Golden) -> None:
    golden.page(f"reports/{protocol}-killed.md", partial_markdown(read_record(store, session_of(protocol, "killed"))))


@pytest.mark.parametrize("protocol", ["emergence", "debate", "refinement", "review"])
async def test_views_of(protocol: str, store: SqliteStore, golden: Golden) -> None:
    def shown(view: View) -> str:
        return f"{view.name}\n{'=' * len(view.name)}\n\n{view_text(view, 100)}"

    views = (await report_of(protocol, "plain", store)).presentation().views
    golden.page(f"views/{protocol}.txt", "\n".join(map(shown, views)))


@pytest.mark.parametrize("protocol", ["emergence", "debate"])
async def test_summary_of(protocol: str, store: SqliteStore, golden: Golden) -> None:
    report = await report_of(protocol, "plain", store)
    text = words(parsed(summary_page(report)).find("body"))  # type: ignore[arg-type]
    golden.page(f"reports/{protocol}.summary.txt", re.sub(r"\n\s*\n+", "\n", text))


@pytest.mark.parametrize("protocol", ["emergence"])
async def test_report_on_a_terminal(
    protocol: str, store: SqliteStore, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    print_markdown(markdown(await report_of(protocol, "plain", store)), terminal)
    golden.page(f"reports/{protocol}.terminal.txt", re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()))
