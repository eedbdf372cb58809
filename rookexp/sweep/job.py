"""What a job knows of the sweep that it belongs to: the note in its folder, and whether the pruner lets it go on."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookexp.errors import ConfigError, RunPruned
from rookexp.run_folder.run_info import TRIAL

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

PRUNED = "pruned"  # attribute of a trial: why it was ended
GREEDY = "eval/reward"
GROWS = (
    "hardware.grow=batch: not in a sweep, whose runs would have other batches than they are labelled with; find the "
    "batch by a single run, then type grpo.prompts_per_step=N"
)


@contextmanager
def at_work(folder: Path) -> Iterator[Trial | None]:
    """Yields the trial that this run folder is a job of, locked against other processes; None outside a sweep of ours.

    Raises: ConfigError where another process is at work in the folder of a run that is no job.
    """
    if not (folder / TRIAL).is_file():
        with alone(folder):
            yield None
        return
    trial = Trial(json.loads((folder / TRIAL).read_text(encoding="utf-8")), folder)
    from rookexp.sweep import liveness  # needs POSIX locks, and a single run shall do without

    with liveness.locked(lock_of(folder)):
        yield trial


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside, no other process on this machine is at work in a run folder; unchecked where a system has no such locks.

    Raises: ConfigError where one is.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise ConfigError(f"{folder}: another process is at work in it; wait for it, or end it first") from error
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(handle)


def lock_of(folder: Path) -> Path:
    """The file that a job holds a lock on while it runs, also when the sweep that launched it is gone."""
    from rookexp.sweep import liveness

    return folder.parent / liveness.FOLDER / f"job-{folder.name}"


class Trial:
    """A job's side of a trial: it reports values, and asks the sweep's pruner. Without a pruner it does nothing.

    A study numbers the steps of all seeds of a point in one sequence, so that a pruner compares equal seeds at equal
    steps.
    """

    def __init__(self, note: Mapping[str, Any], folder: Path) -> None:
        self.note = note
        self.folder = folder
        self._open: Study | None = None

    @property
    def prunes(self) -> bool:
        """Whether there is a pruner."""
        return self.note["pruner"] is not None

    def pruned(self) -> str | None:
        """Why the point was given up; None where it was not."""
        return self._trial().user_attrs.get(PRUNED) if self.prunes else None

    def watching(
        self, evaluate: Callable[[int], dict[str, float]], steps: int, end: Callable[[RunPruned], None]
    ) -> Callable[[int], dict[str, float]]:
        """The evaluation; if a pruner looks at steps, also reports the greedy reward and calls `end` when pruned."""

        def watched(step: int) -> dict[str, float]:
            metrics = evaluate(step)
            if step > 0 and GREEDY in metrics:  # all trials begin alike
                begin = self.note["place"] * steps
                # Each seed's first steps are spared, and a point that has been computed to its end.
                spared = step < self.note["pruner"].get("n_warmup_steps", 0) or (step == steps and self._last())
                reason = self.report(begin + step, metrics[GREEDY], f"step {step}", since=begin + 1, spared=spared)
                if reason is not None:
                    end(RunPruned(reason))
            return metrics

        return watched if self.prunes and self.note["prune_on"] == "step" else evaluate

    def finished(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Reports a whole run to a pruner that compares seeds."""
        if self.prunes and self.note["prune_on"] == "seed":
            from rookexp.sweep import outcome

            value = outcome.figure(rows, self.note["objective"])
            self.report(self.note["place"], value, f"seed {self.note['seed']}", spared=self._last())

    def _last(self) -> bool:
        """Whether this is the run of the point's last seed, so that nothing is left to be saved by giving it up."""
        return bool(self.note["place"] + 1 == self.note.get("seeds"))

    def report(self, place: int, value: float, after: str, since: int = 0, *, spared: bool = False) -> str | None:
        """Reports a value at a place in the sequence; returns why the pruner gives the point up for it, or None.

        Values at places before `since` do not count. `spared`: the value is for the comparison of other points alone.
        """
        if not math.isfinite(value):
            return None  # nothing can be compared with it; a run that diverges says so itself
        study = self._study()
        storage, number = study._storage, self.note["trial_id"]
        storage.set_trial_intermediate_value(number, place, float(value))
        if spared:
            return None
        trial = copy.copy(self._trial())
        # Pruners look at a trial's best value: an earlier seed's would speak for a hopeless later one.
        trial.intermediate_values = {at: v for at, v in trial.intermediate_values.items() if at >= since}
        if not study.pruner.prune(study, trial):
            return None
        name = str(self.note["pruner"]["_target_"]).rpartition(".")[2]
        reason = f"pruned by {name} after {after}, at {value:.4g}"
        storage.set_trial_user_attr(number, PRUNED, reason)
        return reason

    def _trial(self) -> FrozenTrial:
        return self._study()._storage.get_trial(self.note["trial_id"])

    def _study(self) -> Study:
        if self._open is None:
            import optuna

            from rookexp.sweep import settings
            from rookexp.sweep.storage import storage_of

            storage = storage_of(self.note["storage"], self.folder.parent)
            pruner = settings.make(self.note["pruner"], "pruner")
            self._open = optuna.load_study(study_name=self.note["study"], storage=storage, pruner=pruner)
        return self._open
