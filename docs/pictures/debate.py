"""A debate whose replies were written by hand, for the pictures of a debate: four agents, two questions that divide them.

It is played by the program as it is now, with the rules of `kit.debating` for what has no words here.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from consilience import Debate, Source, deliberate
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.debating import Answer, Debaters, labels, moves_of, number_of, question_of

TASK = "Which should carry our order events from 2027 on: Postgres queues or Kafka?"
OPTIONS = ("Postgres queues", "Kafka")
SOURCES = (
    Source(
        name="load_test.md",
        text="# Load test, March\n\nOne primary, 16 cores, queue table with SKIP LOCKED.\n"
        "Sustained 9,400 messages a second, p99 180 ms.\n"
        "At 12,000 a second autovacuum stalled for 38 minutes and p99 rose to 2.1 s.\nThe test ran for six hours.\n",
    ),
    Source(
        name="costs.md",
        text="# Messaging, yearly cost\n\nKafka: $212,000, of which $140,000 is staff time.\n"
        "Postgres queues: $60,000 for a larger primary.\n"
        "Support for our Kafka version ends in March 2027.\nPeak last year: 11,800 order events a second, on 29 November.\n",
    ),
)
QUESTIONS = (
    "Can one Postgres primary hold 12,000 events a second for 72 hours at p99 under 250 ms?",
    "Do refunds have to stay in order for each customer across both regions?",
)
CLAIMS = (
    "Postgres carries our load with one system less to run.",
    "A queue table fails in the one week that pays for the year.",
    "The measured load is within reach; staff time is the larger cost.",
    "Refunds out of order reach customers before they reach us.",
)
SAID: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 1): (
        "We run Postgres well and Kafka badly. Two people carry the pager for Kafka alone, and one of them leaves in June.",
        'The test held "Sustained 9,400 messages a second, p99 180 ms" [S1:4] on a machine two sizes below what we may buy.',
        "Partition the table by hour and vacuum has nothing to do at the peak: old partitions are dropped, not cleaned.",
        "Replay the peak day for 72 hours and I accept what it shows.",
    ),
    (2, 1): (
        'Our own test says it: "At 12,000 a second autovacuum stalled for 38 minutes" [S1:5]. The peak was 11,800.',
        "Six hours is no peak week. Bloat grows with the days, and nobody has measured the third one.",
        "Dropping partitions moves the lock to the drop. Show me a run of three days with the consumers that we have.",
        "We priced the outage that we had, not the two engineers whom we cannot hire.",
    ),
    (3, 1): (
        'What is known: a peak of "11,800 order events a second" [S2:6], and a test that broke at 12,000 after holding 9,400.',
        "Both sides read the same six hours. What decides is whether a larger machine moves the knee, and nobody has tried.",
        'The cost is known: "$140,000 is staff time" [S2:3], and it stays for as long as the refunds stay on Kafka.',
        "A load test of two weeks answers this for about $9,000.",
    ),
    (4, 1): (
        "Support rings when orders lag by more than a minute. At the stall they would have lagged by half an hour.",
        "A customer does not care which system is late. What do we do in the hour in which it is?",
        "No plan here says how we get back after the cut-over.",
        "With a way back I could live with either.",
    ),
    (1, 2): (
        "Orders are independent of one another. What needs an order is one customer's refunds, and those are four a second.",
        "One region writes refunds today. The second reads them, and a reader needs no order of its own.",
        "Keep refunds where they are, then, and move the other 99.9 %.",
    ),
    (2, 2): (
        "Both regions have issued refunds since the outage in May: failover turned the reader into a writer.",
        "Two writers without an order pay one refund twice. That has happened nine times, and we found four of them late.",
        "Kafka gives us that order for nothing. In Postgres we would write it ourselves, across regions.",
    ),
    (3, 2): (
        "The nine double refunds are counted; how many would have been prevented by an order is not.",
        'Support ends: "our Kafka version ends in March 2027" [S2:5]. To stay is work as well.',
        "Count the races of 2026 between the regions. That is a query, not an opinion.",
    ),
    (4, 2): (
        "A refund that is paid twice is taken back from the customer a week later. That is the complaint that I read most.",
        "If order holds only within a region, say so to support, since they promise more today.",
        "I would give up refunds on Kafka if the count of races is below a dozen.",
    ),
}
WHY = (
    "without that throughput there is nothing left to argue for",
    "if it holds for three days, my objection is gone",
    "the throughput is what my side rests on",
    "I want a way back, whatever it holds",
    "without such an order no broker is needed for refunds",
    "a refund that is paid twice is the dearest message we have",
    "the count of races is the only figure that is missing",
    "what comes out of order, customers see first",
)
COMMITTED = (
    "Yes: partitioned by hour and on the larger machine it holds, and the replay of the peak day will show it.",
    "No: it stalled at 12,000 after six hours, and the third day is worse than the first.",
    "Yes, with the larger machine: the knee was at 9,400 on half of its cores.",
    "No: half an hour without orders is what the test showed, and nobody has shown less.",
    "No: one region can own the refunds, and four a second need no broker.",
    "Yes: since May both regions write, and nine refunds were paid twice.",
    "No, unless the count of races says otherwise.",
    "Yes: customers see what comes out of order before we do.",
)
SETTLES = (
    (
        ("p99 in a replay of the peak day", "under 250 ms for 72 hours", "2027-02-15"),
        ("longest stall of autovacuum in that replay", "under 60 s", "2027-02-15"),
    ),
    (
        ("refund races between the regions in 2026", "fewer than 12", "2027-01-31"),
        ("refunds paid twice in 2026", "more than 9", "2027-01-31"),
    ),
)
"""By thread, for either side."""
CONTROL = "Were the first topics named in capital letters?"
MOVER = 3
"""The agent that ends undecided."""


class HandWritten(Debaters):
    """Debaters with something to say. Odd seats are for Postgres queues, even ones for Kafka."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[int, int], int] = {}

    def __call__(self, request: ModelRequest) -> str:
        kind = request.key.partition("/")[0]
        answer = {**self.answer(kind, request), **self._own(kind, request, number_of(request.agent))}
        known = (request.schema or {}).get("properties", {})
        return json.dumps({name: value for name, value in answer.items() if name in known})

    def _own(self, kind: str, request: ModelRequest, n: int) -> Answer:
        thread = 2 if request.key.endswith("thread-2") or "thread-2/" in request.key else 1
        is_for = n % 2 == 1
        side = ("YES" if is_for else "NO") if thread == 1 else ("NO" if is_for else "YES")
        metric, threshold, deadline = SETTLES[thread - 1][n % 2 == 0]
        settles = {"metric": metric, "threshold": threshold, "deadline": deadline}
        both = {"p1": "YES" if is_for else "NO", "p2": "NO" if is_for else "YES"}
        on_questions = {"q1": "YES" if is_for else "NO", "q2": "NO" if is_for else "YES"}
        sure = "certain" if n == 2 else "fairly sure"
        match kind:
            case "opening":
                p2 = "NO" if n == 4 else both["p2"]
                return {
                    **both,
                    "p2": p2,
                    **settles,
                    "claim": CLAIMS[n - 1],
                    "confidence": sure,
                    "interests": ["peak", "staff"],
                }
            case "turn":
                return self._turn(request, n, thread)
            case "commit":
                words = {
                    "text": COMMITTED[4 * (thread - 1) + n - 1],
                    "why": WHY[4 * (thread - 1) + n - 1],
                    "side": side,
                    "confidence": sure,
                }
                return {**words, **settles, "gives_up_if": "NO" if side == "YES" else "YES"}
            case "falsify":
                return {**settles, "text": COMMITTED[4 * (thread - 1) + n - 1]}
            case "steelman":
                return {
                    "claim_represented": "The other side holds that what was measured is what will happen at the peak.",
                    "strongest_reason": "It has the only figures, and it would rather lose a year than a November.",
                    "falsifier_represented": f"{metric}: {threshold}",
                }
            case "grade":
                is_first = n == 4 and not self._said.setdefault((0, 0), 0)
                self._said[0, 0] = 1
                return {
                    "grade": "INCOMPLETE" if is_first else "ACCURATE",
                    "corrections": "I also fear that there is no way back." if is_first else "",
                    "text": "That is my case, but for the way back." if is_first else "That is my case, fairly put.",
                }
            case "flip":
                give_up = "NO" if side == "YES" else "YES"
                return {"side": side, "gives_up_if": give_up, "confidence": sure, "why": WHY[4 * (thread - 1) + n - 1]}
            case "crystallize":
                criteria = [f"{what}: {bound}, by {day}" for what, bound, day in SETTLES[thread - 1]]
                return {"kind": "causal", "control": CONTROL, "question": question_of(request), "criteria": criteria}
            case "relate":
                sketch = "If refunds need that order, they need Kafka, and half of the load stays where it is."
                return {
                    "relations": [
                        {"source": 2, "target": 1, "kind": "SUPPORTS", "sketch": sketch, "confidence": "certain"}
                    ]
                }
            case "confirm":
                return {"hold": [1]}
            case "synthesize":
                said = labels(request)[:1]
                common = [
                    {
                        "statement": "Support for today's Kafka version ends in March 2027: upgrade or leave.",
                        "kind": "factual",
                    },
                    {"statement": "Orders and refunds can move one after the other.", "kind": "causal"},
                ]
                return {
                    "common": [{**one, "sources": said} for one in common],
                    "next_questions": ["How do we get back after the cut-over?", "What would a managed Kafka cost?"],
                }
            case "final":
                if n == MOVER:
                    moved = {"p1": "UNCERTAIN", "p2": "UNCERTAIN", "confidence": "unsure"}
                    cause = next((label for label in reversed(labels(request)) if label.startswith("B")), None)
                    return {
                        **on_questions,
                        **moved,
                        "cause": cause,
                        "reason": "nobody has measured the third day",
                        "claim": "Test first; the cost decides after that.",
                    }
                cause = next((label for label in labels(request) if label.startswith("B")), None) if n == 4 else None
                return {
                    **both,
                    **on_questions,
                    "cause": cause,
                    "confidence": sure,
                    "reason": WHY[n - 1],
                    "claim": CLAIMS[n - 1],
                }
            case "recheck":
                return {**both, "reason": "as I voted"}
            case "test":
                return {**self._tested(request, n, both), "reason": WHY[n - 1], "confidence": sure}
            case "closing":
                return {
                    "p1": "NO",
                    "p2": "YES",
                    "text": "Stay on Kafka for now, and buy the answer to the first question: a replay of the peak day for 72 "
                    "hours on the larger machine, about two weeks and $9,000. If it holds 12,000 events a second at p99 under "
                    "250 ms, move order events to Postgres and leave refunds on Kafka until the count of refund races is known.",
                    "first_step": "the load test, about two weeks.",
                    "against": [
                        {
                            "text": "Support for today's Kafka version ends in March 2027; a test takes half of the time left.",
                            "ids": [],
                        }
                    ],
                    "would_change": ["A run of 72 hours at 12,000 events a second with p99 under 250 ms."],
                    "unknown": ["How many refunds came out of order in 2026.", "The price of a managed Kafka."],
                }
            case "single":
                return {
                    "p1": "NO",
                    "p2": "YES",
                    "cruxes": [QUESTIONS[0]],
                    "text": "Stay on Kafka: the load test failed at the peak.",
                    "against": ["Two people carry the pager for Kafka alone."],
                    "would_change": ["A longer load test."],
                    "unknown": [],
                }
            case "named":
                return {"q1": 1, "q2": 0, "same1": True}
        return {}

    def _turn(self, request: ModelRequest, n: int, thread: int) -> Answer:
        open_moves, spoken = moves_of(request), self._said.get((n, thread), 0)
        texts = SAID[n, thread]
        self._said[n, thread] = spoken + 1
        said: Answer = {"text": texts[spoken % len(texts)], "topics": ["throughput"] if thread == 1 else ["refunds"]}
        if "PROPOSE_CRUX" in open_moves:
            said["question"] = QUESTIONS[thread - 1]
        if "PROVIDE_EVIDENCE" in open_moves:
            said["move"] = "PROVIDE_EVIDENCE"
        return said

    def _tested(self, request: ModelRequest, n: int, own: dict[str, str]) -> Answer:
        """Agents change as they declared, but those affected, who stay whatever the load test shows."""
        stipulated = re.findall(r'^The answer to "(.*)" is (YES|NO)\.$', request.text, re.MULTILINE)
        if not stipulated or stipulated[-1][0] not in QUESTIONS:
            return {"p1": "UNCERTAIN", "p2": "UNCERTAIN"} if n == MOVER else {**own}
        question, answer = stipulated[-1]
        is_for_postgres = (answer == "YES") == (question == QUESTIONS[0])
        if n == 4 and question == QUESTIONS[0]:
            return {**own}
        return {"p1": "YES" if is_for_postgres else "NO", "p2": "NO" if is_for_postgres else "YES"}


async def record(home: Path) -> str:
    """Record the debate in the journal of a home; return its session."""
    store = SqliteStore(home / "journal.db")
    try:
        protocol = Debate(debaters=4, option=OPTIONS, test_cruxes=2, max_messages=80, max_duration=1_200)
        model = ScriptedModel(HandWritten(), latency=0.25, name="by-hand")
        report = await deliberate(TASK, protocol, sources=SOURCES, model=model, store=store)
        return report.session
    finally:
        store.close()


def play(home: Path) -> str:
    return asyncio.run(record(home))
