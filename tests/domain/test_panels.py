"""Panels: the shipped ones are usable, a user's file is read, and every mistake is told in one paragraph."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.errors import SettingsError, UnknownName, UserError
from consilience.domain.panels import Panel, Persona, load_panel, shipped_panels
from consilience.domain.paths import MAX_FILE_BYTES

GOOD = """
name = "launch"
description = "Whether to launch."

[[personas]]
name = "Sceptical CFO"
description = "You ask what it costs, who pays and what is given up."

[[personas]]
name = "First customer"
description = "You ask what it does for you today."
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def panel_error(tmp_path: Path, text: str) -> str:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_panel(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in caught.value.where
    assert caught.value.do
    return message


# --- the shipped panels


def test_shipped_panels_match_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "panels.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^The shipped panels are ([^.]+)\.", page, re.MULTILINE)
    assert shipped_panels() == re.findall(r"`([^`]+)`", sentence)


@pytest.mark.parametrize("name", shipped_panels())
def test_a_shipped_panel_suits_small_models(name: str) -> None:
    panel = load_panel(name)
    assert panel.name == name
    assert 3 <= len(panel.personas) <= 6
    for persona in panel.personas:
        assert persona.description.startswith("You "), f"{name}: {persona.name} does not address the agent"
        assert len(persona.description.split()) <= 40, f"{name}: {persona.name} is too long for a small model"
        assert not persona.claim, f"{name}: {persona.name} has a claim, which is the user's choice"
        assert not persona.model, f"{name}: {persona.name} has a model, which is the user's choice"


def test_no_two_shipped_personas_are_alike() -> None:
    personas = [persona for name in shipped_panels() for persona in load_panel(name).personas]
    names = Counter(persona.name for persona in personas)
    assert [name for name, n in names.items() if n > 1] == [], "the same name in two shipped panels"
    for combination, other in itertools.combinations(personas, 2):
        first, second = set(combination.description.lower().split()), set(other.description.lower().split())
        assert len(first & second) / len(first | second) < 0.35, f"{combination.name} repeats {other.name}"


# --- what can be loaded


def test_panel_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    panel = load_panel(path)
    assert panel == load_panel(str(path))
    assert panel.names == ("Sceptical CFO", "First customer")
    assert panel.personas[0].description == "You ask what it costs, who pays and what is given up."


def test_panel_file_in_the_current_directory_needs_no_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "launch").write_text(GOOD, encoding="utf-8")
    assert load_panel("launch").name == "launch"


def test_a_shipped_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "markets").write_text(GOOD, encoding="utf-8")
    assert load_panel("markets").name == "markets"
    assert load_panel("./markets").name == "launch"


def test_the_home_directory_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, GOOD)
    assert load_panel("~/mine.toml").name == "launch"


def test_panel_file_with_bom_and_crlf_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_panel(path).name == "launch"


def test_persona_texts_are_stripped(tmp_path: Path) -> None:
    panel = load_panel(write(tmp_path, GOOD.replace('"Sceptical CFO"', '"  Sceptical CFO "')))
    assert panel.names[0] == "Sceptical CFO"


def test_panels_and_personas_are_immutable() -> None:
    panel = load_panel("markets")
    assert hash(panel) == hash(load_panel("markets"))
    with pytest.raises(ValueError, match="frozen"):
        panel.name = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        panel.personas[0].name = "other"  # type: ignore[misc]


def test_persona_limits_are_inclusive(tmp_path: Path) -> None:
    personas = "".join(f'[[personas]]\nname = "P{n}"\ndescription = "{"x" * 2_000}"\n' for n in range(64))
    assert len(load_panel(write(tmp_path, f'name = "big"\ndescription = "d"\n{personas}')).personas) == 64


# --- mistakes


@pytest.mark.parametrize(("name", "close"), [("market", "markets"), ("Markets", "markets"), ("sciense", "science")])
def test_unknown_panel_name_suggests_close_ones(name: str, close: str) -> None:
    with pytest.raises(UnknownName) as caught:
        load_panel(name)
    assert f"Did you mean '{close}'" in str(caught.value)
    assert repr(name) in str(caught.value)
    for shipped in shipped_panels():
        assert shipped in str(caught.value)


def test_panel_name_unlike_any_lists_the_shipped_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        load_panel("zzzz")
    assert "Did you mean" not in str(caught.value)
    assert "shipped panels: bitcoin, " in str(caught.value)


def test_panel_file_named_without_suffix_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD)
    with pytest.raises(UnknownName, match=r"Did you mean the file mine\.toml\?"):
        load_panel("mine")


@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_panel_name_is_refused(empty: str) -> None:
    with pytest.raises(SettingsError, match="name of the panel is empty"):
        load_panel(empty)


def test_missing_panel_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no such panel file.*none\.toml.*engineering"):
        load_panel(tmp_path / "none.toml")


def test_directory_as_panel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"is a directory.*Name the TOML file inside it"):
        load_panel(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_panel_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.chmod(0)
    with pytest.raises(SettingsError, match=r"cannot be read: Permission denied"):
        load_panel(path)


def test_load_panel_path_with_a_nul_character_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: embedded null"):
        load_panel(Path("a\0.toml"))


def test_load_panel_in_the_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"no such panel file.*~no-such-user/mine\.toml"):
        load_panel("~no-such-user/mine.toml")


def test_text_in_place_of_a_panel_name_is_refused() -> None:
    with pytest.raises(UnknownName) as caught:
        load_panel("You ask what it costs.\n" * 1_000)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_panel_path_below_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: Not a directory"):
        load_panel(write(tmp_path, GOOD) / "panel.toml")


def test_oversized_panel_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.toml"
    path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(SettingsError, match=r"more than 1 MB.*weights\.toml"):
        load_panel(path)


def test_panel_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes('name = "ok"\ndescription = "caf\u00e9"\n'.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"not UTF-8 text.*line 2, column 19\. Save it as UTF-8"):
        load_panel(path)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('name = "x"\ndescription "y"\n', "line 2, column 13"),
        ("name = \n", "line 1, column 8"),
        ('name = "x"\nname = "y"\n', "line 2, column 11"),
        ('name = "x', "line 1, column 10"),
        ('name = "x"\ndescription = """y', "line 2, column 19"),
        ("name = " + "[" * 20_000, "line 1"),
        ("name = " + "9" * 5_000, "line 1"),
        ('name = "x"\n' + "a." * 20_000 + "a = 1\n", "more than 32 parts. Where:"),
        ('name = "x"\n' + "a." * 20_000 + "a = 1\n", "line 2, column 1"),
        ('name = "x"\n[' + "'a' . " * 32 + "a]\n", "line 2, column 2"),
        ("x = {" + '"a".' * 32 + "a = 1}\n", "line 1, column 6"),
    ],
)
def test_invalid_toml_error_has_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    message = panel_error(tmp_path, text)
    assert "not valid TOML" in message
    assert place in message


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "launch"', "", "the panel has no 'name'"),
        ('name = "launch"', 'name = " "', "'name' of the panel is empty"),
        ('name = "launch"', "name = 3", "'name' of the panel must be text, not 3"),
        ('name = "launch"', 'name = "a\\nb"', "'name' of the panel has a line break"),
        ('name = "launch"', f'name = "{"n" * 81}"', "'name' of the panel has 81 characters, at most 80"),
        ('name = "launch"', 'name = "launch"\ntitel = 1', "the panel has an unknown key 'titel'"),
        ("[[personas]]", "[[persona]]", "unknown key 'persona' (did you mean 'personas'?)"),
        ('name = "First customer"', "", "persona 2 has no 'name'"),
        ('name = "First customer"', 'name = ""', "'name' of persona 2 is empty"),
        (
            'name = "First customer"',
            'name = "sceptical cfo"',
            "personas 1 and 2 are named 'Sceptical CFO' and 'sceptical cfo', the same but for capitals",
        ),
        (
            'description = "You ask what it does for you today."',
            'desciption = "You ask."',
            "persona 2 (First customer) has an unknown key 'desciption' (did you mean 'description'?)",
        ),
        (
            "You ask what it does for you today.",
            "x" * 2_001,
            "'description' of persona 2 (First customer) has 2,001 characters, at most 2,000",
        ),
    ],
)
def test_invalid_panel_field_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert expected in panel_error(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("personas", "expected"),
    [
        ("", "the panel has no 'personas'"),
        ("personas = []", "'personas' of the panel must have at least 1 entry, not 0"),
        (
            'personas = "three of them"',
            "'personas' of the panel must be written as [[personas]] tables, not 'three of them'",
        ),
        ('personas = ["Sceptical CFO"]', "persona 1 must be a table with name and description"),
        (
            "".join(f'[[personas]]\nname = "P{n}"\ndescription = "d"\n' for n in range(65)),
            "must have at most 64 entries, not 65",
        ),
    ],
)
def test_invalid_persona_list_is_named(tmp_path: Path, personas: str, expected: str) -> None:
    assert expected in panel_error(tmp_path, f'name = "x"\ndescription = "y"\n{personas}')


def test_all_panel_errors_are_reported_up_to_a_limit(tmp_path: Path) -> None:
    message = panel_error(tmp_path, 'name = "x"\ndescription = "y"\n' + "[[personas]]\n" * 64)
    assert "persona 1 has no 'name'; persona 1 has no 'description'; persona 2" in message
    assert "and 123 more" in message
    assert len(message) < 800


def test_empty_panel_file_is_refused(tmp_path: Path) -> None:
    assert "the panel has no 'name'; the panel has no 'description'" in panel_error(tmp_path, "")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"horizont": "1"},
            "the persona (CFO) has an unknown key 'horizont' (did you mean 'horizon'?). Fields of a Persona:",
        ),
        (
            {"model": object()},
            "must be the name of a model, not a object; an object is given by agent, in Python: model={ID: OBJECT}.",
        ),
        (
            {"model": "exec:cat"},
            "'model' of the persona (CFO) names a program; seat it yourself: --agent ID=exec:COMMAND, in Python model={ID: ",
        ),
    ],
)
def test_invalid_persona_field_is_named_in_python(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Persona(name="CFO", description="You ask.", **fields)  # type: ignore[arg-type]
    assert expected in str(caught.value)
    persona = {"name": "CFO", "description": "You ask.", **fields}
    with pytest.raises(SettingsError, match=r"persona 1 \(CFO\)"):
        Panel(name="x", description="y", personas=(persona,))  # type: ignore[arg-type]


def test_persona_takes_its_fields_by_name() -> None:
    with pytest.raises(SettingsError, match=r"by name\. Write Persona\(name=…, description=…\)"):
        Persona("CFO", "You ask.")  # type: ignore[misc]


def test_duplicate_personas_are_refused_in_python() -> None:
    twin = Persona(name="Twin", description="You agree.")
    with pytest.raises(ValueError, match="both named 'Twin'"):
        Panel(name="x", description="y", personas=(twin, twin))


@given(text=st.text(max_size=80) | st.builds(lambda cut, add: GOOD[:cut] + add, st.integers(0, len(GOOD)), st.text()))
def test_any_text_is_a_panel_or_a_user_error(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    message = ""
    try:
        load_panel(path)
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
