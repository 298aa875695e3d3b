"""Questions to somebody outside of this process, as they are recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from consilience.domain.events import CallAwaited, text_id
from consilience.engine.ports import PendingAnswer, seconds_since_epoch
from consilience.engine.prompt import Rendered
from consilience.engine.work import Ask
from consilience.models.parsing import prose_field


def question_to(
    answer: PendingAnswer, ask: Ask[Any], attempt: int, rendered: Rendered, schema: Mapping[str, object] | None
) -> tuple[CallAwaited, tuple[str, ...]]:
    """Return the event of a question with all that is needed to answer it later, and the texts that it names besides its prompt."""
    form = json.dumps(schema, ensure_ascii=False) if schema else ""
    question = CallAwaited(
        key=ask.key,
        agent=ask.agent,
        attempt=attempt,
        prompt=rendered.parts.id,
        quoted=tuple(map(text_id, rendered.quoted)),
        form=text_id(form) if form else "",
        prose=prose_field(ask.returns) if schema and issubclass(ask.returns, BaseModel) else "",
        asked_at=seconds_since_epoch(),
        ticket=answer.ticket.id if answer.ticket else "",
    )
    return question, (*rendered.quoted, *filter(None, [form]))
