"""Limits: of a session, of an agent, of a phase; fifty agents side by side; each ends in a report that says so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from consilience.domain.errors import RateLimited, Refused, ServerError, UnknownName
from consilience.domain.events import CallCompleted, CallFailed, canonical_digest
from consilience.domain.messages import Source
from consilience.domain.outcome import FailureKind, LimitOwner, Limits, SpendingLimits, StopReason
from consilience.domain.report import Report
from consilience.domain.tokens import BYTES_PER_TOKEN, estimate_tokens
from consilience.engine.faults import Crash, Fault
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import number_documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.journal.sqlite import SqliteStore
from consilience.models.limiter import Limited, retry_allowed
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel
from consilience.protocols._common.trees import TreeProtocol
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence, EmergenceReport
from consilience.protocols.refinement import Refinement
from kit import runner
from kit.cases import HOUSE, emergent, refining, well_formed
from kit.golden import Golden

TASK = "Is it so?"
TREE = Emergence(children=3, max_rounds=3, reply_tokens=64)
agreeable = well_formed(emergent)


def priced(request: ModelRequest) -> Scripted:
    """As many tokens as the text really has; a dollar for a thousand."""
    text = agreeable(request)
    read, written = estimate_tokens(request.text), min(estimate_tokens(text), request.max_tokens)
    return Scripted(text, tokens_in=read, tokens_out=written, cost=(read + written) / 1000)


async def play(
    limits: Limits, protocol: Protocol = TREE, script: Callable[[ModelRequest], Scripted] = priced, **more: object
) -> tuple[Report, ScriptedModel, SqliteStore]:
    store = SqliteStore(":memory:")
    model = ScriptedModel(script, price=0.001)
    report = await runner.start(TASK, protocol, models=model, store=store, session="s", limits=limits, **more)  # type: ignore[arg-type]
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    return report, model, store


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 7])
async def test_fifty_parallel_agents_use_a_small_budget_exactly(calls: int) -> None:
    report, model, _ = await play(Limits(calls=calls), Emergence(children=50, reply_tokens=64))
    assert len(model.requests) == calls, "all of it is used, and nothing beyond"
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert (report.answer is not None) is (calls > 0)
    assert report.ledger.actual.requests == calls


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("kind", ["tokens", "cost"])
async def test_fifty_agents_stay_within_a_token_or_cost_limit(kind: str, share: float) -> None:
    protocol = Emergence(children=50, max_rounds=1, reply_tokens=64)
    free, _, _ = await play(Limits(), protocol)
    spent = free.ledger.actual
    whole = spent.tokens_in + spent.tokens_out
    limits = Limits(tokens=int(whole * share)) if kind == "tokens" else Limits(cost=whole / 1000 * share)
    report, model, _ = await play(limits, protocol)
    actual = report.ledger.actual
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    # prompts are estimated at most 16 tokens and a rounding too high, never too low, so nothing is overspent
    if kind == "tokens":
        assert actual.tokens_in + actual.tokens_out <= (limits.tokens or 0)
    else:
        assert (actual.cost or 0.0) <= (limits.cost or 0.0) + 1e-9
    if model.requests:
        assert report.answer is not None


async def test_overspending_is_at_most_the_error_of_the_token_estimate() -> None:
    def dear(request: ModelRequest) -> Scripted:
        return Scripted(agreeable(request), tokens_in=estimate_tokens(request.text) + 500, tokens_out=64)

    store = SqliteStore(":memory:")
    model = ScriptedModel(dear)
    limits = Limits(tokens=6000)
    report = await runner.start(TASK, Emergence(children=50, reply_tokens=64), models=model, store=store, limits=limits)
    spent = report.ledger.actual.tokens_in + report.ledger.actual.tokens_out
    assert spent <= 6000 + 500 * len(model.requests)
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert report.answer is not None


async def test_agent_limit_refuses_only_that_agent_and_is_reported(golden: Golden) -> None:
    report, model, store = await play(Limits(agents={"L2N2": SpendingLimits(calls=1)}))
    asked = Counter(r.agent for r in model.requests)
    assert asked["L2N2"] == 1
    assert asked["L2N1"] >= 2
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert report.answer is not None
    golden(report.warnings)
    refused = [e for e in store.read("s") if isinstance(e, CallFailed)]
    assert {e.limit for e in refused} == {LimitOwner(kind="agent", name="L2N2")}
    assert all(e.failure is FailureKind.BUDGET for e in refused)


async def test_limit_for_each_agent_applies_to_every_agent() -> None:
    _, model, _ = await play(Limits(agents={"*": SpendingLimits(calls=2), "L1N1": SpendingLimits(calls=1)}))
    asked = Counter(r.agent for r in model.requests)
    assert {asked[id] for id in ("L2N1", "L2N2", "L2N3")} == {2}
    assert asked["L1N1"] == 1, "the narrower of two limits holds"


async def test_phase_limit_counts_all_rounds_or_a_single_round(golden: Golden) -> None:
    free, everything, _ = await play(Limits())
    phases = Counter(key.split("/")[1] for key in (r.key for r in everything.requests))
    assert phases["lateral"] > 4
    _, model, _ = await play(Limits(phases={"lateral_leaves": SpendingLimits(calls=4)}))
    assert sum("/lateral/" in r.key for r in model.requests) == 4
    report, model, _ = await play(Limits(phases={"lateral_leaves/1": SpendingLimits(calls=2)}))
    assert sum("round-1/lateral/" in r.key for r in model.requests) == 2
    golden(report.warnings)
    _, model, _ = await play(Limits(phases={"*": SpendingLimits(calls=3)}))
    assert max(Counter((r.key.split("/")[0], r.key.split("/")[1]) for r in model.requests).values()) <= 3
    assert free.stop_reason is not StopReason.EXHAUSTED_BUDGET


@pytest.mark.parametrize("allowance", [SpendingLimits(tokens=700), SpendingLimits(cost=0.7)])
async def test_agent_limit_on_tokens_or_money_is_kept(allowance: SpendingLimits) -> None:
    report, _, store = await play(Limits(agents={"*": allowance}))
    spent = Counter[str]()
    for event in store.read("s"):
        if isinstance(event, CallCompleted):
            spent[event.agent] += event.tokens_in + event.tokens_out
    assert max(spent.values()) <= 700
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET


async def test_agent_time_limit_counts_its_own_calls_only() -> None:
    report, model, store = await play(Limits(agents={"L2N1": SpendingLimits(seconds=0)}))
    assert "L2N1" not in {r.agent for r in model.requests}
    assert {"L2N2", "L2N3", "L1N1"} <= {r.agent for r in model.requests}
    assert report.stop_reason is StopReason.EXHAUSTED_TIME
    assert {e.limit for e in store.read("s") if isinstance(e, CallFailed)} == {LimitOwner(kind="agent", name="L2N1")}


async def test_limit_that_applies_to_no_call_is_a_warning() -> None:
    report, _, _ = await play(
        Limits(phases={"ballot": SpendingLimits(calls=1)}, agents={"L9N9": SpendingLimits(calls=0)})
    )
    agent, phase = (w for w in report.warnings if w.startswith("no call was made under"))
    assert agent == "no call was made under the limit of agent L9N9"
    assert phase.startswith("no call was made under the limit of phase ballot; phases of this run: leaf_respond, ")


async def test_limit_on_an_unknown_phase_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownName, match=r"no phase 'lateral'.*Did you mean 'lateral_leaves/1'\? Its phases: leaf_respond"
    ):
        await play(Limits(phases={"lateral/1": SpendingLimits(calls=1)}))


def test_phase_names_are_not_inherited_with_a_run_of_its_own() -> None:
    class Audited(Emergence):
        async def run(self, session: Session) -> EmergenceReport:
            return await super().run(session)

    assert Emergence.phase_names
    assert not Audited.phase_names


async def test_agent_limit_counts_provider_retries(golden: Golden) -> None:
    def busy(request: ModelRequest) -> str:
        if request.agent == "L2N1":
            raise RateLimited("busy", retry_after=0.0)
        return agreeable(request)

    store = SqliteStore(":memory:")
    model = ScriptedModel(busy)
    limits = Limits(agents={"L2N1": SpendingLimits(calls=2)})
    report = await runner.start(TASK, TREE, models=Limited(model, deadline=10.0, retries=4), store=store, limits=limits)
    assert sum(r.agent == "L2N1" for r in model.requests) == 2
    golden(report.warnings)


async def test_limit_after_a_resume_counts_usage_before_the_kill(tmp_path: Path) -> None:
    limits = Limits(agents={"*": SpendingLimits(calls=2)}, phases={"lateral_leaves": SpendingLimits(calls=5)})
    reference, whole, kept = await play(limits)
    for nth in (1, 3, 6):
        path = tmp_path / f"{nth}.db"
        store, model = SqliteStore(path), ScriptedModel(priced, price=0.001)
        with pytest.raises(Crash):
            await runner.start(
                TASK,
                TREE,
                models=model,
                store=store,
                session="s",
                limits=limits,
                options=Options(faults=Fault("after_commit", nth=nth).hit),
            )
        store = SqliteStore(path)
        report = await runner.resume("s", store=store, models=model)
        assert report.digest() == reference.digest()
        assert canonical_digest(store.read("s")) == canonical_digest(kept.read("s"))
        store.close()
    assert max(Counter(r.agent for r in whole.requests).values()) == 2


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(calls=5), StopReason.EXHAUSTED_BUDGET),
        (Limits(tokens=1500), StopReason.EXHAUSTED_BUDGET),
        (Limits(cost=1.5), StopReason.EXHAUSTED_BUDGET),
        (Limits(seconds=0), StopReason.EXHAUSTED_TIME),
        (Limits(steps=1), StopReason.EXHAUSTED_STEPS),
        (Limits(agents={"*": SpendingLimits(calls=1)}), StopReason.EXHAUSTED_BUDGET),
        (Limits(phases={"*": SpendingLimits(seconds=0)}), StopReason.EXHAUSTED_TIME),
    ],
    ids=str,
)
async def test_every_limit_ends_as_a_typed_stop_reason(limits: Limits, reason: StopReason) -> None:
    report, _, _ = await play(limits)
    assert report.stop_reason is reason


async def test_run_with_replies_longer_than_estimated_ends_in_an_answer() -> None:
    def long(request: ModelRequest) -> Scripted:
        words = "w" * 100_000 if request.agent.startswith("L2") else request.key
        text = json.dumps({"text": words}) if request.returns is not str and request.returns else "Why? How?"
        return Scripted(text, tokens_in=estimate_tokens(request.text), tokens_out=1024)

    for tokens in range(10_000, 40_000, 3_000):
        store = SqliteStore(":memory:")
        limits = Limits(tokens=tokens)
        report = await runner.start(
            TASK, Emergence(children=3, max_rounds=2), models=ScriptedModel(long), store=store, limits=limits
        )
        assert report.answer is not None, tokens


async def test_cost_of_a_refused_reply_is_counted_and_limited() -> None:
    class Strict(ScriptedModel):
        async def complete(self, request: ModelRequest) -> Completion:
            done = await super().complete(request)
            if request.agent == "L1N1":
                return done
            refused = Refused("no")
            refused.completion = done
            raise refused

    model = Strict(lambda r: Scripted(agreeable(r), tokens_in=10, tokens_out=10, cost=1.0), price=0.0001)
    store = SqliteStore(":memory:")
    report = await runner.start(
        TASK, Emergence(children=8, max_rounds=1), models=model, store=store, limits=Limits(cost=3), quorum=0.0
    )
    spent = report.ledger.actual
    assert spent.cost == len(model.requests) * 1.0
    assert spent.tokens_in == 10 * len(model.requests)
    free = await runner.start(TASK, TREE, models=model, store=store, quorum=0.0)
    assert (await runner.replay(free.session, store=store)).digest() == free.digest()


async def test_retry_permitted_but_not_sent_is_refunded() -> None:
    class Shut:
        """Fails, takes the permission for one more sending, and then sends nothing."""

        name = account = "shut"
        requests = 0

        async def complete(self, request: ModelRequest) -> Completion:
            Shut.requests += 1
            assert retry_allowed()
            raise ServerError("500")

        def price(self, estimate_tokens: int, tokens_out: int) -> float:
            return 0.0

        async def close(self) -> None:
            return None

    store = SqliteStore(":memory:")
    limits = Limits(agents={"L2N1": SpendingLimits(calls=3)})
    seats = {"L1N1": ScriptedModel(agreeable), "L2N1": Shut(), "L2N2": ScriptedModel(agreeable)}
    protocol = Emergence(children=2, max_rounds=2)
    await runner.start(TASK, protocol, models=seats, store=store, limits=limits)  # type: ignore[arg-type]
    asked = [e for e in store.read(store.sessions()[-1]) if isinstance(e, CallFailed) and e.agent == "L2N1"]
    assert [e.failure for e in asked] == [FailureKind.SERVER] * len(asked)
    assert Shut.requests == len(asked) == 2, "two requests of three: nothing was refused"


class OneWay(ScriptedModel):
    """A model that is free to read, or to write; a dollar for a thousand of the other tokens."""

    def __init__(self, read: float, written: float) -> None:
        def billed(request: ModelRequest) -> Scripted:
            text = agreeable(request)
            asked = (estimate_tokens(request.text), request.max_tokens)
            return Scripted(text, tokens_in=asked[0], tokens_out=asked[1], cost=self.price(*asked))

        super().__init__(billed)
        self.prices = (read, written)

    def price(self, estimate_tokens: int, tokens_out: int) -> float:
        return estimate_tokens * self.prices[0] + tokens_out * self.prices[1]


@pytest.mark.parametrize("prices", [(0.0, 0.001), (0.001, 0.0)])
async def test_cost_limit_bounds_a_model_with_one_free_direction(prices: tuple[float, float]) -> None:
    async def spent(limits: Limits) -> float:
        store = SqliteStore(":memory:")
        report = await runner.start(TASK, TREE, models=OneWay(*prices), store=store, limits=limits)
        assert (report.stop_reason is StopReason.EXHAUSTED_BUDGET) is (limits.cost is not None)
        assert report.ledger.actual.cost is not None
        return report.ledger.actual.cost

    whole = await spent(Limits())
    for share in (0.2, 0.35, 0.5, 0.65):
        assert 0 < await spent(Limits(cost=whole * share)) <= whole * share


WORDY = "Weigh what each of them would say of it to a neighbour. " * 300
"""Four thousand tokens of instructions, which stand in the last review of the answer."""


@pytest.mark.parametrize(
    "protocol",
    [
        TREE,
        Refinement(hierarchy=HOUSE, max_passes=1, reply_tokens=64),
        Refinement(hierarchy=HOUSE, max_passes=1, reply_tokens=64, draft=WORDY),
        Emergence(children=1, max_rounds=1, reply_tokens=64, domain_instructions=WORDY),
        Emergence(children=1, max_rounds=1, reply_tokens=64, perspectives=(WORDY[:2000],)),
    ],
)
async def test_run_limited_to_the_estimated_max_tokens_is_not_cut(protocol: Protocol) -> None:
    """What is set aside for corrective retries of a branch that was started early is not taken from those started later."""
    opening = Opening(protocol.load_templates().render(INSTRUCTIONS, documents=False), TASK)
    tokens = int(CallSizes(opening, protocol, protocol.agents(None)).max_call.tokens * protocol.estimate().max)
    script = well_formed(emergent if isinstance(protocol, Emergence) else refining)

    def counted(request: ModelRequest) -> Scripted:
        return Scripted(script(request), tokens_in=estimate_tokens(request.text), tokens_out=request.max_tokens)

    free, unlimited, _ = await play(Limits(), protocol, script=counted)
    bound, limited, _ = await play(Limits(tokens=tokens), protocol, script=counted)
    assert bound.stop_reason is free.stop_reason
    assert sorted(r.key for r in limited.requests) == sorted(r.key for r in unlimited.requests)
    assert bound.ledger.actual.tokens_in + bound.ledger.actual.tokens_out <= tokens


def longest(request: ModelRequest) -> str:
    """As long as `max_tokens` lets a reply be. Observations and reflections spend it on objections and flags, talk among siblings
    half on those and half on its text, everything else on the text."""
    what, agent = request.key.split("/")[-2], request.agent
    more = "objections" if "objections" in str(request.schema) else "flags" if "flags" in str(request.schema) else ""
    share = {"observe": 1.0, "self_reflect": 1.0, "lateral": 0.5, "coordinate-1": 0.5}.get(what, 0.0) if more else 0.0
    if agent == "L1N1":
        share = 0.0
    room = int(request.max_tokens * BYTES_PER_TOKEN) - 160

    def words(characters: int) -> str:
        """No two agents' texts are alike, nor those of one agent's two calls."""
        return f"{agent} {request.key} " * (characters // len(f"{agent} {request.key} ")) or "x"

    body: dict[str, object] = {"rating": 5, "satisfied": False, "parts": [], "text": words(int(room * (1 - share)))}
    if share and more == "objections":
        to = request.schema["$defs"]["ObjectionReply"]["properties"]["to"]["enum"][0]  # type: ignore[index]
        body["objections"] = [{"to": to, "text": words(int(room * share))}]
    elif share:
        body["flags"] = [
            {"tag": tag, "text": words(int(room * share / 2))} for tag in ("goal_mismatch", "needs_reframing")
        ]
    elif what == "split":
        body["parts"] = [{"title": f"{n}", "instructions": words(room // 4)} for n in range(3)]
        body["text"] = ""
    fields = set(request.schema["properties"]) if request.schema else set()  # type: ignore[call-overload]
    return json.dumps({name: value for name, value in body.items() if name in fields}) if fields else words(room)


@pytest.mark.parametrize(
    "protocol",
    [
        Emergence(children=3, max_rounds=2, strange_loops=1),
        Emergence(children=3, depth=3, max_rounds=2, strange_loops=1),
        Emergence(children=2, depth=4, max_rounds=2),
        Broadcast(children=3, depth=3, strange_loops=1),
        Decompose(children=3, depth=3, strange_loops=1),
    ],
    ids=lambda protocol: f"{protocol.name}-{protocol.depth}",
)
async def test_longest_replies_fit_the_estimated_max_size_of_a_call(protocol: TreeProtocol) -> None:
    """The reserve is one call of that size: what is longer would overdraw it."""
    report, model, _ = await play(Limits(), protocol, script=lambda request: Scripted(longest(request)))
    assert report.answer is not None
    assert not report.ledger.actual.repairs
    size = CallSizes(
        Opening(protocol.load_templates().render(INSTRUCTIONS, documents=False), TASK), protocol, protocol.agents(None)
    ).max_call.tokens
    for request in model.requests:
        asked = estimate_tokens(request.system) + estimate_tokens(request.user) + 16 + request.max_tokens
        assert asked <= size, f"{request.key}: {asked} tokens, the greatest call has {size}"


def test_estimated_max_call_size_counts_documents_of_one_agent() -> None:
    """What is closed to it is in none of its prompts."""
    protocol = Emergence(children=2)

    def size(*sources: Source) -> float:
        instructions = protocol.load_templates().render(INSTRUCTIONS, documents=True)
        return CallSizes(
            Opening(instructions, TASK, number_documents(sources)), protocol, protocol.agents(None)
        ).max_call.tokens

    public, short, long = Source(text="a" * 700), "b" * 700, "c" * 1400
    first, second = Source(text=short, agents=("L2N1",)), Source(text=long, agents=("L2N2",))
    assert size(first, second) == size(second) == size(Source(text=long))
    assert size(public, first, second) == size(public, second) > size(second)
    assert size(first, Source(text=long, agents=("L2N1", "L2N2"))) == size(Source(text=short), Source(text=long))
    assert size(Source(text=long, agents=("nobody",))) == size()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The halt should reopen, since the bus takes an hour. " * 20, 256),
        ("小镇应该重新开放火车站，因为公共汽车要一个小时。" * 20, 255),
        ("Остановку следует открыть, так как автобус идёт час. " * 20, 396),
    ],
    ids=["English", "Chinese", "Russian"],
)
def test_token_estimate_is_an_upper_bound_in_any_script(text: str, expected: int) -> None:
    """`told` is what qwen2.5-coder-0.5b counts. (smollm2-135m, made for English, counts 261, 840 and 881.)"""
    assert expected <= estimate_tokens(text) <= 2 * expected
