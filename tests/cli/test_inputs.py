"""Input files: size limits, also for pipes, and links that lead out of a directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore

FILES = Path(__file__).parent.parent / "fixtures" / "documents"
RUN = ("solo", TASK, "--model", MODEL)
TOO_LONG = "it has more than {} MB, the maximum"


@contextmanager
def pipe_with_data(path: Path, data: bytes) -> Iterator[None]:
    """Write `data` into a new named pipe until its reader closes it."""
    os.mkfifo(path)

    def pour() -> None:
        with suppress(BrokenPipeError):
            path.write_bytes(data)

    writer = threading.Thread(target=pour)
    writer.start()
    try:
        yield
    finally:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # if nobody opened it
        writer.join()


# --- bounds


def directory_of(name: str, here: Path) -> tuple[str, ...]:
    (here / "prompts").mkdir()
    (here / "prompts" / "instructions.j2").symlink_to(here / name)
    return ("--prompts", "prompts")


def configuration(name: str, here: Path) -> tuple[str, ...]:
    (here / "consilience.toml").symlink_to(here / name)
    return ()


READERS: dict[str, tuple[int, Callable[[str, Path], tuple[str, ...]]]] = {
    "source": (10, lambda name, here: (*RUN, "--source", name)),
    "task": (10, lambda name, here: ("solo", f"@{name}", "--model", MODEL)),
    "draft": (10, lambda name, here: ("refinement", TASK, "--model", MODEL, "--draft", name)),
    "env-file": (1, lambda name, here: (*RUN, "--env-file", name)),
    "panel": (1, lambda name, here: (*RUN, "--panel", f"./{name}")),
    "hierarchy": (1, lambda name, here: ("refinement", TASK, "--model", MODEL, "--hierarchy", f"./{name}")),
    "prompts": (1, lambda name, here: (*RUN, *directory_of(name, here))),
    "configuration": (1, lambda name, here: (*RUN, *configuration(name, here))),
    "tasks": (50, lambda name, here: ("compare", "--tasks", name, "--protocols", "solo", "--model", MODEL)),
}
every_reader = pytest.mark.parametrize(("bound", "arguments"), READERS.values(), ids=READERS)


@every_reader
def test_oversized_pipe_is_refused_with_the_limit(
    cli: Cli, town: Town, here: Path, bound: int, arguments: Callable[[str, Path], tuple[str, ...]]
) -> None:
    with pipe_with_data(here / "pipe", b"# \n" * (bound * 1_000_000)):
        done = cli(*arguments("pipe", here))
    assert done.exit_code == 2, done.output
    assert TOO_LONG.format(bound) in done.stderr
    assert "Where: " in done.stderr
    assert town.requests == []


@pytest.mark.parametrize(
    "arguments", [("solo", "-", "--model", MODEL), (*RUN, "--source", "-")], ids=["task", "source"]
)
def test_oversized_stdin_is_refused_with_the_limit(cli: Cli, town: Town, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments, input=b"x" * 10_000_001)
    assert done.exit_code == 2
    assert TOO_LONG.format(10) in done.stderr
    assert "Where: standard input" in done.stderr


def test_document_is_read_from_a_pipe(cli: Cli, town: Town, here: Path) -> None:
    with pipe_with_data(here / "pipe", b"The ferry runs at nine."):
        assert cli(*RUN, "--source", "pipe").exit_code == 0
    assert "The ferry runs at nine." in town.requests[0].user


def test_journal_as_an_input_file_is_refused(cli: Cli, town: Town, home: Path) -> None:
    assert cli(*RUN).exit_code == 0
    for arguments in (("--source", str(journal_path())), ("--panel", str(home / "journal.db"))):
        done = cli(*RUN, *arguments)
        assert done.exit_code == 2
        assert "it is a file of the journal" in done.stderr
    assert len(recorded()) == 1


# --- directories


def test_source_directory_skips_links_and_hidden_files(cli: Cli, town: Town, here: Path) -> None:
    docs, private = here / "docs", here / "private"
    (docs / "more").mkdir(parents=True)
    (docs / "more" / "tides.md").write_text("High tide is at noon.")
    (docs / ".keys").write_text("hidden words")
    private.mkdir()
    (private / "key.txt").write_text("private words")
    (docs / "inside.md").symlink_to("more/tides.md")
    (docs / "into").symlink_to("more")
    (docs / "key.md").symlink_to(private / "key.txt")
    (docs / "folder").symlink_to(private)
    (docs / "keys.md").symlink_to(".keys")
    (docs / "nowhere.md").symlink_to("gone.md")
    done = cli(*RUN, "--source", "docs")
    assert done.exit_code == 0
    shown = town.requests[0].user
    assert "private words" not in shown
    assert "hidden words" not in shown
    assert shown.count("High tide is at noon.") == 1, "links are not followed"
    links = "docs/folder, docs/inside.md, docs/into, docs/key.md, docs/keys.md, docs/nowhere.md"
    assert f"docs: left out: link: {links}\n" in done.stderr
    assert "docs: left out: hidden: docs/.keys\n" in done.stderr


def folder(here: Path) -> Path:
    (here / "docs").mkdir()
    for name in ("columns.pdf", "talk.pptx", "locked.pdf"):
        shutil.copy(FILES / name, here / "docs")
    (here / "docs" / "page.html").write_text("<p>The fare is 3 euros.</p>")
    (here / "docs" / "photo.png").write_bytes(b"\x89PNG\x00")
    (here / "docs" / "nothing.pdf").write_bytes(b"")
    (here / "docs" / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(600))
    (here / "docs" / "budget.xlsx").write_bytes(
        b"\xd0\xcf\x11\xe0" + bytes(600) + "EncryptedPackage".encode("utf-16-le") + bytes(600)
    )
    return here / "docs"


SKIPPED = [
    "docs: left out: cannot be read: it needs a password: docs/budget.xlsx",
    "docs: left out: cannot be read: the PDF needs a password: docs/locked.pdf",
    "docs: left out: empty: docs/nothing.pdf",
    "docs: left out: cannot be read: it is an old Word, Excel, PowerPoint or Outlook file: docs/old.doc",
    "docs: left out: binary: docs/photo.png",
    "docs/columns.pdf: pages without text, such as scans: 2",
    "docs/talk.pptx: pictures left out: 1",
    "docs/talk.pptx: hidden slides left out: 1",
]


def test_what_is_skipped_in_a_directory_is_in_the_plan_its_json_and_the_report(
    cli: Cli, town: Town, here: Path
) -> None:
    folder(here)
    plan = json.loads(cli(*RUN, "--source", "docs", "--dry-run", "--json").stdout)
    assert [note for note in plan["notes"] if note in SKIPPED] == SKIPPED
    printed = cli(*RUN, "--source", "docs", "--dry-run").stdout
    assert all(f"- {line}" in printed for line in SKIPPED)
    done = cli(*RUN, "--source", "docs", "--json")
    assert [warning for warning in json.loads(done.stdout)["warnings"] if warning in SKIPPED] == SKIPPED
    assert "docs: left out: binary: docs/photo.png\n" in done.stderr
    shown = town.requests[0].user
    assert "| The last page says: 3 March 2026.\n" in shown
    assert "1| The fare is 3 euros.\n" in shown


def test_absolute_path_of_a_document_is_not_in_prompts_and_reports(cli: Cli, town: Town, here: Path) -> None:
    folder(here)
    shutil.copy(FILES / "report.docx", here)
    done = cli(*RUN, "--source", str(here / "docs"), "--source", str(here / "report.docx"), "--out", "out")
    assert done.exit_code == 0
    assert "docs: left out: binary: docs/photo.png\n" in done.stderr
    names = [document["name"] for document in json.loads((here / "out" / "report.json").read_text())["documents"]]
    assert names == ["docs/columns.pdf", "docs/page.html", "docs/talk.pptx", "report.docx"]
    assert str(here) not in town.requests[0].user
    for file in (here / "out").iterdir():
        assert str(here) not in file.read_text(), file.name


def test_documents_of_one_name_are_called_by_their_paths(cli: Cli, town: Town, here: Path) -> None:
    for directory in ("old", "new"):
        (here / directory).mkdir()
        (here / directory / "fares.md").write_text(f"The {directory} fare.")
    paths = [str(here / directory / "fares.md") for directory in ("old", "new")]
    done = cli(*RUN, "--source", paths[0], "--source", paths[1], "--json")
    assert [document["name"] for document in json.loads(done.stdout)["documents"]] == paths


def test_document_of_any_format_is_read_from_standard_input(cli: Cli, town: Town) -> None:
    assert cli(*RUN, "--source", "-", input=(FILES / "report.docx").read_bytes()).exit_code == 0
    assert "1| # Harbour report 2025\n" in town.requests[0].user


def test_review_reads_office_files_and_leaves_html_as_it_is(cli: Cli, town: Town, here: Path) -> None:
    folder(here)
    shutil.copy(FILES / "contract.docx", here)
    plan = json.loads(cli("review", "docs", "contract.docx", "--model", MODEL, "--dry-run", "--json").stdout)
    names = [document["name"] for document in plan["target"]["documents"]]
    assert names == ["docs/columns.pdf", "docs/page.html", "docs/talk.pptx", "contract.docx"]
    assert plan["target"]["documents"][1]["lines"] == 1
    assert "cannot be read: the PDF needs a password: docs/locked.pdf" in plan["target"]["left_out"]
    assert "contract.docx: tracked deletions left out: 1" in plan["notes"]


def test_source_link_on_the_command_line_is_followed(cli: Cli, town: Town, here: Path) -> None:
    (here / "real").mkdir()
    (here / "real" / "tides.md").write_text("High tide is at noon.")
    (here / "folder").symlink_to("real")
    (here / "file.md").symlink_to("real/tides.md")
    for arguments in ("folder", "file.md"):
        assert cli(*RUN, "--source", arguments).exit_code == 0
        assert "High tide is at noon." in town.requests[-1].user


@pytest.mark.parametrize("named", ["tides.md", "private", "private/key.txt"])
def test_source_link_out_of_a_repository_is_refused(
    cli: Cli, town: Town, here: Path, tmp_path: Path, named: str
) -> None:
    (tmp_path / "key.txt").write_text("private words")
    (here / ".git").mkdir()
    (here / "tides.md").symlink_to(tmp_path / "key.txt")
    (here / "private").symlink_to(tmp_path)
    done = cli(*RUN, "--source", named)
    assert (done.exit_code, town.requests) == (2, [])
    assert "the link leads out of its repository" in done.stderr


def test_source_directory_with_links_only_is_empty(cli: Cli, town: Town, here: Path) -> None:
    (here / "docs").mkdir()
    (here / "docs" / "a.md").symlink_to("/etc/hostname")
    done = cli(*RUN, "--source", "docs")
    assert done.exit_code == 2
    assert "the directory contains no text (link: docs/a.md)" in done.stderr


# --- seats


PANEL = (
    "--persona",
    "Treasurer: You count.",
    "--persona",
    "Ferry captain: You sail.",
    "--persona",
    "Mayor: You decide.",
)


@pytest.mark.parametrize(
    ("sources", "documents"),
    [
        (("L2N1,L2N3=tides.md",), [("tides.md", ["L2N1", "L2N3"])]),
        (("Ferry captain=tides.md",), [("tides.md", ["L2N2"])]),
        (("ferry CAPTAIN, L2N1=tides.md",), [("tides.md", ["L2N2", "L2N1"])]),
        (("Mayor=tides.md", "L2N1=tides.md"), [("tides.md", ["L2N3", "L2N1"])]),
        (("Mayor=tides.md", "tides.md"), [("tides.md", None)]),
        (("Mayor=docs", "Treasurer=docs"), [("docs/a.md", ["L2N3", "L2N1"])]),
        (("a=b.md",), [("a=b.md", None)]),
    ],
)
def test_document_given_to_several_seats_is_one_document(
    cli: Cli, town: Town, here: Path, sources: tuple[str, ...], documents: list[tuple[str, list[str] | None]]
) -> None:
    (here / "docs").mkdir()
    for name in ("tides.md", "a=b.md", "docs/a.md"):
        (here / name).write_text("High tide is at noon.")
    arguments = [argument for source in sources for argument in ("--source", source)]
    assert (
        cli("emergence", TASK, "--children", "3", "--depth", "2", *PANEL, "--model", MODEL, *arguments).exit_code == 0
    )
    (session,) = recorded()
    with closing(SqliteStore(journal_path())) as store:
        started = store.beginning(session)
        assert started is not None
        assert [(s.name, s.agents and list(s.agents)) for s in started.sources] == documents
    only = documents[0][1]
    shown = {request.agent for request in town.requests if "High tide is at noon." in request.user}
    assert only is None or shown == set(only)


def test_source_for_an_unknown_seat_among_several_is_refused_by_its_name(cli: Cli, town: Town, here: Path) -> None:
    (here / "tides.md").write_text("High tide is at noon.")
    done = cli("emergence", TASK, *PANEL, "--model", MODEL, "--source", "Mayor,Pirate=tides.md")
    assert (done.exit_code, town.requests) == (2, [])
    assert "nor an agent 'Pirate'" in done.stderr


# --- addresses


@pytest.mark.parametrize(
    "arguments",
    [
        (*RUN, "--source", "https://example.org/a?b=c"),
        (*RUN, "--source", "https://example.org/a?b=c", "--dry-run"),
        ("solo", "@https://example.org/a?b=c", "--model", MODEL),
        ("ask", TASK, "https://example.org/a?b=c", "--model", MODEL),
        ("review", "https://example.org/a?b=c", "--model", MODEL),
    ],
)
def test_address_is_refused_with_the_command_that_saves_it(cli: Cli, town: Town, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments)
    assert (done.exit_code, town.requests) == (2, [])
    assert "is an address, and nothing is fetched from the network" in done.stderr
    assert "Save the page and give the file: curl -L -o page.html 'https://example.org/a?b=c'" in done.stderr


def test_dealt_documents_are_in_the_plan_and_each_agent_is_shown_its_share(cli: Cli, town: Town, here: Path) -> None:
    for place in ("north", "south"):
        (here / "docs" / place).mkdir(parents=True)
        for n in range(2):
            (here / "docs" / place / f"{n}.md").write_bytes(
                f"# Part {n}\r\n\r\nThe {place} quay has {n} cranes.".encode()
            )
    run = ("emergence", TASK, "--model", MODEL, "--max-rounds", "1", "--source", "docs", "--deal", "directory")
    plan = cli(*run, "--dry-run")
    assert re.search(r"L2N1 +│? *S1, S2", plan.stdout.replace("|", " ")), plan.stdout
    shares = json.loads(cli(*run, "--dry-run", "--json").stdout)["shares"]
    assert [share["documents"] for share in shares] == [["S1", "S2"], ["S3", "S4"]]
    assert town.requests == []
    result = cli(*run)
    assert result.exit_code == 0, result.stderr
    workers = {request.agent: request.user for request in town.requests if "leaf_respond" in request.key}
    own = {agent: text.partition("related lines")[0] for agent, text in workers.items()}
    assert "north quay" in own["L2N1"]
    assert "south quay" not in own["L2N1"]
    assert "south quay" in own["L2N2"]
    assert all("S4 docs/south/1.md" in request.user for request in town.requests)
    refused = cli("vote", TASK, "--model", MODEL, "--source", "docs", "--deal", "size")
    assert refused.exit_code == 2
    assert "vote cannot deal documents" in refused.stderr
