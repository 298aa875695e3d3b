"""The agents of a session: levels, parents, who read each other, and the state of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from consilience.domain.agents import Agent
from consilience.domain.sections import (
    Block,
    Bullets,
    Edge,
    Graph,
    GraphPanel,
    Item,
    Node,
    Paragraph,
    SeatNote,
    Tone,
    View,
)
from consilience.reporting.formatting import count, one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.seats import seat_states

ById = Mapping[str, Sequence[str]]


def view(record: SessionRecord) -> View:
    """Return every voice, and every other agent that made a call or waits for a reply."""
    heading = "Who took part"
    states = {id: state for id, state in seat_states(record).items() if state.agent.voice or state.takes_part}
    agents = {id: state.agent for id, state in states.items()}
    if not agents:
        nothing = Paragraph(text="No agents: the session was killed before it began.")
        return View(name="tree", heading=heading, blocks=(nothing,), is_empty=True)
    topology, notes, legend = record.topology, record.presentation.seats, record.presentation.seats_legend
    parents = {id: [parent for parent in topology.parents.get(id, ()) if parent in agents] for id in agents}
    models = list(dict.fromkeys(agent.model for agent in agents.values()))
    shared = f", all on {one_line(models[0])}" if len(models) == 1 else ""
    words = {
        id: (state.words, notes[id].text if id in notes else "", "" if shared else one_line(state.agent.model))
        for id, state in states.items()
    }
    blocks: list[Block] = [
        Paragraph(text=f"{count(len(agents), 'agent')}, {topology.kind}{shared}"),
        Bullets(items=tuple(_items(parents, words, record.names))),
    ]
    if topology.circles:
        read = (Item(text=f"read each other: {' – '.join(circle)}") for circle in topology.circles)
        blocks.append(Bullets(items=tuple(read)))
    panel = GraphPanel(
        nodes=tuple(_node(state.agent, state.words, state.tone, record) for state in states.values()),
        edges=tuple(Edge(source=parent, target=id) for id in agents for parent in parents[id]),
        circles=topology.circles,
    )
    circles = _circles_legend(record, agents, is_flat=not any(parents.values()))
    picture = Graph(panels=(panel,), legend=tuple(filter(None, (circles, legend))))
    return View(name="tree", heading=heading, blocks=tuple(blocks), picture=picture)


def _items(parents: ById, words: ById, names: Mapping[str, str]) -> Iterator[Item]:
    """Yield every agent, each below its first parent."""
    children: dict[str, list[str]] = {}
    for id, above in parents.items():
        children.setdefault(above[0] if above else "", []).append(id)
    remaining = [(id, 0) for id in reversed(children[""])]
    while remaining:
        id, depth = remaining.pop()
        also = f" (also below {', '.join(parents[id][1:])})" if parents[id][1:] else ""
        yield Item(lead=f"{names.get(id, id)}{also}:", text=" · ".join(filter(None, words[id])), depth=depth)
        remaining += [(child, depth + 1) for child in reversed(children.get(id, []))]


def _node(agent: Agent, state: str, tone: Tone, record: SessionRecord) -> Node:
    name = record.names.get(agent.id, agent.id)
    note = record.presentation.seats.get(agent.id) or SeatNote(text="")
    return Node(
        id=agent.id,
        label=name,
        note="\n".join(filter(None, (note.short or note.text, note.alert or state))),
        level=record.topology.levels.get(agent.id, 1),
        tone=tone,
        shade=note.shade,
        tip=f"{name}: {', '.join(filter(None, (state, note.text)))}, {agent.model}",
    )


def _circles_legend(record: SessionRecord, agents: Mapping[str, Agent], *, is_flat: bool) -> str:
    circles = record.topology.circles
    if not circles:
        return ""
    if not is_flat:
        return "dashed: read each other (all who are joined so)"
    if agents.keys() <= set(circles[0]):
        return "all of them read each other"
    return "read each other: " + "; ".join(", ".join(record.names.get(id, id) for id in circle) for circle in circles)
