"""How a text became better, pass by pass: its quality, what the critic gave each part, and what changed."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.reporting.passes import MEASURED, SCORES, Part, Pass, judged, passes_of
from consilience.reporting.record import Record
from consilience.reporting.views.drawing import Drawing, fitted, pixels
from consilience.reporting.views.tables import fits, paragraph, table
from consilience.reporting.words import count, in_passes, one_line, printable, share

_KINDS = {
    "critic": "the mean of the critic's overall scores",
    "length": "the mean of what each part has of a full length",
    "self": "the mean of what the authors declare",
}


@dataclass(frozen=True)
class PassTable:
    """`best` is the pass whose text is the answer; `why` says why there is no pass, where there is none."""

    passes: tuple[Pass, ...] = ()
    best: int | None = None
    needed: float | None = None
    kind: str = ""
    why: str = ""

    @property
    def measured(self) -> str:
        """What quality is the mean of, in a word, where it is not what the critic gives."""
        return MEASURED.get(self.kind, "")

    @property
    def scored(self) -> bool:
        """Whether the critic gave scores; one that goes by rules of thumb gives none."""
        return any(part.scores for one in self.passes for part in one.parts)


def applies(record: Record) -> bool:
    return record.course.started is not None and in_passes(record.course.started.settings)


def fold(record: Record) -> PassTable:
    if record.report is None:
        return PassTable(why="What each pass came to stands in the report, and this session has none yet.")
    found = passes_of(record.report.model_dump(mode="json"))
    return PassTable(
        found.all,
        found.best,
        found.needed,
        found.kind,
        why="" if found.all else "It came to no pass: nothing was written.",
    )


def verdict(one: Pass, found: PassTable) -> str:
    """How good it is, in words."""
    if one.quality is None:
        return "some parts were not judged" if judged(one) else "not judged"
    needed = f", needed {found.needed:.2f}" if found.needed is not None else ""
    return f"{one.quality:.2f}{needed}, {'met' if one.met else 'not met'}"


def rated(part: Part, one: Pass) -> bool:
    """Whether a critic went over it; a length alone is no judgement."""
    return bool(part.scores or part.issues) or (judged(one) and part.confidence is not None)


def fate(part: Part) -> str:
    """What became of a part in its pass."""
    if not part.written:
        return "kept"
    return "written" if part.change is None else f"written, {share(part.change)} new"


def text(found: PassTable, width: int) -> str:
    if not found.passes:
        return "\n".join(paragraph(found.why, width)) + "\n"
    lines = [*paragraph(f"Quality is from 0 to 1: {_KINDS.get(found.kind, 'the mean of all parts')}.", width), ""]
    lines += _overview(found, width)
    for one in found.passes:
        lines += ["", *paragraph(f"pass {one.index}{_answer(one, found)}: {verdict(one, found)}", width)]
        lines += _scores(one, found, width)
        lines += _diff(one, width)
    return "\n".join(lines) + "\n"


def _answer(one: Pass, found: PassTable) -> str:
    return " (the answer)" if one.index == found.best else ""


def _overview(found: PassTable, width: int) -> list[str]:
    rows = [
        (
            f"pass {one.index}",
            "the answer" if one.index == found.best else "",
            _figure(one.quality),
            "–" if one.quality is None else "met" if one.met else "not met",
            str(sum(len(part.issues) for part in one.parts)) if judged(one) else "–",
            str(sum(part.written for part in one.parts)),
            "–" if one.change is None else share(one.change),
        )
        for one in found.passes
    ]
    heads = ("pass", "", "quality", "threshold", "issues", "parts written", "changed")
    if fits(heads, rows, width):
        return table(heads, rows, width, left=2)
    return [
        wrapped
        for one, row in zip(found.passes, rows, strict=True)
        for wrapped in paragraph(
            f"{row[0]}{_answer(one, found)}: quality {row[2]}, {row[3]}, issues {row[4]}", width, "    "
        )
    ]


def _scores(one: Pass, found: PassTable, width: int) -> list[str]:
    """A line for each part: what quality is made of, the critic's scores, its issues, what became of it."""
    measured = [found.measured] if found.measured else []
    names = SCORES if found.scored or not measured else ()
    rows = [
        (
            part.name,
            *(_figure(part.confidence) for _ in measured),
            *(_figure(part.scores.get(name)) for name in names),
            str(len(part.issues)) if rated(part, one) else "–",
            fate(part),
        )
        for part in one.parts
    ]
    if not rows:
        return ["  no part was written"]
    heads = ("part", *measured, *names, "issues", "text")
    if fits(heads, rows, width - 2):
        return [f"  {line}" for line in table(heads, rows, width - 2)]
    return [wrapped for part in one.parts for wrapped in paragraph(f"  {_told(part, one, found)}", width, "    ")]


def _told(part: Part, one: Pass, found: PassTable) -> str:
    scores = [f"{n} {_figure(part.scores[n])}" for n in SCORES if n in part.scores]
    if found.measured:
        scores = [f"{found.measured} {_figure(part.confidence)}", *scores]
    return f"{one_line(part.name)}: {', '.join([*scores, _issues(part, one), fate(part)])}"


def _diff(one: Pass, width: int) -> list[str]:
    if not one.diff:
        return []
    lines = ["", *paragraph("  what changed in the whole text, − gone, + new:", width)]
    for line in printable(one.diff).split("\n"):
        if line.startswith("@@"):
            lines.append("  …")
        else:
            lines += paragraph(
                f"  {'−' if line.startswith('-') else line[:1] or ' '} {one_line(line[1:])}", width, "    "
            )
    return lines


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# --- as a picture

_COLUMN, _GAP, _BAR = 226.0, 12.0, 120.0
_HEAD, _ROW, _LINE = 92.0, 78.0, 18.0
_LONGEST_NAME = 22


def draw(found: PassTable) -> Drawing:
    """A column for each pass, a row for each part. The changes stay in words."""
    drawing = Drawing("passes", "How the text became better, pass by pass", text(found, 100))
    if not found.passes:
        drawing.words(16, 28, found.why)
        return drawing
    names = list(dict.fromkeys(part.name for one in found.passes for part in one.parts))
    row = _ROW + (_LINE if found.measured and found.scored else 0)
    rows = {name: _HEAD + 16 + n * (row + _GAP) for n, name in enumerate(names)}
    for name, y in rows.items():
        drawing.words(16, y + 24, fitted(name, _LONGEST_NAME), "cv-strong")
    drawing.words(16, 42, "the whole", "cv-strong")
    left = 36 + max(pixels(fitted(name, _LONGEST_NAME), "cv-strong") for name in ("the whole", *names))
    for n, one in enumerate(found.passes):
        x = left + n * (_COLUMN + _GAP)
        _draw_head(drawing, x, one, found)
        for part in one.parts:
            _draw_part(drawing, x, rows[part.name], row, part, one, found)
    bottom = _HEAD + 16 + len(rows) * (row + _GAP)
    needed = " · dashed: what is needed" if found.needed is not None else ""
    bars = f"bars from 0 to 1{f': {found.measured}' if found.measured else ''}"
    drawing.words(16, bottom + 14, f"{bars}{needed} · grey: kept as it was", "cv-small", room=200)
    return drawing


def _draw_head(drawing: Drawing, x: float, one: Pass, found: PassTable) -> None:
    best = one.index == found.best
    drawing.words(x + 10, 36, f"pass {one.index}{', the answer' if best else ''}", "cv-head", within=_COLUMN - 20)
    drawing.box(x, 16, _COLUMN, _HEAD - 12, "cv-frame" if best else "cv-none")
    _bar(drawing, x + 10, 46, one.quality)
    if found.needed is not None:
        at = x + 10 + _BAR * min(1.0, max(0.0, found.needed))
        drawing.line([(at, 42), (at, 62)], "cv-needed")
    drawing.words(x + 20 + _BAR, 58, _figure(one.quality), "cv-strong")
    state = verdict(one, found).rpartition(", ")[2]
    changed = f", {share(one.change)} changed" if one.change is not None else ""
    drawing.words(x + 10, 80, f"{state}{changed}", "cv-small", within=_COLUMN - 16)


def _draw_part(drawing: Drawing, x: float, y: float, height: float, part: Part, one: Pass, found: PassTable) -> None:
    """The bar is of the kind that quality is; the critic's overall score, where that is another, stands below it."""
    tip = "; ".join(part.issues) or "no issues"
    drawing.box(x, y, _COLUMN, height, "cv-box" if part.written else "cv-box cv-quiet", tip=f"{part.name}: {tip}")
    value = part.confidence if found.measured else part.overall
    _bar(drawing, x + 10, y + 12, value)
    drawing.words(x + 20 + _BAR, y + 24, _figure(value), "cv-strong")
    said = " · ".join(f"{name} {part.scores[name]:.2f}" for name in SCORES[1:] if name in part.scores)
    lines = [said.replace("coherence", "coh.").replace("accuracy", "acc."), f"{_issues(part, one)} · {fate(part)}"]
    if height > _ROW:
        lines.insert(0, f"critic: overall {_figure(part.overall)}")
    for n, line in enumerate(lines):
        drawing.words(x + 10, y + 46 + n * _LINE, line, "cv-small", within=_COLUMN - 16)


def _issues(part: Part, one: Pass) -> str:
    return count(len(part.issues), "issue") if rated(part, one) else "not judged"


def _bar(drawing: Drawing, x: float, y: float, value: float | None) -> None:
    drawing.box(x, y, _BAR, 12, "cv-box cv-quiet", round=2)
    if value is not None:
        drawing.box(x, y, _BAR * min(1.0, max(0.0, value)), 12, "cv-dot", round=2)
