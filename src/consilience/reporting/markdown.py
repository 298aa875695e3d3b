"""A report as Markdown: worst news first, every line from the journal, figures last.

Only the header common to all protocols is known here. What a protocol adds is read by name from its JSON where several
protocols share the name (`ballots`, `position`, `convergence`), so a report of a protocol that is not installed reads as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ConfigDict

from consilience.domain.outcome import StopReason
from consilience.domain.report import Objection, Report
from consilience.reporting import refined
from consilience.reporting.contained import contained, plain
from consilience.reporting.figures import figures
from consilience.reporting.words import one_line, seats, share, stopped

_LONGEST_HEADING = 160


class AnyReport(Report):
    """A report of whichever protocol, what it adds to the header kept as it is."""

    model_config = ConfigDict(frozen=True, extra="allow")


def markdown(
    report: Report, *, heading: bool = True, files: Sequence[Path] = (), stored: bool = True, more: str = ""
) -> str:
    """The whole report. `heading` puts the task on top, `more` is a section behind the figures, `files` are named at the end,
    `stored` says how to see it again."""
    data: dict[str, object] = report.model_dump(mode="json")
    names = seats(report.agents)
    parts: list[str] = []
    if heading:
        parts.append(f"# {plain(one_line(report.task, _LONGEST_HEADING))}")
    parts.append(headline(report))
    parts += [section(report, data, names) for section in _SECTIONS]
    parts.append(more)
    parts.append(_last_lines(report, files, stored))
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(report: Report) -> str:
    """How it stopped, in words, and who replied where not all did."""
    words = stopped(report.stop_reason, report.settings)
    if report.stop_reason is StopReason.FAILED:
        words = (
            "it failed, too few agents replied" if not report.quorum_met else "it failed, nothing could be concluded"
        )
    line = f"Stopped: {words} ({report.stop_reason.value})"
    if report.degraded:
        line += f" · {report.degraded}"
        if not report.quorum_met:
            line += ", too few to rest an answer on"
    return f"**{plain(line)}**"


def _answer(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    if report.answer is None:
        return "## No answer\n\nThe run ended before anything could be concluded."
    lines = ["## Answer"]
    if position := data.get("position"):
        decided = " (by the pooled ballots, not by this text)" if data.get("decided_by") == "pool" else ""
        lines.append(f"**Position: {plain(str(position))}**{decided}")
    if report.closing == "reserve":
        lines.append("*A limit cut in: this was written from what existed by then.*")
    lines.append(contained(report.answer))
    return "\n\n".join(lines)


def _ballots(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    """The last ballot of each agent, counted, and the pool of all."""
    ballots = data.get("ballots")
    if not isinstance(ballots, list) or not ballots:
        return ""
    final = {str(b["agent"]): str(b["position"]) for b in ballots if isinstance(b, dict)}
    tally = " · ".join(f"{n} {plain(position)}" for position, n in Counter(final.values()).most_common())
    line = f"**Final ballots, cast in private:** {tally}"
    pool = data.get("pool")
    if isinstance(pool, dict) and pool:
        line += ". All ballots of all rounds pooled: " + ", ".join(
            f"{plain(str(position))} {share(float(part))}" for position, part in pool.items()
        )
    return line


def _weighed(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    """What a single structured call says it weighed."""
    weighed = data.get("weighed")
    if not isinstance(weighed, dict):
        return ""
    asked = (
        ("options", "Options"),
        ("cruxes", "What decides between them"),
        ("would_change", "Would change its answer"),
    )
    lines = []
    for field, title in asked:
        texts = weighed.get(field)
        if isinstance(texts, list) and texts:
            lines.append(f"- {title}: " + "; ".join(plain(str(text)) for text in texts))
    if weighed.get("against"):
        lines.append(f"- Against its answer: {plain(str(weighed['against']))}")
    if not lines:
        return ""
    return "## What it says it weighed\n\n*One model's own account; nobody else looked at it.*\n\n" + "\n".join(lines)


def _tally(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    """Extracted answers, counted."""
    tally = data.get("tally")
    if not isinstance(tally, dict) or not tally:
        return ""
    return "**Votes:** " + " · ".join(f"{n} for {plain(str(position))}" for position, n in tally.items())


def _claims(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    claims = [claim for claim in report.claims if claim.text.strip()]
    if not claims:
        return ""
    lines = []
    for claim in claims:
        who = ", ".join(dict.fromkeys(_speaker(id, names) for id in claim.ids)) or "rests on no text it could name"
        memory = " † from the model's memory, no document quoted" if claim.from_memory else ""
        lines.append(f"- {plain(claim.text)} — *{plain(who)}*{memory}")
    return "## What it claims, and on whose texts that rests\n\n" + "\n".join(lines)


def _dissent(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    """Who is against the answer, and objections nobody answered; one that is both stands once."""
    lines = []
    for one in report.dissent:
        if one.id is None:
            held = f", for *{plain(one.position)}*" if one.position else ""
            lines.append(f"- {_quoted(one.text)} — {plain(names.get(one.agent, one.agent))}{held}")
    told = refined.issue if refined.in_passes(data) else _objection
    lines += [f"- {_quoted(one.text)} — {told(one, names)}" for one in report.objections]
    if lines:
        return "## Dissent and standing objections\n\n" + "\n".join(lines)
    if report.answer is None or len(report.agents) == 1:
        return ""
    if refined.in_passes(data):
        return refined.silence(data)
    return "**Dissent:** none was declared, and no objection stands unanswered."


def _flags(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    """What agents flagged on the way, apart from what stands among the objections."""
    flags, objected = data.get("flags"), {one.id for one in report.objections}
    lines = []
    for flag in flags if isinstance(flags, list) else []:
        if not isinstance(flag, dict) or flag["id"] in objected:
            continue
        what = f"{plain(str(flag['tag']))} ({plain(str(flag['severity']))})"
        said = f": {_quoted(str(flag['text']))}" if flag["text"] else ""
        became = "stands" if flag["stands"] else "not raised again"
        unread = "" if flag["read"] else "; nobody was shown it"
        lines.append(f"- {what} from {plain(names.get(flag['node'], flag['node']))}{said} — {became}{unread}")
    return "## Flags on the way\n\n" + "\n".join(lines) if lines else ""


def _objection(one: Objection, names: Mapping[str, str]) -> str:
    to = f" to {plain(names.get(one.to, one.to))}" if one.to else ""
    unread = "" if one.read else "; nobody was shown it"
    return f"objection of {plain(names.get(one.agent, one.agent))}{to}, never answered{unread}"


def _moved(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    if not report.position_changes:
        return ""
    lines = []
    own = "iterations" in data  # there ballots ride in what an agent is asked anyway, and are its own numbered
    for change in report.position_changes:
        if change.conformity:
            why = "**named no argument for it (conformity)**"
        else:
            why = f"because of what {plain(_speaker(change.cause or '', names))} wrote"
        who = plain(names.get(change.agent, change.agent))
        when = f"with its ballot {change.step + 1}" if own else f"in round {change.step}"
        lines.append(f"- {who}: {plain(change.before)} → {plain(change.after)} {when}, {why}")
    return "## Who changed position, and why\n\n" + "\n".join(lines)


def _missing(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    if not report.missing:
        return ""
    lines = [
        f"- {plain(names.get(m.agent, m.agent))}: silent since `{m.since}` — {plain(one_line(m.reason, 300))}"
        for m in report.missing
    ]
    return "## Agents that were missing\n\n" + "\n".join(lines)


def _figures(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    rows = "\n".join(f"| {plain(name)} | {plain(value)} |" for name, value in figures(report, data))
    return f"## Figures\n\n| what | how much |\n|---|---|\n{rows}"


def _trust(report: Report, data: Mapping[str, object], names: Mapping[str, str]) -> str:
    lines = list(_independence(report))
    if report.quotations:
        good = sum(q.verified for q in report.quotations)
        lines.append(
            f"Quotations from the documents: {good} verified, {len(report.quotations) - good} not found where claimed."
        )
    memory = sum(claim.from_memory for claim in report.claims)
    if memory:
        lines.append(f"Claims from the model's memory, marked †: {memory} of {len(report.claims)}.")
    lines += [f"{warning[:1].upper()}{warning[1:]}." for warning in report.warnings]
    return "## How far to trust this\n\n" + "\n".join(f"- {plain(line)}" for line in lines)


def _independence(report: Report) -> Iterable[str]:
    total = len(report.agents)
    for shared in report.independence.shared:
        number = len(shared.agents)
        who = f"All {total}" if number == total else f"{number} of {total}"
        yield (
            f"{who} agents share the model {shared.model}: they are fewer than {number} independent voices, "
            "and their agreement proves less than it seems."
        )
    if total == 1:
        yield "One agent answered by itself; nobody read or doubted what it wrote."
    elif not report.independence.shared:
        yield f"Each of the {total} agents has a model of its own."
    if report.independence.effective is not None and report.independence.shared:
        yield f"They count as about {report.independence.effective:.1f} independent voices."


def _last_lines(report: Report, files: Sequence[Path], stored: bool) -> str:
    lines = []
    if files:
        lines.append("Written: " + ", ".join(f"`{path}`" for path in files))
    if stored and report.session:
        id = report.session
        lines.append(
            f"Session `{id}` · see it again: `consilience show {id}` · "
            f"run it again without a call: `consilience replay {id}`"
        )
    return "---\n\n" + "  \n".join(lines) if lines else ""


def _speaker(message: str, names: Mapping[str, str]) -> str:
    """Who said a message, from the id that names its place; the id itself where that names no agent."""
    return next((names[part] for part in reversed(message.split("/")) if part in names), message)


def _quoted(text: str) -> str:
    return f"“{plain(text)}”"


_SECTIONS: tuple[Callable[[Report, Mapping[str, object], Mapping[str, str]], str], ...] = (
    _answer,
    refined.quality,
    _ballots,
    _tally,
    _weighed,
    _dissent,
    _flags,
    refined.scores,
    refined.changed,
    refined.last_word,
    _moved,
    _claims,
    _missing,
    _trust,
    _figures,
)
