"""From what was typed to what a run takes: task, documents, panel, models, limits. Nothing here is spent or sent."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO
from weakref import WeakSet

from pydantic import ValidationError

from consilience.cli.config import Config
from consilience.cli.failures import say
from consilience.cli.request import Request
from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError, SourceError, UnknownName
from consilience.domain.messages import Source
from consilience.domain.outcome import MOST as MOST_LIMIT
from consilience.domain.outcome import Allowance, Limits, LimitsError
from consilience.domain.panels import Panel, Persona, load_panel
from consilience.engine.protocol import Protocol
from consilience.engine.runner import MOST_TASK
from consilience.models.names import alternatives
from consilience.models.weights import DEFAULT

MOST_SOURCE_BYTES = 10_000_000
"""A document larger than this is refused before it is read."""

AUTO = "auto"
"""The panel that a model proposes for the task."""

_NAME_WORDS = 5
_NAME_CHARACTERS = 40


def read_text(given: str) -> str:
    """The text itself, from standard input for `-`, from a file for `@FILE`. Raises `SourceError`."""
    if given == "-":
        return _standard_input()
    return _text_of(Path(given[1:]).expanduser(), "the text") if given.startswith("@") else given


def read_file(path: str, what: str) -> str:
    """A text that an option names the file of, `-` for standard input. Raises `SourceError`, also where it is empty."""
    text = _standard_input() if path == "-" else _text_of(Path(path).expanduser(), what)
    return _filled(text, "standard input" if path == "-" else path, what)


def read_task(given: str) -> str:
    """The task itself, from standard input for `-`, from a file for `@FILE`. Raises `SettingsError`, `SourceError`."""
    if given == "-":
        task, where = _standard_input(), "standard input"
    elif given.startswith("@"):
        task, where = _text_of(Path(given[1:]).expanduser(), "the task"), given[1:]
    else:
        task, where = given, ""
    if not task.strip():
        raise SettingsError("the task is empty", where=where, do="Say what is to be deliberated.")
    if len(task) > MOST_TASK:
        raise SettingsError(
            f"the task has {len(task):,} characters; at most {MOST_TASK:,} are allowed",
            where=where,
            do="Give long material as documents (--source FILE) and ask about them.",
        )
    return task.strip()


def read_sources(given: Sequence[str], agents: Sequence[Agent], *, whose: str = "an agent") -> list[Source]:
    """Documents in the order given; a directory gives its text files in order of name. Raises `SourceError`.

    `whose` says what the agents are, for a document that is nobody's.
    """
    ids = [agent.id for agent in agents]
    found: list[Source] = []
    for one in given:
        reader, path = _restriction(one, ids, whose)
        only = (reader,) if reader else None
        if path == "-":
            found.append(Source(text=_filled(_standard_input(), "standard input"), name="standard input", agents=only))
        elif Path(path).expanduser().is_dir():
            found += _directory(Path(path).expanduser(), only)
        else:
            text = _text_of(Path(path).expanduser(), "the document")
            found.append(Source(text=_filled(text, path), name=path, agents=only))
    return found


def read_panel(request: Request) -> Panel | None:
    """The panel named, or one of the personas given. Raises `SettingsError`, `UnknownName`."""
    if request.panel is not None and request.persona:
        raise SettingsError(
            "both a panel and single personas are given", where="--panel and --persona", do="Give one of the two."
        )
    if request.panel is not None:
        return None if request.panel == AUTO else load_panel(request.panel)
    return panel_of(request.persona) if request.persona else None


def panel_of(texts: Sequence[str]) -> Panel:
    """Personas from texts: `NAME: description`, or a description whose first words are the name."""
    personas: list[Persona] = []
    taken: set[str] = set()
    for number, text in enumerate(texts, 1):
        name, description = _named(text.strip())
        if not name or name.casefold() in taken:
            name = f"Persona {number}"
        taken.add(name.casefold())
        try:
            personas.append(Persona(name=name, description=description))
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise SettingsError(
                f"the persona cannot be used: {reason}",
                where=f"--persona number {number}",
                do="Describe it in a sentence or two.",
            ) from None
    return Panel(name="personas", description="Personas given on the command line.", personas=tuple(personas))


def read_limits(request: Request, agents: Sequence[Agent]) -> Limits:
    """Raises `SettingsError` for a limit that cannot be, `UnknownName` for one of an agent that is none."""
    given = {
        "--max-calls": request.max_calls,
        "--max-tokens": request.max_tokens,
        "--max-cost": request.max_cost,
        "--max-time": request.max_time,
        "--max-steps": request.max_steps,
    }
    for option, value in given.items():
        if value is not None and not 0 <= value <= MOST_LIMIT:
            raise SettingsError(
                f"a limit cannot be {value!s:.60}",
                where=option,
                do=f"Give 0 or more, and at most {MOST_LIMIT}; leave the option out for no limit.",
            )
    if not 0 <= request.quorum <= 1:
        raise SettingsError(
            f"a quorum of {request.quorum} is not a share", where="--quorum", do="Give a number from 0 to 1."
        )
    return Limits(
        calls=request.max_calls,
        tokens=request.max_tokens,
        money=request.max_cost,
        seconds=request.max_time,
        steps=request.max_steps,
        agents=_allowances("--agent-limit", request.agent_limit or (), [agent.id for agent in agents]),
        phases=_allowances("--phase-limit", request.phase_limit or ()),
    )


_KINDS = {"calls": "calls", "tokens": "tokens", "cost": "money", "time": "seconds"}


def _allowances(option: str, given: Sequence[str], known: Sequence[str] = ()) -> dict[str, Allowance]:
    """`NAME:calls=3,tokens=500` by name; names are checked against `known` where any are."""
    found: dict[str, Allowance] = {}
    example = f"Write {option} {known[-1] if known else 'lateral_leaves'}:calls=3 (or tokens, cost, time)."
    for one in given:
        name, _, rest = one.rpartition(":")
        pairs = [pair.partition("=") for pair in rest.split(",")]
        if not name or any(kind not in _KINDS or not value for kind, _, value in pairs):
            raise SettingsError(f"{one!r} is no limit", where=option, do=example)
        if known and name != "*" and name not in known:
            raise UnknownName(
                f"there is no agent {name!r}", where=f"{option} {one}", do=f"Agents: {', '.join(known[:12])}."
            )
        if len({kind for kind, _, _ in pairs}) < len(pairs):
            raise SettingsError(f"{one!r} says one kind twice", where=option, do="Say each kind once.")
        try:
            allowance = Allowance(**{_KINDS[kind]: value for kind, _, value in pairs})
            if option == "--phase-limit":
                Limits(phases={name: allowance})
        except LimitsError as error:
            raise SettingsError(f"{one!r} cannot be a limit: {error.reason}", where=option, do=example) from None
        if name in found:
            raise SettingsError(f"{name} is limited twice", where=option, do="Give one limit with all its kinds.")
        found[name] = allowance
    return found


def read_settings(cls: type[Protocol], given: Mapping[str, object], config: Config) -> Protocol:
    """The protocol with its settings: those given, else the configuration's. Raises `SettingsError` naming where each stands."""
    table = config.tables.get(cls.name, {})
    for key, (value, path) in table.items():
        if key not in cls.model_fields:
            import difflib

            close = difflib.get_close_matches(key, cls.model_fields, 1)
            meant = f"Did you mean {close[0]!r}? " if close else ""
            raise SettingsError(
                f"the configuration has an unknown key {key!r}",
                where=f"{path}, table [{cls.name}]",
                do=f"{meant}Known: {', '.join(cls.model_fields)}.",
            )
        if key not in given:
            try:
                cls(**{key: value})
            except SettingsError as error:
                if error.what.startswith(f"{key}"):
                    raise SettingsError(
                        error.what, where=f"{path}, table [{cls.name}]", do="Correct it there."
                    ) from None
    return cls(**{**{key: value for key, (value, _) in table.items()}, **given})


def deal_models(request: Request, agents: Sequence[Agent], chosen: str | None) -> dict[str, str]:
    """A model's name for every agent: its own, else one of `--models` in turn, else `--model`, else the chosen one.

    `local` becomes the name of the model it stands for.
    """
    if request.model is not None and request.models is not None:
        raise SettingsError("both --model and --models are given", do="Give one of the two.")
    dealt = [name.strip() for name in (request.models or request.model or chosen or "").split(",")]
    if request.models is None:
        dealt = [(request.model or chosen or "").strip()]
    own = _own_models(request.agent or (), [agent.id for agent in agents])
    found = {agent.id: own.get(agent.id, dealt[n % len(dealt)]) for n, agent in enumerate(agents)}
    if not all(found.values()):
        raise UnknownName(
            "a model's name is empty",
            where="--models" if request.models is not None else "--model",
            do="Use local, or PROVIDER:MODEL.",
        )
    return {id: "|".join(_in_full(one) for one in alternatives(name)) for id, name in found.items()}


def undealt(request: Request, agents: Sequence[object]) -> list[str]:
    """Names of `--models` beyond the number of agents."""
    return [name.strip() for name in (request.models or "").split(",")][len(agents) :]


def unused(request: Request, agents: Sequence[Agent]) -> list[str]:
    """What was given and changes nothing, in sentences."""
    said = []
    if beyond := undealt(request, agents):
        said.append(f"Dealt to nobody, since there are no more agents than {len(agents)}: {', '.join(beyond)}.")
    if request.prompts is not None and not any(request.prompts.glob("*.j2")):
        said.append(f"No prompt is replaced: {request.prompts} holds none (NAME.j2).")
    return said


def _in_full(name: str) -> str:
    return f"local:{DEFAULT}" if name == "local" else name


def _own_models(given: Sequence[str], ids: Sequence[str]) -> dict[str, str]:
    own: dict[str, str] = {}
    known = ", ".join(ids[:12]) + (", …" if len(ids) > 12 else "")
    for one in given:
        id, equals, name = (part.strip() for part in one.partition("="))
        if not equals or not id or not name:
            raise SettingsError(
                f"{one!r} is not ID=MODEL", where="--agent", do=f"Write --agent {ids[-1]}=local. Agents: {known}."
            )
        if id not in ids:
            raise UnknownName(f"there is no agent {id!r}", where=f"--agent {one}", do=f"Agents: {known}.")
        if id in own:
            raise SettingsError(f"the agent {id} is given two models", where="--agent", do="Give it one.")
        own[id] = name
    return own


def _restriction(given: str, ids: Sequence[str], whose: str) -> tuple[str | None, str]:
    """The agent a document is for, if one is named, and its path. A file that really has `=` in its name is a file."""
    before, equals, after = given.partition("=")
    if not equals or Path(given).expanduser().exists():
        return None, given
    if before in ids:
        return before, after
    known = ", ".join(ids[:12]) + (", …" if len(ids) > 12 else "")
    raise SourceError(
        f"there is neither a file {given!r} nor {whose} {before!r}",
        where="--source",
        do=f"Write --source FILE, or --source ID=FILE, where ID is {whose}: {known}.",
    )


def _directory(directory: Path, only: tuple[str, ...] | None) -> list[Source]:
    """Its text files, those of its folders too; hidden ones are left out silently, others that are no text are named."""
    found: list[Source] = []
    left_out: list[str] = []
    for path in sorted(directory.rglob("*")):
        inside = path.relative_to(directory)
        if not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        try:
            text = _text_of(path, "the document")
        except SourceError:
            left_out.append(str(inside))
            continue
        if text.strip():
            found.append(Source(text=text, name=str(path), agents=only))
    if left_out:
        say(
            f"Left out of {directory}, being no text or too large: {', '.join(left_out[:10])}{' …' if len(left_out) > 10 else ''}"
        )
    if not found:
        raise SourceError("the directory holds no text", where=str(directory), do="Name files, or another directory.")
    return found


def _text_of(path: Path, what: str) -> str:
    """A file's text. Raises `SourceError` where it is missing, too large or no text."""
    try:
        size = path.stat().st_size
        if size > MOST_SOURCE_BYTES:
            raise SourceError(
                f"{what} has {size / 1e6:.0f} MB; at most {MOST_SOURCE_BYTES / 1e6:.0f} MB are read",
                where=str(path),
                do="Give the part that matters.",
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise SourceError(f"{what} is not there", where=str(path), do="Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SourceError(
            f"{what} cannot be read: {reason}", where=str(path), do="Check the path and your rights."
        ) from None
    return _decoded(data, what, str(path))


_READ: WeakSet[TextIO] = WeakSet()
"""Standard inputs that were read to their end."""


def _standard_input() -> str:
    if sys.stdin in _READ:
        raise SettingsError(
            "standard input is asked for twice, and can be read once",
            do="Write - in one place, and give the rest as files.",
        )
    _READ.add(sys.stdin)
    if sys.stdin.isatty():
        say("Reading from the terminal; end with Ctrl-D.")
    data = sys.stdin.buffer.read(MOST_SOURCE_BYTES + 1)
    if len(data) > MOST_SOURCE_BYTES:
        raise SourceError("the text is too long", where="standard input", do="Give the part that matters.")
    return _decoded(data, "the text", "standard input")


def _decoded(data: bytes, what: str, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SourceError(
            f"{what} is not UTF-8 text", where=where, do="Give text; convert other formats (PDF, Word) to text first."
        )
    return text.replace("\r\n", "\n")


def _filled(text: str, where: str, what: str = "the document") -> str:
    if not text.strip():
        raise SourceError(f"{what} is empty", where=where, do="Leave it out or fill it.")
    return text


def _named(text: str) -> tuple[str, str]:
    """Name and description of a persona."""
    before, colon, after = text.partition(":")
    if colon and after.strip() and len(before) <= _NAME_CHARACTERS and "\n" not in before:
        return before.strip(), after.strip()
    words = re.split(r"[.;!?\n]", text, maxsplit=1)[0].split()[:_NAME_WORDS]
    name = " ".join(words)[:_NAME_CHARACTERS].strip(" ,")
    return f"{name[:1].upper()}{name[1:]}", text
