"""Prompts of a run that has not begun, rendered as they will be sent, so that its plan counts their tokens."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from consilience.domain.agents import Agent
from consilience.domain.detail import CAPS, Detail
from consilience.domain.messages import Message
from consilience.domain.tokens import estimate_tokens
from consilience.engine.prompt import Opening, Prompt, render, schema_for
from consilience.engine.sources import Document
from consilience.engine.templates import Templates


class PromptContext(Protocol):
    """What a protocol writes its requests from: a session, or the drafts of one."""

    @property
    def detail(self) -> Detail: ...
    @property
    def sources(self) -> tuple[Document, ...]: ...
    def agent(self, id: str) -> Agent: ...
    def render_template(self, template: str, **values: Hashable) -> str: ...


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that a run is expected to make."""

    agent: str
    tokens_in: int
    """Of its prompt, with the schema of the reply."""
    tokens_out: int
    """Of a reply of usual length, without thinking."""


@dataclass(frozen=True)
class PlannedCalls:
    """The calls of a run that ends as early as it may, and of one that takes its longer usual course."""

    least: tuple[PlannedCall, ...]
    usual: tuple[PlannedCall, ...]


@dataclass(frozen=True)
class Drafts:
    """What the prompts of a run are written from, before it begins."""

    opening: Opening
    agents: Mapping[str, Agent]
    templates: Templates
    detail: Detail

    @property
    def sources(self) -> tuple[Document, ...]:
        return self.opening.documents

    def agent(self, id: str) -> Agent:
        return self.agents[id]

    def render_template(self, template: str, **values: Hashable) -> str:
        return self.templates.render(template, **values)

    def call(
        self, agent: str, prompt: Prompt, returns: type[Any] = str, *, tokens_out: int, quoted: int = 0
    ) -> PlannedCall:
        """Return a call with this prompt, which quotes no message, and `quoted` tokens of messages that do not exist yet."""
        schema, _ = schema_for(returns, (), CAPS[self.detail])
        tokens = render(self.opening, agent, prompt, _no_message).tokens
        tokens += estimate_tokens(json.dumps(schema)) if schema else 0
        return PlannedCall(agent, tokens + quoted, tokens_out)


def _no_message(id: str) -> Message:
    raise AssertionError(f"the prompt of a plan quotes {id}")
