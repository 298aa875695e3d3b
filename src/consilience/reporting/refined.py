"""What a report says, in Markdown, of a text that was gone over in passes. Reports of other protocols have none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from consilience.domain.report import Objection, Report
from consilience.reporting.contained import plain
from consilience.reporting.passes import MEASURED, Data, Part, Pass, Passes, Revision, judged, passes_of, revisions_of
from consilience.reporting.words import count, one_line

_MOST_ROWS = 40
"""Of a table; a longer one is in the report's JSON."""
_MOST_SENTENCES = 4
"""Of those that went or came, in a cell."""
_LONGEST_SENTENCE = 200
_MOST_COLUMNS = 8
_EACH: Mapping[str, str] = {
    "length": "From 0 to 1: what each part has of a full length",
    "self": "From 0 to 1: what its author declares of each part",
}


def quality(report: Report, data: Data, names: Mapping[str, str]) -> str:
    """One line: how good every pass was, and which one is the answer."""
    found = passes_of(data)
    if not any(one.quality is not None for one in found.all):
        return ""
    scores = [
        f"**{_figure(one.quality)}** (the answer)" if one.index == found.best else _figure(one.quality)
        for one in found.all
    ]
    needed = f", needed {found.needed:.2f}" if found.needed is not None else ""
    kind = f" ({MEASURED[found.kind]})" if found.kind in MEASURED else ""
    return f"**Quality by pass{kind}:** {' → '.join(scores)}{needed}"


def scores(report: Report, data: Data, names: Mapping[str, str]) -> str:
    """A table: a row for each pass, a column for each part, or the other way round where there are more parts."""
    found = passes_of(data)
    rated = [one for one in found.all if judged(one)]
    if not rated:
        return ""
    parts = list(dict.fromkeys(part.name for one in rated for part in one.parts))
    by_pass = [(one, {part.name: _scored(part, found.kind) for part in one.parts}) for one in rated]
    if len(parts) <= _MOST_COLUMNS:
        heads = ["pass", "quality", *map(plain, parts)]
        rows = [
            [_name(one, found), _figure(one.quality), *(cells.get(p, "–") for p in parts)] for one, cells in by_pass
        ]
    else:
        by_pass = by_pass[-_MOST_COLUMNS:]
        heads = ["part", *(_name(one, found) for one, _ in by_pass)]
        rows = [[plain(part), *(cells.get(part, "–") for _, cells in by_pass)] for part in parts]
    scored = any(part.scores for one in rated for part in one.parts)
    what = _EACH.get(found.kind, "From 0 to 1: overall")
    critic = ", then the critic's overall score" if found.kind in _EACH and scored else ""
    return f"## Scores\n\n{what}{critic}, with the number of issues.\n\n" + _table(heads, rows)


def changed(report: Report, data: Data, names: Mapping[str, str]) -> str:
    """What the critic said beside what then changed."""
    revisions = revisions_of(data)
    if not revisions:
        return ""
    rows = []
    found = passes_of(data)
    for one in revisions:
        issues = " · ".join(plain(one_line(issue, 300)) for issue in one.issues)
        sentences = [*_marked("−", one.removed), *_marked("+", one.added)]
        rows.append(
            [
                f"**{plain(one.role)}**, pass {one.step}{_moved(one, found)}: {issues}",
                " ".join(sentences) or "no sentence changed",
            ]
        )
    return "## Critic said, text changed\n\n" + _table(["the critic said", "what changed: − gone, + new"], rows)


def last_word(report: Report, data: Data, names: Mapping[str, str]) -> str:
    """What the critic said last of each part."""
    said = data.get("coordinator_critique")
    lines = [
        f"- **{plain(str(part))}:** {plain(one_line(' · '.join(words.splitlines()), 600))}"
        for part, words in (said.items() if isinstance(said, Mapping) else ())
        if isinstance(words, str) and words.strip()
    ]
    if not lines:
        return ""
    of = [one.index for one in passes_of(data).all if judged(one)]
    after = f", after pass {of[-1]}" if of else ""
    return f"## The critic's last word{after}\n\n" + "\n".join(lines)


def in_passes(data: Data) -> bool:
    """Whether a report is of this kind, and has an answer out of a pass."""
    return passes_of(data).best is not None


def issue(one: Objection, names: Mapping[str, str]) -> str:
    """Whose it is, of what, and what became of it, of an issue that stands in the answer."""
    after = "it was handed back, and nothing better came of it" if one.read else "it was not handed back any more"
    who, part = (plain(names.get(id, id)) for id in (one.agent, one.to))
    return f"issue of {who} with {part}, standing in the answer; {after}"


def silence(data: Data) -> str:
    """What it means that no issue stands."""
    found = passes_of(data)
    best = next((one for one in found.all if one.index == found.best), None)
    if best is None or not judged(best):
        return "**Dissent:** none was declared, but nobody judged this text either."
    if best.met:
        return "**Dissent:** nobody has an issue left with this text."
    if best.quality is None:
        return "**Dissent:** no issue was named, but not every part was judged."
    needed = f" of the {found.needed:.2f} needed" if found.needed is not None else ""
    return f"**Dissent:** no issue was named, but the text is not good enough: {best.quality:.2f}{needed}."


def _name(one: Pass, found: Passes) -> str:
    return f"**{one.index}, the answer**" if one.index == found.best else str(one.index)


def _scored(part: Part, kind: str) -> str:
    score = _figure(part.overall)
    if kind in MEASURED:
        score = f"{_figure(part.confidence)}{f', critic {score}' if part.scores else ''}"
    issues = f" ({count(len(part.issues), 'issue')})" if part.issues else ""
    return f"{score}{issues}{'' if part.written else ', kept'}"


def _moved(one: Revision, found: Passes) -> str:
    """What the critic gave the part before and after; where it gives no scores, what quality is made of, by name."""
    part, later = found.part(one.step, one.role), found.part(one.step + 1, one.role)
    if part is not None and part.scores:
        return f", {_figure(part.overall)} → {_figure(later.overall if later is not None else None)}"
    kind = f"{MEASURED[found.kind]} " if found.kind in MEASURED else ""
    return f", {kind}{_figure(one.before)} → {_figure(one.after)}" if one.before is not None else ""


def _marked(mark: str, sentences: Sequence[str]) -> Iterator[str]:
    for sentence in sentences[:_MOST_SENTENCES]:
        yield f"**{mark}** {plain(one_line(sentence, _LONGEST_SENTENCE))}"
    if (more := len(sentences) - _MOST_SENTENCES) > 0:
        yield f"**{mark}** and {more:,} more."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        lines += ["", f"*And {len(rows) - _MOST_ROWS:,} more rows, which stand in the report's JSON.*"]
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
