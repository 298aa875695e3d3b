"""The child process in which llama.cpp runs: `python -m consilience.models.local_server`.

Its parent writes one line of JSON settings to its standard input and keeps the pipe open as a lifeline: when that ends,
the child leaves at once, whatever it is doing. It answers with one line of JSON on standard output, either
`{"url": ..., "context": ...}` when requests would be answered, or `{"error": ...}`. Everything llama.cpp prints goes to
standard error. Nothing of this package is imported here.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import IO, Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_STRING = 1 << 24


def context_length(path: Path) -> int | None:
    """The longest context the model in a GGUF file was made for; None if the file does not say.

    Raises `ValueError` if it is no GGUF file or its header is cut.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("the file does not begin with GGUF")
        try:
            _version, _tensors, pairs = struct.unpack("<IQQ", _take(file, 20))
            for _ in range(pairs):
                key = _value(file, _STRING)
                (kind,) = struct.unpack("<I", _take(file, 4))
                value = _value(file, kind)
                if isinstance(key, str) and key.endswith(".context_length") and isinstance(value, int):
                    return value
        except (KeyError, EOFError) as error:
            raise ValueError("the header of the file is damaged or cut") from error
    return None


def _take(file: IO[bytes], count: int) -> bytes:
    taken = file.read(count)
    if len(taken) < count:
        raise EOFError
    return taken


def _value(file: IO[bytes], kind: int) -> object:
    """Read one metadata value; of arrays only the length is kept."""
    if kind == _STRING:
        (length,) = struct.unpack("<Q", _take(file, 8))
        if length > _LONGEST_STRING:
            raise EOFError
        return _take(file, length).decode(errors="replace")
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", _take(file, 12))
        if inner in _SCALARS:
            file.seek(count * struct.calcsize("<" + _SCALARS[inner]), os.SEEK_CUR)
        else:
            for _ in range(count):
                _value(file, inner)
        return count
    code = "<" + _SCALARS[kind]
    value: object = struct.unpack(code, _take(file, struct.calcsize(code)))[0]
    return value


def usable_cores() -> int | None:
    """How many cores this process is confined to by affinity or a container; None if it is not confined."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores if cores < (os.cpu_count() or 1) else None


def _load(settings: dict[str, Any]) -> tuple[Any, int]:
    """Load the weights and listen on a free loopback port. Returns the server and its context in tokens."""
    path = Path(settings["weights"])
    context = min(settings["context"], context_length(path) or settings["context"])
    import xllamacpp  # type: ignore[import-untyped, import-not-found, unused-ignore]

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {settings["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 1  # errors only
    params.n_ctx = context
    params.n_parallel = (
        1  # a queue: each prompt finds the prefix the one before has left, and decoding gains nothing side by side
    )
    params.n_batch = 512  # a cancelled prompt is left after a batch at the latest
    params.n_ubatch = 512
    params.fit_params = False  # else the weights are read twice
    params.cache_prompt = True
    params.cache_ram_mib = settings["cache_mib"]
    params.n_threads_http = 16
    cores = usable_cores()
    if cores is not None:  # llama.cpp counts the machine's cores
        params.cpuparams.n_threads = cores
        params.cpuparams_batch.n_threads = cores
    return xllamacpp.Server(params), context


def _die_with_parent(parent: int) -> None:
    """On Linux, be killed with the parent's thread that started us, even where the lifeline was inherited by others."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _leave_at_end_of_lifeline() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # llama.cpp has no way to stop that neither hangs nor crashes in the middle of a generation


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.buffer.readline())
    _die_with_parent(settings["parent"])
    threading.Thread(target=_leave_at_end_of_lifeline, daemon=True).start()
    try:
        server, context = _load(settings)
        answer: dict[str, object] = {"url": server.listening_address, "context": context}
    except ImportError as error:
        answer = {"error": str(error), "kind": "import"}
    except (OSError, ValueError, RuntimeError) as error:
        answer = {"error": str(error), "kind": "load"}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # llama.cpp has put its own handlers in place
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    report.write(json.dumps(answer) + "\n")
    report.flush()
    if "error" in answer:
        os._exit(1)
    threading.Event().wait()


if __name__ == "__main__":
    main()
