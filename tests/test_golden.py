"""The golden files themselves: each belongs to a test, and a test that shows something else fails with the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.golden import Golden, owner, read_sections, steady, titles_in

HERE = Path(__file__).parent
PAGES = sorted(HERE.glob("*/golden/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.parent.name}-{page.stem}")
def test_every_golden_section_belongs_to_a_test(page: Path) -> None:
    module = page.parent.parent / f"test_{page.stem}.py"
    if module.exists() and (sections := read_sections(page)):
        assert [title for title in sections if owner(title) not in titles_in(module)] == []
    else:
        assert any(f'page("{page.name}"' in other.read_text() for other in page.parent.parent.glob("test_*.py"))


def written(tmp_path: Path, write: bool) -> Golden:
    (tmp_path / "test_ferry.py").write_text(
        "def test_ferry_runs() -> None: ...\n\n\ndef test_ferry_stops() -> None: ...\n"
    )
    return Golden(tmp_path / "test_ferry.py", "test_ferry_stops[at night]", write)


def test_changed_text_fails_with_the_difference(tmp_path: Path) -> None:
    written(tmp_path, write=True)("It stops.\nAlways.", "sign")
    written(tmp_path, write=False)("It stops.\nAlways.", "sign")
    with pytest.raises(pytest.fail.Exception, match=r"ferry stops \[at night\]: sign\n(.*\n)*-Always\.\n\+Never\.\n"):
        written(tmp_path, write=False)("It stops.\nNever.", "sign")
    with pytest.raises(pytest.fail.Exception, match=r"\+It stops\."):
        written(tmp_path, write=False)("It stops.", "another sign")


def test_sections_stand_in_the_order_of_their_tests_and_go_with_them(tmp_path: Path) -> None:
    written(tmp_path, write=True)("It stops.")
    Golden(tmp_path / "test_ferry.py", "test_ferry_runs", write=True)("It runs.")
    page = tmp_path / "golden" / "ferry.md"
    assert list(read_sections(page)) == ["ferry runs", "ferry stops [at night]"]
    (tmp_path / "test_ferry.py").write_text("def test_ferry_runs() -> None: ...\n")
    Golden(tmp_path / "test_ferry.py", "test_ferry_runs", write=True)("It runs.")
    assert read_sections(page) == {"ferry runs": "It runs.\n"}


def test_whole_page_is_compared(tmp_path: Path) -> None:
    written(tmp_path, write=True).page("pages/ferry.md", "It stops.")
    written(tmp_path, write=False).page("pages/ferry.md", "It stops.")
    with pytest.raises(pytest.fail.Exception, match=r"-It stops\.\n\+It runs\."):
        written(tmp_path, write=False).page("pages/ferry.md", "It runs.")


def test_second_text_of_a_test_needs_a_label(tmp_path: Path) -> None:
    golden = written(tmp_path, write=True)
    golden("It stops.")
    with pytest.raises(AssertionError, match="give them labels"):
        golden("It runs.")


def test_ids_paths_ports_and_times_are_not_compared() -> None:
    one = "r12ab34 in /tmp/pytest-of-me/pytest-7/test_a0/here at 127.0.0.1:40123 took 1.3 s"
    other = "r99ffe0 in /dev/shm/pytest-of-me/pytest-8/popen-gw1/test_b1/here at 127.0.0.1:51234 took 0.1 s"
    assert steady(one) == steady(other)
    assert steady("rented for 12 s") == "rented for 12 s\n"
