"""Reports in a notebook: the page of the command line, with nothing imported before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import html5lib
import pytest

import consilience
from consilience.domain.report import Report
from consilience.reporting.markdown import markdown
from consilience.testing import ScriptedModel


def reported(answer: str = "It depends.") -> Report:
    return consilience.run_sync(
        "Why?", consilience.Emergence(children=2, max_rounds=1), model=ScriptedModel(lambda request: answer)
    )


def test_report_in_a_notebook_shows_the_page_of_the_command_line() -> None:
    report = reported()
    assert report._repr_markdown_() == markdown(report)
    shown = report._repr_html_()
    assert shown is not None
    assert "<h3>Answer</h3>\n<p>It depends.</p>" in shown
    assert shown.startswith('<div class="consilience">')


def test_str_of_a_report_is_its_markdown_and_repr_one_line() -> None:
    report = reported("It depends.\n\n" + 50 * "Much. ")
    assert str(report) == report.markdown()
    assert repr(report).startswith(f"<EmergenceReport {report.session}: exhausted_steps, 5 calls: It depends. Much. ")
    assert len(repr(report)) < 140


def test_run_in_a_notebook_shows_its_progress_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def display(data: dict[str, str], **options: object) -> SimpleNamespace:
        assert options == {"raw": True, "display_id": True}
        shown.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))

    shell = SimpleNamespace(kernel=object())
    notebook = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", notebook)  # type: ignore[arg-type]
    reported()
    assert shown[0].startswith("1 of 5 calls · round 1 · own answers · ")
    assert any(line.startswith("5 of 5 calls · round 1 · synthesis · integrator (L1N1)") for line in shown)
    shown.clear()
    del shell.kernel
    reported()
    assert not shown, "a shell in a terminal is no notebook"


def test_agent_html_in_a_notebook_is_escaped() -> None:
    shown = reported("<script>alert(1)</script> ![x](https://evil.example/x.png)")._repr_html_()
    tree = html5lib.HTMLParser(strict=False, namespaceHTMLElements=False).parse(shown)
    assert not {"script", "img", "a"} & {element.tag for element in tree.iter()}
    assert "<script>alert(1)</script>" in "".join(tree.itertext())


def test_report_returns_markdown_html_and_files(tmp_path: Path) -> None:
    report = reported("<script>alert(1)</script> 5 & 7")
    assert report.markdown() == markdown(report)
    page = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(report.html())
    assert "script" not in {element.tag for element in page.iter()}
    assert "<script>alert(1)</script> 5 & 7" in "".join(page.itertext())
    written = report.save(tmp_path / "new" / "report")
    names = ["report.json", "report.md", "report.html", "summary.html", "mca_report.json", "final_state.json"]
    assert [path.name for path in written] == names
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in written)
    assert written[1].read_text() == report.markdown()
    assert written[2].read_text() == report.html()
    assert type(report).model_validate_json(written[0].read_text()) == report
    assert report.save(str(tmp_path / "new" / "report")) == written, "files of the same name are replaced"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip()


def test_report_read_from_json_shows_its_page(tmp_path: Path) -> None:
    stored = tmp_path / "report.json"
    stored.write_text(reported().model_dump_json())
    for name in ("Report", "EmergenceReport"):
        code = (
            f"import consilience, sys\nreport = consilience.{name}.model_validate_json(open({str(stored)!r}).read())\n"
            "import json\nbefore = [m for m in ('markdown_it', 'consilience.reporting.html') if m in sys.modules]\n"
            "print(json.dumps([before, report._repr_html_() is not None, report._repr_markdown_() is not None]))"
        )
        assert json.loads(run(code)) == [[], True, True], name


@pytest.mark.parametrize("module", ["consilience", "consilience.deliberation"])
def test_report_of_a_deliberation_renders_itself_without_another_import(module: str, tmp_path: Path) -> None:
    code = (
        f"from {module} import Deliberation\nfrom consilience.testing import ScriptedModel\n"
        "from consilience.protocols.baselines import Solo\n"
        "report = Deliberation(Solo(), model=ScriptedModel(lambda request: 'It depends.')).run_sync('Why?')\n"
        f"print('It depends.' in report._repr_html_(), report.markdown() != '', len(report.save({str(tmp_path)!r})))"
    )
    assert run(code) == "True True 4"


def test_own_report_read_from_json_renders_itself(tmp_path: Path) -> None:
    stored = tmp_path / "report.json"
    stored.write_text(reported().model_dump_json())
    code = (
        "from consilience.protocol import Report\n\nclass Own(Report): ...\n\n"
        f"print('It depends.' in Own.model_validate_json(open({str(stored)!r}).read()).markdown())"
    )
    assert run(code) == "True"


def test_domain_report_without_api_has_no_page_and_imports_no_reporting() -> None:
    code = (
        "import sys\nfrom consilience.domain.report import Report\n"
        "print(Report._repr_html_(Report.model_construct()), [m for m in sys.modules if m.startswith('consilience.rep')])"
    )
    assert run(code) == "None []"
