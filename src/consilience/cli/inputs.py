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
from consilience.cli.errors import say
from consilience.cli.options import Request
from consilience.deliberation import AUTO_PANEL
from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError, SourceError, UnknownName
from consilience.domain.messages import Source
from consilience.domain.outcome import MAX_LIMIT, Limits, LimitsError, SpendingLimits
from consilience.domain.panels import Panel, Persona, describe_mistake, load_panel
from consilience.domain.paths import too_long
from consilience.domain.toml_catalog import resembling
from consilience.engine.protocol import Protocol
from consilience.engine.runner import MAX_TASK_CHARS
from consilience.engine.sources import MAX_SOURCE_BYTES, decoded, file_text
from consilience.models.registry import alternatives
from consilience.models.weights import DEFAULT

_NAME_WORDS = 5
_NAME_CHARACTERS = 40


def read_text(given: str) -> str:
    """The text itself, from standard input for `-`, from a file for `@FILE`. Raises `SourceError`."""
    if given == "-":
        return _standard_input()
    return file_text(Path(given[1:]).expanduser(), "the text") if given.startswith("@") else given


def read_file(path: str, what: str) -> str:
    """A text that an option names the file of, `-` for standard input. Raises `SourceError`, also where it is empty."""
    text = _standard_input() if path == "-" else file_text(Path(path).expanduser(), what)
    return _filled(text, "standard input" if path == "-" else path, what)


def read_task(given: str) -> str:
    """The task itself, from standard input for `-`, from a file for `@FILE`. Raises `SettingsError`, `SourceError`."""
    if given == "-":
        task, where = _standard_input(), "standard input"
    elif given.startswith("@"):
        task, where = file_text(Path(given[1:]).expanduser(), "the task"), given[1:]
    else:
        task, where = given, ""
    if not task.strip():
        raise SettingsError("the task is empty", where=where, do="Say what is to be deliberated.")
    if len(task) > MAX_TASK_CHARS:
        raise SettingsError(
            f"the task has {len(task):,} characters; at most {MAX_TASK_CHARS:,} are allowed",
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
        elif not Path(path).expanduser().exists() and _all_exist(path.split(",")):
            raise _one_at_a_time("--source", "FILE", one)
        else:
            text = file_text(Path(path).expanduser(), "the document")
            found.append(Source(text=_filled(text, path), name=path, agents=only))
    return found


def _all_exist(paths: Sequence[str]) -> bool:
    """Whether this is a list of paths, and not one path."""
    return len(paths) > 1 and all(path.strip() and Path(path.strip()).expanduser().exists() for path in paths)


def read_panel(request: Request) -> Panel | None:
    """The panel named, or one of the personas given. Raises `SettingsError`, `UnknownName`."""
    if request.panel is not None and request.persona:
        raise SettingsError(
            "both a panel and single personas are given", where="--panel and --persona", do="Give one of the two."
        )
    if request.panel is not None:
        return None if request.panel == AUTO_PANEL else load_panel(request.panel)
    return panel_of(request.persona) if request.persona else None


def panel_of(texts: Sequence[str]) -> Panel:
    """Personas from texts: `NAME: description`, or a description whose first words are the name. Further fields stand at the end
    in brackets: `[horizon=5 years; interests=cost, cash]`."""
    personas: list[Persona] = []
    taken: set[str] = set()
    for number, text in enumerate(texts, 1):
        text, fields = _fields(text.strip(), f"--persona number {number}")
        name, description = _named(text)
        if not name or name.casefold() in taken:
            name = f"Persona {number}"
        taken.add(name.casefold())
        try:
            personas.append(Persona.model_validate({"name": name, "description": description, **fields}))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            detail["loc"] = ("personas", number - 1, *detail["loc"])
            table = {"personas": [{"name": name}] * number}
            form = _FIELD_FORMS.get(str(detail["loc"][2]))
            raise SettingsError(
                describe_mistake(detail, table),
                where=f"--persona number {number}",
                do=f"Write {form}, or leave the field out." if form else "Describe the persona in a sentence or two.",
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
        if value is not None and not 0 <= value <= MAX_LIMIT:
            raise SettingsError(
                f"a limit cannot be {value!s:.60}",
                where=option,
                do=f"Give 0 or more, and at most {MAX_LIMIT}; leave the option out for no limit.",
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


def _one_at_a_time(option: str, form: str, given: str) -> SettingsError:
    """The error for a list in an option whose values are given one by one, because they may hold commas."""
    return SettingsError(
        f"{given!r} lists several values", where=option, do=f"Repeat the option: {option} {form} {option} {form}."
    )


def _allowances(option: str, given: Sequence[str], known: Sequence[str] = ()) -> dict[str, SpendingLimits]:
    """`NAME:calls=3,tokens=500` by name; names are checked against `known` where any are."""
    found: dict[str, SpendingLimits] = {}
    example = f"Write {option} {known[-1] if known else 'lateral_leaves'}:calls=3 (or tokens, cost, time)."
    for one in given:
        name, _, rest = one.rpartition(":")
        pairs = [pair.partition("=") for pair in rest.split(",")]
        if not name or any(kind not in _KINDS or not value for kind, _, value in pairs):
            raise SettingsError(f"{one!r} is no limit", where=option, do=example)
        if ":" in name and "," in name:
            raise _one_at_a_time(option, "NAME:calls=N", one)
        if known and name != "*" and name not in known:
            raise UnknownName(
                f"there is no agent {name!r}", where=f"{option} {one}", do=f"Agents: {', '.join(known[:12])}."
            )
        if len({kind for kind, _, _ in pairs}) < len(pairs):
            raise SettingsError(f"{one!r} says one kind twice", where=option, do="Say each kind once.")
        try:
            allowance = SpendingLimits(**{_KINDS[kind]: value for kind, _, value in pairs})
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


def deal_models(
    request: Request, agents: Sequence[Agent], chosen: str | None, *, option: str = "--agent"
) -> dict[str, str]:
    """A model's name for every agent: its own, else its persona's, else one of `--models` in turn, else `--model`, else the chosen
    one. `agents` are in the order of dealing.

    `local` becomes the name of the model it stands for. `option` names the model of one agent.
    """
    if request.model is not None and request.models is not None:
        raise SettingsError("both --model and --models are given", do="Give one of the two.")
    dealt = request.models or [(request.model or chosen or "").strip()]
    own = _own_models(request.agent or (), [agent.id for agent in agents], option)
    found = {agent.id: own.get(agent.id) or agent.model or dealt[n % len(dealt)] for n, agent in enumerate(agents)}
    if not all(found.values()):
        raise UnknownName("a model's name is empty", where="--model", do="Use local, or PROVIDER:MODEL.")
    return {id: "|".join(_in_full(one) for one in alternatives(name)) for id, name in found.items()}


def undealt(request: Request, agents: Sequence[object]) -> list[str]:
    """Names of `--models` beyond the number of agents."""
    return (request.models or [])[len(agents) :]


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


def _own_models(given: Sequence[str], ids: Sequence[str], option: str) -> dict[str, str]:
    own: dict[str, str] = {}
    known = ", ".join(ids[:12]) + (", …" if len(ids) > 12 else "")
    for one in given:
        id, equals, name = (part.strip() for part in one.partition("="))
        if not equals or not id or not name:
            raise SettingsError(
                f"{one!r} is not ID=MODEL", where=option, do=f"Write {option} {ids[-1]}=local. Agents: {known}."
            )
        if any(part.partition("=")[0].strip() in ids for part in name.split(",")[1:]):
            raise _one_at_a_time(option, "ID=MODEL", one)
        if id not in ids:
            raise UnknownName(f"there is no agent {id!r}", where=f"{option} {one}", do=f"Agents: {known}.")
        if id in own:
            raise SettingsError(f"the agent {id} is given two models", where=option, do="Give it one.")
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
    """Its text files, those of its folders too; hidden ones are left out silently.

    Named are files that are no text, and links that lead out of the directory or to what is hidden in it, which are not followed:
    whoever wrote the directory could have any file of the user's read by a model.
    """
    found: list[Source] = []
    left_out: list[str] = []
    leading_out: list[str] = []
    real = directory.resolve()
    for path in sorted(directory.rglob("*")):
        inside = path.relative_to(directory)
        if _is_hidden(inside):
            continue
        if path.is_symlink() and not _is_within(path, real):
            leading_out.append(str(inside))
            continue
        if not path.is_file():
            continue
        try:
            text = file_text(path, "the document")
        except SourceError:
            left_out.append(str(inside))
            continue
        if text.strip():
            found.append(Source(text=text, name=str(path), agents=only))
    for reason, names in {
        "being no text or too large": left_out,
        "being links out of it or to hidden files": leading_out,
    }.items():
        if names:
            say(f"Left out of {directory}, {reason}: {', '.join(names[:10])}{' …' if len(names) > 10 else ''}")
    if not found:
        raise SourceError("the directory holds no text", where=str(directory), do="Name files, or another directory.")
    return found


def _is_hidden(inside: Path) -> bool:
    return any(part.startswith(".") for part in inside.parts)


def _is_within(path: Path, directory: Path) -> bool:
    """Whether a link leads to what is in the directory and not hidden there; `directory` is a real path."""
    try:
        return not _is_hidden(path.resolve(strict=True).relative_to(directory))
    except (OSError, ValueError, RuntimeError):  # it leads nowhere, out of the directory, or in a circle
        return False


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
    data = sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1)
    if len(data) > MAX_SOURCE_BYTES:
        raise SourceError(
            f"the text cannot be read: {too_long(MAX_SOURCE_BYTES)}",
            where="standard input",
            do="Give the part that matters.",
        )
    return decoded(data, "the text", "standard input")


def _filled(text: str, where: str, what: str = "the document") -> str:
    if not text.strip():
        raise SourceError(f"{what} is empty", where=where, do="Leave it out or fill it.")
    return text


_FIELD_FORMS = {
    "interests": "[interests=cost, cash]",
    "horizon": "[horizon=5 years]",
    "evidence": "[evidence=audited figures]",
    "claim": "[claim=It pays for itself.]",
    "model": "[model=PROVIDER:MODEL]",
}
_FIELDS = re.compile(r"\s*\[([^\[\]]*=[^\[\]]*)\]$")
_MISPLACED_FIELD = re.compile(rf"[\[;]\s*(?:{'|'.join(_FIELD_FORMS)})\s*=")


def _fields(text: str, where: str) -> tuple[str, dict[str, object]]:
    """The text of a persona without the fields in brackets at its end, and these. Raises `SettingsError`."""
    match = _FIELDS.search(text)
    words = text if match is None else text[: match.start()]
    if _MISPLACED_FIELD.search(words) or ("=" in words and words.count("[") != words.count("]")):
        raise SettingsError(
            "the fields of the persona are not in one pair of brackets at its end",
            where=where,
            do='Write "NAME: description [FIELD=VALUE; FIELD=VALUE]", without brackets inside.',
        )
    found: dict[str, object] = {}
    for pair in match[1].split(";") if match else ():
        name, equals, value = (part.strip() for part in pair.partition("="))
        if name not in _FIELD_FORMS:
            close = resembling(name, list(_FIELD_FORMS))
            problem = f"the persona has an unknown field {name!r}" + (f" (did you mean {close}?)" if close else "")
            do = f"Use {', '.join(_FIELD_FORMS.values())}; several are separated by semicolons."
        elif not equals or not value:
            problem, do = f"the field {name!r} of the persona is empty", f"Write {_FIELD_FORMS[name]}, or leave it out."
        elif name in found:
            problem, do = f"the field {name!r} of the persona is repeated", f"Give it once: {_FIELD_FORMS[name]}."
        else:
            found[name] = [one.strip() for one in value.split(",")] if name == "interests" else value
            continue
        raise SettingsError(problem, where=where, do=do)
    return words, found


def _named(text: str) -> tuple[str, str]:
    """Name and description of a persona."""
    before, colon, after = text.partition(":")
    if colon and after.strip() and len(before) <= _NAME_CHARACTERS and "\n" not in before:
        return before.strip(), after.strip()
    words = re.split(r"[.;!?\n]", text, maxsplit=1)[0].split()[:_NAME_WORDS]
    name = " ".join(words)[:_NAME_CHARACTERS].strip(" ,")
    return f"{name[:1].upper()}{name[1:]}", text
