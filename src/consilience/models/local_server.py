"""The child process in which llama.cpp runs: `python -m consilience.models.local_server`.

It reads one line of JSON settings from standard input and reports one line of JSON on standard output: `{"url": ...}` when
it is ready, or `{"error": ..., "kind": "import" or "load"}`. Everything llama.cpp prints goes to standard error. Nothing of
this package is imported here. Its supervisor kills it: llama.cpp cannot be stopped in mid-generation without a hang or crash.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


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


def _load(settings: dict[str, Any]) -> Any:
    """Load the weights and listen on a free loopback port. Returns the server."""
    import xllamacpp  # type: ignore[import-untyped, import-not-found, unused-ignore]

    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 1  # errors only
    params.n_ctx = settings["context"]
    params.n_parallel = (
        1  # a queue: each prompt reuses the prefix of the one before, and decoding gains nothing side by side
    )
    params.n_batch = 512  # a cancelled prompt is abandoned after one batch
    params.n_ubatch = 512
    params.fit_params = False  # else the weights are read twice
    params.cache_prompt = True
    params.cache_ram_mib = settings["cache_mib"]
    params.n_threads_http = 16
    cores = usable_cores()
    if cores is not None:  # llama.cpp counts the machine's cores
        params.cpuparams.n_threads = cores
        params.cpuparams_batch.n_threads = cores
    return xllamacpp.Server(params)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.buffer.readline())
    try:
        server = _load(settings)
        report = {"url": server.listening_address}
    except ImportError as error:
        report = {"error": str(error), "kind": "import"}
    except (OSError, ValueError, RuntimeError) as error:
        report = {"error": str(error), "kind": "load"}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # llama.cpp has installed its own handlers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output.write(json.dumps(report) + "\n")
    output.flush()
    if "error" in report:
        os._exit(1)
    threading.Event().wait()


if __name__ == "__main__":
    main()
