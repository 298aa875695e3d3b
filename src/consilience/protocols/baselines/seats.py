"""What the baselines share: seats without a role, and their prompts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import ClassVar

from consilience.domain.agents import Agent
from consilience.domain.topology import Topology, independent
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import Protocol
from consilience.engine.session import Session
from consilience.protocols._common.answers import AnswerPattern, describe_pattern, is_choice, named_pattern


class BaselineProtocol(Protocol):
    """Agents that answer without reading each other. Only a panel gives them points of view."""

    name: ClassVar[str]

    answer_pattern: AnswerPattern = ""

    @property
    @abstractmethod
    def ids(self) -> tuple[str, ...]:
        """The seats, in order."""

    @property
    def max_quoted_replies(self) -> int:
        return 0

    @property
    def share_holders(self) -> tuple[str, ...]:
        """No agent, since none reads what another found in its share."""
        return ()

    def topology(self) -> Topology:
        return independent(self.ids)

    def agents_without_panel(self) -> list[Agent]:
        return [Agent(id=id, role="respondent") for id in self.ids]

    def prompt(self, session: Session, template: str, agent: str) -> Prompt:
        return Prompt(self.words(session, template, agent))

    def words(self, session: Session, template: str, agent: str, **values: Hashable) -> str:
        seat = session.agent(agent).introduction()
        pattern, choice = describe_pattern(self.answer_pattern), is_choice(self.answer_pattern)
        named = named_pattern(self.answer_pattern) is not None
        return session.render_template(template, seat=seat, pattern=pattern, choice=choice, named=named, **values)
