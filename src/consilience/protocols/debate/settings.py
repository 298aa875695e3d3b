"""Settings of `debate`, and what follows from them: seats, bounds, the number of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.messages import NO_OPTION
from consilience.domain.outcome import Estimate, Limits
from consilience.domain.panels import Panel
from consilience.domain.topology import Topology
from consilience.domain.validation import Unfit
from consilience.engine.protocol import PanelSeats
from consilience.protocols.debate.moves import (
    MAX_AGENTS,
    MAX_EXTRACTIONS,
    MAX_QUESTION_CHARS,
    MAX_RECHECKS,
    MAX_THREADS,
    MIN_AGENTS,
    MIN_DISCOVERY_MESSAGES,
    MIN_STEELMAN_MESSAGES,
)
from consilience.protocols.debate.replies import MAX_PROPOSITIONS

POINTS_OF_VIEW: Mapping[str, str] = {
    "advocate of change": "You look for what speaks for a change: what it makes possible, and what waiting costs.",
    "critic of change": "You look for what speaks against a change: what can fail, what it costs, and who pays.",
    "what is known": "You ask what is really known: how often such things work, and which figure would decide it.",
    "those affected": "You speak for those who will live with the decision and do the work.",
    "the question itself": "You ask whether the question is the right one, and which option nobody has named.",
    "the long run": "You think of the long run: what can be undone later, and what cannot.",
}
"""Points of view where no panel is given, by their names in reports; the first two differ most."""

SERVICE = (
    ("framing", "frames the task as questions that can be disputed"),
    ("moderator", "sets topic and process"),
    ("crystallizer", "writes the result of the debate"),
    ("second_opinion", "compares questions"),
    ("single_call", "answers the task alone, to compare the debate with"),
)
MIN_SECONDS, SECONDS_PER_QUESTION = 300, 150
"""Virtual seconds of a debate by default. Until its lock a question takes three debaters about 100, one after another."""
MAX_FRAMINGS_PER_THREAD = 2
BRIEF_REPLY_TOKENS = 512
BRIEF_TEST_CRUXES = 1
MAX_USUAL_MESSAGES = 30
"""Of the recorded debates from which `usual_calls` is known."""
MAX_FACTS, MAX_FACT_CHARS = 20, 2_000


class DebateSettings(PanelSeats):
    """What can be set; see the descriptions."""

    name: ClassVar[str] = "debate"
    summary: ClassVar[str] = (
        "agents debate in threads to find the question that divides them; each must state the other side's case before it "
        "may challenge it"
    )
    holders_setting: ClassVar[str] = "debaters"
    seat_role: ClassVar[str] = "debater"
    min_seats: ClassVar[int] = MIN_AGENTS
    max_seats: ClassVar[int] = MAX_AGENTS

    debaters: Annotated[
        int, Field(ge=MIN_AGENTS, le=MAX_AGENTS, description="agents that debate; a panel sets their number")
    ] = 3
    max_messages: Annotated[int, Field(ge=2, le=2_000, description="max messages of all debaters together")] = 200
    max_duration: Annotated[
        int | None,
        Field(
            ge=10,
            le=7_200,
            description=f"max virtual seconds of the debate; default: {SECONDS_PER_QUESTION} for each question in dispute, "
            f"at least {MIN_SECONDS}",
        ),
    ] = None
    option: Annotated[
        tuple[str, ...],
        Field(max_length=MAX_PROPOSITIONS, description="an option to decide on; give two or three"),
    ] = ()
    as_is: Annotated[bool, Field(description="debate the task as it stands, as a yes/no question")] = False
    attention: Annotated[
        Literal["auto", "keyword", "embedding"],
        Field(description="how agents select messages to read; auto: embedding if an encoder is set"),
    ] = "auto"
    attention_threshold: Annotated[
        float, Field(ge=0, le=1, description="min score of a message that an agent reads")
    ] = 0.6
    convergence_threshold: Annotated[
        float, Field(ge=0, le=1, description="convergence signal that ends the evidence stage")
    ] = 0.75
    spawning: Annotated[
        Literal["agents", "moderator"],
        Field(description="who opens further threads: agents, or a moderator that goes by keywords"),
    ] = "agents"
    crystallization: Annotated[
        int | None,
        Field(
            ge=1,
            le=3,
            description="1: cruxes of threads; 2: also how they bear on each other; 3: also common ground; default: 3, "
            "1 with brief prompts",
        ),
    ] = None
    agenda: Annotated[
        bool, Field(description="more attention for messages about the two cruxes with the highest scores")
    ] = True
    test_cruxes: Annotated[
        int, Field(ge=0, le=4, description="number of top cruxes to test by sealed ballots with each answer stipulated")
    ] = 2
    discovery_messages: Annotated[int, Field(ge=2, le=40, description="max messages to find a thread's question")] = 8
    evidence_messages: Annotated[
        int, Field(ge=2, le=60, description="max messages of evidence on a thread's question")
    ] = 14
    question_similarity: Annotated[
        float, Field(ge=-1, le=1, description="min cosine of two questions that a call compares, if an encoder is set")
    ] = 0.5
    coalitions: Annotated[
        Literal["live", "final"], Field(description="when to look for coalitions: at each crux too, or only at the end")
    ] = "live"
    stagnation: Annotated[int, Field(ge=5, le=1_000, description="max messages per active thread without progress")] = (
        50
    )
    single_call: Annotated[
        bool, Field(description="one structured call on the documents open to all as well, to compare the debate with")
    ] = True
    anonymous_peers: Annotated[bool, Field(description="agents see each other under letters, not names")] = True
    new_facts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=MAX_FACT_CHARS)], ...],
        Field(max_length=MAX_FACTS, description="facts added after the end (`consilience tell`)"),
        NO_OPTION,
    ] = ()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.as_is and self.option:
            what = "as_is debates the task itself; with options it is not the task that is debated"
            raise Unfit(what, "as_is", "option")
        if len(self.option) == 1:
            raise Unfit("one option is no choice; give two or three", "option")
        if len(set(map(str.casefold, self.option))) < len(self.option) or not all(map(str.strip, self.option)):
            raise Unfit("the options must differ and have text", "option")
        return self

    @property
    def default_seats(self) -> tuple[str, ...]:
        return tuple(f"D{n}" for n in range(1, self.debaters + 1))

    @property
    def service_seats(self) -> tuple[Agent, ...]:
        return tuple(Agent(id=id, role=role, voice=False) for id, role in SERVICE)

    def with_panel(self, panel: Panel | None) -> Self:
        seated = super().with_panel(panel)
        return seated.model_copy(update={"debaters": len(seated.seats)}) if seated.seats else seated

    def with_detail(self, detail: Detail) -> Self:
        """Replies of small models are short here; what is longer has run away, at 15 tokens a second. They are slow, too, so that
        one crux is tested, and threads alone are crystallized, unless the settings name a number."""
        if detail != "brief":
            return super().with_detail(detail)
        changes = {"reply_tokens": BRIEF_REPLY_TOKENS} if self.reply_tokens is None else {}
        if "test_cruxes" not in self.model_fields_set:
            changes["test_cruxes"] = BRIEF_TEST_CRUXES
        if self.crystallization is None:
            changes["crystallization"] = 1
        return self.model_copy(update=changes)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        seats = super().agents(panel)
        if panel is not None or self.seats:
            return seats
        views = iter([*POINTS_OF_VIEW.values()] * 2)
        return tuple(a.model_copy(update={"perspective": next(views)}) if a.voice else a for a in seats)

    def topology(self) -> Topology:
        """Debaters are one another's peers; service seats stand beside them."""
        ids = self.seat_ids
        return Topology(
            kind="debate",
            agents=(*ids, *(seat.id for seat in self.service_seats)),
            circles=(ids,) if len(ids) > 1 else (),
        )

    @property
    def first_speakers(self) -> tuple[str, ...]:
        return self.seat_ids

    @property
    def frames(self) -> bool:
        """Whether a call frames the task."""
        return not (self.as_is or self.option)

    @property
    def outlook(self) -> str:
        if self.as_is:
            return "debates the task as it stands, as a yes/no question"
        if self.option:
            return f"debates {len(self.option)} options: {', '.join(self.option)}"
        return "the first call frames the task as yes/no questions; --as-is or --option avoids this call"

    @property
    def max_attempts(self) -> int:
        """Replies in threads that may be asked for, blocked and failed ones included."""
        return self.max_messages + self.max_messages // 4

    def duration_limit(self, disputed: int) -> int:
        """Virtual seconds that a debate of that many disputed questions may take."""
        return max(MIN_SECONDS, SECONDS_PER_QUESTION * disputed) if self.max_duration is None else self.max_duration

    def message_limit(self, steps: int | None) -> int:
        """Messages of debaters that may be published under a limit on steps."""
        return self.max_messages if steps is None else min(self.max_messages, steps)

    @property
    def min_discovery(self) -> int:
        """Messages of debaters before a thread can have found its question."""
        return min(MIN_DISCOVERY_MESSAGES, self.discovery_messages)

    @property
    def min_commitments(self) -> int:
        """Commitments of a thread in whose shortest discovery as many debaters as possible speak."""
        return min(len(self.seat_ids), self.min_discovery)

    @property
    def messages_before_evidence(self) -> int:
        """Messages that such a thread needs before its debaters can debate the evidence."""
        return self.min_discovery + self.min_commitments + MIN_STEELMAN_MESSAGES

    @property
    def min_calls_of_a_debate(self) -> int:
        """Calls for framing, opening and final ballots, the single call, one thread with a round of evidence, flips and crux of
        that thread, and the answer."""
        ballots, thread = 2 * len(self.seat_ids), self.messages_before_evidence + len(self.seat_ids)
        return int(self.frames) + ballots + int(self.single_call) + thread + self.min_commitments + 1 + 1

    def limit_warnings(self, limits: Limits) -> tuple[str, ...]:
        """Warn of limits that leave no round of messages for the evidence, or too few calls for it and the ballots."""
        before, seats, warnings = self.messages_before_evidence, len(self.seat_ids), []
        bounds = {"--max-messages": self.max_messages, "--max-steps": limits.steps}
        low = [name for name, bound in bounds.items() if bound is not None and bound < before + seats]
        if low:
            limit = self.message_limit(limits.steps)
            left = f"at most {limit - before}" if limit > before else "none"
            warnings.append(
                f"Warning: a limit of {limit} messages leaves {left} for the debate itself. Before it debates the evidence a "
                f"thread needs at least {before} (discovery {self.min_discovery}, commitments {self.min_commitments}, steelmen "
                f"and grades {MIN_STEELMAN_MESSAGES}), and then {seats} for one round. Set {' and '.join(low)} to "
                f"{before + seats} or more for one thread; each further thread needs as many."
            )
        calls = self.min_calls_of_a_debate
        if limits.calls is not None and limits.calls < calls:
            warnings.append(
                f"Warning: a limit of {limits.calls} calls cuts the debate short. Ballots, one thread with one round of "
                f"evidence, and the answer need at least {calls} calls."
            )
        return tuple(warnings)

    @property
    def crystallization_level(self) -> int:
        """1 to 3."""
        return 3 if self.crystallization is None else self.crystallization

    @property
    def max_crystallizations(self) -> int:
        """Calls that write down threads, relate cruxes and confirm relations, and collect common ground."""
        threads, level = MAX_THREADS, self.crystallization_level
        return MAX_EXTRACTIONS * threads + (2 * (threads - 1) if level > 1 else 0) + (level > 2)

    @property
    def max_framings(self) -> int:
        return MAX_FRAMINGS_PER_THREAD * MAX_THREADS

    @property
    def max_comparisons(self) -> int:
        """Times that questions are compared."""
        return self.max_framings + 2 * MAX_THREADS

    @property
    def max_quoted_replies(self) -> int:
        """A window of messages, each much shorter than a reply may be; for the closing call the final ballots, too."""
        return 6

    @property
    def usual_calls(self) -> int | None:
        """Framing, ballots with those of tests, a call for each message, the answer, the single call with its comparison.

        What further calls there are and what is left of the messages nearly balance: see "What it costs" in
        docs/protocols/debate.md.
        """
        if self.max_messages > MAX_USUAL_MESSAGES:
            return None
        ballots = 2 + (2 * self.test_cruxes + 1 if self.test_cruxes else 0)
        return int(self.frames) + ballots * len(self.seat_ids) + self.max_messages + 1 + 2 * int(self.single_call)

    def estimate(self) -> Estimate:
        """Framing, opening and final ballots, answers asked again, attempts, flips after the evidence, the moderator's and the
        crystallizer's calls, the closing one, ballots of tested cruxes and on new facts, the single call with its comparison.
        Further reviews of a crux are attempts. The least is a debate in which nothing is published."""
        seats, threads, single = len(self.seat_ids), MAX_THREADS, int(self.single_call)
        moderator = self.max_framings + threads + self.max_comparisons
        ballots = 2 + MAX_RECHECKS + (2 * self.test_cruxes + 1 if self.test_cruxes else 0) + len(self.new_facts)
        max_calls = int(self.frames) + ballots * seats + self.max_attempts + seats * threads + moderator
        max_calls += self.max_crystallizations + 1 + 2 * single
        return Estimate(min=1 if self.frames else 2 * seats + 1 + single, max=max_calls)


def proposition(task: str) -> str:
    """A task as the question of a thread, without what a question cannot hold."""
    words = " ".join(task.split())
    return words if len(words) <= MAX_QUESTION_CHARS else words[: MAX_QUESTION_CHARS - 3].rstrip() + " …"
