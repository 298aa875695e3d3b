"""One call: what every protocol has to beat. Structured, it is asked for all that one call can be asked for."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from consilience.domain.messages import FreeText
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.positions import LEVELS
from consilience.domain.positions import Confidence as Level
from consilience.domain.report import Confidence
from consilience.engine.answers import extract
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols.baselines.report import SoloReport, Weighed
from consilience.protocols.baselines.seats import Baseline, stop_of

Few = Annotated[list[str], Field(json_schema_extra={"maxItems": 4})]


class StructuredReply(BaseModel):
    """Lists first, the answer last, which alone is required."""

    options: Few = Field(default_factory=list)
    cruxes: Few = Field(default_factory=list)
    would_change: Few = Field(default_factory=list)
    against: str = ""
    confidence: Level = "unsure"
    text: FreeText


class Solo(Baseline):
    """One agent, one call."""

    name: ClassVar[str] = "solo"
    summary: ClassVar[str] = "one call, the baseline that a deliberation has to beat"
    version: ClassVar[int] = 2  # 1 took a default for a declared confidence
    report: ClassVar[type[SoloReport]] = SoloReport

    structured: Annotated[
        bool, Field(description="ask for options, cruxes, what would change the answer and what speaks against it")
    ] = False

    @property
    def ids(self) -> tuple[str, ...]:
        return ("S1",)

    def estimate(self) -> Estimate:
        return Estimate(min=1, max=1)

    def seat(self, n: int) -> str | None:
        """One seat, which no surplus source wraps onto."""
        return "S1" if n == 1 else None

    async def run(self, session: Session) -> SoloReport:
        if session.limits.steps == 0:
            return await session.report(SoloReport, first=(), stop_reason=StopReason.EXHAUSTED_STEPS)
        reply = await self._ask(session)
        answer = reply.text if isinstance(reply, Reply) else None
        value = reply.value if isinstance(reply, Reply) and isinstance(reply.value, StructuredReply) else None
        if value and value.model_fields_set == {"text"}:
            session.warn("the answer came in words alone: what it weighed, and how sure it is, was not said")
        position = extract(self.answer_pattern, answer) if self.answer_pattern and answer else None
        if self.answer_pattern and answer and position is None:
            session.warn("the answer holds nothing that the answer_pattern looks for")
        return await session.report(
            SoloReport,
            first=[reply],
            stop_reason=stop_of(session, [reply] if isinstance(reply, Failure) else [], 1),
            confidence=_confidence(value),
            steps=1,
            answer=answer,
            closing="ordinary" if answer is not None else None,
            position=position,
            weighed=_weighed(value) if value else None,
        )

    async def _ask(self, session: Session) -> Reply[str] | Reply[StructuredReply] | Failure:
        async with session.phase("answer", 1):
            if self.structured:
                prompt = self.prompt(session, "structured", "S1")
                return await session.ask(
                    "S1", prompt, key="answer/S1", returns=StructuredReply, closing=True, max_tokens=self.reply_tokens
                )
            prompt = self.prompt(session, "answer", "S1")
            return await session.ask("S1", prompt, key="answer/S1", closing=True, max_tokens=self.reply_tokens)


def _confidence(value: StructuredReply | None) -> Confidence:
    """What it declared itself; the default of a field that was left out is nobody's word."""
    if value is None or "confidence" not in value.model_fields_set:
        return Confidence()
    return Confidence(level=LEVELS[value.confidence], kind="declared")


def _weighed(value: StructuredReply) -> Weighed:
    def said(texts: list[str]) -> tuple[str, ...]:
        return tuple(text.strip() for text in texts[:4] if text.strip())

    return Weighed(
        options=said(value.options),
        cruxes=said(value.cruxes),
        would_change=said(value.would_change),
        against=value.against.strip(),
    )
