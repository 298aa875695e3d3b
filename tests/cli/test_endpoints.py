"""Any OpenAI-compatible endpoint, named by its address, with the real command against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import consilience
from cli.loopback import command, prose, provider
from cli.test_privacy import PYTHONPATH
from cli.town import Cli
from consilience.engine.runner import Options
from consilience.models.endpoints import EXAMPLES

KEY = "zq7-wintermute-plum-4410"
QUESTION = "Should the market be daily?"


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home), "HOME": str(here)}


def free(home: Path, url: str, **prices: float) -> None:
    """Configure the endpoint in the user's file: free, or with prices."""
    lines = [f"{name} = {price}" for name, price in prices.items()] or ["free = true"]
    (home / "consilience.toml").write_text("\n".join([f'[endpoints."{url}/v1"]', *lines, ""]))


def without(*names: str) -> Any:
    """Answers in prose, or as asked, and rejects requests with one of those parameters by its name."""

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        for name in names:
            if name in body:
                return 400, {"error": {"message": f"Unsupported parameter: '{name}'", "param": name}}
        return prose(body, headers)

    return answer


def test_a_run_is_resumed_and_replayed_by_its_recorded_name(env: dict[str, str], here: Path, home: Path) -> None:
    picky = without("seed", "response_format", "tools", "max_tokens")
    with provider(picky) as server:
        free(home, server.url)
        name = f"{server.url}/v1#qwen3:8b"
        run = ("emergence", QUESTION, "--children", "2", "--max-rounds", "1", "--model", name, "--seed", "3")
        killed = command(*run, env={**env, "CONSILIENCE_FAULT": "after_commit@leaf_respond/1#2"}, cwd=here)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        recorded = len(server.asked)
        resumed = command("resume", "last", "--json", env=env, cwd=here)
        assert resumed.returncode == 0, resumed.stderr
        report = json.loads(resumed.stdout)
        assert report["degraded"] == "5 of 5 replies not in the requested form"
        assert report["ledger"]["actual"]["cost"] == 0.0
        assert len(server.asked) > recorded
        assert {body["model"] for body in server.asked} == {"qwen3:8b"}
        assert not {"seed", "response_format", "tools", "max_tokens"} & set(server.asked[-1])
        asked = len(server.asked)
        replayed = command("replay", "last", env=env, cwd=here)
        assert replayed.returncode == 0, replayed.stderr
        assert len(server.asked) == asked
    events = command("export", "last", "--format", "events", env=env, cwd=here).stdout
    assert f'"model":"{name}"' in events.replace(" ", "")


@pytest.mark.parametrize("name", ["seed", "response_format", "max_tokens"])
def test_a_server_that_rejects_a_parameter_by_name_is_asked_without_it(
    name: str, env: dict[str, str], here: Path
) -> None:
    with provider(without(name)) as server:
        model = f"{server.url}/v1#m"
        done = command("solo", QUESTION, "--structured", "--model", model, "--yes", "--json", env=env, cwd=here)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["stop_reason"] == "settled"
        assert [name in body for body in server.asked] == [True, False]


async def test_rejected_temperature_from_python_is_dropped(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with provider(without("temperature")) as server:
        monkeypatch.setenv("CONSILIENCE_FREE_ENDPOINTS", f"{server.url}/v1")
        report = await consilience.deliberate(
            QUESTION,
            consilience.Vote(votes=3),
            model=[f"{server.url}/v1#a", f"{server.url}/v1#b"],
            options=Options(temperature=0.3),
        )
        assert (report.degraded, report.ledger.actual.cost) == (None, 0.0)
        left_out = [(body["model"], "temperature" in body) for body in server.asked]
    assert set(left_out) == {("a", True), ("a", False), ("b", True), ("b", False)}


def test_a_loopback_endpoint_is_not_assumed_to_be_free(env: dict[str, str], here: Path) -> None:
    with provider() as server:
        name = f"{server.url}/v1#gpt-4o"
        run = ("solo", QUESTION, "--model", name)
        refused = command(*run, env=env, cwd=here)
        assert refused.returncode == 2
        assert f"the price of {name} is not known" in refused.stderr
        assert f"CONSILIENCE_FREE_ENDPOINTS={server.url}/v1" in refused.stderr
        bounded = command(*run, "--max-cost", "0.01", env=env, cwd=here)
        assert bounded.returncode == 2, "no limit on money bounds what has no known price"
        assert f"--max-cost does not bound the cost of {name}" in bounded.stderr
        plan = json.loads(command(*run, "--dry-run", "--json", env=env, cwd=here).stdout)
        assert (plan["max_cost"], plan["paid"]) == (None, [name])
        assert server.asked == []
        agreed = command(*run, "--yes", env=env, cwd=here)
        assert "price not known" in agreed.stdout
        by_variable = command(*run, env={**env, "CONSILIENCE_FREE_ENDPOINTS": f"{server.url}/v1"}, cwd=here)
        assert "costs nothing" in by_variable.stderr
        assert "price not known" not in by_variable.stdout
        chain = command("solo", QUESTION, "--model", f"local|{name}", "--dry-run", env=env, cwd=here)
        assert f"the price of {name} is not known" in chain.stdout


def test_max_cost_is_no_consent_for_an_unpriced_endpoint(env: dict[str, str], here: Path) -> None:
    for name, variable in (("openai:gpt-4o", "OPENAI_BASE_URL"), ("anthropic:claude-sonnet-4-5", "ANTHROPIC_BASE_URL")):
        key = variable.replace("BASE_URL", "API_KEY")
        away = {**env, variable: "https://relay.invalid/v1", key: "sk-planted"}
        refused = command("solo", QUESTION, "--model", name, "--max-cost", "0.01", env=away, cwd=here)
        assert refused.returncode == 2
        assert f"the price of {name} is not known" in refused.stderr


def test_configured_prices_are_counted_and_limited(env: dict[str, str], here: Path, home: Path) -> None:
    with provider() as server:
        free(home, server.url, input_price=1000, output_price=2000)
        run = ("solo", QUESTION, "--model", f"{server.url}/v1#m")
        done = command(*run, "--max-cost", "50", "--json", env=env, cwd=here)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["ledger"]["actual"]["cost"] == pytest.approx(0.018)
        assert "at most $" in done.stderr
        broke = command(*run, "--max-cost", "0.001", "--json", env=env, cwd=here)
        assert json.loads(broke.stdout)["answer"] is None
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[endpoints."http://127.0.0.1:9/v1"]\ninput_price = 1e308\noutput_price = 2\n', "at most 1,000,000"),
        (f'[endpoints."http://127.0.0.1:9/v1"]\ninput_price = {10**400}\noutput_price = 2\n', "at most 1,000,000"),
        (f"confirm_above = {10**500}\n", "at most 1,000,000"),
        ('[endpoints."http://127.0.0.1:9/v1"]\nfree = false\n', "free = true"),
        ('[endpoints."http://127.0.0.1:9/v1"]\ninput_price = 1\n', "output_price"),
        ('[endpoints."http://127.0.0.1:9/v1"]\ninput_price = -1\noutput_price = 2\n', "output_price"),
        ('[endpoints."http://127.0.0.1:9/v1"]\ncontextwindow = 1\n', "Did you mean 'context_window'"),
        ('[endpoints."127.0.0.1:9"]\nfree = true\n', "must be named by its address"),
        (f'[endpoints."http://ann:{KEY}@127.0.0.1:9/v1"]\nfree = true\n', "without a user name"),
        ("endpoints = 3\n", "must be a table"),
    ],
)
def test_invalid_endpoint_configuration_is_refused(text: str, says: str, cli: Cli, home: Path) -> None:
    (home / "consilience.toml").write_text(text)
    refused = cli("solo", QUESTION, "--model", "local", "--dry-run")
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert "consilience.toml" in refused.stderr
    assert KEY not in refused.output


def test_configuration_in_the_guide_is_valid(cli: Cli, home: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    (shown,) = re.findall(r"^```text\n(\[endpoints.*?)^```", guide, re.DOTALL | re.MULTILINE)
    (home / "consilience.toml").write_text(shown)
    run = ("solo", QUESTION, "--dry-run", "--model")
    assert "Cost: nothing" in cli(*run, "http://127.0.0.1:8000/v1#any").stdout
    assert "Cost: at most $" in cli(*run, "http://127.0.0.1:4000/v1#gpt-5-mini").stdout
    assert "is not known" in cli(*run, "http://127.0.0.1:4000/v1#gpt-5").stdout


@pytest.mark.parametrize("prices", ["free = true", "input_price = 0\noutput_price = 0", "free = 'nonsense'"])
def test_configuration_in_the_current_directory_grants_no_consent(
    prices: str, env: dict[str, str], here: Path, home: Path
) -> None:
    with provider() as server:
        (here / "consilience.toml").write_text(f'confirm_above = 1000\n[endpoints."{server.url}/v1"]\n{prices}\n')
        run = ("solo", QUESTION, "--model", f"{server.url}/v1#m")
        refused = command(*run, env=env, cwd=here)
        assert refused.returncode == 2
        assert "--yes" in refused.stderr
        text = f"[endpoints] and a higher confirm_above ignored; only {home / 'consilience.toml'} may set that"
        assert refused.stderr.splitlines()[0] == f"consilience.toml: {text}"
        assert server.asked == []
        done = command(*run, "--yes", env=env, cwd=here)
        assert (done.returncode, done.stderr.count("ignored")) == (0, 1)
    doctor = command("doctor", env=env, cwd=here)
    assert text in " ".join(doctor.stdout.split())
    assert "asks above $0.50" in " ".join(doctor.stdout.split())
    assert "ignored" not in doctor.stderr


@pytest.mark.parametrize("entry", ["127.0.0.1:9", "yes", "http://", "http:///v1"])
def test_invalid_free_endpoint_entry_is_named(entry: str, cli: Cli, here: Path) -> None:
    env: dict[str, str | None] = {"CONSILIENCE_FREE_ENDPOINTS": f"http://127.0.0.1:8/v1,{entry}"}
    refused = cli("solo", QUESTION, "--model", "http://127.0.0.1:9/v1#m", "--dry-run", env=env)
    assert refused.exit_code == 2
    assert f"has an entry that is not an address: {entry}" in refused.stderr


def test_an_environment_file_with_a_nul_is_refused(cli: Cli, here: Path) -> None:
    (here / "keys.env").write_text("A=1\nSOME_TOKEN=ab\0cd\n")
    refused = cli("solo", QUESTION, "--env-file", "keys.env")
    assert refused.exit_code == 2
    assert "the value holds a NUL character. Where: keys.env, line 2." in refused.stderr


def test_directory_configuration_may_lower_confirm_above_only(cli: Cli, here: Path, home: Path) -> None:
    (home / "consilience.toml").write_text("confirm_above = 0.2\n")
    for asked, text in (("0.1", "$0.10"), ("0.3", "$0.20"), (str(10**5), "$0.20")):
        (here / "consilience.toml").write_text(f"confirm_above = {asked}\n")
        assert text in json.loads(cli("doctor", "--json").stdout)["Model"]["asks above"]
    (here / "consilience.toml").unlink()
    (home / "consilience.toml").write_text("confirm_above = 3\n")
    assert "$3.00" in json.loads(cli("doctor", "--json").stdout)["Model"]["asks above"]


def test_user_configuration_may_price_any_endpoint(cli: Cli, here: Path, home: Path) -> None:
    (home / "consilience.toml").write_text('[endpoints."https://gateway.example/v1"]\nfree = true\n')
    run = ("solo", QUESTION, "--model", "https://gateway.example/v1#m", "--dry-run")
    assert "Cost: nothing" in cli(*run).stdout
    (home / "consilience.toml").unlink()
    assert "is not known" in cli(*run).stdout


@pytest.mark.parametrize("option", ["--model", "--models", "--agent", "--encoder", "CONSILIENCE_MODEL", "model"])
def test_a_password_in_an_address_is_refused_and_not_repeated(
    option: str, env: dict[str, str], here: Path, home: Path
) -> None:
    name = f"http://ann:{KEY}@127.0.0.1:9/v1#m"
    arguments = ["solo", QUESTION, "--model", "local", "--dry-run", "--json"]
    if option == "--agent":
        arguments += ["--agent", f"S1={name}"]
    elif option == "--encoder":
        arguments += ["--encoder", name]
    else:
        arguments[2:4] = [option, name] if option.startswith("--") else []
    if option == "model":
        (here / "consilience.toml").write_text(f"model = {json.dumps(name)}\n")
    more = {"CONSILIENCE_MODEL": name} if option == "CONSILIENCE_MODEL" else {}
    done = command(*arguments, env={**env, **more}, cwd=here)
    assert done.returncode == 2
    assert "holds a user name or password" in done.stderr
    doctor = command("doctor", env={**env, **more}, cwd=here)
    for text in (done.stdout, done.stderr, doctor.stdout, doctor.stderr):
        assert KEY not in text
    assert not any(KEY.encode() in path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_endpoint_key_is_sent_and_not_written(env: dict[str, str], here: Path, home: Path) -> None:
    heard: list[str] = []

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        heard.append(headers["authorization"])
        return (
            (401, {"error": {"message": f"no: {headers['authorization']}"}})
            if len(heard) == 1
            else prose(body, headers)
        )

    with provider(answer) as server:
        free(home, server.url)
        env |= {"CONSILIENCE_ENDPOINT_KEY": KEY, "OPENAI_API_KEY": "sk-of-openai-0123456789"}
        text = ""
        for _ in range(2):
            done = command("solo", QUESTION, "--model", f"{server.url}/v1#m", "--out", "report", env=env, cwd=here)
            text += done.stdout + done.stderr
    assert heard == [f"Bearer {KEY}"] * 2
    assert "CONSILIENCE_ENDPOINT_KEY" in text
    assert KEY not in text
    assert not any(
        KEY.encode() in path.read_bytes() for top in (home, here) for path in top.rglob("*") if path.is_file()
    )


def test_several_endpoints_take_seats_in_one_run(env: dict[str, str], here: Path) -> None:
    with provider() as first, provider() as other:
        models = f"{first.url}/v1#a/b:c,{other.url}/v1#d"
        env["CONSILIENCE_FREE_ENDPOINTS"] = f"{first.url}/v1,{other.url}/v1"
        run = ("vote", QUESTION, "--votes", "3", "--models", models, "--agent", f"V3={first.url}/v1#e")
        done = command(*run, "--json", env=env, cwd=here)
        assert done.returncode in (0, 3), done.stderr
        assert sorted(body["model"] for body in first.asked) == ["a/b:c", "e"]
        assert [body["model"] for body in other.asked] == ["d"]


def test_doctor_lists_endpoints_and_which_answer(env: dict[str, str], here: Path, home: Path) -> None:
    plain = command("doctor", "--json", env=env, cwd=here)
    section = next(rows for name, rows in json.loads(plain.stdout).items() if "OpenAI-compatible" in name)
    for title, example in EXAMPLES.items():
        assert section[title] == f"--model {example}"
    assert section["OPENAI_BASE_URL"].startswith("(not set); if set, --model openai-chat:MODEL")
    listing = {"data": [{"id": f"m{number}"} for number in range(20)]}
    with provider(listing=listing) as server, provider() as closed:
        free(home, server.url)
        env["OPENAI_BASE_URL"] = closed.url.replace("//", f"//ann:{KEY}@") + f"/v1?api_key={KEY}"
        env["CONSILIENCE_MODEL"] = f"{server.url}/v1#m1"
        done = command("doctor", env=env, cwd=here)
    assert f"{server.url}/v1" in done.stdout
    assert "answers, lists m0, m1, m2" in done.stdout
    assert "m11, …; free, as configured" in done.stdout
    assert "answers, but lists no models (HTTP 404); price not known" in done.stdout
    assert f"{server.url}/v1#m1: CONSILIENCE_MODEL is set; it costs nothing" in done.stdout
    assert KEY not in done.stdout + done.stderr
    (home / "consilience.toml").unlink()
    assert "#m1: CONSILIENCE_MODEL is set; its price is not known" in command("doctor", env=env, cwd=here).stdout
    (here / "consilience.toml").write_text('model = "local|http://127.0.0.1:9/v1#m"\n')
    del env["CONSILIENCE_MODEL"]
    assert "http://127.0.0.1:9/v1   " in command("doctor", env=env, cwd=here).stdout
    gone = command("doctor", env={**env, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, cwd=here)
    assert "does not answer (Connection refused)" in gone.stdout


def test_declared_endpoint_is_known_by_dry_run_run_and_doctor(env: dict[str, str], here: Path, home: Path) -> None:
    env["CORP_API_KEY"] = KEY
    with provider(listing={"data": [{"id": "large"}]}, key=KEY) as server:
        name = f"{server.url}/v1#large"
        table = 'input_price = 2\noutput_price = 8\ncontext_window = 8000\nkey_variable = "CORP_API_KEY"'
        (home / "consilience.toml").write_text(f'[endpoints."{name}"]\n{table}\n')
        (here / "long.txt").write_text("The job failed. " * 4000)
        doctor = command("doctor", env=env, cwd=here).stdout
        run = ("solo", QUESTION, "--source", "long.txt", "--model", name, "--thinking", "high")
        plan = command(*run, "--dry-run", env=env, cwd=here).stdout
        unnamed = command("solo", QUESTION, "--model", f"{server.url}/v1", env=env, cwd=here).stderr
        (home / "consilience.toml").unlink()
        (here / "consilience.toml").write_text(f'model = "{name}"\n')
        directory = command("doctor", env={**env, "CONSILIENCE_ENDPOINT_KEY": KEY}, cwd=here).stdout
    assert "answers, lists large; large: $2 in and $8 out per million tokens, as configured; other models: " in doctor
    assert f"context window of {name} (8,000 tokens)" in plan
    assert f"(high; not sent to {name})" in plan
    assert "Models it lists: large." in unnamed
    assert "answers, but wants a key (HTTP 401)" in directory, "a directory may not send a key to its address"


def test_plan_says_which_seats_fit_into_their_windows_and_what_would_fit(
    home: Path, here: Path, env: dict[str, str | None]
) -> None:
    with provider() as server:
        (home / "consilience.toml").write_text(
            f'[endpoints."{server.url}/v1"]\nfree = true\nthinks = "never"\ncontext_window = 64000\n'
            f'[endpoints."{server.url}/v1#small"]\nfree = true\nthinks = "never"\ncontext_window = 16000\n'
        )
        (here / "long.txt").write_text("The job failed. " * 8000)
        seats = ("--model", f"{server.url}/v1#large", "--agent", f"L2N1={server.url}/v1#small", "--children", "3")
        plan = json.loads(command("emergence", QUESTION, *seats, "--dry-run", "--json", env=env, cwd=here).stdout)
        small = (QUESTION, "--source", "long.txt", "--model", f"{server.url}/v1#small")
        refused = command("solo", *small, env=env, cwd=here)
        shown = command("solo", *small, "--dry-run", env=env, cwd=here).stdout
    large, small_seat, way = plan["windows"]
    assert re.fullmatch(r"L1N1, L2N2, L2N3: up to [\d,]+ tokens in .*#large \(64,000 tokens\): fits", large)
    assert re.fullmatch(r"L2N1: up to [\d,]+ tokens in .*#small \(16,000 tokens\): may not fit", small_seat)
    assert re.fullmatch(r"4 seats × 16,000 tokens: replies ≤ 1,\d+ would fit \(--reply-tokens 1\d+\)", way)
    assert (refused.returncode, server.asked) == (2, [])
    assert "the closing call cannot fit: its prompt has at least 2" in refused.stderr
    assert "the context window of S1 has 16,000" in refused.stderr
    assert "Refused: the closing call cannot fit" in shown


@pytest.mark.parametrize(("protocol", "window"), [("decompose", 16_000), ("emergence", 32_000)])
def test_plan_of_dealt_documents_keeps_every_seat_within_a_declared_window(
    protocol: str, window: int, home: Path, here: Path, env: dict[str, str | None]
) -> None:
    (here / "docs").mkdir()
    for n in range(8):
        (here / "docs" / f"{n}.md").write_text("\n\n".join(f"Part {m} of plan {n} is under way." for m in range(400)))
    with provider() as server:
        (home / "consilience.toml").write_text(
            f'[endpoints."{server.url}/v1"]\nfree = true\nthinks = "never"\ncontext_window = {window}\n'
        )
        run = (protocol, QUESTION, "--model", f"{server.url}/v1#m", "--source", "docs", "--deal", "auto", "--dry-run")
        plan = json.loads(command(*run, "--json", env=env, cwd=here).stdout)
        shown = command(*run, env=env, cwd=here).stdout
    assert server.asked == []
    assert sum(share["tokens"] for share in plan["shares"]) > window, "too much for one reading"
    assert plan["windows"]
    for line in plan["windows"]:
        (tokens,) = re.findall(r"up to ([\d,]+) tokens in .*: fits$", line)
        assert int(tokens.replace(",", "")) <= window
        assert line in " ".join(shown.split())


def test_help_shows_the_endpoint_form(cli: Cli) -> None:
    for protocol in ("solo", "emergence", "compare"):
        assert "http://HOST:PORT/v1#NAME" in " ".join(cli(protocol, "--help").stdout.split())
