"""`run_strange_mca` with the parameters of both designs of strange-mca (seeds 000 and 001), on the protocols here.

`mca_mode=True` is `broadcast`. Otherwise any of `max_rounds`, `convergence_threshold`, `enable_downward_signals` and
`perspectives` means `emergence`; without them it is `decompose`, the first design's assigning of subtasks from the top.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.api import run_sync
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.runner import Models, Options
from consilience.journal.store import Store
from consilience.models.registry import full_name
from consilience.reporting.files import claim_directory, write_files

EMERGENT = ("max_rounds", "convergence_threshold", "enable_downward_signals", "perspectives")
"""Any of these asks for the bottom-up design of seed 000."""

SETTINGS: Mapping[str, str] = {
    "child_per_parent": "children",
    "depth": "depth",
    "strange_loop_count": "strange_loops",
    "domain_specific_instructions": "domain_instructions",
    "max_rounds": "max_rounds",
    "convergence_threshold": "threshold",
    "enable_downward_signals": "signals",
    "perspectives": "perspectives",
    "max_coordination_rounds": "coordination_rounds",
    "max_iterations": "max_iterations",
    "satisfaction_threshold": "satisfaction_threshold",
}
"""Their word, and the setting it is here."""

MEANINGLESS = (
    *("viz", "langgraph_viz_dir", "print_tree", "print_details", "log_level", "local_logs_only", "only_local_logs"),
    *("langfuse", "langfuse_session_id", "lateral_pressure"),
)
"""Taken and not used: `consilience show` and `export` draw, and standard logging logs."""


@dataclass(frozen=True)
class Chosen:
    """What the parameters come to, and which of those given mean nothing to it."""

    protocol: Protocol
    ignored: tuple[str, ...]


def choose(mca_mode: bool, given: Mapping[str, object]) -> Chosen:
    """The protocol of these parameters; those that are None were not given. Raises `SettingsError`, or `UnknownName` where the
    protocol is not installed."""
    unknown = sorted(set(given) - set(SETTINGS) - set(MEANINGLESS))
    if unknown:
        raise SettingsError(
            f"run_strange_mca has no parameter {', '.join(unknown)}",
            do=f"It has: task, model, mca_mode, output_dir, {', '.join((*SETTINGS, *MEANINGLESS))}.",
        )
    said = {name: value for name, value in given.items() if value is not None}
    if said.get("perspectives") == []:
        raise SettingsError("perspectives names none", do="Name at least one, or leave it out for the usual ones.")
    bottom_up = any(one in said for one in EMERGENT)
    name = "broadcast" if mca_mode else "emergence" if bottom_up else "decompose"
    cls = find_protocol(name)
    settings: dict[str, Any] = {}
    ignored = []
    for parameter, value in said.items():
        setting = SETTINGS.get(parameter, "")
        if setting in cls.model_fields and not _idle(name, parameter, said):
            settings[setting] = tuple(value) if isinstance(value, list) else value
        elif value or parameter in EMERGENT:  # what is switched off asks for nothing
            ignored.append(parameter)
    if name == "emergence" and "threshold" in settings:
        settings["similarity"] = "jaccard"  # what their threshold is of
    return Chosen(cls(**settings), tuple(ignored))


def choose_from(arguments: Mapping[str, Any]) -> Chosen:
    """`choose` for the arguments of a function with these parameters, in their order; `others` are those it has no name for."""
    given = {name: arguments[name] for name in arguments if name in SETTINGS} | arguments["others"]
    if given["perspectives"] is not None:
        given["perspectives"] = list(given["perspectives"])
    return choose(arguments["mca_mode"], given)


def _idle(protocol: str, parameter: str, said: Mapping[str, object]) -> bool:
    """Only `emergence` has a review of its own for domain instructions; elsewhere they are read in the last strange loop."""
    return (
        parameter == "domain_specific_instructions" and protocol != "emergence" and not said.get("strange_loop_count")
    )


def run_strange_mca(
    task: str,
    child_per_parent: int = 3,
    depth: int = 2,
    model: Models | None = None,
    *,
    mca_mode: bool = False,
    max_rounds: int | None = None,
    convergence_threshold: float | None = None,
    enable_downward_signals: bool | None = None,
    perspectives: Sequence[str] | None = None,
    max_coordination_rounds: int | None = None,
    max_iterations: int | None = None,
    satisfaction_threshold: float | None = None,
    strange_loop_count: int = 0,
    domain_specific_instructions: str | None = None,
    output_dir: str | Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    store: Store | None = None,
    options: Options | None = None,
    **others: object,
) -> dict[str, Any]:
    """Deliberate, and give the final state of the design that the parameters ask for.

    `model` may be a name as strange-mca has them (`gpt-4o-mini`) or as they are here; None chooses as `deliberate` does. With
    `output_dir` the files `final_state.json` and, of `emergence`, `mca_report.json` are written there. Parameters that mean
    nothing here are named in one warning. `seed`, `limits`, `store` and `options` are ours.
    """
    chosen = choose_from(locals())
    warn(chosen)
    if output_dir is not None:
        claim_directory(Path(output_dir))
    report = run_sync(task, chosen.protocol, model=named(model), seed=seed, limits=limits, store=store, options=options)
    state = final_state(report)
    if output_dir is not None:
        _write(Path(output_dir), report, state)
    return state


def warn(chosen: Chosen) -> None:
    """Say what was given and means nothing to what was chosen; in the line that called whoever calls this."""
    if chosen.ignored:
        warnings.warn(
            f"parameters that mean nothing to {chosen.protocol.name} are ignored: {', '.join(chosen.ignored)}",
            UserWarning,
            stacklevel=3,
        )


def named(model: Models | None) -> Models | None:
    """Models given by name, with their provider."""
    if isinstance(model, str):
        return full_name(model)
    if isinstance(model, Mapping):
        return {agent: full_name(one) if isinstance(one, str) else one for agent, one in model.items()}
    if isinstance(model, Sequence):
        return [full_name(one) if isinstance(one, str) else one for one in model]
    return model


def final_state(report: Report) -> dict[str, Any]:
    """The design's `final_state.json`, which its protocol's report knows."""
    state: dict[str, Any] = report.final_state()  # type: ignore[attr-defined]
    return state


def _write(directory: Path, report: Report, state: dict[str, Any]) -> None:
    files = {"final_state.json": state}
    if hasattr(report, "mca_report"):
        files["mca_report.json"] = report.mca_report()
    write_files(
        directory, {name: json.dumps(data, indent=2, ensure_ascii=False) + "\n" for name, data in files.items()}
    )
