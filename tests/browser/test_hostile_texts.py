"""Texts that attack whoever reads them, in every field that an agent, a document or a caller can fill, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import PATIENCE, Gate, Reader
from browser.steps import button, debate_of_two_cruxes, finished, submit
from browser.test_pictures import REVIEW
from cli.loopback import provider
from server.served import Served, serving, typed

pytestmark = pytest.mark.processes
MARK = "zqz"
"""In the names of all that must not come to be."""
HOSTILE = "".join(
    (
        f"</p></textarea></title></style></pre><script>{MARK}=1</script>",
        f"<img class={MARK} src=/{MARK}.png onerror={MARK}=2><svg class={MARK} onload={MARK}=3><a href=/{MARK}>x</a></svg>",
        f"<iframe class={MARK} src=/{MARK}.html></iframe><form class={MARK} action=/{MARK}><button>send</button></form>",
        f"<style class={MARK}>body{{display:none}}</style><link class={MARK} rel=stylesheet href=/{MARK}.css>",
        f"<article id=call-1 class={MARK}>forged</article><base class={MARK} href=//{MARK}.example/>",
        f"\"'><b class={MARK} onmouseover={MARK}=4>&#60;script&#62;{MARK}=5&#60;/script&#62;{{{{ {MARK} }}}}{{% raw %}}",
        f" [go](javascript:{MARK}=6) ![see](http://{MARK}.example/a.png) ![see](/{MARK}.png) <javascript:{MARK}=7> ",
        "\u202egnp.exe\u202c\u2066over\u2069 \ue000\ue001\uf8ff \x1b[31m\ud7ff\ufffe ]]>--> `a` **b** ",
    )
)
SHORT = f"</title></text></svg><img class={MARK} src=/{MARK}.png onerror={MARK}=1>\u202e "
LONG = "w" * 1_000_000
SHOWN = re.compile(rf"{MARK}=1|{MARK}\.png")
CASES: dict[str, dict[str, Any]] = {
    "solo": {},
    "vote": {"votes": 2},
    "emergence": {"children": 2, "max_rounds": 1},
    "broadcast": {"children": 2, "max_iterations": 1},
    "decompose": {"children": 2},
    "refinement": {"max_passes": 1},
    "debate": {"debaters": 2, "max_messages": 10},
    "review": {},
}


def hostile(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
    """A reply whose free texts are hostile, each another one."""
    status, answer = typed(body, headers)
    message = answer["choices"][0]["message"]  # type: ignore[index]
    if not message["content"].startswith("{"):
        message["content"] += HOSTILE
        return status, answer
    message["content"] = json.dumps(_spoilt(json.loads(message["content"])))
    return status, answer


def _spoilt(value: object) -> object:
    if isinstance(value, dict):
        return {key: _spoilt(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spoilt(one) for one in value]
    return f"{value} {HOSTILE}" if isinstance(value, str) and " on k: " in value else value


@pytest.fixture
def served(tmp_path: Path, gate: Gate) -> Iterator[Served]:
    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        assert gate.permits.acquire(timeout=PATIENCE)
        return hostile(body, headers)

    with provider(answer) as model, serving(tmp_path, model) as found:
        yield found


def attacks(reader: Reader) -> dict[str, Any]:
    """Return what of the hostile texts has come to be on the page: all values are empty where nothing has."""
    found: dict[str, Any] = reader.page.evaluate(
        """mark => ({
            run: String(window[mark] ?? ""),
            made: [...document.querySelectorAll(`.${mark}, [src*=${mark}], form[action*=${mark}], a[href*="javascript:" i]`)]
                .map(one => one.outerHTML.slice(0, 200)),
            forged: [...document.querySelectorAll("[id]")].map(one => one.id)
                .filter((id, n, all) => all.indexOf(id) !== n),
            handlers: [...document.querySelectorAll("*")].flatMap(one => one.getAttributeNames())
                .filter(name => name.startsWith("on")),
            hidden: (document.body.innerText.match(/[\\u202a-\\u202e\\u2066-\\u2069\\x1b\\x00]/g) ?? []).length || "",
            wide: document.documentElement.scrollWidth > innerWidth || "",
        })""",
        MARK,
    )
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("protocol", CASES)
def test_hostile_texts_are_shown_and_do_nothing(
    reader: Reader, served: Served, gate: Gate, tmp_path: Path, protocol: str
) -> None:
    asked: list[str] = []
    reader.page.on("request", lambda request: asked.append(request.url))
    documents = [
        {"name": f"plan {HOSTILE[:180]}.md", "text": f"{HOSTILE}\n{LONG}\nlast"},
        {"name": "b.py", "text": f"# {HOSTILE}\n"},
    ]
    task = f"Shall we? {HOSTILE}"
    session = served.begin(protocol=protocol, settings=CASES[protocol], task=task, sources=documents)
    reader.open(served, session)
    assert attacks(reader) == {}
    served.post(f"/api/sessions/{session}/comment", {"text": f"A comment {HOSTILE}"})
    gate.let(10_000)
    reader.watch_to_the_end()
    pages = ["", "/at/3", "/calls", "/documents/1", "/documents/2", "/fork", "/links"]
    calls = served.request("GET", f"/sessions/{session}/calls")[1]
    pages += re.findall(rf'href="/sessions/{session}(/calls/[^"]+)"', calls)[:2]
    for path in pages:
        reader.open(served, session, path)
        for fold in reader.page.locator("details").all():
            fold.evaluate("fold => fold.open = true")
        assert attacks(reader) == {}, path
    reader.go(f"{served.url}/sessions")
    assert attacks(reader) == {}
    reader.open(served, session)
    assert SHOWN.search(reader.page.locator("#live header").inner_text()), "the texts are there, as they were written"
    assert SHOWN.search(reader.page.locator("#live-report").inner_text())
    share = served.post(f"/api/sessions/{session}/share", {"days": 1}, 201)
    reader.go(share["url"])
    assert attacks(reader) == {}
    file = tmp_path / "report.html"
    file.write_text(served.request("GET", f"/api/sessions/{session}/export?format=html")[1])
    reader.go(file.as_uri())
    assert attacks(reader) == {}
    assert reader.foreign == [file.as_uri()]
    assert reader.problems == []
    assert [url for url in asked if MARK in url] == []


def test_hostile_texts_in_the_pictures_of_a_debate_do_nothing(reader: Reader, served: Served, tmp_path: Path) -> None:
    session = debate_of_two_cruxes(tmp_path, SHORT)
    reader.open(served, session)
    assert reader.page.locator("#crux-map svg a").count() == 2
    assert SHOWN.search(reader.page.locator("#crux-map").text_content())
    for path in ("", "/at/60", "/views/crux-map", "/views/stance", "/views/timeline"):
        reader.open(served, session, path)
        assert attacks(reader) == {}, path
    file = tmp_path / "report.html"
    file.write_text(served.request("GET", f"/api/sessions/{session}/export?format=html")[1])
    reader.go(file.as_uri())
    assert attacks(reader) == {}
    assert reader.problems == []


def test_hostile_texts_of_people_do_nothing(reader: Reader, served: Served, gate: Gate) -> None:
    """In a list that is checked while it is typed, and in an objection by a link that asks for one."""
    page = reader.page
    session = served.begin(**REVIEW, models={"red": "human"})
    reader.go(served.post(f"/api/sessions/{session}/seats/red/link", {"days": 1}, 201)["url"])
    page.locator("[id='field:findings']").fill(f"- severity: {HOSTILE}\n  claim: {LONG}\n")
    reader.until("document.getElementById('field:findings-now').textContent !== ''")
    assert attacks(reader) == {}
    page.locator("main form").evaluate("form => form.noValidate = true")
    submit(reader, button(reader, "Answer"))
    assert HOSTILE[-17:] in page.locator("[id='field:findings']").input_value()
    assert attacks(reader) == {}
    submit(reader, button(reader, "Pass"))
    gate.let(10_000)
    session = finished(served, protocol="vote", settings={"votes": 2})
    reader.go(served.post(f"/api/sessions/{session}/share", {"days": 1, "asks": True}, 201)["url"])
    page.locator("[name=vote]").first.check()
    page.locator("#objection").fill(HOSTILE)
    submit(reader, button(reader, "Give it"))
    assert SHOWN.search(page.locator("blockquote").inner_text())
    assert attacks(reader) == {}
    reader.open(served, session, "/links")
    assert SHOWN.search(page.locator("blockquote").inner_text())
    assert attacks(reader) == {}
    assert reader.problems == []
