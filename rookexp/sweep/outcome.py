"""What came of a job, read from its folder: finished, pruned or failed and why, and its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookexp import runs, track, verdict
from rookexp.run_info import write_atomic

FINISHED, PRUNED, FAILED, DIVERGED = "finished", "pruned", "failed", "diverged"
ENDED = (FINISHED, PRUNED, FAILED, DIVERGED)  # anything else can go on


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a job has come."""

    status: str  # that of summary.json; "" where there is none
    reason: str = ""  # why it did not finish
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)  # metrics.jsonl


def read(folder: Path) -> Outcome:
    """The job in a run folder, which may not exist yet."""
    try:
        summary = json.loads((folder / track.SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Outcome("")
    metrics = folder / track.METRICS
    rows = track.read_jsonl(metrics) if metrics.is_file() else []
    reason = " ".join(str(summary.get("reason") or "").split())
    return Outcome(str(summary.get("status", "")), reason, rows)


def fail(folder: Path, reason: str) -> None:
    """Notes why a job failed, where the job itself could not."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / track.SUMMARY
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_atomic(path, json.dumps({**known, "status": FAILED, "reason": reason}, indent=2) + "\n")


def figure(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """A figure of a run by `runs.figures`' name, or the last value of a metric; NaN where it was not logged."""
    found = runs.figures(rows)
    if name in found:
        return found[name]
    values = verdict.column(rows, name)[1]
    return float(values[-1]) if len(values) else math.nan
