"""Reading a unified diff: each of its lines has the right place in the right file, and nothing makes it raise."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.engine.sources import Document
from consilience.targets.diffs import Changes, FileChange, parse_changes

# Lines that look like parts of a diff, in addition to ordinary ones.
LINE = st.sampled_from(
    [
        "",
        "a",
        "b",
        "c",
        " d",
        "-- e",
        "++ f",
        "@@ -1 +1 @@",
        "diff --git a/x b/x",
        "+",
        "-",
        "--- a/x",
        "+++ b/y",
        "\\ z",
        "\tg",
    ]
)
TEXT = st.lists(LINE, max_size=14)
SECTION = "@@ -{},{} +{},{} @@ --- a/f.py"


def diff_of(text: str, *files: str, name: str = "diff main..HEAD") -> Changes:
    changes = parse_changes([Document("S1", name, text), *(Document(f"S{n}", f, "") for n, f in enumerate(files, 2))])
    assert changes is not None
    return changes


def unified(old: list[str], new: list[str], path: str, context: int, section: str = "") -> str:
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="", n=context)
    return "".join(f"{line}{section if line.startswith('@@') and line.endswith('@@') else ''}\n" for line in lines)


def assert_right(file: FileChange, diff: list[str], old: list[str], new: list[str]) -> None:
    """Compare each place with the two texts; together they are all that changed."""
    assert file.places
    seen: dict[str, set[int]] = {"new": set(), "old": set()}
    for number, (side, line) in file.places.items():
        text = diff[number - 1]
        assert (text[1:], text[:1] == "-") == ((new if side == "new" else old)[line - 1], side == "old")
        assert line not in seen[side]
        seen[side].add(line)
    opcodes = difflib.SequenceMatcher(None, old, new).get_opcodes()
    changed = {n for tag, _, _, first, last in opcodes if tag != "equal" for n in range(first + 1, last + 1)}
    removed = {n for tag, first, last, _, _ in opcodes if tag != "equal" for n in range(first + 1, last + 1)}
    marked = {line for start, end in file.added for line in range(start, end + 1)}
    assert changed <= marked & seen["new"] | (set() if seen["new"] else changed)
    assert removed == seen["old"]
    gaps = {n for tag, _, _, first, _ in opcodes if tag == "delete" for n in (first, first + 1)}
    assert marked <= changed | gaps | {1}


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_parse_changes_maps_every_diff_line_to_its_file_line(
    texts: list[tuple[list[str], list[str]]], context: int, git: bool
) -> None:
    texts = [(old, new) for old, new in texts if old != new]
    diff = "".join(
        (f"diff --git a/f{n}.py b/f{n}.py\nindex 1..2 100644\n" if git else "")
        + unified(old, new, f"f{n}.py", context, " def --- a/g(x):" if git else "")
        for n, (old, new) in enumerate(texts)
    )
    changes = parse_changes([Document("S1", "diff main..HEAD", diff)])
    if not texts:
        assert changes is None
        return
    assert changes is not None
    lines = diff.split("\n")
    assert [file.path for file in changes.files] == [f"f{n}.py" for n in range(len(texts))]
    for file, (old, new) in zip(changes.files, texts, strict=True):
        assert_right(file, lines, old, new)
        assert all(changes.file_at(number) is file for number in range(file.diff_lines[0], file.diff_lines[1] + 1))
        new_text, old_text = changes.texts["new"].split("\n"), changes.texts["old"].split("\n")
        for number, (side, line) in file.places.items():
            assert (new_text if side == "new" else old_text)[number - 1] == (new if side == "new" else old)[line - 1]
            assert side == "new" or new_text[number - 1] == ""


@given(
    st.lists(st.one_of(LINE, st.text(max_size=8), st.sampled_from([SECTION, "@@ -1,2 +1,2 @@", "@@@ -1 -1 +1 @@@"])))
)
def test_parse_changes_of_any_text_does_not_raise(lines: list[str]) -> None:
    for head in ("", "diff --git a/x b/x\n", "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n"):
        changes = parse_changes([Document("S1", "diff a", head + "\n".join(lines)), Document("S2", "x", "a\n")])
        for file in changes.files if changes else ():
            assert file.path
            assert file.diff_lines[0] <= file.diff_lines[1]
            assert all(
                file.diff_lines[0] <= n <= file.diff_lines[1] and line >= 1 for n, (_, line) in file.places.items()
            )


@given(st.text(alphabet="ab \n\r\x0c\u2028+-", max_size=60))
def test_parse_changes_counts_lines_like_the_document(content: str) -> None:
    """A form feed ends a line for Python, and so for the numbers in prompts, but not for Git."""
    text = f"--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n {content}\n"
    document = Document("S1", "diff a", text)
    changes = diff_of(text)
    assert len(changes.texts["new"].splitlines()) >= document.line_count
    for number, (side, _) in changes.files[0].places.items():
        assert document.line_count >= number
        assert document.text.splitlines()[number - 1].endswith(changes.texts[side].splitlines()[number - 1])


# --- what Git writes


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    for key, value in (("user.name", "t"), ("user.email", "t@example.com"), ("core.autocrlf", "false")):
        git(tmp_path, "config", key, value)
    return tmp_path


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")


def commit(directory: Path, **files: bytes | None) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "--allow-empty", "-m", "c")


BEFORE = b"".join(b"line %d\n" % n for n in range(1, 31))


def test_parse_changes_reads_every_kind_of_git_header(repository: Path) -> None:
    """Renames with and without changes, new, deleted, empty and binary files, modes, odd names, all in one diff."""
    commit(
        repository,
        **{
            "moved.py": BEFORE,
            "edited.py": BEFORE + b"end\n",
            "gone.py": b"a\nb\n",
            "mode.sh": b"x\n",
            "b in.bin": b"\0\1",
            "caf\u00e9 \u2603.txt": b"one\n",
            'q"uote\\d.txt': b"one\n",
            "tab\there.txt": b"one\n",
            "a/dir name/x y.txt": b"one\n",
        },
    )
    git(repository, "mv", "moved.py", "new place.py")
    git(repository, "mv", "edited.py", "edited2.py")
    (repository / "edited2.py").write_bytes(BEFORE.replace(b"line 7\n", b"line seven\n") + b"end\n")
    (repository / "mode.sh").chmod(0o755)
    commit(
        repository,
        **{
            "gone.py": None,
            "b in.bin": b"\0\2",
            "empty.py": b"",
            "added.py": b"1\n2",
            "caf\u00e9 \u2603.txt": b"two\n",
            'q"uote\\d.txt': b"two\n",
            "tab\there.txt": b"two\n",
            "a/dir name/x y.txt": b"two\n",
        },
    )
    for options in ((), ("--no-prefix",), ("--src-prefix=i/", "--dst-prefix=w/")):
        text = git(repository, "diff", "--find-renames", *options, "HEAD^", "HEAD")
        names = ["a/dir name/x y.txt", "added.py", "edited2.py", "caf\u00e9 \u2603.txt"]
        changes = diff_of(text, *names)
        files = {file.path: file for file in changes.files}
        assert files.keys() == {
            *names,
            "b in.bin",
            "empty.py",
            "gone.py",
            "mode.sh",
            "new place.py",
            'q"uote\\d.txt',
            "tab\N{REPLACEMENT CHARACTER}here.txt",
        }
        assert files["new place.py"].old_path == "moved.py"
        assert (files["edited2.py"].old_path, files["edited2.py"].added) == ("edited.py", ((7, 7),))
        assert (files["gone.py"].added, files["gone.py"].document) == ((), None)
        assert {side for side, _ in files["gone.py"].places.values()} == {"old"}
        assert (files["added.py"].old_path, files["added.py"].added) == ("", ((1, 2),))
        assert files["added.py"].ends_without_newline
        assert files["empty.py"].old_path == ""
        assert files["a/dir name/x y.txt"].document == "S2"
        assert [files[name].document for name in names] == ["S2", "S3", "S4", "S5"]
        assert not files["mode.sh"].places


def test_parse_changes_reads_a_merge_diff(repository: Path) -> None:
    commit(repository, **{"x.py": BEFORE})
    git(repository, "checkout", "-q", "-b", "other")
    commit(repository, **{"x.py": BEFORE.replace(b"line 5\n", b"theirs\n")})
    git(repository, "checkout", "-q", "main")
    commit(repository, **{"x.py": BEFORE.replace(b"line 5\n", b"ours\n")})
    subprocess.run(["git", "merge", "-q", "other"], cwd=repository, capture_output=True, check=False)
    commit(repository, **{"x.py": BEFORE.replace(b"line 5\n", b"both\n")})
    text = git(repository, "show", "--format=medium", "HEAD")
    assert "@@@" in text
    (file,) = diff_of(text).files
    assert (file.path, file.added) == ("x.py", ((5, 5),))
    new = (repository / "x.py").read_text().splitlines()
    lines = text.splitlines()
    assert {side for side, _ in file.places.values()} == {"new", "old"}
    for number, (side, line) in file.places.items():
        assert side == "old" or lines[number - 1][2:] == new[line - 1]


def test_parse_changes_reads_windows_line_ends(repository: Path) -> None:
    commit(repository, **{"x.py": BEFORE.replace(b"\n", b"\r\n")})
    commit(repository, **{"x.py": BEFORE.replace(b"line 5\n", b"five\n").replace(b"\n", b"\r\n")})
    (file,) = diff_of(git(repository, "diff", "HEAD^", "HEAD")).files
    assert file.new_lines[5] == "five"
    assert file.added == ((5, 5),)


def test_parse_changes_reads_mailed_patches(repository: Path) -> None:
    """Of two commits, each with its message before and a signature after."""
    commit(repository, **{"x.py": BEFORE})
    commit(repository, **{"x.py": BEFORE.replace(b"line 5\n", b"five\n")})
    commit(repository, **{"x.py": BEFORE.replace(b"line 5\n", b"five\n") + b"last\n"})
    text = git(repository, "format-patch", "--stdout", "HEAD~2")
    changes = diff_of(text, name="-")
    assert [file.added for file in changes.files] == [((5, 5),), ((31, 31),)]
    assert all(not text.splitlines()[n - 1].startswith("-- ") for file in changes.files for n in file.places)


# --- what others write


PLAIN = "--- old/x.py\t2020-01-01 00:00:00\n+++ new/x.py\t2020-01-02 00:00:00\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("text", "documents", "path"),
    [
        (PLAIN, [], "new/x.py"),
        (PLAIN, ["x.py"], "x.py"),
        ("Index: x.py\n====\n--- x.py\t(revision 1)\n+++ x.py\t(working copy)\n@@ -1 +1 @@\n-a\n+b\n", [], "x.py"),
        ("diff -u a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n", [], "x.py"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n", ["b/x.py"], "b/x.py"),
    ],
)
def test_parse_changes_reads_headers_of_other_tools(text: str, documents: list[str], path: str) -> None:
    (file,) = diff_of(text, *documents).files
    assert file.path == path
    assert file.document == ("S2" if documents else None)
    assert file.added == ((1, 1),)


def test_parse_changes_assigns_text_after_the_diff_to_no_file() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n+not in the hunk\n-- \nBye\n"
    changes = diff_of(text)
    (file,) = changes.files
    assert file.diff_lines == (1, 6)
    assert changes.file_at(7) is None
    assert set(file.new_lines) == {1, 2}


def test_parse_changes_ends_a_short_hunk_at_the_next_file() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n a\n-b\n+c\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-p\n+q\n"
    assert [(file.path, file.added) for file in diff_of(text).files] == [("x", ((2, 2),)), ("y", ((1, 1),))]


def test_parse_changes_marks_the_neighbours_of_removed_lines_as_changed() -> None:
    text = "--- a/x\n+++ b/x\n@@ -4,4 +4,3 @@\n four\n-five\n six\n seven\n"
    (file,) = diff_of(text).files
    assert file.added == ((4, 5),)
    assert (file.hunks[0].old, file.hunks[0].new) == ((4, 7), (4, 6))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.md", "Some text\n\n```diff\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n```\n"),
        ("diff of approaches", "We compare two.\n"),
        ("x.diff", ""),
        ("-", "--- a\ntext\n"),
    ],
)
def test_parse_changes_of_a_text_without_a_diff_returns_none(name: str, text: str) -> None:
    assert parse_changes([Document("S1", name, text)]) is None


def test_parse_changes_of_a_patch_beside_unrelated_files_returns_none() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    assert parse_changes([Document("S1", "a.diff", patch), Document("S2", "other.py", "z\n")]) is None
    assert parse_changes([Document("S1", "a.diff", patch), Document("S2", "x", "b\n")]) is not None
    assert parse_changes([]) is None
