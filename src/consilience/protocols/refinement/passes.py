"""One pass: authors draft, specialists work for each parent on that parent's draft, authors revise with their results.

There are no barriers: whoever has what they read begins. A text goes down an edge shortened by the distance of the roles;
what comes up is shown whole. Only those work whom a critique concerns, or who have no text yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from consilience.domain.hierarchies import CRITIC, Hierarchy
from consilience.domain.messages import Message
from consilience.domain.positions import Confidence
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Pending, Reply
from consilience.protocols.refinement.filtering import filter_context, strength
from consilience.protocols.refinement.replies import Written
from consilience.protocols.refinement.report import Handed
from consilience.protocols.refinement.settings import Settings


@dataclass(frozen=True, slots=True)
class Piece:
    """What one role made in a pass, a specialist for one parent. `text` is its latest, of an earlier pass if need be, `written`
    says whether it is of this one; `handed` is what it was given from above."""

    role: str
    draft: Reply[Written] | None = None
    text: Reply[Written] | None = None
    written: bool = False
    handed: tuple[Handed, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def declared(self) -> Confidence | None:
        """How sure its author says it is."""
        return self.text.value.confidence if self.text is not None else None


@dataclass(frozen=True, slots=True)
class Yield:
    """What a pass came to: the piece of every author, and that of every specialist for each parent."""

    authors: Mapping[str, Piece] = field(default_factory=dict)
    served: Mapping[tuple[str, str], Piece] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Piece, ...]:
        return (*self.authors.values(), *self.served.values())

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(failure for piece in self.all for failure in piece.failures)

    @property
    def handed(self) -> tuple[Handed, ...]:
        return tuple(handed for piece in self.all for handed in piece.handed)

    def below(self, parent: str, tree: Hierarchy) -> dict[str, Piece]:
        """What came up to a role from each of its children that has a text."""
        found = {child: self.served.get((parent, child), self.authors.get(child)) for child in tree.children(parent)}
        return {child: piece for child, piece in found.items() if piece is not None and piece.text is not None}

    def parts(self, tree: Hierarchy) -> dict[str, Piece]:
        """The parts of the text that are there, in their order."""
        return {name: piece for name, piece in self.below(tree.coordinator, tree).items() if name in tree.sections}


Future = Pending[Piece]
What = Literal["intent", "text", "draft", "before"]


@dataclass(frozen=True)
class Pass:
    """What a pass begins with: `before` what the one before came to, `critiques` of parts by part, `distances` by edge (none where
    nothing is filtered), `intent` and from the second on the `whole` text, and the `draft` that all began with, which may hold
    `markers` of what nobody may change."""

    session: Session
    settings: Settings
    index: int
    before: Yield
    critiques: Mapping[str, Message]
    distances: Mapping[tuple[str, str], float]
    intent: Reply[str] | None = None
    whole: Reply[Any] | None = None
    draft: Message | None = None
    markers: bool = False

    async def run(self) -> Yield:
        tree, session = self.settings.hierarchy, self.session
        drafts: dict[str, Future] = {}
        served: dict[tuple[str, str], Future] = {}
        texts: dict[str, Future] = {}
        async with session.phase("draft", self.index):
            for name in filter(self.due, tree.inner):
                drafts[name] = session.start(session.procedure(self._draft(name, drafts), calls=1))
        async with session.phase("specialist", self.index):
            for parent, child in tree.edges_to_leaves:
                if parent in drafts or (parent == tree.coordinator and (self._advises(child) or self.due(child))):
                    work = self._specialist(parent, child, drafts.get(parent))
                    served[parent, child] = session.start(session.procedure(work, calls=1))
        async with session.phase("revise", self.index):
            for name in sorted(drafts, key=lambda one: -tree.shape.levels[one]):
                below = {c: served.get((name, c), texts.get(c)) for c in tree.children(name)}
                texts[name] = session.start(session.procedure(self._revise(name, drafts[name], below), calls=1))
        for pending in drafts.values():
            await pending  # what a draft leaves unspent comes back here
        return Yield(
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
        return any(part in self.critiques or self._text_before(part) is None for part in parts)

    def _advises(self, name: str) -> bool:
        """Whether a specialist serves the coordinator with advice on the whole, in every pass, and not with a part. For authors
        whom it serves too it works apart from that."""
        return name not in self.settings.hierarchy.sections

    def concerning(self, name: str) -> list[str]:
        """The parts criticised whose critique concerns a role: its own, or those it writes for."""
        return [part for part in self.settings.hierarchy.writes_for(name) if part in self.critiques]

    async def _draft(self, name: str, drafts: Mapping[str, Future]) -> Piece:
        """From the intent, or from the drafts of those above; later from its critique and its own text as well."""
        session, tree = self.session, self.settings.hierarchy
        given: list[tuple[Quote, Handed]] = []
        for parent in tree.parents(name):
            if parent == tree.coordinator:
                given += self._hand("intent", parent, name, self.intent, "intent")
            else:
                above = (await drafts[parent]).draft if parent in drafts else None
                text = above or self._text_before(parent)
                given += self._hand("draft", parent, name, text, parent)
        before = self._text_before(name)
        quotes = [quote for quote, _ in given] + self._critiques(name)
        if before is not None:
            quotes.append(session.quote(before, "you"))
        shared = (session.quote(self.draft, "draft"),) if self.draft is not None else ()
        words = self._words(
            "draft",
            name,
            intent=any(quote.label == "intent" for quote in quotes),
            above=tuple(q.label for q, _ in given if q.label != "intent"),
            draft=bool(shared),
            before=before is not None,
            critiques=len(self._critiques(name)),
            most=self._words_of(name),
        )
        reply = await session.ask(
            name,
            Prompt(words, tuple(quotes), shared),
            key=f"pass-{self.index}/draft/{name}",
            returns=Written,
            kind="draft",
            audience=self._readers(name),
            max_tokens=self.settings.reply_tokens,
        )
        piece = Piece(name, text=before, handed=tuple(handed for _, handed in given))
        if isinstance(reply, Failure):
            return replace(piece, failures=(reply,))
        return replace(piece, draft=reply, text=reply, written=True)

    async def _specialist(self, parent: str, child: str, drafted: Future | None) -> Piece:
        """Work for one parent: on its draft, or, where the parent is the coordinator, on what it hands down."""
        own: Reply[Written] | None = None
        if drafted is not None:
            draft = (await drafted).draft
            if draft is None:
                return Piece(child)
            given = self._hand("draft", parent, child, draft, "draft")
            given += self._hand("before", parent, child, self._text_before(parent), "before")
            critiques = self._critiques(parent)
        else:
            what: What = "text" if self.whole else "intent"
            given = self._hand(what, parent, child, self.whole or self.intent, what)
            critiques = [] if self._advises(child) else self._critiques(child)
            own = None if self._advises(child) else self._text_before(child)
        quotes = [quote for quote, _ in given] + critiques + ([self.session.quote(own, "you")] if own else [])
        words = self._words(
            "specialist",
            child,
            parent=parent if drafted is not None else "",
            part=drafted is None and not self._advises(child),
            on=given[0][0].label if given else "",
            before=own is not None or len(given) > 1,
            critiques=len(critiques),
            most=self._words_of(child),
        )
        reply = await self.session.ask(
            child,
            Prompt(words, tuple(quotes)),
            key=f"pass-{self.index}/specialist/{parent}/{child}",
            returns=Written,
            audience=(parent, CRITIC),
            max_tokens=self.settings.reply_tokens,
        )
        handed = tuple(one for _, one in given)
        if isinstance(reply, Failure):
            return Piece(child, text=own, handed=handed, failures=(reply,))
        return Piece(child, text=reply, written=True, handed=handed)

    async def _revise(self, name: str, drafted: Future, below: Mapping[str, Future | None]) -> Piece:
        """The draft once more, with what the children came to; the draft itself where none of them came to anything."""
        piece = await drafted
        came = {
            child: (await pending).text if pending else self._text_before(child) for child, pending in below.items()
        }
        helpers = {child: text for child, text in came.items() if text is not None}
        if piece.draft is None or not helpers:
            return piece
        session = self.session
        critiques = self._critiques(name)
        quotes = [session.quote(text, child) for child, text in helpers.items()]
        words = self._words(
            "revise",
            name,
            helpers=tuple((child, text.value.confidence) for child, text in helpers.items()),
            critiques=len(critiques),
            most=self._words_of(name),
        )
        reply = await session.ask(
            name,
            Prompt(words, (*quotes, *critiques, session.quote(piece.draft, "you"))),
            key=f"pass-{self.index}/revise/{name}",
            returns=Written,
            audience=self._readers(name),
            max_tokens=self.settings.reply_tokens,
        )
        if isinstance(reply, Failure):
            return replace(piece, failures=(*piece.failures, reply))
        return replace(piece, text=reply)

    def _text_before(self, name: str) -> Reply[Written] | None:
        """What an author, or a specialist who writes a part itself, left the pass before with."""
        edge = (self.settings.hierarchy.coordinator, name)
        before = self.before.authors.get(name, self.before.served.get(edge))
        return before.text if before is not None else None

    def _readers(self, name: str) -> tuple[str, ...]:
        """Who may be shown what an author writes: those above, those below, the critic."""
        tree = self.settings.hierarchy
        return (*tree.parents(name), *tree.children(name), CRITIC)

    def _critiques(self, name: str) -> list[Quote]:
        parts = self.concerning(name)
        labels = ["critique"] if len(parts) == 1 else [f"critique of {part}" for part in parts]
        return [self.session.quote(self.critiques[part], label) for part, label in zip(parts, labels, strict=True)]

    def _hand(
        self, what: What, parent: str, child: str, text: Reply[Any] | None, label: str
    ) -> list[tuple[Quote, Handed]]:
        """A text going down an edge; what is left of it is a message of its own where something was cut."""
        if text is None:
            return []
        distance = self.distances.get((parent, child))
        found = filter_context(text.text, distance or 0.0)
        handed = Handed(
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
        shortened = Message(
            id=f"pass-{self.index}/{what}/{parent}/{child}",
            sender=parent,
            kind="context",
            text=found.text,
            audience=(child,),
            reply_to=text.key,
            phase=("context", self.index),
        )
        self.session.publish(shortened)
        return [(self.session.quote(shortened, label), handed)]

    def _words_of(self, name: str) -> int:
        """Words that a part should have, where the whole has an aim."""
        tree = self.settings.hierarchy
        return round(self.settings.length / len(tree.sections)) if name in tree.sections else 0

    def _words(self, template: str, name: str, **values: Any) -> str:
        seat = self.session.agent(name)
        return self.session.words(
            template,
            role=name.replace("_", " "),
            duty=self.settings.hierarchy.by_name[name].description,
            view=" ".join(filter(None, (f"You are {seat.persona}." if seat.persona else "", seat.perspective))),
            tone=self.settings.tone,
            documents=bool(self.session.sources),
            markers=self.markers,
            **values,
        )
