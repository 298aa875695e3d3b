"""Converting a document in a child process with bounds on time and memory, which has no network and no secrets.

The parent starts `python -c` with its own import path; the child reads the file's bytes from standard input and writes JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module

from consilience.domain.messages import Source

MAX_SECONDS = 60
"""Max time of one conversion."""
MAX_MEMORY_BYTES = 1_000_000_000
"""Max address space of the child process. Not every system enforces it."""
MAX_TEXT_CHARS = 10_000_000
"""Max characters of a converted text."""

CONVERTERS: Mapping[str, str] = {
    "pdf": "pdf:convert_pdf",
    "archive": "office:convert_archive",
    "html": "markup:convert_html",
    "mail": "mail:convert_mail",
    "notebook": "notebook:convert_notebook",
    "json": "notebook:indent_json",
}
"""Module and function of this package that convert each kind of file."""

_FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "pty.")
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from consilience.documents.converting import main; main(sys.argv[2], *map(int, sys.argv[3:]))"
)


@dataclass(frozen=True)
class DocumentText:
    """A document as lines of text."""

    text: str
    remarks: tuple[str, ...] = ()
    """In what the text differs from the file: `pictures left out: 2`."""

    def source(self, name: str, agents: tuple[str, ...] | None = None) -> Source:
        return Source(self.text, name, agents, tuple(f"{name}: {remark}" for remark in self.remarks))


class Unreadable(Exception):
    """Why a document has no text that can be read, and what to do about it."""

    def __init__(self, reason: str, do: str = "") -> None:
        super().__init__(reason, do)
        self.reason = reason
        self.do = do


Converted = tuple[Sequence[str], Sequence[str]]
"""Lines of text, and in what they differ from the file."""


def remarks_of(counts: Counter[str]) -> list[str]:
    return [f"{words}: {n}" for words, n in counts.items() if n]


def convert(kind: str, data: bytes) -> DocumentText:
    """Return a document of one of the kinds of `CONVERTERS` as text. Blocks until the child process ends. Raises `Unreadable`."""
    paths = json.dumps([path for path in sys.path if os.path.isabs(path)])
    command = [sys.executable, "-I", "-B", "-c", _PROGRAM, paths, kind, str(MAX_SECONDS), str(MAX_MEMORY_BYTES)]
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=MAX_SECONDS, env=environment, cwd="/")
    except subprocess.TimeoutExpired:
        raise Unreadable(f"reading it takes longer than {MAX_SECONDS} seconds", _SMALLER) from None
    except OSError as error:
        raise Unreadable(f"no process could be started to read it: {error.strerror}", "Try again.") from None
    with suppress(ValueError):
        answer = json.loads(done.stdout)
        if "reason" in answer:
            raise Unreadable(answer["reason"], answer["do"])
        return DocumentText(answer["text"], tuple(answer["remarks"]))
    if done.returncode < 0:
        ended = signal.Signals(-done.returncode).name
        bounds = f"{MAX_MEMORY_BYTES / 1e9:g} GB of memory or {MAX_SECONDS} seconds"
        raise Unreadable(f"its converter ended with {ended}, perhaps because it needs more than {bounds}", _SMALLER)
    last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    raise Unreadable(f"its converter ended with {done.returncode}" + (f": {last}" if last else ""), _DAMAGED)


_SMALLER = "Give the part that matters."
_DAMAGED = "The file may be damaged: save it once more, or as text."


def main(kind: str, seconds: int, memory: int) -> None:
    """The child process: convert standard input and print the reading, or why there is none, as JSON."""
    answer: dict[str, object]
    with suppress(ImportError):
        _converter(kind)  # a native library does not load within the bounds
    try:
        data = sys.stdin.buffer.read()
        _confine(seconds, memory)
        document = convert_here(kind, data)
        answer = {"text": document.text, "remarks": list(document.remarks)}
    except Unreadable as error:
        answer = {"reason": error.reason, "do": error.do}
    except MemoryError:
        answer = {"reason": f"reading it needs more than {memory / 1e9:g} GB of memory", "do": _SMALLER}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def convert_here(kind: str, data: bytes) -> DocumentText:
    """Return the same as `convert` without starting a process; for the child, also for what is inside of its document. Raises
    `Unreadable`, `MemoryError`."""
    try:
        lines, remarks = _converter(kind)(data)
        text = "\n".join(_plain_lines(lines)) + "\n"
    except (Unreadable, MemoryError):
        raise
    except RecursionError:
        raise Unreadable("its parts are nested too deeply", _DAMAGED) from None
    except ImportError:
        raise Unreadable("that needs the extra documents", "Install it: pip install 'consilience[documents]'") from None
    except Exception as error:  # whatever a hostile file does to a parser
        raise Unreadable(f"its content is invalid ({type(error).__name__}: {error!s:.200})", _DAMAGED) from None
    if len(text) > MAX_TEXT_CHARS:
        raise Unreadable(f"its text has more than {MAX_TEXT_CHARS / 1e6:g} million characters", _SMALLER)
    return DocumentText(text, tuple(remarks))


def _converter(kind: str) -> Callable[[bytes], Converted]:
    module, _, function = CONVERTERS[kind].partition(":")
    converter: Callable[[bytes], Converted] = getattr(import_module(f"consilience.documents.{module}"), function)
    return converter


def _confine(seconds: int, memory: int) -> None:
    """Bound this process, and forbid it the network, other programs and writing files. What is imported later is only read."""
    import resource

    bounds = {"RLIMIT_CPU": seconds, "RLIMIT_AS": memory, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
    for name, bound in bounds.items():
        with suppress(AttributeError, OSError, ValueError):  # macOS has no bound of the address space
            resource.setrlimit(getattr(resource, name), (bound, bound))

    def forbid(event: str, args: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event.startswith(_FORBIDDEN):
            raise PermissionError(f"a converter may not use {event}")

    sys.addaudithook(forbid)


def _plain_lines(lines: Sequence[str]) -> list[str]:
    """Return lines without control characters and lone surrogates, and at most one empty line between two others."""
    plain: list[str] = []
    for text in lines:
        for line in text.translate(_CONTROLS).encode("utf-8", "replace").decode().split("\n"):
            if line.strip() or (plain and plain[-1]):
                plain.append(line.rstrip())
    while plain and not plain[-1]:
        plain.pop()
    return plain


_CONTROLS = dict.fromkeys([*range(9), *range(14, 32), 127]) | dict.fromkeys(
    (11, 12, 28, 29, 30, 0x85, 0x2028, 0x2029), " "
)
