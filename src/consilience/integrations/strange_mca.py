"""`run_strange_mca` with the parameters of both designs of strange-mca (seeds 000 and 001), on the protocols of this package.

`mca_mode=True` selects `broadcast`. Otherwise any of `max_rounds`, `convergence_threshold`, `enable_downward_signals` and
`perspectives` selects `emergence`. Without them it is `decompose`, in which subtasks are assigned from the top.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from consilience.api import run_sync
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Limits
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.runner import Models, Options
from consilience.journal.store import Store
from consilience.models.registry import full_name
from consilience.reporting.files import claim_directory, write_files

EMERGENCE_PARAMETERS = ("max_rounds", "convergence_threshold", "enable_downward_signals", "perspectives")
"""Any of these selects the bottom-up design of seed 000."""

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
"""Parameters of strange-mca, and the settings that they are here."""

IGNORED_PARAMETERS = (
    *("viz", "langgraph_viz_dir", "print_tree", "print_details", "log_level", "local_logs_only", "only_local_logs"),
    *("langfuse", "langfuse_session_id", "lateral_pressure"),
)
"""Accepted and not used: `consilience show` and `export` draw, and logging is the standard one."""


class DesignParameters(TypedDict, total=False):
    """Parameters of the designs besides the shape of the tree; None counts as not given."""

    max_rounds: int | None
    convergence_threshold: float | None
    enable_downward_signals: bool | None
    perspectives: Sequence[str] | None
    max_coordination_rounds: int | None
    max_iterations: int | None
    satisfaction_threshold: float | None
    strange_loop_count: int
    domain_specific_instructions: str | None


@dataclass(frozen=True)
class ChosenProtocol:
    """The protocol that parameters of strange-mca select."""

    protocol: Protocol
    ignored: tuple[str, ...]
    """Parameters that have no meaning for the protocol."""

    def warn(self) -> None:
        """Warn of the ignored parameters, at the line that called the caller."""
        if self.ignored:
            warnings.warn(
                f"parameters that mean nothing to {self.protocol.name} are ignored: {', '.join(self.ignored)}",
                UserWarning,
                stacklevel=3,
            )


def choose_protocol(mca_mode: bool, arguments: Mapping[str, object]) -> ChosenProtocol:
    """Return the protocol that the parameters select; None counts as not given.

    Raises `SettingsError`, or `UnknownName` if the protocol is not installed.
    """
    unknown = sorted(set(arguments) - set(SETTINGS) - set(IGNORED_PARAMETERS))
    if unknown:
        raise SettingsError(
            f"run_strange_mca has no parameter {', '.join(unknown)}",
            do=f"It has: task, model, mca_mode, output_dir, {', '.join((*SETTINGS, *IGNORED_PARAMETERS))}.",
        )
    parameters = {name: value for name, value in arguments.items() if value is not None}
    if isinstance(perspectives := parameters.get("perspectives"), Sequence):
        if not perspectives:
            raise SettingsError("perspectives is empty", do="Name at least one, or leave it out for the usual ones.")
        parameters["perspectives"] = tuple(perspectives)
    bottom_up = any(parameter in parameters for parameter in EMERGENCE_PARAMETERS)
    name = "broadcast" if mca_mode else "emergence" if bottom_up else "decompose"
    cls = find_protocol(name)
    settings: dict[str, Any] = {}
    ignored = []
    for parameter, value in parameters.items():
        setting = SETTINGS.get(parameter, "")
        if setting in cls.model_fields:
            settings[setting] = value
        elif value or parameter in EMERGENCE_PARAMETERS:  # a parameter that is off needs no warning
            ignored.append(parameter)
    if name != "emergence" and settings.get("domain_instructions"):  # the origin reads them in a review of their own
        settings["strange_loops"] = max(settings.get("strange_loops", 0), 1)
    if name == "emergence" and "threshold" in settings:
        settings["similarity"] = "jaccard"  # the measure that their threshold refers to
    return ChosenProtocol(cls(**settings), tuple(ignored))


def run_strange_mca(
    task: str,
    child_per_parent: int = 3,
    depth: int = 2,
    model: Models | None = None,
    *,
    mca_mode: bool = False,
    output_dir: str | Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    store: Store | None = None,
    options: Options | None = None,
    **parameters: Unpack[DesignParameters],
) -> dict[str, Any]:
    """Deliberate, and return the final state of the design that the parameters select.

    `model` may be a name as in strange-mca (`gpt-4o-mini`) or as in this package; None chooses as `deliberate` does. With
    `output_dir`, `final_state.json` and (of `emergence`) `mca_report.json` are written there. One warning names the parameters of
    strange-mca that have no meaning here. `seed`, `limits`, `store` and `options` are additions of this package.
    """
    chosen = choose_protocol(mca_mode, {"child_per_parent": child_per_parent, "depth": depth, **parameters})
    chosen.warn()
    if output_dir is not None:
        claim_directory(Path(output_dir))
    report = run_sync(
        task, chosen.protocol, model=full_names(model), seed=seed, limits=limits, store=store, options=options
    )
    state: dict[str, Any] = report.final_state()  # type: ignore[attr-defined]
    if output_dir is not None:
        files = {"final_state.json": state}
        if hasattr(report, "mca_report"):
            files["mca_report.json"] = report.mca_report()
        texts = {name: json.dumps(data, indent=2, ensure_ascii=False) + "\n" for name, data in files.items()}
        write_files(Path(output_dir), texts, session=report.session)
    return state


def full_names(model: Models | None) -> Models | None:
    """Return the models with providers added to names that lack one."""
    if isinstance(model, str):
        return full_name(model)
    if isinstance(model, Mapping):
        return {agent: full_name(name) if isinstance(name, str) else name for agent, name in model.items()}
    if isinstance(model, Sequence):
        return [full_name(name) if isinstance(name, str) else name for name in model]
    return model
