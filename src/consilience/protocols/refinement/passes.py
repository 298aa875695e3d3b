"""One pass: authors draft, specialists work for each parent on that parent's draft, authors revise with their results.

There are no barriers: an agent starts as soon as what it reads exists. The first pass starts from the intent and the draft that
was given, if any. Each later pass starts from the best pass so far: an author works if its part was criticised or is missing,
and it and its specialists are shown the critique and the whole text that it is about, or the other parts where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from consilience.domain.hierarchies import CRITIC, Hierarchy
from consilience.domain.messages import Message
from consilience.domain.positions import ConfidenceLevel
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Pending, Reply
from consilience.protocols.refinement.filtering import UNKNOWN_DISTANCE, filter_context, strength
from consilience.protocols.refinement.replies import DraftReply, IntegratedReply
from consilience.protocols.refinement.report import HandedDownText, What
from consilience.protocols.refinement.settings import Settings


@dataclass(frozen=True, slots=True)
class Piece:
    """What one role made in a pass, a specialist for one parent.

    `draft` is its first reply in this pass, `text` its latest text, which may be of an earlier pass; `written`: the text is
    another one than before. `given` is what its draft was written from, and `handed` what of it came from above.
    """

    role: str
    draft: Reply[DraftReply] | None = None
    text: Reply[DraftReply] | None = None
    written: bool = False
    given: tuple[Quote, ...] = ()
    handed: tuple[HandedDownText, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def declared(self) -> ConfidenceLevel | None:
        """How sure its author says it is."""
        return self.text.value.confidence if self.text is not None else None

    @property
    def replied(self) -> bool:
        """Whether any reply came in this pass, changed or not."""
        return self.written or self.draft is not None


@dataclass(frozen=True, slots=True)
class PassResult:
    """The piece of every author, and that of every specialist for each parent."""

    authors: Mapping[str, Piece] = field(default_factory=dict)
    served: Mapping[tuple[str, str], Piece] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Piece, ...]:
        return (*self.authors.values(), *self.served.values())

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(failure for piece in self.all for failure in piece.failures)

    @property
    def handed(self) -> tuple[HandedDownText, ...]:
        return tuple(handed for piece in self.all for handed in piece.handed)

    def below(self, parent: str, tree: Hierarchy) -> dict[str, Piece]:
        """What came up to a role from each of its children that has a text."""
        found = {child: self.served.get((parent, child), self.authors.get(child)) for child in tree.children(parent)}
        return {child: piece for child, piece in found.items() if piece is not None and piece.text is not None}

    def parts(self, tree: Hierarchy) -> dict[str, Piece]:
        """The parts of the text that are there, in their order."""
        return {name: piece for name, piece in self.below(tree.coordinator, tree).items() if name in tree.sections}


Labelled = Mapping[str, Message]
"""Messages by the label under which they are quoted."""


@dataclass(frozen=True)
class Requests:
    """What a pass is to mend: the critiques of each criticised part, and those of the whole. Labels that begin with `later` are
    those of a pass that started from the same text and came out worse."""

    parts: Mapping[str, Labelled] = field(default_factory=dict)
    whole: Labelled = field(default_factory=dict)


LONGEST_MEAN_WORD = 15
"""Characters. A text whose words are longer on average does not part them by spaces."""

Future = Pending[Piece]
Given = list[tuple[Quote, HandedDownText | None]]


@dataclass(frozen=True)
class Pass:
    """What a pass begins with: `before` is the result of the pass that it starts from, `whole` that pass's whole text.
    `distances` are by pair of roles. `draft` is the text given with the task, which may hold `markers` of protected parts."""

    session: Session
    settings: Settings
    index: int
    before: PassResult
    requests: Requests
    distances: Mapping[tuple[str, str], float]
    intent: Reply[str] | None = None
    whole: Reply[IntegratedReply] | None = None
    draft: Message | None = None
    markers: bool = False

    async def run(self) -> PassResult:
        tree, session = self.settings.hierarchy, self.session
        drafts: dict[str, Future] = {}
        served: dict[tuple[str, str], Future] = {}
        texts: dict[str, Future] = {}
        async with session.phase("draft", self.index):
            for name in filter(self.due, tree.inner):
                drafts[name] = session.start(session.procedure(self._draft(name, drafts), calls=1))
        async with session.phase("specialist", self.index):
            for parent, child in tree.edges_to_leaves:
                if parent in drafts or (parent == tree.coordinator and self._serves_the_whole(child, bool(drafts))):
                    work = self._specialist(parent, child, drafts.get(parent))
                    served[parent, child] = session.start(session.procedure(work, calls=1))
        async with session.phase("revise", self.index):
            for name in sorted(drafts, key=lambda one: -tree.shape.levels[one]):
                below = {c: served.get((name, c), texts.get(c)) for c in tree.children(name)}
                texts[name] = session.start(session.procedure(self._revise(name, drafts[name], below), calls=1))
        for pending in drafts.values():
            await pending  # what a draft leaves unspent comes back here
        return PassResult(
            {name: await texts[name] if name in texts else self._kept(name) for name in tree.inner},
            {
                edge: await served[edge] if edge in served else self._kept(edge[1], *edge)
                for edge in tree.edges_to_leaves
            },
        )

    def _kept(self, name: str, parent: str = "", child: str = "") -> Piece:
        """A role that rests in this pass, with what it last made."""
        before = self.before.served.get((parent, child)) if parent else self.before.authors.get(name)
        return Piece(name, text=before.text) if before is not None else Piece(name)

    def due(self, name: str) -> bool:
        """Whether who writes works in this pass: a part that it writes or helps to write was criticised, or is not there yet."""
        parts = self.settings.hierarchy.writes_for(name)
        return any(part in self.requests.parts or self._text_before(part) is None for part in parts)

    def _advises(self, name: str) -> bool:
        """Whether a specialist serves the coordinator with advice on the whole, and not with a part. For authors whom it serves
        too it works apart from that."""
        return name not in self.settings.hierarchy.sections

    def _serves_the_whole(self, child: str, drafted: bool) -> bool:
        """Whether a child of the coordinator works: an adviser where a part or the whole is written again, else as authors do."""
        return (drafted or bool(self.requests.whole) or self.index == 1) if self._advises(child) else self.due(child)

    async def _draft(self, name: str, drafts: Mapping[str, Future]) -> Piece:
        """From the intent, or from the drafts of those above; later from the critique, its own text and the other parts."""
        session, tree = self.session, self.settings.hierarchy
        given = self._hand("intent", tree.parents(name)[0], name, self.intent, "intent")
        for parent in tree.parents(name):
            if parent != tree.coordinator:
                above = (await drafts[parent]).draft if parent in drafts else None
                given += self._hand("draft", parent, name, above or self._text_before(parent), parent)
        taken = [quote.label for quote, _ in given]
        given += [(quote, None) for quote, _ in self._around(name, name) if quote.label not in taken]
        before = self._text_before(name)
        critiques = self._critiques(name)
        quotes = [*(quote for quote, _ in given), *critiques, *([session.quote(before, "you")] if before else [])]
        words = self._words(
            "draft",
            name,
            given=[quote for quote, _ in given],
            before=before is not None,
            size=words_in(before),
            critiques=critiques,
        )
        reply = await session.ask(
            name,
            Prompt(words, tuple(quotes), self._shared),
            key=f"pass-{self.index}/draft/{name}",
            returns=DraftReply,
            kind="draft",
            audience=self._readers(name),
        )
        piece = Piece(
            name,
            text=before,
            given=tuple(quote for quote, _ in given),
            handed=tuple(handed for _, handed in given if handed is not None),
        )
        if isinstance(reply, Failure):
            return replace(piece, failures=(reply,))
        return self._with(replace(piece, draft=reply), reply, before)

    async def _specialist(self, parent: str, child: str, drafted: Future | None) -> Piece:
        """Work for one parent: on its draft, or, where the parent is the coordinator, on what it hands down. A draft that came back
        unchanged needs none."""
        draft = None
        if drafted is not None:
            piece = await drafted
            if not piece.written:
                return self._kept(child, parent, child)
            draft = piece.draft
        prompt, given, own = self._specialist_prompt(parent, child, draft, cut=self.settings.filter == "always")
        if self.settings.filter == "auto" and self.session.window_share(child, prompt) > 0.5:
            prompt, given, own = self._specialist_prompt(parent, child, draft, cut=True)
        reply = await self.session.ask(
            child,
            prompt,
            key=f"pass-{self.index}/specialist/{parent}/{child}",
            returns=DraftReply,
            audience=self._readers(child),
        )
        handed = tuple(one for _, one in given if one is not None)
        if isinstance(reply, Failure):
            return Piece(child, text=own, handed=handed, failures=(reply,))
        return self._with(Piece(child, draft=reply, handed=handed), reply, own)

    def _specialist_prompt(
        self, parent: str, child: str, draft: Reply[DraftReply] | None, *, cut: bool
    ) -> tuple[Prompt, Given, Reply[DraftReply] | None]:
        """The prompt, what it hands down and, of a specialist who writes a part itself, that part as it stands."""
        session, own = self.session, None
        given = self._hand("intent", parent, child, self.intent, "intent", cut)
        if draft is not None:
            given += self._hand("draft", parent, child, draft, "draft", cut)
            if self._base is None or parent not in self.settings.hierarchy.sections:
                given += self._hand("before", parent, child, self._text_before(parent), "before", cut)
            critiques = [quote for quote in self._critiques(parent) if quote.label != OF_DRAFT]
            given += self._around(parent, child, cut)
        elif self._advises(child):
            given += self._hand("text", parent, child, self.whole, "text", cut)
            critiques = self._quoted(self.requests.whole)
        else:
            own = self._text_before(child)
            critiques = self._critiques(child)
            given += self._around(child, child, cut)
        quotes = [*(quote for quote, _ in given), *critiques, *([session.quote(own, "you")] if own else [])]
        words = self._words(
            "specialist",
            child,
            parent=parent if draft is not None else "",
            part=draft is None and not self._advises(child),
            given=[quote for quote, _ in given],
            before=own is not None or any(quote.label == "before" for quote in quotes),
            size=words_in(draft or own or self.whole),
            critiques=critiques,
        )
        return Prompt(words, tuple(quotes), self._shared if draft is None else ()), given, own

    async def _revise(self, name: str, drafted: Future, below: Mapping[str, Future | None]) -> Piece:
        """The draft once more, with the work of the children; the draft itself if no child worked for it."""
        piece = await drafted
        came = {child: await pending if pending else None for child, pending in below.items()}
        texts = {child: work.text if work else self._text_before(child) for child, work in came.items()}
        helpers = {child: text for child, text in texts.items() if text is not None}
        changed = piece.written or any(work is not None and work.written for work in came.values())
        if piece.draft is None or not helpers or not changed:
            return piece
        session = self.session
        critiques = self._critiques(name)
        quotes = [session.quote(text, child) for child, text in helpers.items()]
        given = [quote for quote in piece.given if quote.label not in helpers]
        words = self._words(
            "revise",
            name,
            helpers=tuple((child, text.value.confidence) for child, text in helpers.items()),
            given=given,
            size=words_in(piece.draft),
            critiques=critiques,
        )
        reply = await session.ask(
            name,
            Prompt(words, (*given, *quotes, *critiques, session.quote(piece.draft, "you")), self._shared),
            key=f"pass-{self.index}/revise/{name}",
            returns=DraftReply,
            audience=self._readers(name),
        )
        if isinstance(reply, Failure):
            return replace(piece, failures=(*piece.failures, reply))
        return self._with(piece, reply, self._text_before(name))

    @staticmethod
    def _with(piece: Piece, reply: Reply[DraftReply], before: Reply[DraftReply] | None) -> Piece:
        """The piece with a reply as its text, or with the text before if the reply is the same."""
        if before is not None and reply.text.split() == before.text.split():
            return replace(piece, text=before, written=False)
        return replace(piece, text=reply, written=True)

    def _text_before(self, name: str) -> Reply[DraftReply] | None:
        """What an author, or a specialist who writes a part itself, left the pass before with."""
        edge = (self.settings.hierarchy.coordinator, name)
        before = self.before.authors.get(name, self.before.served.get(edge))
        return before.text if before is not None else None

    @property
    def _base(self) -> Reply[IntegratedReply] | None:
        """The whole that authors and their specialists are shown: what the critique is about. In brief these are the other
        parts."""
        return self.whole if self.session.detail == "full" else None

    def _around(self, author: str, reader: str, cut: bool = False) -> Given:
        """What an author's text must fit, for a reader: the whole that the pass starts from or, where none is shown, the parts
        that the author does not work for. Nothing in the first pass."""
        tree = self.settings.hierarchy
        mine = tree.writes_for(author)
        texts: list[tuple[What, str, str, Reply[Any] | None]] = [("text", tree.coordinator, "text", self._base)]
        if self._base is None:
            parts = self.before.parts(tree).items()
            texts = [("part", part, part, piece.text) for part, piece in parts if part not in mine]
        given: Given = []
        for what, sender, label, text in texts:
            if cut:
                given += self._hand(what, sender, reader, text, label, cut, f"{author}/")
            elif text is not None:
                given.append((self.session.quote(text, label), None))
        return given

    @property
    def _shared(self) -> tuple[Quote, ...]:
        return (self.session.quote(self.draft, "draft"),) if self.draft is not None else ()

    def _readers(self, name: str) -> tuple[str, ...]:
        """Who may be shown what a role writes: everybody, if it may become a part of the text; else those around it."""
        tree = self.settings.hierarchy
        if name in tree.sections:
            return tuple(agent.id for agent in self.session.agents)
        return (*tree.parents(name), *tree.children(name), CRITIC)

    def _critiques(self, name: str) -> list[Quote]:
        """The critiques of the parts that a role works for, then those of the whole."""
        parts = [part for part in self.settings.hierarchy.writes_for(name) if part in self.requests.parts]
        found: list[Quote] = []
        for part in parts:
            labels = self.requests.parts[part]
            named = labels if len(parts) == 1 else {f"{label} of {part}": one for label, one in labels.items()}
            found += self._quoted(named)
        return found + self._quoted(self.requests.whole)

    def _quoted(self, messages: Labelled) -> list[Quote]:
        return [self.session.quote(message, label) for label, message in messages.items()]

    def _hand(
        self,
        what: What,
        parent: str,
        child: str,
        text: Reply[Any] | None,
        label: str,
        cut: bool | None = None,
        of: str = "",
    ) -> Given:
        """A text that goes down an edge, `cut` by the distance of the roles; by default where everything is. What is left of a cut
        text is a message of its own, which ends with the number of sentences left out."""
        if text is None:
            return []
        if cut is None:
            cut = self.settings.filter == "always"
        distance = self.distances.get((parent, child), UNKNOWN_DISTANCE) if cut else None
        found = filter_context(text.text, distance or 0.0)
        handed = HandedDownText(
            step=self.index,
            parent=parent,
            child=child,
            what=what,
            distance=distance,
            strength=strength(distance or 0.0),
            sentences=found.of,
            kept=found.kept,
        )
        if found.kept == found.of:
            return [(self.session.quote(text, label), handed)]
        left = found.of - found.kept
        shortened = Message(
            id=f"pass-{self.index}/{what}/{of}{parent}/{child}",
            sender=parent,
            kind="context",
            text=f"{found.text}\n[{left} {'sentence' if left == 1 else 'sentences'} left out]",
            audience=(child,),
            reply_to=text.key,
            phase=("context", self.index),
        )
        self.session.publish(shortened)
        return [(self.session.quote(shortened, label), handed)]

    def _words(self, template: str, name: str, *, given: Sequence[Quote], critiques: list[Quote], **values: Any) -> str:
        seat, settings = self.session.agent(name), self.settings
        tree, labels = settings.hierarchy, [quote.label for quote in given]
        above = tuple(label for label in labels if label in tree.parents(name))
        return self.session.words(
            template,
            role=name.replace("_", " "),
            duty=settings.hierarchy.by_name[name].description,
            view=seat.introduction(),
            tone=settings.tone,
            length=settings.target(),
            draft=self.draft is not None,
            documents=bool(self.session.sources),
            markers=self.markers,
            intent="intent" in labels,
            whole="text" in labels,
            above=above,
            others=tuple(label for label in labels if label in tree.sections and label not in above),
            **values,
            **dict(_sorted(critiques)),
        )


def words_in(*texts: Reply[Any] | None) -> int:
    """How many words the texts have; 0, of which nothing is said, in scripts that do not part words by spaces."""
    words = [word for text in texts if text is not None for word in text.text.split()]
    return len(words) if sum(map(len, words)) < LONGEST_MEAN_WORD * len(words) else 0


def _sorted(critiques: list[Quote]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The labels of critiques, by what they are of."""
    labels = [quote.label for quote in critiques]
    yield "later", tuple(label for label in labels if label.startswith("later"))
    yield "of_draft", tuple(label for label in labels if label == OF_DRAFT)
    yield "of_whole", tuple(label for label in labels if label == OF_WHOLE)
    yield "critiques", tuple(one for one in labels if not one.startswith("later") and one not in (OF_DRAFT, OF_WHOLE))


OF_WHOLE, OF_DRAFT = "critique of the whole", "critique of the draft"
"""Labels of what the critic said of a whole text."""
