"""A training for tests of sweeps: `python tests/sweep_task.py -m sweep=grid ...`; a run folder in no time.

The reward rises by `optim.lr` a step, less by the seed. `grpo.entropy_coef` says what happens: 0.1 raises, 0.2 logs no
number, 0.3 diverges, 0.4 is a signal at step 2, 0.5 ends the process, 0.6 finds the disk full at step 2, 0.7 its
folder gone. Each start, step and end is a line of `log`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rookexp.config import door
from rookexp.errors import RookexpError, RunPruned, RunStopped, TrainingDiverged
from rookexp.sweep import job
from rookexp.track import JsonlTracker

RAISES, NO_NUMBER, DIVERGES, SIGNAL, DIES, FULL, GONE = 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7
SECONDS = "SWEEP_TASK_SECONDS"  # a step takes


def task(config: dict[str, Any], folder: Path) -> None:
    """Writes what a training would."""
    assert door.typed(), "as a training asks before it begins"
    with job.at_work(folder) as trial:
        if trial is None or not trial.pruned():
            with suppress(RunPruned):
                train(config, folder, trial)


def train(config: dict[str, Any], folder: Path, trial: job.Trial | None) -> None:
    """One run; a `state` file stands for the checkpoint."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    what, seed = config["grpo"]["entropy_coef"], config["seed"]
    state = folder / "state"
    first = int(state.read_text(encoding="utf-8")) if state.exists() else 0
    note(folder, f"start {first}")
    tracker = JsonlTracker(folder=folder, first_step=first + 1 if first else 0)
    ends: list[RunPruned] = []

    def evaluate(step: int) -> dict[str, float]:
        return {"eval/reward": step * (config["optim"]["lr"] - seed / 10) if what != NO_NUMBER else float("nan")}

    if trial is not None:
        evaluate = trial.watching(evaluate, config["steps"], ends.append)
    tracker.start(config)
    status, reason = "failed", ""
    try:
        for step in range(first + 1 if first else 0, config["steps"] + 1):
            time.sleep(float(os.environ.get(SECONDS, 0)))
            if what == RAISES:
                raise ZeroDivisionError("a mistake")
            if what == DIVERGES:
                status = "diverged"
                raise TrainingDiverged(f"step {step}: not finite")
            if what == SIGNAL and step == 2 and first == 0:
                status = "interrupted"
                raise RunStopped("SIGTERM after step 2", 143)
            if what == FULL and step == 2 and first == 0:
                status = "interrupted"
                raise OSError(errno.ENOSPC, "No space left on device")
            if what == GONE:
                shutil.rmtree(folder)
            if what == DIES:
                os._exit(9)
            tracker.log(step, evaluate(step) | {"kl/forward": config["kl"].get("coef", 0.0), "step_s": 1.0})
            state.write_text(str(step), encoding="utf-8")
            note(folder, f"step {step}")
            if ends:
                status = "pruned"
                raise ends[0]
        status = "finished"
        note(folder, "end")
    except RookexpError as error:
        reason = str(error)
        raise
    finally:
        try:
            tracker.summary({"reason": reason} if reason else {})
        finally:
            tracker.finish(status)
    if trial is not None:
        trial.finished([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])


def note(folder: Path, text: str) -> None:
    """A line in the sweep's log, in one write."""
    with (folder.parent / "log").open("a", encoding="utf-8") as log:
        log.write(f"{folder.name} {text}\n")


def main() -> None:
    door.enter(task, "config")


if __name__ == "__main__":
    main()
