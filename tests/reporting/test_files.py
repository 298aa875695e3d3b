"""Report files: a place that cannot be used is known beforehand, and a file is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.domain.errors import SettingsError
from consilience.reporting.files import claim_directory, write_file, write_files


def test_report_directory_is_created_empty_before_the_run(tmp_path: Path) -> None:
    claim_directory(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(SettingsError, match="--out DIR"):
        claim_directory(tmp_path / "a" / "b")


def test_report_files_replace_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("old")
    assert write_files(tmp_path, {"report.md": "naïve →", "x.json": "{}"}) == [
        tmp_path / "report.md",
        tmp_path / "x.json",
    ]
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "naïve →"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "no draft is left"


def test_directory_removed_meanwhile_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="consilience show r1a2b3"):
        write_files(tmp_path / "gone", {"report.md": ""}, session="r1a2b3")


def test_unwritable_file_of_no_session_refers_to_none(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        write_files(tmp_path / "gone", {"solo.schema.json": ""})
    assert "Name another file" in str(caught.value)
    assert "consilience show" not in str(caught.value)


def test_report_file_is_private_whatever_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("old")
    path.chmod(0o644)
    write_file(path, "half \ud83d of it")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text(encoding="utf-8") == "half \\ud83d of it"
    assert not list(tmp_path.glob(".*")), "no draft is left"
