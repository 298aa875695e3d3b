"""Task files, the shipped set, and judging an answer."""

from __future__ import annotations

import ast
import json
import operator
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consilience import Vote
from consilience.domain.errors import SettingsError, UnknownName
from consilience.evaluation import Task, TaskSource, load_tasks, select_tasks
from consilience.evaluation.matching import normalize
from consilience.evaluation.numbers import last_number
from consilience.evaluation.scoring import Score, score
from consilience.protocols._common.answers import extract

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
def test_score_judges_an_answer_by_the_kind_of_task(task: Task, answer: str | None, expected: Score) -> None:
    assert score(task, report(answer)) == expected


def test_score_prefers_the_position_of_a_report_over_its_text() -> None:
    task = numeric("number", "7", answer_pattern=r"answer: (\d+)")
    assert score(task, report("Answer: 8", position="7")).correct
    assert score(task, report("Answer: 7", position=None)).correct
    assert not score(task, report("Answer: 7", position="8")).correct


def test_last_number_of_a_text_is_read_in_common_notations() -> None:
    assert last_number("3 of 10 or 1,234,567.5 kg") == 1234567.5
    assert last_number("1e3") == 1000
    assert last_number("12\u202f000") == 12000
    assert last_number("version v2") is None
    assert last_number("none") is None


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
def test_last_number_reads_a_decimal_without_a_leading_zero(text: str, value: float | None) -> None:
    assert last_number(text) == value


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
def test_last_number_reads_thousands_grouped_by_spaces(text: str, value: float) -> None:
    assert last_number(text) == value


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
        ("3–5", None),
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
        ("1/2", 0.5),
        ("10:40", None),
        ("12,00,000", None),
        ("1,5", 1.5),
        ("1_234", None),
        ("2^10", None),
    ],
)
def test_last_number_reads_numbers_with_units_signs_and_markup(text: str, value: float | None) -> None:
    """And is part of no word, no unit, and no digits that are joined otherwise."""
    assert last_number(text) == value


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Answer: 366", True), ("Answer: -366", False), ("Answer: 1,366", False), ("Answer: 366 days\n", True)],
)
@pytest.mark.parametrize("pattern", [r"(\d+)\D*$", r"(\d[\d,.]*\b)\D*$", r"answer:\W*(\d+)"])
def test_score_extends_a_partial_match_to_the_complete_number(answer: str, right: bool, pattern: str) -> None:
    assert score(numeric("number", "366", answer_pattern=pattern), report(answer)).correct is right


def test_score_reads_a_pattern_match_inside_a_word_unchanged() -> None:
    assert score(numeric("number", "42", answer_pattern=r"v(\d+)"), report("Take v42.")).correct


@pytest.mark.parametrize(
    ("answer", "inputs", "right"),
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
def test_choice_is_matched_by_its_label_or_text(answer: str, inputs: str, right: bool) -> None:
    task = Task(id="x", task="?", kind="choice", answer=answer)
    assert score(task, report(inputs)) == Score(True, right)


@pytest.mark.parametrize(
    ("inputs", "right"), [(".5", True), ("0.5", False), ("5", False), (r"\boxed{.5}", True), ("Option .5", False)]
)
def test_exact_answer_keeps_its_decimal_point(inputs: str, right: bool) -> None:
    assert score(Task(id="x", task="?", answer=".5"), report(inputs)) == Score(True, right)


def test_normalize_removes_markup_and_punctuation() -> None:
    assert normalize("  The **Cat**! ") == "cat"
    assert normalize("ﬁne") == "fine"
    assert normalize("another") == "another"


# --- files


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


GOOD = {"id": "a", "task": "What is 1 + 1?", "answer": 2, "kind": "number"}


def test_task_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "", {**GOOD, "id": "b", "sources": [{"text": "One.", "seat": 2}]})
    first, second = load_tasks(path)
    assert (first.id, first.answer, first.private) == ("a", "2", False)
    assert second.sources == (TaskSource(text="One.", seat=2),)
    assert second.private


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "Invalid JSON"),
        ("[]", "the task must be a table with id and task, not []"),
        ({**GOOD, "id": ""}, "id"),
        ({"id": "b"}, "the task has no 'task'"),
        ({**GOOD, "id": "b", "answr": 1}, "answr"),
        ({**GOOD, "id": "b", "kind": "word"}, "kind"),
        ({**GOOD, "id": "b", "answer": "two"}, "is a number, not 'two'"),
        ({**GOOD, "id": "b", "kind": "magnitude", "answer": 0}, "above 0"),
        ({**GOOD, "id": "b", "kind": "exact", "tolerance": 1}, "tolerance"),
        ({**GOOD, "id": "b", "answer_pattern": "("}, "not a regular expression"),
        ({**GOOD, "id": "b", "sources": [{"text": "x", "seat": 0}]}, "'seat' of source 1 must be at least 1, not 0"),
        *(
            ({**GOOD, "id": "b", "answer": answer}, f"is a number, not {answer!r}: write one in digits")
            for answer in ("1/0", "50%", "3.5 million", "10^6", "12,00,000", "1e400", "5 or 6", "")
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
        (GOOD, "the id 'a' is already used in line 1"),
        ('{"id": "b", "task": "?", "answer": 1, "kind": "number", "answer": 2}', "'answer' is given twice"),
        ('{"id": "b", "task": "?", "sources": [{"text": "x", "text": "y"}]}', "'text' is given twice"),
        ({**GOOD, "id": "  "}, "'id' of the task: is blank"),
        ({**GOOD, "id": "b\x1b[2J"}, "control character"),
        ({**GOOD, "id": "b\nc"}, "control character"),
    ],
)
def test_invalid_task_error_names_file_and_line(tmp_path: Path, line: object, expected: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "", line)
    with pytest.raises(SettingsError) as error:
        load_tasks(path)
    assert expected in str(error.value)
    assert f"{path}, line 3" in str(error.value)


def test_task_without_an_id_is_named_after_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"task": "One?"}, "", {"task": "Two?"}, {"id": "own", "task": "Three?"})
    assert [task.id for task in load_tasks(path)] == ["line-1", "line-3", "own"]


def test_list_of_tasks_is_read_with_the_lines_of_its_entries(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([GOOD, {"task": "Two?"}], indent=1))
    assert [task.id for task in load_tasks(path)] == ["a", "line-8"]
    path.write_text('[\n{"task": "One?"},\n{"task": "Two?", "answr": 1}\n]')
    with pytest.raises(SettingsError, match=r"answr.*") as error:
        load_tasks(path)
    assert f"{path}, line 3" in str(error.value)
    path.write_text('[\n{"task": "One?"},\n{"task": Two}\n]')
    with pytest.raises(SettingsError, match="Invalid JSON") as error:
        load_tasks(path)
    assert f"{path}, line 3" in str(error.value)


@pytest.mark.parametrize(("ending", "separator"), [("csv", ","), ("tsv", "\t"), ("CSV", ",")])
def test_table_is_read_with_its_first_row_as_names(tmp_path: Path, ending: str, separator: str) -> None:
    path = tmp_path / f"t.{ending}"
    rows = [
        ["Task", "answer", "kind", "tolerance", "answer_pattern"],
        ['"How many\ndays?"', "366", "number", "0.5", "number"],
        [""],
        ['"Yes, or ""no""?"'],
    ]
    path.write_text("\r\n".join(map(separator.join, rows)))
    first, second = load_tasks(path)
    assert (first.id, first.task, first.answer, first.tolerance) == ("line-2", "How many\ndays?", "366", 0.5)
    assert (second.id, second.task, second.answer) == ("line-5", 'Yes, or "no"?', None)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("question,answer\nWhy?,1\n", 1, "one of them 'task', not question, answer"),
        ("task,task\nWhy?,1\n", 1, "each once"),
        ("", 1, "not nothing"),
        ("task,answer\nWhy, really?,1\n", 2, "the row has 3 cells"),
        ("task,answr\nWhy?,1\n", 2, "answr"),
        ("task,kind\nWhy?,exact\nHow?,word\n", 3, "kind"),
        ('task,answer\nWhy?,"1" 2\n', 2, "cannot be read"),
    ],
)
def test_invalid_table_error_names_file_and_line(tmp_path: Path, text: str, line: int, expected: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_tasks(path)
    assert expected in str(error.value)
    assert f"{path}, line {line}" in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("number", "40 and 2.\nAnswer: 42", "42"),
        ("number", "Answer: 14 trains (6 + 8)", "14"),
        ("number", "There are many.", None),
        ("yes/no", "Answer: Yes, because it is so.", "Yes"),
        ("yes/no", "Neither yes nor no.", None),
        ("choice:4", "It is a close call.\nAnswer: C", "C"),
        ("choice:4", "Answer: A or B", None),
        ("choice:4", "Answer: E", None),
        ("choice:4", "Answer: none of these", "none of these"),
        ("choice:5", "**Answer:** (E)", "E"),
    ],
)
def test_named_pattern_finds_the_answer(pattern: str, text: str, expected: str | None) -> None:
    assert extract(pattern, text) == expected


@pytest.mark.parametrize("pattern", ["choice:1", "choice:0", "choice:27", "choice:9999"])
def test_named_pattern_with_a_wrong_number_of_options_is_refused(pattern: str) -> None:
    with pytest.raises(SettingsError, match="a number of options from 2 to 26"):
        Vote(answer_pattern=pattern)


@pytest.mark.parametrize("answer", ["9" * 4400, int("9" * 4000), "." * 4400])
@pytest.mark.parametrize("kind", ["number", "exact"])
def test_invalid_task_error_shortens_a_long_answer(tmp_path: Path, answer: object, kind: str) -> None:
    path = write(tmp_path / "t.jsonl", {**GOOD, "answer": answer, "kind": kind, "answer_pattern": "3|4"})
    with pytest.raises(SettingsError) as error:
        load_tasks(path)
    assert len(str(error.value)) < len(str(path)) + 400


def test_task_with_a_very_long_integer_is_refused(tmp_path: Path) -> None:
    line = f'{{"id": "a", "task": "?", "kind": "number", "answer": {"9" * 4400}}}'
    with pytest.raises(SettingsError) as error:
        load_tasks(write(tmp_path / "t.jsonl", line))
    assert len(str(error.value)) < len(str(tmp_path)) + 400


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
def test_task_answer_that_its_pattern_can_give_is_accepted(answer: str, kind: str, pattern: str) -> None:
    task = Task(id="x", task="?", answer=answer, kind=kind, answer_pattern=pattern)  # type: ignore[arg-type]
    assert task.answer == answer


def test_files_without_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="starter"):
        load_tasks(tmp_path / "none.jsonl")
    with pytest.raises(SettingsError, match="contains no task"):
        load_tasks(write(tmp_path / "empty.jsonl", ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_tasks(tmp_path / "binary")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_tasks(tmp_path)


def test_select_tasks_by_split_or_id() -> None:
    assert {task.split for task in select_tasks(STARTER, only=["split"])} == {"split"}
    assert [t.id for t in select_tasks(STARTER, only=["estimation-02", "split"], limit=2)] == [
        "estimation-02",
        "split-01",
    ]
    assert select_tasks(STARTER) == STARTER
    with pytest.raises(UnknownName, match="Splits: arithmetic, estimation, logic, split"):
        select_tasks(STARTER, only=["geometry"])
    with pytest.raises(SettingsError, match="--limit"):
        select_tasks(STARTER, limit=0)


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


def first_of_five() -> str:
    """Amir before Bea, Bea directly before Carl, Dina last, Elif not first."""
    (first,) = {
        order[0]
        for order in permutations(["Amir", "Bea", "Carl", "Dina", "Elif"])
        if order.index("Amir") < order.index("Bea") == order.index("Carl") - 1
        and order[4] == "Dina"
        and order[0] != "Elif"
    }
    return first


def only_one_true() -> str:
    kai = {who: who == "Lena" for who in ("Kai", "Lena", "Mo")}
    (who,) = [who for who in kai if [kai[who], not kai[who], who != "Mo"].count(True) == 1]
    return who


def with_slack() -> str:
    """The task that can grow by a day while the project does not."""

    def project(longer: str) -> int:
        days = {task: n + (task == longer) for task, n in zip("PQRST", (3, 4, 7, 2, 1), strict=True)}
        return max(max(days["P"] + days["Q"], days["R"]) + days["S"], days["R"] + days["T"])

    (task,) = [task for task in "PQRT" if project(task) == project("")]
    return task


def mislabelled() -> str:
    """Contents of the boxes labelled nuts, bolts and mixed: none as labelled, and a bolt in the third."""
    labels = ("nuts", "bolts", "mixed")
    (inside,) = {
        order[0]
        for order in permutations(labels)
        if all(a != b for a, b in zip(order, labels, strict=True)) and order[2] != "nuts"
    }
    return inside


def cheapest(costs: dict[str, float]) -> str:
    return min(costs, key=costs.__getitem__)


CHOICES: dict[str, str] = {
    "logic-01": first_of_five(),
    "logic-02": only_one_true(),
    "logic-03": cheapest({"van": 9 * 60 + 40 + 130 + 20, "rail": 9 * 60 + 55 + 95 + 25, "bicycle": 9 * 60 + 30 + 148}),
    "logic-04": with_slack(),
    # from "has a key" follows "has passed": nothing about the key of one who has passed
    "logic-05": "".join({"Ugo", "Vera", "Wim"} - {"Vera"} - {"Wim"}),
    "logic-06": mislabelled(),
    "logic-07": "".join({"Monday", "Wednesday", "Friday"} - {"Wednesday"} & {"Tuesday", "Wednesday", "Friday"}),
    "logic-08": cheapest(
        {name: abs(18 / (18 + 38) - n) for name, n in {"tenth": 0.1, "third": 1 / 3, "half": 0.5, "most": 0.9}.items()}
    ),
    "logic-09": cheapest({"North": -90 / 3000, "South": -24 / 600, "West": -63 / 1800, "East": -11 / 500}),
    "logic-10": ["A", *sorted("BCDE", key=lambda job: job not in "CD")][2],
    "split-10": cheapest({"Alva": 200 * 4, "Brandt": 200 * 3 + 150, "Corso": 200 * 4 + 20}),
    "split-11": "".join({"press", "oven", "saw"} - {"oven"} - {"saw"}),
    "split-12": "".join({"Nils", "Oda", "Pia"} - {"Nils", "Pia"}),
    "split-13": "".join({"tunnel", "pass", "valley"} - {"tunnel" if 4.1 > 3.9 else ""} - {"pass" if 26 > 20 else ""}),
    # red and green are alike, so that one alone can only be the third
    "split-14": "".join({"red", "blue", "green"} - {"red", "green"}),
    "split-15": cheapest({"wells": 90_000 / 600, "buses": 240_000 / 1_200, "lamps": 60_000 / 300}),
    # 16:45 is 14:45 on the server
    "split-16": cheapest(
        {name: 14 * 60 + 45 - at for name, at in {"Sanna": 13 * 60 + 50, "Tariq": 14 * 60 + 20}.items()}
    ),
}


def test_starter_set_has_four_splits_of_tasks() -> None:
    splits = [task.split for task in STARTER]
    assert {split: splits.count(split) for split in splits} == {
        "arithmetic": 12,
        "logic": 10,
        "estimation": 10,
        "split": 16,
    }
    assert {task.id for task in STARTER if task.kind == "choice"} == set(CHOICES)


@pytest.mark.parametrize("task", STARTER, ids=lambda task: task.id)
def test_starter_answer_follows_from_its_formula_or_facts(task: Task) -> None:
    if task.kind == "choice":
        assert task.answer == CHOICES[task.id]
    else:
        assert computed(ast.parse(task.formula, mode="eval")) == pytest.approx(float(task.answer or 0))


@pytest.mark.parametrize("task", select_tasks(STARTER, only=["split"]), ids=lambda task: task.id)
def test_starter_split_task_gives_no_seat_all_facts(task: Task) -> None:
    assert [source.seat for source in task.sources] == [1, 2, 3]
    assert "each agent may hold only some of them" in task.task


@pytest.mark.parametrize("task", STARTER, ids=lambda task: task.id)
def test_starter_task_accepts_its_answer_in_the_form_asked_for_only(task: Task) -> None:
    assert task.answer_pattern
    assert score(task, report(f"So it is.\n**Answer: {task.answer}**.")).correct
    assert score(task, report("I do not know.")) == Score(False, False)
    wrong = "Zed" if task.kind == "choice" else str(float(task.answer or 0) * 4 + 1)
    assert not score(task, report(f"Answer: {wrong}")).correct


@pytest.mark.parametrize("task", select_tasks(STARTER, only=["estimation"]), ids=lambda task: task.id)
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
def test_estimate_in_any_notation_is_scored(task: Task, written: str) -> None:
    right = float(task.answer or 0)
    estimate = written.format(right, million=right / 1e6)
    for text in (
        f"60 or 70, then.\nAnswer: {estimate} m^2.",
        f"Answer: 1. No.\n**Answer:** {estimate} km2\n",
        estimate,
    ):
        assert score(task, report(text)).correct, text
    assert not score(task, report(f"Answer: -{right:.0f}")).correct
    assert score(task, report("It was 5.\nIt is 6.")) == Score(False, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is a close call. Answer: C", "C"),
        ("A close call.\n**Answer:** C.", "C"),
        ("C", "C"),
        ("A or D? I cannot say.", None),
        ("Call it what you like", None),
    ],
)
def test_choice_pattern_extracts_the_choice(text: str, expected: str | None) -> None:
    assert extract("choice:4", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_number_pattern_extracts_the_number(text: str, expected: str) -> None:
    assert extract("number", text) == expected


def test_starter_numbers_with_another_sign_or_prefix_are_wrong() -> None:
    for task in STARTER:
        if task.kind == "number":
            assert not score(task, report(f"Answer: -{task.answer}")).correct
            assert not score(task, report(f"Answer: 1,{int(task.answer or 0):03}")).correct
