"""A node and its children: goal down, texts side by side, talk among siblings, evaluation, and again where it is not enough.

The natural form is recursive and has no barriers: a parent goes on when its own children are ready. Branches read what
they were passed and return what they made (`runs`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.domain.messages import Message
from consilience.domain.replies import LeafReply, Synthesis
from consilience.engine.analysis import RESTATED
from consilience.engine.answers import form
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.similarity import jaccard
from consilience.engine.trees import letter
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.broadcast.replies import (
    MOST_FLAGS,
    Assessed,
    Coordination,
    Evaluation,
    Goal,
    Reflection,
    SealedCoordination,
    SealedReflection,
)
from consilience.protocols.broadcast.runs import Cycle, Raised, Run, Said, heard, lacking, latest, satisfaction
from consilience.protocols.broadcast.settings import MOST_QUOTED_FLAGS, Settings

Path = tuple[int, ...]
"""Iterations from the root's down."""


def at(path: Path, rest: str) -> str:
    """`iteration-2/1/execute/L3N1`: in the root's second iteration, in its parent's first."""
    return f"iteration-{'/'.join(map(str, path))}/{rest}" if path else rest


@dataclass(frozen=True)
class Family:
    """Makes all calls but those that close the run."""

    session: Session
    settings: Settings

    async def execute(self, agent: str, path: Path, goal: Reply[Goal] | None, before: Run | None) -> Run:
        """One execution of a node below the root, with all that is beneath it; `before` is the one before."""
        children = self.session.topology.children[agent]
        run = await (self._integrate(agent, path, goal, before) if children else self._contribute(agent, path, goal))
        return await self._self_reflect(run, goal) if run.text is not None else run

    async def _contribute(self, agent: str, path: Path, goal: Reply[Goal] | None) -> Run:
        async with self.session.phase("execute", path[0]):
            reply = await self._execute(agent, path, goal)
        return _responded(Run(agent, path), reply)

    async def _integrate(self, agent: str, path: Path, goal: Reply[Goal] | None, before: Run | None) -> Run:
        """Iterations until satisfied or at an end, and what the last one's texts come to together."""
        cycles: list[Cycle] = []
        earlier = before.beneath if before is not None else ()
        for index in range(1, self.settings.max_iterations + 1):
            cycles.append(await self.iterate(agent, (*path, index), goal, cycles[-1] if cycles else None, earlier))
            earlier = cycles[-1].children
            if cycles[-1].check.met or cycles[-1].limited:
                break
        run = Run(agent, path, cycles=tuple(cycles))
        if not heard(cycles):
            return run
        async with self.session.phase("synthesize", path[0]):
            reply = await self._synthesize(agent, path, cycles)
        return _responded(run, reply)

    async def iterate(
        self, agent: str, path: Path, goal: Reply[Goal] | None, before: Cycle | None, earlier: Sequence[Run]
    ) -> Cycle:
        """One iteration, `before` the one that did not satisfy and `earlier` the children's executions before, which may belong to
        another execution of their parent. Where the broadcast fails the children have the task alone."""
        session, settings, known = self.session, self.settings, {run.agent: run for run in earlier}
        failures: list[Failure] = []
        async with session.phase("re_broadcast" if before else "broadcast", path[0]):
            said = _taken(await self._broadcast(agent, path, goal, before), failures)
        level = session.topology.levels[agent] + 1
        async with session.phase("execute_children", path[0]):
            runs = await session.gather(
                [
                    session.procedure(self.execute(child, path, said, known.get(child)), calls=settings.need(level))
                    for child in session.topology.children[agent]
                ]
            )
        rounds, runs = await self._coordinate(path, runs)
        runs = [run.after(known.get(run.agent)) for run in runs]
        check = satisfaction(runs, settings.satisfaction_threshold, settings.critical_flags)
        evaluation = None
        if any(run.text for run in runs):
            async with session.phase("evaluate", path[0]):
                evaluation = _taken(await self._evaluate(agent, path, said, runs), failures)
        unquoted = max(sum(len(run.standing) for run in runs) - MOST_QUOTED_FLAGS, 0)
        return Cycle(agent, path, said, tuple(runs), rounds, check, evaluation, tuple(failures), unquoted)

    async def _coordinate(self, path: Path, runs: list[Run]) -> tuple[int, list[Run]]:
        """Rounds in which siblings read each other, until there are no more or all are content; how many were held."""
        runs = list(runs)
        for index in range(1, self.settings.coordination_rounds + 1):
            speaking = [run for run in runs if run.text is not None]
            if len(speaking) < 2 or (self.settings.skip_when_satisfied and all(run.content for run in runs)):
                return index - 1, runs
            labels = self.labels(runs)
            shared = tuple(self.texts(speaking, labels))
            async with self.session.phase("coordinate", path[0]):
                replies = await self.session.gather([self._talk(run, path, index, labels, shared) for run in speaking])
            came = dict(zip((run.agent for run in speaking), replies, strict=True))
            for n, run in enumerate(runs):
                if run.agent in came:
                    runs[n] = run.talked(came[run.agent], *self.flags(came[run.agent], run.flags))
        return self.settings.coordination_rounds, runs

    async def _self_reflect(self, run: Run, goal: Reply[Goal] | None) -> Run:
        """The author judges its own text; a better version, where it needs one, is what goes up."""
        assert run.text is not None
        session, sealed = self.session, self._votes_alone(run)
        shared = (session.quote(goal, "goal"),) if goal is not None else ()
        words = self.words("self_reflect", run.agent, root=False, goal=goal is not None, ballot=sealed)
        async with session.phase("self_reflect", run.path[0]):
            reply = await session.ask(
                run.agent,
                Prompt(words, (session.quote(run.text, "you"),), shared),
                key=at(run.path, f"self_reflect/{run.agent}"),
                returns=SealedReflection if sealed else Reflection,
                audience=self._near(run.agent),
                max_tokens=self.settings.reply_tokens,
            )
        return self.reflected(run, reply)

    def _votes_alone(self, run: Run) -> bool:
        """Whether a ballot rides in its reflection: the opening one, and where no talk follows in which it could be cast."""
        talks = self.settings.coordination_rounds > 0 and bool(self.session.topology.siblings(run.agent))
        return self.settings.ballots and not run.cycles and (set(run.path) == {1} or not talks)

    def reflected(self, run: Run, reply: Reply[Any] | Failure) -> Run:
        return run.reflected(reply, *self.flags(reply, run.flags))

    # --- asks

    def _broadcast(self, agent: str, path: Path, goal: Reply[Goal] | None, before: Cycle | None) -> Ask[Goal]:
        """States what is to be achieved and assigns nothing; anew, it reads the flags and the feedback that caused it."""
        session = self.session
        quotes: list[Quote] = []
        shared = (session.quote(goal, "goal"),) if goal is not None else ()
        flags: list[Quote] = []
        if before is not None:
            flags = self.flag_quotes(before.children, self.labels(before.children))
            quotes += flags
            if before.evaluation is not None:
                quotes.append(session.quote(before.evaluation, "feedback"))
            if before.broadcast is not None:
                quotes.append(session.quote(before.broadcast, "you"))
        words = session.words(
            "broadcast",
            goal=goal is not None,
            again=before is not None,
            said=before is not None and before.broadcast is not None,
            feedback=before is not None and before.evaluation is not None,
            flags=tuple(quote.label for quote in flags),
        )
        return session.ask(
            agent,
            Prompt(words, tuple(quotes), shared),
            key=at(path, f"broadcast/{agent}"),
            returns=Goal,
            kind="broadcast",
            audience=session.topology.children[agent],
            max_tokens=self.settings.reply_tokens,
        )

    def _execute(self, leaf: str, path: Path, goal: Reply[Goal] | None) -> Ask[LeafReply]:
        people = len(self.session.topology.leaves)
        words = self.words("execute", leaf, people=people, goal=goal is not None)
        shared = (self.session.quote(goal, "goal"),) if goal is not None else ()
        return self.session.ask(
            leaf,
            Prompt(words, shared=shared),
            key=at(path, f"execute/{leaf}"),
            returns=LeafReply,
            audience=self._near(leaf),
            max_tokens=self.settings.reply_tokens,
        )

    def _talk(self, run: Run, path: Path, n: int, labels: Mapping[str, str], shared: tuple[Quote, ...]) -> Ask[Any]:
        """One call by the child itself, with its own and all siblings' texts; all siblings see the same list of them."""
        sealed = self.settings.ballots and not run.cycles
        words = self.words("coordinate", run.agent, label=labels[run.agent], ballot=sealed)
        return self.session.ask(
            run.agent,
            Prompt(words, shared=shared),
            key=at(path, f"coordinate-{n}/{run.agent}"),
            returns=SealedCoordination if sealed else Coordination,
            audience=self._near(run.agent),
            max_tokens=self.settings.reply_tokens,
        )

    def _evaluate(self, agent: str, path: Path, said: Reply[Goal] | None, runs: list[Run]) -> Ask[Evaluation]:
        labels = self.labels(runs)
        texts, flags = self.texts(runs, labels), self.flag_quotes(runs, labels)
        own = (self.session.quote(said, "you"),) if said is not None else ()
        words = self.session.words(
            "evaluate", goal=bool(own), texts=tuple(q.label for q in texts), flags=tuple(q.label for q in flags)
        )
        return self.session.ask(
            agent,
            Prompt(words, (*flags, *own), tuple(texts)),
            key=at(path, f"evaluate/{agent}"),
            returns=Evaluation,
            kind="judgement",
            max_tokens=self.settings.reply_tokens,
        )

    def _synthesize(self, agent: str, path: Path, cycles: Sequence[Cycle]) -> Ask[Synthesis]:
        return self.session.ask(
            agent,
            self.synthesis_prompt(agent, cycles, root=False),
            key=at(path, f"synthesize/{agent}"),
            returns=Synthesis,
            audience=self._near(agent),
            max_tokens=self.settings.reply_tokens,
        )

    def synthesis_prompt(self, agent: str, cycles: Sequence[Cycle], *, root: bool) -> Prompt:
        """The children's latest texts, the flags that stand, and where they did not satisfy what was missing in them."""
        runs, missing = latest(cycles), lacking(cycles)
        labels = self.labels(runs)
        texts, flags = self.texts(runs, labels), self.flag_quotes(runs, labels)
        feedback = (self.session.quote(missing, "feedback"),) if missing is not None else ()
        words = self.words(
            "synthesize",
            agent,
            root=root,
            texts=tuple(quote.label for quote in texts),
            flags=tuple(quote.label for quote in flags),
            feedback=bool(feedback),
            pattern=form(self.settings.answer_pattern) if root else "",
        )
        return Prompt(words, (*flags, *feedback), tuple(texts))

    # --- flags, labels, words

    def flags(self, reply: Reply[Any] | Failure, earlier: Sequence[Raised]) -> tuple[tuple[Raised, ...], int]:
        """Publish the flags of a reply, for its parents up to the root, and count those beyond the most. One raised before in
        nearly the same words stands already."""
        if isinstance(reply, Failure) or not isinstance(reply.value, Assessed):
            return (), 0
        made: list[Raised] = []
        source = self.session.message(reply.key)
        for given in reply.value.flags[:MOST_FLAGS]:
            text = f"{given.tag}: {given.text.strip()}".rstrip(": ")
            again = any(one.tag == given.tag and jaccard(one.message.text, text) >= RESTATED for one in earlier)
            if again or any(one.message.text == text for one in made):
                continue
            message = Message(
                id=f"{reply.key}/flag-{len(made) + 1}",
                sender=reply.agent,
                kind="flag",
                text=text,
                audience=self._above(reply.agent),
                reply_to=reply.key,
                phase=source.phase,
            )
            self.session.publish(message)
            made.append(Raised(given.tag, message))
        return tuple(made), len(reply.value.flags[MOST_FLAGS:])

    def flag_quotes(self, runs: Sequence[Run], labels: Mapping[str, str]) -> list[Quote]:
        """The flags that stand beneath each child, numbered under its letter; where there are too many, critical ones first."""
        numbered = [(flag, f"{labels[run.agent]}.{n}") for run in runs for n, flag in enumerate(run.standing, 1)]
        first = sorted(numbered, key=lambda one: one[0].tag not in self.settings.critical_flags)[:MOST_QUOTED_FLAGS]
        return [self.session.quote(flag.message, label) for flag, label in numbered if (flag, label) in first]

    def texts(self, runs: Sequence[Run], labels: Mapping[str, str]) -> list[Quote]:
        return [self.session.quote(run.text, labels[run.agent]) for run in runs if run.text is not None]

    def labels(self, runs: Sequence[Run]) -> dict[str, str]:
        return self._family_labels(runs[0].agent)

    def _family_labels(self, child: str) -> dict[str, str]:
        """Letters by place in the family, the same in every prompt; names where peers are not anonymous."""
        (parent,) = self.session.topology.parents[child]
        family = self.session.topology.children[parent]
        if not self.settings.anonymous_peers:
            return {id: id for id in family}
        return {id: letter(n) for n, id in enumerate(family)}

    def words(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        who = f"You are {seat.persona}. " if seat.persona else ""
        given: dict[str, Hashable] = {"pattern": form(self.settings.answer_pattern), **values}
        return self.session.words(template, seat=f"{who}{seat.perspective}", **given)

    def _near(self, agent: str) -> tuple[str, ...]:
        return (*self.session.topology.siblings(agent), *self.session.topology.parents[agent])

    def _above(self, agent: str) -> tuple[str, ...]:
        """Its parents up to the root."""
        found: list[str] = []
        while parents := self.session.topology.parents.get(agent):
            (agent,) = parents
            found.append(agent)
        return tuple(found)


def _responded(run: Run, reply: Said | Failure) -> Run:
    if isinstance(reply, Failure):
        return replace(run, failures=(*run.failures, reply))
    return replace(run, response=reply, text=reply, brought=reply)


def _taken(reply: Any, failures: list[Failure]) -> Any:
    """The reply; None where it failed, and the failure kept."""
    if isinstance(reply, Failure):
        failures.append(reply)
        return None
    return reply
