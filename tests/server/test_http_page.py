"""Every command of docs/http.md does what the page says, in the order of the page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.loopback import provider
from server.served import serving, typed

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "jq"))), reason="the page uses bash, curl and jq"),
]

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


def test_blocks_of_the_page_run_without_an_error(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks.pop(0).startswith("consilience serve\n")
    assert len(blocks) > 8
    with provider(typed) as model, serving(tmp_path, model) as served:
        bounded = 'curl() { command curl -S --max-time 60 "$@"; }'
        script = "\n".join([bounded, *blocks]).replace("http://127.0.0.1:8080", served.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert '{"error"' not in done.stdout
        for shown in ("event: session_finished", '"finished"', "# Cats or dogs?", '"inherited":5', "emergence"):
            assert shown in done.stdout, shown
        assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
