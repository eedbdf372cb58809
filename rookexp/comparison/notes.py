"""What a reader has to know before the numbers of a comparison: unfinished, unlike and changed runs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookexp.comparison import measures
from rookexp.errors import DataError
from rookexp.run_folder import runs
from rookexp.run_folder.run_info import INFO
from rookexp.run_folder.runs import Run

if TYPE_CHECKING:
    from rookexp.comparison.points import Point

SHOWN = 8  # names in a note
SILENT = ("hardware", "hydra")  # groups that may change when a run is resumed
BY_STEPS = ("optim.schedule.total_steps", "task.total_steps", "reference.at", "kl.anneal_steps")  # mostly ${steps}


def of(points: Sequence[Point], varying: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """The notes on some points, one line each; `varying`: dotted key -> its value in each, of what varies."""
    notes = []
    if short := [point.name for point in points if point.finished and not point.whole]:
        notes.append(
            f"{_listed(short)}: some runs did not finish, or are not here; figures and intervals are of those that "
            "did, which flatters a point that fails often"
        )
    if unmeasured := [point.name for point in points if not point.finished]:
        notes.append(f"{_listed(unmeasured)}: no run finished, so there are no figures")
    for run in (run for point in points for run in point.runs):
        if changed := anew(run):
            notes.append(f"{run.folder.name} went on with {', '.join(changed)}: it stands here as if it had begun so")
    apart = {measures.asked_apart(one.asked, other.asked) for one, other in itertools.pairwise(points)}
    if {measures.OTHER_PROMPTS, measures.OTHER_ANSWERS} & apart or len({bool(point.asked) for point in points}) > 1:
        notes.append(
            "not all evaluations ask the same; rewards are compared only where they do (with task.order=epochs, "
            "eval.positions=FILE gives all runs the same prompts)"
        )
    if len({one.engines for point in points for one in point.asked.values()} - {()}) > 1:
        notes.append("not all runs are judged by the same engines; rewards are compared only where they are")
    scored = (key for key in varying if key.split(".")[0] == "reward" and not key.endswith(measures.UNSCORED))
    if key := next(scored, None):
        notes.append(f"{key} differs: rewards under it are not on one scale and are not compared")
    if any(key.split(".")[0] == "hardware" for key in varying):
        notes.append("the hardware settings differ, and with them the times; where the precision does, results do, too")
    found = {read(run.folder / INFO).get("hardware", {}).get("precision") for point in points for run in point.runs}
    if len(found - {None}) > 1 and "hardware.precision" not in varying:
        notes.append("hardware.precision=auto came to bf16 in some runs and to fp32 in others: results differ by it")
    ends = ((run, own) for point in points for run, own in zip(point.runs, point.figures, strict=True))
    steps = {own.get("steps") for run, own in ends if run.status == "finished"}
    if "steps" in varying or len(steps) > 1:
        notes.append("the runs have different numbers of steps: a longer one had more to learn from")
    return notes


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"


def anew(run: Run) -> list[str]:
    """Overrides typed with `resume=` that change what is trained, so that the steps before ran with other values.

    `steps` is one where a schedule ends with the run, and so had another end before.
    """
    info = read(run.folder / INFO)
    starts = [start.get("argv", ()) for start in (*info.get("earlier_starts", ()), info)]
    flat = runs.flat(run.config)
    silent = SILENT if any(flat.get(key, "") == flat.get("steps") for key in BY_STEPS) else (*SILENT, "steps")
    found = []
    for before, argv in itertools.pairwise(starts):
        typed = {word: re.split(r"[=.@]", word.lstrip("+~"))[0] for word in argv if "=" in word and word[:1] != "-"}
        if "resume" in typed.values():
            found += [
                w for w, key in typed.items() if w not in before and runs.affects_training(key) and key not in silent
            ]
    return found


def read(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is none. Raises: DataError for a damaged one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise DataError(f"{path}: no JSON ({error})") from error
    return found if isinstance(found, dict) else {}
