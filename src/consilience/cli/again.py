"""Going on with a session that was left."""

from __future__ import annotations

from pathlib import Path

from consilience.cli.config import load_config, load_env_file
from consilience.cli.consent import agree
from consilience.cli.desk import desk_for
from consilience.cli.failures import say
from consilience.cli.fetch import ensure_weights
from consilience.cli.plan import Plan, check_models, make_plan
from consilience.cli.run import deliver, watch, without_report
from consilience.cli.sessions import find_session, user_store
from consilience.domain.errors import SessionBusy, UnavailableModel, UnknownName
from consilience.domain.events import SessionStarted
from consilience.domain.messages import Source
from consilience.engine import runner
from consilience.engine.protocol import find_protocol
from consilience.journal.store import Store
from consilience.models.names import Choice
from consilience.reporting.course import Course, fold
from consilience.reporting.files import claim_directory
from consilience.reporting.words import count


def go_on(id: str, *, yes: bool, out: Path | None, as_json: bool, quiet: bool, env_file: Path | None) -> int:
    """Resume a session; a finished one gives its report. Returns the exit code."""
    if env_file is not None:
        load_env_file(env_file)
    config = load_config()
    if out is not None:
        claim_directory(out)
    with user_store() as store:
        session = find_session(store, id)
        events = store.read(session)
        course = fold(events)
        models: list[str] = []
        desk = desk_for(agent.model for agent in course.agents) if course.finished is None else None
        seated = desk.seat({agent.id: agent.model for agent in course.agents}) if desk else None
        if course.finished is not None:
            _tell(f"{session} is finished already; this is its report.", quiet)
        elif holder := store.holder(session):
            raise SessionBusy(
                f"session {session} is being run by {holder}",
                do="Wait for it to end, or stop that process; then try again.",
            )
        elif course.started is not None:
            plan = _plan(course.started, course.made, store)
            _check_recorded(session, plan)
            _tell(_first_line(session, course, store), quiet)
            agree(plan, yes=yes, confirm_above=config.confirm_above, resumed=True)
            ensure_weights(plan.models, quiet=quiet)
            models = plan.models
        report = watch(
            lambda options: runner.resume(session, store=store, models=seated, options=options),
            session=session,
            title=f"{course.started.protocol if course.started else ''} {session}".strip(),
            models=models,
            quiet=quiet or course.finished is not None,
            before=tuple(events),
            desk=desk,
            as_json=as_json,
        )
        if isinstance(report, int):
            return without_report(report, session, store, as_json=as_json)
        return deliver(report, out=out, as_json=as_json)


def _plan(started: SessionStarted, made: int, store: Store) -> Plan:
    """What the rest of the session may cost, after the calls that were made."""
    protocol = find_protocol(started.protocol).model_validate(started.settings)
    sources = [Source(text=store.text(s.text), name=s.name, agents=s.agents) for s in started.sources]
    models = {agent.id: agent.model for agent in started.agents}
    choice = Choice("", "as recorded")
    return make_plan(
        protocol,
        started.agents,
        models,
        choice,
        started.limits,
        store.text(started.task),
        sources,
        None,
        started.encoder,
        made=0 if started.steps else made,  # of steps nobody knows how many are left
    )


def _check_recorded(session: str, plan: Plan) -> None:
    """Raise for a model that cannot be reached now. One that has no name here was handed over by a program."""
    try:
        check_models(plan.models, keys=True)
    except UnknownName as error:
        raise UnavailableModel(
            f"session {session} was begun by a program with a model of its own, which has no name here: {error.what}",
            do=f"Give it again from Python: consilience.resume({session!r}, model={{id: model, …}}).",
        ) from None


def _first_line(session: str, course: Course, store: Store) -> str:
    line = f"Going on with {session}: {count(course.made, 'call')} recorded, not paid for again"
    outside = (*course.awaited, *course.answered)
    open_calls = [flight.key for flight in store.flights(session) if flight.key not in outside]
    if open_calls:
        line += f"; {len(open_calls)} in flight when it stopped, asked again"
    return f"{line}."


def _tell(line: str, quiet: bool) -> None:
    if not quiet:
        say(line)
