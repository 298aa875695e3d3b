"""LangGraph: any protocol as a node of a graph, and `emergence` as a graph of its own. Needs the extra `langgraph`."""

from __future__ import annotations

from consilience.integrations.langgraph.emergence import EmergenceAgentState, EmergenceState, emergence_graph
from consilience.integrations.langgraph.node import protocol_node

__all__ = ["EmergenceAgentState", "EmergenceState", "emergence_graph", "protocol_node"]
