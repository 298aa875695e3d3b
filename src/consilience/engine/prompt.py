"""Prompts as lists of parts, rendered by the engine, which so knows what every call has read.

Parts run from the most shared to the most private: the protocol's instructions, the task, the documents, then what the
protocol adds: quotations of messages, and last the words of the request. Quoted text stands in a fence marked by its own
digest, which no text can hold of itself.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from pydantic import BaseModel

from consilience.domain.detail import CAP, CAPS, Caps
from consilience.domain.events import MAX_CACHED_CHARS, text_id
from consilience.domain.messages import LABELLED_APART, Message
from consilience.engine.sources import Document, select_documents
from consilience.journal.store import PromptParts

PROMPT_FORMAT = 2

BYTES_PER_TOKEN = 3.5
"""Per token, low for English text so that estimates lie high."""


HOW_TO_QUOTE = (
    "Below are documents with numbered lines. Where you rest on one, quote its exact words, the document and the line, "
    'like this: "exact words" [S1:2].'
)
"""What the engine can verify, and so what is asked for wherever documents are shown."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A message under the label by which this reader may name it."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a protocol adds behind instructions, task and documents.

    `shared` opens the prompts of several agents alike; `quotes` are this agent's; `request` is what is asked now.
    """

    request: str
    quotes: tuple[Quote, ...] = ()
    shared: tuple[Quote, ...] = ()
    documents: tuple[str, ...] | None = None
    """Documents, or lines of them, that this call is shown: `("S3", "S4:120-380")`, `()` for none. None: all open to the agent."""


@dataclass(frozen=True)
class Opening:
    """What all prompts of a session begin with. Documents open to all are shown to `readers`, to everybody where that is None."""

    instructions: str
    task: str
    documents: tuple[Document, ...] = ()
    readers: tuple[str, ...] | None = None

    @cached_property
    def refs(self) -> tuple[str, str]:
        return f"i:{text_id(self.instructions)}", f"k:{text_id(self.task)}"

    def documents_for(self, agent: str) -> tuple[Document, ...]:
        """Those open to all first, so that the shared opening is as long as can be."""
        if not self.documents:
            return ()
        reads = self.readers is None or agent in self.readers
        seen = [d for d in self.documents if (reads if d.agents is None else agent in d.agents)]
        return tuple(sorted(seen, key=lambda d: d.agents is not None))

    def shown(self, agent: str, references: tuple[str, ...] | None) -> tuple[Document, ...]:
        """What a call shows: the documents it names, those for single agents last, or all open to the agent.

        Raises `ProtocolViolation` for a document that does not exist or that the agent may not see.
        """
        if references is None:
            return self.documents_for(agent)
        return tuple(sorted(select_documents(references, self.documents, agent), key=lambda d: d.agents is not None))


Block = str | tuple[str, str]
"""Words, or a text and the label under which it is quoted."""


@dataclass
class Rendered:
    """A prompt as sent and as stored. `shown` are the message ids in it, `labels` those of others, which a reply may name, and
    `kinds` what they are; `texts` the words that are stored with it. `digested` names each part, with its text's id where another
    text could stand under the same reference; the first `opening` parts open other prompts too."""

    system: str
    blocks: tuple[Block, ...]
    digested: tuple[str, ...]
    opening: int
    shown: tuple[str, ...]
    texts: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[tuple[str, str], ...] = ()
    common: tuple[int, ...] = ()
    """Numbers of blocks that open prompts of other agents too: those of every agent, then those of the agents asked alike."""

    @property
    def shared(self) -> tuple[int, ...]:
        """Lengths in characters of the beginnings of `user` that these blocks make."""
        lengths = [len("\n\n".join(map(_block_text, self.blocks[:n]))) + 2 for n in self.common]
        return tuple(dict.fromkeys(lengths))

    @cached_property
    def user(self) -> str:
        """Joined when first asked for: a replay sends nothing."""
        return "\n\n".join(map(_block_text, self.blocks))

    @cached_property
    def parts(self) -> PromptParts:
        """References as stored: what is quoted is known by its id."""
        refs = (ref.rpartition(":")[0] if ref[0] in "sq" else ref for ref in self.digested)
        return PromptParts(tuple(refs), self.opening)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\x1e".join(self.digested).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def tokens(self) -> int:
        return estimate_tokens(self.system) + estimate_tokens(self.user) + 16


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text. Its bytes in UTF-8 tell them in any script, as long as the tokenizer was made for that."""
    return int(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN) + 1


def fence_mark(text: str) -> str:
    """The first 8 hex digits of the text's SHA-256, more if the text holds them."""
    return _short_fence(text) if len(text) <= MAX_CACHED_CHARS else _make_fence(text)


def _make_fence(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    length = next(n for n in range(8, 65) if digest[:n] not in text or n == 64)
    return digest[:length]


_short_fence = lru_cache(maxsize=4096)(_make_fence)


def fence_quote(text: str, label: str) -> str:
    mark = fence_mark(text)
    return f"<quote {mark} from {label}>\n{text}\n</quote {mark}>"


def _block_text(block: Block) -> str:
    return block if isinstance(block, str) else fence_quote(*block)


def render(
    opening: Opening, agent: str, prompt: Prompt, message: Callable[[str], Message], correction_text: str | None = None
) -> Rendered:
    """The prompt for one attempt. `message` finds a quoted message; `correction_text` says what was wrong with the last reply."""
    digested = list(opening.refs)
    blocks: list[Block] = [f"# Task\n{opening.task}"]
    visible = opening.shown(agent, prompt.documents)
    if visible:
        digested.append(f"t:{text_id(HOW_TO_QUOTE)}")
        blocks.append(HOW_TO_QUOTE)
    for document in visible:
        digested.append(f"s:{document.reference}:{document.part_id}")
        blocks.append((document.numbered, f"document {document.reference}"))
    private = sum(document.agents is not None for document in visible)
    some = len(visible) if prompt.documents is not None else private
    shared = len(digested) - private if private else len(digested) + len(prompt.shared)
    common = (len(blocks) - some, len(blocks) + len(prompt.shared))[: 1 if private else 2]
    labels: dict[str, str] = {}
    kinds: list[tuple[str, str]] = []
    quotes = (*prompt.shared, *prompt.quotes)
    for quote in quotes:
        said = message(quote.id)
        digested.append(f"q:{quote.label}:{quote.id}:{said.text_id}")
        blocks.append((said.text, quote.label))
        if said.sender != agent:
            labels[quote.label] = quote.id
            kinds.append((quote.label, said.kind))
    own = (prompt.request, correction_text) if correction_text else (prompt.request,)
    for words in own:
        digested.append(f"t:{text_id(words)}")
        blocks.append(words)
    return Rendered(
        system=opening.instructions,
        blocks=tuple(blocks),
        digested=tuple(digested),
        opening=shared,
        shown=tuple([quote.id for quote in quotes]),
        texts=(opening.instructions, *own, HOW_TO_QUOTE) if visible else (opening.instructions, *own),
        labels=labels,
        kinds=tuple(kinds),
        common=common,
    )


def correction_text(reply: str, error: str) -> str:
    """What a corrective retry adds: the reply that failed, as a quotation, and why."""
    head = reply if len(reply) <= 600 else reply[:600] + " …"
    return f"{fence_quote(head, 'your last reply')}\n\nThat reply could not be used: {error}. Reply again, as asked."


MAX_SCHEMAS = 2048
"""Schemas kept; one is made anew in half a millisecond."""

_Schema = tuple[dict[str, object] | None, str]
_schemas: dict[tuple[type[Any], tuple[tuple[str, str], ...], Caps], _Schema] = {}


def schema_for(returns: type[Any], labels: tuple[tuple[str, str], ...], caps: Caps = CAPS["full"]) -> _Schema:
    """The JSON Schema to ask for, and its digest; None for text. `labels` are pairs of label and kind.

    Every property is required, so that a grammar makes the model write it. A label field may only hold the labels of its
    kind; where there are none, the property is not asked for and takes its default. `caps` bound the lists that name one.
    """
    if returns is str or not issubclass(returns, BaseModel):
        return None, "text"
    if (returns, labels, caps) not in _schemas:
        if len(_schemas) >= MAX_SCHEMAS:
            _schemas.clear()
        _schemas[returns, labels, caps] = _schema(returns, labels, caps)
    return _schemas[returns, labels, caps]


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
    """Return the schema that pydantic makes, as JSON. Making it takes ten times as long as adding labels to a copy."""
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
    for noise in ("default", "title", "description"):
        if not isinstance(node.get(noise), dict):  # a property may bear such a name
            node.pop(noise, None)
    for child in list(node.values()):
        _tighten(child, allowed, definitions, caps)


def _lacks_labels(
    node: object, allowed: Mapping[str, list[str]], definitions: Mapping[str, object], within: tuple[str, ...] = ()
) -> bool:
    """True for a property that can only be written by naming a label, when there is none to name. `within` are the references
    being followed: one that leads back to itself decides nothing."""
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
"""How a model is asked, by name, but for the seed."""


def request_digest(rendered: Rendered, agent: str, model: str, parameters: Parameters, seed: int, schema: str) -> str:
    """What makes two requests the same: SHA-256 (hex, first 32) over agent, model as asked, parameters, schema, format, parts."""
    before, behind = _frame(agent, model, parameters, schema)
    return hashlib.sha256(f'{before}{seed}{behind}{rendered.digest}"]'.encode()).hexdigest()[:32]


@lru_cache(maxsize=1024)
def _frame(agent: str, model: str, parameters: Parameters, schema: str) -> tuple[str, str]:
    """The JSON of a request before its seed, and between that and the digest of its parts."""
    body = json.dumps([PROMPT_FORMAT, agent, model, {**dict(parameters), "seed": 0}, schema, ""], sort_keys=True)
    before, name, behind = body.rpartition('"seed": 0')
    return f"{before}{name[:-1]}", behind[:-2]


def request_seed(seed: int, key: str, attempt: int) -> int:
    """The seed that a model is asked with: its own for every attempt of every call."""
    digest = hashlib.sha256(f"{seed}/{key}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
