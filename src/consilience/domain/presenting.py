"""What a protocol adds to how a report is shown, made and checked: a failure of its code is a warning and not an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from traceback import walk_tb

from pydantic import ValidationError

from consilience.domain.report import Forecast, Report, UnfinishedSession, find_report
from consilience.domain.sections import Presentation, checked_presentation
from consilience.domain.validation import describe_invalid


def present(report: Report) -> Presentation:
    """Return `report.presentation()`; an empty one, with a warning in the log, if the protocol's code fails."""
    presentation, problem = try_present(report)
    if problem:
        logging.getLogger("consilience").warning("in the report of %s %s", report.protocol, problem)
    return presentation


def present_plainly(report: Report) -> Presentation:
    """Return `report.plain_presentation()`; what `present` returns if the protocol's code fails."""
    presentation, problem = _try(report.plain_presentation, type(report), "plain_presentation")
    return present(report) if problem else presentation


def try_present(report: Report) -> tuple[Presentation, str]:
    """Return `report.presentation()` and "", or an empty one and a warning with the exception and its place in the protocol."""
    return _try(report.presentation, type(report))


def try_progress(session: UnfinishedSession) -> tuple[Presentation, str]:
    """Return what `progress` of the protocol's report returns and "", or an empty one and a warning, as `try_present` does."""
    cls = find_report(session.started.protocol)
    return _try(lambda: cls.progress(session), cls, "progress")


def try_forecasts(report: Report) -> tuple[tuple[Forecast, ...], str]:
    """Return `report.forecasts()` and "", or none and a warning, as `try_present` does."""
    try:
        return tuple(Forecast.model_validate(forecast) for forecast in report.forecasts()), ""
    except Exception as error:
        return (), f"no question can be followed up: {_describe_failure(error, type(report), 'forecasts')}"


def _try(make: Callable[[], Presentation], cls: type[Report], method: str = "presentation") -> tuple[Presentation, str]:
    try:
        presentation = make()
        if not isinstance(presentation, Presentation):
            raise TypeError(f"it returned {presentation!r:.60}, not a Presentation")
        return checked_presentation(presentation), ""
    except Exception as error:
        return Presentation(), f"the protocol's sections and views are missing: {_describe_failure(error, cls, method)}"


def _describe_failure(error: Exception, cls: type[Report], method: str) -> str:
    """Return `presentation() failed at MODULE, line N: ERROR`, with the innermost line of the protocol's own package."""
    package = cls.__module__.partition(".")[0]
    frames = [(frame.f_globals.get("__name__", ""), line) for frame, line in walk_tb(error.__traceback__)]
    own = [(module, line) for module, line in frames if module.partition(".")[0] == package and module != __name__]
    place = f" at {own[-1][0]}, line {own[-1][1]}" if own else ""
    kind = type(error).__name__
    if isinstance(error, ValidationError):
        kind, message = f"invalid {error.title}", describe_invalid(error)
    else:
        message = " ".join(str(error).split())
    return f"{method}() failed{place}: {kind}: {message:.300}"
