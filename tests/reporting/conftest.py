from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.journal.sqlite import SqliteStore
from consilience.reporting.record import SessionRecord, read_record
from reporting.sessions import demo


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[SessionRecord]:
    """The recorded run of the real small model."""
    store, session = demo(tmp_path)
    yield read_record(store, session)
    store.close()
