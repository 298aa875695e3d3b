"""Models by name, as a seat would have them."""

from __future__ import annotations

from typing import Any

from consilience.models.endpoints import NO_ENDPOINTS, Endpoints
from consilience.models.port import Model
from consilience.models.registry import parse


def resolve(name: str, *, known: Endpoints = NO_ENDPOINTS, **options: Any) -> Model:
    return parse(name, known).open(**options)
