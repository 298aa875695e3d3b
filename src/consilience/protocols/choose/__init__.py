"""A model reads what a task asks for (used by ask)."""

from consilience.protocols.choose.protocol import Choose, ChooseReport, TaskReading

__all__ = ["Choose", "ChooseReport", "TaskReading"]
