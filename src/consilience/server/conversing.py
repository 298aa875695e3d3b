"""What chat clients ask of a server beside sessions: models to name, helper requests, and when a session ended."""

from __future__ import annotations

from consilience.domain.errors import SettingsError
from consilience.domain.events import SessionFinished
from consilience.engine.protocol import find_protocol, protocol_names
from consilience.journal.store import Records
from consilience.models.port import Completion, ModelRequest
from consilience.models.registry import resolve
from consilience.server.callers import Caller, Forbidden
from consilience.server.service import INTERNAL, Sessions


def chat_models(sessions: Sessions, caller: Caller) -> dict[str, str]:
    """Return what a caller may name as the model of a chat, with what each is for: protocols, then the operator's presets."""
    names = {name: find_protocol(name) for name in sorted(set(protocol_names()) - INTERNAL)}
    models = {name: (name, cls.summary) for name, cls in names.items() if not cls.reads_target}
    models |= {name: (preset.protocol, preset.summary) for name, preset in sessions.settings.presets.items()}
    return {name: summary for name, (protocol, summary) in models.items() if _is_allowed(caller, protocol)}


def _is_allowed(caller: Caller, protocol: str) -> bool:
    try:
        caller.check_protocol(protocol)
    except Forbidden:
        return False
    return True


async def ended_at(sessions: Sessions, caller: Caller, session: str) -> float | None:
    """Return when a session ended, in seconds since the epoch; None for one that goes on. Raises `UnknownName`."""

    def read(records: Records) -> float | None:
        records.owner(session)
        end = records.ending(session)
        return float(end.volatile.get("ended_at") or 0) if isinstance(end, SessionFinished) else None

    return await sessions.read(caller, read)


async def help_chat(sessions: Sessions, system: str, text: str, *, max_tokens: int) -> Completion:
    """Return the operator's helper model's answer to a request of a chat program for itself. Not recorded.

    Raises `SettingsError` without such a model, `ProviderError` if it fails.
    """
    name = sessions.settings.helper_model
    if name is None:
        raise SettingsError(
            "this server answers no helper requests, such as titles and tags",
            do="Turn them off in the chat program, or ask the operator for a `helper_model`.",
        )
    model = resolve(name, known=sessions.endpoints)
    try:
        return await model.complete(
            ModelRequest(agent="helper", key="helper", system=system, user=text, max_tokens=max_tokens)
        )
    finally:
        await model.close()
