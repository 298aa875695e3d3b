"""What a Markdown file says of itself to programs: a block of YAML before the text."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from consilience.reporting.record import Record
from consilience.reporting.unfinished import state_of

# What a JSON string may hold as it is, and YAML or a line reader would not take so.
_NOT_PLAIN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


def front_matter(record: Record) -> str:
    """Between lines of three hyphens. Every string is quoted as JSON is, which YAML reads alike."""
    lines = [f"{name}: {scalar(value)}" for name, value in _values(record).items()]
    return "---\n" + "\n".join(lines) + "\n---\n"


def scalar(value: object) -> str:
    """A string, number, truth value, nothing, or a list of them, in YAML's flow style."""
    return _NOT_PLAIN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def _values(record: Record) -> dict[str, object]:
    course, report = record.course, record.report
    started = course.started
    created = datetime.fromtimestamp(record.created, UTC) if record.created is not None else None
    spent = report.ledger.actual if report else None
    return {
        "session": record.session,
        "protocol": started.protocol if started else None,
        "created": created.isoformat(timespec="seconds") if created else None,
        "task": record.text(started.task) if started else None,
        "state": state_of(course, record.holder),
        "stop_reason": report.stop_reason.value if report else None,
        "models": list(dict.fromkeys(agent.model for agent in course.agents)),
        "agents": len(course.agents),
        "calls": spent.calls if spent else course.made,
        "tokens_in": spent.tokens_in if spent else course.tokens_in,
        "tokens_out": spent.tokens_out if spent else course.tokens_out,
        "money_usd": spent.cost if spent else course.cost,
        "seconds": spent.seconds if spent else course.seconds,
        "parent": started.parent if started else None,
    }
