"""What is new in a change since a commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.domain.errors import SourceError
from consilience.targets import read_target
from targets.repository import IDENTITY, Repository

LINES = [f"line {n}" for n in range(1, 81)]


def code(**changed: str) -> str:
    """The lines of a file; `l40="x"` is the text of line 40."""
    lines = [changed.get(f"l{n}", line) for n, line in enumerate(LINES, 1)]
    return "\n".join(lines) + "\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """With a branch `topic` that changes line 10 of `a.py`."""
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    repository = Repository(tmp_path / "top")
    repository.commit({"a.py": code(), "b.py": code()})
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.commit({"a.py": code(l10="first push")})
    return repository


def new_since(repository: Repository, since: str) -> tuple[list[str], list[str]]:
    """The changed lines of the diff, and the names of the other documents."""
    target = read_target(diff="main...topic", since=since, directory=repository.path)
    diff, *texts = target.under_review or [None]
    lines = diff.text.splitlines() if diff else []
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")], [text.name for text in texts]


def test_only_hunks_that_are_new_are_read(repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD").strip()
    assert new_since(repository, before) == ([], [])
    repository.commit({"a.py": code(l10="first push", l70="second push")})
    assert new_since(repository, before) == (["-line 70", "+second push"], ["a.py"])
    repository.commit({"a.py": code(l10="first push"), "b.py": code(l1="x")})
    assert new_since(repository, before) == (["-line 1", "+x"], ["b.py"])


def test_hunk_that_is_changed_further_is_read_whole(repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD").strip()
    repository.commit({"a.py": code(l10="first push", l12="second push")})
    assert new_since(repository, before)[0] == ["-line 10", "+first push", "-line 12", "+second push"]


def test_rebase_and_merge_of_the_base_make_nothing_new(repository: Repository) -> None:
    """A force-push after a rebase: the base moved the lines, and changed others of the same file."""
    before = repository.git("rev-parse", "HEAD").strip()
    repository.git("checkout", "--quiet", "main")
    repository.commit({"a.py": "new first line\n" + code(l40="by others")})
    repository.git("checkout", "--quiet", "topic")
    repository.git("merge", "--quiet", "main")
    assert new_since(repository, before) == ([], [])
    repository.git("reset", "--quiet", "--hard", before)
    repository.git("rebase", "--quiet", "main")
    assert new_since(repository, before) == ([], [])


def test_the_same_lines_again_elsewhere_are_new(repository: Repository) -> None:
    twice = code(l10="first push") + code()
    repository.commit({"a.py": twice})
    before = repository.git("rev-parse", "HEAD").strip()
    lines = twice.splitlines()
    lines[9:10] = ["first push", "    pass"]
    repository.commit({"a.py": "\n".join(lines) + "\n"})
    assert "+    pass" in new_since(repository, before)[0]


def test_renamed_file_and_deleted_file_are_new_once(repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD").strip()
    repository.git("mv", "b.py", "c.py")
    renamed = repository.commit()
    target = read_target(diff="main...topic", since=before, directory=repository.path)
    assert "rename to c.py" in target.sources[0].text
    assert new_since(repository, renamed) == ([], [])


@pytest.mark.parametrize("since", ["nosuch", "--output=x", "0" * 40])
def test_unknown_commit_is_refused(repository: Repository, since: str) -> None:
    with pytest.raises(SourceError, match="neither a session nor a commit"):
        new_since(repository, since)


def test_texts_of_files_are_those_after_the_change(repository: Repository) -> None:
    repository.commit({"new.py": "x = 1\r\n"})
    (repository.path.parent / "outside.py").write_text("secret")
    also = ["a.py", "new.py", "none.py", "../outside.py", "/etc/passwd"]
    target = read_target(diff="main...topic", also=also, directory=repository.path)
    assert target.commit == repository.git("rev-parse", "topic").strip()
    assert {name: text.splitlines()[0] for name, text in target.texts.items()} == {"a.py": "line 1", "new.py": "x = 1"}
    repository.write({"a.py": "in the file\n"})
    target = read_target(diff="main", also=also, directory=repository.path)
    assert (target.commit, target.texts["a.py"], set(target.texts)) == ("", "in the file\n", {"a.py", "new.py"})
