"""Named fault points: places shortly before or after a commit.

    before_call      a call is about to be sent
    after_reply      its reply has arrived and is kept; the event that records it is not committed
    after_commit     the reply is committed; nothing that follows from it has left the process
    after_publish    a message was published
    after_note       a protocol's event was recorded
    before_settled   a round has ended and is not recorded
    at_settled       a round is recorded and not committed
    after_settled    a round is committed
    closing_call     the closing call is about to be sent
    before_finish    the report is made and not committed
    after_finish     the report is committed
    after_lost       a resuming process has noted a call that was lost

`CONSILIENCE_FAULT="after_commit@leaf_respond/2#3"` kills the process (SIGKILL) at the third commit of a call of phase
`leaf_respond`, index 2. Phase and count are optional. The end of a phase is the `after_commit` of its last call.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from consilience.domain.errors import SettingsError
from consilience.engine.activity import Phase

POINTS = (
    "before_call",
    "after_reply",
    "after_commit",
    "after_publish",
    "after_note",
    "before_settled",
    "at_settled",
    "after_settled",
    "closing_call",
    "before_finish",
    "after_finish",
    "after_lost",
)

_SPEC = re.compile(r"(?P<point>\w+)(?:@(?P<phase>\w+)(?:/(?P<index>\d+))?)?(?:#(?P<nth>\d+))?\Z")


class Crash(BaseException):
    """A simulated kill. Nothing may be cleaned up that a real kill would leave."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    raise Crash


@dataclass(slots=True)
class Fault:
    """Strikes once, the `nth` time (from 1) its point is passed in its phase."""

    point: str
    phase: str | None = None
    index: int | None = None
    nth: int = 1
    strike: Callable[[], None] = crash

    def hit(self, point: str, phase: Phase | None = None) -> None:
        if point != self.point:
            return
        if self.phase is not None and (phase is None or phase[0] != self.phase):
            return
        if self.index is not None and (phase is None or phase[1] != self.index):
            return
        self.nth -= 1
        if self.nth == 0:
            self.strike()


def parse_fault(spec: str, strike: Callable[[], None] = kill) -> Fault:
    """Parse a fault. Raises `SettingsError` if it is invalid."""
    match = _SPEC.match(spec)
    if not match or match["point"] not in POINTS:
        raise SettingsError(
            f"{spec!r} is not a fault point",
            where="CONSILIENCE_FAULT",
            do=f"Write POINT, POINT@PHASE, POINT@PHASE/INDEX, each with an optional #N; points: {', '.join(POINTS)}.",
        )
    index = match["index"]
    return Fault(match["point"], match["phase"], None if index is None else int(index), int(match["nth"] or 1), strike)
