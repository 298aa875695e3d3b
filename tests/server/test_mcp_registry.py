"""`server.json`, the entry of `consilience mcp` in the MCP registry: it is about this package, and starts it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from cli.loopback import PATIENCE

ROOT = Path(__file__).parents[2]
ENTRY: dict[str, Any] = json.loads((ROOT / "server.json").read_text())
(PACKAGE,) = ENTRY["packages"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_entry_is_of_this_package_and_version() -> None:
    assert ENTRY["version"] == PACKAGE["version"] == PROJECT["version"]
    assert (PACKAGE["registryType"], PACKAGE["identifier"]) == ("pypi", PROJECT["name"])
    assert PACKAGE["identifier"] in PROJECT["scripts"]  # a client runs the program that has the name of the package
    (extras,) = re.findall(r"\[(.*)\]", PACKAGE["runtimeArguments"][0]["value"])
    assert {"mcp"} < set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_registry_finds_its_name_in_the_readme_and_takes_its_texts() -> None:
    (name,) = re.findall(r"^<!-- mcp-name: (\S+) -->$", (ROOT / PROJECT["readme"]).read_text(), re.MULTILINE)
    assert name == ENTRY["name"]
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", name)
    assert 1 <= len(ENTRY["description"]) <= 100


@pytest.mark.processes
async def test_command_line_of_the_entry_serves_tools(home: Path) -> None:
    given = {"--model": "openai:gpt-5-mini", "--root": ".", "--max-cost": "0.50"}
    words = []
    for argument in PACKAGE["packageArguments"]:
        words += (
            [argument["value"]] if argument["type"] == "positional" else [argument["name"], given[argument["name"]]]
        )
    command = str(Path(sys.executable).with_name(PACKAGE["identifier"]))
    transport = StdioTransport(command, words, keep_alive=False)
    async with Client(transport, init_timeout=PATIENCE) as client:
        assert {"ask", "deliberate", "review"} <= {tool.name for tool in await client.list_tools()}
