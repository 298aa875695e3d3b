"""A session that may be asked for more than once is given back to the deliberation it is of, and to no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.integrations.sessions import Deliberation
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.baselines import Solo
from consilience.protocols.broadcast import Broadcast
from consilience.testing import ScriptedModel

TASK = "Is it so?"
NOTE = Source(text="It was so in May.", name="note.txt")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


@pytest.mark.parametrize(
    ("what", "changed", "sources"),
    [
        ("other documents", {}, [Source(text="It was not so in May.", name="note.txt")]),
        ("other documents", {}, []),
        ("other documents", {}, [NOTE.model_copy(update={"agents": ("L2N1",)})]),
        ("other limits", {"limits": Limits(calls=20)}, [NOTE]),
        ("another quorum", {"quorum": 0.75}, [NOTE]),
        ("another panel", {"panel": "writing"}, [NOTE]),
        ("another panel", {"panel": None}, [NOTE]),
        ("another seed", {"seed": 1}, [NOTE]),
        ("another protocol", {"protocol": Solo()}, [NOTE]),
        ("other settings", {"protocol": Broadcast(children=2, max_iterations=3)}, [NOTE]),
    ],
)
async def test_what_is_recorded_of_another_deliberation_is_not_taken_for_this_one(
    what: str, changed: dict[str, object], sources: list[Source], store: SqliteStore
) -> None:
    model = ScriptedModel(lambda request: '{"rating": "good", "text": "It is."}')
    limits = Limits(calls=40)
    how = Deliberation(protocol=Broadcast(children=2), model=model, panel="markets", limits=limits, store=store)
    report = await how.take_up("mine", TASK, sources=[NOTE])
    asked = len(model.requests)
    assert (await how.take_up("mine", TASK, sources=[NOTE])).digest() == report.digest()
    with pytest.raises(SettingsError, match=f"session mine is recorded with {what}"):
        await replace(how, **changed).take_up("mine", TASK, sources=sources)  # type: ignore[arg-type]
    assert len(model.requests) == asked
