"""JSON on standard output."""

from __future__ import annotations

import json

from consilience.reporting.words import escaped


def print_json(value: object) -> None:
    """Print a value as JSON for people and programs: indented, in its own letters, with nothing that steers a terminal."""
    print(escaped(json.dumps(value, indent=2, ensure_ascii=False)))
