"""What a command can be asked to do with the reports of a protocol, beyond printing them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An option of the commands that deliver a report, and the method of the report that it calls."""

    option: str
    """As it is written: `--fail-on`."""
    help: str
    method: str
    """With `values` it takes the value given, and returns in a sentence why the command fails, "" if it does not. Without, it takes
    nothing and returns what is written into the file given: text, or data for JSON."""
    values: tuple[str, ...] = ()
    """What may be given; empty for the name of a file."""
    exit_code: int = 0
    """Of a command that fails for this reason."""

    @property
    def name(self) -> str:
        """The option as a parameter, under which a session records it: `fail_on`."""
        return self.option.removeprefix("--").replace("-", "_")
