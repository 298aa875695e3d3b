"""What a protocol sees of the world, and all that it sees.

`ask` describes a call; awaiting it makes it. `gather` runs branches side by side, `start` opens one whose result any
branch may await. Operations have places (`engine.branch`), so a run is a function of settings, task, sources, seed and
inputs, under any order of arrival.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, TypeVar, overload

from consilience.domain.agents import Agent
from consilience.domain.errors import ProtocolViolation, ProviderError
from consilience.domain.events import CheckRecorded, MessagePublished, TextsEmbedded, place_key, text_id
from consilience.domain.messages import Message
from consilience.domain.outcome import Check, Limits
from consilience.domain.replies import MOST_CLAIMS, ClaimReply
from consilience.domain.report import Claim, Report
from consilience.domain.topology import Topology
from consilience.engine.activity import Activity
from consilience.engine.branch import Account, Amount, Branch, allot, current_branch, current_phase
from consilience.engine.call import Call
from consilience.engine.header import claim, header, quorum_of
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.schedule import Schedule
from consilience.engine.similarity import cosine, jaccard, quantised
from consilience.engine.sources import Document
from consilience.engine.state import State
from consilience.engine.telemetry import span
from consilience.engine.work import Ask, Failure, Pending, Procedure, Reply, Work, exhaustion

T = TypeVar("T")
R = TypeVar("R", bound=Report)


class Session:
    """One run of one protocol. Methods that touch the world take places in program order; properties are plain reads."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._started: list[Pending[Any]] = []
        self._agents = {agent.id: agent for agent in state.agents}
        self.schedule = Schedule([agent.id for agent in state.agents])

    # what is given

    @property
    def task(self) -> str:
        return self._state.opening.task

    @property
    def agents(self) -> tuple[Agent, ...]:
        return self._state.agents

    def agent(self, id: str) -> Agent:
        return self._agents[id]

    @property
    def topology(self) -> Topology:
        return self._state.topology

    @property
    def sources(self) -> tuple[Document, ...]:
        return self._state.opening.documents

    @property
    def limits(self) -> Limits:
        return self._state.limits

    def quorate(self, alive: int, of: int) -> bool:
        """Whether so many agents are a quorum, and at least one."""
        return alive > 0 and alive >= quorum_of(self._state.quorum, of)

    def quorum(self, seats: Sequence[tuple[object | None, Sequence[Failure]]]) -> bool:
        """Whether those who did not fail for good are a quorum. Of each: what it came to, None for nothing, and its failures, of
        which a refusal by a limit is no fault of its own."""
        dead = sum(came is None and not exhaustion(failures) for came, failures in seats)
        return self.quorate(len(seats) - dead, len(seats))

    @property
    def account(self) -> Account:
        """What the current branch may still spend."""
        return current_branch.get().account

    @property
    def activity(self) -> Activity:
        return self._state.activity

    def words(self, template: str, **values: Hashable) -> str:
        """A prompt template of the protocol, rendered."""
        return self._state.templates.render(template, **values)

    def rng(self, *names: object) -> random.Random:
        """A generator of this branch's own: seeded by SHA-256 of (seed, place of the branch, names)."""
        place = current_branch.get().prefix
        seed = "/".join([str(self._state.seed), place, *map(str, names)])
        return random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big"))

    # calls and branches

    @overload
    def ask(self, agent: str, prompt: Prompt, *, key: str, kind: str = ..., audience: Sequence[str] = ..., closing: bool = ...,
            max_tokens: int = ...) -> Ask[str]: ...  # fmt: skip
    @overload
    def ask(self, agent: str, prompt: Prompt, *, key: str, returns: type[T], kind: str = ..., audience: Sequence[str] = ...,
            accept: Callable[[T], None] | None = ..., closing: bool = ..., max_tokens: int = ...) -> Ask[T]: ...  # fmt: skip
    def ask(
        self,
        agent: str,
        prompt: Prompt,
        *,
        key: str,
        returns: type[Any] = str,
        kind: str = "reply",
        audience: Sequence[str] = (),
        accept: Callable[[Any], None] | None = None,
        closing: bool = False,
        max_tokens: int = 1024,
    ) -> Ask[Any]:
        """Describe one call; `await` it for a `Reply` or a `Failure`.

        `key` is unique in the session and becomes the id of the message the reply makes, which `audience` and the agent
        itself may be shown and nobody else. `returns` is `str` or a pydantic model; `accept` may raise `ValueError` to
        reject a value, saying why to the model. `closing` marks the call that may draw on the reserve.
        """
        return Ask(self, agent, prompt, key, returns, kind, tuple(audience), accept, closing, max_tokens)

    def procedure(self, body: Coroutine[Any, Any, T], *, calls: int) -> Procedure[T]:
        """A coroutine to run as a branch, which makes at most `calls` calls."""
        return Procedure(self, body, calls)

    async def perform(self, ask: Ask[T]) -> Reply[T] | Failure:
        """Make a call in the current branch (what awaiting an `Ask` does)."""
        branch = current_branch.get()
        branch.due -= 1
        return await Call(self._state, ask, branch, branch.next_place()).run()

    async def gather(self, works: Sequence[Work[T]]) -> list[Any]:
        """Run branches side by side, funded at the fork in the order asked; results in that order.

        A failed call is a value. A defect in one branch cancels the others and is raised.
        """
        branch = current_branch.get()
        place = branch.next_place()
        if not works:
            return []
        branch.due -= sum(work.calls for work in works)
        limited = branch.account.limited
        needs = [work.need for work in works] if limited else [Amount()] * len(works)
        accounts = allot(branch.account, needs, self._due(branch), lent=True)
        activity = self._state.activity
        left = len(works)

        def ended(task: asyncio.Task[Any]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                activity.enter()
            if not task.cancelled():
                activity.leave()

        activity.enter(left)
        tasks = [
            self._open(work, f"{place}.{i}.", account)
            for i, (work, account) in enumerate(zip(works, accounts, strict=True))
        ]
        for task in tasks:
            task.add_done_callback(ended)
        activity.leave()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
            results = [task.result() for task in tasks]
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        for account in accounts:
            account.return_to(branch.account)
        return results

    def _due(self, branch: Branch) -> Amount:
        """What the calls need that the branch may still make itself."""
        return self.need_of_calls(max(branch.due, 0)) if branch.account.limited else Amount()

    def start(self, work: Work[T]) -> Pending[Any]:
        """Open a branch now, funded now; await the result here or in another branch.

        What it leaves unspent comes back when the branch that started it awaits it, and not otherwise.
        """
        branch = current_branch.get()
        place = branch.next_place()
        branch.due -= work.calls
        need = work.need if branch.account.limited else Amount()
        (account,) = allot(branch.account, [need], self._due(branch))
        self._state.activity.enter()
        task = self._open(work, f"{place}.0.", account)
        pending: Pending[Any] = Pending(self, task, account, place, current_phase.get())
        self._started.append(pending)
        return pending

    @asynccontextmanager
    async def phase(self, name: str, index: int) -> AsyncIterator[None]:
        """Label the calls made inside; no barrier and no event."""
        token = current_phase.set((name, index))
        try:
            with span(f"{name} {index}", session=self._state.id, phase=name, index=index):
                yield
        finally:
            current_phase.reset(token)

    def need_of(self, ask: Ask[Any]) -> Amount:
        tokens = self._state.render(ask.agent, ask.prompt).tokens
        once = Amount(1, tokens + ask.max_tokens, self._state.price(ask.agent, tokens, ask.max_tokens))
        return once * self._state.steps.get(ask.agent, 1)

    def need_of_calls(self, calls: float) -> Amount:
        return self._state.call_size * (calls * max(self._state.steps.values(), default=1))

    # what follows from replies

    def publish(self, message: Message) -> None:
        """Say something that is not itself a reply; quotable from now on.

        One made of a reply has an id that begins with that reply's key, or replies to it: so a fork knows that it is new.
        """
        state = self._state
        place = current_branch.get().next_place()
        state.register(message)
        event = MessagePublished(
            place=place,
            id=message.id,
            sender=message.sender,
            kind=message.kind,
            text=text_id(message.text),
            audience=message.audience,
            reply_to=message.reply_to,
            phase=message.phase,
        )
        state.recorder.derive(event, [message.text])
        state.faults("after_publish", message.phase)

    def record_check(self, check: Check, index: int) -> None:
        """Put a stop condition's judgement on record."""
        self._state.recorder.derive(CheckRecorded(place=current_branch.get().next_place(), index=index, check=check))

    def message(self, id: str) -> Message:
        return self._state.message(id)

    def quote(self, reply: Reply[Any] | Message, label: str) -> Quote:
        return Quote(reply.key if isinstance(reply, Reply) else reply.id, label)

    def named(self, reply: Reply[Any], labels: Iterable[str]) -> tuple[str, ...]:
        """The message ids behind labels that a reply names, in order, once each; others are dropped and counted."""
        found: dict[str, None] = {}
        for label in labels:
            id = reply.labels.get(label.strip().strip("[]"))
            if id is None:
                self._state.dropped += 1
            else:
                found[id] = None
        return tuple(found)

    def claims(self, answer: Reply[Any] | None) -> tuple[Claim, ...]:
        """Those claims of an answer that say something, their labels resolved, judged against the documents."""
        if answer is None:
            return ()
        said: Sequence[ClaimReply] = answer.value.claims[:MOST_CLAIMS]
        return tuple(
            claim(one.text, self.named(answer, one.ids), self._state, answer.agent) for one in said if one.text.strip()
        )

    @property
    def dropped(self) -> int:
        """How many labels replies named that they were not shown."""
        return self._state.dropped

    def shown(self) -> frozenset[str]:
        """Ids of all messages that any call was shown so far. Read it only where all branches have joined."""
        return frozenset(id for shown in self._state.shown.values() for id in shown)

    async def report(self, cls: type[R], *, first: Sequence[Reply[Any] | Failure], **given: Any) -> R:
        """A report: the header from the journal, and what the protocol gives. `first` are the first phase's results.

        What is still in flight is awaited and recorded before; what nobody awaited is warned about.
        """
        await self._drain()
        return cls(**{**header(self._state, first), **given})

    def warn(self, text: str) -> None:
        """A sentence for the report's warnings."""
        self._state.warnings.append((current_branch.get().prefix, text))

    async def similarity(self, kind: str, a: str, b: str) -> float | None:
        """`jaccard` or `embedding` similarity of two texts; None where the encoder failed.

        Vectors, and failures, are recorded; a replay encodes nothing.
        """
        if kind == "jaccard":
            return jaccard(a, b)
        vectors = await self._vectors((a, b))
        return cosine(*vectors) if vectors else None

    async def cosines(self, texts: Sequence[str]) -> list[list[float]] | None:
        """The cosine of every text with every text; None where the encoder failed. Recorded as `similarity` is."""
        vectors = await self._vectors(tuple(texts))
        return [[cosine(a, b) for b in vectors] for a in vectors] if vectors else None

    async def _vectors(self, texts: tuple[str, ...]) -> list[bytes]:
        state = self._state
        place = current_branch.get().next_place()
        found = state.recorder.embedded(place, tuple(map(text_id, texts)))
        if isinstance(found, str):
            self.warn(f"texts could not be compared by embedding: {found}")
            return []
        if found is not None:
            return found
        if state.encoder is None:
            raise ProtocolViolation("embedding similarity without an encoder; say so with needs_encoder")
        try:
            vectors = [quantised(v) for v in await state.encoder.encode(texts)]
        except ProviderError as failure:
            self.warn(f"texts could not be compared by embedding: {failure.detail}")
            failed = TextsEmbedded(
                place=place, encoder=state.encoder.name, texts=tuple(map(text_id, texts)), error=failure.detail
            )
            await state.recorder.commit(failed)
            return []
        body = "\n".join(vector.hex() for vector in vectors)
        event = TextsEmbedded(
            place=place, encoder=state.encoder.name, texts=tuple(map(text_id, texts)), vectors=text_id(body)
        )
        await state.recorder.commit(event, [*texts, body])
        return vectors

    # for the runner

    async def abandon(self) -> None:
        """Cancel what was started, and wait until it has let go."""
        await asyncio.gather(*(pending.cancel() for pending in self._started), return_exceptions=True)

    async def _drain(self) -> None:
        for pending in sorted(self._started, key=lambda started: place_key(started.place)):
            await pending.drain()
            if not pending.read and pending.phase is not None:
                self.warn(f"a result of {pending.phase[0]} {pending.phase[1]} came and was not read")

    def _open(self, work: Work[T], prefix: str, account: Account) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(current_branch.set, Branch(prefix, account, work.calls))
        body = self.perform(work) if isinstance(work, Ask) else work.body
        return asyncio.get_running_loop().create_task(body, context=context)
