"""Sessions as tasks of the extension `io.modelcontextprotocol/tasks` (specification 2026-07-28).

A tool that begins a session returns a task at once whose id is the session's. The journal is the task store: a task survives the
server's death.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams, TextContent

from consilience.domain.errors import ConsilienceError, SettingsError
from consilience.server.callers import Forbidden
from consilience.server.mcp_face import BEGINNING, SESSION_META, WAITS, Standing, ToolFace, session_text, standing

if TYPE_CHECKING:
    from consilience.journal.store import Records

POLL_MILLISECONDS = 2_000


class TaskParams(RequestParams):
    """Names a task."""

    task_id: str


class UpdateParams(TaskParams):
    """Answers open questions of a task."""

    input_responses: dict[str, dict[str, Any]]


class SessionTasks(Extension):
    """Serves sessions as tasks to clients that declare the extension; all others get results and handles."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, face: ToolFace) -> None:
        self._face = face

    def methods(self) -> tuple[MethodBinding, ...]:
        return (
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/update", UpdateParams, self._update),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        capabilities = ctx.session.client_capabilities
        if params.name not in BEGINNING or self.identifier not in ((capabilities and capabilities.extensions) or {}):
            return await call_next(ctx)
        token = WAITS.set(False)
        try:
            result = await call_next(ctx)
        finally:
            WAITS.reset(token)
        session = (result.meta or {}).get(SESSION_META) if isinstance(result, CallToolResult) else None
        if session is None:  # an error, for the model that called
            return result
        task = await self._task(ctx, str(session))
        return {**{k: v for k, v in task.items() if k not in ("result", "inputRequests")}, "resultType": "task"}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        return await self._task(ctx, params.task_id)

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        sessions, caller = await self._face.sessions(), self._face.caller(ctx.request)
        await self._task(ctx, params.task_id)  # raises for an unknown one
        place = (await standing(sessions, caller, params.task_id)).place
        for key, response in params.input_responses.items():
            content = response.get("content")
            if response.get("action") == "accept" and isinstance(content, Mapping):
                try:
                    await sessions.answer(caller, place, key, str(content.get("answer", "")))
                except (SettingsError, Forbidden) as error:
                    raise MCPError(INVALID_PARAMS, str(error)) from error
                except ConsilienceError:  # answered before, or never asked
                    continue
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        sessions = await self._face.sessions()
        task = await self._task(ctx, params.task_id)
        if task["status"] in ("working", "input_required"):
            caller = self._face.caller(ctx.request)
            await sessions.cancel(caller, (await standing(sessions, caller, params.task_id)).place)
        return {"resultType": "complete"}

    async def _task(self, ctx: ServerRequestContext[Any, Any], session: str) -> dict[str, Any]:
        """Return a session as a task. Raises `MCPError` for one that is not there."""
        sessions, caller = await self._face.sessions(), self._face.caller(ctx.request)
        try:
            now = await standing(sessions, caller, session)
            task = await sessions.read(caller, lambda records: _state(records, session, now))
        except ConsilienceError:
            raise MCPError(INVALID_PARAMS, f"There is no task {session!r}.") from None
        if task["status"] == "working" and (reason := sessions.failures.get(now.place)):
            task |= {"status": "failed", "statusMessage": reason}
        if task["status"] == "completed":
            text = TextContent(text=await session_text(sessions, self._face, ctx.request, session))
            task["result"] = CallToolResult(content=[text]).model_dump(mode="json", by_alias=True, exclude_none=True)
        return task


def _state(records: Records, session: str, now: Standing) -> dict[str, Any]:
    from consilience.domain.outcome import StopReason
    from consilience.reporting.questions import pending_questions
    from consilience.reporting.record import read_record
    from consilience.server.blindness import asked_of_owner, given_seats
    from consilience.server.heads import progress_line

    record = read_record(records, now.place)
    created = datetime.fromtimestamp(record.created or 0, UTC)
    task: dict[str, Any] = {
        "resultType": "complete",
        "taskId": session,
        "status": "working",
        "createdAt": created.isoformat(),
        "lastUpdatedAt": datetime.now(UTC).isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MILLISECONDS,
    }
    cancelled = record.report is not None and record.report.stop_reason is StopReason.CANCELLED
    if now.is_lost:
        message = "It was not begun after its task was read. Begin it again: no finished call is paid twice."
        return {**task, "status": "cancelled" if cancelled else "failed", "statusMessage": message}
    if record.report is not None and now.place == session:
        return {**task, "status": "cancelled" if cancelled and record.report.answer is None else "completed"}
    task["statusMessage"] = progress_line(record)
    pending = pending_questions(record.events, record.text, records.prompt)
    if open_questions := asked_of_owner(pending, given_seats(records, now.place)):
        task["status"] = "input_required"
        task["inputRequests"] = {q.key: _elicitation(f"{q.addressee} is asked:\n\n{q.text}") for q in open_questions}
    return task


def _elicitation(message: str) -> dict[str, Any]:
    """Return a request that asks a person for a text."""
    schema = {"type": "object", "properties": {"answer": {"type": "string", "title": "Answer"}}, "required": ["answer"]}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }
