"""Templates that replace those of a protocol: checked before the run, named in the report, and how to go on if one fails."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from consilience.domain.errors import PromptFailed, SettingsError
from consilience.journal.sqlite import SqliteStore
from consilience.protocol import Protocol
from consilience.protocols.baselines import Solo
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.reporting.markdown import markdown
from consilience.testing import AnyModel
from kit import runner


async def test_override_with_a_variable_that_no_original_has_is_refused_before_the_session(tmp_path: Path) -> None:
    (tmp_path / "lateral.j2").write_text("You are {{ nobody }}.")
    model, store = AnyModel(), SqliteStore(":memory:")
    with pytest.raises(SettingsError, match=r"lateral\.j2 uses 'nobody'.*lateral\.j2\. Use only: again, before, "):
        await runner.start("Why?", Emergence(), models=model, store=store, prompts=tmp_path)
    assert not model.requests
    assert not store.sessions()
    store.close()


@pytest.mark.parametrize(
    "text",
    ["{{ seat }}", "{% for n in range(2) %}{{ loop.index }}{{ seat }}{% endfor %}", "{% set own = seat %}{{ own }}"],
)
def test_override_with_variables_of_the_original_and_names_of_its_own_is_accepted(text: str, tmp_path: Path) -> None:
    (tmp_path / "leaf_respond.j2").write_text(text)
    assert Emergence.load_templates(tmp_path).render("leaf_respond", seat="You are A.")


def test_override_may_use_a_variable_that_only_the_other_set_uses(tmp_path: Path) -> None:
    class OtherSets(Solo):
        templates = {"answer": "{{ only_here }}"}

    (tmp_path / "answer.j2").write_text("{{ only_here }} {{ seat }}")
    assert OtherSets.load_templates(tmp_path).render("answer", only_here="x", seat="y") == "x y"


class Careful(Solo):
    """Its prompts share a text."""

    templates: ClassVar = {
        "answer": """{{ seat }}\n{% include '_care.j2' %}\nEnd.""",
        "_care": """Care.{% include "_more.j2" %}""",
        "_more": "{% if seat %} More.{% endif %}",
    }

    def agents_are_careful(self) -> bool:
        return True


async def test_include_is_sent_printed_and_stored_as_the_text_of_its_template() -> None:
    originals = Careful.load_templates()
    assert originals.sources["answer"] == "{{ seat }}\nCare.{% if seat %} More.{% endif %}\nEnd."
    assert not [name for name in originals.sources if name.startswith("_")]
    model, store = AnyModel(), SqliteStore(":memory:")
    await runner.start("Why?", Careful(), models=model, store=store, session="s")
    assert "\n\nCare.End." in model.requests[0].text
    assert (await runner.replay("s", store=store)).answer
    store.close()


def test_class_that_changes_a_part_changes_every_prompt_that_includes_it() -> None:
    class Heedless(Careful):
        templates = {"_care": "Be quick."}

    assert Heedless.load_templates().render("answer", seat="A.") == "A.\nBe quick.\nEnd."


def test_override_includes_the_parts_of_the_protocol_and_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "answer.j2").write_text('{% include "_care.j2" %} Be brief.\n')
    assert Careful.load_templates(tmp_path).render("answer", seat="A.") == "Care. More. Be brief."
    (tmp_path / "_care.j2").write_text("Be quick.")
    with pytest.raises(SettingsError, match=r"_care\.j2 overrides no prompt"):
        Careful.load_templates(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{% include "_cares.j2" %}', r"_cares\.j2 is no template of the protocol.*Include one of: _care\.j2"),
        ('{% include "_loop.j2" %}', r"_loop\.j2 includes itself"),
    ],
)
def test_include_that_cannot_be_read_is_refused(text: str, problem: str) -> None:
    class Wrong(Careful):
        templates = {"answer": text, "_loop": 'Again: {% include "_loop.j2" %}'}

        def is_wrong(self) -> bool:
            return True

    with pytest.raises(SettingsError, match=problem):
        Wrong.load_templates()


async def test_failing_override_ends_in_a_fork_that_keeps_the_recorded_calls(tmp_path: Path) -> None:
    own = tmp_path / "lateral.j2"
    own.write_text("{{ seat.nothing }}")
    model, store = AnyModel(), SqliteStore(":memory:")
    with pytest.raises(PromptFailed, match="'lateral' failed to render") as caught:
        await runner.start("Why?", Emergence(), models=model, store=store, session="s", prompts=tmp_path)
    assert store.holder("s") is None
    assert caught.value.where == str(own)
    assert f"consilience fork s --at end --prompts {tmp_path}" in str(caught.value)
    with pytest.raises(PromptFailed, match=r"consilience fork s --at end --prompts DIR"):
        await runner.resume("s", models=model, store=store)

    own.write_text("{{ seat }} Be short.")
    made = len(model.requests)
    report = await runner.fork("s", store=store, at="end", models=model, prompts=tmp_path)
    assert report.answer
    assert report.ledger.actual.inherited == made
    assert not {request.key for request in model.requests[:made]} & {request.key for request in model.requests[made:]}
    store.close()


async def test_report_names_the_replaced_templates_also_after_a_replay_and_in_a_fork(tmp_path: Path) -> None:
    (tmp_path / "answer.j2").write_text("Answer in one line.")
    model, store = AnyModel(), SqliteStore(":memory:")
    report = await runner.start("Why?", Solo(), models=model, store=store, session="s", prompts=tmp_path)
    assert report.replaced_prompts == ("answer",)
    assert "Prompt templates replaced: answer." in markdown(report)
    assert (await runner.replay("s", store=store)).replaced_prompts == ("answer",)
    forked = await runner.fork("s", store=store, models=model)
    assert forked.replaced_prompts == ("answer",)
    plain = await runner.start("Why?", Solo(), models=model, store=store)
    assert not plain.replaced_prompts
    assert "Prompt templates" not in markdown(plain)
    store.close()


MANY = "999999999"
DOUBLED = "{% set ns = namespace(x=['ab']) %}{% for _ in range(60) %}{% set ns.x = DOUBLE %}{% endfor %}"


@pytest.mark.parametrize(
    "text",
    [
        f"{{{{ 'a' * {MANY} }}}}",
        f"{{{{ ({MANY},) * {MANY} }}}}",
        f"{{{{ 2 ** {MANY} }}}}",
        f"{{{{ '%{MANY}d' % 1 }}}}",
        f"{{{{ '%*d' % ({MANY}, 1) }}}}",
        f"{{{{ '{{:{MANY}d}}'.format(1) }}}}",
        f"{{{{ '{{:{{w}}d}}'.format(1, w={MANY}) }}}}",
        f"{{{{ 'a'.center({MANY}) }}}}",
        f"{{{{ 'a' | center({MANY}) }}}}",
        f"{{{{ 'a' | indent({MANY}, true) }}}}",
        f"{{{{ 'a' | batch({MANY}, 'x') | list }}}}",
        f"{{{{ '%{MANY}d' | format(1) }}}}",
        f"{{{{ 1.5 | round({MANY}, 'ceil') }}}}",
        "{{ (('x' * 100000) | replace('x', 'y' * 100000)) }}",
        "{{ range(100000) | map('string') | join('y' * 1000000) }}",
        "{{ ('-' * 4000000) | wordwrap(3) }}",
        f"{{% for i in range({MANY}) %}}x{{% endfor %}}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% include 'answer' %}",
        DOUBLED.replace("DOUBLE", "ns.x + ns.x"),
        DOUBLED.replace("DOUBLE", "(ns.x ~ ns.x,)"),
        DOUBLED.replace("DOUBLE", "[ns.x, ns.x]") + "{{ ns.x }}",
        DOUBLED.replace("DOUBLE", "[ns.x, ns.x]") + "{{ ns.x == [ns.x] }}",
        DOUBLED.replace(" = DOUBLE %}", " %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    ],
)
async def test_override_that_would_take_too_much_is_refused_by_name_and_bound(text: str, tmp_path: Path) -> None:
    (tmp_path / "answer.j2").write_text(text)
    model, store = AnyModel(), SqliteStore(":memory:")
    with pytest.raises(PromptFailed, match=r"'answer' failed to render: .+answer\.j2"):
        await runner.start("Why?", Solo(), models=model, store=store, prompts=tmp_path)
    assert not model.requests
    store.close()


@pytest.mark.parametrize("text", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ " + "9" * 6000 + " }}"])
async def test_override_that_cannot_be_compiled_is_refused_before_the_session(text: str, tmp_path: Path) -> None:
    (tmp_path / "answer.j2").write_text(text)
    with pytest.raises(SettingsError, match="nested too deeply or has too long a number"):
        await runner.start("Why?", Solo(), models=AnyModel(), store=SqliteStore(":memory:"), prompts=tmp_path)


@pytest.mark.parametrize("protocol", [Emergence(max_rounds=2), Broadcast(), Refinement()], ids=lambda made: made.name)
async def test_copies_of_the_originals_make_the_same_prompts(protocol: Protocol, tmp_path: Path) -> None:
    prompts: list[list[str]] = []
    for directory in (None, tmp_path):
        if directory is not None:
            for name, source in type(protocol).load_templates().sources.items():
                (directory / f"{name}.j2").write_text(source + "{# a copy #}")
        model, store = AnyModel(), SqliteStore(":memory:")
        await runner.start("Why?", protocol, models=model, store=store, prompts=directory)
        prompts.append(sorted(request.text for request in model.requests))
        store.close()
    assert prompts[0] == prompts[1]
