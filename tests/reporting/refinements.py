"""Runs of `refinement` to look at: a scripted model that writes, helps and judges as a real one would, only sooner."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from consilience.domain.outcome import Limits
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.refinement import Refinement
from consilience.reporting.record import SessionRecord, read_record
from consilience.testing import Scripted, ScriptedModel
from kit import runner
from kit.cases import blog

Script = Callable[[ModelRequest], Any]

ISSUES = ("It says “much cheaper” without a figure.", "The example comes too late.")
SURE = ("unsure", "fairly sure", "certain")


def editing(request: ModelRequest, words: str = "", quality: tuple[int, ...] = (5, 8, 6)) -> Any:
    """Seven sentences a draft, one of them new in every pass. The critic finds fault with all parts first, with the first one
    again after that, and gives the passes these points; `words` stand in whatever anybody writes."""
    fields: Any = request.returns.model_fields if request.returns and issubclass(request.returns, BaseModel) else {}
    step = int(request.key.partition("/")[0].rpartition("-")[2]) if request.key.startswith("pass-") else 0
    if any(name.startswith("part_") for name in fields):
        return judgement(request, step, quality[min(step, len(quality)) - 1], words)
    name = request.agent
    text = " ".join(f"Sentence {n} of the {name} stays as it is." for n in range(1, 7))
    text += f" In pass {step} the {name} added figure {step}. {words}"
    if not fields:
        return Scripted(text.strip(), tokens_in=100, tokens_out=50)
    values: dict[str, Any] = {"text": (text if "/draft/" in request.key else f"{text} Revised with help.").strip()}
    if "confidence" in fields:
        values["confidence"] = SURE[len(name) % 3]
    if "claims" in fields:
        values = {"claims": [], "text": f"# Batteries\n\n{text}\n\nThe whole was put together in pass {step}. {words}"}
    return Scripted(request.returns(**values), tokens_in=200, tokens_out=90)  # type: ignore[misc]


def judgement(request: ModelRequest, step: int, points: int, words: str = "") -> Scripted:
    assert request.returns is not None
    parts: dict[str, Any] = {}
    for n, (name, field) in enumerate(request.returns.model_fields.items()):  # type: ignore[attr-defined]
        faulty = step == 1 or n == 0
        parts[field.alias or name] = {
            "issues": [f"{issue} {words}".strip() for issue in ISSUES[: 2 - n % 2]] if faulty else [],
            "coherence": min(10, points + 1),
            "accuracy": points,
            "depth": max(0, points - 1),
            "overall": points if n else max(0, points - 1),
        }
    return Scripted(json.dumps(parts), tokens_in=900, tokens_out=80)


async def refined(
    store: SqliteStore,
    protocol: Refinement | None = None,
    *,
    reply: Script = editing,
    task: str = "A post about home batteries",
    session: str = "s",
    limits: Limits | None = None,
) -> SessionRecord:
    """A finished run, read back."""
    await runner.start(
        task,
        protocol or blog(),
        models=ScriptedModel(reply),
        store=store,
        session=session,
        limits=limits or Limits(),
    )
    return read_record(store, session)
