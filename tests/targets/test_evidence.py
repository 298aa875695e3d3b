"""SARIF of linters as evidence beside a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consilience.domain.errors import SourceError
from consilience.targets import read_target


def result(uri: str, **fields: Any) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": uri}, "region": {"startLine": 2}}
    return {
        "ruleId": "F401",
        "message": {"text": "unused\nimport"},
        "locations": [{"physicalLocation": place}],
    } | fields


def evidence_of(tmp_path: Path, *results: dict[str, Any]) -> list[str]:
    (tmp_path / "src").mkdir(exist_ok=True)
    (tmp_path / "src" / "a b.py").write_text("import os\nimport re\n")
    log = {"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "ruff"}}, "results": list(results)}]}
    (tmp_path / "lint.sarif").write_text(json.dumps(log))
    target = read_target(["src/a b.py"], evidence=["lint.sarif"], directory=tmp_path)
    assert [source.name for source in target.under_review] == ["src/a b.py"]
    return [source.text for source in target.sources if source.purpose == "context"]


@pytest.mark.parametrize("uri", ["src/a%20b.py", "./src/a%20b.py", "file:///home/ci/repo/src/a%20b.py"])
def test_results_on_files_under_review_are_lines_of_a_document(tmp_path: Path, uri: str) -> None:
    (text,) = evidence_of(tmp_path, result(uri), result("src/other.py"))
    assert text == "src/a b.py:2: warning F401 (ruff): unused import\n"


@pytest.mark.parametrize("uri", ["http://[x/src/a%20b.py", "//[", "", "%zz", "src/a%20b.py/.."])
def test_strange_uri_names_no_file(tmp_path: Path, uri: str) -> None:
    assert evidence_of(tmp_path, result(uri)) == []


def test_suppressed_and_passed_results_are_no_evidence(tmp_path: Path) -> None:
    uri = "src/a%20b.py"
    assert evidence_of(tmp_path, result(uri, suppressions=[{}]), result(uri, kind="pass"), {"ruleId": "x"}) == []


def test_many_results_are_cut_and_that_is_said(tmp_path: Path) -> None:
    (text,) = evidence_of(tmp_path, *[result("src/a%20b.py")] * 250)
    assert text.count("\n") == 200


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": "2.1.0", "runs": [{}]}'])
def test_what_is_no_sarif_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text("x\n")
    (tmp_path / "lint.sarif").write_text(text)
    with pytest.raises(SourceError, match="SARIF"):
        read_target(["a.py"], evidence=["lint.sarif"], directory=tmp_path)
