"""Sessions in the tests: `Deliberation` with its store and models named, since most tests name nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.deliberation import Deliberation
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models
from consilience.journal.store import Store


async def start(
    task: str, protocol: Protocol, *, models: Models, store: Store, session: str | None = None, **fields: Any
) -> Report:
    """Run a new session; `fields` are those of `Deliberation`."""
    return await Deliberation(protocol, model=models, store=store, **fields).run(task, session=session)


async def resume(session: str, *, store: Store, models: Models | None = None, **fields: Any) -> Report:
    return await Deliberation[Report](model=models, store=store, **fields).resume(session)


async def replay(session: str, *, store: Store, **fields: Any) -> Report:
    return await Deliberation[Report](store=store, **fields).replay(session)


async def fork(
    parent: str,
    *,
    store: Store,
    models: Models | None = None,
    session: str | None = None,
    options: Any = None,
    **changes: Any,
) -> Report:
    """Run a fork; `changes` are those of `Deliberation.fork` and the fields that hold for it."""
    own: Mapping[str, Any] = {name: changes.pop(name) for name in ("prompts", "limits", "encoder") if name in changes}
    deliberation: Deliberation[Report] = Deliberation(model=models, store=store, options=options, **own)
    return await deliberation.fork(parent, name=session, **changes)
