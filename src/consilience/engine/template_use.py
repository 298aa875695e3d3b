"""Which calls of a run are asked with which prompt templates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from consilience.domain.events import Ended, text_id
from consilience.domain.prompt_parts import PromptText, read_part
from consilience.engine.activity import phase_name
from consilience.engine.prompt import Prompt
from consilience.engine.templates import INSTRUCTIONS


class TemplateUse:
    """The calls that are asked with the templates of some names.

    A call is asked with a template if a part of its prompt is the template's rendered text. A rendered text that is a part of no
    prompt went into another text, such as a message.
    """

    def __init__(self, names: Iterable[str], instructions: str) -> None:
        self.instructions = instructions
        self._names_by_text: dict[str, set[str]] = defaultdict(set)
        self.rendered: set[str] = set()
        self.calls: dict[str, dict[str, bool]] = {name: {} for name in names}
        """By template, then by the call's key: False for an inherited call that was asked with another text."""
        self.note_text(INSTRUCTIONS, instructions)

    def note_text(self, name: str, text: str) -> None:
        if name in self.calls:
            self.rendered.add(name)
            self._names_by_text[text].add(name)

    def note_call(self, key: str, prompt: Prompt, recorded: Iterable[str] | None = None) -> None:
        """Note a call with its prompt. `recorded`: the parts of the prompt that an inherited call was asked with."""
        if not self.calls:
            return
        texts = (
            None if recorded is None else {part.id for part in map(read_part, recorded) if isinstance(part, PromptText)}
        )
        for text in (self.instructions, *prompt.preface, prompt.request):
            for name in self._names_by_text.get(text, ()):
                self.calls[name][key] = texts is None or text_id(text) in texts

    @property
    def unused(self) -> list[str]:
        """Templates that were not rendered."""
        return [name for name in self.calls if name not in self.rendered]

    @property
    def inherited(self) -> Mapping[str, list[str]]:
        """Keys of calls by template, for those with which only inherited calls are asked, which were asked with another text."""
        return {name: list(calls) for name, calls in self.calls.items() if calls and not any(calls.values())}


def point_before(ended: Sequence[Ended], keys: Collection[str]) -> str:
    """Return the last point of a session (`fork --at`) before all of these calls: PHASE/INDEX, the key of a call, or 0."""
    first = next((n for n, event in enumerate(ended) if event.key in keys), 0)
    if not first:
        return "0"
    last = ended[first - 1]
    if last.phase is not None and all(event.phase != last.phase for event in ended[first:]):
        return phase_name(last.phase)
    later = {event.key for event in ended[first:]}
    return next((event.key for event in reversed(ended[:first]) if event.key not in later), "0")


def describe_inherited(
    keys_by_template: Mapping[str, Iterable[str]], parent: str, ended: Sequence[Ended], directory: Path | None = None
) -> str:
    """Say that all calls with some templates are inherited, and how to ask them again. `ended`: those of the parent, in order."""
    keys = {key for keys in keys_by_template.values() for key in keys}
    templates = pronoun(keys_by_template)
    one = len(keys) == 1
    calls = f"the recorded call with {templates} is" if one else f"all {len(keys)} recorded calls with {templates} are"
    keep = "keeps its reply" if one else "keep their replies"
    again = f"consilience fork {parent} --at {point_before(ended, keys)} --prompts {directory or 'DIR'}"
    return f"{calls} inherited and {keep}; to ask again: {again}"


def pronoun(templates: Collection[str]) -> str:
    return "it" if len(templates) == 1 else "them"
