"""Reports of `review` written by hand, for tests of what is made from them."""

from __future__ import annotations

from typing import Any

from consilience.domain.agents import Agent
from consilience.domain.findings import (
    BallotCast,
    DiffHunk,
    DroppedFinding,
    Finding,
    Identity,
    JudgedBy,
    PartRead,
    Verification,
)
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import MissingAgent
from consilience.domain.topology import Topology
from consilience.domain.usage import LedgerReport, UsageTotals
from consilience.protocols.review.findings import ReviewData

FIX = """\
--- a/src/pager.py
+++ b/src/pager.py
@@ -9,5 +9,5 @@
 def page(items, n):
     size = 10
-    last = n * size + 1
+    last = n * size
     return items[last - size:last]
 
"""


def finding(**fields: Any) -> Finding:
    """A finding on line 11 of `src/pager.py`, with a fix; `given` replaces fields."""
    common: dict[str, Any] = {
        "id": "F1",
        "by": ("red",),
        "severity": "major",
        "category": "bounds",
        "file": "src/pager.py",
        "first_line": 11,
        "last_line": 11,
        "source": "S1",
        "source_line": 7,
        "quotation": "last = n * size + 1",
        "claim": "Every page after the first repeats an item.",
        "consequence": "Readers see an item twice.",
        "check": Verification(kind="run", text="pytest tests/test_pager.py -k second"),
        "recommendation": "Do not add 1.",
        "fix": FIX,
        "status": "confirmed",
        "fingerprint": "9f2c",
    }
    return Finding(**{**common, **fields})


def dropped(**fields: Any) -> DroppedFinding:
    common: dict[str, Any] = {
        "reason": "baseline",
        "by": "blue",
        "severity": "minor",
        "file": "src/pager.py",
        "line": 3,
        "quotation": "import os",
        "claim": "An import is unused.",
        "category": "unused import",
        "fingerprint": "77aa",
        "identities": (Identity(file="src/pager.py", category="unused import", line=3, lines=1, digest="77aa"),),
    }
    return DroppedFinding(**{**common, **fields})


def review(*findings: Finding, **fields: Any) -> ReviewData:
    """A review of a diff that shows lines 8 to 14 of `src/pager.py`."""
    common: dict[str, Any] = {
        "session": "r1",
        "task": "Review the changes.",
        "settings": {},
        "seed": 0,
        "agents": (Agent(id="red", role="reviewer", model="m"), Agent(id="blue", role="reviewer", model="m")),
        "topology": Topology(kind="panel", agents=("red", "blue")),
        "stop_reason": StopReason.CONVERGED,
        "replied": 2,
        "quorum_met": True,
        "steps": 1,
        "answer": "One page repeats an item.",
        "ledger": LedgerReport(estimated=Estimate(min=5, max=15), actual=UsageTotals(calls=5)),
        "findings": findings,
        "parts": (PartRead(index=1, documents=("S1", "S2"), tokens=900, readers=("red", "blue")),),
        "hunks": (DiffHunk(file="src/pager.py", old=(8, 13), new=(8, 14)),),
    }
    return ReviewData(**{**common, **fields})


def rich_review() -> ReviewData:
    """A review that has something of everything: hostile text, odd paths, disputes, removed lines, drops, and a partial run."""
    return review(
        finding(),
        finding(
            id="F2",
            severity="critical",
            category="SQL injection!",
            file="src/näme with #hash%.py",
            first_line=3,
            last_line=5,
            claim="@octocat see [this](https://example.com/x) and #12 {0}",
            fix="",
            status="disputed",
            judgements=(JudgedBy(agent="blue", verdict="refute", reason="The caller checks it."),),
        ),
        finding(id="F3", severity="minor", side="old", first_line=9, last_line=10, category="lost check", fix=""),
        finding(
            id="F4", severity="minor", category="", fingerprint="", check=Verification(kind="discuss", text=""), fix=""
        ),
        dropped=(
            dropped(),
            dropped(reason="ignored", detail="generated code", fingerprint="", category="bounds"),
            dropped(reason="false quotation", file="nowhere.py"),
            dropped(reason="over the limit"),
        ),
        ballots=(
            BallotCast(agent="red", part=1, iteration=1, vote="changes", confidence=0.8),
            BallotCast(agent="blue", part=1, iteration=1, vote="approve", confidence=0.6),
        ),
        parts=(
            PartRead(index=1, documents=("S1", "S2"), tokens=900, readers=("red", "blue")),
            PartRead(index=2, documents=("S3:1-200",), tokens=1200, names=("src/long.py:1-200",)),
        ),
        left_out=("logo.png: not a text",),
        warnings=("blue's ticket was offered again",),
        missing=(MissingAgent(agent="blue", since="review-1/part-2/blue", reason="timed out"),),
        stop_reason=StopReason.EXHAUSTED_TIME,
    )
