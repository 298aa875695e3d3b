"""Reading answers: what meets a reference and what does not, with the patterns that people write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.evaluation import Task
from consilience.evaluation.matching import normalize
from consilience.evaluation.numbers import last_number
from consilience.evaluation.scoring import score
from consilience.protocols._common.answers import extract, find_declared

NUMBER_PATTERN = r"Answer:(?:.*=)?[^\d−-]*([−-]?[$€£]?[\d,./]*\d)|^[−-]?\D?[\d,./]*\d\w*$"
CHOICE_PATTERN = r"Answer:\W*(?!(?-i:a) \w)([A-D])\b(?![\s*)\]]*(?:or|and|[/,&])\W*(?-i:[A-D])\b)|^[A-D]$"
"""Those that docs/compare.md recommends."""


def judged(kind: str, reference: str, answer: str, pattern: str = "") -> bool | None:
    task = Task(id="x", task="?", kind=kind, answer=reference, answer_pattern=pattern)  # type: ignore[arg-type]
    report: Any = SimpleNamespace(answer=answer)
    return score(task, report).correct


# --- numbers

NUMBERS = [
    # digits that are joined are one thing
    ("1", "1/2", False),
    ("2", "1/2", False),
    ("0.5", "1/2", True),
    ("10", "10:40", False),
    ("40", "10:40", False),
    ("10", "10h40", False),
    ("2024", "2024-05-01", False),
    ("1", "2024-05-01", False),
    ("5", "2024-05-01", False),
    ("2024", "1/5/2024", False),
    ("2024", "01.05.2024", False),
    ("1920", "1920x1080", False),
    ("3", "3-5", False),
    ("5", "3-5", False),
    ("5", "3–5", False),
    ("3", "3~5", False),
    ("5", "$5-$10", False),
    ("10", "$5-$10", False),
    ("5", "5%-10%", False),
    ("2", "2^10", False),
    ("10", "2^10", False),
    ("5", "5²", False),
    ("2", "2*5", False),
    ("5", "2+5", False),
    ("1", "1.2.3", False),
    ("1.2", "1.2.3", False),
    ("3", "1.2.3", False),
    ("192.168", "192.168.1.1", False),
    ("3", "1,2,3", False),
    ("12", "12,00,000", False),
    ("555", "555-1234", False),
    ("5", "5'11", False),
    # signs
    ("5", "minus 5", False),
    ("-5", "minus 5", True),
    ("-5", "Minus 5 degrees", True),
    ("5", "negative 5", False),
    ("-5", "negative 5", True),
    ("-5", "-5", True),
    ("-5", "−5", True),
    ("-5", "–5", True),
    ("-5", "\u20115", True),
    ("5", "−5", False),
    ("−5", "-5", True),
    ("5", "+5", True),
    ("-42", "-$42", True),
    ("42", "-US$42", False),
    ("-42", "-EUR 42", True),
    ("-0.5", r"-\frac{1}{2}", True),
    # thousands and decimals
    ("1234.5", "1,234.5", True),
    ("1234.5", "1.234,5", True),
    ("1234.5", "1 234,5", True),
    ("1234.5", "1\u202f234,5", True),
    ("1234567", "1,234,567", True),
    ("1234567", "1'234'567", True),
    ("1234", "1,234", True),
    ("234", "1,234", False),
    ("1", "1,234", False),
    ("1.5", "1,5", True),
    ("5", "1,5", False),
    ("3.14", "3,14", True),
    ("3.1416", "3,1416", True),
    ("0.125", "0,125", True),
    ("125", "0,125", False),
    ("2345.678", "2345,678", True),
    ("1,5", "1.5", True),
    (".5", "0.5", True),
    # fractions
    ("1/2", "0.5", True),
    ("1/2", "1/2", True),
    ("2/3", r"\frac{2}{3}", True),
    ("0.5", "½", True),
    ("2", r"\frac{2}{3}", False),
    ("3", r"\frac{2}{3}", False),
    ("1", "1½", False),
    ("3", r"3\frac{1}{2}", False),
    ("536", r"31{,}536", False),
    ("31536", r"31{,}536", True),
    ("10", r"10^{7}", False),
    ("3", r"3 \times 10^7", False),
    ("1.5", "1 1/2", True),
    ("1.5", "1½", True),
    ("3.5", r"3\frac{1}{2}", True),
    # scales, units, currency, percent
    ("1000", "1e3", True),
    ("1", "1e3", False),
    ("3.15e7", "3.15 × 10^7", True),
    ("1e-3", "10⁻³", True),
    ("5", "5k", False),
    ("5000", "5k", True),
    ("3", "3 hundred", False),
    ("31.5", "31.5 million", False),
    ("31500000", "31.5 million", True),
    ("3.5", "$3.5bn", False),
    ("3500000000", "$3.5bn", True),
    ("5000000", "$5M", True),
    ("5", "5 m", True),
    ("42", "42km", True),
    ("7", "7 km2", True),
    ("42", "€42", True),
    ("42", "USD 42", True),
    ("42", r"\$42", True),
    ("42", "42 €", True),
    ("50", "50%", True),
    ("0.5", "50%", False),
    ("10", "10-fold", True),
    ("2", "2nd", True),
    # markup
    ("42", "**42**", True),
    ("42", "*42*", True),
    ("42", "`42`", True),
    ("42", r"\boxed{42}", True),
    ("42", r"$\boxed{42}$", True),
    ("42", r"\(\boxed{\text{42}}\)", True),
    ("-42", r"\boxed{-42}", True),
    ("42", r"\boxed{-42}", False),
    ("42", r"\[ 42 \]", True),
    ("42", "(42)", True),
    ("42", "42.", True),
]


@pytest.mark.parametrize(("reference", "answer", "right"), NUMBERS)
def test_number_matches_its_reference_only_completely(reference: str, answer: str, right: bool) -> None:
    assert judged("number", reference, answer) is right
    text = f"I think so.\nAnswer: {answer}"
    matches = not answer.startswith(
        ("-EUR", r"-\frac")
    )  # the pattern takes a sign, and one of $, € and £, before the digits
    assert judged("number", reference, text, NUMBER_PATTERN) is (right and matches)


@pytest.mark.parametrize(("reference", "answer", "right"), [row for row in NUMBERS if not row[2]])
@pytest.mark.parametrize("pattern", [r"(\d+)", r"(\d+)\D*$", r"Answer:.*?(\d[\d.,]*)", r"\d+"])
@pytest.mark.parametrize("kind", ["number", "exact"])
def test_number_found_in_part_by_a_pattern_is_wrong(
    kind: str, pattern: str, reference: str, answer: str, right: bool
) -> None:
    pattern = pattern.replace(r"\d+", r"[\d./]*\d")  # so that it may find any of the references
    assert judged(kind, reference, f"Answer: {answer}", pattern) is right


OLDER_PATTERN = r"Answer:[^\d−-]*([−-]?[\d,.]*\d)|^[−-]?\D?[\d,.]*\d$"
"""The one that task files of earlier versions have."""


@pytest.mark.parametrize("pattern", [NUMBER_PATTERN, OLDER_PATTERN])
@pytest.mark.parametrize(
    ("answer", "right"),
    [
        # a unit or a scale that is joined, and other ways to write one number
        ("Answer: 42km", "42"),
        ("Answer: 3600s", "3600"),
        ("Answer: 60min", "60"),
        ("Answer: 60m²", "60"),
        ("Answer: 42k", "42000"),
        ("Answer: 42e3", "42000"),
        ("Answer: $1M", "1000000"),
        ("Answer: ¾", "0.75"),
        ("Answer: 2½", "2.5"),
        ("Answer: - 3", "-3"),
        ("Answer: x = - 3", "-3"),
        ("### Answer\n366", "366"),
        ("## Final Answer\n\n366", "366"),
        ("<answer>366</answer>", "366"),
        ("Answer: 42 dozen", "504"),
        # the result, not what it is made of
        ("Answer: 6 + 8 = 14", "14"),
        ("Answer: 4 × 15 = 60 minutes", "60"),
        ("Answer: 42 x 3 = 126", "126"),
        (r"Answer: $12 \times 5 = 60$", "60"),
        ("Answer: 22/7 ≈ 3.14", "3.14"),
        ("Answer: CO2 rises by 3", "3"),
        ("Answer: 14 trains (6 + 8)", "14"),
        ("Answer: 366 days. In 2024 it was so.", "366"),
        ("Answer: 42\nThat is 17 more.", "42"),
    ],
)
def test_answer_line_with_other_numbers_gives_the_answer(answer: str, right: str, pattern: str) -> None:
    assert judged("number", right, answer, pattern) is True
    assert judged("number", "777", answer, pattern) is False


@pytest.mark.parametrize("pattern", [NUMBER_PATTERN, OLDER_PATTERN, r"Answer:(.*\d.*)", r"Answer: \D*(\d+)"])
@pytest.mark.parametrize(
    "answer", ["between 42 and 50", "42 or 50", "42 to 50", "not 42 but 50", "50 and 42", "42 + 50"]
)
def test_several_numbers_without_a_result_are_not_an_answer(answer: str, pattern: str) -> None:
    for reference in ("42", "50", "92"):
        task = Task(id="x", task="?", kind="number", answer=reference, answer_pattern=pattern)
        report: Any = SimpleNamespace(answer=f"Answer: {answer}")
        assert score(task, report) == (False, False, None, None)


def test_number_in_the_pattern_itself_is_not_a_second_answer() -> None:
    assert judged("number", "7", "Answer: 7 of 10", r"Answer: (\d+) of 10")


@pytest.mark.parametrize("answer", ["42km", "-42km", "5k", "$42"])
def test_number_pattern_extracts_a_number_with_its_unit(answer: str) -> None:
    assert extract(NUMBER_PATTERN, answer) == answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("<answer>B</answer>", "B"),
        ("It is clear. <answer>B</answer>", "B"),
        ('Answer: "B"', "B"),
        ("Answer: “B”", "B"),
        ("Answer: A because it is near", "A"),
        ("Answer: a", "a"),
        ("Answer: B, and I am sure", "B"),
        ("Answer: B, a city", "B"),
        ("Answer: A or B", None),
        ("Answer: A and C", None),
        ("Answer: A/B", None),
        ("Answer: A, C", None),
        ("Answer: (A) or (B)", None),
        ("Answer: **A** or **B**", None),
        ("Answer: a good question, but B", None),
    ],
)
def test_choice_pattern_extracts_one_choice_but_not_two(answer: str, expected: str | None) -> None:
    assert extract(CHOICE_PATTERN, answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("We could KEEP it or REPLACE it; both fail.\nAnswer: repair it", None),
        ("KEEP it? REPLACE it? Answer: neither", None),
        ("Answer: neither KEEP nor REPLACE", None),
        ("KEEP it or REPLACE it: both fail.\nAnswer: None of these.", "None of these"),
        ("Answer: KEEP\n\nFinal answer: neither of the two", None),
        ("Answer: not KEEP but REPLACE", "REPLACE"),
        ("Answer: KEEP, not REPLACE", "KEEP"),
        ("REPLACE is worse.\nAnswer: _KEEP_", "KEEP"),
        ("REPLACE is worse.\nAnswer:\n\n**KEEP**", "KEEP"),
        ("I would REPLACE nothing and KEEP it.", None),
        ("**Answer:**\n\nKEEP — REPLACE is too dear.", "KEEP"),
        ("## Final Answer\n\nKEEP", "KEEP"),
        ("REPLACE is worse.\n\n## Answer\n\nKEEP, since REPLACE is dear.", "KEEP"),
        ("The choice is \\boxed{KEEP}. REPLACE is worse.", "KEEP"),
        ("Answer: don't KEEP", None),
        ("Answer: KEEP or REPLACE", None),
        ("Answer: KEEP/REPLACE", None),
        ("Answer: KEEP, REPLACE or none of these", None),
        ("Answer: KEEP, REPLACE is too dear", "KEEP"),
    ],
)
def test_choice_that_a_text_rejects_is_not_its_answer(answer: str, expected: str | None) -> None:
    assert extract("KEEP|REPLACE", answer) == expected


def test_ballot_that_names_choices_only_to_reject_them_has_no_position() -> None:
    assert find_declared("KEEP|REPLACE", "neither KEEP nor REPLACE") is None
    assert find_declared("KEEP|REPLACE", "KEEP or REPLACE") is None
    assert find_declared("KEEP|REPLACE", "not the KEEP option, REPLACE").words == "REPLACE"


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("10 minus 5", 5),
        ("10 minus 5 = 5", 5),
        ("8-3=5", 5),
        ("10 - 5", 5),
        ("42 (I am 10/10 sure)", 42),
        ("42 of them since 9/11", 42),
        ("42, on 2024-05-01 at 10:40", 42),
        ("1, 2 and 3", 3),
        ("May 1, 2024", 2024),
        ("between 3 and 5", 5),
        ("a non-negative 5", 5),
        ("minus five", None),
        ("v1.2", None),
        ("x^2", None),
        ("2^n", None),
    ],
)
def test_last_number_of_a_text_is_returned(answer: str, value: float | None) -> None:
    assert last_number(answer) == value


@given(st.integers(-(10**9), 10**9), st.sampled_from(["{:d}", "{:,d}"]))
def test_last_number_reads_an_integer_in_any_notation(number: int, form: str) -> None:
    assert last_number(f"It is {form.format(number)}.") == number


@given(st.integers(0, 10**6), st.sampled_from(["/0", ":40", "-05", "^10", ".2.3", ",00,0", "x7", "~9", "+1"]))
def test_last_number_ignores_a_number_joined_to_other_digits(number: int, joined: str) -> None:
    assert last_number(f"{number}{joined}") is None
    assert judged("number", str(number), f"Answer: {number}{joined}", r"(\d+)") is False


def test_answer_at_exactly_the_tolerance_is_right() -> None:
    for n in range(1, 100):
        task = Task(id="x", task="?", kind="magnitude", answer=str(n / 10), tolerance=1)
        for answer in (n, n / 100):
            report: Any = SimpleNamespace(answer=str(answer))
            assert score(task, report).correct, (n, answer)


# --- choices

BARE = [
    "B",
    "b",
    "(B)",
    "[B]",
    "B.",
    "B)",
    "Option B",
    "option (B)",
    "Choice B",
    "**B**",
    "*B*",
    "`B`",
    "_B_",
    "**B.**",
    "**(B)**",
]
BOXED = [
    r"\boxed{B}",
    r"$\boxed{B}$",
    r"\boxed{\text{B}}",
    r"\(\boxed{B}\)",
    r"\[ \boxed{\mathbf{B}} \]",
    r"\text{B}",
    "$B$",
]
SENTENCES = [
    "The answer is B",
    "The answer is B.",
    "The correct answer is: (B)",
    "My final answer is **B**.",
    "Answer: B",
    "Answer is option B",
]


@pytest.mark.parametrize("answer", [*BARE, *BOXED, *SENTENCES])
def test_choice_label_in_any_markup_is_read(answer: str) -> None:
    for reference, right in (("B", True), ("B. Paris", True), ("A", False), ("A. London", False)):
        assert judged("choice", reference, answer) is right
    for reference, right in (("B", True), ("A", False)):
        assert judged("choice", reference, answer, CHOICE_PATTERN) is right
        assert judged("exact", reference, answer, CHOICE_PATTERN) is right


@pytest.mark.parametrize("answer", [*BARE, *BOXED])
def test_choice_label_after_answer_in_any_markup_is_read(answer: str) -> None:
    for text in (f"Answer: {answer}", f"A close call, but no.\n**Answer:** {answer}"):
        assert judged("choice", "B", text, CHOICE_PATTERN) is True
        assert judged("choice", "A", text, CHOICE_PATTERN) is False


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        ("B. Paris", "A. Paris", False),
        ("B) Paris", "(A) Paris", False),
        ("B. Paris", "(B) Paris", True),
        ("B. Paris", "[B] Paris", True),
        ("B. Paris", "**B.** Paris", True),
        ("B. Paris", "B: Paris", True),
        ("B. Paris", "B - Paris", True),
        ("B. Paris", "The answer is B. Paris", True),
        ("B. Paris", "Paris", True),
        ("B. Paris", "London", False),
        ("Paris", "B. Paris", True),
        ("Paris", "A. Paris", True),
        ("2. Paris", "3. Paris", False),
        ("42", "B. 42", True),
        ("B", "A. B", True),
        ("X", "X-ray", False),
        ("True", r"\boxed{\text{True}}", True),
        ("Answer", "Answer", True),
        ("C", "C++", False),
        ("B", "B or C", False),
        ("B", "not B", False),
    ],
)
def test_choice_with_labels_on_both_sides_is_compared_by_label(reference: str, answer: str, right: bool) -> None:
    assert judged("choice", reference, answer) is right


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A or D? I cannot say.", None),
        ("Call it what you like", None),
        ("It is (A) or (B)", None),
        ("The answer is not B", None),
        ("The answer is 2 * 5", None),
        ("The answer is Bern", None),
    ],
)
def test_choice_pattern_extracts_nothing_from_text_without_an_answer(text: str, expected: str | None) -> None:
    assert extract(CHOICE_PATTERN, text) == expected


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (r"\boxed{\text{Paris}}", "paris"),
        (r"\( \text{Paris} \)", "paris"),
        ("**The** *Cat*", "cat"),
        ("snake_case", "snake_case"),
        ("2 * 3", "2 * 3"),
        ("A*", "a"),
        ("$5 and $6", "$5 and $6"),
    ],
)
def test_normalize_removes_markup(inputs: str, words: str) -> None:
    assert normalize(inputs) == words


# --- which of several matches


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("First I took 40, but two were forgotten. So there are 42.", r"(\d+)", None),
        ("First I took 40, but two were forgotten. So there are 42.", r"there are (\d+)", "42"),
        ("First I took 40, but two were forgotten.\n\n**42**", r"(\d+)", "42"),
        ("The answer is 42, not 40.", r"\d+", "42"),
        (r"It is 40 and 2. \boxed{42} of these are new.", r"\d+", "42"),
        ("Answer: 40. No, that forgets two.\nAnswer: 42", NUMBER_PATTERN, "42"),
        ("Six and eight, 6 + 8.\nAnswer: 14 trains (6 + 8)", r"(\d+)", "14"),
        ("**Answer:** 42\n\nOf these 17 are new.", r"(\d+)", "42"),
        ("A possible answer: 12 of them. With the rest it is 14.", r"(\d+)", None),
        ("A has merits. B is cheaper. I choose C", "A|B|C|D", None),
        ("A has merits. B is cheaper.\n\nC", "A|B|C|D", "C"),
        ("The final answer: B, since A is dear", "A|B|C|D", "B"),
        ("Answer: A\nOn second thoughts:\nAnswer: B", CHOICE_PATTERN, "B"),
        ("Answer: B\nAnswer: A or B", CHOICE_PATTERN, "B"),
        ("There is no doubt about it: yes", "yes|no", None),
        ("Answer: yes\nThere is no other way.", "yes|no", "yes"),
    ],
)
def test_extract_finds_only_what_a_text_says_is_its_answer(text: str, pattern: str, expected: str | None) -> None:
    assert extract(pattern, text) == expected


def test_number_in_the_last_line_is_judged() -> None:
    text = "40 + 3 = 43 at first sight, but one is counted twice.\n42"
    assert judged("number", "42", text, r"\d+") is True
    assert judged("number", "40", text, r"\d+") is False


def test_find_declared_reads_the_answer_at_the_start_of_a_field() -> None:
    assert find_declared("yes|no", "Yes, there is no other way").words == "Yes"
    assert find_declared("A|B", "B rather than A").words == "B"
    assert find_declared("A|B", "(B)").words == "B"
    assert find_declared(CHOICE_PATTERN, "perhaps") is None
    assert find_declared(r"Answer: (\d+)", "42").words == "42"
    assert find_declared("number", "about 42").words == "42"
