"""Notebooks (.ipynb): cells and their printed outputs. JSON on one line: indented."""

from __future__ import annotations

import json
from typing import Any

from consilience.documents.converting import Converted, Unreadable
from consilience.documents.reading import decoded
from consilience.domain.messages import place_line


def convert_notebook(data: bytes) -> Converted:
    """Return the lines of a notebook, with a line before each cell, and in what they differ from the file."""
    notebook = json.loads(decoded(data, []))
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("it is no notebook: it has no list of cells", "Save it once more with Jupyter.")
    lines: list[str] = []
    pictures = 0
    for number, cell in enumerate(cells, 1):
        lines += [place_line("cell", number, str(cell.get("cell_type", ""))), _joined(cell.get("source"))]
        for output in cell.get("outputs") or ():
            contents = output.get("data") or {}
            text = _joined(output.get("text") or contents.get("text/plain") or output.get("evalue"))
            pictures += any(name.startswith("image/") for name in contents)
            lines += [f"[output of cell {number}]", text] if text.strip() else []
    return lines, [f"pictures left out: {pictures}"] if pictures else []


def indent_json(data: bytes) -> Converted:
    """Return JSON with a value on each line."""
    value = json.loads(decoded(data, []))
    return json.dumps(value, indent=2, ensure_ascii=False).split("\n"), []


def _joined(text: Any) -> str:
    """Return what notebooks hold as a text or as a list of lines."""
    return "\n".join(line.rstrip("\n") for line in text) if isinstance(text, list) else str(text or "")
