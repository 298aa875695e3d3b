"""The deliberation engine in other people's frameworks. Each adapter needs an optional package, imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from consilience.domain.errors import UserError


def need(module: str, extra: str) -> Any:
    """A module of an optional package. Raises a `UserError` naming the extra that brings it where it is not installed."""
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
