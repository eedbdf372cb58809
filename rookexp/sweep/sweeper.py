"""A sweep from its first line to its table: points are claimed, run as jobs by Hydra's launcher, and told."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from optuna.trial import FrozenTrial, TrialState

from rookexp import track
from rookexp.config import check, composing, mistakes, resume
from rookexp.errors import ConfigError, SweepFailed, VerdictFailed, reason_of
from rookexp.files import write_atomic
from rookexp.run_folder import runs
from rookexp.run_folder.run_info import TRIAL
from rookexp.sweep import job, liveness, opening, outcome, probe, ranking, results, study
from rookexp.sweep.liveness import Worker
from rookexp.sweep.plan import Plan, planned
from rookexp.sweep.settings import PREFIX
from rookexp.sweep.study import Book

DEATHS = 3  # of a job's worker process, after which the job is not tried again
ENOUGH = 3  # points that must have ended before their failure rate counts
Job = tuple[int, list[str]]  # its number and overrides


def sweep(arguments: Sequence[str], config: DictConfig, context: HydraContext, task: TaskFunction) -> None:
    """Runs the sweep of a command line, or what is left of it.

    Raises: ConfigError for what cannot be swept, or not in this folder; SweepFailed when too many points failed;
    VerdictFailed as `Sweep.require` does.
    """
    plan = planned(arguments, config, context, getattr(task, "check", None))
    with Worker(plan.folder) as worker:
        book = opening.opened(plan, worker)
        Sweep(plan, book, config, context, task).run()


class Sweep:
    """One process's loop over points; other processes may work on the same study."""

    def __init__(self, plan: Plan, book: Book, config: DictConfig, context: HydraContext, task: TaskFunction) -> None:
        self.plan = plan
        self.book = book
        self.config = config
        self.deaths: Counter[int] = Counter()  # of job numbers
        self.last_death = ""
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=config
        )

    def run(self) -> None:
        """Works until no point is left, and shows the table.

        Raises: SweepFailed, VerdictFailed; ConfigError where no run logs a figure that the sweep asks for.
        """
        self.announce()
        try:
            while True:
                while batch := list(self.claims()):
                    self.work(batch)
                if not self.awaited():
                    break
        except (KeyboardInterrupt, SystemExit):
            self.write()
            print(f"sweep {self.name}: stopped; the same command goes on with it", file=sys.stderr)
            raise
        self.write()
        results.show(self.plan, self.book)
        if others := self.book.elsewhere():
            numbers = ", ".join(str(trial.number) for trial in others)
            print(f"other processes still work on {numbers}; the one that ends last shows all")
        self.judge(math.inf)
        self.require()

    def awaited(self) -> bool:
        """Waits for jobs that have outlived the process that launched them; returns whether there were any."""
        orphans = self.book.orphaned()
        if orphans:
            numbers = ", ".join(map(str, orphans))
            print(f"sweep {self.name}: waiting for jobs of trial {numbers}, which outlived their sweep", flush=True)
        for lock in itertools.chain(*orphans.values()):
            with liveness.locked(lock):
                pass
        return bool(orphans)

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.plan.settings.study_name

    def announce(self) -> None:
        """Prints what is going to be run and where."""
        own, count = self.plan.settings, len(self.plan.seeds)
        points = own.n_trials or int(self.plan.space.size)
        states = [trial.state for trial in self.book.trials()]
        done = sum(state.is_finished() for state in states)
        jobs = f" x {count} seeds = {points * count} jobs" if count > 1 else ""
        left = f"; {done} of the points done" if done else ""
        print(f"sweep {self.name}: {points} points{jobs} in {self.plan.folder}{left}", flush=True)
        numbers = [number for trial in self.complete() for number in self.plan.jobs(trial.number)]
        if gone := [str(number) for number in numbers if not self.plan.job_folder(number).is_dir()]:
            are = "folder is" if len(gone) == 1 else "folders are"
            print(
                f"note: of runs that are done, the {are} gone: {', '.join(gone)}; trials.csv keeps what the study "
                "knows of them, sweep.html and rookexp.compare read folders",
                flush=True,
            )
        self.write()

    def claims(self) -> Iterator[FrozenTrial]:
        """Claims as many points as make a batch of `n_jobs` jobs, and yields their trials."""
        for _ in range(math.ceil(self.plan.settings.n_jobs / len(self.plan.seeds))):
            trial = self.book.claim()
            if trial is None:
                return
            yield trial

    def work(self, batch: Sequence[FrozenTrial]) -> None:
        """Runs those jobs of some points that have not ended, and tells the study each point's result."""
        while todo := [job for trial in batch for job in self.todo(trial)]:
            for together in contiguous(todo):
                self.launch(together)
        for trial in batch:
            self.close(self.book.fresh(trial))
            self.write()
            self.judge(ENOUGH)

    def todo(self, trial: FrozenTrial) -> list[Job]:
        """The jobs of a point that are still to be run; writes into the folder of each the note that `job` reads.

        Raises: ConfigError where a folder holds another run.
        """
        if job.PRUNED in self.book.fresh(trial).user_attrs:
            return []
        found = []
        point = self.plan.space.snapped(trial.params)
        for place, (number, seed) in enumerate(zip(self.plan.jobs(trial.number), self.plan.seeds, strict=True)):
            folder = self.plan.job_folder(number)
            opening.refuse_foreign(folder, point, seed)
            if outcome.read(folder).status in outcome.ENDED:
                continue
            # The sweep's folder as a value, because a recipe that varies sets the task_name after which it is called.
            where = f"hydra.sweep.dir={composing.quoted(self.plan.folder)}"
            overrides = [*probe.job_overrides(self.plan.space.job(point), self.config), f"{runs.SEED}={seed}", where]
            if self.deaths[number] == DEATHS:
                outcome.fail(folder, f"launched {DEATHS} times without an end: {self.last_death}")
                continue
            own = self.plan.settings
            note = {
                "trial": trial.number,
                "seed": seed,
                "params": point,
                "place": place,
                "seeds": len(self.plan.seeds),
                "sweep": self.name,
                "study": self.book.name,
                "storage": self.plan.url,
                "trial_id": trial._trial_id,
                "objective": next(iter(own.objectives)),
                "pruner": own.pruner if own.prunes else None,
                "prune_on": own.prune_on,
            }
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / TRIAL, json.dumps(note, indent=2) + "\n")
            found.append((number, [*overrides, *going_on(folder)]))
        return found

    def launch(self, together: Sequence[Job]) -> None:
        """Runs jobs of consecutive numbers, and records the failure of one that has not recorded it.

        Raises: SweepFailed where the disk is full.
        """
        first = together[0][0]
        try:
            returns = self.launcher.launch([overrides for _, overrides in together], initial_job_idx=first)
        except (HydraException, OmegaConfBaseException) as error:  # a point that does not compose
            for number, overrides in together:
                folder = self.plan.job_folder(number)
                if len(together) == 1:
                    outcome.fail(folder, reason_of(error))
                elif outcome.read(folder).status not in outcome.ENDED:
                    self.launch([(number, overrides)])
            return
        except Exception as error:  # a worker process died; which jobs did not end is in their folders
            self.last_death = reason_of(error)
            print(f"sweep {self.name}: {self.last_death}; what did not end is started again", file=sys.stderr)
            self.deaths.update(number for number, _ in together)
            return
        for (number, _), result in zip(together, returns, strict=True):
            folder = self.plan.job_folder(number)
            if result.status == JobStatus.FAILED and mistakes.lacks_space(result._return_value):
                said = reason_of(result._return_value)
                raise SweepFailed(f"sweep {self.name}: {folder}: {said}; with more space the same command goes on")
            outcome.note_failure(folder, result)
            if outcome.read(folder).status not in outcome.ENDED:
                self.last_death = "it left no result; a sweep is of trainings (no dry_run=true, no other command)"
                self.deaths[number] += 1

    def complete(self) -> list[FrozenTrial]:
        """The points whose runs all finished with every figure that the sweep asks for."""
        return [trial for trial in self.book.trials() if trial.state == TrialState.COMPLETE]

    def require(self) -> None:
        """Raises: VerdictFailed with `verdict=require` where a run of a complete point did not pass."""
        if self.plan.config.get("verdict") != "require":
            return
        numbers = [number for trial in self.complete() for number in self.plan.jobs(trial.number)]
        judged = {n: track.read_summary(self.plan.job_folder(n)).get("verdict") or {} for n in numbers}
        if failed := [str(number) for number, found in judged.items() if found.get("passed") is False]:
            jobs = f"job{'s' if len(failed) > 1 else ''} {', '.join(failed)}"
            raise VerdictFailed(f"sweep {self.name}: a verdict is FAIL, of {jobs} in {self.plan.folder}")

    def close(self, trial: FrozenTrial) -> None:
        """Tells the study what came of a point, and prints it in one line.

        Raises: ConfigError where no run logs a figure that the sweep asks for.
        """
        numbers = self.plan.jobs(trial.number)
        found = {s: outcome.read(self.plan.job_folder(n)) for s, n in zip(self.plan.seeds, numbers, strict=True)}
        ended = [seed for seed, one in found.items() if one.status == outcome.FINISHED]  # the others broke off
        known = {str(seed): outcome.figures(found[seed], self.plan) for seed in ended}
        self.book.set(trial, study.FIGURES, known)
        state, reason = outcome.judged(found, trial.user_attrs.get(job.PRUNED))
        values = None
        if state == TrialState.COMPLETE:
            names = self.plan.settings.figures
            missing = next(((s, n) for s in known for n in names if n not in known[s]), None)
            if missing is not None:
                seed, name = missing
                rows = found[int(seed)].rows
                near = check.nearest(name, [*runs.figures(rows), *rows[-1]]) if rows else ""
                if not outcome.is_known(rows, name) and not self.complete():
                    raise ConfigError(
                        f"sweep {self.name}: no run logs {name}{near}; it is for {PREFIX}.objective and .constraints, "
                        "and no further run was begun; with a right name the same command goes on"
                    )
                state, reason = TrialState.FAIL, f"seed {seed}: {name} is not a number, or was not logged{near}"
            else:
                spread = {name: ranking.spread(known, name).value for name in names}
                values = [spread[name] for name in self.plan.settings.objectives]
                self.book.constrain(trial, outcome.excess(self.plan, spread))
        if reason:
            self.book.set(trial, study.REASON, reason)
        self.book.tell(trial, state, values)
        print(results.line(self.plan, self.book.fresh(trial)), flush=True)

    def write(self) -> None:
        """Brings the files for readers up to date."""
        with self.book.worker.gate():  # other processes write the same files
            results.write(self.plan, self.book)

    def judge(self, enough: float) -> None:
        """Ends the sweep when a larger share of its ended points has failed than `max_failure_rate`.

        Not before `enough` points have ended; math.inf: however few have.
        Raises: SweepFailed naming trials and reasons, and the table of all.
        """
        ended = [trial for trial in self.book.trials() if trial.state.is_finished()]
        failed = [trial for trial in ended if trial.state == TrialState.FAIL]
        most = self.plan.settings.max_failure_rate
        if len(failed) <= most * len(ended) or (len(ended) < enough < math.inf):
            return
        names = "; ".join(f"trial {t.number}: {t.user_attrs.get(study.REASON)}" for t in failed[:ENOUGH])
        more = f"; and {len(failed) - ENOUGH} more" if len(failed) > ENOUGH else ""
        raise SweepFailed(
            f"sweep {self.name}: {len(failed)} of {len(ended)} points failed, more than "
            f"{PREFIX}.max_failure_rate={most:g} allows: {names}{more}; see {self.plan.folder / results.TABLE}"
        )


def contiguous(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Yields the jobs in lists of consecutive numbers, because a launcher only counts up from a first one."""
    for _, group in itertools.groupby(enumerate(sorted(jobs)), lambda pair: pair[1][0] - pair[0]):
        yield [job for _, job in group]


def going_on(folder: Path) -> list[str]:
    """The override that resumes a run from its newest checkpoint, in a list; [] without a checkpoint."""
    if not (folder / "checkpoints").is_dir():
        return []
    from rookexp import checkpoint

    return [f"{resume.KEY}={composing.quoted(folder)}"] if checkpoint.latest(folder) else []
