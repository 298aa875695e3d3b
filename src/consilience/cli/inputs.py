"""What options become: task, documents or target, panel, settings, models, limits. Spends and sends nothing."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO
from weakref import WeakSet

from pydantic import ValidationError

from consilience.cli.errors import notify, with_options
from consilience.cli.options import NewSessionRequest, PlannedRequest, RunRequest, SessionRequest, TargetRequest
from consilience.deliberation import AUTO_PANEL
from consilience.documents import (
    MAX_SOURCE_BYTES,
    decode_text,
    is_address,
    read_data,
    read_document,
    read_text_file,
)
from consilience.domain.agents import Agent, list_ids, unknown_agent
from consilience.domain.errors import SettingsError, SourceError, UnknownName
from consilience.domain.findings import EarlierReviews
from consilience.domain.messages import Source
from consilience.domain.outcome import EACH, Limits, SpendingLimits
from consilience.domain.panels import Panel, Persona, load_panel
from consilience.domain.paths import expanded, too_long
from consilience.domain.validation import InvalidValues, describe_invalid
from consilience.engine.runner import check_task
from consilience.models.registry import canonical_name
from consilience.reporting.formatting import count
from consilience.targets import Target, read_target
from consilience.targets.collection import Collection
from consilience.targets.files import add_directory, check_links
from consilience.targets.ignore import parse_patterns

_MAX_NAME_WORDS = 5
_MAX_NAME_CHARS = 40


def read_text(argument: str, label: str = "the text") -> str:
    """Return the argument, or the text of standard input for `-` and of a file for `@FILE`. Raises `SourceError`."""
    if argument == "-":
        return _standard_input()
    return read_text_file(expanded(argument[1:]), label) if argument.startswith("@") else argument


def read_file(path: str, label: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises `SourceError`, also if it is empty."""
    text = read_text(path if path == "-" else f"@{path}", label)
    if not text.strip():
        raise _empty(label, path)
    return text


def _empty(label: str, path: str) -> SourceError:
    return SourceError(f"{label} is empty", where=source_name(path), do="Leave it out or fill it.")


def source_name(path: str) -> str:
    return "standard input" if path == "-" else path


def read_task(argument: str) -> str:
    """Return the task, as `read_text` does. Raises `SettingsError`, `SourceError`."""
    task = read_text(argument, "the task")
    source = "standard input" if argument == "-" else argument[1:] if argument.startswith("@") else ""
    check_task(task, source)
    return task.strip()


def read_request(request: TargetRequest, earlier: EarlierReviews) -> Target:
    """Return the target of a command: what is new in it after earlier reviews.

    Raises `SourceError`, and `SettingsError` for standard input that is read twice.
    """
    return read_target(
        request.target or (),
        diff=request.diff,
        staged=request.staged,
        include=request.include or (),
        standard_input=lambda: read_text("-", "the target"),
        since=earlier.commit or None,
        since_base=earlier.base,
        also=earlier.places,
        context=request.context or (),
        rules=request.rules,
        intent=request.intent or (),
        evidence=request.evidence or (),
    )


def task_of(target: Target, focus: str | None) -> str:
    """Return the task, in a sentence, with what to look for."""
    return f"Review {target.title}." + (f"\n\nFocus: {focus}" if focus else "")


def target_lines(target: Target) -> list[str]:
    """Return what is read and what is left out, in a line each, as the plan has them."""
    return [
        f"Target: {target.title}: {_amount(target)}",
        *(f"Left out: {reason}" for reason in target.left_out),
        *_beside(target),
    ]


def _beside(target: Target) -> Iterator[str]:
    """Yield what is read beside the target, a line for each purpose, and what was not looked at."""
    for purpose, words in BESIDE.items():
        if names := [source.name for source in target.sources if source.purpose == purpose]:
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            yield f"{words}: {', '.join(names[:_MAX_NAMES])}{more}"
    yield from (f"Not looked at: {reason}" for reason in target.not_searched)


_MAX_NAMES = 8
BESIDE = {
    "rules": "Rules",
    "intent": "What the author says",
    "context": "Context, not under review",
    "repository": "Searched in the repository",
}


def _amount(target: Target) -> str:
    """Return how much there is to read: of changes, what the user changed, and not that diff and new text both are documents."""
    diff = target.sources[0].text if target.sources else ""
    if diff.startswith("diff --git "):
        files, added, removed = (len(re.findall(begin, diff, re.MULTILINE)) for begin in _CHANGED)
        return f"{count(files, 'changed file')}, {count(added, 'line')} added, {removed:,} removed"
    lines = sum(_line_count(source) for source in target.under_review)
    return f"{count(len(target.under_review), 'document')}, {count(lines, 'line')}"


_CHANGED = (r"^diff --git ", r"^\+(?!\+\+ )", "^-(?!-- )")
"""How lines of a diff begin that are of a file each, added, and removed."""


def target_json(target: Target) -> Mapping[str, object]:
    """Return the same as data."""
    documents = [{"name": source.name, "lines": _line_count(source)} for source in target.under_review]
    beside = [{"name": s.name, "lines": _line_count(s), "purpose": s.purpose} for s in target.sources if s.purpose]
    left_out = {"left_out": list(target.left_out), "not_searched": list(target.not_searched)}
    return {"target": {"title": target.title, "documents": documents, "beside": beside, **left_out}}


def _line_count(source: Source) -> int:
    return len(source.text.splitlines())


def read_material(
    request: NewSessionRequest, target: Target | None, agents: Sequence[Agent]
) -> tuple[str, Sequence[Source]]:
    """Return task and documents: of a target, or those that the options name. Raises `SettingsError`, `SourceError`."""
    if isinstance(request, TargetRequest) and target is not None:
        focus = None if request.focus is None else read_task(request.focus)
        return task_of(target, focus), target.sources
    assert isinstance(request, RunRequest)
    return read_task(request.task), read_sources(request.source or (), agents)


def read_sources(arguments: Sequence[str], agents: Sequence[Agent], *, noun: str = "an agent") -> list[Source]:
    """Return documents in the order given, one for each text and name; a directory gives its documents sorted by name.

    `noun` is what error messages call an agent. Raises `SourceError`.
    """
    sources: list[Source] = []
    label = "the document"
    parsed = [(argument, *_readers_and_path(argument, agents, noun)) for argument in arguments]
    names = _document_names([path for _, _, path in parsed])
    for argument, only, path in parsed:
        place = expanded(path)
        if path != "-":
            check_links(place)
        if path != "-" and place.is_dir():
            sources += _directory(place, path, names[path], only)
        elif path != "-" and not place.exists() and _all_exist(path.split(",")):
            raise _one_at_a_time("--source", "FILE", argument)
        else:
            reading = (
                read_data(_input_bytes(), label, source_name(path)) if path == "-" else read_document(place, label)
            )
            if not reading.text.strip():
                raise _empty(label, path)
            sources.append(reading.source(names[path], only))
    return merge_sources(sources)


def _document_names(paths: Sequence[str]) -> dict[str, str]:
    """Return by path what a document, or the documents of a directory, are called in prompts and reports: the path as given; of an
    absolute one its last part, unless another has the same. A report that is sent should not tell where its sender keeps files."""
    names = {path: source_name(path).rstrip("/") or path for path in paths}
    last_parts = {path: os.path.basename(name) for path, name in names.items()}
    shared = Counter(last_parts.values())
    hidden = {
        path: part for path, part in last_parts.items() if expanded(path).is_absolute() and part and shared[part] == 1
    }
    return names | hidden


def merge_sources(sources: Sequence[Source]) -> list[Source]:
    """Return each document, by name and text, once, for all agents that are given it."""
    merged: dict[tuple[str, str], Source] = {}
    for source in sources:
        same = merged.setdefault((source.name, source.text), source)
        readers = None if None in (same.agents, source.agents) else (*(same.agents or ()), *(source.agents or ()))
        agents = None if readers is None else tuple(dict.fromkeys(readers))
        remarks = tuple(dict.fromkeys((*same.remarks, *source.remarks)))
        merged[source.name, source.text] = same.model_copy(update={"agents": agents, "remarks": remarks})
    return list(merged.values())


def _all_exist(paths: Sequence[str]) -> bool:
    """Return whether these are several paths of existing files."""
    return len(paths) > 1 and all(path.strip() and os.path.exists(os.path.expanduser(path.strip())) for path in paths)


def read_panel(request: NewSessionRequest) -> Panel | None:
    """Return the panel of --panel or --persona; None for neither and for `auto`. Raises `SettingsError`, `UnknownName`."""
    if request.panel is not None and request.persona:
        raise SettingsError(
            "--panel and --persona exclude each other", where="--panel and --persona", do="Give one of the two."
        )
    if request.panel is not None:
        return None if request.panel == AUTO_PANEL else load_panel(request.panel)
    return panel_of(request.persona) if request.persona else None


def panel_of(texts: Sequence[str]) -> Panel:
    """Return personas from texts: `NAME: description`, or a description whose first words become the name. Other fields follow in
    brackets: `[horizon=5 years; interests=cost, cash]`. Raises `SettingsError`."""
    personas: list[dict[str, object]] = []
    names: set[str] = set()
    for number, text in enumerate(texts, 1):
        words, fields = _persona_fields(text.strip())
        name, description = _name_and_description(words)
        if not name or name.casefold() in names:
            name = f"Persona {number}"
        names.add(name.casefold())
        personas.append({**fields, "name": name, "description": description})
    table = {"name": "personas", "description": "Personas given on the command line.", "personas": personas}
    try:
        return Panel.model_validate(table)
    except ValidationError as error:
        invalid = describe_invalid(error, table, model=Panel, owner="the panel")
        raise SettingsError(invalid, where="--persona", do=_PERSONA_FORM) from None


def read_limits(request: SessionRequest, agents: Sequence[Agent]) -> Limits:
    """Return the limits. Raises `SettingsError` for an invalid limit, `UnknownName` for the limit of an unknown agent."""
    limits = amounts(request, (*SpendingLimits.model_fields, "steps"))
    by_agent = _spending_limits("--agent-limit", request.agent_limit or (), agents)
    by_phase = _spending_limits("--phase-limit", request.phase_limit or ())
    return limits.model_copy(update={"agents": by_agent, "phases": by_phase})


def amounts(request: PlannedRequest, units: Sequence[str]) -> Limits:
    """Return the limits of these units, from `--max-UNIT`. Raises `SettingsError`, which names the options."""
    by_option = {f"max_{unit}": unit for unit in units}
    try:
        return Limits(**{unit: getattr(request, name) for name, unit in by_option.items()})
    except InvalidValues as error:
        raise with_options(error, by_option, units) from None


def read_pairs(option: str, form: str, arguments: Sequence[str] | None) -> dict[str, str]:
    """Return arguments such as KEY=VALUE as a mapping. Raises `SettingsError` for another form or a name given twice."""
    pairs: dict[str, str] = {}
    for argument in arguments or ():
        name, equals, value = argument.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{argument!r} is not {form}", where=option, do=f"Write {option} {form}.")
        if name.strip() in pairs:
            raise SettingsError(f"{name.strip()} is given twice", where=option, do="Give it once.")
        pairs[name.strip()] = value.strip()
    return pairs


def _one_at_a_time(option: str, form: str, argument: str) -> SettingsError:
    """Return the error for a comma-separated list in an option that must be repeated, because its values may contain commas."""
    return SettingsError(
        f"{argument!r} lists several values", where=option, do=f"Repeat the option: {option} {form} {option} {form}."
    )


def _spending_limits(option: str, arguments: Sequence[str], agents: Sequence[Agent] = ()) -> dict[str, SpendingLimits]:
    """Return limits by name from `NAME:calls=3,tokens=500`. Names must be ids of `agents`, unless that is empty."""
    limits: dict[str, SpendingLimits] = {}
    ids = [agent.id for agent in agents]
    example = f"Write {option} {ids[-1] if ids else 'lateral_leaves'}:calls=3 (or tokens, cost, seconds)."
    for argument in arguments:
        name, _, spec = argument.rpartition(":")
        pairs = [pair.partition("=") for pair in spec.split(",")]
        if not name or any(kind not in SpendingLimits.model_fields or not value for kind, _, value in pairs):
            raise SettingsError(f"{argument!r} is not a limit", where=option, do=example)
        if ":" in name and "," in name:
            raise _one_at_a_time(option, "NAME:calls=N", argument)
        if ids and name not in (*ids, EACH):
            raise unknown_agent(name, agents, f"{option} {argument}")
        if len({kind for kind, _, _ in pairs}) < len(pairs):
            raise SettingsError(f"{argument!r} names one kind twice", where=option, do="Name each kind once.")
        try:
            limit = SpendingLimits(**{kind: value for kind, _, value in pairs})
            if option == "--phase-limit":
                Limits(phases={name: limit})
        except InvalidValues as error:
            reason = describe_invalid(error.cause)
            raise SettingsError(f"invalid limit {argument!r}: {reason}", where=option, do=example) from None
        if name in limits:
            raise SettingsError(f"{name} is limited twice", where=option, do="Give one limit with all its kinds.")
        limits[name] = limit
    return limits


def assign_models(
    request: PlannedRequest, agents: Sequence[Agent], own_models: Mapping[str, str], default: str | None
) -> dict[str, str]:
    """Return a model for every agent: its own, else its persona's, else one of --models in turn, else --model, else `default`.

    `agents` are in the order of assignment. The names are canonical.
    """
    if request.model is not None and request.models is not None:
        raise SettingsError("both --model and --models are given", do="Give one of the two.")
    shared = request.models or [(request.model or default or "").strip()]
    models = {
        agent.id: own_models.get(agent.id) or agent.model or shared[n % len(shared)] for n, agent in enumerate(agents)
    }
    if not all(models.values()):
        raise UnknownName("a model's name is empty", where="--model", do="Use local, or PROVIDER:MODEL.")
    return {id: canonical_name(name) for id, name in models.items()}


def unassigned_models(request: PlannedRequest, agents: Sequence[object]) -> list[str]:
    """Return names of --models beyond the number of agents."""
    return (request.models or [])[len(agents) :]


def unused_options(request: SessionRequest, agents: Sequence[Agent]) -> list[str]:
    """Return a sentence for each option that changes nothing."""
    models = unassigned_models(request, agents)
    return [f"More models than agents ({len(agents)}), unused: {', '.join(models)}."] if models else []


def own_models(option: str, arguments: Sequence[str], agents: Sequence[Agent]) -> dict[str, str]:
    """Return models by agent from `ID=MODEL`. Raises `SettingsError`, `UnknownName`."""
    ids = [agent.id for agent in agents]
    models: dict[str, str] = {}
    for argument in arguments:
        id, equals, name = (part.strip() for part in argument.partition("="))
        if not equals or not id or not name:
            raise SettingsError(
                f"{argument!r} is not ID=MODEL",
                where=option,
                do=f"Write {option} {ids[-1]}=local. Agents: {list_ids(agents)}.",
            )
        if any(part.partition("=")[0].strip() in ids for part in name.split(",")[1:]):
            raise _one_at_a_time(option, "ID=MODEL", argument)
        if id not in ids:
            raise unknown_agent(id, agents, f"{option} {argument}")
        if id in models:
            raise SettingsError(f"the agent {id} has two models", where=option, do="Give it one.")
        models[id] = name
    return models


def _readers_and_path(argument: str, agents: Sequence[Agent], noun: str) -> tuple[tuple[str, ...] | None, str]:
    """Return the only agents that read a document, if it names any by id or persona, and the path.

    An existing file may have `=` in its name.
    """
    names, equals, path = argument.partition("=")
    if not equals or is_address(argument) or os.path.exists(os.path.expanduser(argument)):
        return None, argument
    readers: dict[str, None] = {}
    for name in (name.strip() for name in names.split(",")):
        named = [agent.id for agent in agents if name == agent.id]
        named = named or [agent.id for agent in agents if name and name.casefold() == agent.persona.casefold()]
        if not named:
            raise SourceError(
                f"there is neither a file {argument!r} nor {noun} {name!r}",
                where="--source",
                do=f"Write --source FILE, or --source ID=FILE, where ID is {noun}: {list_ids(agents)}."
                if agents
                else _NO_IDS,
            )
        readers |= dict.fromkeys(named)
    return tuple(readers), path


def _directory(directory: Path, path: str, name: str, only: tuple[str, ...] | None) -> list[Source]:
    """Return the documents of a directory and its subdirectories, whose names begin with `name`. The first has the remarks on what
    was skipped."""
    collection = Collection(parse_patterns(()), as_documents=True)
    add_directory(directory, name, collection)
    skipped = tuple(f"{name}: left out: {reason}" for reason in collection.left_out)
    if not collection.sources:
        reasons = "; ".join(collection.left_out) or "it has no files"
        raise SourceError(
            f"the directory contains no text ({reasons})", where=path, do="Name files, or another directory."
        )
    first, *others = (source.model_copy(update={"agents": only}) for source in collection.sources)
    return [first.model_copy(update={"remarks": (*skipped, *first.remarks)}), *others]


_NO_IDS = "Write --source FILE. To give a document to one agent, name a protocol: consilience emergence TASK --source ID=FILE."

_READ: WeakSet[TextIO] = WeakSet()
"""Standard inputs that were read to the end."""


def _standard_input() -> str:
    return decode_text(_input_bytes(), "the text", "standard input")


def _input_bytes() -> bytes:
    if sys.stdin in _READ:
        raise SettingsError(
            "standard input is named twice and can be read once",
            do="Write - once, and give the other texts as files.",
        )
    _READ.add(sys.stdin)
    if sys.stdin.isatty():
        notify("Reading from the terminal; end with Ctrl-D.")
    data = sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1)
    if len(data) > MAX_SOURCE_BYTES:
        raise SourceError(
            f"the text cannot be read: {too_long(MAX_SOURCE_BYTES)}",
            where="standard input",
            do="Shorten it.",
        )
    return data


_PERSONA_FORM = (
    'Write "NAME: description [FIELD=VALUE; FIELD=VALUE]". Fields: interests=cost, cash; horizon=5 years; '
    "evidence=audited figures; claim=It pays for itself.; model=PROVIDER:MODEL."
)
_FIELDS = re.compile(r"\s*\[([^\[\]]*=[^\[\]]*)\]$")
_MISPLACED_FIELD = re.compile(rf"[\[;]\s*(?:{'|'.join(Persona.model_fields)})\s*=")


def _persona_fields(text: str) -> tuple[str, dict[str, object]]:
    """Return the text of a persona without the fields in brackets at its end, and the fields. Raises `SettingsError`."""
    match = _FIELDS.search(text)
    words = text if match is None else text[: match.start()]
    if _MISPLACED_FIELD.search(words) or ("=" in words and words.count("[") != words.count("]")):
        raise SettingsError(
            "the fields of the persona are not in one pair of brackets at its end", where="--persona", do=_PERSONA_FORM
        )
    fields: dict[str, object] = {}
    for pair in match[1].split(";") if match else ():
        name, _, value = (part.strip() for part in pair.partition("="))
        if name in fields or name in ("name", "description"):
            raise SettingsError(f"the field {name!r} of the persona is repeated", where="--persona", do="Give it once.")
        fields[name] = [item.strip() for item in value.split(",")] if name == "interests" else value
    return words, fields


def _name_and_description(text: str) -> tuple[str, str]:
    name_text, colon, description_text = text.partition(":")
    if colon and description_text.strip() and len(name_text) <= _MAX_NAME_CHARS and "\n" not in name_text:
        return name_text.strip(), description_text.strip()
    words = re.split(r"[.;!?\n]", text, maxsplit=1)[0].split()[:_MAX_NAME_WORDS]
    name = " ".join(words)[:_MAX_NAME_CHARS].strip(" ,")
    return f"{name[:1].upper()}{name[1:]}", text
