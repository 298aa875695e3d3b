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


def of(body: str) -> str:
    """Two functions with the same lines, of which the first ends with `body`."""
    return f"def f(x):\n    y = x\n{body}    return y\n\n\n" + "# more\n" * 9 + "def g(x):\n    y = x\n    return y\n"


def test_run_of_lines_moved_to_like_lines_elsewhere_is_new(repository: Repository) -> None:
    first = of("").replace("y = x\n", "y = x\n    check(y)\n", 1)
    second = of("").replace("def g(x):\n    y = x\n", "def g(x):\n    y = x\n    check(y)\n")
    repository.git("checkout", "--quiet", "main")
    repository.commit({"c.py": of("")})
    repository.git("checkout", "--quiet", "-b", "other")
    before = repository.commit({"c.py": first})
    repository.git("branch", "--force", "topic")
    assert new_since(repository, before) == ([], [])
    repository.commit({"c.py": second})
    repository.git("branch", "--force", "topic")
    assert new_since(repository, before) == (["+    check(y)"], ["c.py"])


def test_of_a_run_that_stands_twice_the_added_one_is_new(repository: Repository) -> None:
    """It stands above the one that was reviewed."""
    text = ("line 10\n" + "# more\n" * 9).join(["above\n", "between\n", "below\n"])
    repository.git("checkout", "--quiet", "main")
    repository.commit({"c.py": text})
    repository.git("checkout", "--quiet", "topic")
    repository.git("merge", "--quiet", "main")
    one = text.replace("between\nline 10", "between\nfirst push")
    before = repository.commit({"c.py": one})
    repository.commit({"c.py": one.replace("line 10", "first push")})
    target = read_target(diff="main...topic", since=before, directory=repository.path)
    (hunk,) = target.sources[0].text.split("\n@@")[1:]
    assert " above\n-line 10\n+first push" in hunk


def test_hunks_that_only_another_base_would_show_are_new_after_a_retarget(repository: Repository) -> None:
    """Reviewed against main, the change was the second commit alone; against the release branch it has the first one, too."""
    repository.git("branch", "release", "main")
    repository.git("branch", "--force", "main", "HEAD")
    base = repository.git("rev-parse", "HEAD").strip()
    before = repository.commit({"b.py": code(l1="second")})
    both = ["-line 10", "+first push", "-line 1", "+second"]
    for given, expected in ((base, both[:2]), ("", [])):
        target = read_target(diff="release...topic", since=before, since_base=given, directory=repository.path)
        lines = target.sources[0].text.splitlines() if target.sources else []
        assert [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")] == expected
    assert read_target(diff="main...topic", since=before, since_base=base, directory=repository.path).sources == ()
    with pytest.raises(SourceError, match="neither a session nor a commit"):
        read_target(diff="main...topic", since=before, since_base="0" * 40, directory=repository.path)


def test_renamed_file_is_known_by_the_name_that_it_had_at_a_commit(repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD").strip()
    repository.git("mv", "a.py", "c.py")
    repository.commit({"c.py": code(l10="first push", l20="more")})
    also = [("a.py", before), ("a.py", ""), ("b.py", before), ("a.py", "0" * 40)]
    target = read_target(diff="main...topic", also=also, directory=repository.path)
    assert target.renamed == {("a.py", before): "c.py"}
    assert set(target.texts) == {"b.py", "c.py"}


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
    also = [(name, "") for name in ("a.py", "new.py", "none.py", "../outside.py", "/etc/passwd")]
    target = read_target(diff="main...topic", also=also, directory=repository.path)
    assert target.commit == repository.git("rev-parse", "topic").strip()
    assert {name: text.splitlines()[0] for name, text in target.texts.items()} == {"a.py": "line 1", "new.py": "x = 1"}
    repository.write({"a.py": "in the file\n"})
    target = read_target(diff="main", also=also, directory=repository.path)
    assert (target.commit, target.texts["a.py"], set(target.texts)) == ("", "in the file\n", {"a.py", "new.py"})
