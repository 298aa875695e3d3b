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
from consilience.evaluation import Task, TaskSource, choose, load_tasks
from consilience.evaluation.scoring import Score, normalised, number_in, score

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
        ("1.2.3", 1.2),
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
        (GOOD, "the id 'a' is that of line 1 too"),
    ],
)
def test_a_mistake_names_file_and_line(tmp_path: Path, line: object, said: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "", line)
    with pytest.raises(SettingsError) as error:
        load_tasks(path)
    assert said in str(error.value)
    assert f"{path}, line 3" in str(error.value)


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
