"""What a run would do and cost, known before it begins, and the consent to spend that.

The plan is the first line of every run, and all of a dry one. Money is spent with consent only: asked for on a terminal, given
beforehand elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consilience.cli.config import Config
from consilience.cli.errors import ask
from consilience.cli.options import Request
from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.errors import SettingsError, UserError
from consilience.domain.messages import Source
from consilience.domain.outcome import DEFAULT_THINKING, Estimate, Limits, ThinkingLevel, thinking_tokens
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.models.endpoints import how_to_free, in_dollars, is_endpoint, parse_endpoint, prices_of
from consilience.models.registry import (
    Choice,
    alternatives,
    check_chain,
    choose,
    endpoint_key,
    is_person,
    is_program,
    key_variables,
    known_providers,
    maker_of,
    paid,
    resolve,
    thinks_by_name,
)
from consilience.models.weights import CATALOGUE, verify
from consilience.reporting.formatting import count, describe_agent, describe_agents, describe_calls, format_range, money

PERSONA = "its persona"
"""What names the model of a seat whose persona brings one."""


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
    detail: Detail = "full"
    replies: str = ""
    """How long a reply may be, and what models that think are given in addition."""
    named: Mapping[str, str] = field(default_factory=dict)
    """What names the model of a single seat, by agent id: `--agent`, or its persona."""

    @property
    def models(self) -> list[str]:
        """Names of the models, each once, in the order of the agents."""
        return list(dict.fromkeys(agent.model for agent in self.agents))

    @property
    def programs(self) -> list[str]:
        """Programs among the models and their fallbacks. What a program spends of its own is not known."""
        return [name for name in links(self.models) if is_program(name)]

    @property
    def makes_calls(self) -> bool:
        return 0 not in (self.limits.calls, self.limits.tokens, self.limits.seconds, self.limits.steps)


def choose_model(request: Request, config: Config, agents: Sequence[Agent]) -> Choice:
    """The model that is named, or the one taken where none is; `why` says which of the two."""
    own = {one.partition("=")[0].strip() for one in request.agent or ()} | {agent.id for agent in agents if agent.model}
    if request.models is not None or request.model is not None or own >= {agent.id for agent in agents}:
        return Choice("", "as asked")
    return choice_without_a_name(config)


def named_models(request: Request, agents: Sequence[Agent]) -> dict[str, str]:
    """What names the model of a single seat, by agent id."""
    brought = {agent.id: PERSONA for agent in agents if agent.model}
    return brought | {one.partition("=")[0].strip(): "--agent" for one in request.agent or ()}


def choice_without_a_name(config: Config) -> Choice:
    """What is taken when no model is named; a configuration file is named as the reason where it is one."""
    chosen = choose(os.environ, {"model": config.model} if config.model else {})
    if config.model and chosen.name == config.model and "configuration" in chosen.why:
        return Choice(chosen.name, f"{config.origin['model']} names it", chosen.unspent_keys)
    return chosen


def links(names: Iterable[str]) -> list[str]:
    """Return the models that these names stand for, each once: every link of a chain `A|B|C` is one."""
    return list(dict.fromkeys(one for name in names for one in alternatives(name)))


def check_models(names: Iterable[str], *, keys: bool, why: str = "") -> None:
    """Raise for a name that no model can have, and with `keys` for one whose key is not there. Touches no network.

    `why` is where the name stands, if not on the command line.
    """
    for given in dict.fromkeys(names):
        try:
            check_chain(alternatives(given))
            for name in alternatives(given):
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
    if is_endpoint(name):
        endpoint = parse_endpoint(name)
        if keys:
            endpoint_key(endpoint)
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
    thinking: ThinkingLevel | None = None,
    detail: Detail = "full",
) -> Plan:
    """What it would cost after the calls that were `made`. Needs no key and no network.

    Raises `SettingsError` for a directory of prompts that cannot be used.
    """
    seats = tuple(agent.model_copy(update={"model": models[agent.id]}) for agent in agents)
    estimate = protocol.estimate()
    paid_for = tuple(name for name in links(models.values()) if paid(name))
    paid_encoder = encoder if encoder is not None and paid(encoder) else None
    instructions = protocol.load_templates(prompts, detail).render(INSTRUCTIONS)
    level = thinking or DEFAULT_THINKING
    rooms = {name: thinking_tokens(level, thinks_by_name(name)) for name in links(models.values())}
    room = max(rooms.values())
    opening = Opening(instructions, task, documents(sources))
    size = CallSizes(opening, protocol, agents, thinking_tokens={"": room}).max_call
    read = int(size.tokens) - protocol.longest_reply - room
    calls = estimate.max if limits.calls is None else min(estimate.max, limits.calls)
    calls = max(calls - made, 0)
    most_tokens = calls * int(size.tokens)
    if limits.tokens is not None:
        most_tokens = min(most_tokens, limits.tokens)
    written = {name: protocol.longest_reply + rooms[name] for name in paid_for}
    most_money = _most_money(written, calls, read)
    if limits.money is not None and most_money is not None:
        most_money = min(most_money, limits.money)
    if paid_encoder is not None:
        paid_for = (*paid_for, paid_encoder)
        comparing = price(paid_encoder, calls * protocol.max_reply_tokens, 0)
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
        detail=detail,
        replies=f"replies up to {protocol.longest_reply:,} tokens" + _thinking_words(level, room),
    )


def _thinking_words(level: ThinkingLevel, room: int) -> str:
    if not room:
        return ""
    how = "off, but some models think anyway" if level == "off" else level
    return f", plus up to {room:,} for thinking ({how})"


def _most_money(written: Mapping[str, int], calls: int, read: int) -> float | None:
    """Every call at the price of the most expensive model. `written` are the tokens of a reply of each that is paid for."""
    if not written or not calls:
        return 0.0
    prices = [price(name, read, tokens) for name, tokens in written.items()]
    known = [found for found in prices if found is not None]
    return calls * max(known) if len(known) == len(prices) else None


def price(name: str, tokens_read: int, tokens_written: int) -> float | None:
    """US dollars of one request by the configuration or the model layer's price data, or None. Needs no key; imports for 0.5 s."""
    prices = prices_of(name, os.environ)
    if prices == "unknown":
        return None
    if prices != "listed":
        return in_dollars(prices, tokens_read, tokens_written)
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    provider, model = maker_of(name.removeprefix("gateway/"))
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
    brought = [f"{agent.id}: {agent.model}" for agent in plan.agents if plan.named.get(agent.id) == PERSONA]
    parts = [
        f"{plan.protocol.name} with {models}{why}",
        describe_agents(plan.agents),
        *([f"named by personas: {', '.join(brought)}"] if brought else []),
        f"{plan.detail} prompts",
        plan.replies,
        f"{describe_calls(plan.estimate)} foreseen",
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
        words.append(programs_words(plan.programs))
    return "; ".join(words) or "costs nothing"


def programs_words(programs: Sequence[str]) -> str:
    """`programs` must not be empty."""
    return f"cost not known: {', '.join(programs)} may spend money of {'its' if len(programs) == 1 else 'their'} own"


def amount_words(plan: Plan) -> str:
    """Of what is paid for."""
    if plan.most_money is None:
        return f"the price of {', '.join(_unpriced(plan))} is not known"
    limit = plan.limits.money
    retries = "" if limit is not None and plan.most_money >= limit else " without retries"
    return f"at most {money(plan.most_money)}{retries}"


def unbounded_words(plan: Plan) -> str:
    """What a limit on money leaves out, where there is one; else nothing."""
    if plan.limits.money is None:
        return ""
    spenders = _unpriced(plan)
    if plan.encoder is not None and plan.encoder not in spenders:
        spenders.append(plan.encoder)
    return f"--max-cost does not bound what {', '.join(spenders)} takes" if spenders else ""


def _unpriced(plan: Plan) -> list[str]:
    """Models that are paid for, and whose price is not known."""
    return [name for name in plan.paid if price(name, 1, 1) is None] if plan.most_money is None else []


def dry_run(plan: Plan) -> str:
    """All of it as Markdown."""
    lines = [
        f"**Dry run of {plan.protocol.name}: nothing is asked, spent or recorded.**",
        "",
        "| agent | role | perspective | model |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {a.id} | {a.role} | {describe_agent(a) if a.perspective or not a.voice else '–'} | {a.model}{_named_by(plan, a)} |"
        for a in plan.agents
    ]
    shape = plan.protocol.topology()
    levels = max(shape.levels.values(), default=0)
    lines += [
        "",
        f"- Topology: {shape.kind}, {count(len(shape.agents), 'agent')} on {count(levels, 'level')}",
        *(f"- Setting: {setting_words(plan.protocol, name)}, in {path}" for name, path in plan.configured.items()),
        f"- Model: {', '.join(plan.models)} ({plan.why})",
        f"- Prompts: {plan.detail}",
        f"- {plan.replies[:1].upper()}{plan.replies[1:]}",
        f"- Calls foreseen: {format_range(plan.estimate.min, plan.estimate.max)}"
        + _limited(plan.limits.calls, "calls"),
        f"- Tokens: at most {plan.most_tokens:,}, if every prompt has its max length, without retries",
        f"- Money: {cost_words(plan)}",
    ]
    if plan.unspent_keys:
        unspent = ", ".join(f"{name} (would allow --model {allows})" for name, allows in plan.unspent_keys.items())
        lines.append(f"- Keys that are there and would not be spent: {unspent}")
    return "\n".join(lines) + "\n"


def _named_by(plan: Plan, agent: Agent) -> str:
    return f" ({plan.named[agent.id]})" if agent.id in plan.named else ""


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
        "most_money": None if plan.programs else plan.most_money,
        "paid": list(plan.paid),
        "programs": plan.programs,
        "unspent_keys": dict(plan.unspent_keys),
        "detail": plan.detail,
        "replies": plan.replies,
        "named": dict(plan.named),
    }


def _limited(limit: int | None, noun: str) -> str:
    return "" if limit is None else f", limited to {limit:,} {noun}"


def confirm_spending(plan: Plan, *, yes: bool, confirm_above: float, resumed: bool = False) -> None:
    """Return if the run may spend what it may spend. A `resumed` one takes no other limits and shows no plan.

    It may if it is free, agreed to or limited beforehand, or cheap on a terminal. No limit bounds what a program spends by itself,
    nor an encoder, nor a model of unknown price. Every link of a chain counts. Raises `SettingsError` if there is no terminal to
    ask at, `Declined` if the answer is no.
    """
    limited = plan.limits.money is not None and plan.most_money is not None and plan.encoder is None
    bounded = not plan.programs and (not plan.paid or limited)
    if yes or bounded or not plan.makes_calls:
        return
    spenders = ", ".join((*plan.paid, *plan.programs))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(
            f"this run costs money ({spenders}; {cost_words(plan)}) and there is no terminal to confirm it"
            if plan.paid and plan.most_money is not None
            else f"this run may cost money ({cost_words(plan)}) and there is no terminal to confirm it",
            do=_advice(plan, resumed),
        )
    if not plan.programs and plan.most_money is not None and plan.most_money <= confirm_above:
        return
    unforeseen = plan.programs or plan.most_money is None
    most = "an amount nobody can foresee (no price is known)" if unforeseen else amount_words(plan)
    unbounded = f"({unbounded_words(plan)}.) " if unbounded_words(plan) else ""
    ask(f"{unbounded}Spend {most} on {spenders}?", otherwise="Nothing was spent.")


def _advice(plan: Plan, resumed: bool) -> str:
    free = next((f" If it is free: {way}" for name in plan.paid if (way := how_to_free(name, os.environ))), "")
    if resumed:
        return f"Give --yes to agree.{free}"
    bound = "" if plan.programs or plan.encoder or plan.most_money is None else ", or --max-cost DOLLARS to set a bound"
    return f"Give --yes to agree{bound}; --dry-run says more.{free}"
