"""The outline of a file: definitions and imports with their lines, in Python and, with the extra `code`, in other languages."""

from __future__ import annotations

import pytest

from consilience.targets.outline import outline_of, written_names

PYTHON = '''import os
from a import (
    b,
)

LIMIT = 3


@cache
def page(items):
    """Return a page."""
    local = 1

    def inner():
        return local

    return inner


class Shop:
    name: str = ""

    def open(self):
        pass
'''


def test_python_has_definitions_with_decorators_heads_and_depth_and_no_local_names() -> None:
    outline = outline_of("a.py", PYTHON)
    assert [(d.name, d.first, d.last, d.head, d.depth) for d in outline.definitions] == [
        ("LIMIT", 6, 6, 6, 0),
        ("page", 9, 17, 11, 0),
        ("inner", 14, 15, 14, 1),
        ("Shop", 20, 24, 20, 0),
        ("name", 21, 21, 21, 1),
        ("open", 23, 24, 23, 1),
    ]
    assert outline.imports == ((1, 1), (2, 4))
    assert [d.name for d in outline.around(15, 15)] == ["page", "inner"]


@pytest.mark.parametrize(
    ("name", "text"), [("a.py", "def (:\n"), ("a.py", "x = '\0'"), ("a.txt", "def f(): pass\n"), ("a.go", "\0{")]
)
def test_text_that_cannot_be_parsed_has_no_outline_and_raises_nothing(name: str, text: str) -> None:
    outline = outline_of(name, text)
    assert (outline.definitions, outline.imports) == ((), ())


def test_escape_sequences_that_python_warns_of_warn_nobody_here() -> None:
    """Warnings are errors in tests."""
    assert [d.name for d in outline_of("a.py", "PATTERN = '\\d'\n").definitions] == ["PATTERN"]


def test_definitions_know_their_class_and_whether_they_can_be_named_from_outside() -> None:
    outline = outline_of("a.py", PYTHON)
    assert [(d.name, d.owner, d.is_local, d.is_function) for d in outline.definitions] == [
        ("LIMIT", "", False, False),
        ("page", "", False, True),
        ("inner", "", True, True),
        ("Shop", "", False, False),
        ("name", "Shop", False, False),
        ("open", "Shop", False, True),
    ]
    assert outline_of("a.py", "if A:\n    import b\nelse:\n    import c\n").imports == ((2, 2), (4, 4))
    assert [d.name for d in outline.around(1, 24)] == ["LIMIT", "page", "inner", "Shop", "name", "open"]


@pytest.mark.parametrize(
    ("name", "text", "definitions", "imports"),
    [
        ("a.go", 'package a\nimport (\n "f"\n)\nfunc (t *T) Foo(a int) {\n x := 1\n}\n', [("Foo", 5, 7)], ((1, 1), (2, 4))),
        ("a.ts", "import {x} from 'y';\nexport const g = (): void => {\n};\nclass A { }\n", [("g", 2, 3), ("A", 4, 4)], ((1, 1),)),
        ("a.rs", "use a::b;\nimpl Foo {\n fn m(&self) {\n }\n}\n", [("Foo", 2, 5), ("m", 3, 4)], ((1, 1),)),
        ("a.c", "#include <a.h>\nstatic int *foo(int a)\n{\n return 0;\n}\n", [("foo", 2, 5)], ((1, 1),)),
    ],
)  # fmt: skip
def test_other_languages_are_read_by_tree_sitter(
    name: str, text: str, definitions: list[tuple[str, int, int]], imports: tuple[tuple[int, int], ...]
) -> None:
    pytest.importorskip("tree_sitter_language_pack")
    outline = outline_of(name, text)
    assert [(d.name, d.first, d.last) for d in outline.definitions] == definitions
    assert outline.imports == imports


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("def page(items):", ("page",)),
        ("func (t *T) Foo(a int) {", ("Foo",)),
        ("export const LIMIT = 3", ("LIMIT",)),
        ("    local = 1", ()),
        ("if a == b:", ()),
    ],
)
def test_names_that_a_line_defines_are_read_in_any_language(line: str, names: tuple[str, ...]) -> None:
    assert written_names(line) == names
