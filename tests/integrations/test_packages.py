"""Frameworks of the adapters are imported on use, and a missing one is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from consilience.domain.errors import UserError
from consilience.integrations import need

ADAPTERS = ("langgraph", "strange_mca", "textarena", "inspect_ai")
PACKAGES = ("langgraph", "langchain_core", "textarena", "inspect_ai")


def test_importing_the_adapters_imports_no_framework() -> None:
    modules = ", ".join(f"consilience.integrations.{name}" for name in ADAPTERS)
    code = f"import sys, {modules}; print([m for m in {PACKAGES!r} if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from consilience.integrations.inspect_ai import deliberation
    from consilience.integrations.langgraph import emergence_graph, protocol_node
    from consilience.integrations.textarena import DeliberatingAgent
    from consilience.protocols.baselines import Solo

    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    text = r"needs the package {}, which is not installed. Run: pip install 'consilience\[{}\]'"
    with pytest.raises(UserError, match=text.format("langgraph", "langgraph")):
        protocol_node(Solo())
    with pytest.raises(UserError, match=text.format("langgraph", "langgraph")):
        emergence_graph()
    with pytest.raises(UserError, match=text.format("textarena", "textarena")):
        DeliberatingAgent(Solo())
    with pytest.raises(UserError, match=text.format("inspect_ai", "inspect")):
        deliberation(Solo())


class Absent:
    """An importer that finds none of the packages."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_broken_package_is_not_reported_as_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "brokenpackage.py").write_text("import not_there_at_all\n")  # type: ignore[operator]
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        need("brokenpackage", "langgraph")
