"""Gates and hooks by name: an entry point, or `module:attribute`.

Names also stand in the files of a workspace, which every participant can write. So only an object that its author made for this
purpose is taken, and no module is imported from within a workspace.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TypeVar

from consilience.domain.errors import UnknownName

T = TypeVar("T")


def load_plugin(name: str, group: str, kind: type[T]) -> T:
    """Return the object of type `kind` that is installed as entry point `name` of `group`, or is `module:attribute`.

    Raises `UnknownName` if there is none, if it cannot be imported, or if it is of another type.
    """
    from importlib.metadata import entry_points  # slow to import

    place = next((point.value for point in entry_points(group=group) if point.name == name), name)
    module, separator, attribute = place.partition(":")
    if not (
        separator and attribute and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])
    ):
        raise UnknownName(f"there is no {kind.__name__.lower()} {name!r:.80}")
    parts = module.split(".")
    if place == name and any(_lies_in_workspace(".".join(parts[:n])) for n in range(1, len(parts) + 1)):
        raise UnknownName(
            f"the module of {name!r:.80} lies in a workspace, where any participant can write it",
            do="Move it to a directory of your own.",
        )
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module does while it is imported
        raise UnknownName(
            f"{name!r:.80} cannot be imported: {type(error).__name__}: {error}",
            do="Check the spelling and that the module is on Python's path.",
        ) from error
    if not isinstance(found, kind):
        raise UnknownName(
            f"{name!r:.80} is not a {kind.__name__.lower()}",
            do=f"Decorate the function with consilience.coordination.{kind.__name__.lower()}.",
        )
    return found


def _lies_in_workspace(module: str) -> bool:
    if module in sys.modules:
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    files = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return any(
        (directory / "session_id.txt").is_file()
        for file in files
        if file
        for path in (Path(os.path.abspath(file)), Path(file).resolve())
        for directory in (path, *path.parents)
    )
