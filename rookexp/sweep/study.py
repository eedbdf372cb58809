"""A sweep's study: its points claimed by one process each, its results told once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from rookexp.sweep import job, liveness, outcome
from rookexp.sweep.liveness import Worker
from rookexp.sweep.plan import Plan
from rookexp.sweep.space import Scalar, Space

# Attributes of a trial.
OWNER, REASON, FIGURES, EXCESS, SAME_AS, VOID = "owner", "reason", "figures", "excess", "same_as", "void"
TWICE = 10  # draws of known points in a row after which the first unknown point is taken


class Book:
    """The study, and which process works on what. Once a running trial's owner has died, any other may take it over."""

    def __init__(self, plan: Plan, worker: Worker, storage: BaseStorage, name: str) -> None:
        self.plan = plan
        self.worker = worker
        self.storage = storage
        self.name = name
        self.space = plan.space
        self.study = optuna.load_study(study_name=name, storage=storage, sampler=plan.settings.make_sampler(0))

    def trials(self) -> list[FrozenTrial]:
        """Every trial that stands for a point of its own, in order; waiting ones too.

        Left out are draws of a point that another trial has, and trials whose process died, or was stopped, while their
        point was being chosen.
        """
        own = [t for t in self.study.get_trials(deepcopy=False) if not {VOID, SAME_AS} & t.user_attrs.keys()]
        return [trial for trial in own if whole(self.space, point_of(trial))]

    def claim(self) -> FrozenTrial | None:
        """Claims a point for this process, first one that a dead process has left; None when none is left."""
        with self.worker.gate():
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == TrialState.RUNNING and self.left(trial):
                    if OWNER in trial.user_attrs:
                        return self._own(trial)
                    self._void(trial)
            return self._own(new) if (new := self._next()) is not None else None

    def set(self, trial: FrozenTrial, key: str, value: Any) -> None:
        """Sets an attribute of a running trial."""
        self.storage.set_trial_user_attr(trial._trial_id, key, value)

    def fresh(self, trial: FrozenTrial) -> FrozenTrial:
        """The trial as the storage has it at this moment."""
        return self.storage.get_trial(trial._trial_id)

    def tell(self, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Ends a trial, with the values of its objectives where it is complete."""
        self.study.tell(trial.number, values=values, state=state)

    def constrain(self, trial: FrozenTrial, excess: Mapping[str, float]) -> None:
        """Records by how much each constraint is exceeded; 0 or less means that it is kept."""
        self.set(trial, EXCESS, dict(excess))
        if hasattr(optuna.trial.Trial, "set_constraint"):  # from Optuna 5 on; before, samplers read no constraint here
            live = optuna.trial.Trial(self.study, trial._trial_id)
            for name, value in excess.items():
                live.set_constraint(name, value)

    def elsewhere(self) -> list[FrozenTrial]:
        """Running trials that other processes own, alive or dead."""
        own = self.worker.name
        return [t for t in self.trials() if t.state == TrialState.RUNNING and t.user_attrs.get(OWNER) != own]

    def orphaned(self) -> dict[int, list[Path]]:
        """Trial number -> held locks, of trials whose owner died while their jobs still run, as joblib's workers do."""
        held = {t.number: list(filter(liveness.held, self._locks(t))) for t in self.elsewhere() if self._ownerless(t)}
        return {number: locks for number, locks in held.items() if locks}

    def judged(self) -> bool:
        """Whether the objective has told anything of a point yet, or another process is at work to find out."""
        told = (t.state.is_finished() or t.intermediate_values for t in self.study.get_trials(deepcopy=False))
        return any(told) or bool(self.worker.others()) or bool(self.orphaned())

    def to_try_again(self) -> list[int]:
        """The numbers of failed trials whose jobs raised or could not start: the cause may have been mended.

        A trial stays failed if one of its runs has diverged, or if all have finished without the figure wanted. []
        while other processes work on the sweep, or jobs that have outlived theirs.
        """
        failed = [trial for trial in self.trials() if trial.state == TrialState.FAIL]
        if not failed or self.worker.others() or self.orphaned():
            return []
        return [
            trial.number
            for trial in failed
            if len(trial.user_attrs.get(FIGURES, {})) < len(self.plan.seeds)
            and not any(
                outcome.read(self.plan.job_folder(job)).status == outcome.DIVERGED
                for job in self.plan.jobs(trial.number)
            )
        ]

    def left(self, trial: FrozenTrial) -> bool:
        """Whether nobody works on a running trial: neither its owner, nor a job that has outlived its owner."""
        return self._ownerless(trial) and not any(map(liveness.held, self._locks(trial)))

    def add_grid(self) -> None:
        """Enqueues the points of the grid that are not in the study yet."""
        there = {key_of(self.space, trial) for trial in self.trials()}
        for point in self.space.grid():
            if tuple(point.values()) not in there:
                self.study.enqueue_trial(point)

    def _ownerless(self, trial: FrozenTrial) -> bool:
        return not self.worker.alive(trial.user_attrs.get(OWNER, "nobody"))

    def _locks(self, trial: FrozenTrial) -> list[Path]:
        """The files that the jobs of a trial hold a lock on while they run."""
        return [job.lock_of(self.plan.job_folder(number)) for number in self.plan.jobs(trial.number)]

    def _own(self, trial: FrozenTrial) -> FrozenTrial:
        if before := trial.user_attrs.get(OWNER):
            self.worker.bury(before)
        self.set(trial, OWNER, self.worker.name)
        return self.fresh(trial)

    def _void(self, trial: FrozenTrial) -> None:
        """Ends a trial whose process died before its point was chosen; a point fixed for it is enqueued again."""
        self.set(trial, VOID, True)
        self.set(trial, REASON, "ended while the point was being chosen")
        self.tell(trial, TrialState.FAIL, None)
        if point := trial.system_attrs.get("fixed_params"):
            self.study.enqueue_trial(point)

    def _next(self) -> FrozenTrial | None:
        """The trial of a new point: a waiting one in grid order, else the sampler's; None when none is wanted."""
        known = 0
        while True:
            trials = self.study.get_trials(deepcopy=False)
            waiting = any(trial.state == TrialState.WAITING for trial in trials)
            counted = {key_of(self.space, trial): trial for trial in reversed(self.trials()) if trial.params}
            wanted = self.plan.settings.n_trials
            full = wanted is None or len(counted) >= min(wanted, self.space.size)
            if full and not (waiting and wanted is None):
                return None
            if not waiting and known >= TWICE and self.space.size < math.inf:
                self.study.enqueue_trial(next(p for p in self.space.points() if tuple(p.values()) not in counted))
            self.study.sampler = self.plan.settings.make_sampler(len(trials))
            number = self.study.ask(self.space.distributions()).number
            trial = self.study.get_trials(deepcopy=False)[number]
            same = counted.get(key_of(self.space, trial))
            if same is None:
                return trial
            # The same point under the same seeds would be the same run again.
            known += 1
            self.set(trial, SAME_AS, same.number)
            state = TrialState.FAIL if same.state == TrialState.RUNNING else same.state  # its result is not known yet
            self.tell(trial, state, same.values if state == TrialState.COMPLETE else None)


def key_of(space: Space, trial: FrozenTrial) -> tuple[Scalar, ...]:
    """A trial's point as a tuple that can be compared; () where it has none yet."""
    point = point_of(trial)
    return tuple(space.snapped(point).values()) if whole(space, point) else ()


def point_of(trial: FrozenTrial) -> dict[str, Scalar]:
    """What is known of a trial's point: the values that were fixed for it, and those that it has taken."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def whole(space: Space, point: Mapping[str, Scalar]) -> bool:
    """Whether a point has a value for every parameter."""
    return point.keys() >= space.declared.keys()
