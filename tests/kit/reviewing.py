"""Agents of a review, for tests: what reviewers find, judges say and the lead writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.domain.messages import Source
from consilience.models.port import ModelRequest

CODE = """def first(values):
    return values[1]


def save(path, text):
    open(path, "w").write(text)
"""
"""A wrong bound on line 2, a file that is not closed on line 6."""

DIFF = """--- a/first.py
+++ b/first.py
@@ -1,2 +1,2 @@
 def first(values):
-    return values[0]
+    return values[1]
"""

SOURCES = (Source(CODE, "first.py"),)


def finding(quotation: str = "return values[1]", line: int = 2, document: str = "S1", **fields: Any) -> dict[str, Any]:
    """A finding as a reviewer types it."""
    return {
        "severity": "major",
        "category": "bounds",
        "document": document,
        "line": line,
        "quotation": quotation,
        "claim": f"{quotation!r} is wrong.",
        "consequence": "The second value is returned.",
        "check": {"kind": "read", "text": f"line {line}"},
        "recommendation": "Fix it.",
        "replacement": None,
        **fields,
    }


UNCLOSED = finding('open(path, "w").write(text)', 6, category="resources")


def documents_of(request: ModelRequest) -> list[str]:
    """The ids of the documents that a call was shown."""
    return list(dict.fromkeys(re.findall(r"<quote \w+ from document (S\d+)", request.text)))


def labels_of(request: ModelRequest) -> list[str]:
    return re.findall(r"<quote \w+ from (F\d+)>", request.text)


Of = Callable[[ModelRequest], Any]


def review(
    findings: Sequence[Mapping[str, Any]] = (), vote: str = "approve", text: str = "", **fields: Any
) -> Callable[[ModelRequest], str]:
    """A review that reads every document."""

    def reply(request: ModelRequest) -> str:
        read = [{"document": id, "remark": "read line by line"} for id in documents_of(request)]
        body = {"read": read, "findings": list(findings), "vote": vote, "confidence": 0.75, "reason": "so"}
        return json.dumps({**body, **({"text": text} if text else {}), **fields})

    return reply


def judgement(verdict: str = "confirm") -> Callable[[ModelRequest], str]:
    return lambda request: json.dumps(
        {"verdicts": [{"finding": label, "reason": "read", "verdict": verdict} for label in labels_of(request)]}
    )


def closing(
    text: str = "Fix first.py:2 first.", duplicates: Sequence[Sequence[str]] = ()
) -> Callable[[ModelRequest], str]:
    return lambda request: json.dumps(
        {
            "duplicates": [list(group) for group in duplicates],
            "claims": [{"text": "It fails.", "ids": [*labels_of(request)[:1], "F99"]}],
            "text": text,
        }
    )


Script = Callable[[ModelRequest], Any]


def script(by: Mapping[str, Script], judge: Script | None = None, close: Script | None = None) -> Script:
    """Replies by agent, or by `AGENT@ITERATION`; a missing agent finds nothing."""

    def reply(request: ModelRequest) -> Any:
        if request.key == "closing":
            return (close or closing())(request)
        if request.key.startswith("judge/"):
            return (judge or judgement())(request)
        iteration = request.key.partition("/")[0].removeprefix("review-")
        chosen = by.get(f"{request.agent}@{iteration}") or by.get(request.agent) or review()
        return chosen(request)

    return reply
