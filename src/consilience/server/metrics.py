"""What a server has done since it began, and what it has to do, as text for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from consilience.domain.events import (
    CallCompleted,
    CallFailed,
    Ended,
    Event,
    SessionFinished,
)
from consilience.executor import Backlog

Labels = tuple[tuple[str, str], ...]


class Meter:
    """Counts committed events of the runs of this process. It observes on the executor's loop, and is read from any thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Ended attempts by outcome: `completed`, or the kind of failure."""
        self.tokens_in = self.tokens_out = 0
        self.cost = 0.0
        """US dollars; calls of unknown price are in `unpriced`."""
        self.unpriced = 0
        self.finished: Counter[str] = Counter()
        """Sessions by stop reason."""

    def observe(self, event: Event) -> None:
        if isinstance(event, Ended):
            if not event.inherited:
                self._count(event)
        elif isinstance(event, SessionFinished):
            self.finished[event.stop_reason.value] += 1

    def _count(self, event: Ended) -> None:
        if isinstance(event, CallCompleted):
            outcome = "cached" if event.cached else "completed"
        else:
            outcome = event.failure.value if isinstance(event, CallFailed) else "rejected"
        self.calls[outcome] += 1
        if outcome == "cached":
            return
        self.tokens_in += event.tokens_in
        self.tokens_out += event.tokens_out
        if event.cost is None:
            self.unpriced += 1
        else:
            self.cost += event.cost


def metrics_text(
    meter: Meter, backlog: Backlog, *, finished: int, unfinished: int, readers: int, waits: Mapping[str, int]
) -> str:
    """Return all figures. `waits` are requests that wait for their provider's rate limit, by account."""
    waiting = max(unfinished - backlog.running - backlog.waiting, 0)
    states = {"finished": finished, "running": backlog.running, "queued": backlog.waiting, "other": waiting}
    families: list[tuple[str, str, str, Iterable[tuple[Labels, float]]]] = [
        ("sessions", "gauge", "Sessions in the journal by state.", _by("state", states)),
        ("sessions_finished_total", "counter", "Sessions that ended here.", _by("stop_reason", meter.finished)),
        ("takeovers_total", "counter", "Sessions taken up that an earlier process left.", [((), backlog.taken_up)]),
        ("calls_total", "counter", "Ended attempts of calls by outcome.", _by("outcome", meter.calls)),
        (
            "tokens_total",
            "counter",
            "Tokens read and written by models.",
            _by("direction", {"in": meter.tokens_in, "out": meter.tokens_out}),
        ),
        ("cost_dollars_total", "counter", "Cost of calls of known price.", [((), meter.cost)]),
        ("unpriced_calls_total", "counter", "Calls of unknown price.", [((), meter.unpriced)]),
        ("queue_depth", "gauge", "Sessions that wait for their turn.", [((), backlog.waiting)]),
        ("queue_age_seconds", "gauge", "How long the first of them has waited.", [((), backlog.seconds)]),
        ("readers", "gauge", "Open streams of events.", [((), readers)]),
        ("account_waiting_requests", "gauge", "Requests held back by a rate limit.", _by("account", waits)),
    ]
    return "".join(line for family in families for line in _family(*family))


def _by(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [(((label, name),), value) for name, value in values.items()]


def _family(name: str, kind: str, help: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    full = f"consilience_{name}"
    yield f"# HELP {full} {help}\n# TYPE {full} {kind}\n"
    for labels, value in samples:
        words = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        yield f"{full}{{{words}}} {value:.10g}\n" if words else f"{full} {value:.10g}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
