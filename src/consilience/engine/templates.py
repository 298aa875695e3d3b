"""Prompt templates: one Jinja file each, stored with the session so that it can be run again as it was."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from consilience.domain.errors import SettingsError

INSTRUCTIONS = "instructions"
"""The template every protocol has: what all its agents are told first."""


class Templates:
    """Templates by name, without `.j2`. One that asks for a value it is not given is a `SettingsError`."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = dict(sources)

    def render(self, name: str, **values: Hashable) -> str:
        try:
            return _rendered(self.sources[name], tuple(sorted(values.items())))
        except TemplateError as error:
            raise SettingsError(
                f"the prompt {name!r} cannot be written: {error}",
                where=f"{name}.j2",
                do="Mend or remove what overrides it.",
            ) from error


def load(package: str, override: Path | None = None) -> Templates:
    """The templates of a protocol's package; a directory may override files of the same names.

    Raises `SettingsError` for a directory that is not there, a file that overrides nothing, or a template that does not parse.
    """
    folder = files(package) / "prompts"
    sources = {
        item.name.removesuffix(".j2"): item.read_text("utf-8") for item in folder.iterdir() if item.name.endswith(".j2")
    }
    if override is not None:
        sources |= _overrides(override, sources)
    return Templates(dict(sorted(sources.items())))


def _overrides(directory: Path, known: Mapping[str, str]) -> dict[str, str]:
    if not directory.is_dir():
        raise SettingsError(
            "there is no such directory of prompts", where=str(directory), do="Name an existing directory."
        )
    found: dict[str, str] = {}
    for path in sorted(directory.glob("*.j2")):
        if path.stem not in known:
            raise SettingsError(
                f"{path.name} overrides no prompt of this protocol",
                where=str(path),
                do=f"Use one of: {', '.join(f'{name}.j2' for name in sorted(known))}.",
            )
        try:
            found[path.stem] = path.read_text("utf-8")
            _compiled(found[path.stem])
        except (OSError, UnicodeError, TemplateError) as error:
            raise SettingsError(
                f"the prompt cannot be read: {error}", where=str(path), do="Mend or remove it."
            ) from error
    return found


@lru_cache(maxsize=4096)
def _rendered(source: str, values: tuple[tuple[str, Hashable], ...]) -> str:
    """The same words for the same values, so written once: the agents of a panel are asked alike, round after round."""
    return _compiled(source).render(**dict(values)).strip()


@lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> SandboxedEnvironment:
    return SandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
    )
