"""A finished debate for readers who were not there: what divides the agents and what would settle it, in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from consilience.domain.sections import Block, Bullets, Item, Paragraph, Presentation, QuoteBlock, Subheading
from consilience.domain.wording import join_names
from consilience.protocols._common.presenting import bullets
from consilience.protocols.debate.brief import evidence_items
from consilience.protocols.debate.crux_sections import (
    best_statements,
    coalitions,
    common_ground,
    criteria_items,
    dependencies,
)
from consilience.protocols.debate.records import Crux
from consilience.protocols.debate.sections import presentation
from consilience.protocols.debate.state import DebateData, tested_refs

_QUOTED = re.compile("(“[^”]*”)")
_LABEL = re.compile(r" \[[A-RT-Z]\d+\]")
"""Of a message, which a summary does not show. [S1] is a document."""
_ANSWER_TO = re.compile(r"^the answer to crux (\d+)")
_CRUX = re.compile(r"\b([Cc])rux(es)?(?= )")
WORDS = {
    "not all of the split is explained by a validated crux": "the debate does not explain all of the split",
    "a validated crux names what divides them": "the debate found what divides the agents",
}
"""Sentences of the report in plain words."""


def plain_presentation(report: DebateData) -> Presentation:
    """Return how a debate is shown in a summary."""
    shown = presentation(report)
    plain: dict[str, Iterable[Block]] = {
        "cruxes": _questions(report),
        "changes": _worded(_section_blocks(shown, "changes")),
        "common-ground": _worded(common_ground(report)),
        "dissent": _worded(_section_blocks(shown, "dissent")),
        "coalitions": _worded(coalitions(report)) if report.coalitions else (),
        "dependencies": _worded(bullets(item for item in dependencies(report) if item.lead)),
        "debate": bullets(evidence_items(report, labelled=False)),
        "single-call": _section_blocks(shown, "single-call")[:1],
    }
    sections = tuple(
        section.model_copy(update={"blocks": tuple(plain.get(section.name, section.blocks))})
        for section in shown.sections
    )
    below = tuple(_worded(_named(block, report) for block in shown.below_answer))
    return shown.model_copy(update={"sections": sections, "below_answer": below})


def _section_blocks(shown: Presentation, name: str) -> Sequence[Block]:
    return next((section.blocks for section in shown.sections if section.name == name), ())


def _named(block: Block, report: DebateData) -> Block:
    """Return what would turn the answer with the question itself, since it stands further down."""
    if not isinstance(block, Paragraph):
        return block
    questions = [crux.question for crux in report.cruxes]
    text = _ANSWER_TO.sub(lambda match: f"the answer to “{questions[int(match[1]) - 1]}”", block.text)
    return block.model_copy(update={"text": text})


def _questions(report: DebateData) -> Iterator[Block]:
    """Each question that divides the agents: who answers it how, the best statement of either side, and what would settle it."""
    for n, crux in enumerate(report.cruxes, 1):
        thread, refs = report.thread(crux.thread), report.crux_refs(crux)
        yield Subheading(text=f"Question {n}. {crux.question}")
        yield Paragraph(text=f"{_sides(crux, report)}{'' if crux.validated else NOT_AGREED}", refs=refs)
        records = report.flip_records.get(crux.thread, ())
        if tested := [record for record in records if record.observed is not None]:
            moved = sum(record.observed is True for record in tested)
            text = f"Told the answer that they do not believe, {moved} of {len(tested)} changed their position."
            yield Paragraph(text=text, refs=tested_refs(crux.thread, [record.agent for record in tested]))
        yield from map(_unlabelled, best_statements(crux, thread, report))
        if settling := list(criteria_items(crux, thread, report)):
            yield Paragraph(lead="What would settle it, and change the mind of whoever is named:", text="", refs=refs)
            yield Bullets(items=tuple(settling))
    if not report.cruxes and report.propositions:
        text = "It was not found what divides the agents: on no question did enough of them commit themselves."
        yield Paragraph(text=text, refs=report.last_refs)


NOT_AGREED = " They did not all agree that this is what divides them."


def _sides(crux: Crux, report: DebateData) -> str:
    """Return who answers a question how: `Yes: Data, SRE. No: Platform.`"""
    by_side: dict[str, list[str]] = {}
    for agent in crux.positions:
        by_side.setdefault(report.final_side(agent, crux) or "UNCERTAIN", []).append(report.names[agent])
    words = {"YES": "Yes", "NO": "No", "UNCERTAIN": "Undecided"}
    return " ".join(f"{word}: {join_names(by_side[side])}." for side, word in words.items() if side in by_side)


def _worded(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks whose own words are plain; what stands in quotation marks stays as it was said."""
    for block in blocks:
        match block:
            case Bullets():
                yield Bullets(items=tuple(map(_plain_item, block.items)))
            case Paragraph():
                yield block.model_copy(update={"text": _plain(block.text)})
            case QuoteBlock():
                yield _unlabelled(block)
            case _:
                yield block


def _unlabelled(block: Block) -> Block:
    return block.model_copy(update={"by": _LABEL.sub("", block.by)}) if isinstance(block, QuoteBlock) else block


def _plain_item(item: Item) -> Item:
    return item.model_copy(update={name: _plain(getattr(item, name)) for name in ("lead", "text", "by")})


def _plain(text: str) -> str:
    """Return text of the report without labels of messages, and with `crux 2` as `question 2`, as the summary numbers them."""
    for said, plain in WORDS.items():
        text = text.replace(said, plain)
    parts = _QUOTED.split(text)
    parts[::2] = [
        _CRUX.sub(lambda m: f"{'Q' if m[1] == 'C' else 'q'}uestion{'s' if m[2] else ''}", _LABEL.sub("", part))
        for part in parts[::2]
    ]
    return "".join(parts)
