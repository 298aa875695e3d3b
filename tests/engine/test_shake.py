"""The public test kit: it passes correct protocols and names the faults of others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from consilience.domain.messages import Label
from consilience.engine.prompt import schema_for
from consilience.models.port import ModelRequest
from consilience.protocol import (
    Estimate,
    Failure,
    Presentation,
    Prompt,
    Protocol,
    Quote,
    Reply,
    Report,
    Section,
    Session,
    StopReason,
    Table,
    Topology,
    complete,
)
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.testing import AnyModel, Arrivals, ShakeFailed, shake

Asked = Reply[str] | Failure


class Opinion(BaseModel):
    side: Literal["yes", "no"]
    rests_on: list[Label] = Field(default_factory=list, json_schema_extra={"maxItems": 2})
    reason: Annotated[str, Field(max_length=80)]


class Panel(Protocol):
    """Three opinions, read by the first agent, who answers."""

    templates = {"instructions": "Be brief.", "ask": "{{ seat }} Give your opinion, {{ who }}.", "close": "Answer."}

    def topology(self) -> Topology:
        return complete(3)

    def estimate(self) -> Estimate:
        return Estimate(min=4, max=4)

    async def opinions(self, session: Session) -> list[Reply[Opinion] | Failure]:
        asks = [
            session.ask(
                a.id,
                Prompt(session.render_template("ask", who=a.id, seat=a.introduction())),
                key=f"ask/{a.id}",
                returns=Opinion,
                audience=("A1",),
            )
            for a in session.agents
        ]
        return await session.gather(asks)

    async def run(self, session: Session) -> Report:
        opinions = await self.opinions(session)
        quotes = tuple(Quote(reply.key, reply.agent) for reply in opinions if isinstance(reply, Reply))
        answer = await session.ask("A1", Prompt(session.render_template("close"), quotes), key="close", closing=True)
        return await session.close(Report, answer, first=opinions)


COUNTER = itertools.count()


class Racing(Panel):
    """Publishes in the order of arrival."""

    async def run(self, session: Session) -> Report:
        arrived: list[str] = []

        async def one(agent: str) -> Asked:
            reply = await session.ask(agent, Prompt("Speak."), key=f"ask/{agent}", audience=("A1",))
            arrived.append(agent)
            return reply

        replies = await session.gather([session.subtask(one(a.id), calls=1) for a in session.agents])
        answer = await session.ask("A1", Prompt(f"First was {arrived[0]}."), key="close", closing=True)
        return await session.report(
            Report,
            first=replies,
            stop_reason=StopReason.SETTLED,
            answer=answer.text if isinstance(answer, Reply) else None,
        )


class Counting(Panel):
    """Its prompts depend on something outside of the session."""

    async def run(self, session: Session) -> Report:
        answer = await session.ask("A1", Prompt(f"Call {next(COUNTER)}."), key="close", closing=True)
        return await session.report(
            Report,
            first=[answer],
            stop_reason=StopReason.SETTLED,
            answer=answer.text if isinstance(answer, Reply) else None,
        )


class Modest(Panel):
    """Estimates fewer calls than it makes."""

    def estimate(self) -> Estimate:
        return Estimate(min=3, max=3)


class Pretending(Panel):
    """Says that it settled, also where its budget was exhausted."""

    async def run(self, session: Session) -> Report:
        opinions = await self.opinions(session)
        answer = await session.ask("A1", Prompt("Answer."), key="close", closing=True)
        text = answer.text if isinstance(answer, Reply) else None
        return await session.report(Report, first=opinions, stop_reason=StopReason.SETTLED, answer=text)


class Unclosed(Panel):
    """Declares a closing call and makes none."""

    async def run(self, session: Session) -> Report:
        opinions = await self.opinions(session)
        return await session.close(Report, opinions[-1], first=opinions)


class Anonymous(Panel):
    """Does not print the introductions of its agents."""

    templates = {"ask": "Give your opinion, {{ who }}.{# {{ seat }} #}"}


class Misshapen(Report):
    def presentation(self) -> Presentation:
        rows = (("one",),) if self.answer else ()
        return Presentation(sections=(Section(name="t", part="basis", blocks=(Table(heads=("a", "b"), rows=rows),)),))


class Unpresentable(Panel):
    """Its report cannot be shown if it has an answer."""

    report = Misshapen

    async def run(self, session: Session) -> Report:
        report = await super().run(session)
        return Misshapen(**dict(report))


class Hasty(Panel):
    """Fails where the budget refused its first call."""

    async def run(self, session: Session) -> Report:
        report = await super().run(session)
        assert report.replied, "nobody replied"
        return report


class Undeclared(Panel):
    """Makes a closing call, and declares that it makes none."""

    closing = False


def test_closing_call_that_is_not_declared_is_a_violation() -> None:
    with pytest.raises(
        ShakeFailed, match=r"ProtocolViolation: .*'close' is asked with closing=True .* declares closing = False"
    ):
        shake(Undeclared())


def test_valid_protocol_passes_shake_with_all_kinds_of_runs() -> None:
    shaken = shake(Panel())
    assert shaken.need == 4
    assert shaken.orders > 1
    assert shaken.budgets == (0, 1, 2, 3, 4)
    assert sum(shaken.kills.values()) >= 15
    assert {"before_call", "after_reply", "after_commit", "closing_call", "before_finish"} <= set(shaken.kills)


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        (Racing(), r"order of arrival \d+: the journals differ first at place .*close"),
        (Counting(), r"the journals differ first at place 0 .call_completed close.: digest"),
        (Modest(), r"made 4 calls, and estimates at most 3"),
        (
            Pretending(),
            r"with a budget of 0 of 4 calls: stopped as settled, .* Make the report with session.close\(\)",
        ),
        (Anonymous(), r"with a panel: points of view in no prompt, .*: A1, A2, A3\. .*introduction\(\)"),
        (
            Unpresentable(),
            r"in a run: .*presentation\(\) failed at \S*test_shake, line \d+: invalid Table: row 1 .* has 1 cells, .* 2 heads",
        ),
        (Hasty(), r"hasty, with a budget of 0 of 4 calls: AssertionError: nobody replied"),
        (
            Unclosed(),
            r"no run that its budget ended made a call with closing=True. Make one, or declare closing = False",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_shake_names_the_fault_of_a_protocol(protocol: Protocol, says: str) -> None:
    with pytest.raises(ShakeFailed, match=says):
        shake(protocol)


async def test_shake_runs_inside_a_running_loop_with_a_script() -> None:
    kit = Arrivals(Emergence(children=2, max_rounds=2), lambda request: f"{request.agent} says {len(request.text)}")
    assert shake(kit, orders=5, budgets=3, kills=5, forks=2).orders > 1


@pytest.mark.parametrize("protocol", [Emergence(children=2, max_rounds=2), Refinement(hierarchy={
    "name": "h", "description": "d", "roles": [
        {"name": "lead", "description": "You lead.", "children": ["one"]},
        {"name": "one", "description": "You write."},
    ]}, max_passes=1, filter="never")], ids=lambda p: p.name)  # fmt: skip
def test_shipped_protocol_passes_shake_with_any_model(protocol: Protocol) -> None:
    shake(protocol, orders=5, budgets=4, kills=6, forks=2)


# --- the model that answers any schema


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel):
    size: Annotated[int, Field(gt=2, le=4)]
    share: Annotated[float, Field(gt=0, lt=1)]
    even: Annotated[int, Field(multiple_of=2, ge=3, le=9)]


class Everything(BaseModel):
    colour: Colour
    kind: Literal["a"]
    leaf: Leaf
    leaves: Annotated[list[Leaf], Field(min_length=2, max_length=4)]
    maybe: Leaf | None
    either: int | str
    pair: tuple[int, str]
    names: dict[str, bool]
    code: Annotated[str, Field(pattern=r"^[A-Z]\d$")]
    word: Annotated[str, Field(min_length=3, max_length=5)]
    long: Annotated[str, Field(min_length=200)]
    distinct: Annotated[set[Colour], Field(min_length=2)]
    child: Everything | None = None
    even_words: str

    @field_validator("even_words")
    @classmethod
    def _even(cls, value: str) -> str:
        if int(value[-2], 16) % 2:
            raise ValueError("odd")
        return value


def request(text: str, returns: type[BaseModel], schema: dict[str, object] | None) -> ModelRequest:
    return ModelRequest("A1", "key", "", text, returns, schema)


@pytest.mark.parametrize("schema_of", [lambda: Everything.model_json_schema(), lambda: schema_for(Everything, ())[0]])
def test_any_model_answers_any_schema(schema_of: Callable[[], dict[str, object]]) -> None:
    model = AnyModel()
    seen = set()
    for n in range(100):
        asked = request(f"prompt {n}", Everything, schema_of())
        text = model.reply(asked)
        assert text == AnyModel().reply(asked)
        seen.add(Everything.model_validate_json(text).model_dump_json())
    assert len(seen) == 100


def test_any_model_names_only_labels_that_were_shown() -> None:
    labels = (("A", "reply"), ("B", "reply"))
    replies = [
        Opinion.model_validate_json(AnyModel().reply(request(str(n), Opinion, schema_for(Opinion, labels)[0])))
        for n in range(50)
    ]
    assert {label for reply in replies for label in reply.rests_on} == {"A", "B"}
    assert all(len(reply.rests_on) <= 2 for reply in replies)
    assert {reply.side for reply in replies} == {"yes", "no"}


def test_any_model_names_a_pattern_that_it_cannot_produce() -> None:
    class Coded(BaseModel):
        code: Annotated[str, Field(pattern=r"^x{3}-\d{7}$")]

    with pytest.raises(AssertionError, match=r"no text for 'code' of pattern .* ScriptedModel"):
        AnyModel().reply(request("x", Coded, Coded.model_json_schema()))


def test_any_model_gives_malformed_replies_at_first_attempts_only() -> None:
    model = AnyModel(malformed=1.0)
    first = request("x", Opinion, Opinion.model_json_schema())
    assert model.reply(first) == "{"
    again = ModelRequest("A1", "key", "", "x", Opinion, Opinion.model_json_schema(), attempt=2)
    Opinion.model_validate_json(model.reply(again))
