"""A sweep's study on disk: opened or continued, its points claimed by one process each, its results told once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from rookexp.errors import ConfigError
from rookexp.files import write_atomic
from rookexp.run_folder import runs
from rookexp.run_folder.run_info import SWEEP
from rookexp.sweep import job, liveness, outcome
from rookexp.sweep.liveness import Worker
from rookexp.sweep.settings import Settings
from rookexp.sweep.space import Scalar, Space
from rookexp.sweep.storage import JOURNAL, storage_of

CONFIG = "multirun.yaml"
# Attributes of a trial.
OWNER, REASON, FIGURES, EXCESS, SAME_AS, VOID = "owner", "reason", "figures", "excess", "same_as", "void"
FREE = (*runs.RUN_ONLY, "hardware", "seed")  # keys of a run's config that may differ between two starts of a sweep
ANOTHER_NAME = "type another name, as in sweep.study_name=NAME"
TWICE = 10  # draws of known points in a row after which the first unknown point is taken


@dataclass(frozen=True, slots=True)
class Plan:
    """The definition of a sweep; equal in all processes that work on it."""

    settings: Settings
    space: Space
    seeds: list[int]
    folder: Path
    config: Mapping[str, Any]  # what every job's configuration begins with, interpolations unresolved
    url: str | None  # the storage as it was written, so that a password in the environment stays there

    def jobs(self, trial: int) -> range:
        """The numbers of a trial's jobs, which are the names of their folders."""
        return range(trial * len(self.seeds), (trial + 1) * len(self.seeds))

    def job_folder(self, number: int) -> Path:
        """A job's run folder."""
        return self.folder / str(number)

    def note(self, study: str) -> dict[str, Any]:
        """The content of sweep.json; `study`: the study's name."""
        return {
            "name": self.settings.study_name,
            "objectives": [{"name": n, "direction": d} for n, d in self.settings.objectives.items()],
            "seeds": self.seeds,
            "params": self.space.declared,
            "constraints": self.settings.constraints,
            "baseline": self.settings.baseline,
            "study": study,
        }


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
                if trial.state == TrialState.RUNNING and self._left(trial):
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

    def _left(self, trial: FrozenTrial) -> bool:
        """Whether nobody works on a running trial: neither its owner, nor a job that has outlived its owner."""
        return self._ownerless(trial) and not any(map(liveness.held, self._locks(trial)))

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

    def _add_grid(self) -> None:
        """Enqueues the points of the grid that are not in the study yet."""
        there = {key_of(self.space, trial) for trial in self.trials()}
        for point in self.space.grid():
            if tuple(point.values()) not in there:
                self.study.enqueue_trial(point)


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


def opened(plan: Plan, worker: Worker) -> Book:
    """The study in a sweep's folder: new, or the one left there, when the plan is the same or contains its points.

    Raises: ConfigError saying what differs, or that the study's files are damaged.
    """
    try:
        return _opened(plan, worker)
    except (ValueError, KeyError) as error:  # from JSON, from UTF-8, or for a missing record
        raise ConfigError(
            f"{plan.folder}: {SWEEP} and {'the database' if plan.url else JOURNAL} do not make a study ({error}); "
            f"its runs are whole, and rookexp.compare reads them; to run the sweep anew {ANOTHER_NAME}"
        ) from error


def _opened(plan: Plan, worker: Worker) -> Book:
    with worker.gate():
        storage = storage_of(plan.url, plan.folder)
        path = plan.folder / SWEEP
        before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        directions = list(plan.settings.objectives.values())
        if before is None:
            name = plan.settings.study_name
            optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
        else:
            name = before["study"]
            old = Book(plan, worker, storage, name)
            refuse_other(plan, before, aims=old.judged())
            again = old.to_try_again()
            if before["params"] != plan.space.declared:
                refuse_outside(plan, before, old, again)
            aims = plan.note(name)["objectives"]
            if again or before["params"] != plan.space.declared or before.get("objectives", aims) != aims:
                name = moved(old, directions, again)
        write_atomic(path, json.dumps(plan.note(name), indent=2) + "\n")
        write_atomic(plan.folder / CONFIG, yaml.safe_dump(dict(plan.config), sort_keys=False))
        book = Book(plan, worker, storage, name)
        if plan.settings.n_trials is None:
            book._add_grid()
        return book


def refuse_other(plan: Plan, before: Mapping[str, Any], *, aims: bool) -> None:
    """Raises: ConfigError saying what differs, for a sweep whose results could not be compared with new ones.

    `aims`: whether objectives and constraints count, as they do once something was judged by them.
    """
    now = plan.note("")
    differs = [
        f"{key} was {before[key]}, now {now[key]}"
        for key in ("seeds", *(("objectives", "constraints") if aims else ()))
        if before.get(key, now[key]) != now[key]
    ]
    if list(before["params"]) != list(now["params"]):
        differs.append(f"the parameters were {', '.join(before['params'])}, now {', '.join(now['params'])}")
    path = plan.folder / CONFIG
    if path.is_file():
        old = runs.flat(yaml.safe_load(path.read_text(encoding="utf-8")))
        new = runs.flat(plan.config)
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key) and key.split(".")[0] not in FREE:
                differs.append(f"{key} was {old.get(key, 'absent')}, now {new.get(key, 'absent')}")
    if differs:
        raise ConfigError(f"{plan.folder} holds another sweep: {'; '.join(differs)}; {ANOTHER_NAME}")


def refuse_outside(plan: Plan, before: Mapping[str, Any], old: Book, again: Sequence[int]) -> None:
    """Raises: ConfigError for a changed space that lacks a point that was run, or while a process works in the old one.

    Points that are run `again` need not be in it.
    """
    changed = [
        f"{key} was {text}, now {plan.space.declared[key]}"
        for key, text in before["params"].items()
        if text != plan.space.declared[key]
    ]
    trials = old.study.get_trials(deepcopy=False)
    run = [trial for trial in trials if whole(plan.space, trial.params) and trial.number not in again]
    outside = dict.fromkeys(text for trial in run for text in plan.space.outside(trial.params))
    if outside:
        raise ConfigError(
            f"{plan.folder} holds runs that are not in the space any more ({', '.join(outside)}): "
            f"{'; '.join(changed)}; give their values too, or {ANOTHER_NAME}"
        )
    if any(trial.state == TrialState.RUNNING and not old._left(trial) for trial in run):
        raise ConfigError(
            f"{plan.folder}: another process is at work with other values: {'; '.join(changed)}; "
            "wait for it, or type what it was started with"
        )


def moved(old: Book, directions: Sequence[str], again: Sequence[int]) -> str:
    """Copies the trials that the old study has begun, with their numbers, to one in the new space; returns its name.

    Needed because Optuna fixes a parameter's values when it first sees them, and never reopens a trial. The old study
    stays. The trials to try `again` wait, or are void where the space has lost their point; their jobs count as
    interrupted.
    """
    base, _, revision = old.name.rpartition(" v")
    name = f"{base} v{int(revision) + 1}" if base and revision.isdigit() else f"{old.name} v2"
    if name in [summary.study_name for summary in optuna.get_all_study_summaries(old.storage)]:
        optuna.delete_study(study_name=name, storage=old.storage)  # half copied by a process that was killed
    study = optuna.create_study(storage=old.storage, study_name=name, directions=directions)
    distributions = old.space.distributions()
    trials = old.study.get_trials(deepcopy=False)
    last = max((trial.number for trial in trials if trial.state != TrialState.WAITING), default=-1)
    for trial in trials[: last + 1]:
        if trial.state == TrialState.WAITING or trial.number in again:
            study.add_trial(waiting(old, trial))
            continue
        begun = whole(old.space, trial.params)
        study.add_trial(
            create_trial(
                state=trial.state,
                values=trial.values,
                params=dict(old.space.snapped(trial.params)) if begun else {},
                distributions=distributions if begun else {},
                user_attrs=trial.user_attrs,
                system_attrs=trial.system_attrs,
                intermediate_values=trial.intermediate_values,
            )
        )
    return name


def waiting(book: Book, trial: FrozenTrial) -> FrozenTrial:
    """A copy of a trial that is to be run again, its jobs marked resumable; void where the space lacks its point."""
    if book.space.outside(point_of(trial)):
        return create_trial(state=TrialState.FAIL, user_attrs={VOID: True, REASON: trial.user_attrs.get(REASON, "")})
    for number in book.plan.jobs(trial.number):
        outcome.revive(book.plan.job_folder(number))
    point = dict(book.space.snapped(point_of(trial)))
    return create_trial(state=TrialState.WAITING, system_attrs={"fixed_params": point})
