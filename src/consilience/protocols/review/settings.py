"""The settings of `review`, and what follows from them: the strategy, the seats, the parts and the number of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from consilience.coordination.convergence import Partial
from consilience.coordination.waiting import AGENT_TIMEOUT_SECONDS, TimeoutStrategy
from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.errors import SettingsError
from consilience.domain.findings import EarlierReviews, KnownFinding
from consilience.domain.messages import CODE, FILE, NAMES, NO_OPTION, OptionName
from consilience.domain.outcome import CallKind, Estimate, Severity
from consilience.domain.topology import Topology
from consilience.domain.validation import Unfit
from consilience.engine.dealing import RELATED_SHARE
from consilience.engine.protocol import Protocol
from consilience.engine.sources import Document
from consilience.protocols.review.baseline import Baseline, parse_baseline, with_status
from consilience.protocols.review.gates import ReviewGates, load_gates
from consilience.protocols.review.parts import make_parts, related_to_parts
from consilience.protocols.review.strategies import DUTIES, LEAD, Effort, ReviewPlan, ReviewType, make_plan

PART_TOKENS: Mapping[Detail, int] = {"full": 12_000, "brief": 1_500}
"""Of documents that are read in parts."""
CHANGE_TOKENS, KNOWN_CHANGE_TOKENS = 24_000, 64_000
"""Of a change or of code, which is read in one part wherever that fits: without and with a known context window."""
PART_SHARE = 0.6
"""Max share of a context window that such a part takes; judges are shown findings beside it."""
REPLY_TOKENS: Mapping[Detail, tuple[int, int]] = {"full": (8_192, 16_384), "brief": (1_024, 1_024)}
"""The least and the largest default. Many providers refuse to write more than 8,192 tokens at once."""
REPLY_SHARE = 2 / 3
"""Tokens of a reply for each token of the part that it is about: room for a finding in ten lines of code or so."""
WINDOW_SHARE = 1 / 4
"""Max share of a context window that a reply takes."""
FINDING_TOKENS: Mapping[Detail, int] = {"full": 180, "brief": 320}
"""Tokens of a reply for each finding that it may hold. Capable models write some 150; small ones fill every list to its end."""
MIN_ROOM = 3
"""However short the reply is."""
MIN_PART_TOKENS = 200
"""However small the window is."""
PROMPT_TOKENS = 2_000
"""Room in a window for instructions, task and request."""
READERS_TIMEOUT_SECONDS = 300.0
"""For all readers of `parallel_decomposition` together."""
DEFAULT_ITERATIONS, DEFAULT_THRESHOLDS = 3, (0.8,)
"""Of a review with gates."""
CLOSING_TOKENS = 2_048
REQUEST_TOKENS = 2_000
"""What a template says, at most, with the names of documents."""
USUAL_REPLY_TOKENS = 512
"""Of a review of little text: what was read, the vote, and a finding or two."""
QUOTED_REPLIES = 4
"""Max size of the findings that one prompt quotes, in replies of full length."""

Share = Annotated[float, Field(ge=0, le=1)]


def _as_schedule(value: object) -> object:
    return (value,) if isinstance(value, int | float) else value


Thresholds = Annotated[tuple[Share, ...], BeforeValidator(_as_schedule), Field(min_length=1)]


class ReviewSettings(Protocol):
    """Settings of `review`."""

    name: ClassVar[str] = "review"
    summary: ClassVar[str] = (
        "reviewers look for defects in a diff, in files or in documents; every finding has a verified quotation"
    )
    reads_target: ClassVar[bool] = True

    reply_tokens: Annotated[
        int | None,
        Field(
            ge=16,
            le=100_000,
            description="max tokens per reply; default: 8192, 1024 with brief prompts, more for large parts",
        ),
    ] = None
    review_type: Annotated[
        ReviewType, Field(description="what is reviewed, which decides strategy and gates"), OptionName("type")
    ] = "code"
    strategy: Annotated[
        Literal["auto", "adversarial_review", "parallel_decomposition", "hierarchical"],
        Field(
            description="who reviews what; auto: adversarial_review for code and skills, hierarchical for architecture"
        ),
    ] = "auto"
    effort: Annotated[
        Effort,
        Field(
            description="quick: one reviewer, a second where it found something, no judging and no summary; normal: the strategy "
            "of the type; thorough: a reviewer for each duty"
        ),
    ] = "normal"
    duties: Annotated[
        tuple[str, ...],
        Field(
            description="a reviewer of every part for each, in place of red and blue: for code contracts, data, concurrency, "
            "security, tests; default: none, all with thorough"
        ),
        NAMES,
    ] = ()
    max_iterations: Annotated[
        int | None,
        Field(
            ge=1,
            le=20,
            description="max iterations of red and blue; more than one are judged by gates; default: 3 with gates, else 1",
        ),
    ] = None
    quality_threshold: Annotated[
        Thresholds | None,
        Field(
            description="share of gates to meet; several: one per iteration, the last for all later ones; default: 0.8"
        ),
    ] = None
    gates: Annotated[
        tuple[str, ...],
        Field(
            description="conditions that red and blue must meet, by name or module:function; default: those of the type "
            "of review for a skill, and for several iterations or a quality threshold"
        ),
        NAMES,
        CODE,
    ] = ()
    reviewers: Annotated[int, Field(ge=1, le=64, description="number of reviewers, unless they are red and blue")] = 4
    quorum_of_reviewers: Annotated[
        int | None, Field(ge=1, description="reviewers whose replies suffice; default: all of them")
    ] = None
    timeout: Annotated[
        float | None,
        Field(
            gt=0, description="seconds that outside agents are waited for; default: 120, 300 for all readers together"
        ),
    ] = None
    timeout_strategy: Annotated[
        TimeoutStrategy | None,
        Field(
            description="what the timeout counts from: per_agent from each claim, total from the first ticket, adaptive as "
            "per_agent and half as long again after each timeout; default: total for readers, else per_agent"
        ),
    ] = None
    partial: Annotated[
        Partial,
        Field(
            description="if a reviewer is missing: fail asks it again, accept goes on without, use ends the iterations"
        ),
    ] = "accept"
    max_requeues: Annotated[
        int, Field(ge=0, le=5, description="times a missing reviewer is asked again, with fail")
    ] = 1
    max_findings: Annotated[int, Field(ge=1, le=200, description="max findings in the report, the worst first")] = 50
    changed_lines_only: Annotated[bool, Field(description="of a diff, report only findings on changed lines")] = True
    baseline: Annotated[str, Field(description="file of known findings, which are not reported again"), FILE] = ""
    inline: Annotated[
        Severity, Field(description="least severity of findings that are comments on lines; the others are in the text")
    ] = "minor"
    max_inline: Annotated[int, Field(ge=0, le=100, description="max comments on lines of one review")] = 30
    known_findings: Annotated[
        tuple[KnownFinding, ...], Field(description="findings of earlier reviews of the same change"), NO_OPTION
    ] = ()
    reviewed_commit: Annotated[str, Field(description="the commit under review, if it is one"), NO_OPTION] = ""
    reviewed_base: Annotated[str, Field(description="what that commit is compared with"), NO_OPTION] = ""
    part_tokens: Annotated[
        int | None,
        Field(
            ge=100,
            le=500_000,
            description="max tokens of the documents in one call; default: 24000, or 64000 and at most 60 % of a known context "
            "window, for code; 12000 for documents; 1500 with brief prompts",
        ),
    ] = None
    parts: Annotated[
        tuple[tuple[str, ...], ...],
        Field(description="documents, or lines of them, that are reviewed in one call; follows from the documents"),
        NO_OPTION,
    ] = ()
    related_lines: Annotated[
        tuple[tuple[str, ...], ...],
        Field(description="lines of other parts that are shown beside each part, since they are related to it"),
        NO_OPTION,
    ] = ()
    related_left_out: Annotated[int, Field(description="related passages that had no room"), NO_OPTION] = 0
    shown_beside: Annotated[
        tuple[tuple[str, ...], ...],
        Field(description="rules, intent, context and lines of the repository that are shown beside each part"),
        NO_OPTION,
    ] = ()
    without_room: Annotated[
        tuple[tuple[tuple[str, int], ...], ...],
        Field(description="what had no room beside each part: passages by relation, lines by purpose"),
        NO_OPTION,
    ] = ()
    left_out: Annotated[tuple[str, ...], Field(description="what was not read of the target, and why"), NO_OPTION] = ()
    not_searched: Annotated[
        tuple[str, ...], Field(description="what of the repository around a change was not looked at"), NO_OPTION
    ] = ()
    unread_files: Annotated[
        tuple[str, ...], Field(description="files of the target that should have been read and were not"), NO_OPTION
    ] = ()

    @field_validator("gates")
    @classmethod
    def _gates_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        load_gates(names)
        return names

    @field_validator("baseline")
    @classmethod
    def _baseline_is_readable(cls, text: str) -> str:
        parse_baseline(text)
        return text

    @model_validator(mode="after")
    def _duties_are_of_the_type(self) -> Self:
        known = DUTIES[self.review_type]
        if unknown := [name for name in self.duties if name not in known]:
            raise Unfit(f"no duty {unknown[0]!r} for {self.review_type}; known: {', '.join(known)}", "duties")
        if self.duties and len(set(self.duties)) < max(len(self.duties), 2):
            raise Unfit("name at least two duties, each once, whose reviewers judge each other's findings", "duties")
        return self

    @model_validator(mode="after")
    def _effort_uses_what_is_set(self) -> Self:
        name = "duties" if self.duties else "effort"
        if (self.duties or self.effort != "normal") and self.strategy not in ("auto", "adversarial_review"):
            raise Unfit(f"{name} decides who reads what, so it applies to the strategy adversarial_review only", name)
        unused = {
            "duties": self.duties,
            "gates": self.gates,
            "quality_threshold": self.quality_threshold,
            "max_iterations": (self.max_iterations or 1) > 1,
        }
        for name in (name for name, is_set in unused.items() if is_set and self.plan.spares_readers):
            raise Unfit(f"{name} does not apply with effort quick, whose reviewers read once and alike", name)
        return self

    @model_validator(mode="after")
    def _strategy_uses_what_is_set(self) -> Self:
        if self.plan.is_iterative and self.timeout_strategy == "total":
            raise Unfit("timeout_strategy total needs a quorum, which red and blue do not have", "timeout_strategy")
        if self.gates and not self.plan.is_iterative:
            raise Unfit(
                f"gates are judged with the strategy adversarial_review only, not with {self.plan.name}: "
                "leave them out, or set that strategy",
                "gates",
            )
        iterated = {"max_iterations": (self.max_iterations or 1) > 1, "quality_threshold": self.quality_threshold}
        for name in (name for name, is_set in iterated.items() if is_set and not self.plan.is_iterative):
            raise Unfit(
                f"{name} applies to the strategy adversarial_review only, since {self.plan.name} reviews once: "
                "leave it out, or set that strategy",
                name,
            )
        return self

    def with_detail(self, detail: Detail) -> Self:
        least, largest = REPLY_TOKENS[detail]
        part = self.part_tokens or (PART_TOKENS[detail] if detail == "brief" else None)
        reply = self.reply_tokens or min(max(least, int((part or 0) * REPLY_SHARE)), largest)
        return self.model_copy(update={"part_tokens": part, "reply_tokens": reply, "max_iterations": self.iterations})

    @property
    def max_reply_tokens(self) -> int:
        return self.reply_tokens or REPLY_TOKENS["full"][0]

    def room(self, detail: Detail) -> int:
        """Max findings of one reply."""
        return max(self.max_reply_tokens // FINDING_TOKENS[detail], MIN_ROOM)

    def with_documents(self, documents: Sequence[Document], window: int | None) -> Self:
        """Return a copy with the parts. Raises `SettingsError` without a document."""
        if not documents:
            raise SettingsError("there is nothing to review", do="Give files, a directory or a diff.")
        tokens, reply = self.part_tokens or self._usual_part_tokens(window is not None), self.reply_tokens
        if window is not None:
            reply = min(self.max_reply_tokens, int(window * WINDOW_SHARE))
            share = int(window * (1 / 2 if self.part_tokens else PART_SHARE))
            tokens = max(min(tokens, share, window - 2 * reply - PROMPT_TOKENS), MIN_PART_TOKENS)
        made = make_parts(documents, tokens)
        related: tuple[tuple[str, ...], ...] = ()
        missed = 0
        if self.review_type == "documentation" and len(made.under_review) > 1:
            if window is not None and reply is not None:  # the related lines need room, too
                room = int((window - 2 * reply - PROMPT_TOKENS) / (1 + RELATED_SHARE))
                tokens = max(min(tokens, room), MIN_PART_TOKENS)
                made = make_parts(documents, tokens)
            target = [document for document in documents if not document.purpose]
            related, missed = related_to_parts(target, made.under_review, int(tokens * RELATED_SHARE))
        found = {
            "parts": made.under_review,
            "shown_beside": made.beside if any(made.beside) else (),
            "without_room": made.cut if any(made.cut) else (),
            "related_lines": related,
            "related_left_out": missed,
            "reply_tokens": reply,
        }
        return self.model_copy(update=found)

    def _usual_part_tokens(self, is_window_known: bool) -> int:
        if self.review_type in ("documentation", "skill"):
            return PART_TOKENS["full"]
        return KNOWN_CHANGE_TOKENS if is_window_known else CHANGE_TOKENS

    # what follows from the settings

    @property
    def closing(self) -> bool:  # type: ignore[override]
        """Whether a lead writes the review."""
        return self.plan.has_lead

    @cached_property
    def plan(self) -> ReviewPlan:
        return make_plan(self.review_type, self.strategy, self.effort, self.duties, self.reviewers)

    @cached_property
    def known_before(self) -> Baseline:
        """What is not reported again: earlier findings of the same change first, then those of the baseline."""
        return Baseline((*self.known_findings, *parse_baseline(self.baseline).known))

    @classmethod
    def settings_after(
        cls, earlier: EarlierReviews, texts: Mapping[str, str], renamed: Mapping[tuple[str, str], str]
    ) -> Mapping[str, object]:
        """Return the findings of earlier reviews as they stand."""

        def stands(known: KnownFinding) -> KnownFinding:
            names = {old: new for (old, commit), new in renamed.items() if commit == known.commit}
            return with_status(known, texts.get, names)

        return {"known_findings": tuple(map(stands, earlier.known))}

    @property
    def waiting(self) -> tuple[float, TimeoutStrategy]:
        """How long outside agents are waited for, in seconds, and from when that counts."""
        is_shared = self.plan.name == "parallel_decomposition"
        seconds = READERS_TIMEOUT_SECONDS if is_shared else AGENT_TIMEOUT_SECONDS
        return self.timeout or seconds, self.timeout_strategy or ("total" if is_shared else "per_agent")

    @property
    def is_gated(self) -> bool:
        """Whether gates are judged after each iteration."""
        asked = self.gates or self.quality_threshold or (self.max_iterations or 1) > 1
        return self.plan.is_iterative and not self.plan.spares_readers and (self.review_type == "skill" or bool(asked))

    @property
    def iterations(self) -> int:
        """Max iterations; readers and workers review once."""
        default = DEFAULT_ITERATIONS if self.is_gated else 1
        return self.max_iterations or default if self.plan.is_iterative else 1

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The share of gates to meet, by iteration."""
        return self.quality_threshold or DEFAULT_THRESHOLDS

    @cached_property
    def review_gates(self) -> ReviewGates:
        return load_gates(self.gates, self.review_type)

    @property
    def are_reviews_written(self) -> bool:
        """Whether reviewers write a review in addition to their findings."""
        return self.is_gated and self.review_gates.are_written

    def topology(self) -> Topology:
        return self.plan.topology

    def agents_without_panel(self) -> list[Agent]:
        return [self._seat(id) for id in self.topology().agents]

    def _seat(self, id: str) -> Agent:
        if id == LEAD:
            return Agent(id=id, role="lead", voice=False)
        return Agent(id=id, role="reviewer" if id in self.plan.reviewers else "sub-lead")

    @property
    def share_holders(self) -> tuple[str, ...]:
        """No agent: the parts are dealt by its own strategies."""
        return ()

    @property
    def shown_together(self) -> tuple[tuple[str, ...], ...] | None:
        beside = self.shown_beside or ((),) * len(self.parts)
        return tuple((*part, *lines) for part, lines in zip(self.parts, beside, strict=True)) or None

    @property
    def max_quoted_replies(self) -> int:
        return QUOTED_REPLIES

    @property
    def readings(self) -> int:
        """Calls of one iteration in which every reviewer reviews each of its parts."""
        parts = max(len(self.parts), 1)
        return sum(len(self.plan.parts_of(agent, parts)) for agent in self.plan.reviewers)

    @property
    def judgings(self) -> int:
        """Max calls in which agents judge findings of others: one for each judge and part."""
        parts = max(len(self.parts), 1)
        return sum(
            len({part for author in authors for part in self.plan.parts_of(author, parts)})
            for authors in self.plan.judges.values()
        )

    @property
    def readings_of_a_part(self) -> int:
        """Max times that one agent is asked for a review of one part."""
        return self.iterations * (1 + self.max_requeues if self.partial == "fail" else 1)

    @property
    def call_kinds(self) -> tuple[CallKind, ...]:
        """First reviews of each part, later ones beside the review so far, judgements, and the closing call, which is shown no
        document."""
        reply, plan = self.max_reply_tokens, self.plan
        kinds: list[CallKind] = []
        for part, read in enumerate(self.parts, 1):
            documents = (*read, *(self.shown_beside[part - 1] if self.shown_beside else ()))
            request = REQUEST_TOKENS + (self.related_tokens if self.related_lines else 0)
            readers = plan.readers_of(part, len(self.parts))
            again = len(readers) * (self.readings_of_a_part - 1)
            judged = [
                sum(part in plan.parts_of(author, len(self.parts)) for author in of) for of in plan.judges.values()
            ]
            first = CallKind(len(readers), reply, request, documents, usual_reply=(USUAL_REPLY_TOKENS, REPLY_SHARE))
            kinds += [first, *([replace(first, calls=again, quoted=reply, usual_reply=None)] if again else [])]
            quoted = [min(authors, QUOTED_REPLIES) * reply for authors in judged if authors]
            kinds += [CallKind(1, reply, request, documents, quoted=tokens) for tokens in quoted]
        if kinds and self.closing:
            quoted_tokens = QUOTED_REPLIES * reply
            kinds.append(CallKind(1, self.closing_tokens, REQUEST_TOKENS, quoted=quoted_tokens, closing=True))
        return tuple(kinds)

    @property
    def related_tokens(self) -> int:
        """Max tokens of the related lines beside a part."""
        return int((self.part_tokens or PART_TOKENS["full"]) * RELATED_SHARE)

    @property
    def closing_tokens(self) -> int:
        """Max tokens of the lead's reply: two paragraphs, claims and groups of duplicates."""
        return min(self.max_reply_tokens, CLOSING_TOKENS)

    def estimate(self) -> Estimate:
        least = max(len(self.parts), 1) if self.plan.spares_readers else self.readings
        return Estimate(min=least, max=self.readings * self.readings_of_a_part + self.judgings + self.closing)

    @property
    def outlook(self) -> str:
        n = len(self.parts)
        return f"{n} parts, each reviewed in calls of its own" if n > 1 else ""
