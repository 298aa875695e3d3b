"""Setup of every test: no network, its own home directory, no keys; long matrices are sampled without `--whole`."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

import hypothesis
import pytest
from xdist.remote import Producer

from consilience.domain.paths import weights_dir
from kit.certificates import share_certificates
from kit.golden import Golden
from kit.lanes import Lanes, order

T = TypeVar("T")

LOOPBACK = ("127.0.0.1", "::1", "localhost")

# Settings of the person who runs the tests, and keys that a model layer would pick up.
PRIVATE_PREFIXES = ("CONSILIENCE_", "OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_", "AZURE_", "AWS_", "OLLAMA_")
PRIVATE_SUFFIXES = ("_API_KEY", "_API_TOKEN", "_AUTH_TOKEN")
PRIVATE_NAMES = ("HF_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")


MEMORY_DIRECTORY = Path("/dev/shm")
MIN_FREE_BYTES = 4 * 2**30


class Sample(Protocol):
    def __call__(self, items: Iterable[T], n: int, seed: int = 0, whole: int | None = None) -> list[T]:
        """`n` of the items drawn by `seed`, in their own order; under `--whole` all of them, or `whole` of them."""
        ...


# --- the long matrices


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run the long matrices whole instead of a seeded sample")
    parser.addoption("--seed", help="draw half of each sample of a long matrix anew")
    parser.addoption("--rest", action="store_true", help="run only what --whole adds to a run without options")
    parser.addoption("--golden", action="store_true", help="run only the tests with golden files, and write these anew")


def draw(items: Iterable[T], n: int, seed: int | str) -> list[T]:
    pool = list(items)
    if n >= len(pool):
        return pool
    chosen = random.Random(seed).sample(range(len(pool)), n)
    return [pool[index] for index in sorted(chosen)]


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """Whether the long matrices are to be run whole."""
    return runs_whole(pytestconfig)


@pytest.fixture(scope="session")
def sample(whole: bool) -> Sample:
    """`sample(items, n, seed=0, whole=None)`: as `Sample` says."""
    run_whole = whole

    def choose(items: Iterable[T], n: int, seed: int = 0, whole: int | None = None) -> list[T]:
        every = list(items)
        return draw(every, (len(every) if whole is None else whole) if run_whole else n, seed)

    return choose


def runs_whole(config: pytest.Config) -> bool:
    return bool(config.getoption("whole") or config.getoption("rest"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    config.option.loadscopereorder = False
    return Lanes(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`@pytest.mark.matrix(keep=N)` runs N of the parametrized cases of a test, or all of them under `--whole`; with `whole=M`
    it runs M of them there; with `--seed` half of the N are others.

    Under `--rest` the cases that an ordinary run leaves out are run, and the tests that are longer when whole.
    """
    items.sort(key=lambda item: order(item.path))
    matrices: dict[str, tuple[list[pytest.Item], dict[str, int]]] = {}
    for item in items:
        marker = item.get_closest_marker("matrix")
        if marker is not None and "keep" in marker.kwargs:
            test = item.nodeid.partition("[")[0]
            matrices.setdefault(test, ([], marker.kwargs))[0].append(item)
    dropped: set[pytest.Item] = set()
    kept: set[pytest.Item] = set()
    for test, (cases, sizes) in matrices.items():
        whole = draw(cases, sizes.get("whole", len(cases)), test)
        dropped |= set(cases) - set(whole)
        sampled = draw(whole, sizes["keep"], test)
        if seed := config.getoption("seed"):
            others = draw([case for case in whole if case not in sampled], (sizes["keep"] + 1) // 2, f"{test} {seed}")
            sampled = draw(sampled, len(sampled) - len(others), test) + others
        kept |= set(sampled)
    every = {item for cases, _ in matrices.values() for item in cases}
    if config.getoption("golden"):
        dropped = {item for item in items if "golden" not in getattr(item, "fixturenames", ())}
    elif config.getoption("rest"):
        longer = {item for item in items if {"whole", "sample"} & set(getattr(item, "fixturenames", ()))}
        dropped = set(items) - ((every - dropped - kept) | (longer - dropped))
    elif not config.getoption("whole"):
        dropped = every - kept
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def pytest_collection_finish() -> None:
    """Exclude modules and tests from later garbage collections, which some tests request."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Golden:
    """`golden(text)`: the text is that of the test's golden file, as `kit.golden` says, whatever the width of the terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)  # workers of a parallel run have it
    return Golden(request.path, request.node.name, bool(request.config.getoption("golden")))


# --- the environment of a test


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Close the network except for loopback. A test that needs more is marked `enable_socket`."""
    restore_signal_handlers()
    keep_temporary_files_in_memory()
    share_certificates()
    config.option.allow_unix_socket = True
    if config.option.allow_hosts is None:
        config.option.allow_hosts = ",".join(LOOPBACK)
    # No deadline, for slow machines. The same commit draws the same cases; `--hypothesis-profile search` draws new ones.
    hypothesis.settings.register_profile("consilience", deadline=None, derandomize=True)
    hypothesis.settings.register_profile("search", deadline=None, print_blob=True)
    hypothesis.settings.load_profile("consilience")


def restore_signal_handlers() -> None:
    """Restore handlers of signals that `&` and nohup ignore. Processes started by tests inherit them."""
    for number, handler in {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGTERM: signal.SIG_DFL,
    }.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def keep_temporary_files_in_memory() -> None:
    """Keep temporary files in memory if the machine has room. On a disk, each commit of a journal waits."""
    if (
        "TMPDIR" not in os.environ
        and os.access(MEMORY_DIRECTORY, os.W_OK)
        and shutil.disk_usage(MEMORY_DIRECTORY).free > MIN_FREE_BYTES
    ):
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY_DIRECTORY)


@pytest.fixture(autouse=True)
def refuse_name_lookups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name looked up is network too, which the guard on connections does not see."""
    markers = ("enable_socket", "allow_hosts")
    if any(request.node.get_closest_marker(marker) for marker in markers) or request.config.option.force_enable_socket:
        return
    look_up: Callable[..., object] = socket.getaddrinfo

    def guarded(host: str | bytes | None, *args: object, **options: object) -> object:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and name not in (*LOOPBACK, "", "0.0.0.0", "::"):
            raise RuntimeError(f"A test looked up the host {name!r}; mark it enable_socket if it needs the network.")
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", guarded)


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    """Where this machine keeps model weights; they are shared, since each is hundreds of megabytes."""
    directory = weights_dir().absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(autouse=True)
def home(tmp_path: Path, shared_weights: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CONSILIENCE_HOME of the test's own, empty but for the shared weights; no key and no setting of the user's."""
    for name in list(os.environ):
        if name.startswith(PRIVATE_PREFIXES) or name.endswith(PRIVATE_SUFFIXES) or name in PRIVATE_NAMES:
            monkeypatch.delenv(name)
    directory = tmp_path / "home"
    directory.mkdir()
    (directory / "weights").symlink_to(shared_weights, target_is_directory=True)
    monkeypatch.setenv("CONSILIENCE_HOME", str(directory))
    monkeypatch.delenv("CONSILIENCE_JOURNAL", raising=False)
    return directory


@pytest.fixture(autouse=True)
def forget_servers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What servers answered is kept by address, and another test's server may get the same port."""
    monkeypatch.setattr("consilience.models.server_models._kept", {})
