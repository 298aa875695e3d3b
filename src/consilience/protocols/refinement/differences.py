"""What changed between two versions of a text, sentence by sentence."""

from __future__ import annotations

from difflib import SequenceMatcher, unified_diff

from consilience.engine.analysis import sentences


def change(before: str, after: str) -> float:
    """Share of sentences that differ: 0 the same, 1 not one in common (1 − difflib's ratio, symmetric up to order)."""
    return 1.0 - SequenceMatcher(None, sentences(before), sentences(after), autojunk=False).ratio()


def differences(before: str, after: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sentences that went, and those that came, in their order."""
    old, new = sentences(before), sentences(after)
    removed: list[str] = []
    added: list[str] = []
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += old[i:j]
            added += new[k:m]
    return tuple(removed), tuple(added)


def unified(before: str, after: str) -> str:
    """A unified diff of the sentences, one a line, without file names; empty where nothing changed."""
    lines = list(unified_diff(_lines(before), _lines(after), n=1, lineterm=""))
    return "\n".join(lines[2:])


def _lines(text: str) -> list[str]:
    return [" ".join(sentence.split()) for sentence in sentences(text)]
