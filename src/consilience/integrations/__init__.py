"""Adapters to other frameworks. Each needs an optional package, which is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

from consilience.domain.errors import UserError
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.engine.runner import Options
from consilience.engine.similarity import Encoder
from consilience.journal.store import Store


class DeliberationSettings(TypedDict, total=False):
    """Fields of `Deliberation` that adapters take by name and pass on."""

    panel: Panel | str | Path | None
    seed: int
    limits: Limits | None
    quorum: float
    encoder: str | Encoder | None
    store: Store | None
    prompts: Path | None
    options: Options | None


def need(module: str, extra: str) -> Any:
    """Import and return a module of an optional package. Raises a `UserError` that names the extra if it is not installed."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != package:
            raise
        raise UserError(
            f"this adapter needs the package {package}, which is not installed",
            do=f"Run: pip install 'consilience[{extra}]'",
        ) from None
