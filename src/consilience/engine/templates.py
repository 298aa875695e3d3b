"""Prompt templates: Jinja files, stored with the session so that it can be run again unchanged."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import cleandoc
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from jinja2 import Environment, StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import SandboxedEnvironment

from consilience.domain.detail import Detail
from consilience.domain.errors import Command, PromptFailed, ProtocolViolation, SettingsError
from consilience.domain.events import SessionStarted
from consilience.domain.paths import read_bounded_text
from consilience.engine.bounded_templates import BoundedEnvironment, render_bounded

INSTRUCTIONS = "instructions"
"""The template that every protocol has: the system prompt of all its agents."""
_INCLUDE = re.compile(r"""{%\s*include\s+(["'])(\w+)\.j2\1\s*%}""")


class Templates:
    """Templates by name, without `.j2`. A missing template, or a value missing in one, is a `SettingsError`.

    `replaced` names the templates that the files of `directory` replace; a recorded session does not know its directory.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        replaced: tuple[str, ...] = (),
        directory: Path | None = None,
        session: str | None = None,
        lacking: Mapping[str, set[str]] = MappingProxyType({}),
    ) -> None:
        self.sources = dict(sources)
        self.replaced = replaced
        self.directory = directory
        self.session = session
        self.lacking = lacking
        """Variables of the original that a replaced template does not use, by its name; without those that use all."""

    @property
    def notes(self) -> list[str]:
        """A sentence for each file that lacks a variable of its original."""
        return [
            f"{(self.directory or Path()) / name}.j2 does not use what the original uses: {', '.join(sorted(lacking))}."
            for name, lacking in self.lacking.items()
        ]

    def variables(self, name: str) -> set[str]:
        """Return the names that a template takes from outside."""
        return _variables(self.sources[name])

    def of(self, session: str) -> Templates:
        """Return the templates as those of a session, which errors name."""
        return Templates(self.sources, self.replaced, self.directory, session)

    def render(self, name: str, **values: Hashable) -> str:
        if name not in self.sources:
            raise SettingsError(
                f"there is no prompt template {name!r}",
                where=f"{name}.j2",
                do=f"Add it beside the protocol's class. There are: {', '.join(self.sources)}.",
            )
        try:
            return _rendered(self.sources[name], tuple(sorted(values.items())))
        except Exception as error:  # filters and operators raise what they like
            _check_hashable(name, values)
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            where = self.directory / f"{name}.j2" if self.directory and name in self.replaced else f"{name}.j2"
            arguments = {"at": "end", "prompts": self.directory or "DIR"}
            raise PromptFailed(
                f"the prompt {name!r} failed to render: {kind}{error}",
                where=str(where),
                do="Fix the file." + (" A session keeps its templates, so continue in a fork" if self.session else ""),
                command=Command("fork", self.session, arguments) if self.session else None,
            ) from error


def _check_hashable(name: str, values: Mapping[str, object]) -> None:
    """Raise `ProtocolViolation` for a value by which a rendered text cannot be kept."""
    for value, given in values.items():
        try:
            hash(given)
        except TypeError as error:
            raise ProtocolViolation(
                f"the value {value!r} of the prompt {name!r} is mutable ({error}). Pass a tuple in place of a list or set, "
                "and a tuple of pairs or a frozen object in place of a dict"
            ) from None


def load(cls: type, override: Path | None = None, detail: Detail = "full") -> Templates:
    """Load the templates of a protocol's class.

    Each class along its method resolution order, bases first, adds the files of the folder `prompts` beside its module, those
    of `prompts/full` or `prompts/brief` according to `detail`, and its own `templates`. Later ones replace earlier ones of the
    same name, so a protocol with one set of prompts uses it for both. The files of a directory may override them.

    `{% include "_shared.j2" %}` stands for the text of another template, without its last line break. The returned templates
    have that text in its place, so a session stores all of it. A name that begins with `_` is no prompt by itself.

    Raises `SettingsError` for a missing directory or one without templates, a file or an entry of `templates` that overrides
    nothing, a file that uses a variable that no original of its name uses, a template that does not parse or includes one that
    does not exist, and a class without instructions.
    """
    sources = dict(_originals(cls, detail))
    for name, source in sources.items():
        _check_readable(cls, name, source)
    if INSTRUCTIONS not in sources:
        raise SettingsError(
            f"{cls.__qualname__} has no template {INSTRUCTIONS!r}",
            where=cls.__module__,
            do=f"Write prompts/{INSTRUCTIONS}.j2 beside its module, or set its class attribute "
            f'templates = {{"{INSTRUCTIONS}": "…"}}.',
        )
    replaced: dict[str, str] = {}
    if override is not None:
        variables: dict[str, set[str]] = defaultdict(set)
        for some in get_args(Detail):
            for name, source in _originals(cls, some):
                _check_readable(cls, name, source)
                variables[name] |= _variables(source)
        parts = dict(_sources(cls, detail))
        replaced = _overrides(override, {name: variables[name] for name in sources}, detail, parts)
    lacking = {name: _variables(sources[name]) - _variables(text) for name, text in replaced.items()}
    return Templates(
        dict(sorted({**sources, **replaced}.items())),
        tuple(replaced),
        override,
        lacking={name: variables for name, variables in lacking.items() if variables},
    )


def recorded_templates(cls: type, started: SessionStarted, text: Callable[[str], str]) -> Templates:
    """Return the templates of a session of the protocol `cls`. `text` returns a stored text by its id."""
    _load_own(cls)
    return Templates({name: text(id) for name, id in started.templates.items()}, started.replaced_templates)


@lru_cache(maxsize=64)
def _load_own(cls: type) -> None:
    """Note the templates of a class as its own."""
    for detail in get_args(Detail):
        _originals(cls, detail)


def _check_readable(cls: type, name: str, source: str) -> None:
    try:
        _compiled(source)
    except TemplateError as error:
        where = f"{name}.j2 of {cls.__qualname__}"
        raise SettingsError(f"the prompt cannot be read: {error}", where=where, do="Fix the template.") from error


def _originals(cls: type, detail: Detail) -> list[tuple[str, str]]:
    """Return the prompts of a class with what they include, bases first; a later one replaces an earlier one of the same name."""
    sources = list(_sources(cls, detail))
    originals = [
        (name, _expanded(source, dict(sources), f"{name}.j2 of {cls.__qualname__}"))
        for name, source in sources
        if not name.startswith("_")
    ]
    _own_sources.update(source for _, source in originals)
    return originals


def _expanded(source: str, sources: Mapping[str, str], where: str, within: tuple[str, ...] = ()) -> str:
    """Return a template with the text of those that it includes. `within` are the names of those around it."""

    def included(match: re.Match[str]) -> str:
        name = match[2]
        if name not in sources or name in within:
            problem = "includes itself" if name in within else "is no template of the protocol"
            raise SettingsError(
                f"{match[0]} cannot be read: {name}.j2 {problem}",
                where=where,
                do=f"Include one of: {_file_names(sources.keys() - {*within, INSTRUCTIONS})}.",
            )
        return _expanded(sources[name], sources, where, (*within, name)).removesuffix("\n")

    return _INCLUDE.sub(included, source)


def _sources(cls: type, detail: Detail) -> Iterator[tuple[str, str]]:
    """Yield the templates of a class as they are written, bases first."""
    names: set[str] = set()
    folders = set()
    for base in reversed(cls.__mro__):
        module = sys.modules.get(base.__module__)
        folder, beside = _beside(base.__module__, getattr(module, "__file__", None), detail)
        if folder and folder not in folders:
            folders.add(folder)
            names |= beside.keys()
            yield from beside.items()
        own = {name: cleandoc(text) for name, text in vars(base).get("templates", {}).items()}
        unused = own.keys() - names
        if unused and INSTRUCTIONS in names and not _has_methods(base):
            raise SettingsError(
                f"{', '.join(map(repr, sorted(unused)))} overrides no prompt that {base.__qualname__} inherits",
                where=f"{base.__qualname__}.templates",
                do=f"Use one of: {', '.join(sorted(names))}. Only a class with methods of its own can add a prompt.",
            )
        names |= own.keys()
        yield from own.items()


@lru_cache(maxsize=256)
def _beside(module_name: str, file: str | None, detail: Detail) -> tuple[str, Mapping[str, str]]:
    """Return the folder `prompts` beside a module, "" if there is none, and its templates. They are read once a process."""
    folder = _folder_beside(module_name)
    return ("", {}) if folder is None else (str(folder), _files_in(folder) | _files_in(folder / detail))


def _has_methods(cls: type) -> bool:
    """Return whether a class, or another of its bases, brings code that may render a template of a new name."""
    return len(cls.__bases__) > 1 or any(
        hasattr(member, "__get__") for name, member in vars(cls).items() if not name.startswith("__")
    )


def _files_in(folder: Traversable) -> dict[str, str]:
    """Return the template files of a folder by name, without `.j2`; none if the folder does not exist."""
    items = folder.iterdir() if folder.is_dir() else ()
    return {item.name[:-3]: item.read_text("utf-8") for item in items if item.name.endswith(".j2")}


def _folder_beside(module_name: str) -> Traversable | None:
    """Return the folder `prompts` beside a module, if it exists. A notebook or an interactive session has none."""
    module = sys.modules.get(module_name)
    package, file = getattr(module, "__package__", None), getattr(module, "__file__", None)
    parent: Traversable | None = files(package) if package else Path(file).parent if file else None
    folder = parent / "prompts" if parent is not None else None
    return folder if folder is not None and folder.is_dir() else None


def _overrides(
    directory: Path, known: Mapping[str, set[str]], detail: Detail, parts: Mapping[str, str]
) -> dict[str, str]:
    """Return the templates of a directory by name. `known` has the variables of the originals, `parts` what may be included."""
    sources: dict[str, str] = {}
    for path in _override_files(directory, known, detail):
        if path.stem not in known:
            raise SettingsError(
                f"{path.name} overrides no prompt of this protocol",
                where=str(path),
                do=f"Use one of: {_file_names(known)}.",
            )
        try:
            sources[path.stem] = _expanded(read_bounded_text(path), parts, str(path))
            _compiled(sources[path.stem])
            unknown = sorted(_variables(sources[path.stem]) - known[path.stem])
        except (OSError, UnicodeError, TemplateError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(
                f"the prompt cannot be read: {reason}", where=str(path), do="Fix or remove the file."
            ) from error
        if unknown:
            names = ", ".join(sorted(known[path.stem]))
            raise SettingsError(
                f"{path.name} uses {', '.join(map(repr, unknown))}, which the original does not use",
                where=str(path),
                do=f"Use only: {names}." if names else "Use no variable: the original has none.",
            )
    return sources


def _override_files(directory: Path, known: Iterable[str], detail: Detail) -> list[Path]:
    """Return the template files of a directory. Raises `SettingsError` if there are none."""
    if directory.is_file():
        raise SettingsError(
            "the prompts are a file", where=str(directory), do=f"Name its directory: {directory.parent}."
        )
    if not directory.is_dir():
        raise SettingsError(
            "there is no such directory of prompts", where=str(directory), do="Name an existing directory."
        )
    files = sorted(directory.glob("*.j2"))
    if not files:
        folder = next(
            (directory / name for name in (detail, *get_args(Detail)) if any((directory / name).glob("*.j2"))), None
        )
        raise SettingsError(
            "the directory contains no prompt template, so none would be replaced",
            where=str(directory),
            do=f"Name the folder that contains them: {folder}." if folder else f"Add one of: {_file_names(known)}.",
        )
    return files


def _file_names(names: Iterable[str]) -> str:
    return ", ".join(f"{name}.j2" for name in sorted(names))


def _variables(source: str) -> set[str]:
    """Return the names that a template takes from outside. Raises `TemplateError`."""
    environment = _environment_of(source)
    return meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys()


MAX_RENDERED_CHARS = 4_000_000
"""Max characters of rendered templates that are kept. A text of more than a hundredth of that is rendered each time."""

_Values = tuple[tuple[str, Hashable], ...]
_rendered_before: dict[tuple[str, _Values], str] = {}
_chars_kept = 0


def _rendered(source: str, values: _Values) -> str:
    """Render once per source and values: many agents are asked the same in every round."""
    global _chars_kept
    text = _rendered_before.get((source, values))
    if text is None:
        template = _compiled(source)
        bounded = isinstance(template.environment, BoundedEnvironment)
        text = (render_bounded(template, dict(values)) if bounded else template.render(**dict(values))).strip()
        chars = len(text) + sum(len(value) for _, value in values if isinstance(value, str))
        if chars > MAX_RENDERED_CHARS // 100:
            return text
        if _chars_kept + chars > MAX_RENDERED_CHARS:
            _rendered_before.clear()
            _chars_kept = 0
        _rendered_before[source, values] = text
        _chars_kept += chars
    return text


@lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    """Compile a template. Raises `TemplateError`."""
    try:
        return _environment_of(source).from_string(source)
    except (
        RecursionError,
        MemoryError,
        SyntaxError,
        ValueError,
    ) as error:  # of Python's compiler, and a number too long
        raise TemplateSyntaxError(f"it is nested too deeply or has too long a number ({error})", 1) from error


_own_sources: set[str] = set()
"""Templates of the protocols' classes, which are code. All others come from users or journals, and are rendered within bounds."""


def _environment_of(source: str) -> Environment:
    return _environment() if source in _own_sources else _bounded_environment()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return SandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@lru_cache(maxsize=1)
def _bounded_environment() -> Environment:
    return BoundedEnvironment()
