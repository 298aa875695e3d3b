"""The wheel: built from the sources, installed alone into a clean environment, and used there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from consilience.domain.panels import shipped_panels

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "consilience"
SECONDS = 900


@dataclass(frozen=True, slots=True)
class Installed:
    """A clean environment that holds the wheel and what the wheel asks for, and nothing else."""

    wheel: Path
    directory: Path

    def run(self, program: str, *arguments: str) -> str:
        return run(self.directory / "bin" / program, *arguments, cwd=self.directory)

    def python(self, code: str) -> str:
        return self.run("python", "-I", "-c", code)

    @property
    def files(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a program that must succeed; it does not see the sources."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"NO_COLOR": "1"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", directory, cwd=directory)
    pip = (directory / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", directory / "wheels", ROOT, cwd=directory)
    (wheel,) = (directory / "wheels").glob("consilience-*.whl")
    run(*pip, "install", wheel, cwd=directory)
    return Installed(wheel, directory)


def test_the_package_is_imported_from_the_wheel(installed: Installed) -> None:
    where = installed.python("import consilience; print(consilience.__file__)").strip()
    assert Path(where).is_relative_to(installed.directory.resolve())


def test_wheel_contains_every_file_of_the_package(installed: Installed) -> None:
    ours = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(SOURCE.parent).as_posix() for path in ours}
    assert expected <= installed.files
    assert "consilience/py.typed" in installed.files


def test_wheel_contains_the_prompts(installed: Installed) -> None:
    expected = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.glob("protocols/*/prompts/*/*.j2")}
    assert expected, "no protocol has prompt templates"
    assert expected <= installed.files


def test_wheel_contains_only_the_package_and_its_licence(installed: Installed) -> None:
    tops = {name.partition("/")[0] for name in installed.files}
    (metadata,) = tops - {"consilience"}
    assert metadata.endswith(".dist-info")
    assert f"{metadata}/licenses/LICENSE" in installed.files


def test_the_shipped_panels_load(installed: Installed) -> None:
    code = """
from consilience.domain.panels import load_panel, shipped_panels
print(*(load_panel(name).name for name in shipped_panels()), sep="\\n")
"""
    assert installed.python(code).split() == shipped_panels()


def test_the_shipped_tasks_load(installed: Installed) -> None:
    from consilience.evaluation import load_tasks

    code = """
from consilience.evaluation import load_tasks
print(*(task.id for task in load_tasks("starter")), sep="\\n")
"""
    assert installed.python(code).split() == [task.id for task in load_tasks("starter")]


def test_every_protocol_loads_without_an_extra(installed: Installed) -> None:
    code = """
from importlib.metadata import entry_points
for point in entry_points(group="consilience.protocols"):
    point.load()
    print(point.name)
"""
    assert "emergence" in installed.python(code).split()


def test_the_command_lists_its_protocols(installed: Installed) -> None:
    assert "emergence" in installed.run("consilience", "--help")
