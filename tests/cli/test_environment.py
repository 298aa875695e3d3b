"""Environment variables with invalid values: a user error with the variable and the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.loopback import MODEL, provider
from cli.town import Cli, recorded
from consilience.models import endpoints
from kit.forks import PYTHONPATH

PROBE = endpoints.probe
"""As it is before the fixtures see to it that no server is looked for."""
RUN = ("solo", "Is it so?", "--yes", "--model")
SECRET = "tern-gannet-skua"

ADDRESSES = {
    "foo": "does not begin with http:// or https://",
    "/v1": "does not begin with http:// or https://",
    "localhost:8080": "does not begin with http:// or https://",
    "ftp://127.0.0.1/v1": "does not begin with http:// or https://",
    "http://": "has no host",
    "http:///v1": "has no host",
    "http://:8080/v1": "has no host",
    f"http://u:{SECRET}@127.0.0.1:abc/v1": "port is not a number from 1 to 65535",
    "http://127.0.0.1:99999/v1": "port is not a number from 1 to 65535",
    "http://127.0.0.1:0/v1": "port is not a number from 1 to 65535",
    "http://[::1/v1": "host is not valid",
    "http://a..b/v1": "host is not valid",
    "http://a b/v1": "has a space or a control character",
    "http://127.0.0.1:9/v1\x01": "has a space or a control character",
}
HOSTS = {
    "foo:bar:1": "port is not a number",
    "127.0.0.1:99999": "port is not a number",
    ":abc": "port is not a number",
    "[::1": "host is not valid",
    "a b": "has a space",
    "ftp://127.0.0.1": "does not begin with http:// or https://",
}
PROXIES = {
    "foo://127.0.0.1:1": "does not begin with http:// or https:// or socks5://",
    "http://127.0.0.1:abc": "port is not a number",
    "127.0.0.1:abc": "port is not a number",
    "http://a b": "has a space",
}
VARIABLE_OF_MODEL = {
    "openai-chat:stub": "OPENAI_BASE_URL",
    "openai-responses:stub": "OPENAI_BASE_URL",
    "anthropic:claude-haiku-4-5": "ANTHROPIC_BASE_URL",
    "google:gemini-2.5-flash": "GOOGLE_GEMINI_BASE_URL",
    "ollama:x": "OLLAMA_BASE_URL",
    "lmstudio:x": "LMSTUDIO_BASE_URL",
    "llamacpp:x": "LLAMACPP_BASE_URL",
    "vllm:x": "VLLM_BASE_URL",
}
CASES = [
    *((model, variable, url, why) for model, variable in VARIABLE_OF_MODEL.items() for url, why in ADDRESSES.items()),
    *(("ollama:x", "OLLAMA_HOST", host, why) for host, why in HOSTS.items()),
    *((MODEL, proxy, url, why) for proxy in ("HTTPS_PROXY", "all_proxy") for url, why in PROXIES.items()),
    (MODEL, "SSL_CERT_FILE", "/nowhere/x.pem", "names no file: /nowhere/x.pem"),
    (MODEL, "ALL_PROXY", "socks5://127.0.0.1:1", "names a SOCKS proxy, for which a library is not installed"),
]


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str | None]:
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"), "none-needed")
    return {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home), **keys}


@pytest.mark.matrix(keep=40)
@pytest.mark.parametrize(("model", "variable", "value", "why"), CASES)
def test_invalid_base_url_error_names_the_variable(
    model: str, variable: str, value: str, why: str, env: dict[str, str | None], cli: Cli
) -> None:
    done = cli(*RUN, model, env={**env, variable: value})
    assert done.exit_code == 2, done.output
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert variable in error
    assert why in error
    assert "defect" not in error
    assert SECRET not in done.output
    assert recorded() == []


@pytest.mark.parametrize("variable", ["OLLAMA_HOST", "LLAMACPP_BASE_URL"])
def test_invalid_address_of_a_server_to_list_is_refused(
    variable: str, env: dict[str, str | None], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "probe", PROBE)
    env |= {variable: "http://127.0.0.1:abc"}
    done = cli("solo", "Is it so?", "--yes", env=env)
    assert done.exit_code == 2
    assert f"{variable} is not a web address" in done.stderr
    doctor = cli("doctor", env=env)
    assert doctor.exit_code == 2
    assert f"NOT USABLE: {variable} is not a web address" in doctor.stdout
    named = cli("doctor", env={**env, "CONSILIENCE_MODEL": "llamacpp:x", "LLAMACPP_BASE_URL": "foo"})
    assert "NOT USABLE: LLAMACPP_BASE_URL is not a web address" in named.stdout


def test_invalid_base_url_of_an_encoder_is_refused(env: dict[str, str | None], cli: Cli) -> None:
    run = ("emergence", "Is it so?", "--yes", "--model", "exec:cat", "--similarity", "embedding")
    done = cli(*run, "--encoder", "openai:text-embedding-3-small", env={**env, "OPENAI_BASE_URL": "foo"})
    assert done.exit_code == 2, done.output
    assert "OPENAI_BASE_URL is not a web address" in done.stderr


def test_home_of_an_unknown_user_is_refused(env: dict[str, str | None], cli: Cli) -> None:
    for command in (("sessions", "list"), (*RUN, "exec:cat"), ("doctor",)):
        done = cli(*command, env={**env, "CONSILIENCE_HOME": "~nosuchuser/x"})
        assert done.exit_code == 2, done.output
        assert "there is no home directory for ~nosuchuser" in done.stderr
        assert "CONSILIENCE_HOME" in done.stderr


def test_valid_base_urls_are_accepted(env: dict[str, str | None], cli: Cli) -> None:
    with provider() as server:
        env |= {"OPENAI_BASE_URL": f"{server.url}/v1", "HTTPS_PROXY": "127.0.0.1:9", "ALL_PROXY": ""}
        env |= {"OLLAMA_BASE_URL": f"{server.url}/v1"}
        assert cli(*RUN, MODEL, env=env).exit_code == 0
        assert cli(*RUN, "ollama:x", env=env).exit_code == 0
        host = server.url.removeprefix("http://")
        for value in (host, server.url, f":{host.rpartition(':')[2]}", f"0.0.0.0:{host.rpartition(':')[2]}"):
            assert cli(*RUN, "ollama:x", env={**env, "OLLAMA_BASE_URL": None, "OLLAMA_HOST": value}).exit_code == 0
        assert 6 <= len(server.asked) <= 8, "the low count of the stub is probed, at most twice for a model"
