"""The session: a protocol's only access to the world.

`ask` describes a call; awaiting it makes it. `gather` runs branches side by side, `start` opens one whose result any branch may
await. Operations have places (`engine.work`), so a run is a function of settings, task, sources, seed and inputs, in any order of
arrival.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from consilience.domain.agents import Agent
from consilience.domain.detail import CAPS, Caps, Detail
from consilience.domain.errors import ProtocolViolation
from consilience.domain.events import CheckRecorded, MessagePublished, Noted, place_key, text_id
from consilience.domain.messages import Message
from consilience.domain.outcome import Check, FailureKind, Limits, StopReason
from consilience.domain.report import ConfidenceScore, Report
from consilience.domain.topology import Topology
from consilience.engine.activity import Activity
from consilience.engine.analysis import facts_kept
from consilience.engine.call import Call
from consilience.engine.embedding import EmbeddingFailed, Embeddings
from consilience.engine.header import answer_fields, quorum_of, report_header, verdict_fields
from consilience.engine.ledger import BranchBudget
from consilience.engine.prompt import Prompt
from consilience.engine.quorum import Claims, Quorum, count_reply, in_phase
from consilience.engine.schedule import Clock
from consilience.engine.searches import Searches
from consilience.engine.set_aside import SetAside
from consilience.engine.settling import Rounds
from consilience.engine.similarity import cosine, cosines, jaccard
from consilience.engine.sizes import UNLIMITED
from consilience.engine.sources import Document
from consilience.engine.state import State
from consilience.engine.telemetry import span
from consilience.engine.work import (
    Accept,
    Ask,
    Branch,
    Failure,
    Pending,
    Reply,
    Subtask,
    Work,
    current_branch,
    current_phase,
    has_failed,
)

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
R = TypeVar("R", bound=Report)


class Session(Rounds):
    """One run of one protocol. Operations take places in program order; properties take none."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._started: list[Pending[Any]] = []
        self._refused: dict[str, StopReason] = {}  # by place
        self._agents = {agent.id: agent for agent in state.started.agents}
        self._embeddings = Embeddings(state)
        self.searches = Searches(state)
        self.clock = Clock(state)

    # configuration

    @property
    def task(self) -> str:
        return self._state.opening.task

    @property
    def agents(self) -> tuple[Agent, ...]:
        return self._state.started.agents

    def agent(self, id: str) -> Agent:
        if id not in self._agents:
            raise ProtocolViolation(f"{id!r} is not an agent of this session. Its agents: {', '.join(self._agents)}")
        return self._agents[id]

    @property
    def topology(self) -> Topology:
        return self._state.started.topology

    @property
    def sources(self) -> tuple[Document, ...]:
        return self._state.opening.documents

    @property
    def limits(self) -> Limits:
        return self._state.started.limits

    @property
    def reply_tokens(self) -> int:
        """Max tokens of a reply whose ask names no other size."""
        return self._state.reply_tokens

    @property
    def detail(self) -> Detail:
        """Which set of prompts the session uses."""
        return self._state.started.detail

    @property
    def caps(self) -> Caps:
        """Max items of the lists in one reply."""
        return CAPS[self.detail]

    def window_share(self, agent: str, prompt: Prompt) -> float:
        """Estimated share of the context window of the agent's model that a prompt takes; 0 if the window is unknown."""
        window = self._state.started.windows.get(agent)
        return self._state.render(agent, prompt).tokens / window if window else 0.0

    def is_quorum(self, alive: int, total: int) -> bool:
        """Return whether `alive` agents, at least one, are a quorum of `total`."""
        return alive > 0 and alive >= quorum_of(self._state.started.quorum, total)

    def has_quorum(self, first: Sequence[Reply[Any] | Failure]) -> bool:
        """Return whether enough seats are alive, by the first result of each. One that a limit refused counts as alive."""
        return self.is_quorum(sum(isinstance(r, Reply) or r.kind.is_limit for r in first), len(first))

    @property
    def limit_hit(self) -> StopReason | None:
        """What ran out when a limit first refused a call on which the answer rests, in program order; None so far. Read it when all
        branches have joined."""
        return self._refused[min(self._refused, key=place_key)] if self._refused else None

    @property
    def budget(self) -> BranchBudget:
        """What the current branch may still spend."""
        return current_branch.get().budget

    @property
    def activity(self) -> Activity:
        return self._state.activity

    def render_template(self, template: str, **values: Hashable) -> str:
        """Render a prompt template of the protocol."""
        return self._state.render_template(template, **values)

    def rng(self, *names: object) -> random.Random:
        """Return a generator seeded by SHA-256 of (seed, place of the branch, names)."""
        seed = "/".join([str(self._state.started.seed), current_branch.get().prefix, *map(str, names)])
        return random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big"))

    # calls and branches

    @overload
    def ask(self, agent: str, prompt: Prompt, *, key: str, kind: str = ..., audience: Sequence[str] = ..., closing: bool = ...,
            max_tokens: int | None = ..., quoted: Callable[[str], str] | None = ...) -> Ask[str]: ...  # fmt: skip
    @overload
    def ask(self, agent: str, prompt: Prompt, *, key: str, returns: type[T], kind: str = ..., audience: Sequence[str] = ...,
            accept: Accept[T] | None = ..., closing: bool = ..., max_tokens: int | None = ...,
            quoted: Callable[[T], str] | None = ...) -> Ask[T]: ...  # fmt: skip
    def ask(
        self,
        agent: str,
        prompt: Prompt,
        *,
        key: str,
        returns: type[Any] = str,
        kind: str = "reply",
        audience: Sequence[str] = (),
        accept: Accept[Any] | None = None,
        closing: bool = False,
        max_tokens: int | None = None,
        quoted: Callable[[Any], str] | None = None,
    ) -> Ask[Any]:
        """Describe one call; `await` it for a `Reply` or a `Failure`.

        `key` is unique in the session and becomes the id of the reply's message, which only `audience` and the agent itself may be
        shown. `returns` is `str` or a pydantic model. `accept`, which may be a coroutine
        function, may reject a value with a `ValueError`, which is shown to the model.
        `closing` marks the call that may draw on the reserve. `max_tokens` defaults to the session's `reply_tokens`; for a closing
        call it may be more, so name them if a later prompt quotes the reply. `quoted` returns the text that prompts quote; default:
        the reply's prose.
        """
        if closing and not self._state.ledger.sizes.protocol.closing:
            raise ProtocolViolation(
                f"the call {key!r} is asked with closing=True by a protocol that declares closing = False: "
                "nothing is reserved for it. Declare closing = True, or ask without closing"
            )
        if max_tokens is None:
            max_tokens = self._state.closing_tokens(agent, prompt) if closing else self.reply_tokens
        id = self.agent(agent).id
        return Ask(self, id, prompt, key, returns, kind, tuple(audience), accept, closing, max_tokens, quoted)

    def subtask(self, body: Coroutine[Any, Any, T], *, calls: int) -> Subtask[T]:
        """Return a coroutine as work to run as a branch, which makes at most `calls` calls."""
        return Subtask(self, body, calls)

    def set_aside(self) -> SetAside:
        """Return a context manager that keeps what later calls cost from the calls made inside its `with` block."""
        return SetAside(self._state, current_branch.get().budget)

    async def perform(self, ask: Ask[T]) -> Reply[T] | Failure:
        """Make a call in the current branch. Awaiting an `Ask` does this."""
        branch = current_branch.get()
        branch.pending_calls -= 1
        place = branch.next_place()
        result = count_reply(await Call(self._state, ask, branch, place).run())
        if isinstance(result, Failure) and result.kind.is_limit:
            phase, _ = current_phase.get() or ("", 0)
            if result.kind is FailureKind.CANCELLED or phase not in self._state.after_answer:
                self._refused[place] = result.kind.exhaustion
        return result

    @overload
    async def gather(self, works: Sequence[Work[T]], /) -> list[T]: ...
    @overload
    async def gather(self, first: Work[T], second: Work[U], /) -> tuple[T, U]: ...
    @overload
    async def gather(self, first: Work[T], second: Work[U], third: Work[V], /) -> tuple[T, U, V]: ...
    async def gather(self, works: Sequence[Work[Any]] | Work[Any], /, *more: Work[Any]) -> Sequence[Any]:
        """Run branches side by side, funded in the order asked. Return their results in that order.

        A list of works has one type of result. Two or three works passed as separate arguments may have different types. A failed
        call is a value. A defect in one branch cancels the others and is raised.
        """
        return tuple(await self._gather((works, *more))) if isinstance(works, Work) else await self._gather(works)

    async def _gather(self, works: Sequence[Work[T]]) -> list[T]:
        branch = current_branch.get()
        place = branch.next_place()
        if not works:
            return []
        if not branch.budget.limited and all(self._needs_no_task(work, len(works)) for work in works):
            return [await self._in_this_task(work, f"{place}.{i}.", branch) for i, work in enumerate(works)]
        budgets = self._split(branch, works)
        activity = self._state.activity
        unfinished, joining, joined = len(works), False, asyncio.get_running_loop().create_future()

        def on_end(task: asyncio.Task[Any], budget: BranchBudget) -> None:
            nonlocal unfinished, joining
            budget.end()
            unfinished -= 1
            if not joining and (unfinished == 0 or has_failed(task)):
                joining = True
                activity.enter()
                if not joined.done():  # else this branch was cancelled
                    joined.set_result(None)
            if not task.cancelled():
                activity.leave()

        activity.enter(unfinished)
        branches = [
            self._fork(branch, f"{place}.{i}.", work, budget)
            for i, (work, budget) in enumerate(zip(works, budgets, strict=True))
        ]
        tasks = [self._open(work, opened_branch) for work, opened_branch in zip(works, branches, strict=True)]
        for task, budget in zip(tasks, budgets, strict=True):
            task.add_done_callback(partial(on_end, budget=budget))
        activity.leave()
        try:
            await joined
            for task in tasks:
                if task.done():
                    task.result()
            results = [task.result() for task in tasks]
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        for opened_branch in branches:
            opened_branch.join(branch)
        return results

    def _needs_no_task(self, work: Work[Any], branches: int) -> bool:
        """Return whether a work out of `branches` is an ask that waits for nothing, or the only one."""
        return isinstance(work, Ask) and (branches == 1 or self._state.recorder.has_reply(work.key))

    async def _in_this_task(self, work: Work[T], prefix: str, branch: Branch) -> T:
        """Run an ask in the caller's task. For a recorded one, a new task would double the cost."""
        token = current_branch.set(self._fork(branch, prefix, work, branch.budget))
        try:
            return await work
        finally:
            current_branch.reset(token)

    def _split(self, branch: Branch, works: Sequence[Work[Any]], *, retries: int = 1) -> list[BranchBudget]:
        """Fund the branches of a gather or start."""
        branch.pending_calls -= sum(work.calls for work in works)
        if not branch.budget.limited:
            return [BranchBudget(UNLIMITED) for _ in works]
        sizes = self._state.ledger.sizes
        demands = [
            sizes.ask(work.agent, self._state.render(work.agent, work.prompt).tokens, work.max_tokens)
            if isinstance(work, Ask)
            else sizes.subtask(work.calls)
            for work in works
        ]
        pending_need = sizes.subtask(max(branch.pending_calls, 0)).need
        return branch.budget.split(demands, retries=retries, pending=pending_need)

    def start(self, work: Work[T]) -> Pending[T]:
        """Fund and open a branch now; await the result here or in another branch. What it leaves unspent returns only when the
        branch that started it awaits it."""
        branch = current_branch.get()
        place = branch.next_place()
        (budget,) = self._split(branch, [work], retries=self._state.started.repairs)
        if not isinstance(work, Ask):
            budget.decide()
        self._state.activity.enter()
        opened_branch = self._fork(branch, f"{place}.0.", work, budget)
        pending = Pending(self, self._open(work, opened_branch), opened_branch, place, current_phase.get())
        self._started.append(pending)
        self.clock.add_started(pending)
        return pending

    @asynccontextmanager
    async def phase(
        self, name: str, index: int, *, quorum: Quorum | None = None, claims: Claims | None = None
    ) -> AsyncIterator[None]:
        """Label the calls made inside; no barrier and no event. `quorum` and `claims`: how long outside agents are waited for."""
        labelled = in_phase((name, index), quorum, self._state.timeouts, self._state.recorder.flush, claims=claims)
        with labelled, span(f"{name} {index}", session=self._state.id, phase=name, index=index):
            yield

    # messages, notes and reports

    def publish(self, message: Message) -> None:
        """Publish a message that is not itself a reply; it can be quoted from now on.

        If it is made from a reply, its id begins with the reply's key or it replies to it, so that a fork knows its age.
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

    def note(self, name: str, data: BaseModel) -> None:
        """Record an event that the protocol declares in `notes`. It is derived: a replay and a fork make it again.

        Raises `ProtocolViolation` for a name or type that is not declared, and for values that JSON cannot hold: NaN, infinity and
        lone surrogates.
        """
        state = self._state
        fields, texts = state.dump_note(name, data)
        place, phase = current_branch.get().next_place(), current_phase.get()
        state.recorder.derive(Noted(place=place, name=name, texts=tuple(texts), phase=phase, **fields), texts.values())
        state.faults("after_note", phase)

    def record_check(self, check: Check, index: int) -> None:
        """Record the judgement of a stop condition."""
        self._state.recorder.derive(CheckRecorded(place=current_branch.get().next_place(), index=index, check=check))

    async def compute(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, to not hold up other sessions of the loop, and return its result. It must not use the session."""
        return await asyncio.to_thread(work)

    async def close(
        self,
        cls: type[R],
        closing: Reply[Any] | Failure | None,
        /,
        *,
        first: Sequence[Reply[Any] | Failure],
        stop_reason: StopReason = StopReason.SETTLED,
        enough: bool | None = None,
        **fields: Any,
    ) -> R:
        """Make the report from `closing`, the result of the call that gave the answer. `fields` are those of `report`, and come
        before what is set here.

        The run stopped because of a limit that refused a call, else because there is no answer or no quorum of `first`, which
        `enough` may say instead, else because of `stop_reason`. `StopReason.FAILED` stands in any case, as does any other if nobody
        was asked.
        """
        await self._drain()
        if enough is None:
            enough = not first or (isinstance(closing, Reply) and self.has_quorum(first))
        if stop_reason is not StopReason.FAILED:
            stop_reason = self.limit_hit or (stop_reason if enough else StopReason.FAILED)
        fields = {**answer_fields(closing, self.limit_hit), **fields}
        return await self.report(cls, first=first, stop_reason=stop_reason, **fields)

    async def report(
        self,
        cls: type[R],
        *,
        first: Sequence[Reply[Any] | Failure],
        stop_reason: StopReason,
        confidence: ConfidenceScore | None = None,
        unmet: Sequence[str] = (),
        answer_cut: bool = False,
        **fields: Any,
    ) -> R:
        """Make the report from the header fields and the protocol's own. `first`: the results of the first phase.

        It is a `cls`, or the protocol's `report` if that is a subclass. Results and dissent of service seats do not count. With any
        `unmet`, or a cut answer, it is not converged and states no confidence. An empty `answer` is none. Calls in flight are
        awaited first.
        """
        await self._drain()
        fields["answer"] = fields.get("answer") or None
        verdict = verdict_fields(stop_reason, confidence, unmet, answer_cut)
        claims = [claim.text for claim in fields.get("claims", ())]
        verdict["facts"] = facts_kept(first, fields["answer"], claims)
        if self.dropped:
            fields["metrics"] = {**fields.get("metrics", {}), "dropped_labels": self.dropped}
        if "dissent" in fields:
            fields["dissent"] = tuple(dissent for dissent in fields["dissent"] if self.agent(dissent.agent).voice)
        made = self._state.report_type if issubclass(self._state.report_type, cls) else cls
        # in a thread: after thousands of calls it would hold up the other sessions of the loop
        return await asyncio.to_thread(lambda: made(**{**report_header(self._state, first), **verdict, **fields}))

    @property
    def has_encoder(self) -> bool:
        """Whether texts can be compared by embedding."""
        return self._state.has_encoder

    async def embed(self, texts: Iterable[str]) -> dict[str, bytes] | None:
        """Return the int8 vectors of texts by `text_id`; None, with a warning in the report, if the encoder failed.

        Only texts that are new to the session are encoded, as one batch and one event. A replay encodes nothing.
        """
        branch = current_branch.get()
        by_id = {text_id(text): text for text in texts}
        try:
            return await self._embeddings.embed(branch.next_place(), by_id, branch.embedded)
        except EmbeddingFailed as failure:
            self.warn(f"texts could not be compared by embedding: {failure}")
            return None

    async def similarity(self, kind: str, a: str, b: str) -> float | None:
        """`jaccard` or `embedding` similarity of two texts, at most 1; None if the encoder failed."""
        if kind == "jaccard":
            return jaccard(a, b)
        vectors = await self.embed((a, b))
        return None if vectors is None else cosine(vectors[text_id(a)], vectors[text_id(b)])

    async def cosines(self, texts: Sequence[str], columns: Sequence[str] | None = None) -> list[list[float]] | None:
        """Return the cosine of each text (a row) with each of `columns`, default `texts`; None if the encoder failed.

        On two cores a row of 40 takes about 0.1 ms.
        """
        columns = texts if columns is None else columns
        vectors = await self.embed((*texts, *columns))
        if vectors is None:
            return None
        return cosines([vectors[text_id(text)] for text in texts], [vectors[text_id(text)] for text in columns])

    # for the runner

    async def abandon(self) -> None:
        """Cancel all started work, and wait until it has ended."""
        await asyncio.gather(*(pending.cancel() for pending in self._started), return_exceptions=True)

    def raise_defect(self) -> None:
        """Raise the defect of a started branch that no branch has awaited."""
        for pending in self._started:
            pending.raise_defect()

    async def _drain(self) -> None:
        for pending in sorted(self._started, key=lambda started: place_key(started.place)):
            await pending.drain()
            if not pending.read and pending.phase is not None:
                self.warn(f"a result of {pending.phase[0]} {pending.phase[1]} was not used")
        await self._state.recorder.flush()  # before the report, which may take longer than a commit

    @staticmethod
    def _fork(branch: Branch, prefix: str, work: Work[Any], budget: BranchBudget) -> Branch:
        embedded = branch.embedded if isinstance(work, Ask) else set(branch.embedded)  # an ask embeds nothing
        return Branch(prefix, budget, work.calls, embedded=embedded)

    @staticmethod
    def _open(work: Work[T], branch: Branch) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(current_branch.set, branch)
        return asyncio.get_running_loop().create_task(work.coroutine(), context=context)
