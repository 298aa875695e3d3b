"""How the prompt of a recorded call differs from the one that is made now, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from consilience.domain.errors import StoreUnusable
from consilience.engine.prompt import Rendered

CONTEXT_CHARS = 40
"""Characters shown on either side of the first difference of two texts."""

PART_NAMES = {"i": "instructions", "k": "task", "s": "document", "q": "quotation", "t": "words"}


def prompt_difference(recorded: Sequence[str], now: Rendered, text: Callable[[str], str]) -> str:
    """Describe the first difference of two prompts. `recorded` are stored parts, `text` finds a stored text by its id."""
    parts = now.parts.parts
    position = next((n for n, (a, b) in enumerate(zip(recorded, parts, strict=False)) if a != b), None)
    if position is None and len(recorded) == len(parts):
        return "the prompt is the same; the model, the schema, a sampling parameter or a quoted text is another"
    if position is None:
        longer_prompt, whose = (recorded, "recorded") if len(recorded) > len(parts) else (parts, "now")
        remaining_parts = longer_prompt[min(len(recorded), len(parts)) :]
        return f"{whose}, the prompt goes on with {_part_name(remaining_parts[0])}"
    recorded_part, present_part = recorded[position], parts[position]
    if recorded_part[0] == present_part[0] and recorded_part[0] in "ikt":
        present_text = now.system if recorded_part[0] == "i" else _part_text(now, position)
        try:
            return f"its {PART_NAMES[recorded_part[0]]} {_text_difference(text(recorded_part[2:]), present_text)}"
        except StoreUnusable:  # journals of the first days do not hold the instructions as rendered
            return f"its {PART_NAMES[recorded_part[0]]} are others"
    return f"part {position + 1} was {_part_name(recorded_part)}, now {_part_name(present_part)}"


def _part_text(now: Rendered, position: int) -> str:
    """Return the text of a part. Blocks have the order of parts, without the instructions."""
    block = now.blocks[position - 1]
    return block.removeprefix("# Task\n") if isinstance(block, str) else block[0]


def _part_name(part: str) -> str:
    kind, _, reference = part.partition(":")
    if kind == "q":
        label, _, id = reference.partition(":")
        return f"the quotation of {id} as {label}"
    return f"document {reference}" if kind == "s" else f"its {PART_NAMES[kind]}"


def _text_difference(before: str, now: str) -> str:
    position = next(
        (n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
    )
    start = max(0, position - CONTEXT_CHARS)
    end = position + CONTEXT_CHARS
    return f"part at character {position + 1}: recorded {before[start:end]!r}, now {now[start:end]!r}"
