"""What a command prints about models before a run: thinking, context windows, unknown prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from consilience.domain.outcome import DEFAULT_THINKING, ThinkingLevel
from consilience.models.endpoints import FREE_VARIABLE, Endpoints
from consilience.models.facts import ModelFacts


def window_warnings(names: Iterable[str], tokens: int, known: Endpoints) -> list[str]:
    """Return a line for each model whose context window is smaller than the longest prompt, which has at least `tokens`."""
    windows = {name: ModelFacts(name, known).context_window for name in names}
    return [
        f"Warning: a prompt has about {tokens:,} tokens, more than the context window of {name} ({window:,} tokens)."
        for name, window in windows.items()
        if window is not None and window < tokens
    ]


def key_notes(names: Iterable[str], known: Endpoints) -> list[str]:
    """Return a line for each endpoint to which a key that is set is not sent."""
    return list(dict.fromkeys(words for name in names if (words := ModelFacts(name, known).withheld_key)))


def thinking_words(asked: ThinkingLevel | None, tokens_by_model: Mapping[str, int], known: Endpoints) -> str:
    """Return the max tokens for thinking, with its level and the models that are not sent it."""
    thinking = [name for name, tokens in tokens_by_model.items() if tokens]
    if not thinking:
        return ""
    unsent = [name for name in thinking if not ModelFacts(name, known).is_sent_level]
    level: str = "off, but some models think anyway" if asked == "off" else asked or DEFAULT_THINKING
    if asked and unsent:
        level += f"; not sent to {', '.join(unsent)}"
    words = "" if not asked and unsent == thinking else f" ({level})"
    return f", plus up to {max(tokens_by_model.values()):,} for thinking{words}"


def recorded_level(level: ThinkingLevel | None) -> ThinkingLevel | None:
    """Return the level that a session asked for; None for the default, which a session records if none was asked for."""
    return None if level == DEFAULT_THINKING else level


def price_hint(name: str, known: Endpoints) -> str:
    """Return how to declare the price of a model if it is unknown; else nothing."""
    facts = ModelFacts(name, known)
    if not facts.unpriced:
        return ""
    return (
        "To set its price, write input_price and output_price, or free = true, into "
        f'[endpoints."{facts.unpriced}"] of your own consilience.toml (consilience doctor shows its path); '
        f"if it is free, {FREE_VARIABLE}={facts.address} is enough."
    )
