"""A debate in virtual time that seeks the question which really divides its agents."""

from consilience.protocols.debate.protocol import Debate
from consilience.protocols.debate.report import DebateReport

__all__ = ["Debate", "DebateReport"]
