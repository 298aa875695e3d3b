"""Prompt templates: Jinja files, stored with the session so that it can be run again unchanged."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import cleandoc
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from consilience.domain.detail import Detail
from consilience.domain.errors import SettingsError
from consilience.domain.paths import read_bounded_text

INSTRUCTIONS = "instructions"
"""The template that every protocol has: the system prompt of all its agents."""


class Templates:
    """Templates by name, without `.j2`. A missing template, or a value missing in one, is a `SettingsError`."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = dict(sources)

    def render(self, name: str, **values: Hashable) -> str:
        if name not in self.sources:
            raise SettingsError(
                f"there is no prompt template {name!r}",
                where=f"{name}.j2",
                do=f"Add it beside the protocol's class. There are: {', '.join(self.sources)}.",
            )
        try:
            return _rendered(self.sources[name], tuple(sorted(values.items())))
        except TemplateError as error:
            raise SettingsError(
                f"the prompt {name!r} failed to render: {error}",
                where=f"{name}.j2",
                do="Fix or remove the file that overrides it.",
            ) from error


def load(cls: type, override: Path | None = None, detail: Detail = "full") -> Templates:
    """Load the templates of a protocol's class.

    Each class along its method resolution order, bases first, adds the files of the folder `prompts` beside its module, those
    of `prompts/full` or `prompts/brief` according to `detail`, and its own `templates`. Later ones replace earlier ones of the
    same name, so a protocol with one set of prompts uses it for both. The files of a directory may override them.

    Raises `SettingsError` for a missing directory, a file that overrides nothing, a template that does not parse, and a class
    without instructions.
    """
    sources: dict[str, str] = {}
    folders: dict[str, Traversable] = {}
    for base in reversed(cls.__mro__):
        folder = _folder_beside(base.__module__)
        if folder is not None and str(folder) not in folders:
            folders[str(folder)] = folder
            sources |= _files_in(folder) | _files_in(folder / detail)
        sources |= {name: cleandoc(text) for name, text in vars(base).get("templates", {}).items()}
    for name, source in sources.items():
        try:
            _compiled(source)
        except TemplateError as error:
            where = f"{name}.j2 of {cls.__qualname__}"
            raise SettingsError(f"the prompt cannot be read: {error}", where=where, do="Fix the template.") from error
    if INSTRUCTIONS not in sources:
        raise SettingsError(
            f"{cls.__qualname__} has no template {INSTRUCTIONS!r}",
            where=cls.__module__,
            do=f"Write prompts/{INSTRUCTIONS}.j2 beside its module, or set its class attribute "
            f'templates = {{"{INSTRUCTIONS}": "…"}}.',
        )
    if override is not None:
        sources |= _overrides(override, sources)
    return Templates(dict(sorted(sources.items())))


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


def _overrides(directory: Path, known: Mapping[str, str]) -> dict[str, str]:
    if not directory.is_dir():
        raise SettingsError(
            "there is no such directory of prompts", where=str(directory), do="Name an existing directory."
        )
    sources: dict[str, str] = {}
    for path in sorted(directory.glob("*.j2")):
        if path.stem not in known:
            raise SettingsError(
                f"{path.name} overrides no prompt of this protocol",
                where=str(path),
                do=f"Use one of: {', '.join(f'{name}.j2' for name in sorted(known))}.",
            )
        try:
            sources[path.stem] = read_bounded_text(path)
            _compiled(sources[path.stem])
        except (OSError, UnicodeError, TemplateError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(
                f"the prompt cannot be read: {reason}", where=str(path), do="Fix or remove the file."
            ) from error
    return sources


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
        text = _compiled(source).render(**dict(values)).strip()
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
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> SandboxedEnvironment:
    return SandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
    )
