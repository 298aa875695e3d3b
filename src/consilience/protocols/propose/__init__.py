"""A model proposes a panel of personas for a task (used by --panel auto)."""

from consilience.protocols.propose.protocol import Propose, ProposeReport

__all__ = ["Propose", "ProposeReport"]
