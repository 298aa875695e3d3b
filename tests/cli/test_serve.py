"""`consilience serve` refuses to start with options that do not go together, each in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.town import Cli

MODEL = ("--model", "openai-chat:stub")
URL = ("--public-url", "https://talks.example")
PROXY = ("--trusted-proxy", "127.0.0.1")

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "other machines without tokens": (("--host", "0.0.0.0"), "no token file"),
    "all addresses": (("--host", ""), "no token file"),
    "other machines without a name": (("--host", "0.0.0.0", "--token-file", "t.toml"), "no public URL"),
    "name without tokens": (URL, "need a token_file"),
    "proxy without tokens": (PROXY, "need a token_file"),
    "proxy without a name": (("--token-file", "t.toml", *PROXY), "need public_urls"),
    "user header without a proxy": (("--token-file", "t.toml", *URL, "--trusted-user-header", "X-User"), "needs trusted_proxies"),
    "user header without tokens": ((*PROXY, "--trusted-user-header", "X-User"), "needs a token_file"),
    "no header": (("--token-file", "t.toml", *URL, *PROXY, "--trusted-user-header", "X User"), "no name of a header"),
    "no token file there": (("--token-file", "none.toml", *URL), "cannot be read: No such file"),
    "a directory of tokens": (("--token-file", ".", *URL), "cannot be read"),
    "broken token file": (("--token-file", "broken.toml", *URL), "not TOML"),
    "token file of another kind": (("--token-file", "other.toml", *URL), "invalid"),
    "path in the name": (("--token-file", "t.toml", "--public-url", "https://talks.example/x"), "nothing after it"),
    "name without scheme": (("--token-file", "t.toml", "--public-url", "talks.example"), "must be http:// or https://"),
    "name with a wrong port": (("--token-file", "t.toml", "--public-url", "https://talks.example:x"), "is no address: Port"),
    "proxy by name": (("--token-file", "t.toml", *URL, "--trusted-proxy", "proxy.example"), "no address or network of a proxy"),
    "no network": (("--token-file", "t.toml", *URL, "--trusted-proxy", "10.0.0.7/8"), "no address or network of a proxy"),
    "mistyped list of proxies": (("--config", "proxies.toml"), "trusted_proxies"),
    "address of no machine": (("--host", "192.0.2.77", "--token-file", "t.toml", *URL), "cannot listen"),
    "owner without a file": (("--new-owner", "anna"), "no token file"),
    "owner that is there": (("--token-file", "t.toml", "--new-owner", "anna"), "has an owner 'anna' already"),
    "owner with a strange name": (("--token-file", "t.toml", "--new-owner", "a b"), "no name of an owner"),
    "file that is not there": (("--config", "none.toml"), "cannot be read"),
    "key that is not there": (("--config", "key.toml"), "unknown key"),
    "access that is no table": (("--config", "access.toml"), "access"),
    "person as a model": (("--model", "human"), "not a model"),
}  # fmt: skip


@pytest.fixture
def files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    for name, text in {
        "t.toml": '[[owner]]\nname = "anna"\n',
        "broken.toml": "[[owner]\n",
        "other.toml": "models = []\n",
        "key.toml": "modells = ['openai-chat:stub']\n",
        "access.toml": "access = 1\n",
        "proxies.toml": "models = ['openai-chat:stub']\n[access]\ntrusted_proxies = 5\n",
    }.items():
        (here / name).write_text(text)


@pytest.mark.parametrize("name", REFUSED)
def test_start_with_options_that_do_not_go_together_is_refused_in_a_sentence(name: str, cli: Cli, files: None) -> None:
    options, what = REFUSED[name]
    model = () if "--config" in options or "--model" in options else MODEL
    done = cli("serve", "--port", "0", *model, *options)
    assert done.exit_code == 2, done.output
    assert what in done.stderr
    assert "Traceback" not in done.stderr
    assert not re.search(r"IPv[46]|pydantic|validation error", done.stderr), done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
