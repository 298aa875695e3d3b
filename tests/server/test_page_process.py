"""The pages of a real process, by a browser without script: from the question to the reader who was not there."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from cli.loopback import PATIENCE, provider
from server.browsing import Browser
from server.served import serving, typed

pytestmark = pytest.mark.processes


def test_from_the_question_to_the_reader_who_was_not_there(tmp_path: Path) -> None:
    with provider(typed) as model, serving(tmp_path, model) as served:
        origin = {"Origin": served.url}
        with httpx.Client(base_url=served.url, headers=origin, timeout=PATIENCE) as client:
            ada = Browser(client)
            form = ada.open("/").form("/")
            form.fill(task="Ferry or bridge?", protocol="vote", vote__votes="2")
            planned = ada.send(form, "plan", files={"costs.html": b"<p>A ferry costs 40 a day.</p>"})
            assert "2 calls" in planned.text
            assert model.asked == []
            begun = ada.send(planned.form("/"), "begin", status=303)
            session = begun.answer.headers["location"].rpartition("/")[2]
            served.wait(session)
            assert any("A ferry costs 40 a day." in str(asked) for asked in model.asked)
            assert "Ferry or bridge?" in ada.open("/sessions").text
            again = ada.send(ada.open("/").form("/"), "plan", status=422)
            assert list(again.problems) == ["task"]
            links = ada.open(f"/sessions/{session}/links")
            path = re.search(r"/share/[\w-]+", ada.send(links.form("/links")).text)
            assert path
            assert "Ferry or bridge?" in ada.open(path[0]).text
        assert served.stop() == 0
