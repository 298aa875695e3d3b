"""The MCP face: tools, resources and prompts by which agents deliberate.

A deliberation takes minutes and clients give up after one: a tool that begins one waits `wait_s` seconds, tells its progress, and
then returns a handle, which is no error. Results are the head of a report, since their reader is a model with a window; the rest is
a resource. What is heavy is imported at the first use, since a client waits for the list of tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from consilience.domain.errors import ConsilienceError, SourceError
from consilience.domain.validation import describe_invalid
from consilience.server.mcp_face import SESSION_META, WAIT_SECONDS, WAITS, ToolFace, session_text, standing, whole_text
from consilience.server.mcp_prompts import add_prompts
from consilience.server.mcp_tasks import SessionTasks

if TYPE_CHECKING:
    from consilience.domain.messages import Source
    from consilience.server.callers import Caller
    from consilience.server.joins import Begin
    from consilience.server.service import Sessions

MAX_WAIT_SECONDS = 600
MAX_DUE = 20
"""Deadlines of each kind that are listed."""
INSTRUCTIONS = """\
Consilience puts a question or a piece of work before several agents on language models and returns an answer with where they \
differed, what became of objections, and what it cost. It takes minutes and many calls: use it for decisions that divide people, \
for reviews whose findings must be proven, and for more documents than fit one reading. For a plain question use `ask`, which \
often decides that one call is enough. A result that says "Running" is a handle: call `status` with its session. The same call \
with the same arguments joins its session, while that runs and for 15 minutes after, and costs nothing more."""


class GivenDocument(BaseModel):
    """A document that belongs to the task."""

    name: str
    text: str


Documents = Annotated[list[GivenDocument], Field(description="Texts that belong to the task.")]
Files = Annotated[
    list[str], Field(description="Files and directories below the root that this server was started with.")
]
MaxCost = Annotated[float | None, Field(ge=0, description="Max cost in US dollars. Default: the operator's bound.")]
WaitSeconds = Annotated[
    float, Field(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for the end before a handle is returned.")
]
NamedSession = Annotated[str, Field(description="Id of the session.")]


def build_mcp(face: ToolFace) -> MCPServer[Any]:
    """Return the MCP server of a face."""
    server: MCPServer[Any] = MCPServer(
        "consilience",
        version=version("consilience"),
        instructions=INSTRUCTIONS,
        extensions=[SessionTasks(face)],
        log_level="WARNING",
    )
    tools = _Tools(face)
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    spending = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
    acting = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    bound = "" if face.max_cost is None else f" A session costs at most ${face.max_cost:,.2f}."
    for function, hints, note in (
        (tools.ask, spending, f" One to about fifty model calls.{bound}"),
        (tools.deliberate, spending, f" Ten to a hundred model calls, by protocol and settings.{bound}"),
        (tools.review, spending, f" About ten model calls for a change of a few files.{bound}"),
        (tools.status, reading, ""),
        (tools.answer, acting, ""),
        (tools.cancel, acting, ""),
        (tools.tell, spending, " A few calls."),
        (tools.due, reading, ""),
        (tools.resolve, acting, ""),
    ):
        description = " ".join((function.__doc__ or "").split()) + note
        server.add_tool(function, description=description, annotations=hints, structured_output=False)
    _add_resources(server, tools)
    add_prompts(server)
    return server


@dataclass(frozen=True)
class _Asked:
    """What a tool is asked to begin."""

    content: object
    """All on which the session depends, as data of JSON: the same call joins it."""
    begin: Begin
    say_choice: Callable[[str], Awaitable[str]] | None = None
    """Returns what was chosen for a session and why; "" while its task is read."""


class _Tools:
    """The tools. Their signatures are what a client sees."""

    def __init__(self, face: ToolFace) -> None:
        self._face = face

    async def ask(
        self,
        ctx: Context[Any, Any],
        task: Annotated[str, Field(description="The question or the piece of work.")],
        documents: Documents = [],  # noqa: B006  pydantic copies it
        files: Files = [],  # noqa: B006
        follow_up: Annotated[
            str | None, Field(description="Id of a finished session that the task is about: one call on its report.")
        ] = None,
        max_cost: MaxCost = None,
        wait_s: WaitSeconds = WAIT_SECONDS,
    ) -> CallToolResult:
        """Answer a question or do a piece of work in the way that suits it: one call where one is enough, else several agents. Says
        what was chosen and why."""

        async def prepare(sessions: Sessions) -> _Asked:
            from consilience.choosing import REASONS, follow_up_sources
            from consilience.reporting.record import read_record
            from consilience.server.bodies import ChoicesBody, NewSession
            from consilience.server.checks import allowed_models
            from consilience.server.choices import choose_for

            sources = (*_sources(documents), *await self._files(files))
            caller = self._caller(ctx)
            if follow_up is not None:
                left = await sessions.read(caller, lambda records: follow_up_sources(read_record(records, follow_up)))
                return self._asked(ctx, sessions, task, "solo", (*left, *sources), max_cost, {})
            models = tuple(allowed_models(caller, sessions.settings))
            body = ChoicesBody(task=task, sources=sources, models=models, limits=self._limits(max_cost))

            async def begin(session: str, noted: asyncio.Event) -> None:
                chosen = await choose_for(sessions, caller, body, session=session, noted=noted)
                request = chosen.apply(NewSession(task=task, protocol="ask", models=models))
                await sessions.begin(caller, request, session=session)

            async def say_choice(session: str) -> str:
                choice = (await choose_for(sessions, caller, body, session=session, seconds=0)).choice
                return f"Chosen: {choice.protocol.name}, since {REASONS[choice.rule]}." if choice is not None else ""

            return _Asked(["ask", body.model_dump(mode="json")], begin, say_choice)

        return await self._followed(ctx, wait_s, prepare)

    async def deliberate(
        self,
        ctx: Context[Any, Any],
        task: Annotated[str, Field(description="The question or the piece of work.")],
        protocol: Annotated[
            Literal["debate", "emergence", "broadcast", "refinement", "decompose", "solo", "vote"],
            Field(
                description="debate: a decision that divides people; emergence: a hierarchy that revises bottom-up; broadcast: "
                "one goal, agents who coordinate; refinement: a text by specialists; decompose: parts by a lead; "
                "vote: independent answers; solo: one agent."
            ),
        ],
        settings: Annotated[dict[str, Any], Field(description="Settings of the protocol by name.")] = {},  # noqa: B006
        panel: Annotated[str | None, Field(description="Name of a shipped panel of personas.")] = None,
        models: Annotated[list[str], Field(description="Models that the operator allows, dealt in turn.")] = [],  # noqa: B006
        documents: Documents = [],  # noqa: B006
        files: Files = [],  # noqa: B006
        max_cost: MaxCost = None,
        wait_s: WaitSeconds = WAIT_SECONDS,
    ) -> CallToolResult:
        """Put a question or a piece of work before several agents by a protocol that you choose."""

        async def prepare(sessions: Sessions) -> _Asked:
            sources = (*_sources(documents), *await self._files(files))
            body = {"panel": panel, "models": tuple(models), "settings": settings}
            return self._asked(ctx, sessions, task, protocol, sources, max_cost, body)

        return await self._followed(ctx, wait_s, prepare)

    async def review(
        self,
        ctx: Context[Any, Any],
        focus: Annotated[str, Field(description="What to look for; empty for everything.")] = "",
        diff: Annotated[str, Field(description="A unified diff to review.")] = "",
        changes: Annotated[
            str | None,
            Field(description="A Git range or commit below the root, read by the server: main..HEAD, HEAD^!."),
        ] = None,
        documents: Documents = [],  # noqa: B006
        files: Files = [],  # noqa: B006
        max_cost: MaxCost = None,
        wait_s: WaitSeconds = WAIT_SECONDS,
    ) -> CallToolResult:
        """Review a change, files or documents: findings whose places and quotations are proven by code. Give a diff or texts, or
        name files or a Git range below the root, so that they need not pass through your context."""

        async def prepare(sessions: Sessions) -> _Asked:
            from consilience.domain.messages import Source

            given = [*([Source(diff, "change.diff")] if diff else []), *_sources(documents)]
            derived: dict[str, Any] = {}
            title = "what is given"
            if files or changes is not None or not given:
                target = await asyncio.to_thread(self._target, files, changes)
                given += target.sources
                derived = {
                    "left_out": target.left_out,
                    "unread_files": target.unread,
                    "not_searched": target.not_searched,
                }
                title = target.title
            if not given:
                raise SourceError("there is nothing to review", do="Name files, a range with changes, or give a diff.")
            task = f"Review {title}." + (f"\n\nFocus: {focus}" if focus else "")
            return self._asked(ctx, sessions, task, "review", given, max_cost, {}, derived)

        return await self._followed(ctx, wait_s, prepare)

    async def status(
        self,
        ctx: Context[Any, Any],
        session: NamedSession,
        wait_s: WaitSeconds = 0,
        show: Annotated[
            Literal["head", "report", "transcript"],
            Field(description="head: what matters, short; report: all of it; transcript: what the agents said."),
        ] = "head",
    ) -> CallToolResult:
        """Return how a session stands: its result, or how far it is, waiting up to `wait_s` seconds for the end."""

        async def look(sessions: Sessions) -> str:
            caller = self._caller(ctx)
            now = await standing(sessions, caller, session)
            if not now.is_lost:
                seen = 0 if now.place != session else await sessions.read(caller, lambda found: found.last(session))
                await self._wait(ctx, sessions, session, wait_s, seen=seen)
            if show == "head":
                return await session_text(sessions, self._face, ctx.request_context.request, session)
            return await whole_text(sessions, caller, session, show)

        return await self._done(look)

    async def answer(
        self,
        ctx: Context[Any, Any],
        session: NamedSession,
        key: Annotated[str, Field(description="Key of the open question, as `status` shows it.")],
        text: Annotated[str, Field(description="The answer, or JSON where the question asks for fields.")],
    ) -> CallToolResult:
        """Answer an open question of a session in a person's place: give what the person said, not your own words."""

        async def post(sessions: Sessions) -> str:
            caller = self._caller(ctx)
            place = (await standing(sessions, caller, session)).place
            return f"Recorded the answer to {await sessions.answer(caller, place, key, text)}."

        return await self._done(post)

    async def cancel(
        self,
        ctx: Context[Any, Any],
        session: NamedSession,
        answer: Annotated[bool, Field(description="Let the closing call be made, for an answer.")] = False,
    ) -> CallToolResult:
        """End a session with a report of what it has."""

        async def end(sessions: Sessions) -> str:
            caller = self._caller(ctx)
            await sessions.cancel(caller, (await standing(sessions, caller, session)).place, answer=answer)
            return f"Session {session} is told to end."

        return await self._done(end)

    async def tell(
        self,
        ctx: Context[Any, Any],
        session: NamedSession,
        fact: Annotated[str, Field(description="The new fact, in a sentence.")],
        documents: Documents = [],  # noqa: B006
        wait_s: WaitSeconds = WAIT_SECONDS,
    ) -> CallToolResult:
        """Tell a finished debate a new fact: agents give their positions again, in a new session, whose report names who moved."""

        async def prepare(sessions: Sessions) -> _Asked:
            from consilience.server.bodies import TellBody

            caller, body = self._caller(ctx), TellBody(fact=fact, sources=_sources(documents))

            async def begin(to: str, noted: asyncio.Event) -> None:
                await sessions.fork(caller, session, body, to=to)

            return _Asked(["tell", session, body.model_dump(mode="json")], begin)

        return await self._followed(ctx, wait_s, prepare)

    async def due(
        self,
        ctx: Context[Any, Any],
        within_days: Annotated[int, Field(ge=0, description="Also deadlines within so many days.")] = 90,
    ) -> CallToolResult:
        """List what would change an agent's mind and whose deadline is past or near, over all sessions: questions to look up and to
        resolve."""

        async def find(sessions: Sessions) -> str:
            from datetime import UTC, datetime

            today, caller = datetime.now(UTC).date(), self._caller(ctx)
            lines = []
            for heading, found in (await sessions.due(caller, today=today, within=within_days)).items():
                lines += [f"{heading.capitalize()}:"] if found else []
                for one in found[:MAX_DUE]:
                    who = f"{one.agent}: {one.finding} ({one.question})"
                    lines.append(
                        f"- {one.day or one.deadline} · session {one.session}, question {one.forecast} · {who}"
                    )
                lines += [f"- {len(found) - MAX_DUE} more"] if len(found) > MAX_DUE else []
            return "\n".join(lines) or "Nothing is due."

        return await self._done(find)

    async def resolve(
        self,
        ctx: Context[Any, Any],
        session: NamedSession,
        question: Annotated[str, Field(description="Id of the question, as `due` shows it.")],
        outcome: Annotated[bool, Field(description="Whether it came true.")],
    ) -> CallToolResult:
        """Record the outcome of a question of a session, once it is established. A later outcome replaces an earlier one."""

        async def record(sessions: Sessions) -> str:
            caller = self._caller(ctx)
            resolved = await sessions.resolve(caller, session, question, outcome)
            lines = [f"{question}: {'yes' if outcome else 'no'} ({resolved.question})"]
            lines += [f"- {row.name}: Brier score {row.score:.3f}" for row in resolved.scores]
            return "\n".join(lines)

        return await self._done(record)

    # --- how the tools do it

    def _caller(self, ctx: Context[Any, Any]) -> Caller:
        return self._face.caller(ctx.request_context.request)

    def _asked(
        self,
        ctx: Context[Any, Any],
        sessions: Sessions,
        task: str,
        protocol: str,
        sources: Sequence[Source],
        max_cost: float | None,
        fields: Mapping[str, Any],
        derived: Mapping[str, Any] | None = None,
    ) -> _Asked:
        from consilience.server.bodies import NewSession
        from consilience.server.checks import allowed_models

        caller, limits = self._caller(ctx), self._limits(max_cost)
        body = NewSession(task=task, protocol=protocol, sources=tuple(sources), limits=limits, **fields)

        async def begin(session: str, noted: asyncio.Event) -> None:
            await sessions.begin(caller, body, session=session, derived=derived or {})

        models = list(allowed_models(caller, sessions.settings))
        return _Asked([body.model_dump(mode="json"), models, repr(derived)], begin)

    def _limits(self, max_cost: float | None) -> Any:
        from consilience.domain.outcome import Limits

        bounds = [cost for cost in (max_cost, self._face.max_cost) if cost is not None]
        return Limits(cost=min(bounds)) if bounds else Limits()

    async def _files(self, names: Sequence[str]) -> tuple[Source, ...]:
        if not names:
            return ()
        return tuple((await asyncio.to_thread(self._target, names, None)).sources)

    def _target(self, names: Sequence[str], changes: str | None) -> Any:
        """Return files or changes below the root. Raises `SourceError` for a path that leads out of it."""
        from consilience.targets.target import read_target

        root = self._face.root
        if root is None:
            raise SourceError("this server reads no files", do="Give their texts as documents.")
        root = root.resolve()
        for name in names:
            if not (root / name).resolve().is_relative_to(root):
                raise SourceError("the path leads out of the root", where=name, do=f"Name files below {root}.")
        return read_target(names, diff=changes, directory=root)

    async def _done(self, act: Callable[[Sessions], Awaitable[str]]) -> CallToolResult:
        """Do something and return what was done. A mistake is told to the model that called: it can correct what it gave."""
        try:
            return CallToolResult(content=[TextContent(text=await act(await self._face.sessions()))])
        except ConsilienceError as error:
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
        except ValidationError as error:
            return CallToolResult(
                content=[TextContent(text=f"invalid argument: {describe_invalid(error)}")], is_error=True
            )

    async def _followed(
        self, ctx: Context[Any, Any], wait_s: float, prepare: Callable[[Sessions], Awaitable[_Asked]]
    ) -> CallToolResult:
        """Begin a session or join that of the same call, wait for its end, and return what is known of it then.

        `wait_s` counts from the call of the tool, as the client's limit does: opening the journal may take seconds. What is not
        done by then, a model's reading of the task included, goes on behind it.
        """
        session, until = "", asyncio.get_running_loop().time() + wait_s

        async def run(sessions: Sessions) -> str:
            from consilience.server.joins import digest_of

            nonlocal session
            asked = await prepare(sessions)
            digest = digest_of(["mcp", self._caller(ctx).owner, asked.content])
            joined = await sessions.joins.joined(self._caller(ctx), digest, asked.begin)
            await joined.recorded()
            session = joined.session
            if WAITS.get():
                await self._wait(ctx, sessions, session, until - asyncio.get_running_loop().time())
            said = await asked.say_choice(session) if asked.say_choice is not None else ""
            text = await session_text(sessions, self._face, ctx.request_context.request, session)
            return "\n\n".join(filter(None, (said, text)))

        result = await self._done(run)
        return result if result.is_error else result.model_copy(update={"meta": {SESSION_META: session}})

    async def _wait(
        self, ctx: Context[Any, Any], sessions: Sessions, session: str, seconds: float, *, seen: int = 0
    ) -> None:
        """Wait until a session ends, is interrupted or waits for a person, at most so long. Tell as progress what comes after the
        event `seen`."""
        from consilience.domain.events import SessionParked
        from consilience.reporting.event_lines import event_line
        from consilience.reporting.session_state import SessionState
        from consilience.server.openai_errors import RunFailed

        caller, state = self._caller(ctx), SessionState()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                if (beginning := sessions.joins.beginning(session)) is not None:
                    await asyncio.shield(beginning)
                async with aclosing(sessions.events(caller, session)) as events:
                    async for event in events:
                        state.take(event)
                        if event.seq <= seen:
                            continue
                        if isinstance(event, SessionParked):
                            return
                        line = event_line(event, state)
                        if line and state.started is not None:
                            await ctx.report_progress(state.made, max(state.started.estimate.max, state.made), line)
        except (TimeoutError, RunFailed):  # what is shown afterwards names the reason
            pass


def _sources(documents: Sequence[GivenDocument]) -> tuple[Source, ...]:
    from consilience.domain.messages import Source

    return tuple(Source(document.text, document.name) for document in documents)


def _add_resources(server: MCPServer[Any], tools: _Tools) -> None:
    face = tools._face

    async def read(ctx: Context[Any, Any], session: str, what: Literal["report", "transcript"]) -> str:
        try:
            return await whole_text(await face.sessions(), tools._caller(ctx), session, what)
        except ConsilienceError as error:
            raise ResourceNotFoundError(str(error)) from error

    @server.resource("consilience://sessions/{session}/report", mime_type="text/markdown")
    async def report(session: str, ctx: Context[Any, Any]) -> str:
        """The report of a session, or its progress, as Markdown."""
        return await read(ctx, session, "report")

    @server.resource("consilience://sessions/{session}/transcript", mime_type="text/markdown")
    async def transcript(session: str, ctx: Context[Any, Any]) -> str:
        """What the agents of a session said, in order, as Markdown."""
        return await read(ctx, session, "transcript")
