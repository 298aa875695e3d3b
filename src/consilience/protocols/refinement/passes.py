"""One pass: authors draft, specialists work for each parent on its draft, authors revise with their results.

Phases are no barriers: a call starts as soon as what it reads exists. The first pass starts from the intent and the draft given
with the task, if any. Each later pass starts from the best pass so far: an author works if its part was criticised or is missing.
The author and its specialists are shown the critique and the whole text that it is about, or the other parts if there is none.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.domain.hierarchies import CRITIC
from consilience.domain.messages import Message
from consilience.engine.analysis import sentences
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Pending, Reply
from consilience.protocols._common.conclusion import quoted
from consilience.protocols.refinement.records import (
    CRITIQUE_OF_DRAFT,
    CRITIQUE_OF_WHOLE,
    DraftReply,
    IntegratedReply,
    LabelledMessages,
    PassResult,
    PassState,
    RefinementRun,
    RevisionRequests,
    RoleOutput,
    words_in,
)
from consilience.protocols.refinement.report_data import HandedDownKind, HandedDownText
from consilience.protocols.refinement.settings import RefinementSettings

UNKNOWN_DISTANCE = 0.5
"""Distance of roles without vectors: that of orthogonal ones."""

STRENGTH_LOSS = 0.7
"""Loss of context strength at distance 1."""
MAX_UNCUT_SENTENCES = 3
"""Texts of up to this many sentences are never cut."""

PendingOutput = Pending[RoleOutput]
HandedQuotes = list[tuple[Quote, HandedDownText | None]]
"""Quotes of a prompt, each with its record if it was handed down an edge of the hierarchy."""


@dataclass(frozen=True)
class PassWriter:
    """Runs the calls of one pass, up to the revised parts."""

    session: Session
    settings: RefinementSettings
    run: RefinementRun
    index: int
    base: PassState
    """The pass that this one starts from."""
    requests: RevisionRequests

    async def write(self) -> PassResult:
        """Draft, get help, revise; return what every role has afterwards."""
        tree, session = self.settings.hierarchy, self.session
        drafts: dict[str, PendingOutput] = {}
        served: dict[tuple[str, str], PendingOutput] = {}
        revised: dict[str, PendingOutput] = {}
        async with session.phase("draft", self.index):
            for name in filter(self.is_due, tree.inner):
                drafts[name] = self._start(self._draft(name, drafts))
        async with session.phase("specialist", self.index):
            for parent, child in tree.edges_to_leaves:
                if parent in drafts or (parent == tree.coordinator and self._serves_the_whole(child, bool(drafts))):
                    served[parent, child] = self._start(self._specialist(parent, child, drafts.get(parent)))
        async with session.phase("revise", self.index):
            for name in sorted(drafts, key=lambda name: -tree.shape.levels[name]):
                below = {child: served.get((name, child), revised.get(child)) for child in tree.children(name)}
                revised[name] = self._start(self._revise(name, drafts[name], below))
        for pending in drafts.values():
            await pending  # returns what the draft's branch did not spend
        kept = self.base.result
        return PassResult(
            tree,
            {n: await revised[n] if n in revised else _resting(n, kept.authors.get(n)) for n in tree.inner},
            {
                edge: await served[edge] if edge in served else _resting(edge[1], kept.served.get(edge))
                for edge in tree.edges_to_leaves
            },
        )

    def _start(self, work: Coroutine[Any, Any, RoleOutput]) -> PendingOutput:
        return self.session.start(self.session.procedure(work, calls=1))

    def is_due(self, name: str) -> bool:
        """Whether an author works in this pass: a part that it writes for was criticised or does not exist yet."""
        parts = self.settings.hierarchy.writes_for(name)
        return any(part in self.requests.parts or self._text_before(part) is None for part in parts)

    def _advises(self, name: str) -> bool:
        """Whether a specialist of the coordinator advises on the whole instead of writing a part."""
        return name not in self.settings.hierarchy.sections

    def _serves_the_whole(self, child: str, drafted: bool) -> bool:
        """Whether a specialist of the coordinator works: an adviser if anything is rewritten, else like an author."""
        return (drafted or bool(self.requests.whole) or self.index == 1) if self._advises(child) else self.is_due(child)

    async def _draft(self, name: str, drafts: Mapping[str, PendingOutput]) -> RoleOutput:
        """Write from the intent and the drafts above; in later passes from the critique, the own text and the others."""
        tree = self.settings.hierarchy
        handed = self._hand_down("intent", tree.parents(name)[0], name, self.run.intent)
        for parent in tree.parents(name):
            if parent != tree.coordinator:
                above = (await drafts[parent]).draft if parent in drafts else None
                handed += self._hand_down("draft", parent, name, above or self._text_before(parent), parent)
        labels = [quote.label for quote, _ in handed]
        handed += [(quote, None) for quote, _ in self._surroundings(name, name) if quote.label not in labels]
        own = self._text_before(name)
        given = _quotes(handed)
        prompt = self._prompt(
            "draft", name, given, self._critiques(name), own=own, before=own is not None, size=words_in(own)
        )
        output = RoleOutput(name, text=own, given=given, handed=_records(handed))
        return await self._ask(output, prompt, f"draft/{name}", own, kind="draft")

    async def _specialist(self, parent: str, child: str, drafted: PendingOutput | None) -> RoleOutput:
        """Work for one parent, on its draft; for the coordinator, on what it hands down. An unchanged draft needs no work."""
        draft = None
        if drafted is not None:
            output = await drafted
            if not output.written:
                return _resting(child, self.base.result.served.get((parent, child)))
            draft = output.draft
        prompt, handed, own = self._specialist_prompt(parent, child, draft, cut=self.settings.filter == "always")
        if self.settings.filter == "auto" and self.session.window_share(child, prompt) > 0.5:
            prompt, handed, own = self._specialist_prompt(parent, child, draft, cut=True)
        output = RoleOutput(child, text=own, handed=_records(handed))
        return await self._ask(output, prompt, f"specialist/{parent}/{child}", own)

    def _specialist_prompt(
        self, parent: str, child: str, draft: Reply[DraftReply] | None, *, cut: bool
    ) -> tuple[Prompt, HandedQuotes, Reply[DraftReply] | None]:
        """Return the prompt, what it hands down and, for a specialist who writes a part itself, the present text of that part."""
        own = None
        handed = self._hand_down("intent", parent, child, self.run.intent, cut=cut)
        if draft is not None:
            handed += self._hand_down("draft", parent, child, draft, cut=cut)
            if self._shown_whole is None or parent not in self.settings.hierarchy.sections:
                handed += self._hand_down("before", parent, child, self._text_before(parent), cut=cut)
            critiques = [quote for quote in self._critiques(parent) if quote.label != CRITIQUE_OF_DRAFT]
            handed += self._surroundings(parent, child, cut=cut)
        elif self._advises(child):
            handed += self._hand_down("text", parent, child, self.base.whole, cut=cut)
            critiques = self._quoted(self.requests.whole)
        else:
            own = self._text_before(child)
            critiques = self._critiques(child)
            handed += self._surroundings(child, child, cut=cut)
        given = _quotes(handed)
        prompt = self._prompt(
            "specialist",
            child,
            given,
            critiques,
            own=own,
            shared=draft is None,
            parent=parent if draft is not None else "",
            part=draft is None and not self._advises(child),
            before=own is not None or any(quote.label == "before" for quote in given),
            size=words_in(draft or own or self.base.whole),
        )
        return prompt, handed, own

    async def _revise(self, name: str, drafted: PendingOutput, below: Mapping[str, PendingOutput | None]) -> RoleOutput:
        """Rewrite the draft with the work of the children; keep it if no child worked for it."""
        output = await drafted
        work = {child: await pending if pending else None for child, pending in below.items()}
        texts = {child: result.text if result else self._text_before(child) for child, result in work.items()}
        helpers = {child: text for child, text in texts.items() if text is not None}
        changed = output.written or any(result is not None and result.written for result in work.values())
        if output.draft is None or not helpers or not changed:
            return output
        prompt = self._prompt(
            "revise",
            name,
            tuple(quote for quote in output.given if quote.label not in helpers),
            self._critiques(name),
            own=output.draft,
            helped=[self.session.quote(text, child) for child, text in helpers.items()],
            helpers=tuple((child, text.value.confidence) for child, text in helpers.items()),
            size=words_in(output.draft),
        )
        return await self._ask(output, prompt, f"revise/{name}", self._text_before(name))

    async def _ask(
        self, output: RoleOutput, prompt: Prompt, step: str, before: Reply[DraftReply] | None, *, kind: str = "reply"
    ) -> RoleOutput:
        """Return the output with the reply as its text, or with the text `before` if the reply has the same words."""
        name, tree = output.role, self.settings.hierarchy
        readers = (*tree.parents(name), *tree.children(name), CRITIC)
        reply = await self.session.ask(
            name,
            prompt,
            key=f"pass-{self.index}/{step}",
            returns=DraftReply,
            kind=kind,
            # every agent may read what becomes part of the text
            audience=tuple(agent.id for agent in self.session.agents) if name in tree.sections else readers,
        )
        if isinstance(reply, Failure):
            return replace(output, failures=(*output.failures, reply))
        written = before is None or reply.text.split() != before.text.split()
        return replace(output, draft=output.draft or reply, text=reply if written else before, written=written)

    def _prompt(
        self,
        template: str,
        name: str,
        given: Sequence[Quote],
        critiques: Sequence[Quote],
        *,
        own: Reply[DraftReply] | None = None,
        helped: Sequence[Quote] = (),
        shared: bool = True,
        **values: Any,
    ) -> Prompt:
        settings, session = self.settings, self.session
        tree, labels = settings.hierarchy, [quote.label for quote in given]
        above = tuple(label for label in labels if label in tree.parents(name))
        critic = tuple(quote.label for quote in critiques)
        later = tuple(label for label in critic if label.startswith("later"))
        apart = (*later, CRITIQUE_OF_DRAFT, CRITIQUE_OF_WHOLE)
        words = session.render_template(
            template,
            role=name.replace("_", " "),
            duty=settings.hierarchy.by_name[name].description,
            view=session.agent(name).introduction(),
            tone=settings.tone,
            length=settings.target(),
            draft=self.run.origin.draft is not None,
            documents=bool(session.sources),
            markers=bool(self.run.draft.blocks),
            intent="intent" in labels,
            whole="text" in labels,
            above=above,
            others=tuple(label for label in labels if label in tree.sections and label not in above),
            later=later,
            of_draft=tuple(label for label in critic if label == CRITIQUE_OF_DRAFT),
            of_whole=tuple(label for label in critic if label == CRITIQUE_OF_WHOLE),
            critiques=tuple(label for label in critic if label not in apart),
            **values,
        )
        quotes = (*given, *helped, *critiques, *([session.quote(own, "you")] if own is not None else []))
        return Prompt(words, quotes, quoted(session, self.run.origin.draft, "draft") if shared else ())

    def _text_before(self, name: str) -> Reply[DraftReply] | None:
        """Return the text that an author, or a specialist who writes a part itself, had before this pass."""
        edge = (self.settings.hierarchy.coordinator, name)
        before = self.base.result.authors.get(name, self.base.result.served.get(edge))
        return before.text if before is not None else None

    @property
    def _shown_whole(self) -> Reply[IntegratedReply] | None:
        """The whole text that the critique is about, for authors and their specialists. In brief they see the other parts."""
        return self.base.whole if self.session.detail == "full" else None

    def _surroundings(self, author: str, reader: str, *, cut: bool = False) -> HandedQuotes:
        """Return what an author's text must fit: the whole that the pass starts from or, if none is shown, the parts that the
        author does not write for. Nothing in the first pass."""
        tree = self.settings.hierarchy
        texts: list[tuple[HandedDownKind, str, str, Reply[Any] | None]]
        if self._shown_whole is not None:
            texts = [("text", tree.coordinator, "text", self._shown_whole)]
        else:
            others = self.base.result.parts.items()
            texts = [("part", part, part, other.text) for part, other in others if part not in tree.writes_for(author)]
        if not cut:
            return [(self.session.quote(text, label), None) for _, _, label, text in texts if text is not None]
        return [
            handed
            for what, sender, label, text in texts
            for handed in self._hand_down(what, sender, reader, text, label, cut=True, of=f"{author}/")
        ]

    def _critiques(self, name: str) -> list[Quote]:
        """Return the critiques of the parts that a role writes for, then those of the whole."""
        parts = [part for part in self.settings.hierarchy.writes_for(name) if part in self.requests.parts]
        quotes: list[Quote] = []
        for part in parts:
            labels = self.requests.parts[part]
            if len(parts) > 1:
                labels = {f"{label} of {part}": message for label, message in labels.items()}
            quotes += self._quoted(labels)
        return quotes + self._quoted(self.requests.whole)

    def _quoted(self, messages: LabelledMessages) -> list[Quote]:
        return [self.session.quote(message, label) for label, message in messages.items()]

    def _hand_down(
        self,
        what: HandedDownKind,
        parent: str,
        child: str,
        text: Reply[Any] | None,
        label: str = "",
        *,
        cut: bool | None = None,
        of: str = "",
    ) -> HandedQuotes:
        """Hand a text down an edge, `cut` by the distance of the roles (default: only with `filter="always"`).

        A cut text is a message of its own, which ends with the number of sentences left out.
        """
        if text is None:
            return []
        if cut is None:
            cut = self.settings.filter == "always"
        distance = self.run.distances.get(parent, {}).get(child, UNKNOWN_DISTANCE) if cut else None
        filtered = filter_context(text.text, distance or 0.0)
        record = HandedDownText(
            step=self.index,
            parent=parent,
            child=child,
            what=what,
            distance=distance,
            strength=strength(distance or 0.0),
            sentences=filtered.of,
            kept=filtered.kept,
        )
        if filtered.kept == filtered.of:
            return [(self.session.quote(text, label or what), record)]
        left = filtered.of - filtered.kept
        shortened = Message(
            id=f"pass-{self.index}/{what}/{of}{parent}/{child}",
            sender=parent,
            kind="context",
            text=f"{filtered.text}\n[{left} {'sentence' if left == 1 else 'sentences'} left out]",
            audience=(child,),
            reply_to=text.key,
            phase=("context", self.index),
        )
        self.session.publish(shortened)
        return [(self.session.quote(shortened, label or what), record)]


def _resting(role: str, before: RoleOutput | None) -> RoleOutput:
    """Return the output of a role that does not work in a pass: its latest text."""
    return RoleOutput(role, text=before.text if before is not None else None)


def _quotes(handed: HandedQuotes) -> tuple[Quote, ...]:
    return tuple(quote for quote, _ in handed)


def _records(handed: HandedQuotes) -> tuple[HandedDownText, ...]:
    return tuple(record for _, record in handed if record is not None)


@dataclass(frozen=True, slots=True)
class FilteredText:
    """The beginning of a text."""

    text: str
    kept: int
    """Sentences in it."""
    of: int
    """Sentences of the unfiltered text."""


def strength(distance: float) -> float:
    """`1 − 0.7·d`: 1 for the same role, 0.3 for an opposed one."""
    return 1.0 - distance * STRENGTH_LOSS


def filter_context(text: str, distance: float) -> FilteredText:
    """Return the first ⌊n·strength⌋ of n sentences, at least one, as written (seed 004, M9; protocols §5).

    A text is returned whole at distance 0 and if it has at most `MAX_UNCUT_SENTENCES` sentences.
    """
    all_sentences = sentences(text)
    count = len(all_sentences)
    if distance == 0 or count <= MAX_UNCUT_SENTENCES:
        return FilteredText(text, count, count)
    kept = max(1, math.floor(count * strength(distance) + 1e-9))
    end = 0
    for sentence in all_sentences[:kept]:
        end = text.index(sentence, end) + len(sentence)
    return FilteredText(text[:end], kept, count)
