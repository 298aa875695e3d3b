"""Guarantees for authors of protocols: names, templates, where a class may be defined, the size of replies."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest

import consilience
from consilience.domain.agents import Agent
from consilience.domain.errors import ConsilienceError, ProtocolViolation, SettingsError, UnknownName
from consilience.domain.outcome import Estimate, Limits, StopReason
from consilience.domain.panels import Panel, Persona
from consilience.domain.report import Forecast, Report
from consilience.domain.sections import Bar, Bars, Presentation, View
from consilience.domain.topology import Topology, complete
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import Protocol
from consilience.engine.session import Session
from consilience.engine.templates import Templates
from consilience.engine.work import Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from kit import forks


class RoundOf2Talks(Protocol):
    """Two agents speak. Nobody reads them."""

    templates = {"instructions": "Be brief."}

    def topology(self) -> Topology:
        return complete(2)

    def estimate(self) -> Estimate:
        return Estimate(min=3, max=3)

    async def run(self, session: Session) -> Report:
        replies = await session.gather([session.ask(a.id, Prompt("Speak."), key=f"say/{a.id}") for a in session.agents])
        last = await session.ask("A1", Prompt("Close."), key="close", closing=True, max_tokens=77)
        answer = last.text if isinstance(last, Reply) else None
        return await session.report(Report, first=replies, stop_reason=StopReason.SETTLED, answer=answer)


class Sceptical(consilience.Emergence):
    """Emergence with one other prompt."""

    templates = {
        "leaf_respond": """
            Doubt everything.
              Even this.
            """
    }


PANEL = Panel(
    name="p",
    description="d",
    personas=(Persona(name="Eve", description="You doubt."), Persona(name="Tom", description="You hope.")),
)


@pytest.fixture
def store(home: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(home / "journal.db")) as store:
        yield store


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.agent} at {request.key}")


def test_protocol_class_without_attributes_takes_defaults_from_name_docstring_and_topology() -> None:
    assert (RoundOf2Talks.name, RoundOf2Talks.summary) == ("round-of2-talks", "Two agents speak. Nobody reads them")
    protocol = RoundOf2Talks()
    assert [(agent.id, agent.role) for agent in protocol.agents(None)] == [("A1", "agent"), ("A2", "agent")]
    panel = Panel(name="p", description="d", personas=(Persona(name="Eve", description="You doubt."),))
    assert [agent.persona for agent in protocol.agents(panel)] == ["Eve", "Eve"]
    assert protocol.max_quoted_replies == 2


async def test_ask_without_max_tokens_uses_the_reply_tokens_of_the_session() -> None:
    asked = model()
    await consilience.deliberate("Why?", RoundOf2Talks(reply_tokens=300), model=asked)
    assert {request.key: request.max_tokens for request in asked.requests} == {
        "say/A1": 300,
        "say/A2": 300,
        "close": 77,
    }


class WithoutReport(RoundOf2Talks):
    """Its run returns the answer alone."""

    async def run(self, session: Session) -> Report:
        return "Yes."  # type: ignore[return-value]


async def test_run_that_returns_no_report_is_refused_with_what_to_return() -> None:
    with pytest.raises(ProtocolViolation, match=r"run of WithoutReport returned a str.*await session\.close"):
        await consilience.deliberate("Why?", WithoutReport(), model=model())


class Wordless(RoundOf2Talks):
    """It concludes with an empty text."""

    async def run(self, session: Session) -> Report:
        return await session.report(Report, first=[], stop_reason=StopReason.FAILED, answer="")


async def test_empty_answer_of_a_protocol_is_none() -> None:
    assert (await consilience.deliberate("Why?", Wordless(), model=model())).answer is None


async def test_subclass_of_a_shipped_protocol_overrides_one_template_and_keeps_the_others(store: SqliteStore) -> None:
    asked = model()
    report = await consilience.deliberate("Why?", Sceptical(children=2, max_rounds=1), model=asked, store=store)
    assert isinstance(report, consilience.EmergenceReport)
    assert report.protocol == "sceptical"
    first = next(request for request in asked.requests if "leaf_respond" in request.key)
    assert "Doubt everything.\n  Even this." in first.user
    inherited = consilience.Emergence.load_templates().sources
    own = Sceptical.load_templates().sources
    assert {name for name in own if own[name] != inherited[name]} == {"leaf_respond"}
    assert (await consilience.replay(report.session, store=store)).digest() == report.digest()
    assert await consilience.resume(report.session, store=store) == report


def test_directory_of_prompts_overrides_an_inline_template(tmp_path: Path) -> None:
    (tmp_path / "instructions.j2").write_text("Be long.")
    assert RoundOf2Talks.load_templates(tmp_path).render("instructions") == "Be long."


def test_class_with_missing_or_broken_templates_is_refused_with_the_file_to_write() -> None:
    class Silent(RoundOf2Talks):
        templates = {"instructions": "{{ broken"}

    with pytest.raises(SettingsError, match=r"cannot be read.*instructions.j2 of .*Silent"):
        Silent.load_templates()
    with pytest.raises(SettingsError, match=r"no template 'instructions'.*prompts/instructions.j2"):
        Protocol.load_templates()
    with pytest.raises(SettingsError, match=r"no prompt template 'nothing'.*There are: instructions"):
        RoundOf2Talks.load_templates().render("nothing")


def test_template_of_a_subclass_that_overrides_nothing_is_refused_with_the_names_to_use() -> None:
    class Mistyped(consilience.Emergence):
        templates = {"leaf_repond": "Doubt everything."}

    with pytest.raises(SettingsError, match=r"'leaf_repond' overrides no prompt.*Mistyped.*leaf_respond"):
        Mistyped.load_templates()


def test_template_of_a_new_name_is_accepted_where_a_class_can_render_it() -> None:
    class Longer(RoundOf2Talks):
        """It may render the template in a method of its own."""

        templates = {"close": "Close."}

        async def run(self, session: Session) -> Report:
            return await super().run(session)

    class Mute(Protocol, ABC):
        """It leaves its templates to subclasses."""

    class Heard(Mute):
        templates = {"instructions": "Be brief.", "close": "Close."}

    for accepted in (Longer, Heard):
        assert accepted.load_templates().render("close") == "Close."


@pytest.mark.parametrize(
    ("template", "value", "says"),
    [
        ("{{ x }}", ["a"], r"value 'x' of the prompt 'ask' is mutable \(unhashable type: 'list'\)\. Pass a tuple"),
        ("{{ x }}", ({},), "unhashable type: 'dict'"),
        (
            "{{ x / 0 }}",
            1,
            r"'ask' failed to render: ZeroDivisionError: .*Where: ask.j2. Fix the file.",
        ),
        ("{{ y }}", 1, r"'ask' failed to render: 'y' is undefined"),
    ],
)
def test_template_that_fails_names_the_value_or_the_error(template: str, value: object, says: str) -> None:
    with pytest.raises(ConsilienceError, match=says):
        Templates({"ask": template}).render("ask", x=value)  # type: ignore[arg-type]


class Misplaced(RoundOf2Talks):
    """Its agents are not those of its topology."""

    def agents_without_panel(self) -> list[Agent]:
        return [Agent(id=id, role="agent") for id in ("one", "two")]


class Displaced(Misplaced):
    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return tuple(self.agents_without_panel())


@pytest.mark.parametrize("panel", [None, PANEL])
@pytest.mark.parametrize("protocol", [Misplaced(), Displaced()])
async def test_agents_outside_the_topology_are_refused_before_any_call(protocol: Protocol, panel: Panel | None) -> None:
    asked = model()
    with pytest.raises(SettingsError, match=r"has A1, A2, not among its agents; its agents have one, two, not"):
        await consilience.deliberate("Why?", protocol, model=asked, panel=panel)
    assert not asked.requests


async def test_ask_of_an_unknown_agent_names_the_agents() -> None:
    class Lost(RoundOf2Talks):
        async def run(self, session: Session) -> Report:
            await session.ask("A3", Prompt("Speak."), key="say")
            raise AssertionError

    with pytest.raises(ProtocolViolation, match=r"'A3' is not an agent of this session. Its agents: A1, A2"):
        await consilience.deliberate("Why?", Lost(), model=model())


def test_class_defined_again_in_a_notebook_replaces_the_first_definition(store: SqliteStore) -> None:
    class Cell(RoundOf2Talks):
        pass

    first = consilience.run_sync("Why?", Cell(), model=model(), store=store)

    class Cell(RoundOf2Talks):  # type: ignore[no-redef]
        templates = {"instructions": "Be long."}

    again = model()
    second = consilience.run_sync("Why?", Cell(), model=again, store=store)
    assert again.requests[0].system == "Be long."
    for report in (first, second):
        assert asyncio.run(consilience.replay(report.session, store=store)).digest() == report.digest()


async def test_class_unknown_to_this_process_is_refused_with_a_remedy(store: SqliteStore) -> None:
    class Elsewhere(RoundOf2Talks):
        pass

    report = await consilience.deliberate("Why?", Elsewhere(), model=model(), store=store)
    from consilience.engine import protocol as registry

    del registry._defined["elsewhere"]
    shown = await consilience.resume(report.session, store=store)
    assert (shown.answer, shown.digest()) == (report.answer, report.digest())
    assert shown.presentation() == report.presentation()
    for again in (consilience.replay, consilience.fork):
        with pytest.raises(UnknownName, match=r"'elsewhere', which is not installed.*call consilience.resume"):
            await again(report.session, store=store)


class Introduced(RoundOf2Talks):
    """The first agent is told who it is, the second is not."""

    async def run(self, session: Session) -> Report:
        seat = session.agents[0].introduction()
        replies = await session.gather(
            [session.ask(a.id, Prompt(seat if a.id == "A1" else "Speak."), key=f"say/{a.id}") for a in session.agents]
        )
        answer = replies[0].text if isinstance(replies[0], Reply) else None
        return await session.report(Report, first=replies, stop_reason=StopReason.SETTLED, answer=answer)


async def test_persona_that_no_prompt_contains_is_a_warning_of_the_report(store: SqliteStore) -> None:
    report = await consilience.deliberate("Why?", Introduced(), model=model(), panel=PANEL, store=store)
    (warning,) = report.defects
    assert warning.startswith("points of view in no prompt, and so without effect: A2.")
    assert "session.agent(id).introduction()" in warning
    assert (await consilience.resume(report.session, store=store)).defects == report.defects
    assert (await consilience.replay(report.session, store=store)).defects == report.defects
    forked = await consilience.fork(report.session, perspectives={"A1": "You laugh."}, at=0, store=store, model=model())
    assert [w[:55] for w in forked.defects] == [warning[:55]]
    without = await consilience.deliberate("Why?", Introduced(), model=model(), store=store)
    assert without.defects == ()


class Charted(Report):
    def presentation(self) -> Presentation:
        bars = Bars(rows=(Bar(name="a", value=1.2),), max=1)
        return Presentation(views=(View(name="bars", heading="Bars", picture=bars),))


class Misdrawn(RoundOf2Talks):
    """Its report has a bar outside of the chart."""

    report = Charted

    async def run(self, session: Session) -> Report:
        return Charted(**dict(await super().run(session)))


async def test_exception_in_presentation_is_a_warning_that_names_it_and_its_place(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = await consilience.deliberate("Why?", Misdrawn(), model=model(), store=store)
    assert report.answer
    (warning,) = report.defects
    assert "sections and views are missing" in warning
    assert f"at {__name__}, line " in warning
    assert warning.endswith("invalid Bars: the bar 'a' has the value 1.2, but max is 1")
    assert "invalid Bars: the bar" in report.markdown()
    assert await consilience.resume(report.session, store=store) == report
    monkeypatch.setattr(Charted, "presentation", Report.presentation)
    assert (await consilience.replay(report.session, store=store)).digest() == report.digest()


class Unforeseeing(Report):
    def forecasts(self) -> tuple[Forecast, ...]:
        raise LookupError("no ballots")


class Foresight(RoundOf2Talks):
    """Its report fails to name its questions."""

    report = Unforeseeing


async def test_exception_in_forecasts_is_a_warning_about_questions() -> None:
    (warning,) = (await consilience.deliberate("Why?", Foresight(), model=model())).defects
    assert warning.startswith(f"no question can be followed up: forecasts() failed at {__name__}, line ")
    assert "sections" not in warning


MINE = '''
    import asyncio
    import sys
    import consilience
    from consilience.testing import ScriptedModel

    class Mine(consilience.Emergence):
        """Mine."""

    MODEL = ScriptedModel(lambda request: f"{request.agent} at {request.key}")
    SETTINGS = dict(children=2, max_rounds=1)

    def main():
        if sys.argv[1] == "run":
            report = consilience.run_sync("Why?", Mine(**SETTINGS), model=MODEL, session="s")
        else:
            report = asyncio.run(getattr(consilience, sys.argv[1])("s"))
        assert type(report) is consilience.EmergenceReport
        print(report.digest(), [r.user.splitlines()[-1] for r in MODEL.requests if "leaf" in r.key][:1])
'''
CALL = "\n    if __name__ == '__main__':\n        main()\n"


@pytest.mark.parametrize("where", ["script", "package", "interactive"])
def test_class_defined_in_a_script_package_or_prompt_runs_resumes_and_replays(
    where: str, tmp_path: Path, home: Path
) -> None:
    """A script, the `__init__` of a package, an interactive session; each step in a process of its own."""
    prompts = tmp_path / ("mine" if where == "package" else "") / "prompts"
    prompts.mkdir(parents=True)
    (prompts / "leaf_respond.j2").write_text("From beside the class.")
    if where == "script":
        (tmp_path / "script.py").write_text(dedent(MINE + CALL))
        command = [str(tmp_path / "script.py")]
    elif where == "package":
        (tmp_path / "mine" / "__init__.py").write_text(dedent(MINE))
        command = ["-c", "import mine; mine.main()"]
    else:
        command = ["-c", dedent(MINE + CALL)]
    ran = []
    for what in ("run", "resume", "replay"):
        done = forks.run([sys.executable, *command, what], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        ran.append(done.stdout)
    assert len({line.split()[0] for line in ran}) == 1
    assert ("From beside the class." in ran[0]) == (where != "interactive")


class Forgetful(RoundOf2Talks):
    """Keeps no failed call, and closes."""

    async def run(self, session: Session) -> Report:
        async with session.phase("say", 1):
            replies = await session.gather(
                [session.ask(a.id, Prompt("Speak."), key=f"say/{a.id}") for a in session.agents]
            )
        last = await session.ask("A1", Prompt("Close."), key="close", closing=True)
        return await session.close(Report, last, first=[reply for reply in replies if isinstance(reply, Reply)])


@pytest.mark.parametrize(
    ("limits", "stop", "paid"),
    [
        (None, StopReason.SETTLED, "ordinary"),
        (Limits(calls=2), StopReason.EXHAUSTED_BUDGET, "reserve"),
    ],
)
def test_close_without_the_failed_calls_names_the_limit_that_refused_them(
    limits: Limits | None, stop: StopReason, paid: str
) -> None:
    report = consilience.run_sync("Why?", Forgetful(), model=model(), limits=limits)
    assert (report.stop_reason, report.closing, report.answer) == (stop, paid, "A1 at close")
