"""How a job ended, read from its folder: finished, pruned or failed and why, with its figures; and how a point did."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from optuna.trial import TrialState

from rookexp import track, verdict
from rookexp.comparison import measures
from rookexp.errors import RookexpError, reason_of
from rookexp.files import write_atomic
from rookexp.run_folder import run_info, runs
from rookexp.sweep import job

if TYPE_CHECKING:
    from rookexp.sweep.plan import Plan

FINISHED, PRUNED, FAILED, DIVERGED, INTERRUPTED = "finished", "pruned", "failed", "diverged", "interrupted"
ENDED = (FINISHED, PRUNED, FAILED, DIVERGED)  # a job with any other status can be resumed

ERROR = "error.txt"  # the traceback of a mistake in the program


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a job has come."""

    status: str  # that of summary.json; "" where there is none
    reason: str = ""  # why it did not finish
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)  # metrics.jsonl


def read(folder: Path) -> Outcome:
    """The outcome of the job in a run folder, which may not exist yet.

    Raises: DataError for damaged files.
    """
    if not (summary := track.read_summary(folder)):
        return Outcome("")
    reason = " ".join(str(summary.get("reason") or "").split())
    return Outcome(str(summary.get("status", "")), reason, track.read_metrics(folder))


def fail(folder: Path, reason: str) -> None:
    """Records that a job failed and why, where the job itself could not."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {**track.read_summary(folder), "status": FAILED, "reason": reason}
    write_atomic(folder / track.SUMMARY, json.dumps(known, indent=2) + "\n")


def revive(folder: Path) -> None:
    """Marks a failed job as interrupted, so that it is run again."""
    (folder / ERROR).unlink(missing_ok=True)
    if (known := track.read_summary(folder)).get("status") == FAILED:
        write_atomic(folder / track.SUMMARY, json.dumps({**known, "status": INTERRUPTED}, indent=2) + "\n")


def figure(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """A figure of a run by `runs.figures`' name, or the last value of a metric; NaN where it was not logged."""
    found = runs.figures(rows)
    if name in found:
        return found[name]
    values = verdict.column(rows, name)[1]
    return float(values[-1]) if len(values) else math.nan


def is_known(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether `name` is that of a figure, or of a metric that was logged, even if never with a finite value.

    The figures of the greedy reward are only known where that was logged, which pretraining does not do.
    """
    if name in ("gain", "reward", "best"):
        name = job.GREEDY
    return name in measures.FIGURES or name == "steps" or any(name in row for row in rows)


def note_failure(folder: Path, result: JobReturn) -> None:
    """Records in a job's folder why it failed, unless the job has done so; with the traceback, if it is a bug."""
    found = read(folder)
    if result.status == JobStatus.COMPLETED:
        if found.status not in ENDED and (folder / run_info.CONFIG).is_file():
            fail(folder, f"the job ended, and {folder} does not say how")
        return
    error = result._return_value
    if not isinstance(error, RookexpError):
        text = "".join(traceback.format_exception(error))
        folder.mkdir(parents=True, exist_ok=True)  # that it is missing may be why the job failed
        write_atomic(folder / ERROR, text)
    if found.status not in ENDED or not (found.reason or found.status == FINISHED):
        fail(folder, reason_of(error))


def figures(found: Outcome, plan: Plan) -> dict[str, float]:
    """A run's finite figures, those that the sweep asks for among them."""
    values = runs.figures(found.rows) | {name: figure(found.rows, name) for name in plan.settings.figures}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def judged(found: Mapping[int, Outcome], pruned: str | None) -> tuple[TrialState, str]:
    """A point's state by its jobs' outcomes, and why it is not complete; `pruned`: why it was given up, if it was."""
    if pruned is not None:
        return TrialState.PRUNED, pruned
    for seed, one in found.items():
        if one.status != FINISHED:
            which = f"seed {seed}: " if len(found) > 1 else ""
            return TrialState.FAIL, f"{which}{one.reason or one.status}"
    return TrialState.COMPLETE, ""


def excess(plan: Plan, spread: Mapping[str, float]) -> dict[str, float]:
    """By how much each constraint is exceeded; 0 or less where it is kept."""
    return {
        f"{name} {relation} {bound:g}": spread[name] - bound if relation == "<=" else bound - spread[name]
        for name, relation, bound in plan.settings.bounds
    }
