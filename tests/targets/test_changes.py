"""Changes that Git records, as documents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from consilience.domain.errors import SourceError
from consilience.engine.sources import number_documents
from consilience.targets import Target, read_target
from consilience.targets.diffs import parse_changes
from consilience.targets.git import Git
from targets.repository import IDENTITY, Repository

CODE = "".join(f"line {n}\n" for n in range(1, 41))


@pytest.fixture(autouse=True)
def own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "top")
    repository.commit({"a.py": CODE, "old.py": CODE.replace("line", "other"), "gone.py": "gone\n", "same.py": "same\n"})
    return repository


def texts(target: Target) -> dict[str, str]:
    return {source.name: source.text for source in target.under_review}


def change(repository: Repository) -> None:
    repository.write({"a.py": CODE.replace("line 7\n", "line seven\n"), "new.py": "new\n"})
    repository.git("mv", "old.py", "moved.py")
    repository.git("rm", "--quiet", "gone.py")


def test_range_gives_the_diff_and_the_new_texts(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "topic")
    change(repository)
    repository.commit()
    repository.write({"a.py": "not committed\n"})
    target = read_target(diff="main..HEAD", directory=repository.path)
    assert target.title == "the changes main..HEAD"
    assert list(texts(target)) == ["diff main..HEAD", "a.py", "moved.py", "new.py"]
    assert texts(target)["a.py"] == CODE.replace("line 7\n", "line seven\n")
    diff = texts(target)["diff main..HEAD"]
    assert "--- a/a.py\n+++ b/a.py\n@@ -4,7 +4,7 @@" in diff
    assert "+line seven\n" in diff
    assert "deleted file mode" in diff
    assert "rename from old.py\nrename to moved.py\n" in diff
    assert target.left_out == ()


def test_three_dots_compare_with_the_common_ancestor(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.commit({"new.py": "new\n"})
    repository.git("checkout", "--quiet", "main")
    repository.commit({"main.py": "main\n"})
    two = read_target(diff="main..topic", directory=repository.path)
    three = read_target(diff="main...topic", directory=repository.path)
    assert "a/main.py" in two.sources[0].text
    assert list(texts(three)) == ["diff main...topic", "new.py"]
    repository.git("checkout", "--quiet", "--orphan", "alone")
    repository.commit()
    with pytest.raises(SourceError, match="no common ancestor"):
        read_target(diff="main...alone", directory=repository.path)


def test_target_without_arguments_is_the_diff_of_files_to_the_last_commit(repository: Repository) -> None:
    change(repository)
    target = read_target(directory=repository.path)
    assert target.title == "the uncommitted changes"
    assert list(texts(target)) == ["diff HEAD", "a.py", "moved.py"]
    assert target.left_out == ("untracked (git add includes it): new.py",)
    assert read_target((), diff="HEAD", directory=repository.path / ".").sources == target.sources


def test_staged_changes_have_the_text_of_the_index(repository: Repository) -> None:
    repository.write({"a.py": "staged\n"})
    repository.git("add", "a.py")
    repository.write({"a.py": "later\n", "same.py": "not staged\n"})
    target = read_target(staged=True, directory=repository.path)
    assert texts(target)["a.py"] == "staged\n"
    assert list(texts(target)) == ["diff --staged", "a.py"]
    assert texts(read_target(directory=repository.path))["a.py"] == "later\n"


def test_single_commit_is_compared_with_the_files_not_its_parent(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD").strip()
    repository.commit({"a.py": "second\n"})
    repository.write({"a.py": "third\n"})
    assert texts(read_target(diff="HEAD~1", directory=repository.path))["a.py"] == "third\n"
    own = read_target(diff="HEAD^!", directory=repository.path)
    assert texts(own)["a.py"] == "second\n"
    assert own.title == "the changes of HEAD"
    assert set(texts(read_target(diff=f"{first}^!", directory=repository.path))) > {
        "a.py",
        "gone.py",
    }  # the first commit


def test_paths_select_changed_files(repository: Repository) -> None:
    repository.commit({"sub/b.py": "b\n", "sub/c.py": "c\n"})
    repository.write({"a.py": "changed\n", "sub/b.py": "changed\n", "sub/c.py": "changed\n"})
    target = read_target(["sub"], diff="HEAD", directory=repository.path)
    assert list(texts(target)) == ["diff HEAD", "sub/b.py", "sub/c.py"]
    assert "a.py" not in target.sources[0].text
    inside = read_target(["b.py"], diff="HEAD", directory=repository.path / "sub")
    assert list(texts(inside)) == ["diff HEAD", "sub/b.py"]
    assert inside.title == "the uncommitted changes in b.py"
    everything = read_target(directory=repository.path / "sub")
    assert list(texts(everything)) == ["diff HEAD", "a.py", "sub/b.py", "sub/c.py"]


def test_untracked_files_are_named_by_their_path_from_the_top(repository: Repository) -> None:
    repository.write({"a.py": "changed\n", "sub/new.py": "new\n"})
    target = read_target(["new.py"], diff="HEAD", directory=repository.path / "sub")
    assert target.left_out == ("untracked (git add includes it): sub/new.py",)


def test_git_that_hangs_is_an_error_within_its_time_limit(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"a.py": "changed\n"})
    with Git(repository.path) as git:
        monkeypatch.setattr("consilience.targets.git.TIMEOUT_SECONDS", 0.2)
        monkeypatch.setattr(git, "_command", lambda *arguments: ["sleep", "60"])
        with pytest.raises(SourceError, match="took longer"), git.blobs() as read_blob:
            read_blob("0" * 40)


def test_target_without_changes_has_no_documents(repository: Repository) -> None:
    assert read_target(directory=repository.path) == Target((), (), "the uncommitted changes")
    repository.write({"uv.lock": "locked\n"})
    repository.git("add", "uv.lock")
    assert read_target(staged=True, directory=repository.path) == Target(
        (), ("lock file: uv.lock",), "the staged changes"
    )


def test_excluded_file_is_in_no_document_unless_included(repository: Repository) -> None:
    repository.commit({"uv.lock": "locked\n", "a.bin": b"\0", "latin.txt": "ä".encode("latin-1")})
    repository.write({"uv.lock": "relocked\n", "a.bin": b"\0\0", "latin.txt": "ö".encode("latin-1"), "a.py": "a\n"})
    target = read_target(directory=repository.path)
    assert list(texts(target)) == ["diff HEAD", "a.py"]
    assert "locked" not in target.sources[0].text
    assert set(target.left_out) == {"lock file: uv.lock", "binary: a.bin", "not UTF-8 text: latin.txt"}
    assert "relocked" in read_target(directory=repository.path, include=["*.lock"]).sources[0].text


def test_repository_without_commits_is_compared_with_the_empty_tree(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "top")
    assert read_target(directory=repository.path).sources == ()
    repository.write({"a.py": "a\n"})
    repository.git("add", "a.py")
    for target in (read_target(directory=repository.path), read_target(staged=True, directory=repository.path)):
        assert target.sources[1].text == "a\n"
        assert "new file mode" in target.sources[0].text


def test_bare_repository_compares_commits(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a.py": "second\n"})
    bare = tmp_path / "bare"
    repository.git("clone", "--quiet", "--bare", ".", str(bare))
    assert texts(read_target(diff="main~1..main", directory=bare))["a.py"] == "second\n"
    with pytest.raises(SourceError, match="bare"):
        read_target(directory=bare)


def test_commits_are_compared_from_a_directory_without_the_files(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"a.py": "second\n"})
    monkeypatch.setenv("GIT_DIR", str(repository.path / ".git"))
    (tmp_path / "empty").mkdir()
    assert texts(read_target(diff="HEAD~1...HEAD", directory=tmp_path / "empty"))["a.py"] == "second\n"


def test_shallow_clone_names_the_remedy(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a.py": "second\n"})
    shallow = tmp_path / "shallow"
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.path}", str(shallow))
    with pytest.raises(SourceError, match=r"no commit 'HEAD~1'.*unshallow"):
        read_target(diff="HEAD~1..HEAD", directory=shallow)


def test_merge_in_progress_gives_the_files_with_conflict_markers(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.commit({"a.py": "topic\n"})
    repository.git("checkout", "--quiet", "main")
    repository.commit({"a.py": "main\n", "b.py": "main\n"})
    repository.git("merge", "--quiet", "topic", check=False)
    files = read_target(directory=repository.path)
    assert "<<<<<<<" in texts(files)["a.py"]
    assert files.left_out == ()
    staged = read_target(staged=True, directory=repository.path)
    assert staged.sources == ()
    assert staged.left_out == ("in a conflict: a.py",)


NAMES = [
    "with space.py",
    "-dash.py",
    "new\nline.py",
    "tab\t.py",
    'quote".py',
    "back\\slash.py",
    "ünï.py",
    ":(top)x.py",
    "*.py",
]


def test_file_names_like_options_patterns_or_lines_are_read_literally(repository: Repository) -> None:
    repository.commit(dict.fromkeys(NAMES, "one\n"))
    repository.write(dict.fromkeys(NAMES, "two\n"))
    target = read_target(directory=repository.path)
    printable = [name.replace("\n", "\ufffd").replace("\t", "\ufffd") for name in NAMES]
    assert sorted(texts(target)) == sorted(["diff HEAD", *printable])
    changes = parse_changes(number_documents(target.sources))
    assert changes is not None
    assert sorted(file.path for file in changes.files) == sorted(printable)
    assert all(file.document for file in changes.files)
    assert {text for name, text in texts(target).items() if name != "diff HEAD"} == {"two\n"}
    assert target.sources[0].text.count("+two\n") == len(NAMES)


def test_file_name_that_is_not_utf8_is_readable(repository: Repository) -> None:
    name = b"b\xfcro.py"
    (repository.path / os.fsdecode(name)).write_bytes(b"one\n")
    repository.git("add", "--all")
    target = read_target(staged=True, directory=repository.path)
    assert texts(target)["b\N{REPLACEMENT CHARACTER}ro.py"] == "one\n"


def test_crlf_and_form_feed_keep_the_line_numbers(repository: Repository) -> None:
    repository.commit({"dos.py": "a\r\nb\r\nc\r\n", "form.py": "a\n\fb\nc\n"})
    repository.write({"dos.py": "a\r\nB\r\nc\r\n", "form.py": "a\n\fB\nc\n"})
    target = read_target(directory=repository.path)
    assert texts(target)["dos.py"] == "a\nB\nc\n"
    assert texts(target)["form.py"].splitlines() == ["a", " B", "c"]
    assert len(target.sources[0].text.splitlines()) == target.sources[0].text.count("\n")


def hostile(repository: Repository, marker: Path) -> None:
    """Let the repository try to run `marker` in every way that a diff knows."""
    program = repository.path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    repository.write({".gitattributes": "*.py diff=evil filter=evil\n*.txt -diff\n"})
    for key, value in {
        **{f"filter.evil.{part}": str(program) for part in ("clean", "smudge", "process")},
        **{f"diff.evil.{part}": str(program) for part in ("textconv", "command")},
        **dict.fromkeys(
            ("core.fsmonitor", "core.pager", "pager.diff", "diff.external", "core.sshCommand"), str(program)
        ),
        "filter.evil.required": "true",
        "core.hooksPath": str(repository.path),
        "color.ui": "always",
        "diff.noprefix": "true",
        "diff.context": "0",
        "diff.renames": "false",
        "core.quotePath": "true",
        "diff.relative": "true",
        "diff.orderFile": "a.py",
        "core.attributesFile": "x",
        "diff.wordRegex": ".",
    }.items():
        repository.git("config", key, value)


def test_repository_configuration_runs_no_program_and_does_not_change_the_diff(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"a.txt": "one\n", "ü.txt": "ü\n"})
    change(repository)
    repository.write({"a.txt": "two\n", "ü.txt": "ö\n"})
    plain = read_target(directory=repository.path)
    marker = tmp_path / "ran"
    hostile(repository, marker)
    target = read_target(directory=repository.path)
    assert target.sources == plain.sources
    assert texts(target)["a.txt"] == "two\n"
    assert "+two\n" in target.sources[0].text
    assert not marker.exists()


def test_symbolic_links_are_not_followed(repository: Repository, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "b.py").write_text("SECRET\n")
    repository.commit({"sub/b.py": "b\n"})
    (repository.path / "link.py").symlink_to("/etc/passwd")
    repository.git("add", "link.py")
    repository.git("rm", "--quiet", "-r", "--cached", "sub")
    (repository.path / "sub" / "b.py").unlink()
    (repository.path / "sub").rmdir()
    repository.git("reset", "--quiet", "--", "sub")
    (repository.path / "sub").symlink_to(secret)
    target = read_target(directory=repository.path)
    assert list(texts(target)) == ["diff HEAD"]
    assert "+/etc/passwd\n" in target.sources[0].text
    assert "SECRET" not in target.sources[0].text


def test_repository_with_core_worktree_is_refused(repository: Repository) -> None:
    repository.git("config", "core.worktree", "/")
    with pytest.raises(SourceError, match=r"core\.worktree"):
        read_target(directory=repository.path)


def test_fifo_in_place_of_a_file_is_not_opened(repository: Repository) -> None:
    (repository.path / "a.py").unlink()
    os.mkfifo(repository.path / "a.py")
    target = read_target(directory=repository.path)
    assert [name for name in texts(target) if name == "a.py"] == []


def test_submodule_is_not_entered(repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit({"x.py": "x\n"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "module")
    target = read_target(directory=repository.path)
    assert list(texts(target)) == ["diff HEAD", ".gitmodules"]
    assert target.left_out == ("submodule: module",)


def test_large_files_and_many_files_are_left_out(repository: Repository) -> None:
    repository.write(
        {"big.txt": "line of text\n" * 4_000_000, **{f"many/{n:04}.py": f"x = {n}\n" for n in range(1_100)}}
    )
    repository.git("add", "--all")
    target = read_target(staged=True, directory=repository.path)
    assert len(target.sources) == 1_001
    assert target.left_out[0] == "larger than 1 MB: big.txt"
    assert target.left_out[1].startswith("after the first 1,000 files: many/1000.py")
    assert len(target.sources[0].text) < 500_000


MISTAKES = {
    "nowhere..HEAD": "there is no commit 'nowhere'",
    "HEAD..nowhere": "there is no commit 'nowhere'",
    "nowhere": "there is no commit 'nowhere'",
    "nowhere^!": "there is no commit 'nowhere'",
    "--output=x": "is not a range",
    "main..--output=x": "there is no commit",
    "HEAD:a.py": "is not a range",
    "a\0b": "is not a range",
    "": "is not a range",
}


@pytest.mark.parametrize(("range", "message"), MISTAKES.items())
def test_invalid_range_is_an_error(repository: Repository, range: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_target(diff=range, directory=repository.path)
    assert not (repository.path / "x").exists()


def test_invalid_arguments_or_missing_git_are_an_error(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError, match="exclude each other"):
        read_target(diff="HEAD", staged=True, directory=repository.path)
    with pytest.raises(SourceError, match="no changes"):
        read_target(["-"], diff="HEAD", directory=repository.path)
    with pytest.raises(SourceError, match="did not change"):
        read_target(["missing.py"], diff="HEAD", directory=repository.path)
    with pytest.raises(SourceError, match="outside repository"):
        read_target([tmp_path], diff="HEAD", directory=repository.path)
    with pytest.raises(SourceError, match="not in a Git repository"):
        read_target(directory=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="git was not found"):
        read_target(directory=repository.path)


def test_damaged_text_is_left_out(repository: Repository) -> None:
    repository.commit({"a.py": "second\n", "b.py": "b\n"})
    blob = repository.git("rev-parse", "HEAD:a.py").strip()
    path = repository.path / ".git" / "objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    target = read_target(diff="HEAD~1..HEAD", directory=repository.path)
    assert list(texts(target)) == ["diff HEAD~1..HEAD", "b.py"]
    assert target.left_out == ("missing in this clone: a.py",)
    assert target.unread == ("a.py",)


def test_a_git_that_ignores_the_protective_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(tmp_path / "top")
    real, old = shutil.which("git"), tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text(f'#!/bin/sh\nunset GIT_CONFIG_COUNT\nexec {real} "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    with pytest.raises(SourceError, match=r"Git 2\.31"):
        read_target((), directory=repository.path)


def move_and_edit(repository: Repository) -> None:
    repository.git("mv", "old.py", "moved.py")
    repository.write({"moved.py": CODE.replace("line", "other").replace("other 7\n", "other seven\n")})


def intend_to_add(repository: Repository) -> None:
    repository.write({"moved.py": CODE.replace("line", "other").replace("other 7\n", "other seven\n")})
    repository.git("add", "--intent-to-add", "moved.py")
    repository.git("rm", "--quiet", "old.py")


def edit_staged_file(repository: Repository) -> None:
    repository.write({"moved.py": "staged\n"})
    repository.git("add", "moved.py")
    repository.git("rm", "--quiet", "gone.py")
    repository.write({"moved.py": "other seven\n"})


@pytest.mark.parametrize("change", [move_and_edit, intend_to_add, edit_staged_file])
@pytest.mark.parametrize("diff", [None, "HEAD"])
def test_text_that_is_only_in_the_file_is_read_while_renames_are_detected(
    repository: Repository, change: Callable[[Repository], None], diff: str | None
) -> None:
    change(repository)
    target = read_target(diff=diff, directory=repository.path)
    assert "other seven\n" in texts(target)["moved.py"]
    assert "+other seven\n" in target.sources[0].text
    assert (target.left_out, target.unread) == ((), ())


def test_moved_directory_is_read_as_it_is_now(repository: Repository) -> None:
    repository.commit({"one/a.py": CODE, "one/b.py": CODE.replace("line", "next")})
    repository.git("mv", "one", "two")
    repository.write({"two/b.py": CODE.replace("line", "next").replace("next 9\n", "next nine\n")})
    target = read_target(directory=repository.path)
    assert "next nine\n" in texts(target)["two/b.py"]
    assert target.unread == ()


def test_files_that_should_have_been_read_are_named(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.targets.collection.MAX_FILE_BYTES", 1_000)
    repository.write(
        {"uv.lock": "1\n", "latin.php": "ä".encode("latin-1"), "a.png": b"\x89PNG\0", "big.py": "x\n" * 501}
    )
    repository.write({"wide.py": "é\n".encode("utf-16")})
    repository.git("add", "--all")
    target = read_target(directory=repository.path)
    assert set(target.unread) == {"latin.php", "big.py", "wide.py"}
    assert {"lock file: uv.lock", "binary: a.png"} < set(target.left_out)


def test_pictures_of_a_notebook_are_left_out_and_its_cells_are_read(repository: Repository) -> None:
    image, lines = "iVBORw0KGgo" * 2_000, '[\n      "iVBORw0KGgo\\n",\n      "AAAA"\n     ]'
    text = f'{{\n "source": ["x = 1"],\n "image/png": "{image}",\n "image/jpeg": {lines},\n "last": 1\n}}\n'
    repository.write({"n.ipynb": text, "page.md": f"![a](data:image/png;base64,{image})\nwords\n"})
    repository.git("add", "--all")
    target = read_target(directory=repository.path)
    notebook = texts(target)["n.ipynb"]
    assert '"x = 1"' in notebook
    assert "iVBOR" not in notebook + texts(target)["page.md"]
    assert notebook.count("\n") == text.count("\n")
    assert image not in target.sources[0].text
    assert target.left_out == ("pictures inside of: n.ipynb, page.md",)
    assert target.unread == ()
    named = read_target(["n.ipynb"], directory=repository.path)
    assert texts(named)["n.ipynb"] == notebook


def test_error_of_git_keeps_its_remedy(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(SourceError, match=r"dubious ownership.*git config --global --add safe\.directory"):
        read_target(directory=repository.path)


PROGRAMS = [
    *(f"filter.{name}.{part}" for name in ("evil", "", "a=b", "a.b", "A b") for part in ("clean", "smudge", "process")),
    *(f"diff.{name}.{part}" for name in ("evil", "", "a=b") for part in ("textconv", "command")),
    *("core.fsmonitor", "core.pager", "pager.diff", "diff.external", "core.sshCommand", "core.editor", "core.askPass"),
    *("core.alternateRefsCommand", "uploadpack.packObjectsHook", "gpg.program", "credential.helper", "sequence.editor"),
    *("alias.diff", "alias.ls-files", "alias.cat-file", "interactive.diffFilter", "ssh.variant", "merge.evil.driver"),
]


@pytest.mark.parametrize("place", ["config", "include", "worktree"])
def test_nothing_that_a_repository_configures_is_run(repository: Repository, tmp_path: Path, place: str) -> None:
    marker, program = tmp_path / "ran", repository.path / "evil.sh"
    repository.commit({"a.txt": "one\n", "b.c": "one\n", "c.d": "one\n", "e.f": "one\n", "g.h": "one\n"})
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    options = {"config": (), "include": ("--file", str(tmp_path / "included")), "worktree": ("--worktree",)}[place]
    if place == "worktree":
        repository.git("config", "extensions.worktreeConfig", "true")
    for key in PROGRAMS:
        repository.git("config", *options, key, str(program))
    repository.git("config", *options, "filter.evil.required", "true")
    repository.git("config", *options, "core.hooksPath", str(repository.path))
    if place == "include":
        repository.git("config", "include.path", str(tmp_path / "included"))
    for hook in ("post-index-change", "post-checkout", "pre-commit", "fsmonitor-watchman"):
        shutil.copy(program, repository.path / ".git" / "hooks" / hook)
    names = ("evil", "", "a=b", "a.b")
    attributes = "".join(f"*.{end} filter={n} diff={n}\n" for n, end in zip(names, ("txt", "c", "d", "f"), strict=True))
    (repository.path / ".git" / "info").mkdir(exist_ok=True)
    (repository.path / ".git" / "info" / "attributes").write_text("*.h filter=evil diff=evil\n")
    repository.write({".gitattributes": attributes, **dict.fromkeys(("a.txt", "b.c", "c.d", "e.f", "g.h"), "two\n")})
    target = read_target(directory=repository.path)
    assert target.sources[0].text.count("+two\n") == 5
    assert read_target(staged=True, directory=repository.path).sources == ()
    assert read_target(diff="HEAD~1..HEAD", directory=repository.path).sources
    assert not marker.exists()


def test_files_of_another_repository_are_not_read(repository: Repository, tmp_path: Path) -> None:
    private = Repository(tmp_path / "private")
    private.commit({"secret.py": "SECRET\n"})
    private.write({"secret.py": "CHANGED\n"})
    repository.git("config", "core.worktree", str(private.path))
    with pytest.raises(SourceError, match=r"core\.worktree"):
        read_target(directory=repository.path)
    lure = tmp_path / "lure"
    lure.mkdir()
    (lure / ".git").write_text(f"gitdir: {private.path / '.git'}\n")
    for diff in (None, "HEAD^!"):
        with pytest.raises(SourceError, match=r"names a repository elsewhere.*lure/\.git"):
            read_target(diff=diff, directory=lure)


def test_linked_work_tree_and_submodule_are_read(repository: Repository, tmp_path: Path) -> None:
    repository.git("worktree", "add", "--quiet", str(tmp_path / "linked"))
    (tmp_path / "linked" / "a.py").write_text("linked\n")
    assert "+linked\n" in read_target(directory=tmp_path / "linked").sources[0].text
    other = Repository(tmp_path / "other")
    other.commit({"x.py": "x\n"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "module")
    repository.write({"module/x.py": "inner\n"})
    assert "+inner\n" in read_target(directory=repository.path / "module").sources[0].text


def test_repository_with_other_ids_is_read(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "sha256", "--object-format=sha256")
    repository.commit({"a.py": "one\n"})
    repository.git("update-index", "--split-index")
    repository.write({"a.py": "two\n"})
    assert "+two\n" in read_target(directory=repository.path).sources[0].text
