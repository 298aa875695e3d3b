"""Protocols to compare, and a journal of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.journal.sqlite import SqliteStore
from kit.juries import seated


@pytest.fixture(autouse=True)
def juries(monkeypatch: pytest.MonkeyPatch) -> None:
    seated(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "compared.db")
    yield store
    store.close()
