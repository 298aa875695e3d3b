"""What a caller may not give: code to import, files to read, models that the operator does not offer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.messages import ShippedName
from consilience.domain.model_names import PERSON, kind_of, links
from consilience.engine.protocol import Protocol
from consilience.engine.recorded_code import code_named
from consilience.models.endpoints import Endpoints
from consilience.models.registry import canonical_name, facts_of
from consilience.server.callers import Caller, Forbidden
from consilience.server.settings import ServerSettings


def check_settings(cls: type[Protocol], settings: Mapping[str, object]) -> None:
    """Raise `SettingsError` for settings that users do not set, and for values that name code or files."""
    if unknown := [name for name in settings if name not in cls.own_settings()]:
        raise SettingsError(
            f"{cls.name} has no setting {unknown[0]!r}", where="settings", do=f"Known: {', '.join(cls.own_settings())}."
        )
    if code := code_named(cls, settings):
        raise SettingsError(
            f"a setting names code to import: {', '.join(code)}", where="settings", do="Name what is installed."
        )
    for name, value in settings.items():
        for shipped in cls.model_fields[name].metadata:
            if isinstance(shipped, ShippedName) and isinstance(value, str) and value not in shipped.names():
                raise SettingsError(
                    f"there is no {name} {value!r}",
                    where=f"settings.{name}",
                    do=f"Give one as an object, or name one: {', '.join(shipped.names())}.",
                )


def allowed_models(caller: Caller, settings: ServerSettings) -> list[str]:
    """Return the names of the models that a caller may choose; the first is the default."""
    return [name for name in settings.models if caller.models is None or name in caller.models]


def check_priced(caller: Caller, models: Iterable[str], known: Endpoints) -> None:
    """Raise `Forbidden` for a model whose price is not known, if the caller's money is bounded."""
    if caller.max_cost_per_day is None:
        return
    paid = (facts for name in models for facts in facts_of(name, known) if facts.paid)
    if unpriced := next((facts.name for facts in paid if facts.price(1, 1) is None), None):
        raise Forbidden(
            f"{caller.owner} may spend at most ${caller.max_cost_per_day:g} a day, and the price of {unpriced} is not known. The "
            "operator can declare it; or name another model."
        )


def check_allowed(caller: Caller, settings: ServerSettings, models: Iterable[str], *, where: str = "models") -> None:
    """Raise `SettingsError` for a model that the caller may not choose. A person may take any seat, but no chain with one."""
    allowed = allowed_models(caller, settings)
    known = {*allowed, *map(canonical_name, allowed)}
    for name in models:
        if name not in known and [kind_of(link) for link in links(name)] != ["person"]:
            raise SettingsError(
                f"the model {name!r:.100} is not allowed", where=where, do=f"Allowed: {', '.join((*allowed, PERSON))}."
            )


def assigned_models(
    caller: Caller, settings: ServerSettings, agents: Sequence[Agent], named: Sequence[str] | Mapping[str, str]
) -> dict[str, str]:
    """Return a model for every agent: by id, or in turn. Raises `SettingsError` for one that the caller may not choose."""
    default = next(iter(allowed_models(caller, settings)), PERSON)
    if isinstance(named, Mapping):
        unknown = set(named) - {agent.id for agent in agents}
        if unknown:
            ids = ", ".join(agent.id for agent in agents)
            raise SettingsError(f"there is no agent {min(unknown)!r}", where="models", do=f"Agents: {ids}.")
        models = {agent.id: named.get(agent.id) or agent.model or default for agent in agents}
    else:
        shared = named or (default,)
        models = {agent.id: agent.model or shared[n % len(shared)] for n, agent in enumerate(agents)}
    check_allowed(caller, settings, (*models.values(), *(named if not isinstance(named, Mapping) else ())))
    return {id: canonical_name(name) for id, name in models.items()}
