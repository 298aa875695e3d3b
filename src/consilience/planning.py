"""The plan of a run: agents, models, calls, and upper bounds on tokens and money, known before it starts.

It needs no key and no network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from consilience.domain import model_names
from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.errors import SettingsError, UserError
from consilience.domain.messages import Source
from consilience.domain.outcome import DEFAULT_THINKING, Estimate, Limits, ThinkingLevel, thinking_tokens
from consilience.domain.sections import Block, Bullets, Item, Paragraph, Table
from consilience.engine.dealing import DealRow, deal_rows
from consilience.engine.drafts import Drafts
from consilience.engine.fork import Fork
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.readers import inventory_size
from consilience.engine.seats import smallest_window
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import number_documents
from consilience.engine.templates import INSTRUCTIONS, Templates
from consilience.model_words import key_notes, thinking_words, window_words
from consilience.models.connections import Connections
from consilience.models.endpoints import Endpoints
from consilience.models.facts import ModelFacts
from consilience.models.registry import Choice, PersonName, ProgramName, WorkspaceName, paid, parse
from consilience.prices import ExpectedUse, expected_range, largest_use, token_prices
from consilience.reporting.formatting import (
    count,
    describe_agent,
    describe_agents,
    describe_calls,
    duration,
    format_range,
    money,
    one_line,
)

AS_ASKED = Choice("", "as asked")
NOTHING_DONE = "no model is called, nothing is spent or recorded."
PERSONA = "its persona"
"""Origin of the model of a seat whose persona names one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a command is about to do, and upper bounds on the tokens and money that it may use, without retries."""

    models: tuple[str, ...]
    """Each once."""
    why: str
    """Why the model was chosen."""
    estimate: Estimate
    limits: Limits
    max_tokens: int
    """If every prompt has its max length."""
    max_cost: float | None
    """US dollars; 0 if nothing is paid for, None if a price is unknown."""
    expected: tuple[ExpectedUse, ExpectedUse] | None = None
    """Of a run that ends as early as it may, and of one that takes its longer usual course; None if that is not known."""
    known: Endpoints
    """What is declared of endpoints, and which of them may have a key."""
    paid: tuple[str, ...] = ()
    """Models and encoders that cost money."""
    encoder: str | None = None
    """An encoder that costs money; --max-cost does not bound it."""
    unspent_keys: Mapping[str, str] = field(default_factory=dict)
    """Variables of API keys that are set and unused, with a model that each would allow."""
    details: Sequence[str] = ()
    """Sentences that follow the first line of the run, on lines of their own."""
    limits_adjustable: bool = True
    """Whether the command takes --max-cost and --dry-run."""

    @property
    def line(self) -> str:
        """What a run prints first."""
        raise NotImplementedError

    def describe(self) -> tuple[Block, ...]:
        """Return what a dry run prints."""
        raise NotImplementedError

    def as_json(self) -> dict[str, object]:
        """Return the plan as data; here the models and the bounds on what they use."""
        return {
            "models": list(self.models),
            "estimate": self.estimate.model_dump(mode="json"),
            "expected": [asdict(use) for use in self.expected] if self.expected else None,
            "max_tokens": self.max_tokens,
            "max_cost": None if self.programs else self.max_cost,
            "paid": list(self.paid),
            "programs": self.programs,
            "withheld_keys": key_notes(self.models, self.known),
        }

    @property
    def programs(self) -> list[str]:
        """Programs among the models and their fallbacks. Their own cost is unknown."""
        return [link.text for name in self.models for link in parse(name).links if isinstance(link, ProgramName)]

    @property
    def makes_calls(self) -> bool:
        return 0 not in (self.limits.calls, self.limits.tokens, self.limits.seconds, self.limits.steps)


@dataclass(frozen=True, kw_only=True)
class RunPlan(Plan):
    """The plan of a session."""

    protocol: Protocol
    agents: tuple[Agent, ...]
    """With their models."""
    configured: Mapping[str, Path] = field(default_factory=dict)
    """Settings from configuration files, with the file."""
    detail: Detail = "full"
    templates: Templates = field(default_factory=lambda: Templates({}))
    replies: str = ""
    """Max length of a reply and of the thinking before it, in words."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """What named the model of a single agent, by agent id: `--agent` or its persona."""
    preamble: str = ""
    """What precedes the plan on the first line of the run."""
    data: Mapping[str, object] = field(default_factory=dict)
    """Further fields of a dry run as JSON."""
    calls_note: str = ""
    """Which calls the estimate is of, if not those of a new run."""
    shares: Sequence[DealRow] = ()
    """The shares of dealt documents."""
    fitting: Sequence[str] = ()
    """Whether the largest calls fit into the context windows that are known."""
    fits: bool = True
    """Whether all of them do."""
    unfit: SettingsError | None = None
    """Why the run is refused: its closing call cannot fit."""

    @property
    def line(self) -> str:
        """Models and why, agents, calls, max cost, unused keys."""
        by_persona = [f"{agent.model} ({agent.id})" for agent in self.agents if self.origins.get(agent.id) == PERSONA]
        return joined(
            self.preamble,
            f"{self.protocol.name} with {self._models_words('' if self.why == AS_ASKED.why else self.why)}",
            "" if self.preamble else describe_agents(self.agents),
            f"named by personas: {', '.join(by_persona)}" if by_persona else "",
            f"{self.detail} prompts{self._replaced}",
            self.replies,
            f"{describe_calls(self.estimate)} estimated{self._calls_note}",
            self.outlook,
            cost_words(self),
            unspent_words(self),
        )

    def describe(self) -> tuple[Block, ...]:
        shape = self.protocol.topology()
        levels = max(shape.levels.values(), default=0)
        limited = "" if self.limits.calls is None else f", limited to {count(self.limits.calls, 'call')}"
        return (
            Paragraph(text=f"Dry run of {self.protocol.name}: {NOTHING_DONE}", tone="strong"),
            Table(heads=("agent", "role", "perspective", "model"), rows=tuple(map(self._seat, self.agents)), left=4),
            *self._shares_table(),
            bullets(
                f"Topology: {shape.kind}, {count(len(shape.agents), 'agent')} on {count(levels, 'level')}",
                *(
                    f"Setting: {setting_words(self.protocol, name)}, in {path}"
                    for name, path in self.configured.items()
                ),
                f"Model: {self._models_words(self.why)}",
                *(f"Key not set: {variables}, for {name}" for name, variables in self.missing_keys.items()),
                f"Prompts: {self.detail}{self._replaced}",
                _sentence(self.replies),
                f"Calls estimated: {format_range(self.estimate.min, self.estimate.max)}{self._calls_note}{limited}",
                f"Tokens: {self._expected_tokens}at most {self.max_tokens:,}, if every prompt has its max length, without retries",
                f"Cost: {cost_words(self, headed=True)}",
                _sentence(self.outlook),
                *(f"Key set, not used: {name}, for --model {allows}" for name, allows in self.unspent_keys.items()),
                self.preamble,
                *(_sentence(line) for line in self.fitting if f"Warning: {line}." not in self.details),
                f"Refused: {self.unfit}" if self.unfit else "",
                *self.details,
            ),
        )

    def _shares_table(self) -> tuple[Block, ...]:
        heads = ("agent", "documents", "tokens", "related lines, tokens", "left out")
        rows = (
            (
                row.agent,
                one_line(", ".join(row.documents), 300),
                *(f"{n:,}" for n in (row.tokens, row.related_tokens, row.left_out)),
            )
            for row in self.shares
        )
        return (Table(heads=heads, rows=tuple(rows), left=2),) if self.shares else ()

    def as_json(self) -> dict[str, object]:
        return {
            "dry_run": True,
            "protocol": self.protocol.name,
            "settings": self.protocol.model_dump(mode="json"),
            "configured": {name: str(path) for name, path in self.configured.items()},
            "agents": [agent.model_dump(mode="json") for agent in self.agents],
            "topology": self.protocol.topology().model_dump(mode="json"),
            "why": self.why,
            "outlook": self.outlook,
            "usual_calls": self.usual_calls,
            "limits": self.limits.model_dump(mode="json"),
            **super().as_json(),
            "unspent_keys": dict(self.unspent_keys),
            "missing_keys": self.missing_keys,
            "detail": self.detail,
            "replaced_prompts": list(self.templates.replaced),
            "replies": self.replies,
            "named": dict(self.origins),
            "notes": list(self.details),
            "windows": list(self.fitting),
            "shares": [row._asdict() for row in self.shares],
            "refused": str(self.unfit) if self.unfit else "",
            **self.data,
        }

    @property
    def outlook(self) -> str:
        """What the settings mean for a new run; a fork may have inherited the calls that it is about."""
        return "" if self.preamble else self.protocol.outlook

    @property
    def max_calls(self) -> int:
        """Under any replies and the limits."""
        return min(self.estimate.max, self.estimate.max if self.limits.calls is None else self.limits.calls)

    @property
    def usual_calls(self) -> int | None:
        """Of a new run, as far as it is known."""
        usual = None if self.preamble else self.protocol.usual_calls
        return None if usual is None else min(usual, self.max_calls)

    @property
    def _calls_note(self) -> str:
        return f"{self.calls_note}{'' if self.usual_calls is None else f', usually about {self.usual_calls:,}'}"

    @property
    def _expected_tokens(self) -> str:
        """Return `about 12,000 to 25,000 with the prompts counted and replies of usual length; `, or nothing."""
        if self.expected is None:
            return ""
        least, usual = (round(use.tokens, -2) for use in self.expected)
        return f"about {least:,} to {usual:,}, with the prompts counted and replies of usual length; "

    @property
    def models_by_agent(self) -> dict[str, str]:
        return {agent.id: agent.model for agent in self.agents}

    @property
    def missing_keys(self) -> dict[str, str]:
        """Variables of API keys that are not set, by the model that needs them."""
        facts = [ModelFacts(name, self.known) for name in links(self.models)]
        return {model.name: model.missing_key for model in facts if model.missing_key}

    @property
    def _replaced(self) -> str:
        """`, with NAME from DIR` for replaced templates, else nothing. A recorded session does not know the directory."""
        templates = self.templates
        place = f"from {templates.directory}" if templates.directory else "as recorded"
        return f", with {', '.join(templates.replaced)} {place}" if templates.replaced else ""

    def _models_words(self, why: str) -> str:
        """Return the models; why those were chosen that are not named for single agents, which follow."""
        shared = list(dict.fromkeys(agent.model for agent in self.agents if agent.id not in self.origins))
        note = f" ({why})" if why and shared else ""
        others = (
            name for name in self.models if name not in shared and not isinstance(parse(name).waiting, PersonName)
        )
        return ", ".join(filter(None, (", ".join(shared) + note, *others))) or "people only"

    def _seat(self, agent: Agent) -> tuple[str, ...]:
        perspective = describe_agent(agent) if agent.perspective or not agent.voice else "–"
        origin = f" ({self.origins[agent.id]})" if agent.id in self.origins else ""
        return agent.id, agent.role, perspective, f"{agent.model}{origin}"


def links(names: Iterable[str]) -> list[str]:
    """Return the models behind these names, each once: the names themselves and every alternative of a chain `A|B|C`."""
    return list(dict.fromkeys(link for name in names for link in model_names.links(name)))


def check_models(
    names: Iterable[str], known: Endpoints, *, keys: bool, origin: str = "", connections: Connections | None = None
) -> None:
    """Raise `UserError` for an invalid model name, with `keys` for a model without its key, and with `connections`, which keep what
    is opened for it, for a model without its client library or weights. Does not use the network.

    `origin` is where the name was found, if not on the command line.
    """
    for chain in dict.fromkeys(names):
        try:
            parsed = parse(chain, known)
            parsed.check_form()
            for name in parsed.links:
                if isinstance(name, WorkspaceName):
                    from consilience.engine.external import open_seat

                    open_seat(name)  # raises the error that names the problem
                else:
                    name.check(keys=keys)
                    if connections is not None:
                        name.check_installed(connections)
        except UserError as error:
            if error.place() or not origin:
                raise
            raise type(error)(error.what, where=origin, do=error.do) from None


def with_documents(protocol: Protocol, sources: Sequence[Source], models: Iterable[str], known: Endpoints) -> Protocol:
    """Return the protocol with the settings that follow from the documents, as a run will have them."""
    if not sources:
        return protocol
    return protocol.with_documents(number_documents(sources), smallest_window(tuple(models), known))


def make_plan(
    protocol: Protocol,
    agents: Sequence[Agent],
    models: Mapping[str, str],
    choice: Choice,
    *,
    known: Endpoints,
    limits: Limits,
    task: str,
    sources: Sequence[Source],
    templates: Templates,
    encoder: str | None,
    thinking: ThinkingLevel | None,
    detail: Detail,
    inventory_tokens: int | None = None,
    calls_made: int = 0,
) -> RunPlan:
    """Return the plan of a run after `calls_made` calls. Needs no key and no network."""
    paid_models = tuple(name for name in links(models.values()) if paid(name, known))
    paid_encoder = encoder if encoder is not None and paid(encoder, known) else None
    thinking_of = _thinking_of(models, thinking or DEFAULT_THINKING, known)
    instructions = templates.render(INSTRUCTIONS, documents=bool(sources))
    opening = Opening(instructions, task, number_documents(sources), window=smallest_window(models, known))
    chains = {agent.id: links([models[agent.id]]) for agent in agents}
    thinking_by_agent = {id: max(map(thinking_of.__getitem__, chain)) for id, chain in chains.items()}
    prices = {} if limits.cost is None else {id: token_prices(chain, known) for id, chain in chains.items()}
    inventory = inventory_size(opening.documents, inventory_tokens)
    sizes = CallSizes(opening, protocol, agents, prices, thinking_by_agent, inventory_tokens=inventory)
    calls = max(min(n for n in (sizes.estimate.max, limits.calls) if n is not None) - calls_made, 0)
    bound = largest_use(sizes, calls, limits, thinking_of, paid_models, known)
    max_cost = bound.cost
    if paid_encoder is not None:
        max_cost = _with_encoder(max_cost, ModelFacts(paid_encoder, known), calls * protocol.max_reply_tokens)
    windows = window_words(sizes, protocol, models, known)
    drafts = Drafts(opening, {agent.id: agent for agent in agents}, templates, detail)
    planned = None if calls_made else protocol.planned_calls(drafts)
    return RunPlan(
        protocol=protocol,
        agents=tuple(agent.model_copy(update={"model": models[agent.id]}) for agent in agents),
        models=tuple(dict.fromkeys(models[agent.id] for agent in agents)),
        why=choice.why,
        estimate=sizes.estimate,
        known=known,
        limits=limits,
        templates=templates,
        max_tokens=bound.tokens,
        max_cost=max_cost,
        expected=expected_range(planned, bound, chains, thinking_of, known) if planned else None,
        paid=paid_models if paid_encoder is None else (*paid_models, paid_encoder),
        encoder=paid_encoder,
        unspent_keys=choice.unspent_keys,
        detail=detail,
        details=[*key_notes([*thinking_of, encoder or ""], known), *windows.warnings],
        shares=deal_rows(sources),
        fitting=windows.lines,
        fits=windows.fits,
        unfit=windows.refusal,
        replies=sizes.describe_reply(limits) + thinking_words(thinking, thinking_of, known),
    )


def _with_encoder(cost: float | None, encoder: ModelFacts, tokens: int) -> float | None:
    encoder_cost = encoder.price(tokens, 0)
    return None if cost is None or encoder_cost is None else cost + encoder_cost


def _thinking_of(models: Mapping[str, str], level: ThinkingLevel, known: Endpoints) -> dict[str, int]:
    return {name: thinking_tokens(level, ModelFacts(name, known).thinks) for name in links(models.values())}


def inheritance_words(planned: Fork) -> str:
    """Return what a fork inherits, and what it asks again."""
    words = f"{count(planned.replies, 'reply')} inherited, not paid for again"
    if again := planned.asked_again:
        words += f"; {count(again, 'call')} without a reply repeated, and then the calls that read the new replies"
    if kept := planned.failures:
        unusable = f"{count(len(kept), 'call')} without a usable reply inherited ({planned.kinds_kept})"
        words += f"; {unusable}, made again only with another model"
    return words


def bullets(*items: str | Item) -> Bullets:
    """Return a list without its empty texts."""
    return Bullets(items=tuple(Item(text=item) if isinstance(item, str) else item for item in items if item))


def joined(*parts: str) -> str:
    """Return the parts of a line that are not empty."""
    return " · ".join(filter(None, parts))


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def setting_words(protocol: Protocol, name: str) -> str:
    """Return a setting as a line of a configuration file: `children = 2`."""
    return f"{name} = {json.dumps(protocol.model_dump(mode='json')[name], ensure_ascii=False)}"


def unspent_words(plan: Plan) -> str:
    """Return the keys that are set and unused; empty if there are none."""
    unspent = ", ".join(f"{variable} (for --model {allows})" for variable, allows in plan.unspent_keys.items())
    return f"not spent: {unspent}" if unspent else ""


def cost_words(plan: Plan, *, headed: bool = False) -> str:
    """Return the max cost, what --max-cost does not bound, and programs of unknown cost; `headed`: behind `Cost:`."""
    words = [*filter(None, (amount_words(plan) if plan.paid else "", unbounded_words(plan)))]
    if plan.programs:
        lead = "not known: " if headed and not words else "cost not known: "
        bound = "" if plan.limits.cost is None else ", which --max-cost does not bound"
        words.append(f"{'' if plan.max_cost is None else lead}{programs_words(plan.programs)}{bound}")
    return "; ".join(words) or ("nothing" if headed else "costs nothing")


def calls_words(plan: RunPlan) -> str:
    """Return `about 49 calls, at most 180`, or the range: `2–3 calls`."""
    if plan.usual_calls is not None:
        return f"about {count(plan.usual_calls, 'call')}, at most {plan.max_calls:,}"
    return describe_calls(Estimate(min=min(plan.estimate.min, plan.max_calls), max=plan.max_calls))


def time_words(plan: RunPlan, seconds: Sequence[float]) -> str:
    """Return in a sentence how long a run takes, from what recorded calls of its models took."""
    if not seconds:
        return f"Time not known: no finished run of {', '.join(plan.models)} is on record."
    usual, calls = median(seconds), plan.max_calls if plan.usual_calls is None else plan.usual_calls
    each = f"{count(calls, 'call')} of {duration(usual)}, the median of the last {count(len(seconds), 'recorded call')}"
    return f"About {duration(usual * calls)} if all are made one after another: {each}."


def programs_words(programs: Sequence[str]) -> str:
    """`programs` must not be empty."""
    return f"{', '.join(programs)} may spend money of {'its' if len(programs) == 1 else 'their'} own"


def amount_words(plan: Plan) -> str:
    """Return the max cost of the models that cost money."""
    if plan.max_cost is None:
        return f"the price of {', '.join(unpriced(plan))} is not known"
    limit = plan.limits.cost
    costs = [use.cost for use in plan.expected or () if use.cost is not None]
    about = f"about {money(costs[0])} to {money(costs[1])}, " if len(costs) == 2 else ""
    retries = "" if limit is not None and plan.max_cost >= limit else " without retries"
    return f"{about}at most {money(plan.max_cost)}{retries}"


def unbounded_words(plan: Plan) -> str:
    """Return what --max-cost does not bound, if it is given; else nothing."""
    if plan.limits.cost is None:
        return ""
    spenders = unpriced(plan)
    if plan.encoder is not None and plan.encoder not in spenders:
        spenders.append(plan.encoder)
    return f"--max-cost does not bound the cost of {', '.join(spenders)}" if spenders else ""


def unpriced(plan: Plan) -> list[str]:
    """Return the models that cost money at an unknown price."""
    facts = [ModelFacts(name, plan.known) for name in plan.paid if plan.max_cost is None]
    return [model.name for model in facts if model.price(1, 1) is None]
