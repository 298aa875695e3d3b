"""Kinds of models that installed packages add by the entry point group `consilience.models`: `PREFIX:MODEL` opens one."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from consilience.domain.errors import UnavailableModel, UnknownName, UserError
from consilience.models.port import Model
from consilience.models.providers import PROVIDERS, Declaration

T = TypeVar("T")

ENTRY_POINT_GROUP = "consilience.models"
_TAKEN = frozenset({"local", "exec", "human", "workspace", "agent", "http", "https", "minilm", "sentence-transformers"})
"""Beginnings of names that mean something else. A package cannot replace them, nor a provider."""


class ModelKind(ABC):
    """What an entry point `PREFIX = "module:Class"` names: how a model is opened by its name `PREFIX:MODEL`.

    It is made without arguments, once per process. Its methods use no network, but for `open`, whose model sends requests later.
    They may raise `UserError`s; any other exception becomes an `UnavailableModel` that names the package.
    """

    @abstractmethod
    def open(self, model: str) -> Model:
        """Return the model. The engine closes it. Wrap it in `Limited` for retries, a deadline and a rate limit."""

    def check(self, model: str) -> None:  # noqa: B027 - most kinds have nothing to check
        """Raise a `UserError` if there is no such model. A dry run and `doctor` call it, before anything is opened."""

    def canonical(self, model: str) -> str:
        """Return the one spelling of the model, by which it is recorded and compared."""
        return model

    def declared(self, model: str) -> Declaration:
        """Return what is known of the model before it is opened, for the plan: prices, context window, whether it thinks, the
        variable of its key. Without prices a run asks, or needs `--yes`, as for any model of unknown price; (0, 0) is free.
        """
        return Declaration()


@cache
def installed_kinds() -> dict[str, list[EntryPoint]]:
    """Return the entry points of kinds by prefix, from package metadata, without importing any."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, []).append(point)
    return found


@cache
def find_kind(prefix: str) -> ModelKind | None:
    """Return the kind of that prefix; None if no package adds it. Raises `UnknownName`, which names the packages to blame."""
    points = {(point.value, _package(point)): point for point in installed_kinds().get(prefix, ())}
    if not points:
        return None
    places = " and ".join(f"{point.value!r} of {_package(point)}" for point in points.values())
    if prefix in _TAKEN or prefix in PROVIDERS or not re.fullmatch("[a-z][a-z0-9-]*", prefix):
        form = (
            "a word of small letters, digits and hyphens" if prefix.lower() not in {*_TAKEN, *PROVIDERS} else "another"
        )
        problem, do = "it cannot be added by a package", f"Name the entry point {form}, or remove the package."
    elif len(points) > 1:
        problem, do = "several packages add it", "Remove all but one."
    else:
        (point,) = points.values()
        kind, problem, cause = _load(point)
        if kind is not None:
            return kind
        raise _unusable(prefix, problem, places, "Fix or remove that package.") from cause
    raise _unusable(prefix, problem, places, do)


def is_added(prefix: str) -> bool:
    """Return whether a name of that prefix is one of an added kind, usable or not. Imports nothing."""
    return prefix in installed_kinds() and prefix not in _TAKEN and prefix not in PROVIDERS


def open_added(kind: ModelKind, prefix: str, model: str) -> Model:
    """Return the model, whose name must be the canonical one. Raises `UserError`."""
    opened = ask_kind(prefix, lambda: kind.open(model))
    name = f"{prefix}:{model}"
    if problem := ask_kind(prefix, lambda: _problem_of(opened, name, kind.declared(model))):
        raise UnavailableModel(f"what is opened for {name} {problem}", where=_places(prefix), do="Fix that package.")
    return opened


def _problem_of(opened: object, name: str, declared: Declaration) -> str:
    """Return what is wrong with an opened model; "" if nothing is. The plan and the run must name the same price."""
    if not isinstance(opened, Model):
        return f"is a {type(opened).__name__}, which is no model"
    if opened.name != name:
        return f"has the name {opened.name!r}"
    prices = opened.price(1_000_000, 0), opened.price(0, 1_000_000)
    if declared.prices is not None and prices != declared.prices:
        return f"costs {prices} dollars per million tokens read and written, and {declared.prices} is declared"
    return ""


def ask_kind(prefix: str, ask: Callable[[], T]) -> T:
    """Return what a package's code answers. An exception that is no `UserError` becomes one, which names the package."""
    with _blamed(prefix):
        return ask()


@contextmanager
def _blamed(prefix: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UnavailableModel(
            f"models {prefix}:… cannot be used: {type(error).__name__}: {error}",
            where=_places(prefix),
            do="Fix that package.",
        ) from error


def _load(point: EntryPoint) -> tuple[ModelKind | None, str, Exception | None]:
    try:
        cls = point.load()
        if isinstance(cls, type) and issubclass(cls, ModelKind):
            return cls(), "", None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}", error
    return None, "it is no class derived from consilience.models.kinds.ModelKind", None


def _unusable(prefix: str, problem: str, places: str, do: str) -> UnknownName:
    return UnknownName(f"models {prefix}:… cannot be used: {problem}", where=f"entry point {prefix} = {places}", do=do)


def _places(prefix: str) -> str:
    return f"entry point {prefix} = {' and '.join(f'{p.value!r} of {_package(p)}' for p in installed_kinds()[prefix])}"


def _package(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist else "an unknown package"
