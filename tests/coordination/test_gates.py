"""Gates as tables, with the texts that deceive a gate which counts characters."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from consilience.coordination.gates import (
    BUILT_IN_GATES,
    Gate,
    balance_gate,
    check_gate_in_artifact,
    gate,
    gate_misses,
    load_gate,
)
from consilience.domain.errors import UnknownName, UserError

COVERAGE = [
    ("three sections", "## Risks\nOne.\n## Costs\nTwo.\n## Tests\nThree.", True),
    ("two sections", "## Risks\nOne.\n## Costs\nTwo.", False),
    ("headings of every level", "# Risks\nOne.\n### Costs\nTwo.\n# Tests\nThree.", True),
    ("underlined headings", "Risks\n-----\nOne.\n\nCosts\n-----\nTwo.\n\nTests\n---\nThree.", True),
    ("a closing sequence", "## Risks ##\nOne.\n## Costs ##\nTwo.\n## Tests ##\nThree.", True),
    ("code alone is text", "## Risks\nOne.\n## Costs\nTwo.\n## Fix\n```\nx = 1\n```", True),
    ("Chinese", "## 风险\n一。\n## 成本\n二。\n## 测试\n三。", True),
    ("subsections under a heading without its own text", "## All\n### A\nx\n### B\ny\n### C\nz", True),
    ("nothing", "", False),
    ("headings without text", "## Risks\n## Costs\n## Tests\n", False),
    ("one long row of signs", "######\n########", False),
    ("signs in a sentence", "See ## and ## and ##.", False),
    ("no blank after the signs", "##Risks\nOne.\n##Costs\nTwo.\n##Tests\nThree.", False),
    ("headings in code", "## Risks\nOne.\n```\n## Costs\nTwo.\n## Tests\nThree.\n```", False),
    ("headings in a fence that is never closed", "## Risks\nOne.\n```\n## Costs\nTwo.\n## Tests\nThree.", False),
    ("headings in a longer fence", "````\n```\n## A\nx\n## B\ny\n## C\nz\n````", False),
    ("headings in indented code", "## Risks\nOne.\n\n    ## Costs\n    Two.\n    ## Tests\n    Three.", False),
    ("headings in a comment", "## Risks\nOne.\n<!--\n## Costs\nTwo.\n## Tests\nThree.\n-->", False),
    ("text in comments only", "## A\n<!-- x -->\n## B\n<!-- y -->\n## C\n<!-- z -->", False),
    ("rules and bullets instead of text", "## A\n---\n## B\n- \n## C\n***\n", False),
    ("placeholders instead of text", "## A\nTODO\n## B\n- TBD.\n## C\n...", False),
    ("headings without words", "##\nOne.\n## \nTwo.\n## ---\nThree.", False),
    ("the same section three times", "## A\nOne.\n## A\nOne.\n## A\nOne.", False),
    ("a title and two sections", "# Review\nOf the lock.\n## Risks\nOne.\n## Costs\nTwo.", False),
    ("a title and three sections", "# Review\n## Risks\nOne.\n## Costs\nTwo.\n## Tests\nThree.", True),
    ("empty fences instead of text", "## A\n```\n```\n## B\n```\n\n```\n## C\n~~~\n~~~", False),
]

EXAMPLES = [
    ("a fence", "Wrong:\n```python\nx = 1\n```", True),
    ("a fence of tildes", "~~~\nx = 1\n~~~", True),
    ("a fence in a list", "1. Wrong:\n   - ```sh\n     rm -r /\n     ```", True),
    ("a fence in a quotation", "> ```\n> x = 1\n> ```", True),
    ("a fence that is never closed", "```\nx = 1", True),
    ("the word with a colon", "Example: two writers at once.", True),
    ("text on the next line", "Example:\n\nTwo writers at once.", True),
    ("bold", "**Example:** two writers. ", True),
    ("bold before the colon", "**Example**: two writers. ", True),
    ("numbered", "Example 2: two writers.", True),
    ("in a sentence", "It loses writes, for example: two writers at once.", True),
    ("the word then code", "Example:\n\n    x = 1\n", True),
    ("in a heading with text", "## Races\nExample: two writers.", True),
    ("nothing", "", False),
    ("an empty fence", "```\n```", False),
    ("an empty fence with a language", "```python\n\n```", False),
    ("a fence of dots", "```\n...\n```", False),
    ("fence signs in a sentence", "Use ``` for code.", False),
    ("fence signs around words on one line", "``` x ```", False),
    ("the word with nothing after it", "Example:", False),
    ("the word before a heading", "Example:\n## Next\nText.", False),
    ("the word without a colon", "An example would be good.", False),
    ("the word in inline code", "The label `Example:` is missing.", False),
    ("the word in a comment", "<!-- Example: two writers -->", False),
    ("counterexample", "Counterexample: none known.", False),
    ("no example", "I can give no example: there was no time.", False),
    ("a placeholder", "Example: TODO", False),
    ("none", "Example: none.", False),
    ("none in bold", "**Example:** None needed.", False),
    ("no example given", "Examples: not applicable", False),
    ("nothing, on the next line", "Example:\n\nNone.", False),
    ("there is none", "Example: there is no example.", False),
    ("none, then another", "Example: none.\n\nExample 2: two writers at once.", True),
    ("a fence that says none", "```\nNone\n```", False),
    ("a fence to do", "```python\n# TODO\n```", False),
    ("an example about none", "Example: none of the writers waits.", True),
    ("no, then words", "Example: no lock is taken in save().", True),
    ("a fence in a comment", "<!--\n```\nx = 1\n```\n-->", False),
]

RECOMMENDATIONS = [
    ("should", "The lock should be released.", True),
    ("must in capitals", "Callers MUST close it.", True),
    ("shouldn't", "You shouldn't hold it.", True),
    ("an imperative", "Fix the bound.", True),
    ("an imperative in a list", "- add a test", True),
    ("to add", "We need to add a test.", True),
    ("emphasis", "**Remove** the cache.", True),
    ("implement", "Implement a retry.", True),
    ("a heading with text", "### Add a timeout\nA slow server holds it.", True),
    ("use", "Use a context manager.", True),
    ("validate", "Validate the input before use.", True),
    ("a verb without an article", "Replace eval by a parser.", True),
    ("use and a noun", "Use context managers for files.", True),
    ("never", "Never log the token.", True),
    ("do not", "- do not retry on a timeout of the caller", False),
    ("do not with an object", "- do not retry after a timeout", True),
    ("after a label", "**Recommendation:** close the file.", True),
    ("after a colon", "The handle leaks: close it in a finally block.", True),
    ("a later sentence", "The list may be empty. Check it first.", True),
    ("a task", "1. [ ] `x` is read twice; cache it.", True),
    ("a condition first", "If the list is empty, return an error.", True),
    ("code as the object", "Rename `x` to `count`.", True),
    ("use of", "Use of globals is fine here.", False),
    ("test coverage", "Test coverage is good.", False),
    ("a noun", "Check marks and lists look right.", False),
    ("a gerund", "Using a lock is fine.", False),
    ("third person", "It validates the input and uses a lock.", False),
    ("a heading of verbs without text", "## Use a lock\n", False),
    ("nothing", "", False),
    ("address is not add", "We address all risks here.", False),
    ("prefix is not fix", "The prefix and the suffix differ.", False),
    ("mustard, shoulder, addition, removed", "Mustard, shoulder, addition, removed, implemented, fixed.", False),
    ("the word in a fence", "```\nadd(x)\nremove(x)\n```", False),
    ("the word in inline code", "It calls `add` and ``remove``.", False),
    ("the word in indented code", "Calls:\n\n    add(x)\n    fix(y)\n", False),
    ("the word in a comment", "<!-- you must fix this -->", False),
    ("the word in a quotation", '> Users should "add" an account.', False),
    ("nothing to add", "I have nothing to add.", False),
    ("the noun", "The fix is fine; a fix like that works.", False),
    ("a heading without text", "## Must fix\n## Should fix\n", False),
    ("part of a name", "The methods add_user and auto_fix are fine.", False),
]


def rows(gate_id: str, table: list[tuple[str, str, bool]]) -> list[object]:
    return [pytest.param(gate_id, text, met, id=f"{gate_id}: {name}") for name, text, met in table]


@pytest.mark.parametrize(
    ("gate_id", "text", "met"),
    [
        *rows("comprehensive_coverage", COVERAGE),
        *rows("specific_examples", EXAMPLES),
        *rows("actionable_recommendations", RECOMMENDATIONS),
    ],
)
def test_built_in_gate_is_met_by_a_matching_text(gate_id: str, text: str, met: bool) -> None:
    assert BUILT_IN_GATES[gate_id].is_met(text) is met
    crlf = text.replace("\n", "\r\n")
    assert BUILT_IN_GATES[gate_id].is_met(crlf) is met


@pytest.mark.parametrize(
    "text",
    [
        "<!--" * 200_000,
        "`" * 500_000,
        "# " * 200_000,
        "Example:\n" * 50_000,
        "no example" * 50_000,
        "uses " * 100_000,
        "Example: none. " * 50_000,
        "- " * 200_000,
    ],
)
def test_built_in_gates_take_linear_time_for_a_hostile_text(text: str) -> None:
    assert not any(known.is_met(text) for known in BUILT_IN_GATES.values())


# --- gates by name

MODULE = """
from consilience.coordination.gates import gate

@gate("a figure")
def has_figure(text):
    return any(map(str.isdigit, text))

@gate("nothing")
def fails(text):
    raise RuntimeError("out of order")

def plain(text):
    return True
"""


@pytest.fixture
def own_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with gates on Python's path; returns its name."""
    (tmp_path / "own_gates_for_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_gates_for_test", raising=False)
    return "own_gates_for_test"


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "artifact.md"
    path.write_text("## Cost\n12 of 20.\nWe address everything.")
    return path


def test_load_gate_by_module_and_function_returns_the_gate_with_its_advice(own_gates: str) -> None:
    loaded = load_gate(f"{own_gates}:has_figure")
    assert loaded.is_met("12 of 20")
    assert not loaded.is_met("most")
    assert loaded.add == "Provide a figure."


def test_load_gate_by_entry_point_name_returns_the_gate(monkeypatch: pytest.MonkeyPatch, own_gates: str) -> None:
    from importlib.metadata import EntryPoint

    points = [EntryPoint("figures", f"{own_gates}:has_figure", "consilience.gates")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [p for p in points if p.group == group])
    assert load_gate("figures").is_met("12")


@pytest.mark.parametrize(
    ("gate_id", "what"),
    [
        ("comprehensive", "there is no gate 'comprehensive'"),
        ("", "there is no gate ''"),
        ("os:system", "'os:system' is not a gate"),
        ("OWN:plain", "decorate the function with consilience.coordination.gate"),
        ("OWN:absent", "cannot be imported: AttributeError"),
        ("no_such_module_at_all:f", "cannot be imported: ModuleNotFoundError"),
        ("../evil:f", "there is no gate"),
        ("OWN:", "there is no gate"),
    ],
)
def test_load_gate_with_an_unknown_name_is_refused(own_gates: str, gate_id: str, what: str) -> None:
    with pytest.raises(UnknownName, match="(?i)" + what):
        load_gate(gate_id.replace("OWN", own_gates))


@pytest.mark.parametrize("gate_id", ["comprehensive", "", "os:system", "OWN:plain", "OWN:absent"])
def test_check_gate_in_artifact_of_an_unknown_gate_is_false(own_gates: str, artifact: Path, gate_id: str) -> None:
    assert check_gate_in_artifact(gate_id.replace("OWN", own_gates), artifact) is False


def test_check_gate_in_artifact_reads_the_file(own_gates: str, artifact: Path) -> None:
    assert check_gate_in_artifact(f"{own_gates}:has_figure", artifact) is True
    assert check_gate_in_artifact("actionable_recommendations", str(artifact)) is False
    artifact.write_text("Add a test.")
    assert check_gate_in_artifact("actionable_recommendations", artifact) is True


def test_load_gate_of_a_module_in_a_workspace_does_not_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "session_id.txt").write_text("s1")
    (tmp_path / "planted_for_test.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with pytest.raises(UnknownName, match="lies in a workspace"):
        load_gate("planted_for_test:gate")


@pytest.mark.parametrize("name", ["linked_for_test", "reviews_for_test.w.plain"])
def test_load_gate_by_a_link_or_package_around_a_workspace_does_not_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    workspace = tmp_path / "reviews_for_test" / "w"
    workspace.mkdir(parents=True)
    (workspace / "session_id.txt").write_text("s1")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    (workspace / "linked_for_test.py").symlink_to(tmp_path / "evil.py")
    (workspace / "plain.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(workspace))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownName, match="lies in a workspace"):
        load_gate(f"{name}:gate")


def test_gate_misses_of_a_gate_that_raises_names_the_gate(own_gates: str) -> None:
    with pytest.raises(UserError, match=r"the gate 'own:fails' failed: RuntimeError: out of order"):
        gate_misses("own:fails", load_gate(f"{own_gates}:fails"), {"red": ""})


def test_balance_gate_sees_all_texts_and_names_agents_that_miss_it() -> None:
    @balance_gate("as many lines as the other side")
    def balanced(texts: Mapping[str, str]) -> Collection[str]:
        most = max(text.count("\n") for text in texts.values())
        return {name for name, text in texts.items() if text.count("\n") < most}

    assert isinstance(balanced, Gate)
    assert gate_misses("balanced", balanced, {"red": "a\nb\n", "blue": "a"}) == ["blue"]


def test_gate_misses_returns_every_agent_that_misses_the_gate() -> None:
    @gate("the word lock", add="Name the lock.")
    def names_the_lock(text: str) -> bool:
        return "lock" in text

    assert gate_misses("lock", names_the_lock, {"red": "lock", "blue": "", "green": ""}) == ["blue", "green"]


@pytest.mark.parametrize(
    ("red", "blue", "missed"),
    [
        ("```\na\n```", "```\nb\n```", []),
        ("```\na\n```\n```py\nb\n```\n```\nc\n```", "```\nd\n```", ["blue"]),
        ("```\na\n```", "Example: b", ["blue"]),
        ("```py\n```", "", ["red", "blue"]),
    ],
)
def test_balance_gate_of_the_examples_needs_examples_of_both_sides(
    monkeypatch: pytest.MonkeyPatch, red: str, blue: str, missed: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    monkeypatch.delitem(sys.modules, "gates", raising=False)
    known = load_gate("gates:balanced_examples")
    assert gate_misses("gates:balanced_examples", known, {"red": red, "blue": blue}) == missed
    assert load_gate("gates:has_figure").is_met("12 of 20")
