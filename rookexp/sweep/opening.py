"""The study in a sweep's folder: a new one, or the one left there, whose results can be compared with new ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState, create_trial

from rookexp.config import check
from rookexp.errors import ConfigError
from rookexp.files import write_atomic
from rookexp.run_folder import run_info, runs
from rookexp.run_folder.run_info import SWEEP, TRIAL
from rookexp.sweep import outcome
from rookexp.sweep.liveness import Worker
from rookexp.sweep.plan import Plan
from rookexp.sweep.space import Point, same
from rookexp.sweep.storage import JOURNAL, storage_of
from rookexp.sweep.study import REASON, VOID, Book, point_of, whole

CONFIG = "multirun.yaml"
FREE = (*runs.RUN_ONLY, "hardware", "seed")  # keys of a run's config that may differ between two starts of a sweep
ANOTHER_NAME = "type another name, as in sweep.study_name=NAME"


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
            made = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
            if made.get_trials(deepcopy=False):  # else a process was killed before it had written the file
                raise ConfigError(f"{plan.folder}: its study has points, and {SWEEP} is gone; {ANOTHER_NAME}")
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
            book.add_grid()
        return book


def refuse_other(plan: Plan, before: Mapping[str, Any], *, aims: bool) -> None:
    """Raises: ConfigError saying what differs, for a sweep whose results could not be compared with new ones.

    `aims`: whether objectives and constraints count, as they do once something was judged by them.
    """
    now = plan.note("")
    differs = [
        f"{key} was {told(before[key])}, now {told(now[key])}"
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


def told(values: Sequence[Any]) -> str:
    """Seeds or constraints as they are typed; objectives as `gain (maximize), kl (minimize)`."""
    if values and isinstance(values[0], Mapping):
        return ", ".join(f"{value['name']} ({value['direction']})" for value in values)
    return str(values)


def refuse_foreign(folder: Path, point: Point, seed: int) -> None:
    """Raises: ConfigError where a job's folder holds a run of another point or seed, or one of no sweep of ours."""
    try:
        if not (folder / TRIAL).is_file():
            alike = not (folder / run_info.CONFIG).is_file()
        else:
            note = json.loads((folder / TRIAL).read_text(encoding="utf-8"))
            had = note["params"]
            alike = note["seed"] == seed and list(had) == list(point) and all(same(had[k], point[k]) for k in point)
    except (ValueError, KeyError, TypeError):  # damaged
        alike = False
    if not alike:
        words = " ".join(f"{key}={check.spell(value)}" for key, value in point.items())
        raise ConfigError(
            f"{folder}: holds another run than that of {words} seed={seed}; move it away, or {ANOTHER_NAME}"
        )


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
    if any(trial.state == TrialState.RUNNING and not old.left(trial) for trial in run):
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
