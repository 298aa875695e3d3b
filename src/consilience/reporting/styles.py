"""The style sheets of pages and pictures, in the folder `page`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def style_sheet(*names: str) -> str:
    """Return style sheets, joined: `page` of every page, `charts` of pictures, `summary` of the summary."""
    folder = files("consilience.reporting") / "page"
    return "\n".join((folder / f"{name}.css").read_text(encoding="utf-8").strip() for name in names)
