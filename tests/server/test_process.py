"""`consilience serve` as a process: sessions to their end, streams that break, kills, restarts, ends."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from importlib.metadata import requires
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cli.loopback import MODEL, Provider, command, provider
from consilience.cli.serve import PACKAGES
from consilience.domain.events import CallCompleted, canonical_digest
from consilience.journal.sqlite import SqliteStore
from consilience.server.owners import add_owner
from kit.forks import PYTHONPATH
from server.served import SentEvent, Served, environment_of, serving, typed

pytestmark = pytest.mark.processes

EMERGENCE = {"protocol": "emergence", "settings": {"children": 2, "max_rounds": 2}}
DEBATE = {"protocol": "debate", "settings": {"debaters": 2, "max_messages": 24}}


@pytest.fixture
def model() -> Iterator[Provider]:
    with provider(typed) as found:
        yield found


@pytest.fixture
def served(tmp_path: Path, model: Provider) -> Iterator[Served]:
    with serving(tmp_path, model) as found:
        yield found


def digests(home: Path) -> dict[str, tuple[str, str]]:
    """Digests of journal and report of each session, by its task."""
    with closing(SqliteStore(home / "journal.db")) as store:
        found = {}
        for session in store.sessions():
            events = store.read(session)
            started, finished = store.beginning(session), store.ending(session)
            assert started is not None
            assert finished is not None
            assert finished.type == "session_finished"
            found[store.text(started.task)] = canonical_digest(events), finished.report_digest
        return found


def test_curl_runs_a_vote_to_its_end(served: Served) -> None:
    def curl(path: str, *options: str) -> str:
        done = subprocess.run(
            ["curl", "-sSfN", "--max-time", "60", *options, served.url + path], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    body = json.dumps({"protocol": "vote", "task": "Cats or dogs?", "settings": {"votes": 3}})
    session = json.loads(curl("/api/sessions", "-H", "content-type: application/json", "-d", body))["session"]
    assert curl(f"/api/sessions/{session}/events").count("event: call_completed") == 3
    assert "# Cats or dogs?" in curl(f"/api/sessions/{session}/export?format=markdown")


def test_debate_runs_to_its_end_with_its_notes_as_events(served: Served) -> None:
    session = served.begin(**DEBATE)
    events = [event for event in served.events(session) if event.id is not None]
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert events[-1].event == "session_finished"
    notes = [event for event in events if event.data["type"] == "noted"]
    assert notes, events[-1]
    assert all(note.event == note.data["name"] for note in notes)
    said = next(event for event in events if event.event == "call_completed")
    assert said.data["bodies"][said.data["text"]]
    report = served.get(f"/api/sessions/{session}")["report"]
    assert report["protocol"] == "debate"
    assert report["stop_reason"] != "failed"


def test_each_event_comes_once_and_in_order_with_the_connection_dropped_after_every_event(served: Served) -> None:
    session = served.begin(**EMERGENCE)
    seen: list[int] = []
    while True:
        stream = served.events(session, seen[-1] if seen else 0, header=len(seen) % 2 == 0)
        with closing(stream):  # type: ignore[type-var]
            event = next((event for event in stream if event.id is not None), None)
        if event is None:  # the answer to a reader that has everything
            break
        assert event.id is not None
        seen.append(event.id)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) == len([event for event in served.events(session) if event.id is not None])


def test_calls_in_flight_are_hinted_without_an_id(served: Served, model: Provider) -> None:
    model.open.clear()
    session = served.begin()
    for event in served.events(session):
        if event.event == "call_started":
            break
    assert event.id is None
    assert event.data["key"]
    model.open.set()
    assert served.wait(session)["stop_reason"] == "settled"


@pytest.mark.parametrize("fault", ["before_call#2", "after_reply#2", "after_commit#3", "before_finish"])
def test_killed_server_goes_on_when_it_is_started_again(tmp_path: Path, model: Provider, fault: str) -> None:
    undisturbed, disturbed = tmp_path / "a", tmp_path / "b"
    for home in (undisturbed, disturbed):
        home.mkdir()
    with serving(undisturbed, model) as served:
        served.wait(served.begin(**EMERGENCE))
    expected = digests(undisturbed)
    asked = len(model.asked)
    seen: list[SentEvent] = []
    with serving(disturbed, model, CONSILIENCE_FAULT=fault) as served:
        session = served.begin(**EMERGENCE)
        with suppress(OSError, ValueError):  # the connection breaks off, perhaps in the middle of an event
            for event in served.events(session):
                seen += [event] if event.id is not None else []
        assert served.process.wait(60) < 0
    with serving(disturbed, model) as served:
        last = seen[-1].id if seen else 0
        assert last is not None
        seen += [event for event in served.events(session, last) if event.id is not None]
        lost = served.wait(session)["ledger"]["actual"]["lost"]
        if fault.startswith("after_commit"):
            assert "consilience_takeovers_total 1" in served.get("/metrics")
    assert [event.id for event in seen] == list(range(1, len(seen) + 1))
    assert digests(disturbed) == expected
    assert asked <= len(model.asked) - asked <= asked + lost


def test_sigterm_ends_the_process_and_the_next_one_goes_on(tmp_path: Path, model: Provider) -> None:
    with serving(tmp_path, model) as served:
        finished = served.begin(task="First?")
        served.wait(finished)
        model.open.clear()
        model.arrived.clear()
        session = served.begin(task="Second?")
        assert model.arrived.wait(60)
        stream = served.events(session)
        next(stream)
        assert served.stop() == 0
        assert all(event.event != "session_finished" for event in stream)
    model.open.set()
    with serving(tmp_path, model) as served:
        served.wait(session)
    assert set(digests(tmp_path)) == {"First?", "Second?"}


def test_reader_that_stops_reading_holds_up_neither_the_run_nor_others(served: Served) -> None:
    address = urlsplit(served.url)
    sockets = []
    session = served.begin(**DEBATE, task="x" * 200_000)
    try:
        for _ in range(20):
            stalled = socket.create_connection((address.hostname or "", address.port or 0))
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stalled.sendall(f"GET /api/sessions/{session}/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            sockets.append(stalled)
        assert served.wait(session)["stop_reason"] != "failed"
    finally:
        for stalled in sockets:
            stalled.close()


def test_100_sessions_at_once_all_finish(served: Served) -> None:
    with ThreadPoolExecutor(16) as pool:
        sessions = list(pool.map(lambda n: served.begin(task=f"Question {n}?"), range(100)))
        reports = list(pool.map(served.wait, sessions))
    assert len(set(sessions)) == 100
    assert {report["stop_reason"] for report in reports} == {"settled"}
    pages = [served.get(f"/api/sessions?page={page}") for page in (1, 2, 3)]
    assert [len(page["sessions"]) for page in pages] == [50, 50, 0]
    assert pages[0]["total"] == 100
    assert pages[0]["pages"] == 2
    figures = served.get("/metrics")
    assert 'consilience_sessions{state="finished"} 100' in figures
    assert 'consilience_sessions_finished_total{stop_reason="settled"} 100' in figures


def test_full_disk_is_507_and_health_red_and_nothing_is_lost(tmp_path: Path, model: Provider) -> None:
    with serving(tmp_path, model, most=600_000) as served:
        kept = served.begin()
        served.wait(kept)
        status = 201
        for n in range(40):
            status, refused = served.request(
                "POST", "/api/sessions", {"protocol": "vote", "task": os.urandom(40_000).hex() + str(n)}
            )
            if status != 201:
                break
        assert status == 507, refused
        assert str(tmp_path) not in json.dumps(refused)
        assert served.request("GET", "/healthz")[0] == 507
        assert served.get(f"/api/sessions/{kept}")["state"] == "finished"
    with serving(tmp_path, model) as served:
        assert served.get("/healthz") == {"status": "ok"}
        assert served.get(f"/api/sessions/{kept}")["state"] == "finished"
        served.wait(served.begin(task="Now?"))


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of so many megabytes, where this process may mount one."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_disk(place: Path) -> Path:
    """Write a file that takes all the room that is left."""
    filler = place / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (65_536, 4_096):  # to the last page
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return filler


def test_server_goes_on_by_itself_when_a_full_disk_has_room_again(tmp_path: Path, model: Provider) -> None:
    with small_disk(tmp_path / "small", 4) as home:
        (tmp_path / "server.toml").write_text("min_free = 0\n")
        with serving(home, model, "--config", str(tmp_path / "server.toml")) as served:
            served.wait(served.begin(task="Before?"))
            model.open.clear()
            model.arrived.clear()
            running = served.begin(**EMERGENCE)
            assert model.arrived.wait(60)
            filler = fill_disk(home)
            for n in range(100):  # what SQLite has room for in its files
                status, _ = served.request(
                    "POST", "/api/sessions", {"protocol": "vote", "task": f"{os.urandom(20_000).hex()} {n}"}
                )
                if status != 201:
                    break
            assert status == 507
            model.open.set()
            assert served.request("GET", "/healthz")[0] == 507
            filler.unlink()
            served.wait(running)
            assert served.get("/healthz") == {"status": "ok"}
            served.wait(served.begin(task="After?"))
        with closing(SqliteStore(home / "journal.db")) as store:
            events = store.read(running)  # raises if one is missing
        completed = [event.key for event in events if isinstance(event, CallCompleted)]
        assert len(completed) == len(set(completed)) > 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--host", "0.0.0.0"), "there is no token file"),
        (("--config", "none.toml"), "cannot be read: No such file"),
        (("--config", "server.toml"), "max_bdoy"),
        (("--model", "exec:cat"), "is not a model that callers can be offered"),
    ],
)
def test_server_that_cannot_serve_says_why(
    tmp_path: Path, model: Provider, options: tuple[str, ...], told: str
) -> None:
    (tmp_path / "server.toml").write_text("max_bdoy = 3\n")
    named = () if "--model" in options else ("--model", MODEL)
    done = command("serve", "--port", "0", *named, *options, env=environment_of(tmp_path, model), cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_port_in_use_is_an_error(tmp_path: Path, model: Provider, served: Served) -> None:
    port = str(urlsplit(served.url).port)
    other = tmp_path / "other"
    other.mkdir()
    done = command("serve", "--port", port, "--model", MODEL, env=environment_of(other, model), cwd=other)
    assert done.returncode == 2
    assert "cannot listen there" in done.stderr


def test_package_alone_needs_nothing_of_the_server() -> None:
    always = [line for line in requires("consilience") or [] if "extra ==" not in line]
    assert any(line.startswith("pydantic") for line in always)
    assert not [line for line in always if re.split(r"[^\w]", line)[0] in {*PACKAGES, "sse"}]


def test_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "fastapi.py").write_text("raise ModuleNotFoundError('No module', name='fastapi')")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{PYTHONPATH}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "consilience", "serve"], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install 'consilience[server]'" in done.stderr


def test_model_whose_client_library_is_missing_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "groq.py").write_text("raise ModuleNotFoundError('No module', name='groq')")
    path = f"{tmp_path}{os.pathsep}{PYTHONPATH}"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(tmp_path), "GROQ_API_KEY": "k"}
    command = [sys.executable, "-m", "consilience", "serve", "--port", "0", "--model", "groq:llama-3.3-70b-versatile"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Run: pip install 'pydantic-ai-slim[groq]'" in done.stderr


def test_local_model_whose_weights_are_not_installed_is_refused_at_the_start(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "consilience", "serve", "--port", "0", "--model", "local"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "are not installed" in done.stderr
    assert "consilience models pull" in done.stderr


def test_help_of_serve_imports_neither_the_server_nor_what_runs_sessions(tmp_path: Path) -> None:
    program = "import sys; from consilience.cli.main import app; app(['serve', '--help'], standalone_mode=False); "
    heavy = ("fastapi", "uvicorn", "pydantic_ai", "sqlite3", "consilience.cli.errors", "consilience.domain.validation")
    program += f"print([name for name in {heavy} if name in sys.modules])"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout.endswith("[]\n"), done.stderr


def test_log_of_a_server_has_a_line_for_each_event(tmp_path: Path, model: Provider) -> None:
    tokens = tmp_path / "tokens.toml"
    token = add_owner(tokens, "anna")
    with serving(tmp_path, model, "--token-file", str(tokens)) as served:
        tokens.write_text("[[owner]\n")
        assert served.request("GET", "/api/due", headers={"Authorization": f"Bearer {token}"})[0] == 200
        assert served.stop() == 0
        assert served.process.stderr is not None
        log = served.process.stderr.read()
    assert re.fullmatch(r"\S+ \S+ ERROR the token file has changed and is not used .*tokens\.toml.*\n", log), log
    assert token not in log
