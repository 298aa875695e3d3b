"""What can be written where: JSON on standard output, displays that are drawn over."""

from __future__ import annotations

import json
import os
from typing import Protocol

from consilience.reporting.words import escaped


class Stream(Protocol):
    def isatty(self) -> bool: ...


def can_draw_over(stream: Stream) -> bool:
    """Whether what stands there can be drawn over: on a terminal, unless it is a dumb one, where Rich shows nothing at all."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def print_json(value: object) -> None:
    """Print a value as JSON for people and programs: indented, in its own letters, with nothing that steers a terminal."""
    print(escaped(json.dumps(value, indent=2, ensure_ascii=False)))
