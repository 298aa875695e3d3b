"""One pass: authors draft, specialists work for each parent on its draft, authors revise with their results.

Phases are no barriers: a call starts as soon as what it reads exists. The first pass starts from the intent and the draft given
with the task, if any. Each later pass starts from the best pass so far: an author works if its part was criticised or is missing.
The author and its specialists are shown the critique and the whole text that it is about, or the other parts if there is none.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from consilience.domain.hierarchies import CRITIC
from consilience.domain.messages import Message
from consilience.domain.wording import count
from consilience.engine.analysis import sentences
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.work import Failure, Pending, Reply
from consilience.protocols._common.conclusion import quoted
from consilience.protocols.refinement.report_data import HANDED_NOTE, WHOLE, HandedDown, HandedDownKind, HandedDownText
from consilience.protocols.refinement.settings import (
    CRITIQUE_OF_DRAFT,
    CRITIQUE_OF_WHOLE,
    Assessment,
    DraftReply,
    IntegratedReply,
    PassState,
    RefinementRun,
    RoleOutput,
)

UNKNOWN_DISTANCE = 0.5
"""Distance of roles without vectors: that of orthogonal ones."""

STRENGTH_LOSS = 0.7
"""Loss of context strength at distance 1."""
MAX_UNCUT_SENTENCES = 3
"""Texts of up to this many sentences are never cut."""

MAX_MEAN_WORD_CHARS = 15
"""A text with longer words on average does not separate words by spaces."""

PendingOutput = Pending[RoleOutput]
HandedQuotes = list[tuple[Quote, HandedDownText | None]]
"""Quotes of a prompt, each with its record if it was handed down an edge of the hierarchy."""


@dataclass(frozen=True)
class PassResult:
    """What the calls of a pass gave; see `PassState`."""

    authors: Mapping[str, RoleOutput]
    served: tuple[tuple[tuple[str, str], RoleOutput], ...]
    whole: Reply[IntegratedReply] | None
    assessment: Assessment
    unchanged: bool

    @classmethod
    def of(cls, state: PassState) -> PassResult:
        return cls(state.authors, tuple(state.served.items()), state.whole, state.assessment, state.unchanged)

    def give(self, state: PassState) -> None:
        state.authors, state.served = self.authors, dict(self.served)
        state.whole, state.assessment, state.unchanged = self.whole, self.assessment, self.unchanged


class PassWriter:
    """Runs the calls of one pass, up to the revised parts."""

    def __init__(self, run: RefinementRun, state: PassState) -> None:
        self.run, self.state = run, state
        self.base = base = state.base or run.origin
        self.session, self.settings, self.tree = run.session, run.settings, run.settings.hierarchy
        self.always_cut = run.settings.filter == "always"
        # authors and their specialists see the whole text that the critique is about; in brief they see the other parts
        self.shown_whole = base.whole if run.session.detail == "full" else None

    async def write(self) -> None:
        """Draft, get help, revise; record what every role has afterwards."""
        tree, session, index = self.tree, self.session, self.state.index
        drafts: dict[str, PendingOutput] = {}
        served: dict[tuple[str, str], PendingOutput] = {}
        revised: dict[str, PendingOutput] = {}
        async with session.phase("draft", index):
            for name in filter(self._is_due, tree.inner):
                drafts[name] = self._start(self._draft(name, drafts))
        async with session.phase("specialist", index):
            for parent, child in tree.edges_to_leaves:
                if parent in drafts or (parent == tree.coordinator and self._serves_the_whole(child, bool(drafts))):
                    served[parent, child] = self._start(self._specialist(parent, child, drafts.get(parent)))
        async with session.phase("revise", index):
            for name in sorted(drafts, key=lambda name: -tree.shape.levels[name]):
                helpers = {child: served.get((name, child), revised.get(child)) for child in tree.children(name)}
                revised[name] = self._start(self._revise(name, drafts[name], helpers))
        for pending in drafts.values():
            await pending  # returns what the draft's branch did not spend
        earlier_pass = self.base
        self.state.authors = {
            n: await revised[n] if n in revised else _resting(n, earlier_pass.authors.get(n)) for n in tree.inner
        }
        self.state.served = {
            edge: await served[edge] if edge in served else _resting(edge[1], earlier_pass.served.get(edge))
            for edge in tree.edges_to_leaves
        }

    def _start(self, work: Coroutine[Any, Any, RoleOutput]) -> PendingOutput:
        return self.session.start(self.session.subtask(work, calls=1))

    def _is_due(self, name: str) -> bool:
        """Whether an author works in this pass: a part that it writes for was criticised or does not exist yet."""
        parts = self.tree.writes_for(name)
        return any(part in self.state.requests or self._text_before(part) is None for part in parts)

    def _serves_the_whole(self, child: str, drafted: bool) -> bool:
        """Whether a specialist of the coordinator works: an adviser if anything is rewritten, the author of a part like others."""
        if child in self.tree.sections:
            return self._is_due(child)
        return drafted or WHOLE in self.state.requests or self.state.index == 1

    async def _draft(self, name: str, drafts: Mapping[str, PendingOutput]) -> RoleOutput:
        """Write from the intent and the drafts above; in later passes from the critique, the own text and the others."""
        tree, cut = self.tree, self.always_cut
        handed = self._hand_down("intent", tree.parents(name)[0], name, self.run.intent, cut=cut)
        for parent in tree.parents(name):
            if parent != tree.coordinator:
                parent_text = (await drafts[parent]).draft if parent in drafts else None
                handed += self._hand_down(
                    "draft", parent, name, parent_text or self._text_before(parent), parent, cut=cut
                )
        labels = [quote.label for quote, _ in handed]
        handed += [entry for entry in self._surroundings(name, name) if entry[0].label not in labels]
        earlier = self._text_before(name)
        output = _output(name, earlier, handed)
        prompt = self._prompt(
            "draft",
            name,
            output.given,
            self._critiques(name),
            own=earlier,
            before=earlier is not None,
            size=words_in(earlier),
        )
        return await self._ask(output, prompt, f"draft/{name}", earlier, kind="draft")

    async def _specialist(self, parent: str, child: str, drafted: PendingOutput | None) -> RoleOutput:
        """Work for one parent, on its draft; for the coordinator, on what it hands down. An unchanged draft needs no work."""
        author = await drafted if drafted is not None else None
        if author is not None and not author.written:
            return _resting(child, self.base.served.get((parent, child)))
        draft = author.draft if author is not None else None
        prompt, output = self._specialist_prompt(parent, child, draft, cut=self.always_cut)
        if self.settings.filter == "auto" and self.session.window_share(child, prompt) > 0.5:
            prompt, output = self._specialist_prompt(parent, child, draft, cut=True)
        return await self._ask(output, prompt, f"specialist/{parent}/{child}", output.text)

    def _specialist_prompt(
        self, parent: str, child: str, draft: Reply[DraftReply] | None, *, cut: bool
    ) -> tuple[Prompt, RoleOutput]:
        """Return the prompt, and what it hands down with the present text of a specialist who writes a part itself."""
        own_text = None
        is_author = draft is None and child in self.tree.sections
        handed = self._hand_down("intent", parent, child, self.run.intent, cut=cut)
        if draft is not None:
            handed += self._hand_down("draft", parent, child, draft, cut=cut)
            if self.shown_whole is None or parent not in self.tree.sections:
                handed += self._hand_down("before", parent, child, self._text_before(parent), cut=cut)
            critiques = [quote for quote in self._critiques(parent) if quote.label != CRITIQUE_OF_DRAFT]
            handed += self._surroundings(parent, child, cut=cut)
        elif is_author:
            own_text = self._text_before(child)
            critiques = self._critiques(child)
            handed += self._surroundings(child, child, cut=cut)
        else:
            handed += self._hand_down("text", parent, child, self.base.whole, cut=cut)
            critiques = self._critiques_of(WHOLE)
        output = _output(child, own_text, handed)
        prompt = self._prompt(
            "specialist",
            child,
            output.given,
            critiques,
            own=own_text,
            shared=draft is None,
            parent=parent if draft is not None else "",
            part=is_author,
            before=own_text is not None or any(quote.label == "before" for quote in output.given),
            size=words_in(draft or own_text or self.base.whole),
        )
        return prompt, output

    async def _revise(
        self, name: str, drafted: PendingOutput, children: Mapping[str, PendingOutput | None]
    ) -> RoleOutput:
        """Rewrite the draft with the work of the children; keep it if no child worked for it."""
        output = await drafted
        work = {child: await pending if pending else None for child, pending in children.items()}
        texts = {child: result.text if result else self._text_before(child) for child, result in work.items()}
        helpers = {child: text for child, text in texts.items() if text is not None}
        changed = output.written or any(result is not None and result.written for result in work.values())
        if output.draft is None or not helpers or not changed:
            return output
        prompt = self._prompt(
            "revise",
            name,
            [quote for quote in output.given if quote.label not in helpers],
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
        name, tree = output.role, self.tree
        if output.handed and output.draft is None:
            self.session.note(HANDED_NOTE, HandedDown(texts=output.handed))
        readers = (*tree.parents(name), *tree.children(name), CRITIC)
        reply = await self.session.ask(
            name,
            prompt,
            key=f"pass-{self.state.index}/{step}",
            returns=DraftReply,
            kind=kind,
            # every agent may read what becomes part of the text
            audience=self.run.everyone if name in tree.sections else readers,
        )
        if isinstance(reply, Failure):
            return replace(output, failures=(*output.failures, reply))
        is_new_text = before is None or reply.text.split() != before.text.split()
        return replace(output, draft=output.draft or reply, text=reply if is_new_text else before, written=is_new_text)

    def _prompt(
        self,
        template: str,
        name: str,
        context_quotes: Sequence[Quote],
        critiques: Sequence[Quote],
        *,
        own: Reply[DraftReply] | None,
        helped: Sequence[Quote] = (),
        shared: bool = True,
        **values: Any,
    ) -> Prompt:
        settings, session, origin = self.settings, self.session, self.run.origin
        tree, labels = self.tree, [quote.label for quote in context_quotes]
        above = tuple(label for label in labels if label in tree.parents(name))
        critic = [quote.label for quote in critiques]
        later = tuple(label for label in critic if label.startswith("later"))
        apart = (*later, CRITIQUE_OF_DRAFT, CRITIQUE_OF_WHOLE)
        words = session.render_template(
            template,
            role=name.replace("_", " "),
            duty=tree.by_name[name].description,
            view=session.agent(name).introduction(),
            tone=settings.tone,
            length=settings.target(),
            draft=origin.draft is not None,
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
        quotes = (*context_quotes, *helped, *critiques, *quoted(session, own, "you"))
        return Prompt(words, quotes, quoted(session, origin.draft, "draft") if shared else ())

    def _text_before(self, name: str) -> Reply[DraftReply] | None:
        """Return the text that an author, or a specialist who writes a part itself, had before this pass."""
        before = self.base.authors.get(name, self.base.served.get((self.tree.coordinator, name)))
        return before.text if before is not None else None

    def _surroundings(self, author: str, reader: str, *, cut: bool = False) -> HandedQuotes:
        """Return what an author's text must fit: the whole that the pass starts from or, if none is shown, the parts that the
        author does not write for. Nothing in the first pass. It is recorded as handed down only if it is to be cut."""
        handed: HandedQuotes = []
        prefix = f"{author}/"
        if self.shown_whole is not None:
            handed = self._hand_down("text", self.tree.coordinator, reader, self.shown_whole, cut=cut, suffix=prefix)
        else:
            for part, text in self.base.part_texts.items():
                if part not in self.tree.writes_for(author):
                    handed += self._hand_down("part", part, reader, text, part, cut=cut, suffix=prefix)
        return handed if cut else [(quote, None) for quote, _ in handed]

    def _critiques(self, name: str) -> list[Quote]:
        """Return the critiques of the parts that a role writes for, then those of the whole."""
        parts = [part for part in self.tree.writes_for(name) if part in self.state.requests]
        of_parts = [self._critiques_of(part, f" of {part}" if len(parts) > 1 else "") for part in parts]
        return [*(quote for quotes in of_parts for quote in quotes), *self._critiques_of(WHOLE)]

    def _critiques_of(self, part: str, suffix: str = "") -> list[Quote]:
        critiques = self.state.requests.get(part, {})
        return [self.session.quote(message, f"{label}{suffix}") for label, message in critiques.items()]

    def _hand_down(
        self,
        what: HandedDownKind,
        parent: str,
        child: str,
        text: Reply[Any] | None,
        label: str = "",
        *,
        cut: bool,
        suffix: str = "",
    ) -> HandedQuotes:
        """Hand a text down an edge, `cut` by the distance of the roles.

        A cut text is a message of its own, which ends with the number of sentences left out.
        """
        if text is None:
            return []
        distance = self.run.distances.get(parent, {}).get(child, UNKNOWN_DISTANCE) if cut else None
        filtered = filter_context(text.text, distance or 0.0)
        record = HandedDownText(
            step=self.state.index,
            parent=parent,
            child=child,
            what=what,
            distance=distance,
            strength=strength(distance or 0.0),
            sentences=filtered.of,
            kept=filtered.kept,
        )
        sentences_left_out = filtered.of - filtered.kept
        if not sentences_left_out:
            return [(self.session.quote(text, label or what), record)]
        shortened = Message(
            id=f"pass-{self.state.index}/{what}/{suffix}{parent}/{child}",
            sender=parent,
            kind="context",
            text=f"{filtered.text}\n[{count(sentences_left_out, 'sentence')} left out]",
            audience=(child,),
            reply_to=text.key,
            phase=("context", self.state.index),
        )
        self.session.publish(shortened)
        return [(self.session.quote(shortened, label or what), record)]


def _resting(role: str, before: RoleOutput | None) -> RoleOutput:
    """Return the output of a role that does not work in a pass: its latest text."""
    return RoleOutput(role, text=before.text if before is not None else None)


def _output(
    role: str, text: Reply[DraftReply] | None, handed: Iterable[tuple[Quote, HandedDownText | None]]
) -> RoleOutput:
    """Return the output of a role before its call."""
    quotes = tuple(quote for quote, _ in handed)
    return RoleOutput(role, text=text, given=quotes, handed=tuple(record for _, record in handed if record is not None))


def words_in(*texts: Reply[DraftReply] | Reply[IntegratedReply] | None) -> int:
    """Return the number of words in texts; 0 (unknown) in scripts that do not separate words by spaces."""
    words = [word for text in texts if text is not None for word in text.text.split()]
    return len(words) if sum(map(len, words)) < MAX_MEAN_WORD_CHARS * len(words) else 0


class FilteredText(NamedTuple):
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
