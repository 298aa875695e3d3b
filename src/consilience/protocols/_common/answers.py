"""Extractable answers: named patterns, patterns in words for a model, and the answer that a pattern finds in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Annotated, NamedTuple
from unicodedata import normalize

import regex
from pydantic import AfterValidator, Field

from consilience.engine.searches import MAX_SEARCH_SECONDS, matches_of

if TYPE_CHECKING:
    from consilience.engine.session import Session

MAX_REPETITIONS = 100_000
"""Max product of the least counts of a pattern, such as `{3}`: a compiled pattern holds each repetition."""


NONE_OF_THESE = "none of these"
"""The answer, beside the words of a choice, that none of them is right."""


class NamedPattern(NamedTuple):
    """A pattern with a name."""

    expression: str
    """The regular expression; a list of words for a choice of words."""
    form: str = ""
    """How a model is shown it; empty for a choice of words, which shows itself."""


_NUMBER = NamedPattern(
    r"Answer:(?:.*=)?[^\d−-]*([−-]?[$€£]?[\d,./]*\d)|^[−-]?\D?[\d,./]*\d\w*$",
    "NUMBER",
)
_CHOICE_NAME = re.compile(r"choice:(\d+)")
MAX_OPTIONS = 26


@lru_cache(maxsize=64)
def named_pattern(name: str) -> NamedPattern | None:
    """Return the pattern `number`, `yes/no`, or `choice:N` of the first N letters; None for another text.

    Raises `ValueError` for a number of options that has no letters.
    """
    if name == "number":
        return _NUMBER
    if name == "yes/no":
        return NamedPattern("yes|no")
    if not (match := _CHOICE_NAME.fullmatch(name)):
        return None
    if len(match[1]) > 2 or not 2 <= int(match[1]) <= MAX_OPTIONS:
        raise ValueError(f"{name!r}: give a number of options from 2 to {MAX_OPTIONS}")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: int(match[1])]
    option = f"[A-{letters[-1]}]"
    return NamedPattern(
        rf"Answer:\W*(?!(?-i:a) \w)({NONE_OF_THESE}|{option})\b(?![\s*)\]]*(?:or|and|[/,&])\W*(?-i:{option})\b)|^{option}$",
        " or ".join(letters),
    )


def expression_of(pattern: str) -> str:
    """Return the regular expression of a pattern, which may be a name."""
    named = named_pattern(pattern)
    return named.expression if named else pattern


def _checked(pattern: str) -> str:
    """Return the pattern. Raises `ValueError` if it is neither a name nor a regular expression."""
    if named_pattern(pattern):
        return pattern
    try:
        re.compile(pattern)  # first by itself, so that the error names the position in what the user wrote
        repetitions = prod(max(int(count), 1) for count in re.findall(r"\{(\d+)", pattern))
        if repetitions <= MAX_REPETITIONS:
            _compiled(pattern)
    except (re.error, regex.error, OverflowError) as error:  # OverflowError: a count of more than 4 bytes
        raise ValueError(f"not a regular expression: {error}") from None
    if repetitions > MAX_REPETITIONS:
        raise ValueError(f"its counts multiply to more than {MAX_REPETITIONS:,}: write smaller ones")
    return pattern


AnswerPattern = Annotated[
    str,
    Field(max_length=500, description="an extractable answer: number, yes/no, choice:4, or a regular expression"),
    AfterValidator(_checked),
]
BallotPattern = Annotated[
    AnswerPattern,
    Field(
        description="an extractable answer: number, yes/no, choice:4, or a regular expression; leaves then cast ballots"
    ),
]


def is_choice(pattern: str) -> bool:
    """Return whether a pattern is only a list of words to choose from."""
    return bool(re.fullmatch(r"[\w .-]+(\|[\w .-]+)*", expression_of(pattern)))


def choices_of(pattern: str) -> tuple[str, ...]:
    """Return what a pattern lets an answer be, if that is a choice: its words or letters, and `NONE_OF_THESE`. Else ()."""
    if match := _CHOICE_NAME.fullmatch(pattern):
        return (*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: int(match[1])], NONE_OF_THESE)
    return (*expression_of(pattern).split("|"), NONE_OF_THESE) if is_choice(pattern) else ()


def describe_pattern(pattern: str) -> str:
    """Return a pattern as a model is shown it: its form if it has a name, its alternatives if it is a list of words, else what it
    is. Empty for no pattern."""
    named = named_pattern(pattern)
    if named and named.form:
        return named.form
    if is_choice(pattern):
        return " or ".join(expression_of(pattern).split("|"))
    return f"{pattern} (a regular expression)" if pattern else ""


_FLAGS = re.compile(r"\(\?([aiLmsux]+)\)")
"""Flags of a whole expression, which are allowed at its beginning only."""


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> regex.Pattern[str]:
    choice, flags, pattern = is_choice(pattern), "", expression_of(pattern)
    while match := _FLAGS.match(pattern):
        flags, pattern = flags + match[1], pattern[match.end() :]
    end = "\n" if "x" in flags else ""  # ends a comment
    boundary = r"(?:(?!\w)|(?<=\d)(?!\d))"  # in 42km the number counts as a word
    if choice:
        pattern, boundary = "|".join(map(regex.escape, (NONE_OF_THESE, *pattern.split("|")))), r"(?!\w)"
    return regex.compile(rf"{f'(?{flags})' if flags else ''}(?<!\w)(?:{pattern}{end}){boundary}", regex.IGNORECASE)


MAX_NESTED_COMMANDS = 4
"""TeX commands within each other, as in `\\boxed{\\text{B}}`."""

_BRACED = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_BOX = re.compile(rf"\\(?:boxed|fbox|text(?:bf|it|rm|tt|sf)?|math(?:bf|it|rm|tt|sf)|operatorname)\s*{_BRACED}")
_MATH = re.compile(r"\\[()\[\]]|\$\$?([^$\d\s][^$]*?|\d[^$\s]*?)\$\$?")
_EMPHASIS = re.compile(r"(?<!\w)[*_`]+(?=\S)|(?<=\S)[*_`]+(?!\w)")

_BRACKETED = re.compile(r"(?<!\w)[(\[\"'“‘]\s*(\w{1,2})\s*[)\]\"'”’](?!\w)")
_OPTION = re.compile(r"\b(?:option|choice)[ :#]+(?=\w)", re.IGNORECASE)
_ANSWER_IS = re.compile(r"\banswer\s+is\b[\s:]*|<answer>\s*|^#* *(?:\w+ )?answer *\n\s*", re.IGNORECASE | re.MULTILINE)
_ANSWER_ENDS = re.compile(r"</answer>", re.IGNORECASE)
_SIGN_APART = re.compile(r"((?:[:=]|^) ?[−–-]) (?=[\d.])")
_VULGAR = re.compile(r"(\d?) ?([½⅓⅔¼¾])")
_FRONT, _BACK = " \t\n,;:!?\"'“”‘’([", " \t\n.,;:!?\"'“”‘’)]"


def without_markup(text: str) -> str:
    """Return `text` without TeX's boxes, text commands and mathematics delimiters and without Markdown's emphasis."""
    for _ in range(MAX_NESTED_COMMANDS):
        text = _BOX.sub(r"\1", text)
    return _EMPHASIS.sub("", _MATH.sub(lambda match: match[1] or "", text))


def _bare(text: str) -> str:
    """Remove markup, brackets around a label, `Option` before it and punctuation around the text. Write `answer is`, `<answer>` and
    a heading as `Answer:`, ½ in digits, and a minus sign next to its number."""
    plain = _OPTION.sub("", _BRACKETED.sub(r"\1", _ANSWER_ENDS.sub("", without_markup(text))))
    plain = _SIGN_APART.sub(r"\1", _ANSWER_IS.sub("Answer: ", plain))
    return _VULGAR.sub(_in_digits, plain).lstrip(_FRONT).rstrip(_BACK)


def _in_digits(fraction: re.Match[str]) -> str:
    return f"{fraction[1]} {normalize('NFKC', fraction[2]).replace('⁄', '/')}".lstrip()


class AnswerMatch(NamedTuple):
    """The answer in `text[start:end]`; `stop` is the end of the whole match."""

    text: str
    start: int
    end: int
    stop: int
    is_labelled: bool = False
    """Whether the whole match has words before or after the answer."""

    @property
    def words(self) -> str:
        """The answer as it is written there, with single spaces."""
        return " ".join(self.text[self.start : self.end].split())


_ANSWER_LABEL = re.compile(r"(?<!\w)(?:(?:the|my|final|correct)\s+){0,3}answer[^\w\n]*:", re.IGNORECASE)
_SENTENCE_END, _WORD = re.compile(r"[.!?:]"), re.compile(r"[^\W_]")
_DENIAL = re.compile(r"(?:\b(?:neither|nor|not|never|cannot)|n['’]t)\s+(?:(?:the|option)\s+)*\W?$", re.IGNORECASE)
"""Stands before a choice that a text denies, as in `neither A nor B`."""
_OFFER = re.compile(r"\W*?(?:,?\s*(?:and/)?or|(?<![,\s])\s*and|[/&])\W*", re.IGNORECASE)
"""Stands between choices that a text leaves open, as in `A or B`."""
_BOXED = re.compile(rf"\\boxed\s*{_BRACED}")
MAX_DENIAL_CHARS = 40


class _AnswerLine(NamedTuple):
    """`Answer: …` at the beginning of a line or after a sentence, in `text[start:end]`: to the end of the line or, without words
    there, of the next line that has some. What is stated begins at `stated`."""

    start: int
    stated: int
    end: int


def _answer_lines(text: str) -> list[_AnswerLine]:
    """Return the lines that state an answer. Marks before a label are read backwards: one expression takes cubic time."""
    lines: list[_AnswerLine] = []
    for label in _ANSWER_LABEL.finditer(text):
        start = label.start()
        if lines and start < lines[-1].end:
            continue
        while start and text[start - 1] != "\n" and not (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        marks = text[start : label.start()]
        sentence_end = _SENTENCE_END.search(marks)
        if (
            not start
            or text[start - 1] == "\n"
            or (sentence_end and any(map(str.isspace, marks[sentence_end.end() :])))
        ):
            first_word = _WORD.search(text, label.end())
            end = text.find("\n", first_word.start() if first_word else label.end())
            lines.append(_AnswerLine(start, label.end(), len(text) if end < 0 else end))
    return lines


def find(pattern: str, text: str, seconds: float = MAX_SEARCH_SECONDS) -> AnswerMatch | None:
    """Return where a text says what its answer is: after `Answer:`, in a box, below a heading, alone in its last line, or where an
    expression matches words around its group. Prose that only names an answer states none.

    The last such place counts, and after `Answer:` the first match, because what follows explains it. A choice that is denied or
    offered beside another is no answer.

    Raises `TimeoutError` if a search takes longer than `seconds`.
    """
    plain = _bare(_BOXED.sub(r"\n\nAnswer: \1\n\n", text))
    versions = (plain,) if is_choice(pattern) else (text, plain)
    return next((match for version in versions if (match := _stated(pattern, version, seconds))), None)


def _stated(pattern: str, text: str, seconds: float) -> AnswerMatch | None:
    choice, matches = is_choice(pattern), _matches(pattern, text, seconds)
    for line in reversed(_answer_lines(text)):
        named = [match for match in matches if line.start <= match.start < line.end and match.end > line.stated]
        if named or choice:
            return None if choice and _is_offered(named) else next(iter(named), None)
    last_line = " ".join(text.rstrip()[text.rstrip().rfind("\n") + 1 :].split())
    return next((match for match in matches[-1:] if match.is_labelled or match.words == last_line), None)


def _is_offered(named: Sequence[AnswerMatch]) -> bool:
    """Return whether the first of these choices is left open, as in `A or B` and `A, B or C`."""
    for match, following in pairwise(named):
        between = match.text[match.end : following.start]
        if match.words != following.words and _OFFER.fullmatch(between):
            return True
        if between.strip() != ",":
            break
    return False


def find_declared(pattern: str, field: str, seconds: float = MAX_SEARCH_SECONDS) -> AnswerMatch | None:
    """Return the answer of a field that asks for it alone: the first match, because what follows explains it. An expression with a
    label matches without it too. Raises as `find`."""
    if is_choice(pattern):
        return find(pattern, f"Answer: {field}", seconds)
    texts = (field, _bare(field), f"Answer: {field}" if "answer" in expression_of(pattern).lower() else "")
    return next((match for text in texts if text for match in _matches(pattern, text, seconds)), None)


def _matches(pattern: str, text: str, seconds: float) -> list[AnswerMatch]:
    """Return all matches in `text`. A choice that the text denies is no match."""
    choice, matches = is_choice(pattern), []
    for match in matches_of(_compiled(pattern), text, seconds):
        start, end = match.span(1 if match.re.groups and match.group(1) is not None else 0)
        denied = choice and _DENIAL.search(text[max(0, start - MAX_DENIAL_CHARS) : start])
        if text[start:end].strip() and not denied:
            matches.append(AnswerMatch(text, start, end, match.end(), (start, end) != match.span()))
    return matches


def extract(pattern: str, text: str) -> str | None:
    """Return the answer that a text states, as it is written there, with single spaces; None too if the search takes too long.

    In a session use `stated_answer`.
    """
    try:
        match = find(pattern, text)
    except TimeoutError:
        return None
    return None if match is None else match.words


async def stated_answer(session: Session, pattern: str, text: str, author: str = "") -> str | None:
    """Return the answer that a text states, as it is written there, with single spaces; None if the search takes too long, with a
    warning if its `author` is named."""
    return await _searched(
        session, pattern, f"text/{pattern}/{text}", author, lambda seconds: find(pattern, text, seconds)
    )


async def declared_answer(session: Session, pattern: str, field: str, author: str) -> str | None:
    """As `stated_answer`, for a field that asks for the answer alone."""
    name = f"field/{pattern}/{field}"
    return await _searched(session, pattern, name, author, lambda seconds: find_declared(pattern, field, seconds))


async def _searched(
    session: Session, pattern: str, name: str, author: str, work: Callable[[float], AnswerMatch | None]
) -> str | None:
    result = await session.searches.run(name, lambda seconds: (work(seconds),))
    if result is None and author:
        session.warn(f"the answer pattern {pattern!r} took too long on what {author} wrote, which counts as no match")
    match = result[0] if result else None
    return None if match is None else match.words
