"""Gates of your own, by `module:name`.

PYTHONPATH=examples consilience workspace gate red.md blue.md --gates gates:has_figure --gates gates:balanced_examples
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from consilience.coordination import balance_gate, gate


@gate("at least one figure", add="Give a figure for each claim about cost or speed.")
def has_figure(text: str) -> bool:
    """Judge one text; every agent must meet it."""
    return any(map(str.isdigit, text))


@balance_gate(
    "examples from both sides, at least one each and half as many as the other side",
    add="Add examples of your own, each in a fenced code block.",
)
def balanced_examples(texts: Mapping[str, str]) -> Collection[str]:
    """Judge the texts of all agents together; return the agents that miss it."""
    examples = {agent: count_code_blocks(text) for agent, text in texts.items()}
    needed = max(1, max(examples.values(), default=0) / 2)
    return [agent for agent, number in examples.items() if number < needed]


def count_code_blocks(text: str) -> int:
    """Return the number of fenced code blocks that are not empty."""
    blocks = f"\n{text}".split("\n```")[1::2]  # each begins with the name of its language
    return sum(bool(block.partition("\n")[2].strip()) for block in blocks)
