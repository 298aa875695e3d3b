"""What a model's name means: `parse` reads it as a chain of names, each of one kind, which can be checked and opened.

A name is `local`, `local:NAME`, `local:/path/to.gguf`, a server on this machine (`ollama:`, `lmstudio:`, `llamacpp:`,
`vllm:`), a program on this machine (`exec:COMMAND`), any OpenAI-compatible endpoint (`http://HOST:PORT/v1#MODEL`), any
`provider:model` of pydantic-ai, or a kind that an installed package adds; `openai-chat:` sends to the address in
`OPENAI_BASE_URL`. A person (`human:NAME`) and an agent of another process (`workspace:DIR#NAME`) have names too.
Parsing and opening touch no network. A model is recorded and compared by its canonical name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from consilience.domain.errors import SettingsError, UnavailableModel, UnknownName, UserError
from consilience.domain.model_names import PERSON, WORKSPACE_PREFIX, NameKind, kind_of, links
from consilience.domain.outcome import Thinks
from consilience.domain.validation import did_you_mean
from consilience.models import endpoints, weights
from consilience.models.connections import Connections
from consilience.models.endpoints import NO_ENDPOINTS, Endpoints
from consilience.models.facts import ModelFacts
from consilience.models.hosted import RETRIES, endpoint_key, open_hosted
from consilience.models.kinds import ask_kind, find_kind, installed_kinds, is_added, open_added
from consilience.models.port import Model
from consilience.models.providers import PROVIDERS, SERVERS, key_needed, known_providers
from consilience.models.weights import CATALOGUE


@dataclass(frozen=True, slots=True)
class Name:
    """One link of a chain. It may be invalid: `check` and `open` say so."""

    text: str
    """As it was written, without spaces around it."""
    known: Endpoints = NO_ENDPOINTS
    """What is declared of endpoints, and which of them may have a key."""
    waits_for: ClassVar[str] = ""
    """Who answers, if that may take days: it cannot be part of a chain, and the engine opens it."""

    @property
    def rest(self) -> str:
        """What follows the first colon."""
        return self.text.partition(":")[2]

    @property
    def canonical(self) -> str:
        """The one spelling. A path that is relative, or a link, is read on this machine."""
        return self.text

    def facts(self, environ: Mapping[str, str] | None = None) -> ModelFacts:
        """Return what is known of the model by its name."""
        return ModelFacts(self.text, self.known, os.environ if environ is None else environ)

    def check(self, *, keys: bool) -> None:
        """Raise a `UserError` for an invalid name and, with `keys`, for a model without its key. Uses no network."""
        self.open()

    def check_installed(self, connections: Connections) -> None:
        """Raise `UnavailableModel` for a model whose client library or weights are not installed. What is opened for it stays in
        `connections`. Uses no network; imports the library."""

    def open(
        self, *, deadline: float | None = None, retries: int = RETRIES, connections: Connections | None = None
    ) -> Model:
        """Return the model. `deadline` is seconds per request; `connections` are clients that models share. Raises `UnknownName` or
        `UnavailableModel`."""
        raise UnavailableModel(
            f"{self.text} is {self.waits_for}, not a model",
            do="Give it the seat of an agent, for example --agent ID=human.",
        )


class LocalName(Name):
    """`local`, `local:NAME`, `local:/path/to.gguf`."""

    @property
    def canonical(self) -> str:
        return f"local:{self.weights}"

    @property
    def weights(self) -> str:
        """The name in the catalogue, or the absolute path of a file."""
        return weights.canonical_name(self.rest)

    def check(self, *, keys: bool) -> None:
        if not self.weights.endswith(".gguf") and self.weights not in CATALOGUE:
            weights.verify(self.weights)

    def check_installed(self, connections: Connections) -> None:
        from consilience.models.local import need_libraries

        need_libraries()
        weights.verify(self.weights)

    def open(
        self, *, deadline: float | None = None, retries: int = RETRIES, connections: Connections | None = None
    ) -> Model:
        from consilience.models.local import LocalModel

        return LocalModel(self.weights)


class ProgramName(Name):
    """`exec:COMMAND`."""

    def open(
        self, *, deadline: float | None = None, retries: int = RETRIES, connections: Connections | None = None
    ) -> Model:
        from consilience.models import program
        from consilience.models.limiter import Limited, Pace

        pace = Pace(initial_window=program.MAX_IN_FLIGHT, max_window=program.MAX_IN_FLIGHT)
        model = program.ProgramModel(self.text)
        return Limited(model, deadline=deadline or program.DEADLINE_SECONDS, retries=0, pace=pace)


class PersonName(Name):
    """`human`, `human:NAME`."""

    waits_for = "a person"

    def check(self, *, keys: bool) -> None:
        """Every person may be asked."""


class WorkspaceName(Name):
    """`workspace:DIR[#NAME]`: an agent of another process."""

    waits_for = "an outside agent"

    @property
    def canonical(self) -> str:
        directory, hash_sign, agent = self.rest.partition("#")
        path = os.path.realpath(os.path.expanduser(directory))
        whole = f"{WORKSPACE_PREFIX}{path}{hash_sign}{agent}"
        return self.text if not directory.strip() or "#" in path else whole


class EndpointName(Name):
    """`http://HOST:PORT/v1#MODEL`."""

    @property
    def canonical(self) -> str:
        return endpoints.canonical_name(self.text)

    def check(self, *, keys: bool) -> None:
        endpoint = endpoints.parse_endpoint(self.canonical, self.known)
        if keys:
            endpoint_key(endpoint, self.known)

    def check_installed(self, connections: Connections) -> None:
        self.open(connections=connections)

    def open(
        self, *, deadline: float | None = None, retries: int = RETRIES, connections: Connections | None = None
    ) -> Model:
        endpoint = endpoints.parse_endpoint(self.canonical, self.known)
        facts = ModelFacts(self.canonical, self.known)
        return open_hosted(
            facts, endpoint.account, endpoint.model, deadline=deadline, retries=retries, connections=connections
        )


class ProviderName(Name):
    """`PROVIDER:MODEL`, or nothing that is known."""

    def check(self, *, keys: bool) -> None:
        provider, _, model = self.text.partition(":")
        is_known = provider in PROVIDERS or provider.startswith("gateway/")
        if not is_known or not model or "," in model or (keys and self.facts().missing_key):
            self.open()  # raises the error that names the problem

    def check_installed(self, connections: Connections) -> None:
        self.open(connections=connections)

    def open(
        self, *, deadline: float | None = None, retries: int = RETRIES, connections: Connections | None = None
    ) -> Model:
        provider, colon, model = self.text.partition(":")
        if provider == "agent":
            raise UnavailableModel(
                f"{self.text} is an agent with tools, which must be given from Python",
                do="Pass it again: resume(…, model={id: agent, …}).",
            )
        if not colon or not model or "," in model:
            raise _incomplete(self.text, provider)
        if provider not in PROVIDERS and not provider.startswith("gateway/"):
            raise _unknown_provider(self.text, provider)
        return open_hosted(self.facts(), provider, model, deadline=deadline, retries=retries, connections=connections)


class AddedName(Name):
    """`PREFIX:MODEL` of a kind that an installed package adds."""

    @property
    def prefix(self) -> str:
        return self.text.partition(":")[0]

    @property
    def canonical(self) -> str:
        try:
            kind = find_kind(self.prefix)
            return f"{self.prefix}:{ask_kind(self.prefix, lambda: kind.canonical(self.rest))}" if kind else self.text
        except UserError:  # `check` says it
            return self.text

    def check(self, *, keys: bool) -> None:
        kind = find_kind(self.prefix)
        assert kind is not None
        if not self.rest:
            raise _incomplete(self.text, self.prefix)
        ask_kind(self.prefix, lambda: kind.check(self.rest))
        if keys and self.facts().missing_key:
            raise key_needed(self.text, self.facts().key_variables)

    def open(
        self, *, deadline: float | None = None, retries: int = RETRIES, connections: Connections | None = None
    ) -> Model:
        self.check(keys=True)
        kind = find_kind(self.prefix)
        assert kind is not None
        return open_added(kind, self.prefix, self.canonical.partition(":")[2])


_NAMES: Mapping[NameKind, Callable[[str, Endpoints], Name]] = {
    "local": LocalName,
    "endpoint": EndpointName,
    "program": ProgramName,
    "person": PersonName,
    "workspace": WorkspaceName,
    "provider": lambda link, known: (AddedName if is_added(link.partition(":")[0]) else ProviderName)(link, known),
}


@dataclass(frozen=True, slots=True)
class Chain:
    """What a name means: its links in the order in which they are tried."""

    links: tuple[Name, ...]

    @property
    def canonical(self) -> str:
        """The one spelling of the chain."""
        return "|".join(link.canonical for link in self.links)

    @property
    def waiting(self) -> Name | None:
        """The person or the outside agent whom the chain names; None for models and programs."""
        return next((link for link in self.links if link.waits_for), None)

    def check_form(self) -> None:
        """Raise `SettingsError` for a chain with a person or an outside agent, who may be awaited for days and do not fail over."""
        if len(self.links) > 1 and (waiting := self.waiting):
            raise SettingsError(
                f"{waiting.waits_for} cannot be part of a chain of models",
                where="|".join(link.text for link in self.links),
                do="Give it the seat alone (ID=human, ID=workspace:DIR), or give the seat to models and programs alone.",
            )

    def open(
        self, *, deadline: float | None = None, retries: int = RETRIES, connections: Connections | None = None
    ) -> Model:
        """Return the model, with the canonical name. It is behind the limiter of its account unless it runs in a process of ours.

        `deadline` is seconds per request; without `connections` the model has a client of its own. `A|B` is A, and B if A fails.
        Raises `UnknownName`, or `UnavailableModel` that names the variable to set or what to install. Reads the environment, not
        the network (except to list the models of a loopback endpoint in an error). Blocks for about 1 s while a client library is
        imported.
        """
        self.check_form()
        opened = [link.open(deadline=deadline, retries=retries, connections=connections) for link in self.links]
        if len(opened) == 1:
            return opened[0]
        from consilience.models.fallback import Fallback

        return Fallback(opened, name=self.canonical)


def parse(name: str, known: Endpoints = NO_ENDPOINTS) -> Chain:
    """Return what a name means. It may be invalid. `known` says what is declared of endpoints, and which may have a key."""
    return Chain(tuple(_NAMES[kind_of(link)](link, known) for link in links(name)))


def resolve(
    name: str,
    *,
    deadline: float | None = None,
    retries: int = RETRIES,
    known: Endpoints = NO_ENDPOINTS,
    connections: Connections | None = None,
) -> Model:
    """Return the model of that name; see `Chain.open`. Only an endpoint that `known` or the environment names gets a key."""
    return parse(name, known).open(deadline=deadline, retries=retries, connections=connections)


def canonical_name(name: str) -> str:
    """Return the one spelling of a name: `local` is the default local model, and paths and addresses are whole.

    The name may be invalid. A path that is relative, or a link, is read on this machine.
    """
    return parse(name).canonical


def facts_of(name: str, known: Endpoints = NO_ENDPOINTS, environ: Mapping[str, str] | None = None) -> list[ModelFacts]:
    """Return what is known of each model of a name, in the order in which they are tried."""
    return [link.facts(environ) for link in parse(name, known).links]


def paid(name: str, known: Endpoints = NO_ENDPOINTS, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a request to a model of that name may cost money."""
    return any(facts.paid for facts in facts_of(name, known, environ))


def is_embedded(name: str) -> bool:
    """Return whether a model of the chain is in the embedded catalogue. A GGUF file of the user's own is not."""
    return any(isinstance(link, LocalName) and link.weights in CATALOGUE for link in parse(name).links)


def thinks_by_name(name: str, known: Endpoints) -> Thinks:
    """Return whether a model of that name thinks."""
    return max((facts.thinks for facts in facts_of(name, known)), key=("never", "optionally", "always").index)


def window_by_name(name: str, known: Endpoints) -> int | None:
    """Return the context window (tokens) of the model of that name, the smallest known one of a chain; None if unknown."""
    return min(
        (window for facts in facts_of(name, known) if (window := facts.context_window) is not None), default=None
    )


def _incomplete(asked: str, provider: str) -> UnknownName:
    """The error for a name without a provider, with the full name that was probably meant."""
    from difflib import get_close_matches

    if not asked:
        return UnknownName("the name of a model is empty", do="Use local, or PROVIDER:MODEL.")
    if "," in asked:
        return UnknownName(
            f"there is no model named {asked!r}", do="Name several models with --models A,B, or in Python as a list."
        )
    if provider in _known_prefixes():
        return UnknownName(f"{asked!r} names a provider without a model", do=f"Write {provider}:MODEL.")

    near = get_close_matches(asked, list(CATALOGUE), n=1, cutoff=0.7)
    if near:
        return UnknownName(f"there is no model named {asked!r}", do=f"Did you mean local:{near[0]}?")
    makers = _makers()
    near = [f"{makers[model]}:{model}" for model in get_close_matches(asked, list(makers), n=2, cutoff=0.8)]
    near = near or _of_its_family(asked, makers)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    return UnknownName(
        f"there is no model named {asked!r}",
        do=f"{meant}A name is local, local:NAME, PROVIDER:MODEL or http://HOST:PORT/v1#MODEL.",
    )


def _known_prefixes() -> list[str]:
    return sorted({*known_providers(), *filter(is_added, installed_kinds())})


def _makers() -> dict[str, str]:
    """Return the provider of every model name that pydantic-ai knows; the first of `PROVIDERS` if several have it."""
    from pydantic_ai.models import known_model_names

    order = {provider: place for place, provider in enumerate(PROVIDERS)}
    names = [name.split(":", 1) for name in known_model_names() if name.partition(":")[0] in order]
    makers: dict[str, str] = {}
    for provider, model in sorted(names, key=lambda pair: order[pair[0]]):
        makers.setdefault(model, provider)
    return makers


def _of_its_family(asked: str, makers: Mapping[str, str]) -> list[str]:
    family = asked.partition("-")[0] + "-"
    return next(([f"{provider}:{asked}"] for model, provider in makers.items() if model.startswith(family)), [])


def full_name(asked: str) -> str:
    """Return a model's name (`gpt-4o-mini`) with its provider; unchanged if no provider is known."""
    asked = asked.strip()
    if ":" in asked or asked in (*_known_prefixes(), PERSON):
        return asked
    makers = _makers()
    return f"{makers[asked]}:{asked}" if asked in makers else next(iter(_of_its_family(asked, makers)), asked)


def _unknown_provider(asked: str, provider: str) -> UnknownName:
    return UnknownName(
        f"{asked!r}: there is no provider {provider!r}",
        do=f"{did_you_mean(provider, _known_prefixes())}For any OpenAI-compatible server write http://HOST:PORT/v1#MODEL, "
        "or set OPENAI_BASE_URL and write openai-chat:MODEL. "
        "If a session was recorded with a model object of this name, pass the object again from Python: model=… or replace=….",
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The model used if none was named."""

    name: str
    why: str
    """The reason, in a few words."""
    unspent_keys: Mapping[str, str] = field(default_factory=dict)
    """Variables with a key that this choice does not use, and what each would allow (`openai:MODEL`)."""


def choose(environ: Mapping[str, str], config: Mapping[str, object], known: Endpoints = NO_ENDPOINTS) -> Choice:
    """`CONSILIENCE_MODEL`, the configuration's `model`, a server on this machine that answers, `local`; in this order.

    A key in the environment alone is never used. Blocks for at most 0.3 s, only if neither of the first two is set: on an event
    loop call it in a thread. Raises `SettingsError` for an invalid address of a server.
    """
    configured = config.get("model")
    if name := environ.get("CONSILIENCE_MODEL", "").strip():
        return Choice(name, "CONSILIENCE_MODEL is set", _unspent(environ, name, known))
    if isinstance(configured, str) and (name := configured.strip()):
        return Choice(name, "the configuration file sets it", _unspent(environ, name, known))
    endpoint = endpoints.probe(environ)
    if endpoint is not None:
        name = f"{endpoint.provider}:{endpoint.models[0]}"
        return Choice(name, f"{endpoint.server.title} answers at {endpoint.address}", _unspent(environ, name, known))
    return Choice(
        "local", "no other model is set and no server answers on this machine", _unspent(environ, "local", known)
    )


def _unspent(environ: Mapping[str, str], chosen: str, known: Endpoints) -> dict[str, str]:
    variables_used = {variable for facts in facts_of(chosen, known, environ) for variable in facts.key_variables}
    unspent: dict[str, str] = {}
    for provider, entry in PROVIDERS.items():
        if provider in SERVERS or entry.account:
            continue
        for variable in entry.keys:
            if environ.get(variable) and variable not in variables_used:
                unspent.setdefault(variable, f"{provider}:MODEL")
    return unspent
