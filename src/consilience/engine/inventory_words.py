"""What the engine says to readers of dealt documents about inventories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from consilience.documents.joining import RowPair
from consilience.domain.across import DocumentPair
from consilience.domain.agents import Agent
from consilience.domain.tokens import estimate_tokens
from consilience.engine.prompt import fence_quote
from consilience.engine.readers import FINDINGS_TOKENS

ROW_TOKENS = 70
"""A row of an inventory as models write it."""

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


def inventory_words(reader: Agent, duty: str, tokens: int) -> str:
    """Return the request for an inventory."""
    seat = "\n".join(filter(None, (reader.introduction(perspective=""), duty)))
    return f"""{seat}

Before the work on the task begins, take an inventory of what you are shown of the documents. Other readers do the same with the
other parts; nobody reads all of them. The rows of all readers are joined, to find what one document says otherwise than another.

Write one row for each statement that another document may make otherwise, or that the task needs:
- entity: what it is about, by its own name, as the documents write it
- attribute: what is stated of it, in the plainest usual words, such as "end of the lease" or "monthly rent"
- value: the value alone, such as a date, an amount, a number, a name or a duty
- document, line: where the quotation begins, such as S4 and 120
- quotation: the exact words, no more than hold the statement

Use the same words for the same entity and the same attribute in all rows. Begin with statements that differ from each other on one
thing, those in related lines of other parts included, then go on with what matters most. There is room for about
{max(tokens // ROW_TOKENS, 1)} rows. A row whose quotation is not in the document is left out.

requests: passages of other parts without which you cannot judge what you read, such as document S4, lines 120-140, and why; you are
shown them from your next prompt on, as far as you may read them and there is room. [] if you need none.""".strip()


def describe_pair(n: int, pair: RowPair) -> str:
    """Return the n-th pair (from 0) as a reader is shown it."""
    sides = (
        f'  {name}: {row.entity}, {row.attribute}: {row.value} — "{row.words}" [{row.document}:{row.line}]'
        for name, row in (("first", pair.first), ("second", pair.second))
    )
    return "\n".join([f"P{n + 1}", *sides])


def compare_words(pairs: Sequence[tuple[int, RowPair]]) -> str:
    """Return the request to judge pairs of rows."""
    listed = fence_quote("\n".join(describe_pair(n, pair) for n, pair in pairs), "the inventories")
    return f"""\
The inventories of all readers were joined. Below are pairs of rows that seem to speak of one thing and state different values; one
row of each pair is your own. The quotations stand in the documents where the rows say.

{listed}

Judge each pair:
- pair: its name
- says: "contradiction" if both passages cannot be true of the same thing at the same time; "no contradiction" if they speak of
  different things, times or conditions, or say the same in other words
- why: one sentence
- first_worth, second_worth: what each passage is worth if they contradict each other, such as how recent or binding its
  document is, in a few words"""


def findings_note(pairs: Sequence[DocumentPair], readers: Mapping[str, int]) -> str:
    """Return what prompts show of the contradictions between documents; empty without any."""
    if not pairs:
        return ""
    lines, room = list[str](), FINDINGS_TOKENS
    for pair in pairs:
        line = _finding_line(pair, readers)
        room -= estimate_tokens(line)
        if room < 0:
            break
        lines.append(line)
    left_out = [f"({len(pairs) - len(lines):,} further ones left out)"] if len(lines) < len(pairs) else []
    listed = fence_quote("\n".join((*lines, *left_out)), "the inventories")
    return (
        "Readers of the documents compared their inventories and judged that these passages contradict each other. The quotations "
        f"stand in the documents where it says; you may repeat them.\n\n{listed}"
    )


def _finding_line(pair: DocumentPair, readers: Mapping[str, int]) -> str:
    sides: Iterable[str] = (
        f'"{side.words}" [{side.document}:{side.line}]' + (f" ({side.worth})" if side.worth else "")
        for side in (pair.first, pair.second)
    )
    judge = f" Reader {readers[pair.judge]}: {pair.why}" if pair.why and pair.judge in readers else ""
    return f"* {pair.entity}, {pair.attribute}: {' against '.join(sides)}.{judge}"
