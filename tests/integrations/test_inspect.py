"""The Inspect solver in real evals on Inspect's own mock model, their logs read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, EvalSample, read_eval_log_async
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import match
from inspect_ai.solver import Solver, system_message

import consilience
from consilience.domain.messages import Source
from consilience.integrations.inspect_ai import REPORT, Evaluated, deliberation
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.baselines import Solo, Vote
from consilience.testing import ScriptedModel
from kit.contained import contained

VOTE = Vote(votes=3, answer_pattern="yes|no")
SAMPLES = [Sample(input="Is water wet?", target="yes"), Sample(input="Is ice wet?", target="no")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    with contained():
        yield


def mock(reply: Any) -> Any:
    """Inspect's mock model, answering by a function of the last message and the configuration."""

    def output(messages: list[ChatMessage], tools: object, choice: object, config: GenerateConfig) -> ModelOutput:
        text = reply(messages[-1].text, config)
        output = text if isinstance(text, ModelOutput) else ModelOutput.from_content(model="mock", content=text)
        output.usage = ModelUsage(input_tokens=10, output_tokens=2, total_tokens=17, input_tokens_cache_read=5)
        return output

    return get_model("mockllm/model", custom_outputs=output)


async def run(
    tmp_path: Path, solver: Solver | list[Solver], model: Any, *, dataset: list[Sample] = SAMPLES, **options: Any
) -> EvalLog:
    """An eval of two samples, or of others; the log as it stands on the disk."""
    logs = await eval_async(
        Task(dataset=dataset, solver=solver, scorer=match(location="any")),
        model=model,
        log_dir=str(tmp_path / "logs"),
        **options,
    )
    return await read_eval_log_async(logs[0].location, resolve_attachments=True)


def samples(log: EvalLog) -> list[EvalSample]:
    assert log.samples is not None
    return sorted(log.samples, key=lambda sample: sample.id)


def wet(text: str, config: GenerateConfig) -> str:
    return "no" if "ice" in text else "yes"


async def test_solver_deliberates_with_the_model_under_evaluation(tmp_path: Path, store: SqliteStore) -> None:
    log = await run(tmp_path, deliberation(VOTE, store=store), mock(wet))
    assert log.status == "success"
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert [sample.output.completion for sample in samples(log)] == ["yes", "no"]
    (step,) = log.plan.steps
    assert (step.solver, step.params) == (
        "consilience/deliberation",
        {"protocol": "vote", "settings": {"votes": 3, "answer_pattern": "yes|no"}},
    )
    for sample in samples(log):
        report = consilience.VoteReport.model_validate(sample.store[REPORT])
        assert report.task == sample.input
        assert {agent.model for agent in report.agents} == {"inspect:mockllm/model"}
        assert (report.ledger.actual.tokens_in, report.ledger.actual.tokens_out) == (3 * 15, 3 * 2)
        assert report.ledger.actual.tokens_cached == 3 * 5
        assert (await consilience.replay(report.session, store=store)).digest() == report.digest()


async def test_inspect_log_contains_usage_and_every_request(tmp_path: Path, store: SqliteStore) -> None:
    log = await run(tmp_path, deliberation(VOTE, store=store), mock(wet))
    usage = log.stats.model_usage["mockllm/model"]
    assert (usage.input_tokens, usage.output_tokens, usage.input_tokens_cache_read) == (
        2 * 3 * 10,
        2 * 3 * 2,
        2 * 3 * 5,
    )
    for sample in samples(log):
        requests = [event for event in sample.events if event.event == "model"]
        assert len(requests) == 3
        assert all(sample.input in event.input[-1].text for event in requests)
        assert len({event.config.seed for event in requests}) == 3, "every call has a seed of its own"


async def test_typed_replies_are_requested_in_the_prompt(tmp_path: Path, store: SqliteStore) -> None:
    seen: list[str] = []

    def reply(text: str, config: GenerateConfig) -> str:
        seen.append(text)
        return json.dumps({"points": [], "text": wet(text, config)})

    protocol = consilience.Emergence(children=2, max_rounds=1)
    log = await run(tmp_path, deliberation(protocol, store=store), mock(reply))
    assert [sample.output.completion for sample in samples(log)] == ["yes", "no"]
    assert all("It must follow this JSON schema" in text for text in seen)
    assert len(seen) == 2 * protocol.estimate().max


async def test_models_other_than_the_one_under_evaluation_take_seats(tmp_path: Path, store: SqliteStore) -> None:
    ours = ScriptedModel(lambda request: "no")
    models: Any = {"V1": Evaluated(), "V2": Evaluated(role="critic"), "V3": ours}
    roles = {"critic": mock(lambda text, config: "no")}
    log = await run(tmp_path, deliberation(VOTE, model=models, store=store), mock(wet), model_roles=roles)
    assert [sample.output.completion for sample in samples(log)] == ["no", "no"]
    assert len(ours.requests) == 2
    assert log.stats.model_usage["mockllm/model"].output_tokens == 2 * 2 * 2, "ours is in the report's ledger only"


async def test_task_contains_messages_of_earlier_solvers(tmp_path: Path, store: SqliteStore) -> None:
    log = await run(
        tmp_path, [system_message("Ice is frozen."), deliberation(Solo(), store=store)], mock(lambda text, config: text)
    )
    assert "System: Ice is frozen.\n\nUser: Is water wet?" in samples(log)[0].output.completion
    own = deliberation(
        Solo(),
        task=lambda state: f"Briefly: {state.input_text}",
        sources=lambda state: [Source("Water is wet, they say.")],
        store=store,
    )
    first = samples(await run(tmp_path, own, mock(lambda text, config: text)))[0]
    assert "Briefly: Is water wet?" in first.output.completion
    assert first.store[REPORT]["task"] == "Briefly: Is water wet?"
    assert "Water is wet, they say." in first.output.completion


async def test_task_of_a_conversation_has_roles(tmp_path: Path, store: SqliteStore) -> None:
    talk: list[ChatMessage] = [
        ChatMessageSystem(content="Be brief."),
        ChatMessageUser(content="Is ice wet?"),
        ChatMessageAssistant(content=[ContentReasoning(reasoning="It melts."), ContentText(text="Sometimes.")]),
        ChatMessageUser(content=[ContentText(text="And"), ContentText(text="now?")]),
    ]
    log = await run(tmp_path, deliberation(Solo(), store=store), mock(wet), dataset=[Sample(input=talk, target="yes")])
    assert samples(log)[0].store[REPORT]["task"] == (
        "System: Be brief.\n\nUser: Is ice wet?\n\nAssistant: Sometimes.\n\nUser: And\nnow?"
    )


async def test_sample_with_an_image_is_an_error(tmp_path: Path, store: SqliteStore) -> None:
    shown = ContentImage(image="data:image/png;base64,iVBORw0KGgo=")
    asked: list[ChatMessage] = [
        ChatMessageSystem(content="Look."),
        ChatMessageUser(content=[ContentText(text="What is it?"), shown]),
    ]
    dataset = [Sample(input=asked, target="yes")]
    log = await run(tmp_path, deliberation(Solo(), store=store), mock(wet), dataset=dataset)
    assert log.status == "error"
    error = samples(log)[0].error
    assert error is not None
    for text in ("content of the type 'image'", "message 2 (user) of the sample", "task=…"):
        assert text in error.message
    assert store.sessions() == []
    own = deliberation(Solo(), task=lambda state: "Is a cat in it?", store=store)
    log = await run(tmp_path, own, mock(wet), dataset=dataset)
    assert samples(log)[0].store[REPORT]["task"] == "Is a cat in it?"


async def test_provider_outage_is_a_sample_error_not_a_wrong_answer(tmp_path: Path, store: SqliteStore) -> None:
    def reply(text: str, config: GenerateConfig) -> str:
        if "ice" in text:
            raise RuntimeError("the provider is down")
        return "yes"

    log = await run(tmp_path, deliberation(VOTE, store=store), mock(reply), fail_on_error=False)
    water, ice = samples(log)
    assert water.error is None
    assert water.scores is not None
    assert ice.error is not None
    assert "failed: V1: " in ice.error.message
    assert "the provider is down" in json.dumps(ice.store[REPORT]) + ice.error.message


async def test_refused_seat_is_missing_and_the_sample_continues(tmp_path: Path, store: SqliteStore) -> None:
    asked: list[int] = []

    def reply(text: str, config: GenerateConfig) -> str | ModelOutput:
        asked.append(1)
        if len(asked) == 1:
            return ModelOutput.from_content(model="mock", content="", stop_reason="content_filter", error="not that")
        return wet(text, config)

    log = await run(tmp_path, deliberation(VOTE, store=store), mock(reply), max_samples=1)
    first = consilience.VoteReport.model_validate(samples(log)[0].store[REPORT])
    assert first.replied == 2
    assert "not that" in first.missing[0].reason
    assert first.answer == "yes"


async def test_inspect_limit_ends_the_sample(tmp_path: Path, store: SqliteStore) -> None:
    log = await run(tmp_path, deliberation(Vote(votes=8), store=store), mock(wet), token_limit=40)
    for sample in samples(log):
        assert sample.limit is not None
        assert sample.limit.type == "token"
        assert sample.error is None
    assert all(store.holder(session) is None for session in store.sessions())


async def test_cut_reply_is_marked_as_cut(tmp_path: Path, store: SqliteStore) -> None:
    def reply(text: str, config: GenerateConfig) -> ModelOutput:
        assert config.max_tokens == 64 + 4_096, "with room for thinking"
        return ModelOutput.from_content(model="mock", content="It is", stop_reason="max_tokens")

    log = await run(tmp_path, deliberation(Solo(reply_tokens=64), store=store), mock(reply))
    report = samples(log)[0].store[REPORT]
    assert report["cut_replies"]
