"""Models that think before they answer, behind servers that speak as OpenAI, Anthropic and Google do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from consilience import Broadcast, Decompose, Emergence, Refinement, Solo, Source, Vote, run_sync
from consilience.domain.events import CallCompleted, CallFailed, ReplyRejected, SessionStarted
from consilience.domain.outcome import Limits, StopReason, ThinkingLevel
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel
from consilience.reporting.markdown import markdown
from kit.runner import replay
from models.thinking import PROVIDERS, ThinkingServer, environment, thinking_server

PROTOCOLS: list[Protocol] = [
    Solo(),
    Vote(votes=3),
    Decompose(children=2),
    Emergence(children=2, max_rounds=2),
    Broadcast(children=2),
    Refinement(max_passes=1),
]
TASK = "Should a town of 4 000 reopen its railway halt?"
REPLY_TOKENS = 4_096
"""Of full prompts, which all but the embedded models are given."""

every_provider = pytest.mark.parametrize("provider", PROVIDERS)
without_budget = pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "anthropic"])
"""Where the provider does not bound the thinking itself, as Anthropic does for older models."""


def run(
    provider: str,
    server: ThinkingServer,
    monkeypatch: pytest.MonkeyPatch,
    protocol: Protocol | None = None,
    options: Options | None = None,
) -> Report:
    for name, value in environment(provider, server).items():
        monkeypatch.setenv(name, value)
    return run_sync(TASK, protocol or Solo(), model=PROVIDERS[provider][0], options=options)


@every_provider
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_thinking_model_with_default_settings_answers(
    provider: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    with thinking_server(hidden=1_400) as server:
        report = run(provider, server, monkeypatch, protocol)
    spent = report.ledger.actual
    assert report.answer is not None
    assert "12,000 a year" in report.answer
    assert report.missing == ()
    assert spent.requests == spent.calls, "no reply had to be asked for again"
    assert spent.tokens_thought == 1_400 * spent.calls
    assert f"{spent.tokens_out - spent.tokens_thought:,} written, {spent.tokens_thought:,} thinking" in markdown(report)


@without_budget
def test_thinking_allowance_that_is_too_small_is_doubled_once(
    provider: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    with thinking_server(hidden=9_000) as server:
        report = run(provider, server, monkeypatch)
    assert report.answer is not None
    assert [cap(body) for _, body in server.requests] == [REPLY_TOKENS + 4_096, REPLY_TOKENS + 8_192]
    first, second = (prompt(body) for _, body in server.requests)
    assert first == second, "nothing is to be corrected in an empty reply"


@without_budget
@pytest.mark.parametrize("repairs", [1, 3])
def test_thinking_beyond_the_doubled_allowance_is_truncated_with_advice(
    provider: str, repairs: int, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    with thinking_server(hidden=50_000) as server:
        report = run(provider, server, monkeypatch, options=Options(repairs=repairs))
    assert report.stop_reason is StopReason.FAILED
    assert len(server.requests) == 2
    (missing,) = report.missing
    assert missing.reason.startswith("truncated: ")
    assert "12,288 of them went into thinking" in missing.reason
    assert "--thinking" in missing.reason
    assert "--reply-tokens" in missing.reason
    assert "truncated" in markdown(report)


@without_budget
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_every_protocol_reports_truncation_by_thinking(
    provider: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    with thinking_server(hidden=50_000) as server:
        report = run(provider, server, monkeypatch, protocol)
    printed = markdown(report)
    assert report.answer is None
    assert report.stop_reason is not StopReason.CONVERGED
    assert report.missing
    assert all(missing.reason.startswith("truncated: ") for missing in report.missing)
    assert "give it more room (--reply-tokens) or another --thinking level" in printed


LEVELS: dict[ThinkingLevel, int] = {"off": 0, "minimal": 2_048, "low": 4_096, "medium": 16_384, "high": 32_768}


@every_provider
@pytest.mark.parametrize("level", LEVELS)
def test_thinking_level_sets_effort_and_allowance(
    provider: str, level: ThinkingLevel, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """The temperature is one more setting that most of them refuse beside thinking; a warning of the library is an error here."""
    with thinking_server(hidden=1_000) as server:
        report = run(
            provider, server, monkeypatch, Emergence(children=2, max_rounds=1), Options(thinking=level, temperature=0.5)
        )
    assert report.answer is not None
    always = not provider.startswith("anthropic")  # gpt-5-mini and gemini-2.5-pro cannot be told not to think
    allowance = max(LEVELS[level], LEVELS["minimal"] if always else 0)
    assert {cap(body) for _, body in server.requests} == {REPLY_TOKENS + allowance}
    _, body = server.requests[0]
    match provider:
        case "openai chat":
            assert body["reasoning_effort"] == ("minimal" if level == "off" else level)
        case "openai responses":
            assert body["reasoning"]["effort"] == ("minimal" if level == "off" else level)
        case "anthropic":
            assert body.get("thinking", {}).get("type") == (None if level == "off" else "enabled")
            assert ("temperature" in body) == (level == "off")
        case "anthropic adaptive":
            assert body["thinking"]["type"] == ("disabled" if level == "off" else "adaptive")
        case "gemini":
            assert body["generationConfig"]["thinkingConfig"]["thinking_budget"] >= 128


def test_model_known_not_to_think_gets_no_allowance(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with thinking_server(hidden=0) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k-1")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        monkeypatch.setenv("GEMINI_API_KEY", "k-1")
        run_sync(TASK, Solo(), model="google:gemini-2.0-flash", options=Options(thinking="high"))
    _, body = server.requests[0]
    assert cap(body) == REPLY_TOKENS
    assert "thinkingConfig" not in body["generationConfig"]


def test_an_unknown_model_behind_an_endpoint_counts_as_thinking(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with thinking_server(hidden=1_400) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "k-1")
        report = run_sync(TASK, Solo(), model="openai-chat:our-own-r1", options=Options(thinking="off"))
    assert report.answer is not None
    _, body = server.requests[0]
    assert cap(body) == REPLY_TOKENS + 2_048
    assert "reasoning_effort" not in body


def test_a_run_of_a_thinking_model_replays_without_a_request(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with thinking_server(hidden=6_000) as server:
        protocol = Emergence(children=2, max_rounds=1, reply_tokens=1_024)
        report = run("openai chat", server, monkeypatch, protocol)
        asked = len(server.requests)
        store = SqliteStore(home / "journal.db")
        again = asyncio.run(replay(report.session, store=store))
        store.close()
        assert len(server.requests) == asked
    assert again.digest() == report.digest()
    assert again.ledger.actual.tokens_thought == report.ledger.actual.tokens_thought > 0


@pytest.mark.parametrize("size", [200, 30_000])
def test_shared_prompt_prefix_is_marked_for_a_provider_with_explicit_caching(
    size: int, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    for name, value in PROVIDERS["anthropic"][1].items():
        monkeypatch.setenv(name, value)
    document = "The halt costs 12,000 a year. " * (size // 30)
    with thinking_server() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        run_sync(
            TASK,
            Emergence(children=3, max_rounds=1),
            model=PROVIDERS["anthropic"][0],
            sources=[Source(text=document, name="a.txt")],
        )
    blocks = [body["messages"][0]["content"] for _, body in server.requests]
    marked = [["cache_control" in block for block in content] for content in blocks]
    if size < 4_096:
        assert not any(map(any, marked)), "below what a provider caches"
    else:
        assert all(marks[0] and not marks[-1] for marks in marked)
        assert len({content[0]["text"] for content in blocks}) == 1, "the same beginning in every prompt"
        assert document.strip() in blocks[0][0]["text"]


def test_prompt_of_a_single_call_has_no_cache_mark(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with thinking_server() as server:
        for name, value in environment("anthropic", server).items():
            monkeypatch.setenv(name, value)
        run_sync("Is it so? " * 2_000, Solo(), model=PROVIDERS["anthropic"][0])
    assert "cache_control" not in json.dumps(server.requests[0][1])


def thinker(thought: int) -> ScriptedModel:
    """Uses `thought` tokens for every reply, within what it is allowed."""

    def reply(request: ModelRequest) -> Scripted:
        room = request.max_tokens + request.thinking_tokens
        if thought >= room:
            return Scripted("", tokens_out=room, tokens_thought=room, finish_reason="length")
        return Scripted("Yes, in spring.", tokens_out=thought + 4, tokens_thought=thought)

    return ScriptedModel(reply, thinks="always")


SMALL_REPLY_TOKENS = 1_024
"""With the allowance of "low", too few for 6,000 tokens of thinking; enough once the allowance is doubled."""


@pytest.mark.parametrize("tokens", [*range(0, 12_000, 1_000), 20_000])
def test_thinking_allowance_is_reserved_within_every_limit(tokens: int) -> None:
    model = thinker(6_000)
    events: list[object] = []
    report = run_sync(
        TASK,
        Vote(votes=2, reply_tokens=SMALL_REPLY_TOKENS),
        model=model,
        limits=Limits(tokens=tokens),
        options=Options(observer=events.append),
    )
    spent = report.ledger.actual
    assert spent.tokens_in + spent.tokens_out <= tokens
    assert report.stop_reason in (
        StopReason.SETTLED,
        StopReason.EXHAUSTED_BUDGET,
        StopReason.FAILED,
        StopReason.INCONCLUSIVE,
    )


def test_doubled_thinking_request_is_a_second_attempt_with_its_own_digest() -> None:
    events: list[object] = []
    run_sync(TASK, Solo(reply_tokens=SMALL_REPLY_TOKENS), model=thinker(6_000), options=Options(observer=events.append))
    (started,) = [e for e in events if isinstance(e, SessionStarted)]
    assert (started.thinking, started.thinking_tokens) == ("low", {"S1": 4_096})
    (cut,) = [e for e in events if isinstance(e, ReplyRejected)]
    (done,) = [e for e in events if isinstance(e, CallCompleted)]
    assert (cut.attempt, cut.finish, cut.tokens_thought) == (1, "length", 5_120)
    assert (done.attempt, done.tokens_thought) == (2, 6_000)
    assert cut.digest != done.digest


def test_empty_cut_reply_of_a_model_not_known_to_think_gets_an_allowance_once() -> None:
    model = ScriptedModel(
        lambda request: (
            Scripted("Yes.")
            if request.thinking_tokens
            else Scripted("", tokens_out=REPLY_TOKENS, finish_reason="length")
        )
    )
    report = run_sync(TASK, Solo(), model=model)
    assert report.answer == "Yes."
    assert [request.thinking_tokens for request in model.requests] == [0, 2_048]


def test_reply_used_up_by_thinking_without_repairs_is_truncated() -> None:
    events: list[object] = []
    options = Options(repairs=0, observer=events.append)
    report = run_sync(TASK, Solo(reply_tokens=SMALL_REPLY_TOKENS), model=thinker(6_000), options=options)
    assert report.stop_reason is StopReason.FAILED
    assert not any(isinstance(event, CallFailed) for event in events)
    assert report.missing[0].reason.startswith("truncated: ")


def cap(body: dict[str, object]) -> object:
    """The cap on output tokens, in whichever provider's words."""
    config = body.get("generationConfig")
    max_tokens = config.get("maxOutputTokens") if isinstance(config, dict) else None
    return next(
        filter(
            None,
            (max_tokens, *(body.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))),
        )
    )


def prompt(body: dict[str, object]) -> object:
    return body.get("messages") or body.get("input") or body.get("contents")


def test_reply_of_an_unfinished_trace_is_truncated(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """So a reasoning model fails behind a server without a parser of its own: all room went into the trace."""
    with thinking_server() as server:
        server.trace = True
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "k-1")
        report = run_sync(TASK, Solo(), model="openai-chat:our-own-r1")
    assert report.answer is None
    assert len(server.requests) == 2
    assert report.missing[0].reason.startswith("truncated: ")
    assert [call.kind.value for call in report.failed_calls] == ["truncated"]


def test_model_not_known_to_think_gets_a_larger_token_limit_on_the_second_attempt(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    with thinking_server(hidden=5_000) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        monkeypatch.setenv("GEMINI_API_KEY", "k-1")
        report = run_sync(TASK, Solo(), model="google:gemini-2.0-flash")
    assert [cap(body) for _, body in server.requests] == [REPLY_TOKENS, REPLY_TOKENS + 2_048]
    assert report.answer is not None


@pytest.mark.parametrize(("tokens", "at_least"), [(45_000, 2), (70_000, 3)])
def test_doubled_thinking_request_is_funded_within_the_token_limit(tokens: int, at_least: int) -> None:
    report = run_sync(
        TASK, Vote(votes=3, reply_tokens=SMALL_REPLY_TOKENS), model=thinker(6_000), limits=Limits(tokens=tokens)
    )
    assert report.replied >= at_least
    assert report.ledger.actual.tokens_in + report.ledger.actual.tokens_out <= tokens


def test_closing_call_uses_its_reserve_for_a_second_attempt() -> None:
    report = run_sync(TASK, Solo(reply_tokens=SMALL_REPLY_TOKENS), model=thinker(6_000), limits=Limits(calls=2))
    assert report.answer == "Yes, in spring."
    assert report.ledger.actual.requests == 2


def test_thinking_reported_apart_from_the_output_is_added_to_it(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with thinking_server(hidden=1_400) as server:
        server.apart = True
        report = run("openai chat", server, monkeypatch)
    spent = report.ledger.actual
    assert (spent.tokens_thought, spent.tokens_out) == (1_400, 1_417)
