"""What a run would do and cost, known before it begins: the first line of every run, and all of a dry one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consilience.cli.config import Config
from consilience.cli.request import Request
from consilience.domain.agents import Agent
from consilience.domain.errors import UserError
from consilience.domain.messages import Source
from consilience.domain.outcome import Estimate, Limits
from consilience.engine.budget import call_size
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.sources import documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.models.names import (
    Choice,
    alternatives,
    choose,
    is_person,
    is_program,
    key_variables,
    known_providers,
    paid,
    resolve,
)
from consilience.models.weights import CATALOGUE, verify
from consilience.reporting.words import calls_words, count, money, span, view


@dataclass(frozen=True)
class Plan:
    """`most_tokens` and `most_money` bound a run in which every prompt is as long as it can be, retries not counted.

    `most_money` is 0 where nothing is paid, None where a price is not known. `encoder` is one that is paid for, which no limit
    on money bounds. `configured` are the settings that a configuration file made, with that file.
    """

    protocol: Protocol
    agents: tuple[Agent, ...]
    why: str
    estimate: Estimate
    limits: Limits
    most_tokens: int
    most_money: float | None
    paid: tuple[str, ...] = ()
    encoder: str | None = None
    unspent_keys: Mapping[str, str] = field(default_factory=dict)
    configured: Mapping[str, Path] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        """Names of the models, each once, in the order of the agents."""
        return list(dict.fromkeys(agent.model for agent in self.agents))

    @property
    def programs(self) -> list[str]:
        """Models that are programs; what they spend by themselves, nobody knows."""
        return [name for name in self.models if is_program(name)]

    @property
    def makes_calls(self) -> bool:
        return 0 not in (self.limits.calls, self.limits.tokens, self.limits.seconds, self.limits.steps)


def choose_model(request: Request, config: Config, agents: Sequence[Agent]) -> Choice:
    """The model that is named, or the one taken where none is; `why` says which of the two."""
    own = {one.partition("=")[0].strip() for one in request.agent or ()}
    if request.models is not None or request.model is not None or own >= {agent.id for agent in agents}:
        return Choice("", "as asked")
    return choice_without_a_name(config)


def choice_without_a_name(config: Config) -> Choice:
    """What is taken when no model is named; a configuration file is named as the reason where it is one."""
    chosen = choose(os.environ, {"model": config.model} if config.model else {})
    if config.model and chosen.name == config.model and "configuration" in chosen.why:
        return Choice(chosen.name, f"{config.origin['model']} names it", chosen.unspent_keys)
    return chosen


def check_models(names: Iterable[str], *, keys: bool, why: str = "") -> None:
    """Raise for a name that no model can have, and with `keys` for one whose key is not there. Touches no network.

    `why` is where the name stands, if not on the command line.
    """
    for name in dict.fromkeys(one for given in names for one in alternatives(given)):
        try:
            _check_model(name, keys=keys)
        except UserError as error:
            if error.where or not why:
                raise
            raise type(error)(error.what, where=why, do=error.do) from None


def _check_model(name: str, *, keys: bool) -> None:
    provider, _, model = name.partition(":")
    if is_person(name):
        return
    if is_program(name):
        resolve(name)  # says what is wrong
        return
    if provider == "local":
        if model and not model.endswith(".gguf") and model not in CATALOGUE:
            verify(model)
        return
    known = provider in known_providers() or provider.startswith("gateway/")
    variables = key_variables(provider)
    keyless = keys and paid(name) and variables and not any(os.environ.get(variable) for variable in variables)
    if not known or not model or keyless:
        resolve(name)  # says what is wrong


def make_plan(
    protocol: Protocol,
    agents: Sequence[Agent],
    models: Mapping[str, str],
    choice: Choice,
    limits: Limits,
    task: str,
    sources: Sequence[Source],
    prompts: Path | None,
    encoder: str | None = None,
    made: int = 0,
) -> Plan:
    """What it would cost after the calls that were `made`. Needs no key and no network.

    Raises `SettingsError` for a directory of prompts that cannot be used.
    """
    seats = tuple(agent.model_copy(update={"model": models[agent.id]}) for agent in agents)
    estimate = protocol.estimate()
    named = dict.fromkeys(one for name in models.values() for one in alternatives(name))
    paid_for = tuple(name for name in named if paid(name))
    paid_encoder = encoder if encoder is not None and paid(encoder) else None
    instructions = protocol.templates(prompts).render(INSTRUCTIONS)
    size = call_size(Opening(instructions, task, documents(sources)), protocol, {}, agents)
    read = int(size.tokens) - protocol.longest_reply
    calls = estimate.max if limits.calls is None else min(estimate.max, limits.calls)
    calls = max(calls - made, 0)
    most_tokens = calls * int(size.tokens)
    if limits.tokens is not None:
        most_tokens = min(most_tokens, limits.tokens)
    most_money = _most_money(paid_for, calls, read, protocol.longest_reply)
    if limits.money is not None and paid_for:
        most_money = limits.money if most_money is None else min(most_money, limits.money)
    if paid_encoder is not None:
        paid_for = (*paid_for, paid_encoder)
        comparing = price(paid_encoder, calls * protocol.reply_tokens, 0)
        most_money = None if most_money is None or comparing is None else most_money + comparing
    return Plan(
        protocol,
        seats,
        choice.why,
        estimate,
        limits,
        most_tokens,
        most_money,
        paid_for,
        paid_encoder,
        choice.unspent_keys,
    )


def _most_money(paid_for: Sequence[str], calls: int, read: int, written: int) -> float | None:
    """Every call at the dearest model's price."""
    if not paid_for or not calls:
        return 0.0
    prices = [price(name, read, written) for name in paid_for]
    known = [found for found in prices if found is not None]
    return calls * max(known) if len(known) == len(prices) else None


def price(name: str, tokens_read: int, tokens_written: int) -> float | None:
    """US dollars of one request by the model layer's price data; None where it has none. Needs no key; imports for 0.5 s."""
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    provider, _, model = name.removeprefix("gateway/").partition(":")
    usage = RequestUsage(input_tokens=tokens_read, output_tokens=tokens_written)
    try:
        response = ModelResponse(parts=[], usage=usage, model_name=model, provider_name=_maker(provider))
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):  # the last for a name without a model
        return None


def _maker(provider: str) -> str:
    """The provider as price data knows it."""
    return {"openai-chat": "openai", "openai-responses": "openai", "azure-responses": "azure"}.get(provider, provider)


def first_line(plan: Plan) -> str:
    """Which model and why, agents, calls foreseen, most money, and keys that are there and not used."""
    models = ", ".join(plan.models)
    why = f" ({plan.why})" if plan.why != "as asked" else ""
    parts = [
        f"{plan.protocol.name} with {models}{why}",
        count(len(plan.agents), "agent"),
        f"{calls_words(plan.estimate)} foreseen",
        cost_words(plan),
    ]
    line = " · ".join(parts)
    if plan.unspent_keys:
        unspent = ", ".join(f"{variable} (for --model {allows})" for variable, allows in plan.unspent_keys.items())
        line += f" · not spent: {unspent}"
    return line


def cost_words(plan: Plan) -> str:
    words = [amount_words(plan)] if plan.paid else []
    if unbounded := unbounded_words(plan):
        words.append(unbounded)
    if plan.programs:
        words.append(f"what {', '.join(plan.programs)} spends is not known")
    return "; ".join(words) or "costs nothing"


def amount_words(plan: Plan) -> str:
    """Of what is paid for."""
    if plan.most_money is None:
        return f"paid, and the price of {', '.join(plan.paid)} is not known"
    return f"at most {money(plan.most_money)}"


def unbounded_words(plan: Plan) -> str:
    """What a limit on money leaves out, where there is one; else nothing."""
    limited = plan.encoder is not None and plan.limits.money is not None
    return f"--max-cost does not bound what {plan.encoder} takes" if limited else ""


def dry_run(plan: Plan) -> str:
    """All of it as Markdown."""
    lines = [
        f"**Dry run of {plan.protocol.name}: nothing is asked, spent or recorded.**",
        "",
        "| agent | role | perspective | model |",
        "|---|---|---|---|",
    ]
    lines += [f"| {a.id} | {a.role} | {view(a) if a.perspective else '–'} | {a.model} |" for a in plan.agents]
    shape = plan.protocol.topology()
    levels = max(shape.levels.values(), default=0)
    lines += [
        "",
        f"- Topology: {shape.kind}, {count(len(shape.agents), 'agent')} on {count(levels, 'level')}",
        *(f"- Setting: {setting_words(plan.protocol, name)}, in {path}" for name, path in plan.configured.items()),
        f"- Model: {', '.join(plan.models)} ({plan.why})",
        f"- Calls foreseen: {span(plan.estimate.min, plan.estimate.max)}" + _limited(plan.limits.calls, "calls"),
        f"- Tokens: at most {plan.most_tokens:,}, if every prompt were as long as it can be",
        f"- Money: {cost_words(plan)}",
    ]
    if plan.unspent_keys:
        unspent = ", ".join(f"{name} (would allow --model {allows})" for name, allows in plan.unspent_keys.items())
        lines.append(f"- Keys that are there and would not be spent: {unspent}")
    return "\n".join(lines) + "\n"


def setting_words(protocol: Protocol, name: str) -> str:
    """`children = 2`, as a configuration file may have it."""
    return f"{name} = {json.dumps(protocol.model_dump(mode='json')[name], ensure_ascii=False)}"


def dry_run_json(plan: Plan) -> dict[str, object]:
    return {
        "dry_run": True,
        "protocol": plan.protocol.name,
        "settings": plan.protocol.model_dump(mode="json"),
        "configured": {name: str(path) for name, path in plan.configured.items()},
        "agents": [agent.model_dump(mode="json") for agent in plan.agents],
        "topology": plan.protocol.topology().model_dump(mode="json"),
        "models": plan.models,
        "why": plan.why,
        "estimate": plan.estimate.model_dump(mode="json"),
        "limits": plan.limits.model_dump(mode="json"),
        "most_tokens": plan.most_tokens,
        "most_money": plan.most_money,
        "paid": list(plan.paid),
        "programs": plan.programs,
        "unspent_keys": dict(plan.unspent_keys),
    }


def _limited(limit: int | None, noun: str) -> str:
    return "" if limit is None else f", limited to {limit:,} {noun}"
