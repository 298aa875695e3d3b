"""Agents debate in virtual time to find the question that divides them."""

from consilience.protocols.debate.protocol import Debate
from consilience.protocols.debate.report import DebateReport

__all__ = ["Debate", "DebateReport"]
