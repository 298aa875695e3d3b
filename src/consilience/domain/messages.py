"""Messages, source documents, quotations, and types shared by replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError, WithJsonSchema, computed_field

from consilience.domain.detail import capped
from consilience.domain.document_shares import DocumentShare, Lines, Purpose
from consilience.domain.errors import SettingsError
from consilience.domain.events import text_id
from consilience.domain.validation import Frozen, describe_invalid

Label = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "message"})]
"""The short label under which a prompt quotes another agent's text (`A`). The engine fills the schema's enum with the labels
shown, omits a field without labels, and drops and counts unknown labels in replies. `x-labels` may also name one kind of
messages; the enum then has only labels of that kind."""

ObjectionLabel = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "objection"})]
"""The label of a quoted objection (`A.1`)."""

LABELLED_APART = ("objection", "critique")
"""Kinds of messages that a message label never names: an objection has an `ObjectionLabel`, and no text rests on a critique."""


def bare_label(label: str) -> str:
    """Return a label without the brackets that some models put around it."""
    return label.strip().strip("[]")


JsonObject = dict[str, object]
"""A JSON object as an export writes it."""


@dataclass(frozen=True)
class Message:
    """A published text."""

    id: str
    """Unique in the session."""
    sender: str
    kind: str
    text: str
    audience: tuple[str, ...] = ()
    """Agents that may be shown it, in addition to the sender."""
    reply_to: str | None = None
    phase: tuple[str, int] | None = None

    @cached_property
    def text_id(self) -> str:
        """The content address of the text; cached, since many prompts quote one message."""
        return text_id(self.text)


class Source(Frozen):
    """A document given with the task; the engine numbers documents `S1`, `S2`, … Raises `SettingsError` for invalid values."""

    text: str
    name: str = ""
    agents: tuple[str, ...] | None = None
    """Ids of the only agents that may read it; None: all agents."""
    remarks: tuple[str, ...] = ()
    """What of its file or directory the text does not show, for the plan and the report's warnings."""
    shares: tuple[DocumentShare, ...] = ()
    """Who is shown which of its lines, if the documents are dealt; empty: every agent that may read it is shown all of it."""
    purpose: Purpose = ""
    """What a document is for that is not the subject itself."""

    def __init__(
        self,
        text: str,
        name: str = "",
        agents: tuple[str, ...] | None = None,
        remarks: tuple[str, ...] = (),
        shares: tuple[DocumentShare, ...] = (),
        purpose: Purpose = "",
    ) -> None:
        try:
            super().__init__(text=text, name=name, agents=agents, remarks=remarks, shares=shares, purpose=purpose)
        except ValidationError as error:
            raise SettingsError(
                describe_invalid(error, owner="the source"),
                where="Source(…)",
                do='Write Source("The text.", name="report.md", agents=("L2N1",)); for a file pass its pathlib.Path instead.',
            ) from None


def numbered_lines(content: Sequence[str], name: str, lines: tuple[int, int] | None) -> str:
    """Return a document as agents read it: its name, then numbered lines, all or those of `lines` (first, last; from 1)."""
    first, last = lines or (1, None)
    range_lines = (content or [""])[first - 1 : last]
    title = [" ".join(name.split())] if name else []
    return "\n".join([*title, *(f"{n}| {line}" for n, line in enumerate(range_lines, first))])


def place_line(kind: str, number: int, remark: str = "") -> str:
    """Return the line of a document before what is on one of its places, such as a page: `[page 4]`, `[sheet 2: Costs]`."""
    title = " ".join(remark.split()).replace("]", ")")
    return f"[{kind} {number}: {title}]" if title else f"[{kind} {number}]"


PLACE_LINE = re.compile(
    r"\[((?:attachment \d{1,9}, )*(?:page|sheet|slide|chapter|cell|attachment) (\d{1,9}))(?:: .*)?\]"
)
"""Matches such a line: the place, and its number. In an attachment of an e-mail: `[attachment 2, page 4]`."""


PLAIN_MARKS = str.maketrans(dict.fromkeys("“”„‟«»″", '"') | dict.fromkeys("‘’‚‛′", "'") | dict.fromkeys("‐‑‒–—―−", "-"))
"""Maps typographic quotation marks, dashes and minus signs to plain ones."""


class Quotation(Frozen):
    """Words that an agent quotes from a document."""

    words: str
    source: str
    """Id of the document (`S2`)."""
    line: int
    """Where the words are claimed to begin, from 1."""
    verified: bool
    """Whether they are there, and the agent was shown that document or a text that has them; case, whitespace and typographic marks
    make no difference. A part of a verified quotation is verified."""
    agent: str = ""
    relayed: bool = False
    """Whether the agent knew them from the text of another agent only."""
    stands: str = ""
    """Where the words stand that are not verified, as in `S2:43 (page 4)`; empty if they are in no document."""
    place: str = ""
    """The page, sheet, slide or chapter that the agent named, or else in which the line is, as in `page 4`; empty without."""

    @property
    def reference(self) -> str:
        """Where the words are claimed to be, as in `S2:41 (page 4)`."""
        return f"{self.source}:{self.line} ({self.place})" if self.place else f"{self.source}:{self.line}"

    @property
    def is_wrong(self) -> bool:
        """Whether the words are not where claimed. Those in lines that the agent was not shown are not verified, but there."""
        return not self.verified and self.stands != self.reference


class DocumentReader(Frozen):
    """An agent that read a document."""

    agent: str
    lines: tuple[Lines, ...] = ()
    """First and last of the lines that its calls were shown, from 1, in order and apart; empty for all."""


class ReadDocument(Frozen):
    """A document of a session, and who read it."""

    id: str
    name: str
    lines: int
    characters: int
    agents: tuple[str, ...] | None = None
    """Ids of the only agents that could see it; None: all agents."""
    readers: tuple[DocumentReader, ...] = ()
    remarks: tuple[str, ...] = ()
    """What of its file or directory was not read, and why; also among the warnings."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def unread(self) -> tuple[Lines, ...]:
        """Lines that no agent read."""
        ranges = [lines for reader in self.readers for lines in reader.lines or ((1, self.lines),)]
        unread, following = list[Lines](), 1
        for first, last in (*sorted(ranges), (self.lines + 1, self.lines + 1)):
            if first > following:
                unread.append((following, first - 1))
            following = max(following, last + 1)
        return tuple(unread)

    def read_by(self, shown: Mapping[str, Iterable[Lines | None]]) -> ReadDocument:
        """Return it with its readers: the lines that calls of each agent were shown, None for all."""
        whole = (1, self.lines)
        readers = (
            DocumentReader(agent=agent, lines=_merged({lines or whole for lines in parts}, whole))
            for agent, parts in shown.items()
        )
        return self.model_copy(update={"readers": tuple(readers)})


def _merged(parts: Iterable[Lines], whole: Lines) -> tuple[Lines, ...]:
    """Return parts in order, those that meet as one; nothing if they are the whole."""
    merged: list[Lines] = []
    for first, last in sorted(parts):
        if merged and first <= merged[-1][1] + 1:
            first, last = merged[-1][0], max(last, merged.pop()[1])
        merged.append((first, last))
    return () if merged == [whole] else tuple(merged)


_FREE = "free text"
FreeText = Annotated[str, _FREE]
"""A field that prose without JSON may fill; never a decision."""


NO_OPTION = "no option"
"""Metadata of a setting without an option on the command line."""

FILE = "a file"
"""Metadata of a text setting that the command line takes as a file (`-` for standard input)."""

CODE = "code"
"""Metadata of a setting whose values `module:attribute` are imported. The file of a directory must not have them."""


@dataclass(frozen=True)
class ShippedName:
    """Metadata of a setting of which a text is a shipped name or the path of a file: `names` returns the shipped ones."""

    names: Callable[[], Sequence[str]]


NAMES = "names"
"""Metadata of a setting with several names, which have no commas."""


@dataclass(frozen=True)
class OptionName:
    """Metadata of a setting whose option is not called as the field: `OptionName("type")` is `--type`."""

    name: str


def is_free_text(metadata: list[object]) -> bool:
    return _FREE in metadata


class ClaimReply(BaseModel):
    """A claim of an answer."""

    text: str
    ids: Annotated[list[Label], Field(json_schema_extra={"maxItems": 3})] = Field(default_factory=list)
    """Labels of the texts it rests on."""


ClaimReplies = Annotated[list[ClaimReply], Field(json_schema_extra=capped("claims"))]


class LeafReply(BaseModel):
    """The first draft of an agent."""

    points: Annotated[list[str], Field(json_schema_extra=capped("points"))] = Field(default_factory=list)
    """Facts or arguments that the text rests on."""
    text: FreeText


class Synthesis(BaseModel):
    text: FreeText


_NOTHING = frozenset(
    {"", "none", "no", "no issues", "no issue", "nothing", "nothing is missing", "n/a", "na", "null", "empty"}
)


def is_empty_remark(text: str) -> bool:
    """Return whether a text is what small models write if they have nothing to say, such as "None."."""
    return " ".join(text.split()).strip(" .!-").casefold() in _NOTHING


_DECLARES = (
    r"(?:(?:i|we|the \w+|this|it|that) )?"
    r"(?:there (?:is|are|was|were|seems? to be|appears? to be) |there's |(?:(?:ha(?:ve|s)|had) )?(?:found|noticed|"
    r"identified|detected|spotted) |'ve found |finds? |sees? |saw |has |have |had |contains? |identif(?:y|ies) )"
)
_CANNOT_FIND = (
    r"(?:(?:i|we) )?(?:can ?not|can't|could not|couldn't|do not|don't|did not|didn't|have not|haven't) "
    r"(?:find|found|see|seen|notice|noticed|identify|identified|detect|detected|spot|spotted|have) any(?:thing)?"
)
_KIND = (
    r"(?:major|minor|serious|significant|critical|substantive|substantial|material|real|obvious|apparent|further|other|additional|"
    r"remaining|new|known|more|open|outstanding|notable|blocking|standing|such|specific|particular|clear|factual|logical|missing|"
    r"internal|unresolved|important)"
)
_FINDING = (
    r"(?:issues?|problems?|faults?|findings?|defects?|errors?|bugs?|mistakes?|flaws?|weakness(?:es)?|objections?|disagreements?|"
    r"concerns?|remarks?|comments?|changes?|corrections?|gaps?|omissions?|contradictions?|conflicts?|inconsistenc(?:y|ies)|"
    r"criticisms?|complaints?|suggestions?|improvements?|points?|unknowns?|doubts?|differences?)"
)
_WHERE = (
    r"(?:(?:in|with|of|on|about|for|to|from) (?:(?:this|the|my|your|its|their|these) )?(?:\w+ )?"
    r"(?:answers?|texts?|drafts?|sections?|parts?|documents?|versions?|tasks?|work|repl(?:y|ies)|results?|whole|synthesis|code|"
    r"changes?|diff|outputs?|responses?|it|this|that|them|me|peers?|siblings?|side))"
)
_REST = (
    r"(?:(?:(?:was|were|is|are|has been|have been|could be|can be) )?(?:found|identified|detected|noticed|noted|seen|"
    r"spotted|observed|remains?|remaining|left|needed|required|necessary|apparent|evident|known|missing|wrong|outstanding|present|exists?)|"
    r"to (?:mend|fix|add|report|correct|change|improve|note|raise|object(?: to)?|flag|criticise|criticize|say|declare|mention|"
    r"remark|state|list|address|resolve)|at all|here|yet|so far|else|now|currently|at (?:this|the) (?:time|moment|point|stage)|"
    r"at present|(?:that )?(?:i|we) (?:can|could) (?:see|find)|of (?:note|substance)|worth (?:mentioning|reporting|a change))"
)
_NO_FINDING = re.compile(
    rf"(?:{_DECLARES})?(?:none|nothing|no|not any|zero|nil|without any)(?: {_KIND},?)*"
    rf"(?: {_FINDING}(?:(?: or|,| and) {_FINDING})*)?"
    rf"(?: (?:{_REST}|{_WHERE}))*|{_CANNOT_FIND}(?: {_KIND})*(?: {_FINDING}(?: or {_FINDING})*)?(?: (?:{_REST}|{_WHERE}))*|"
    r"not applicable|(?:all|everything)(?: is| looks| seems)? (?:good|fine|ok|okay|well|correct|in order)|lgtm|"
    rf"(?:(?:it|this|that|the \w+) )?(?:is|looks|seems) (?:good|fine|ok|okay|in order)(?: as (?:it|they) (?:is|are|stands?))?"
)


def is_no_finding(text: str) -> bool:
    """Return whether an entry of a list of findings (issues, objections, disagreements, what is missing or unknown) states that
    there is none, such as "No issues found." or "Nothing to add". Such an entry is not an entry."""
    clauses = re.split(r"[.;!] |, (?=no)", " ".join(text.casefold().replace("’", "'").split()))
    words = [clause.strip(" .,!-–—*_`'\"“”()[]:;#•") for clause in clauses]
    return all(is_empty_remark(clause) or _NO_FINDING.fullmatch(clause) is not None for clause in words)
