"""What a closing call returns beside its text reaches the header of the report."""

from __future__ import annotations

import json
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from consilience.domain.messages import Source
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import Against, Objection, Report
from consilience.domain.topology import Topology, star
from consilience.engine.prompt import Prompt, schema_for
from consilience.engine.protocol import Protocol
from consilience.engine.session import Session
from consilience.engine.work import Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols._common.conclusion import MAX_CONDITIONS, Conclusion, conclusion_fields
from kit import runner

FIRST, SECOND, ROOT = "A1", "A2", "R"


class Graded(BaseModel):
    grade: Annotated[int, Field(description="1 to 5")] = 3


class GradedConclusion(Conclusion, Graded):
    """A conclusion with a field of its protocol."""


class Closing(Protocol):
    """Two agents speak, a third concludes."""

    name: ClassVar[str] = "closing"
    summary: ClassVar[str] = "for tests"
    report: ClassVar[type[Report]] = Report
    templates = {"instructions": "Answer."}

    def topology(self) -> Topology:
        return star(ROOT, (FIRST, SECOND))

    def estimate(self) -> Estimate:
        return Estimate(min=3, max=3)

    async def run(self, session: Session) -> Report:
        replies = await session.gather(
            [session.ask(id, Prompt("speak"), key=f"say/{id}", audience=(ROOT,)) for id in (FIRST, SECOND)]
        )
        spoken = [reply for reply in replies if isinstance(reply, Reply)]
        quotes = tuple(session.quote(reply, label) for reply, label in zip(spoken, "AB", strict=False))
        closing = await session.ask(ROOT, Prompt("close", quotes), key="close", returns=GradedConclusion, closing=True)
        answer = closing if isinstance(closing, Reply) else None
        return await session.report(
            Report,
            first=replies,
            stop_reason=StopReason.SETTLED,
            answer=answer.text if answer else None,
            **conclusion_fields(session, answer),
        )


async def close(conclusion: dict[str, object], *, first: str = "It is cold.", document: str = "") -> Report:
    def reply(request: ModelRequest) -> str:
        if request.key == "close":
            return json.dumps({"text": "So be it.", **conclusion})
        return first if request.agent == FIRST else "It is warm."

    models = dict.fromkeys((FIRST, SECOND, ROOT), ScriptedModel(reply))
    sources = [Source(text=document)] if document else []
    return await runner.start("Which?", Closing(), models=models, store=SqliteStore(":memory:"), sources=sources)


async def test_report_header_has_against_would_change_and_unknown() -> None:
    report = await close(
        {
            "claims": [{"text": "Heat rises.", "ids": ["B"]}],
            "against": [{"text": "It is cold, says the first: outside only.", "ids": ["A", "Z"]}],
            "would_change": ["Snow in July"],
            "unknown": ["The wind"],
        }
    )
    assert report.against == (Against(text="It is cold, says the first: outside only.", ids=("say/A1",)),)
    assert (report.would_change, report.unknown) == (("Snow in July",), ("The wind",))
    assert [claim.ids for claim in report.claims] == [("say/A2",)]


async def test_conclusion_drops_empty_entries_before_the_cap() -> None:
    conditions = [
        "None.",
        "",
        "A",
        "A1.flag2",
        "1ef433c8",
        "unknown",
        *(f"condition {n}" for n in range(MAX_CONDITIONS + 1)),
    ]
    report = await close({"would_change": conditions, "unknown": ["n/a", "Inflation"], "against": [{"text": "none"}]})
    assert report.would_change == tuple(f"condition {n}" for n in range(MAX_CONDITIONS))
    assert (report.unknown, report.against) == (("Inflation",), ())


def test_conclusion_subclass_keeps_text_last_and_the_only_required_field() -> None:
    schema, _ = schema_for(GradedConclusion, (("A", "message"),))
    assert schema is not None
    assert list(schema["properties"]) == ["grade", "claims", "against", "would_change", "unknown", "text"]
    assert GradedConclusion(text="So be it.").claims == []


async def test_claim_whose_cited_text_quotes_a_document_is_not_from_memory() -> None:
    claims = [{"text": "It is cold.", "ids": ["A"]}, {"text": "It is warm.", "ids": ["B"]}]
    report = await close(
        {"claims": claims}, first='It is "minus four degrees" [S1:1].', document="It was minus four degrees."
    )
    assert [claim.from_memory for claim in report.claims] == [False, True]


async def test_claim_whose_cited_quotation_is_false_is_from_memory() -> None:
    claims = [{"text": "It is cold.", "ids": ["A"]}]
    report = await close({"claims": claims}, first='It is "minus nine" [S1:1].', document="It was minus four degrees.")
    assert [claim.from_memory for claim in report.claims] == [True]


async def test_report_digest_ignores_fields_at_their_default() -> None:
    report = (await close({})).model_copy(
        update={"objections": (Objection(id="o", agent=FIRST, to=SECOND, text="Why?", read=True),)}
    )
    data = report.model_dump(mode="json", exclude_defaults=True)
    assert not data.keys() & {"against", "would_change", "unknown"}
    assert not data["objections"][0].keys() & {"fate", "how", "ruling"}
    met = report.objections[0].model_copy(update={"fate": "yielded", "how": "I keep it out."})
    assert report.model_copy(update={"objections": (met,)}).digest() != report.digest()
