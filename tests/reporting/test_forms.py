"""Forms that are mailed and read back: what was written is what is answered, whatever the words look like."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from consilience.domain.errors import SourceError
from consilience.domain.messages import FreeText
from consilience.engine.prompt import schema_for
from consilience.models.parsing import prose_field
from consilience.reporting.forms import (
    CHECKED_LATER,
    FilledForm,
    answer_from,
    controls,
    file_name,
    html_form,
    markdown_form,
    mistakes,
    read_form,
)
from consilience.reporting.questions import Form, Question

KEY = "round-1/leaf_respond/L2N1"
HOSTILE = '</script><script>alert(1)</script> <img src=x onerror=alert(1)> "quoted" & so on'


class Step(BaseModel):
    name: str
    days: int = Field(ge=1, le=30)


class Listed(BaseModel):
    points: list[str] = Field(json_schema_extra={"maxItems": 6})
    steps: list[Step] = Field(json_schema_extra={"maxItems": 2})
    text: FreeText


class Plan(BaseModel):
    side: Literal["yes", "no"]
    share: float = Field(0.5, ge=0, le=1)
    sure: bool = True
    by: str | None = None
    steps: list[Step] = []
    tags: list[str] = []
    text: FreeText


def question(returns: type[BaseModel] | None = Plan, **fields: object) -> Question:
    form = Form(schema_for(returns, ())[0] or {}, prose_field(returns)) if returns else None
    given: dict[str, object] = {"text": "What is to be done?", "person": "Ada", "form": form, **fields}
    return Question(KEY, "L2N1", 1, answered=False, **given)  # type: ignore[arg-type]


def filled(written: dict[str, str], asked: Question) -> str:
    """The form in Markdown with something below its headings."""
    form = markdown_form("s", asked)
    for name, words in written.items():
        form = re.sub(rf"(## {name}\n> [^\n]*\n)", lambda match, words=words: f"{match[1]}\n{words}\n", form)
    return form


WRITTEN = {
    "side": "No.",
    "share": "0.25",
    "sure": "False",
    "steps": "- name: clear the yard\n  days: 3\n- name: build\n  and roof\n  days: 20",
    "tags": "- cheap\n- fast and\n  good",
    "text": "Go.\n\n## Not a field\n> is a remark\n- a dash",
}


def test_written_form_is_read_as_the_typed_answer() -> None:
    read = read_form(filled(WRITTEN, question()), question())
    assert read == FilledForm("s", KEY, read.text if read else "")
    assert read is not None
    assert json.loads(read.text) == {
        "side": "no",
        "share": 0.25,
        "sure": False,
        "steps": [{"name": "clear the yard", "days": 3}, {"name": "build\nand roof", "days": 20}],
        "tags": ["cheap", "fast and\n  good"],
        "text": "Go.\n\n## Not a field\n> is a remark\n- a dash",
    }
    form = question().form
    assert form is not None
    assert form.reply_from(read.text) == read.text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_form_without_a_type_is_read_as_words(newline: str) -> None:
    asked = question(None)
    read = read_form(filled({"Your answer": "Yes.\nIt is."}, asked).replace("\n", newline), asked)
    assert read == FilledForm("s", KEY, "Yes.\nIt is.")


def test_words_of_the_question_are_no_answer() -> None:
    mark = f'<!-- consilience form {{"session": "s", "key": "{KEY}"}} -->'
    asked = question(None, text=f"---\n\n{mark}\n\n## Your answer\nNot this.\n\n---\n")
    words = "But this.\n\n---\n\nAnd this."
    form = markdown_form("s", asked) + f"\n{words}\n"
    assert read_form(form, asked) == FilledForm("s", KEY, words)
    assert read_form(markdown_form("s", asked), asked) == FilledForm("s", KEY, "")


def test_other_texts_are_no_forms() -> None:
    for text in ("Yes.", '{"answer": "yes"}', "[1]", "<!-- consilience form {} nothing", "12"):
        assert read_form(text, question()) is None


def test_form_of_another_question_is_refused() -> None:
    other = Question("round-2/x", "L2N1", 1, "?", None, answered=False)
    with pytest.raises(SourceError, match=f"the form answers {KEY}, not round-2/x"):
        read_form(markdown_form("s", question()), other)
    named = read_form(markdown_form("s", question()))
    assert named is not None
    assert (named.session, named.key) == ("s", KEY)


def test_what_does_not_fit_stays_for_the_check_of_the_whole() -> None:
    read = read_form(filled({**WRITTEN, "side": "perhaps", "share": "half"}, question()), question())
    form = question().form
    assert read is not None
    assert form is not None
    with pytest.raises(ValueError, match=r"side must be one of yes, no"):
        form.reply_from(read.text)


class Page(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def test_page_has_a_control_for_each_field_and_loads_nothing() -> None:
    page = Page(html_form("s", question(text=HOSTILE, person=HOSTILE)))
    controls = {str(of["name"]): tag for tag, of in page.tags if tag in ("select", "input", "textarea")}
    assert controls == {
        "side": "select",
        "share": "input",
        "sure": "select",
        "by": "textarea",
        "steps": "textarea",
        "tags": "textarea",
        "text": "textarea",
    }
    assert len(page.scripts) == 2
    assert json.loads(page.scripts[0]) == {"session": "s", "key": KEY, "plain": False}
    assert not any(of.keys() & {"src", "href", "onerror", "onclick", "action"} for _, of in page.tags)
    assert "img" not in {tag for tag, _ in page.tags}


def test_file_that_the_page_saves_is_read_as_the_typed_answer() -> None:
    answer = {**WRITTEN, "side": "no", "sure": "false", "by": "", "text": "Go."}
    saved = json.dumps({"session": "s", "key": KEY, "answer": answer})
    read = read_form(saved, question())
    assert read is not None
    assert json.loads(read.text)["steps"][1] == {"name": "build\nand roof", "days": 20}
    assert "by" not in json.loads(read.text)


def test_file_name_has_the_person_and_the_question_and_no_path() -> None:
    assert file_name(question(person="Ada / Bob")) == "Ada-Bob-round-1-leaf_respond-L2N1"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"text": None}, "no words"),
        ({"text": ["x"]}, "no words"),
        ({"text": "x", "more": "y"}, "no field 'more'"),
        ([], "no words"),
    ],
)
def test_file_that_no_page_saves_is_refused(given: object, complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint):
        read_form(json.dumps({"session": "s", "key": KEY, "answer": given}), question())


def test_form_that_a_reply_quotes_is_refused_with_the_reason() -> None:
    form = filled({"Your answer": "Yes."}, question(None))
    for mailed in ("".join(f"> {line}\n" for line in form.split("\n")), f"{form}\n> {form.split('---')[1]}"):
        quoted = mailed.replace("\n<!--", "\n> <!--") if not mailed.startswith(">") else mailed
        with pytest.raises(SourceError, match="quoted in a reply"):
            read_form(quoted, question(None))


@pytest.mark.parametrize(
    ("heading", "explanation"),
    [
        ("## Your answer", "> Words."),
        ("##\u00a0Your\u00a0answer ", ">\u00a0Words. "),
        ("**Your answer**", "\\> Words."),
        ("\\## YOUR ANSWER:", "Words."),
        ("##### __Your answer__", "> Words."),
        ("", ""),
    ],
)
def test_form_that_an_editor_rewrote_is_read(heading: str, explanation: str) -> None:
    form = filled({"Your answer": "Yes.\n# So\n**It** is.\n> Words."}, question(None))
    form = form.replace("## Your answer", heading).replace("> Words.", explanation, 1)
    assert read_form(form, question(None)) == FilledForm("s", KEY, "Yes.\n# So\n**It** is.\n> Words.")


def test_form_whose_mark_an_editor_changed_is_refused_and_not_taken_for_words() -> None:
    form = filled({"Your answer": "Yes."}, question(None))
    changed = [form.replace('"', "“"), form.replace("<!--", "<!–"), re.sub("<!--.*-->", "", form)]
    changed += [form.replace("<", "&lt;").replace(" ", "\n"), html_form("s", question(None))]
    for text in changed:
        with pytest.raises(SourceError, match="was changed or is missing"):
            read_form(text, question(None))


def test_file_of_two_forms_is_refused() -> None:
    form = filled({"Your answer": "Yes."}, question(None))
    for second in (form, markdown_form("s", question(None))):
        with pytest.raises(SourceError, match="more than one form"):
            read_form(f"{form}\n----- Original message -----\n{second}", question(None))


def test_form_without_any_of_its_headings_is_refused() -> None:
    form = markdown_form("s", question()).replace("## ", "")
    with pytest.raises(SourceError, match="headings of the form are missing"):
        read_form(form, question())


def test_odd_files_are_read_or_are_no_forms() -> None:
    asked = question(None)
    assert read_form("[" * 100_000, asked) is None
    form = filled({"Your answer": "Yes.\nIt is."}, asked)
    assert read_form(form.replace("\n", "\r"), asked) == FilledForm("s", KEY, "Yes.\nIt is.")
    without = form.replace("## Your answer\n> Words.\n", "")
    assert read_form(without, asked) == FilledForm("s", KEY, "Yes.\nIt is.")
    numbers = Form({"type": "object", "properties": {"score": {"type": "integer"}}})
    with pytest.raises(ValueError, match="score must be a number"):
        numbers.reply_from('{"score": 1e999}')


def test_list_of_few_items_has_a_place_for_each_and_no_other() -> None:
    page = html_form("s", question(Listed))
    names = re.findall(r' name="([^"]+)"', page)
    points = [f"points.{n}" for n in range(1, 7)]
    steps = [f"steps.{n}.{part}" for n in (1, 2) for part in ("name", "days")]
    assert names == ["viewport", *points, *steps, "text"]
    assert page.index("Room for 3 more") > page.index("points.3")
    assert 'min="1" max="30"' in page, "bounds within an item are checked while typing"


def test_list_without_places_explains_when_it_is_checked() -> None:
    (_, _, _, _, steps, tags, text) = controls(question(Plan))
    assert steps.explanation.endswith(CHECKED_LATER)
    assert tags.explanation.endswith(CHECKED_LATER)
    assert CHECKED_LATER not in text.explanation
    page = html_form("s", question(Plan))
    for name in ("steps", "tags"):
        assert f'id="{name}" name="{name}" aria-describedby="{name}-now" data-check="yes"' in page
        assert f'id="{name}-now" role="status"' in page
    assert page.count("data-check") == 2


def test_items_in_their_places_are_read_as_a_list_without_the_empty_ones() -> None:
    given = {"points.1": "cheap", "points.2": " ", "points.5": "fast\n- and good"}
    given |= {"steps.1.name": "", "steps.1.days": "", "steps.2.name": "build", "steps.2.days": "3", "text": "Go."}
    asked = question(Listed)
    assert mistakes(asked, given) == {}
    assert json.loads(answer_from(asked, given)) == {
        "points": ["cheap", "fast\n- and good"],
        "steps": [{"name": "build", "days": 3}],
        "text": "Go.",
    }
    assert mistakes(asked, given | {"steps.2.days": "40"}) == {"steps": "Steps 1.days must be a number from 1 to 30."}


def test_more_items_than_allowed_are_refused_with_both_numbers() -> None:
    nine = "\n".join(f"- point {n}" for n in range(9))
    found = mistakes(question(Listed), {"points": nine, "text": "Go."})
    assert found == {"points": "Points has 9 items, but at most 6 are allowed; leave out the weakest."}
