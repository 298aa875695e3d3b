"""Contrast of all texts with all they stand on, light and dark (WCAG 2.2, 1.4.3): axe leaves texts in pictures undecided."""

from __future__ import annotations

import re

import pytest

from consilience.reporting.styles import style_sheet
from consilience.reporting.views.charts import DARKEST

MIN_CONTRAST = 4.5
DARK = "@media (prefers-color-scheme:dark)"


def rgb(colour: str) -> tuple[float, ...]:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    return tuple(int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4))


def luminance(colour: tuple[float, ...]) -> float:
    """Relative luminance: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def in_scheme(css: str, scheme: str) -> str:
    """The rules that hold, the later ones last."""
    light, _, rest = css.partition(DARK)
    return light + (rest.partition("@media print")[0] if scheme == "dark" else "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_a_page_are_legible(scheme: str) -> None:
    colours = dict(re.findall(r"--(\w+):(#\w+)", in_scheme(style_sheet("page"), scheme).partition("@media (max")[0]))
    for text in ("ink", "soft", "link", "bad"):
        for ground in ("ground", "shade"):
            assert contrast(rgb(colours[text]), rgb(colours[ground])) >= MIN_CONTRAST, (text, ground)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_a_picture_are_legible(scheme: str) -> None:
    rules = in_scheme(style_sheet("charts"), scheme)
    fills = {name: rgb(fill) for name, fill in re.findall(r"\.([-\w]+(?: text)?)\{[^}]*?fill:(#\w+)", rules)}
    for name in ("cv-ground", "cv-box", "cv-quiet", "cv-cell", "cv-own", "cv-ring"):
        for text in ("cv text", "cv-small", "cv-ink"):
            assert contrast(fills[text], fills[name]) >= MIN_CONTRAST, (text, name)
    for name in ("cv-ground", "cv-box", "cv-quiet"):
        pairs = zip(fills["cv-shade"], fills[name], strict=True)
        shaded = tuple(DARKEST * shade + (1 - DARKEST) * below for shade, below in pairs)
        for text in ("cv text", "cv-ink"):
            assert contrast(fills[text], shaded) >= MIN_CONTRAST, (text, name)
