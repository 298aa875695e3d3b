"""A server with pages in this process, whose models are scripted, and a browser for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consilience.engine import seats
from consilience.server.access_settings import AccessSettings
from consilience.testing.any_model import AnyModel
from server.inprocess import MODEL, Served, served

HOSTILE = "</textarea></select></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;{{ 7*7 }}"
"""A text that is to be shown as it is, wherever it stands."""


@contextmanager
def paged(directory: Path, access: AccessSettings | None = None, *, model: Any = None) -> Iterator[Served]:
    """Serve while the block runs. `model` answers for the only model that is offered; people are people."""
    answering, resolve = model or AnyModel(name=MODEL), seats.resolve
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none-needed")
        patch.setattr(seats, "resolve", lambda name, **more: answering if name == MODEL else resolve(name, **more))
        with served(directory, access=access) as server:
            yield server


def finished(server: Served, **body: object) -> str:
    """Run a session to its end; return its id."""
    request: Mapping[str, Any] = {"protocol": "vote", "settings": {"votes": 2}, "task": "Cats or dogs?", **body}
    return server.begin(server.client(), request)
