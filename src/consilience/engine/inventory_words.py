"""What the engine says to readers of dealt documents about inventories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten

from consilience.documents.joining import RowPair, StatedRow
from consilience.domain.across import AskedPassage, DocumentPair
from consilience.domain.agents import Agent
from consilience.domain.tokens import estimate_tokens
from consilience.engine.passages import MAX_REQUESTS
from consilience.engine.prompt import fence_quote

ROW_TOKENS = 90
"""A row of an inventory: models write 68 to 93. So the longest inventory seen would take nine tenths of its tokens."""
REQUEST_TOKENS = 60
"""A request for a passage, as models write it."""
SHORT_VALUE_CHARS = 80
AROUND_CHARS = 160
"""Characters of a line that are shown beside a quotation."""

DUTIES = (
    "amounts, numbers and dates",
    "obligations, rights and conditions, and who has them",
    "assumptions, and what the text takes as given",
    "what is missing, open, or left for later",
)
"""What readers without a persona look at most closely."""


def duty_of(reader: Agent, n: int) -> str:
    """Return the duty of the n-th reader (from 0) in a sentence; empty if its seat has a persona."""
    if reader.persona:
        return ""
    return f"Your duty among the readers of the documents: look most closely at {DUTIES[n % len(DUTIES)]}."


PRIVATE_NOTE = (
    "Not everybody may read all that you are shown. Rows of a document that others may not read are shown to none of them; your "
    "other rows, and what you say of pairs, may be. Keep what stands in such a document out of those."
)
"""What a reader is told who holds a document that is not open to all."""


def inventory_words(reader: Agent, notes: Iterable[str], tokens: int, passage_tokens: int) -> str:
    """Return the request for an inventory of so many tokens, below an introduction and notes."""
    seat = "\n".join(filter(None, (reader.introduction(perspective=""), *notes)))
    rows = max((tokens - MAX_REQUESTS * REQUEST_TOKENS) // ROW_TOKENS, 1)
    return f"""{seat}

Before the work on the task begins, take an inventory of what you are shown of the documents. Other readers do the same with the
other parts; nobody reads all of them. The rows of all readers are joined, to find what one passage says otherwise than another, of
another document or of the same.

Write one row for each statement that another passage may make otherwise, or that the task needs:
- entity: what it is about, by its full name in the document, with its code or number if it has one
- attribute: what is stated of it, in the plainest usual words, such as "end of the lease" or "monthly rent"
- value: the value alone, such as an amount with its unit, a date with its year, a number, a name or a duty
- document, line: where the quotation begins, such as S4 and 120
- quotation: the exact words, no more than hold the statement; they may run over the end of a line

The other readers do not see your rows, nor you theirs. Rows meet by the words of entity and attribute: take those of the documents,
and the same for the same thing in all your rows. Begin with statements that differ from each other on one thing, those in related
lines of other parts included, then go on with what matters most. A row whose quotation is not in the document is left out. The
reply may have {tokens:,} tokens in all, and one that is cut there is lost: write at most {rows} rows.

requests: up to {MAX_REQUESTS} passages of other parts without which you cannot judge what you read, the most important first:
- document: such as S4
- lines: one range, such as 120-140; or, where the index does not tell it, words that stand there, such as "discount rate"
- why: what you need it for
You are shown them from your next prompt on, as far as you may read them: all of them together in at most {passage_tokens:,} tokens.
[] if you need none.""".strip()


def describe_pair(n: int, pair: RowPair, around: Sequence[str] = ("", "")) -> str:
    """Return the n-th pair (from 0) as a reader is shown it, with what stands around both quotations."""
    sides = (
        f'  {name}: {row.entity}, {row.attribute}: {row.value} — "{row.words}" [{row.document}:{row.line}]{lines}'
        for name, row, lines in zip(("first", "second"), (pair.first, pair.second), around, strict=True)
    )
    return "\n".join([f"P{n + 1}", *sides])


def lines_around(row: StatedRow, lines: Sequence[str]) -> str:
    """Return the line of a row's quotation and its neighbours, indented: of a long one, what is nearest to the quotation."""
    at = row.line - 1
    begin = max(map(lines[at].find, (row.words, row.words.split()[0])))
    own = _words_of(lines[at], begin - AROUND_CHARS, max(begin, 0) + len(row.words) + AROUND_CHARS)
    before = next((n for n in range(at - 1, max(at - 4, -1), -1) if lines[n].strip()), None)
    after = next((n for n in range(at + 1, min(at + 4, len(lines))) if lines[n].strip()), None)
    shown = (
        []
        if before is None
        else [(before, _words_of(lines[before], len(lines[before]) - AROUND_CHARS, len(lines[before])))]
    )
    shown += [] if own.strip(" -*|#") == row.words else [(at, own)]
    shown += [] if after is None else [(after, _words_of(lines[after], 0, AROUND_CHARS))]
    return "".join(f"\n    {n + 1}| {text.strip()}" for n, text in shown)


def _words_of(line: str, begin: int, end: int) -> str:
    """Return the text from one character of a line to another, without words that would be cut there."""
    begin = max(begin, 0)
    text = line[begin:end]
    if begin and not line[begin - 1].isspace():
        text = re.sub(r"^\S{1,40}\s", "", text)
    if end < len(line) and not line[end].isspace():
        text = re.sub(r"\s\S{1,40}$", "", text)
    return text


def requests_note(asked: Iterable[AskedPassage]) -> str:
    """Return what became of the passages that an agent asked for; empty if it asked for none."""
    lines = [f"- {passage.place}: {_fate(passage)}" for passage in asked]
    return "\n".join(["You asked for passages of other parts:", *lines]) if lines else ""


def _fate(passage: AskedPassage) -> str:
    if passage.shown is None:
        return f"not shown, {passage.refusal}"
    cut = passage.lines is not None and passage.shown[1] < passage.lines[1]
    return f"shown up to line {passage.shown[1]}" if cut else "shown"


def compare_words(pairs: Sequence[str], note: str) -> str:
    """Return the request to judge pairs of rows as they are described, below a `note`."""
    listed = fence_quote("\n".join(pairs), "the inventories")
    return f"""{note}

The inventories of all readers were joined. Below are pairs of rows that seem to speak of one thing and state different values.
At least one row of each pair is your own; other readers judge the other pairs. The quotations stand in the documents, where the
rows say; below them are the lines around, as far as there was room.

{listed}

Judge each pair:
- pair: its name
- says: "contradiction" if both passages cannot be true of the same thing at the same time, or if one assumes, cites or uses what
  the other shows to be wrong, corrects or replaces; "no contradiction" if they speak of different things, times or conditions, or
  say the same in other words
- why: one sentence
- first_worth, second_worth: what each passage is worth if they contradict each other, such as how recent or binding its
  document is, in a few words; empty for no contradiction""".strip()


def findings_note(pairs: Sequence[DocumentPair], readers: Mapping[str, int], room: int) -> str:
    """Return what prompts show of the contradictions between documents, in at most `room` tokens; empty without any."""
    if not pairs:
        return ""
    lines = list[str]()
    for pair in pairs:
        line = _short_line(pair)
        if (size := estimate_tokens(line)) > room:
            break
        room -= size
        lines.append(line)
    for n, pair in enumerate(pairs[: len(lines)]):
        whole = _finding_line(pair, readers)
        if (more := estimate_tokens(whole) - estimate_tokens(lines[n])) <= room:
            room -= more
            lines[n] = whole
    left_out = [f"({len(pairs) - len(lines):,} further ones left out)"] if len(lines) < len(pairs) else []
    listed = fence_quote("\n".join((*lines, *left_out)), "the inventories")
    return (
        "Readers of the documents compared their inventories and judged that these passages contradict each other. The quotations "
        f"stand in the documents where it says; you may repeat them.\n\n{listed}"
    )


def _short_line(pair: DocumentPair) -> str:
    sides = " against ".join(
        f"{shorten(side.value, SHORT_VALUE_CHARS, placeholder=' …')} [{side.document}:{side.line}]"
        for side in (pair.first, pair.second)
    )
    return f"* {pair.entity}, {pair.attribute}: {sides}"


def _finding_line(pair: DocumentPair, readers: Mapping[str, int]) -> str:
    sides: Iterable[str] = (
        f'"{side.words}" [{side.document}:{side.line}]' + (f" ({side.worth})" if side.worth else "")
        for side in (pair.first, pair.second)
    )
    judge = f" Reader {readers[pair.judge]}: {pair.why}" if pair.why and pair.judge in readers else ""
    return f"* {pair.entity}, {pair.attribute}: {' against '.join(sides)}.{judge}"
