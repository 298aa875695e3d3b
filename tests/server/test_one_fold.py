"""The page while a session runs, its replay at event n, then and later, and its file: one fold, so they have the same figures."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest

from consilience.models.port import ModelRequest
from consilience.testing.any_model import AnyModel
from kit.debating import Debaters
from server.inprocess import MODEL, Face, facing

CASES: dict[str, dict[str, Any]] = {
    "emergence": {"children": 2, "max_rounds": 2},
    "debate": {"debaters": 2, "max_messages": 10},
    "refinement": {"max_passes": 2},
    "review": {"max_iterations": 2},
}
SHOWN = ("header", "seats", "report", "pictures", "views", "settings")
"""Parts that follow from the events and the calls in flight alone."""
SOURCES = [{"name": "first.py", "text": "def first(values):\n    return values[1]\n"}]


class Stepping(AnyModel):
    """Replies so many times as it is let; the last call that waits is answered first."""

    def __init__(self, protocol: str) -> None:
        super().__init__(name=MODEL)
        self._debate = Debaters() if protocol == "debate" else None
        self.waiting: list[str] = []
        self.let: set[str] = set()
        self.is_open = False

    def reply(self, request: ModelRequest) -> str:
        return self._debate(request) if self._debate else super().reply(request)

    async def complete(self, request: ModelRequest) -> Any:
        self.waiting.append(request.key)
        while not self.is_open and request.key not in self.let:  # noqa: ASYNC110 - the test runs on another loop
            await asyncio.sleep(0.005)
        self.waiting.remove(request.key)
        self.let.discard(request.key)
        return await super().complete(request)


def comparable(parts: dict[str, str]) -> dict[str, str]:
    """Parts without for how long a call had been in flight, which a page that grows says otherwise than one that was."""
    since = re.compile(r" \((?:since <time.*?</time>|for [^()<]*)\)")
    shown = {name: since.sub("", parts[name]) for name in SHOWN}
    return shown | {"figures": parts["state"].partition("<progress")[2]}


def element(page: str, id: str) -> str:
    """The words of a part of a page."""
    root: Element = html5lib.parse(page, namespaceHTMLElements=False)
    (found,) = [one for one in root.iter() if one.attrib.get("id") == id]
    return " ".join(" ".join(found.itertext()).split())


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize("protocol", CASES)
async def test_page_replay_and_file_have_the_same_figures_at_every_event(protocol: str, tmp_path: Path) -> None:
    model = Stepping(protocol)
    body = {"protocol": protocol, "settings": CASES[protocol], "task": "Shall we?", "sources": SOURCES}
    live, running = dict[int, Any](), dict[int, Any]()
    async with facing(tmp_path, model=model) as face:
        session = (await face.post("/api/sessions", body, 201))["session"]

        async def fragments(query: str) -> dict[str, str]:
            return dict((await face.get(f"/sessions/{session}/fragments?{query}"))["parts"])

        async def settled() -> int:
            """Wait until nothing happens without another reply; return the number of events."""
            last, waiting, since = -1, [""], 0
            while since < 12:
                await asyncio.sleep(0.01)
                state = face.store.last(session), list(model.waiting)
                since = since + 1 if state == (last, waiting) and (waiting or _finished(face, session)) else 0
                last, waiting = state
            return last

        for _ in range(14):
            last = await settled()
            if not model.waiting:
                break
            live[last] = comparable(await fragments("version=0"))
            for n in {last, max(last - 1, 1), (last + 1) // 2, *live}:
                running[n] = comparable(await fragments(f"at={n}"))
                assert n not in live or running[n] == live[n], "a replay in mid-run is the page as it was"
            model.let.add(model.waiting[-1])
        assert len(live) > 3
        assert any("composing" in parts["seats"] for parts in running.values())
        model.is_open = True
        await face.sessions.wait(face.caller[0], session)
        for n, parts in running.items():
            assert comparable(await fragments(f"at={n}")) == parts, f"event {n}, seen while it ran and afterwards"

        total = face.store.last(session)
        page = (await face.client.get(f"/sessions/{session}")).text
        replayed = (await face.client.get(f"/sessions/{session}/at/{total}")).text
        file = await face.get(f"/api/sessions/{session}/export?format=html")
        for id in ("report", "settings"):
            assert element(page, id) == element(replayed, id)
            assert element(file, id).startswith(element(page, id)), "a file has the lines of its documents, too"


def _finished(face: Face, session: str) -> bool:
    return bool(face.store.read(session)) and face.store.read(session)[-1].type == "session_finished"
