"""The names that the author of a protocol needs. `docs/authoring.md` is the tutorial.

A protocol is a frozen model of its settings with `async run(session) -> Report`. It touches the world only through its `Session`,
so every run can be resumed, replayed and forked. `consilience.testing.shake` checks this.
"""

from consilience.domain.agents import Agent, seat_names
from consilience.domain.delivery import Delivery
from consilience.domain.detail import Caps, capped
from consilience.domain.events import Noted
from consilience.domain.messages import FILE, FreeText, Label, Message
from consilience.domain.notes import LongText
from consilience.domain.outcome import Check, Estimate, StopReason
from consilience.domain.panels import Panel, Persona
from consilience.domain.report import (
    Against,
    Claim,
    ConfidenceScore,
    Dissent,
    Frozen,
    Objection,
    Report,
    UnfinishedSession,
)
from consilience.domain.sections import (
    AgentText,
    Bar,
    Bars,
    Bullets,
    Details,
    Graph,
    Grid,
    Item,
    Matrix,
    Paragraph,
    Presentation,
    Section,
    Series,
    Subheading,
    Table,
    View,
    extend_presentation,
)
from consilience.domain.topology import Topology, complete, hierarchy, independent, star, tree
from consilience.engine.conditions import StopCondition
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import PanelSeats, Protocol, register
from consilience.engine.quorum import Claims, Quorum
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Pending, Reply, Subtask, Work

__all__ = [
    "FILE",
    "Against",
    "Agent",
    "AgentText",
    "Ask",
    "Bar",
    "Bars",
    "Bullets",
    "Caps",
    "Check",
    "Claim",
    "Claims",
    "ConfidenceScore",
    "Delivery",
    "Details",
    "Dissent",
    "Estimate",
    "Failure",
    "FreeText",
    "Frozen",
    "Graph",
    "Grid",
    "Item",
    "Label",
    "LongText",
    "Matrix",
    "Message",
    "Noted",
    "Objection",
    "Panel",
    "PanelSeats",
    "Paragraph",
    "Pending",
    "Persona",
    "Presentation",
    "Prompt",
    "Protocol",
    "Quorum",
    "Quote",
    "Reply",
    "Report",
    "Section",
    "Series",
    "Session",
    "StopCondition",
    "StopReason",
    "Subheading",
    "Subtask",
    "Table",
    "Topology",
    "UnfinishedSession",
    "View",
    "Work",
    "capped",
    "complete",
    "extend_presentation",
    "hierarchy",
    "independent",
    "register",
    "seat_names",
    "star",
    "tree",
]
