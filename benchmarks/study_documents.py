"""What readers of dealt documents bring together: `make study-documents`.

Documents with planted contradictions are dealt in real sessions. The readers are programs: each reports the contradictions of
which it is shown both sides, then as many of the other facts that it read as have room. So a figure says what reaches one prompt,
which no model can exceed, and not what a model notices. With inventories the readers note facts as rows, in one vocabulary or in
the words of the documents. Design, seeds and figures: docs/design/documents-study.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from consilience.deliberation import Deliberation
from consilience.documents.dealing import Deal
from consilience.documents.numbered import NumberedLines
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Message
from consilience.domain.tokens import BYTES_PER_TOKEN, estimate_tokens
from consilience.engine import dealing
from consilience.engine.execution import Options
from consilience.engine.prompt import Opening, Prompt, render
from consilience.engine.protocol import Protocol
from consilience.engine.sources import number_documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.baselines import Solo
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.review import Review
from simulation.document_sets import ATTRIBUTES, DocumentSet, FactStatement, make_document_set

TASK = "Where do these documents contradict each other?"
HELD_OUT = range(2_000, 2_010)
SECOND_HELD_OUT = range(3_000, 3_010)
THIRD_HELD_OUT = range(4_000, 4_010)
TUNING = range(1_000, 1_004)
WINDOWS = (16_000, 32_000, 128_000)
REPORT_TOKENS = 2_000
"""Max tokens of a report; less where a session has room for less."""
SEARCH_RESULTS = 10
_LINE = re.compile(r"^(?:(?:S\d+:)?\d+\| |\* )(.*)$|^  (?:first|second): .* — \"(.*)\" \[S\d+:\d+\]$", re.MULTILINE)
_BLOCK = re.compile(
    r"<quote \w+ from (?:document (S\d+)[^>]*|related lines of other parts)>\n(.*?)\n</quote", re.DOTALL
)
_PLACED = re.compile(r"^(?:(S\d+):)?(\d+)\| (.*)$", re.MULTILINE)

Pair = frozenset[str]
"""The texts of two statements."""


class Reading:
    """What a mechanical reader makes of prompts about a document set."""

    def __init__(self, documents: DocumentSet) -> None:
        self.statements = {statement.text: statement for statement in documents.statements}
        self.kinds = {name: values for name, (values, _) in ATTRIBUTES.items()}

    def facts(self, prompt: str) -> list[FactStatement]:
        """Return the facts that a prompt states, in order."""
        lines = dict.fromkeys(match[1] or match[2] for match in _LINE.finditer(prompt))
        return [self.statements[line] for line in lines if line in self.statements]

    def conflicts(self, facts: Iterable[FactStatement]) -> Iterator[Pair]:
        """Yield pairs with different values of one attribute of one site."""
        for one, other in self._of_one_site(facts):
            if one.attribute == other.attribute and one.value != other.value:
                yield frozenset((one.text, other.text))

    def suspicions(self, facts: Iterable[FactStatement]) -> Iterator[Pair]:
        """Yield pairs with different values of one kind (a date, an amount, …) on one site, as a hasty reader reports them."""
        for one, other in self._of_one_site(facts):
            if self.kinds[one.attribute] is self.kinds[other.attribute] and one.value != other.value:
                yield frozenset((one.text, other.text))

    def _of_one_site(self, facts: Iterable[FactStatement]) -> Iterator[tuple[FactStatement, FactStatement]]:
        by_site: dict[str, list[FactStatement]] = {}
        for fact in facts:
            by_site.setdefault(fact.site, []).append(fact)
        for group in by_site.values():
            yield from itertools.combinations(group, 2)

    def inventory(self, prompt: str, room: int, *, own_words: bool) -> str:
        """Return the facts of a prompt as rows in at most so many tokens, those first that contradict each other. With `own_words`
        an attribute is called by the words of the first fact in which the reader meets it, else as everywhere."""
        places = {
            words: (named or document, int(line))
            for document, block in _BLOCK.findall(prompt)
            for named, line, words in _PLACED.findall(block)
        }
        facts = self.facts(prompt)
        first = [self.statements[text] for pair in self.conflicts(facts) for text in sorted(pair)]
        rows, names = list[dict[str, object]](), dict[str, str]()
        for fact in dict.fromkeys((*first, *facts)):
            document, line = places[fact.text]
            attribute = names.setdefault(fact.attribute, _words_of(fact) if own_words else fact.attribute)
            row: dict[str, object] = {
                "entity": fact.site,
                "attribute": attribute,
                "value": fact.value,
                "document": document,
            }
            row |= {"line": line, "quotation": fact.text}
            room -= estimate_tokens(json.dumps(row)) + 1
            if room < 0:
                break
            rows.append(row)
        return json.dumps({"rows": rows})

    def judge(self, prompt: str) -> str:
        """Say of each pair of rows in a prompt whether its passages contradict each other."""
        pairs = []
        for name, sides in re.findall(r"^(P\d+)\n((?:  .*\n?)+)", prompt, re.MULTILINE):
            is_conflict = any(True for _ in self.conflicts(self.facts(sides)))
            pairs.append({"pair": name, "says": "contradiction" if is_conflict else "no contradiction"})
        return json.dumps({"pairs": pairs})

    def report(self, prompt: str, room: int) -> str:
        """Return the contradictions in a prompt, then other facts, in at most so many tokens."""
        facts = self.facts(prompt)
        told = dict.fromkeys(text for pair in self.conflicts(facts) for text in sorted(pair))
        told |= dict.fromkeys(fact.text for fact in facts)
        lines = list[str]()
        for text in told:
            room -= estimate_tokens(text) + 1
            if room < 0:
                break
            lines.append(f"* {text}")
        return "\n".join(lines) or "Nothing."


def _words_of(fact: FactStatement) -> str:
    """Return the words of a fact without its site and value, as a name of its attribute."""
    rest = fact.text.replace(fact.value, " ").replace(fact.site, " ")
    return " ".join(word for word in re.findall(r"[a-z]{4,}", rest))


@dataclass
class Flow:
    """What came together in one way of reading one set."""

    tokens: int = 0
    found: set[Pair] = field(default_factory=set)
    suspected: set[Pair] = field(default_factory=set)
    joined: list[Pair] = field(default_factory=list)
    """Pairs of rows that a reader was shown."""
    left_out: int = 0

    def read(self, reading: Reading, prompt: str, window: int) -> None:
        """Read a prompt, as far as the window reaches."""
        facts = reading.facts(prompt[: int(window * BYTES_PER_TOKEN)])
        self.tokens += estimate_tokens(prompt)
        self.found |= {*reading.conflicts(facts)}
        self.suspected |= {*reading.suspicions(facts)}


Way = Callable[[DocumentSet, int], Flow | None]
"""Reads a set in a window; None if it does not fit."""


@dataclass(frozen=True)
class Dealing:
    """How a dealt session reads."""

    inventory_tokens: int = 0
    related: bool = True
    own_words: bool = False


def in_session(
    documents: DocumentSet, protocol: Protocol, window: int, deal: Deal, how: Dealing = Dealing()
) -> Flow | None:
    """Read a set in a session of a protocol, as a user's run would; None if its prompts have no room in the window."""
    reading, flow = Reading(documents), Flow()

    def reply(request: ModelRequest) -> str:
        flow.read(reading, request.text, window)
        if request.key.startswith("inventory"):
            return reading.inventory(request.text, how.inventory_tokens, own_words=how.own_words)
        if request.key.startswith("matching"):
            return reading.judge(request.text)
        if request.key.startswith("split"):
            part = {"title": "A part", "instructions": "List contradictions in your documents, then all other facts."}
            return json.dumps({"parts": [part] * 64})
        if request.key.startswith("review"):
            return json.dumps(
                {"read": [], "findings": [], "vote": "approve", "confidence": 0.5, "reason": "None found."}
            )
        return json.dumps({"text": reading.report(request.text, min(REPORT_TOKENS, request.max_tokens)), "claims": []})

    deliberation = Deliberation(
        protocol,
        model=ScriptedModel(reply, context_window=window),
        sources=documents.sources,
        store=SqliteStore(":memory:"),
        options=Options(deal=deal, inventory_tokens=how.inventory_tokens),
    )
    share = dealing.RELATED_SHARE
    dealing.RELATED_SHARE = share if how.related else 0.0
    try:
        report = asyncio.run(deliberation.run(TASK))
    except SettingsError:
        return None
    finally:
        dealing.RELATED_SHARE = share
    if report.across is not None:
        flow.joined = [frozenset((p.first.words, p.second.words)) for p in report.across.pairs]
        flow.left_out = report.across.left_out
    return flow


def one_reading(documents: DocumentSet, window: int) -> Flow | None:
    flow = whole(documents)
    return flow if flow.tokens + Solo().max_reply_tokens <= window else None


def whole(documents: DocumentSet) -> Flow:
    """Read all documents in the prompt of one call."""
    templates, flow = Solo.load_templates(), Flow()
    opening = Opening(templates.render(INSTRUCTIONS, documents=True), TASK, number_documents(documents.sources))
    prompt = render(
        opening, "agent", Prompt("Answer the task."), lambda id: Message(id=id, kind="", sender="", text="")
    )
    flow.read(Reading(documents), f"{prompt.system}\n\n{prompt.user}", 10_000_000)
    return flow


def dealt(documents: DocumentSet, window: int) -> Flow | None:
    return in_session(documents, Decompose(), window, "document")


def map_reduce(documents: DocumentSet, window: int) -> Flow | None:
    """The same shares without related lines: each is read alone, and one call reads the reports."""
    return in_session(documents, Decompose(), window, "document", Dealing(related=False))


def emerging(documents: DocumentSet, window: int) -> Flow | None:
    return in_session(documents, Emergence(max_rounds=1), window, "document")


def reviewed(documents: DocumentSet, window: int) -> Flow | None:
    """Each part is read by one reviewer, with the related lines of other parts."""
    return in_session(documents, Review(review_type="documentation", reviewers=1, max_iterations=1), window, "none")


def with_inventories(how: Dealing) -> Way:
    return lambda documents, window: in_session(documents, Decompose(), window, "document", how)


def searching(documents: DocumentSet, window: int) -> Flow | None:
    """One agent that looks up every name it comes across, and reads on in the documents when it knows no further name, until it has
    read as many tokens as the dealt session.

    What it reads is counted once, as if every earlier prompt were cached, and drops out when half of the window is full.
    """
    reading, flow = Reading(documents), Flow()
    if (session := dealt(documents, window)) is None:
        return None
    lines = [line for source in documents.sources for line in NumberedLines(source.text).texts if line.strip()]
    by_word: dict[str, list[int]] = {}
    for n, line in enumerate(lines):
        for word in {*re.findall(r"\w+", line)}:
            by_word.setdefault(word, []).append(n)
    queue, asked, context = deque[str](), set[str](), deque[tuple[str, int]]()
    size = following = 0
    while (queue or following < len(lines)) and flow.tokens < session.tokens:
        results: Sequence[int] = range(following, min(following + SEARCH_RESULTS, len(lines)))
        if queue:
            name = queue.popleft().strip(".,")
            if name in asked or not name[:1].isupper() or not 1 < len(by_word.get(name, ())) <= 60:
                continue
            asked.add(name)
            results = by_word[name][:SEARCH_RESULTS]
        else:
            following += SEARCH_RESULTS
        for n in results:
            tokens = estimate_tokens(lines[n]) + 3
            context.append((lines[n], tokens))
            size += tokens
            flow.tokens += tokens
            queue.extend(lines[n].split())
            while size > window // 2:
                size -= context.popleft()[1]
        facts = reading.facts("\n".join(f"* {line}" for line, _ in context))
        flow.found |= {*reading.conflicts(facts)}
        flow.suspected |= {*reading.suspicions(facts)}
    return flow


WAYS: dict[str, Way] = {
    "one reading": one_reading,
    "decompose --deal document": dealt,
    "emergence --deal document --max-rounds 1": emerging,
    "review --type documentation": reviewed,
    "map-reduce, the same shares": map_reduce,
    "one agent with search": searching,
    "inventories of 2,000, no related lines": with_inventories(Dealing(2_000, related=False)),
    "inventories of 4,000, no related lines": with_inventories(Dealing(4_000, related=False)),
    "inventories of 8,000, no related lines": with_inventories(Dealing(8_000, related=False)),
    "inventories of 8,000, no related lines, own words": with_inventories(
        Dealing(8_000, related=False, own_words=True)
    ),
    "inventories of 2,000 and related lines": with_inventories(Dealing(2_000)),
    "inventories of 2,000 and related lines, own words": with_inventories(Dealing(2_000, own_words=True)),
}


@dataclass(frozen=True)
class Row:
    """A way of reading in a window, over several sets."""

    way: str
    window: int
    across: tuple[int, int]
    """Pairs across owners that were found, and all."""
    within: tuple[int, int]
    precision: float
    """Share of planted pairs among what a hasty reader reports."""
    joined: tuple[int, int]
    """Planted pairs among the pairs of rows that readers were shown, and all of these."""
    left_out: int
    """Pairs of rows for which there was no room."""
    readings: float
    """Prompt tokens, in readings of all documents by one call."""


def measure(sets: Sequence[DocumentSet], windows: Sequence[int]) -> Iterator[Row]:
    single = [whole(documents).tokens for documents in sets]
    for window, (name, way) in itertools.product(windows, WAYS.items()):
        flows = [way(documents, window) for documents in sets]
        if any(flow is None for flow in flows):
            continue
        counts: Counter[str] = Counter()
        for documents, flow in zip(sets, flows, strict=True):
            assert flow is not None
            for pair in documents.pairs:
                counts[pair.reach] += 1
                counts[f"{pair.reach} found"] += frozenset((pair.first.text, pair.second.text)) in flow.found
            counts["suspected"] += len(flow.suspected)
            planted = {frozenset((pair.first.text, pair.second.text)) for pair in documents.pairs}
            counts["joined"] += len(flow.joined)
            counts["joined planted"] += len(planted.intersection(flow.joined))
            counts["left out"] += flow.left_out
        true = counts["across found"] + counts["within found"]
        yield Row(
            name,
            window,
            (counts["across found"], counts["across"]),
            (counts["within found"], counts["within"]),
            true / max(counts["suspected"], 1),
            (counts["joined planted"], counts["joined"]),
            counts["left out"],
            sum(flow.tokens for flow in flows if flow) / sum(single),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuning", action="store_true", help="the seeds that parameters were chosen with")
    parser.add_argument("--sets", type=int, default=len(HELD_OUT), help="number of document sets")
    parser.add_argument("--tokens", type=int, default=56_000, help="size of a set")
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS), help="context windows, tokens")
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--again", action="store_true", help="the seeds kept for the table with inventories")
    tables.add_argument("--budgets", action="store_true", help="the seeds kept for the table within windows")
    options = parser.parse_args()
    held_out = THIRD_HELD_OUT if options.budgets else SECOND_HELD_OUT if options.again else HELD_OUT
    seeds = (TUNING if options.tuning else held_out)[: options.sets]
    sets = [make_document_set(seed, tokens=options.tokens) for seed in seeds]
    print(f"{len(sets)} sets of about {options.tokens:,} tokens, seeds {seeds[0]} to {seeds[-1]}\n")
    print(
        "| window | way | across owners | within a document | precision, hasty reader | planted of joined pairs | left out "
        "| tokens, × one reading |"
    )
    print("|--:|---|--:|--:|--:|--:|--:|--:|")
    for row in measure(sets, options.windows):
        across, within = (f"{found} of {all}" for found, all in (row.across, row.within))
        joined = f"{row.joined[0]} of {row.joined[1]}" if row.joined[1] else "–"
        print(
            f"| {row.window:,} | {row.way} | {across} | {within} | {row.precision:.0%} | {joined} | {row.left_out} | "
            f"{row.readings:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
