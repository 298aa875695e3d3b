"""Material beside what is reviewed: rules of the project, what the author says of the change, and further documents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from consilience.documents import is_office, read_document, read_text_file
from consilience.domain.document_shares import Purpose
from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.domain.paths import expanded
from consilience.targets.changes import Compared
from consilience.targets.collection import Collection, name_of, with_plain_lines
from consilience.targets.files import add_directory, check_links, read_regular
from consilience.targets.git import Git
from consilience.targets.ignore import parse_patterns

RULES_FILES = ("REVIEW.md", "AGENTS.md", "CLAUDE.md")
"""The first one that the project has is its rules."""
MAX_RULES_BYTES = 64_000
MAX_COMMITS = 100
MAX_MESSAGES_CHARS = 20_000

_FILE_MODES = (b"100644", b"100755")


def rules_of_commit(git: Git, compared: Compared | None) -> Iterator[Source]:
    """Yield the rules of a project from the base of a change, so that a change cannot bring its own; else from the last commit."""
    base = compared.arguments[0] if compared is not None and compared.arguments[0] != "--cached" else git.commit("HEAD")
    if base is None:
        return
    listed = git.run("ls-tree", "-z", "--full-tree", base, "--", *RULES_FILES)
    blobs = {}
    for entry in filter(None, listed.split(b"\0")):
        fields, _, path = entry.partition(b"\t")
        mode, _, blob = fields.split(b" ")
        if mode in _FILE_MODES:
            blobs[os.fsdecode(path)] = blob.decode("ascii")
    name = next((name for name in RULES_FILES if name in blobs), None)
    if name is not None:
        with git.blobs() as read_blob:
            yield from _rules(name, read_blob(blobs[name]))


def rules_of_directory(directory: Path) -> Iterator[Source]:
    """Yield the rules that lie in a directory outside of any repository."""
    for name in RULES_FILES:
        data = read_regular(directory / name)
        if data is not None:
            yield from _rules(name, data)
            return


def _rules(name: str, data: bytes) -> Iterator[Source]:
    remarks = (f"{name}: only its first {MAX_RULES_BYTES // 1000} kB are read",) if len(data) > MAX_RULES_BYTES else ()
    text = with_plain_lines(data[:MAX_RULES_BYTES].decode("utf-8", "replace")).replace(
        "\0", "\N{REPLACEMENT CHARACTER}"
    )
    if text.strip():
        yield Source(text=text, name=name, remarks=remarks, purpose="rules")


def commit_messages(git: Git, compared: Compared) -> Iterator[Source]:
    """Yield the messages of the commits of a range, the oldest first; nothing for changes that are not committed."""
    if compared.has_files or compared.arguments[0] == "--cached":
        return
    base, head = compared.arguments
    is_single = compared.name.endswith("^!")
    span = (head, f"^{base}") if not is_single and git.commit(base) else (head,)
    output = git.run(
        *("log", "--no-show-signature", "--no-color", "--no-notes", "--no-patch", "--no-decorate", "--encoding=UTF-8"),
        *(
            f"--max-count={MAX_COMMITS}",
            "--no-merges",
            "--reverse",
            "--format=%s%n%b%x00",
            *span,
        ),
        *(("--no-walk",) if is_single else ()),
    )
    messages = [message.strip() for message in output.decode("utf-8", "replace").split("\0") if message.strip()]
    text = with_plain_lines("\n\n---\n\n".join(messages)).strip()
    if text:
        remarks = ("commit messages: only their beginning is read",) if len(text) > MAX_MESSAGES_CHARS else ()
        yield Source(text=text[:MAX_MESSAGES_CHARS] + "\n", name="commit messages", remarks=remarks, purpose="intent")


def read_given(names: Sequence[str], directory: Path, purpose: Purpose) -> Iterator[Source]:
    """Yield files, and the files of directories, as material. Raises `SourceError`."""
    taken = Collection(parse_patterns(()))
    for name in names:
        path = directory / expanded(name)
        check_links(path)
        if path.is_dir():
            add_directory(path, os.path.normpath(name), taken)
            yield from (source.model_copy(update={"purpose": purpose}) for source in taken.sources)
            taken.sources.clear()
        elif is_office(path.name):
            yield read_document(path, "the file").source(name_of(name)).model_copy(update={"purpose": purpose})
        else:
            text = with_plain_lines(read_text_file(path, "the file"))
            if not text.strip():
                raise SourceError("the text is empty", where=name, do="Leave it out or fill it.")
            shown_name = os.path.normpath(name) if purpose == "context" else path.name
            yield Source(text=text, name=name_of(shown_name), purpose=purpose)
