"""Turns of conversations as sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from importlib.resources import as_file, files

from consilience.choosing import follow_up_sources
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.messages import Source
from consilience.domain.panels import Panel
from consilience.engine.protocol import find_protocol, protocol_names
from consilience.protocols.baselines import Solo
from consilience.protocols.choose import TaskReading
from consilience.reporting.record import read_record
from consilience.server.bodies import ChoicesBody, NewSession
from consilience.server.callers import Caller
from consilience.server.chat_bodies import ASK, PREFIX, ChatTurn
from consilience.server.choices import choose_for
from consilience.server.joins import Joined
from consilience.server.openai_errors import RefusedRequest
from consilience.server.service import Sessions
from consilience.server.session_plans import INTERNAL

UNREADABLE = TaskReading(kind="answer")
"""What counts as read if the call that reads a task fails: a plain question."""


class Turns:
    """Begins the sessions of conversations, or joins them."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def join(self, caller: Caller, turn: ChatTurn) -> Joined:
        """Return the session of a turn. Raises `RefusedRequest` for a model that is not there."""
        if turn.helper_tokens is None:  # chat programs may name any model for their own work
            self._check_model(caller, turn)
        return await self.sessions.joins.joined(caller, turn.digest(caller.owner), partial(self._begin, caller, turn))

    def _check_model(self, caller: Caller, turn: ChatTurn) -> None:
        models = chat_models(self.sessions, caller)
        if turn.model != PREFIX + turn.name or turn.name not in (ASK, *models):
            known = ", ".join(PREFIX + name for name in (ASK, *models))
            raise RefusedRequest(
                f"There is no model {turn.model!r}. Known: {known}.", param="model", code="model_not_found", status=404
            )

    async def _begin(self, caller: Caller, turn: ChatTurn, session: str, noted: asyncio.Event) -> None:
        body = NewSession(
            task=turn.task,
            protocol=turn.name,
            settings=turn.options.settings,
            panel=turn.options.panel,
            models=turn.options.models,
            sources=turn.sources,
            limits=turn.options.limits,
            seed=turn.seed,
            thinking=turn.thinking,
        )
        if turn.helper_tokens is not None:
            await self._help(caller, turn, session)
            return
        if turn.parent:
            left = await self._left_by(caller, turn.parent)
            known = {(source.name, source.text) for source in left}
            more = (source for source in turn.sources if (source.name, source.text) not in known)
            body = body.model_copy(
                update={"protocol": Solo.name, "settings": {}, "panel": None, "sources": (*left, *more)}
            )
        elif turn.name == ASK:
            body = await self._chosen(caller, body, session, noted)
        await self.sessions.begin(caller, body, session=session)

    async def _left_by(self, caller: Caller, session: str) -> Sequence[Source]:
        try:
            return await self.sessions.read(caller, lambda records: follow_up_sources(read_record(records, session)))
        except UnknownName:
            raise RefusedRequest(
                f"The session {session}, to which this is a follow-up, is not there. Put /new before the task to begin anew.",
                param="messages",
                code="session_not_found",
                status=404,
            ) from None

    async def _chosen(self, caller: Caller, body: NewSession, session: str, noted: asyncio.Event) -> NewSession:
        """Return the session that suits a task; where that depends on what it asks for, after one call that reads it."""
        asked = ChoicesBody(
            task=body.task,
            sources=body.sources,
            models=tuple(dict.fromkeys(body.models)),
            personas=len(body.panel.personas) if isinstance(body.panel, Panel) else 0,
            limits=body.limits,
        )
        chosen = await choose_for(self.sessions, caller, asked, session=session, noted=noted, otherwise=UNREADABLE)
        return chosen.apply(body)

    async def _help(self, caller: Caller, turn: ChatTurn, session: str) -> None:
        model = self.sessions.settings.helper_model
        if model is None:
            raise SettingsError(
                "this server answers no helper requests, such as titles and tags",
                do="Turn them off in the chat program, or ask the operator for a `helper_model`.",
            )
        body = NewSession(task=turn.task, protocol=Solo.name, name="helper request", thinking="off")
        protocol = Solo(reply_tokens=turn.helper_tokens)
        with as_file(files("consilience.server") / "helper") as prompts:
            await self.sessions.begin_service(caller, protocol, model, body, session, prompts=prompts)


def chat_models(sessions: Sessions, caller: Caller) -> dict[str, str]:
    """Return what a caller may name as the model of a chat, with what each is for: protocols, then the operator's presets."""
    names = {name: find_protocol(name) for name in sorted(set(protocol_names()) - INTERNAL)}
    models = {name: (name, cls.summary) for name, cls in names.items() if not cls.reads_target}
    models |= {name: (preset.protocol, preset.summary) for name, preset in sessions.settings.presets.items()}
    allowed = caller.protocols
    return {name: summary for name, (protocol, summary) in models.items() if allowed is None or protocol in allowed}
