"""Prompts as lists of parts. The engine renders them, so it knows what every call was shown.

Parts are ordered from the most shared to the most private: the protocol's instructions, the task, the documents, what some calls
share, quotations of messages, the request. Quoted text is fenced by a mark from its own digest, which no text can contain of
itself.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from pydantic import BaseModel

from consilience.domain.content import MAX_CACHED_CHARS
from consilience.domain.detail import CAP, CAPS, Caps
from consilience.domain.document_shares import Purpose
from consilience.domain.errors import ProtocolViolation
from consilience.domain.events import text_id
from consilience.domain.messages import LABELLED_APART, Message
from consilience.domain.prompt_parts import PromptPart, PromptText, QuotedMessage, RelatedLines, ShownDocument
from consilience.domain.tokens import estimate_tokens
from consilience.engine.document_index import INDEX_NOTE, make_index
from consilience.engine.sources import Document, select_documents
from consilience.journal.store import PromptParts

PROMPT_FORMAT = 2


NUMBERED = "Below are documents with numbered lines."
HOW_TO_QUOTE = (
    f"{NUMBERED} Where you rest on one, quote its exact words, the document and the line, "
    'like this: "exact words" [S1:2].'
)
"""What the engine can verify, and so what is asked for where documents are shown."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A quoted message."""

    id: str
    label: str
    """The name by which the reader may refer to it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a protocol adds after instructions, task and documents."""

    request: str
    """What is asked now; it comes last."""
    quotes: tuple[Quote, ...] = ()
    """Quotations for this agent only."""
    shared: tuple[Quote, ...] = ()
    """Quotations that open the prompts of several agents alike."""
    documents: tuple[str, ...] | None = None
    """Documents, or lines of them, to show: `("S3", "S4:120-380")`, `()` for none. None: all that are open to the agent."""
    related: tuple[str, ...] = ()
    """Lines of documents to show together after those that `documents` names, because they are related to them."""
    preface: tuple[str, ...] = ()
    """Texts between documents and quotations that open the prompts of several agents alike."""
    asks_for_quotations: bool = True
    """Whether documents come with the engine's words on how to quote them. Not where fields of the reply are for quotations."""


@dataclass(frozen=True)
class Opening:
    """The beginning of all prompts of a session."""

    instructions: str
    task: str
    documents: tuple[Document, ...] = ()
    readers: tuple[str, ...] | None = None
    """Agents that are shown the documents open to all; None for every agent."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What each agent is told of the documents by the engine, after those that are open to it."""
    granted: Mapping[str, tuple[Document, ...]] = field(default_factory=dict)
    """Passages that each agent is shown because it asked for them."""
    window: int | None = None
    """The smallest known context window of the agents, in tokens: what prompts show of dealt documents besides shares follows from
    it."""

    @cached_property
    def refs(self) -> tuple[str, str]:
        return str(PromptText("i", text_id(self.instructions))), str(PromptText("k", text_id(self.task)))

    @cached_property
    def heading(self) -> str:
        return f"# Task\n{self.task}"

    @cached_property
    def index(self) -> str:
        """Who holds which lines of dealt documents; empty if none are dealt."""
        is_dealt = any(document.shares for document in self.documents)
        return make_index(self.documents, self.index_tokens) if is_dealt else ""

    @property
    def index_tokens(self) -> int:
        """Max size of the index."""
        return _part_of(self.window, 16)

    @property
    def aside_tokens(self) -> int:
        """Max size of the contradictions that a prompt shows, and of the passages that a reader is shown because it asked for
        them."""
        return _part_of(self.window, 32)

    def documents_for(self, agent: str) -> tuple[Document, ...]:
        """What the agent is shown of the documents. Those open to all come first, to make the shared opening as long as possible,
        and related lines last."""
        if not self.documents:
            return ()
        reads = self.readers is None or agent in self.readers
        visible = [
            part
            for document in self.documents
            if (reads if document.agents is None else agent in document.agents)
            for part in (document.parts_for(agent) if document.shares else (document,))
        ]
        visible += self.granted.get(agent, ())
        return tuple(sorted(visible, key=lambda d: (not d.is_common, d.is_related)))

    def shown(
        self, agent: str, references: tuple[str, ...] | None, related: tuple[str, ...] = ()
    ) -> tuple[Document, ...]:
        """Return the documents that a call shows: those it names, private ones last, or all that are open to the agent; then the
        related lines that it names.

        Raises `ProtocolViolation` for a document that does not exist or that the agent may not see.
        """
        if references is None:
            return self.documents_for(agent)
        named = sorted(select_documents(references, self.documents, agent), key=lambda d: not d.is_common)
        return (*named, *(replace(d, is_related=True) for d in select_documents(related, self.documents, agent)))


def _part_of(window: int | None, divisor: int) -> int:
    return 1_000 if window is None else min(max(window // divisor, 500), 2_000)


PromptBlock = str | tuple[str, str]
"""A text, or a quoted text with its label."""


@dataclass
class Rendered:
    """A prompt as sent and as stored."""

    system: str
    blocks: Sequence[PromptBlock]
    """What `user` is joined from."""
    parts: PromptParts
    """A reference to each part, as stored."""
    digested: list[str]
    """The same, with the id of the text if the reference alone does not determine the text."""
    shown: tuple[str, ...]
    """Ids of the quoted messages."""
    texts: tuple[str, ...]
    """Texts to store with the prompt."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Ids of the messages of other agents, by label; a reply may name them."""
    kinds: tuple[tuple[str, str], ...] = ()
    """The kinds of those messages, as pairs of label and kind."""
    common: tuple[int, ...] = ()
    """How many blocks open the prompts of every agent, and of the agents that are asked alike."""
    _texts: Sequence[str] = ()
    _user: str | None = None

    @property
    def shared(self) -> tuple[int, ...]:
        """Lengths in characters of the beginnings of `user` that other prompts share."""
        texts = self._texts
        return tuple(dict.fromkeys([sum(map(len, texts[:n])) + 2 * n for n in self.common]))

    @property
    def user(self) -> str:
        """Joined on first use: a replay does not need it."""
        if self._user is None:
            self._texts = [_block_text(block) for block in self.blocks]
            self._user = "\n\n".join(self._texts)
        return self._user

    @property
    def quoted(self) -> tuple[str, ...]:
        """The quoted texts of messages, in order."""
        blocks = zip(self.parts.parts[1:], self.blocks, strict=True)  # the instructions are no block
        return tuple(block[0] for part, block in blocks if part.startswith("q:"))

    def for_person(self, instructions: str, request: str, *, corrected: bool) -> str:
        """Return the prompt with other instructions, and with `request`, if there is one, in place of the last block or of the one
        before a correction."""
        blocks = list(self.blocks)
        if request:
            blocks[-2 if corrected else -1] = request
        return "\n\n".join(filter(None, [instructions, *map(_block_text, blocks)]))

    @property
    def digest(self) -> str:
        return hashlib.sha256("\x1e".join(self.digested).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def tokens(self) -> int:
        return estimate_tokens(self.system) + estimate_tokens(self.user) + 16


def fence_mark(text: str) -> str:
    """Return the first hex digits of the text's SHA-256: 8, more if the text contains them."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    length = next(n for n in range(8, 65) if digest[:n] not in text or n == 64)
    return digest[:length]


def fence_quote(text: str, label: str) -> str:
    mark = fence_mark(text)
    return f"<quote {mark} from {label}>\n{text}\n</quote {mark}>"


_fence_short_quote = lru_cache(maxsize=1024)(fence_quote)


def _block_text(block: PromptBlock) -> str:
    if isinstance(block, str):
        return block
    return _fence_short_quote(*block) if len(block[0]) <= MAX_CACHED_CHARS else fence_quote(*block)


class _Parts:
    """The parts of a prompt in order: as stored, as digested, and as blocks of text."""

    def __init__(self, opening: Opening) -> None:
        self.stored = list(opening.refs)
        self.digested = self.stored.copy()
        self.blocks: list[PromptBlock] = [opening.heading]

    def add_text(self, text: str, label: str = "") -> None:
        """Add a text, quoted if it has a label."""
        self.stored.append(str(PromptText("t", text_id(text))))
        self.digested.append(self.stored[-1])
        self.blocks.append((text, label) if label else text)

    def add(self, part: PromptPart, text: str, text_id: str, label: str) -> None:
        """Add a quoted text that the stored part stands for."""
        self.stored.append(str(part))
        self.digested.append(f"{part}:{text_id}")
        self.blocks.append((text, label))

    def add_documents(self, documents: Sequence[Document]) -> int:
        """Add documents, and related lines of one purpose as one part; return how many parts these are."""
        parts = len(self.stored)
        gathered: dict[str, list[Document]] = {label: [] for label in _GATHERED.values()}
        for document in documents:
            if document.is_related and document.purpose in _GATHERED:
                gathered[_GATHERED[document.purpose]].append(document)
                continue
            shown = ShownDocument(document.id, document.lines)
            self.add(
                shown, document.numbered, document.part_id, f"{document.purpose or 'document'} {document.reference}"
            )
        for label, lines in gathered.items():
            if lines:
                text = "\n".join(_referenced(lines))
                reference = RelatedLines(tuple(ShownDocument(d.id, d.lines) for d in lines))
                self.add(reference, text, text_id(text), label)
        return len(self.stored) - parts


_GATHERED: Mapping[Purpose, str] = {
    "": "related lines of other parts",
    "repository": "lines of the repository outside the change",
}
"""What related lines of a purpose are called that are shown together; others are shown as documents."""


def _referenced(lines: Sequence[Document]) -> Iterator[str]:
    """Yield lines of several documents; those of the repository, below the name of their file."""
    name = ""
    for document in lines:
        if document.purpose and document.name != name:
            name = document.name
            yield f"{document.id} {' '.join(name.split())}"
        yield document.referenced


def render(
    opening: Opening, agent: str, prompt: Prompt, message: Callable[[str], Message], correction: str | None = None
) -> Rendered:
    """Render the prompt for one attempt. `message` finds a quoted message; `correction` says why the last reply was unusable.

    Raises `ProtocolViolation` for a document or message that the agent may not be shown.
    """
    parts = _Parts(opening)
    visible = opening.shown(agent, prompt.documents, prompt.related)
    quotation_note = HOW_TO_QUOTE if prompt.asks_for_quotations else NUMBERED
    if opening.index:
        parts.add_text(INDEX_NOTE)
        parts.add_text(opening.index, "the index")
    if visible:
        parts.add_text(quotation_note)
    parts.add_documents([document for document in visible if document.is_common])
    private = parts.add_documents([document for document in visible if not document.is_common])
    if note := opening.notes.get(agent, "") if prompt.documents is None else "":
        parts.add_text(note)
        private += 1
    uncommon = private if prompt.documents is None else len(visible)
    following = len(prompt.preface) + len(prompt.shared)
    opening_parts = len(parts.stored) - private if private else len(parts.stored) + following
    common = (len(parts.blocks) - uncommon, len(parts.blocks) + following)[: 1 if private else 2]
    for text in prompt.preface:
        parts.add_text(text)
    labels: dict[str, str] = {}
    kinds: list[tuple[str, str]] = []
    shown: list[str] = []
    for quote in (*prompt.shared, *prompt.quotes):
        id, label, quoted_text = quote.id, quote.label, message(quote.id)
        shown.append(id)
        parts.add(QuotedMessage(label, id), quoted_text.text, quoted_text.text_id, label)
        if quoted_text.sender != agent:
            check_visible(quoted_text, agent)
            labels[label] = id
            kinds.append((label, quoted_text.kind))
    request_texts = (prompt.request, correction) if correction else (prompt.request,)
    for text in request_texts:
        parts.add_text(text)
    notes = ((INDEX_NOTE, opening.index) if opening.index else ()) + ((quotation_note,) if visible else ())
    notes += (note,) if note else ()
    return Rendered(
        system=opening.instructions,
        blocks=parts.blocks,
        parts=PromptParts(tuple(parts.stored), opening_parts),
        digested=parts.digested,
        shown=tuple(shown),
        texts=(opening.instructions, *prompt.preface, *request_texts, *notes),
        labels=labels,
        kinds=tuple(kinds),
        common=common,
    )


def check_visible(message: Message, agent: str) -> None:
    """Raise `ProtocolViolation` if another agent's message is not for this one."""
    if message.sender != agent and agent not in message.audience:
        raise ProtocolViolation(f"{agent} may not be shown {message.id}, which is for {message.audience}")


def correction_text(reply: str, error: str) -> str:
    """Return what a corrective retry adds: the unusable reply, quoted, and the error."""
    excerpt = reply if len(reply) <= 600 else reply[:600] + " …"
    return f"{fence_quote(excerpt, 'your last reply')}\n\nThat reply could not be used: {error}. Reply again, as asked."


MAX_SCHEMAS = 2048
"""Schemas kept. Making one again takes half a millisecond."""

_Schema = tuple[dict[str, object] | None, str]
_schemas: dict[tuple[type[Any], tuple[tuple[str, str], ...], Caps], _Schema] = {}


def schema_for(returns: type[Any], labels: tuple[tuple[str, str], ...], caps: Caps = CAPS["full"]) -> _Schema:
    """Return the JSON Schema to ask for (None for text) and its digest. `labels` are pairs of label and kind.

    Every property is required, so that a grammar makes the model write it. A label field may only hold the labels of its
    kind; if there are none, the property is left out and takes its default. `caps` bound the lists that name a cap.
    """
    if returns is str or not issubclass(returns, BaseModel):
        return None, "text"
    key = (returns, labels, caps)
    schema = _schemas.get(key)
    if schema is None:
        if len(_schemas) >= MAX_SCHEMAS:
            _schemas.clear()
        schema = _schemas[key] = _schema(returns, labels, caps)
    return schema


def _schema(returns: type[BaseModel], labels: tuple[tuple[str, str], ...], caps: Caps) -> _Schema:
    schema = json.loads(_plain_schema(returns))
    allowed: dict[str, list[str]] = defaultdict(list)
    for label, kind in labels:
        allowed[kind].append(label)
    allowed["message"] = [label for label, kind in labels if kind not in LABELLED_APART]
    definitions = schema.get("$defs", {})
    _tighten(schema, allowed, definitions, caps)
    return schema, text_id(json.dumps(schema, sort_keys=True))


@lru_cache(maxsize=256)
def _plain_schema(returns: type[BaseModel]) -> str:
    """Return pydantic's schema as JSON. Making it takes ten times as long as adding labels to a copy."""
    return json.dumps(returns.model_json_schema())


def _tighten(node: object, allowed: Mapping[str, list[str]], definitions: Mapping[str, object], caps: Caps) -> None:
    if isinstance(node, list):
        for item in node:
            _tighten(item, allowed, definitions, caps)
    if not isinstance(node, dict):
        return
    properties = node.get("properties")
    if isinstance(properties, dict):
        for name in [n for n, p in properties.items() if _lacks_labels(p, allowed, definitions)]:
            del properties[name]
        node["required"] = list(properties)
        node["additionalProperties"] = False
    kind = node.pop("x-labels", None)
    if kind is not None:
        node["enum"] = allowed[kind]
    cap = node.pop(CAP, None)
    if cap is not None:
        node["maxItems"] = getattr(caps, cap)
    for annotation in ("default", "title", "description"):
        if not isinstance(node.get(annotation), dict):  # else it is a property of that name
            node.pop(annotation, None)
    for child in list(node.values()):
        _tighten(child, allowed, definitions, caps)


def _lacks_labels(
    node: object, allowed: Mapping[str, list[str]], definitions: Mapping[str, object], within: tuple[str, ...] = ()
) -> bool:
    """Return whether a property can only be filled with a label and no label exists. `within` are the references being followed:
    a recursive one decides nothing."""
    if not isinstance(node, dict):
        return False
    if "x-labels" in node:
        return not allowed[node["x-labels"]]
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        target = definitions.get(name)
        if name in within or not isinstance(target, dict):
            return False
        inside = (*within, name)
        return any(_lacks_labels(p, allowed, definitions, inside) for p in target.get("properties", {}).values())
    inner = [node["items"]] if "items" in node else [n for n in node.get("anyOf", []) if n != {"type": "null"}]
    return bool(inner) and all(_lacks_labels(n, allowed, definitions, within) for n in inner)


Parameters = tuple[tuple[str, object], ...]
"""The parameters of a request by name, without the seed."""


def request_digest(rendered: Rendered, agent: str, model: str, parameters: Parameters, seed: int, schema: str) -> str:
    """SHA-256 (first 32 hex digits) of all that makes requests equal: agent, model, parameters, schema, format, parts."""
    before, after = _frame(agent, model, parameters, schema)
    return hashlib.sha256(f'{before}{seed}{after}{rendered.digest}"]'.encode()).hexdigest()[:32]


@lru_cache(maxsize=1024)
def _frame(agent: str, model: str, parameters: Parameters, schema: str) -> tuple[str, str]:
    """The JSON of a request before its seed, and between seed and digest of its parts."""
    body = json.dumps([PROMPT_FORMAT, agent, model, {**dict(parameters), "seed": 0}, schema, ""], sort_keys=True)
    before, name, after = body.rpartition('"seed": 0')
    return f"{before}{name[:-1]}", after[:-2]


def request_seed(seed: int, key: str, attempt: int) -> int:
    """The seed of one attempt of one call, as sent to the model."""
    digest = hashlib.sha256(f"{seed}/{key}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
