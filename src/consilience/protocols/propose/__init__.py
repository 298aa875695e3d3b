"""A panel of personas for a task, proposed by a model."""

from consilience.protocols.propose.protocol import Propose, ProposeReport

__all__ = ["Propose", "ProposeReport"]
