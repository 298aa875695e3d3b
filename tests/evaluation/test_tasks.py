"""Task files, the shipped set, and judging an answer."""

from __future__ import annotations

import ast
import json
import operator
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consilience.domain.errors import SettingsError, UnknownName
from consilience.engine.answers import extract
from consilience.evaluation import Task, TaskSource, choose, load_tasks
from consilience.evaluation.numbers import number_in
from consilience.evaluation.scoring import Score, normalised, score

STARTER = load_tasks("starter")


def report(answer: str | None, **more: object) -> Any:
    return SimpleNamespace(answer=answer, **more)


def numeric(kind: str, answer: str, **more: Any) -> Task:
    return Task(id="x", task="?", kind=kind, answer=answer, **more)  # type: ignore[arg-type]


# --- judging


@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        (numeric("number", "42"), "It is 42.", Score(True, True, 0.0)),
        (numeric("number", "42"), "First 40, then 41", Score(True, False, 1.0)),
        (numeric("number", "42", tolerance=1), "41", Score(True, True, 1.0)),
        (numeric("number", "0.3"), "0.30", Score(True, True, 0.0)),
        (numeric("number", "0.75"), "It is .75", Score(True, True, 0.0)),
        (numeric("number", "5000"), "It is 5 000.", Score(True, True, 0.0)),
        (numeric("number", "1200"), "about 1,200 people", Score(True, True, 0.0)),
        (numeric("number", "-5"), "−5 degrees", Score(True, True, 0.0)),
        (numeric("number", "42"), "many", Score(False, False)),
        (numeric("number", "42"), "", Score(False, False)),
        (numeric("number", "42"), None, Score(False, False)),
        (numeric("magnitude", "1000"), "3000", Score(True, True, orders=pytest.approx(0.4771, abs=1e-3))),
        (numeric("magnitude", "1000"), "300", Score(True, False, orders=pytest.approx(0.5229, abs=1e-3))),
        (numeric("magnitude", "1000", tolerance=1), "1e4", Score(True, True, orders=pytest.approx(1.0))),
        (numeric("magnitude", "1000"), "0", Score(True, False)),
        (numeric("magnitude", "1000"), "-1000", Score(True, False)),
        (numeric("magnitude", "1000"), "1e999", Score(True, False)),
        (Task(id="x", task="?", answer="The Hague"), " the hague. ", Score(True, True)),
        (Task(id="x", task="?", answer="Hague"), "Rotterdam", Score(True, False)),
        (
            Task(id="x", task="?", kind="choice", answer="B", answer_pattern="answer: ([ABC])"),
            "Answer: b",
            Score(True, True),
        ),
        (
            Task(id="x", task="?", kind="choice", answer="B", answer_pattern="answer: ([ABC])"),
            "B, surely",
            Score(False, False),
        ),
        (Task(id="x", task="?"), "anything", Score(True, None)),
        (Task(id="x", task="?"), None, Score(False, None)),
    ],
)
def test_an_answer_is_judged(task: Task, answer: str | None, expected: Score) -> None:
    assert score(task, report(answer)) == expected


def test_the_position_of_a_report_is_its_answer_in_short() -> None:
    task = numeric("number", "7", answer_pattern=r"answer: (\d+)")
    assert score(task, report("Answer: 8", position="7")).correct
    assert score(task, report("Answer: 7", position=None)).correct
    assert not score(task, report("Answer: 7", position="8")).correct


def test_a_number_is_the_last_of_a_text() -> None:
    assert number_in("3 of 10 or 1,234,567.5 kg") == 1234567.5
    assert number_in("1e3") == 1000
    assert number_in("12\u202f000") == 12000
    assert number_in("version v2") is None
    assert number_in("none") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".75", 0.75),
        ("-.5", -0.5),
        ("−.5", -0.5),
        ("the answer is .5", 0.5),
        ("about .5e3 of them.", 500),
        ("It is 7. .25 remain", 0.25),
        ("and so on ...5", None),
        ("file.5", None),
        ("1.2.3", None),
    ],
)
def test_a_decimal_may_begin_with_its_point(text: str, value: float | None) -> None:
    assert number_in(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 000", 5000),
        ("some 12 345 678.5 km", 12345678.5),
        ("-5 000", -5000),
        ("2 + 5 000", 5000),
        ("5 000, or 7", 7),
        ("in 2019 100 of them", 100),  # four digits are no group
        ("5 00", 0),
        ("12 34 567", 567),
        ("5 000 12", 12),
        ("0.5 100 200", 200),
        ("5  000", 0),
    ],
)
def test_plain_blanks_group_thousands_where_no_other_number_is_beside_them(text: str, value: float) -> None:
    assert number_in(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("31.5 million", 31.5e6),
        ("about 3 thousand of them", 3_000),
        ("**2** billion", 2e9),
        ("2.5-million", 2.5e6),
        ("3 millionaires", 3),
        ("3.15 × 10^7 seconds", 3.15e7),
        ("3.15e7", 3.15e7),
        ("3.15×10⁷", 3.15e7),
        ("3.15 * 10**7", 3.15e7),
        (r"\boxed{3.15 \times 10^{7}}", 3.15e7),
        (r"31{,}536{,}000 or 31\,536\,001", 31_536_001),
        ("10^6", 1e6),
        ("10⁻³", 1e-3),
        ("10^99999", float("inf")),
        ("31\u2009536\u2009000", 31_536_000),
        ("31\u00a0536", 31_536),
        ("1'200 and 1’300", 1_300),
        ("–5", -5),
        ("It is −5.", -5),
        ("3–5", 5),
        ("10 - 5", 5),
        ("8-3=5", 5),
        ("-$42", -42),
        ("$-42", -42),
        ("USD42", 42),
        ("It is 12, says GPT4 of COV19", 12),
        ("_42_", 42),
        ("__42__", 42),
        ("`42`", 42),
        ("42km", 42),
        ("7 km2", 7),
        ("42 m^2", 42),
        ("42 m²", 42),
        ("42 m^{-2}", 42),
        ("42 kg m-2", 42),
        ("42°C", 42),
        ("CO2", None),
        ("GPT-4", None),
        ("x_42", None),
        ("1/2", None),
        ("10:40", None),
        ("12,00,000", None),
        ("1,5", None),
        ("1_234", None),
        ("2^10", None),
    ],
)
def test_a_number_is_read_as_people_write_it(text: str, value: float | None) -> None:
    """And is part of no word, no unit, and no digits that are joined otherwise."""
    assert number_in(text) == value


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Answer: 366", True), ("Answer: -366", False), ("Answer: 1,366", False), ("Answer: 366 days\n", True)],
)
@pytest.mark.parametrize("pattern", [r"(\d+)\D*$", r"(\d[\d,.]*\b)\D*$", r"answer:\W*(\d+)"])
def test_a_number_that_a_pattern_found_a_part_of_is_read_whole(answer: str, right: bool, pattern: str) -> None:
    assert score(numeric("number", "366", answer_pattern=pattern), report(answer)).correct is right


def test_what_a_pattern_found_in_a_word_is_read_as_it_is() -> None:
    assert score(numeric("number", "42", answer_pattern=r"v(\d+)"), report("Take v42.")).correct


@pytest.mark.parametrize(
    ("answer", "given", "right"),
    [
        ("B", "Option B", True),
        ("B", "B. Paris", True),
        ("Paris", "B. Paris", True),
        ("B", "A. Paris", False),
        ("B. Paris", "Paris", True),
        ("B. Paris", "Option B", True),
        ("B. Paris", "(B) Paris", True),
        ("B. Paris", "A", False),
        ("True", r"\boxed{True}", True),
        ("Paris", r"$\boxed{\text{Paris}}$", True),
        (".5", "5", False),
        (".5", " **.5**.", True),
        ("C", "C++", False),
    ],
)
def test_a_choice_is_named_by_its_label_or_its_text(answer: str, given: str, right: bool) -> None:
    task = Task(id="x", task="?", kind="choice", answer=answer)
    assert score(task, report(given)) == Score(True, right)


@pytest.mark.parametrize(
    ("given", "right"), [(".5", True), ("0.5", False), ("5", False), (r"\boxed{.5}", True), ("Option .5", False)]
)
def test_exact_words_keep_their_point(given: str, right: bool) -> None:
    assert score(Task(id="x", task="?", answer=".5"), report(given)) == Score(True, right)


def test_words_are_compared_without_dress() -> None:
    assert normalised("  The **Cat**! ") == "cat"
    assert normalised("ﬁne") == "fine"
    assert normalised("another") == "another"


# --- files


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


GOOD = {"id": "a", "task": "What is 1 + 1?", "answer": 2, "kind": "number"}


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "", {**GOOD, "id": "b", "sources": [{"text": "One.", "seat": 2}]})
    first, second = load_tasks(path)
    assert (first.id, first.answer, first.private) == ("a", "2", False)
    assert second.sources == (TaskSource(text="One.", seat=2),)
    assert second.private


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Invalid JSON"),
        ("[]", "the line"),
        ({**GOOD, "id": ""}, "id"),
        ({"id": "b"}, "task: Field required"),
        ({**GOOD, "id": "b", "answr": 1}, "answr"),
        ({**GOOD, "id": "b", "kind": "word"}, "kind"),
        ({**GOOD, "id": "b", "answer": "two"}, "is a number, not 'two'"),
        ({**GOOD, "id": "b", "kind": "magnitude", "answer": 0}, "above 0"),
        ({**GOOD, "id": "b", "kind": "exact", "tolerance": 1}, "tolerance"),
        ({**GOOD, "id": "b", "answer_pattern": "("}, "no regular expression"),
        ({**GOOD, "id": "b", "sources": [{"text": "x", "seat": 0}]}, "sources.0.seat"),
        *(
            ({**GOOD, "id": "b", "answer": answer}, f"is a number, not {answer!r}: write one in digits")
            for answer in ("1/2", "50%", "3.5 million", "10^6", "12,00,000", "1e400", "5 or 6", "")
        ),
        ('{"id": "b", "task": "?", "answer": 1e400, "kind": "number"}', "write one in digits"),
        ('{"id": "b", "task": "?", "answer": 1, "kind": "number", "tolerance": 1e400}', "finite"),
        ({**GOOD, "id": "b", "tolerance": 1e300}, "makes every number right"),
        ({**GOOD, "id": "b", "kind": "magnitude", "tolerance": 700}, "makes every number right"),
        ({"id": "b", "task": "?", "answer": ""}, "holds no word"),
        ({"id": "b", "task": "?", "answer": "...", "kind": "choice"}, "holds no word"),
        *(
            ({"id": "b", "task": "?", "answer": "A", "kind": "choice", "answer_pattern": pattern}, "never gives")
            for pattern in ("B|C", r"Answer:\s*([B-D])\b|^[B-D]$", r"(Dora|Emil)\W*$", "[B-D]$")
        ),
        ({**GOOD, "id": "b", "answer_pattern": "3|4"}, "never gives"),
        (GOOD, "the id 'a' is that of line 1 too"),
    ],
)
def test_a_mistake_names_file_and_line(tmp_path: Path, line: object, said: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "", line)
    with pytest.raises(SettingsError) as error:
        load_tasks(path)
    assert said in str(error.value)
    assert f"{path}, line 3" in str(error.value)


@pytest.mark.parametrize(
    ("answer", "kind", "pattern"),
    [
        ("A", "choice", "A|B"),
        ("A", "choice", r"Answer:\s*([A-D])\b|^[A-D]$"),
        ("The Hague", "exact", r"verdict: (Hague|Delft)"),
        ("Paris", "exact", r"(?<=total: )\w+"),
        ("-5", "number", r"(\d+)\D*$"),
        ("1,366", "number", r"total: \d+"),
        ("3e7", "magnitude", r"answer: ((\d+)e\d+)"),
    ],
)
def test_an_answer_that_a_pattern_may_give_is_accepted(answer: str, kind: str, pattern: str) -> None:
    task = Task(id="x", task="?", answer=answer, kind=kind, answer_pattern=pattern)  # type: ignore[arg-type]
    assert task.answer == answer


def test_files_that_hold_no_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="starter"):
        load_tasks(tmp_path / "none.jsonl")
    with pytest.raises(SettingsError, match="holds no task"):
        load_tasks(write(tmp_path / "empty.jsonl", ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_tasks(tmp_path / "binary")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_tasks(tmp_path)


def test_parts_of_a_set_are_chosen_by_split_or_id() -> None:
    assert {task.split for task in choose(STARTER, only=["split"])} == {"split"}
    assert [t.id for t in choose(STARTER, only=["estimation-02", "split"], limit=2)] == ["estimation-02", "split-01"]
    assert choose(STARTER) == STARTER
    with pytest.raises(UnknownName, match="Splits: arithmetic, estimation, split"):
        choose(STARTER, only=["geometry"])
    with pytest.raises(SettingsError, match="--limit"):
        choose(STARTER, limit=0)


# --- the shipped set

OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def computed(node: ast.AST) -> float:
    match node:
        case ast.Expression(body=body):
            return computed(body)
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return float(OPERATIONS[type(op)](computed(left), computed(right)))
    raise AssertionError(ast.dump(node))


def test_the_shipped_set_has_three_kinds_of_tasks() -> None:
    splits = [task.split for task in STARTER]
    assert {split: splits.count(split) for split in splits} == {"arithmetic": 8, "estimation": 8, "split": 8}


@pytest.mark.parametrize("task", STARTER, ids=lambda task: task.id)
def test_a_shipped_answer_follows_from_its_formula_or_its_facts(task: Task) -> None:
    assert task.answer is not None
    if task.formula:
        assert computed(ast.parse(task.formula, mode="eval")) == pytest.approx(float(task.answer))
    if task.split == "arithmetic":
        stated = {int(n) for n in re.findall(r"\d+", task.task)}
        assert {int(n) for n in re.findall(r"\d+", task.formula)} & stated
    if task.split == "split":
        assert [source.seat for source in task.sources] == [1, 2, 3]
        facts = [re.findall(r"\d+(?::\d+)?", source.text) for source in task.sources]
        if task.kind == "number":
            assert [n for found in facts for n in found] == re.findall(r"\d+", task.formula)
        else:
            best = min if "first" in task.task else max
            size = [tuple(map(int, found[0].split(":"))) for found in facts]
            assert task.answer in task.sources[size.index(best(size))].text


@pytest.mark.parametrize("task", STARTER, ids=lambda task: task.id)
def test_a_right_answer_in_the_form_asked_for_is_right_and_another_is_not(task: Task) -> None:
    assert task.answer_pattern
    assert score(task, report(f"So it is.\n**Answer: {task.answer}**.")).correct
    assert score(task, report("I do not know.")) == Score(False, False)
    wrong = "Zed" if task.kind == "choice" else str(float(task.answer or 0) * 4 + 1)
    assert not score(task, report(f"Answer: {wrong}")).correct


@pytest.mark.parametrize("task", choose(STARTER, only=["estimation"]), ids=lambda task: task.id)
@pytest.mark.parametrize(
    "written",
    [
        "{:.0f}",
        "{:,.0f}",
        "{:.6e}",
        "{million:.5f} million",
        "{million:.5f} × 10^6",
        r"\\boxed{{{:,.0f}}}",
        "**{:,.0f}**",
    ],
)
def test_an_estimate_is_read_however_it_is_written(task: Task, written: str) -> None:
    right = float(task.answer or 0)
    given = written.format(right, million=right / 1e6)
    for text in (f"60 or 70, then.\nAnswer: {given} m^2.", f"Answer: 1. No.\n**Answer:** {given} km2\n", given):
        assert score(task, report(text)).correct, text
    assert not score(task, report(f"Answer: -{right:.0f}")).correct
    assert score(task, report("It was 5.\nIt is 6.")) == Score(False, False)


GUIDE = Path(__file__).parents[2] / "docs" / "compare.md"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is a close call. Answer: C", "c"),
        ("A close call.\n**Answer:** C.", "c"),
        ("C", "c"),
        ("A or D? I cannot say.", None),
        ("Call it what you like", None),
    ],
)
def test_the_pattern_that_the_guide_recommends_for_a_choice(text: str, found: str | None) -> None:
    """A ballot is the bare option, and a text ends with the form that was asked for."""
    pattern = r"Answer:[\s*]*([A-D])\b|^[A-D]$"
    assert f"\n{pattern}  " in GUIDE.read_text()
    assert extract(pattern, text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A year has 12 months. Answer: 366 days, as 4 divides it.", "366"),
        ("**Answer:** 1,366", "1,366"),
        ("-366", "-366"),
        ("Answer: −5", "−5"),
        ("−5", "−5"),
        ("Answer: $366", "366"),
        ("$366", "$366"),
    ],
)
def test_the_pattern_that_the_guide_recommends_for_a_number(text: str, found: str) -> None:
    pattern = r"Answer:[^\d−-]*([−-]?[\d,.]*\d)|^[−-]?\D?[\d,.]*\d$"
    assert f"\n{pattern}  " in GUIDE.read_text()
    assert f'--answer-pattern "{pattern}"' in GUIDE.read_text()
    assert json.dumps(pattern, ensure_ascii=False) in GUIDE.read_text()
    assert extract(pattern, text) == found


def test_every_number_asked_for_keeps_its_sign() -> None:
    for task in STARTER:
        if task.kind == "number":
            assert not score(task, report(f"Answer: -{task.answer}")).correct
            assert not score(task, report(f"Answer: 1,{int(task.answer or 0):03}")).correct
