"""Runs a training from start to end: a trainer with self-check, trackers and checkpoints, and how the run ends."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, MinLen
from torch import nn

from rookexp import checkpoint, stop, track, verdict
from rookexp.config import door, mistakes
from rookexp.core_wait import BUSY, CoreWait
from rookexp.errors import (
    CheckupFailed,
    RunPruned,
    RunStopped,
    TrainingDiverged,
    VerdictFailed,
    reason_of,
)
from rookexp.fitting import Finder
from rookexp.hardware import Hardware
from rookexp.health import SYMPTOMS
from rookexp.optim import AdamW
from rookexp.policies import Pretrained
from rookexp.run_folder import fingerprints, hub, report
from rookexp.run_folder.resume_checks import Start, resolved_hardware
from rookexp.run_folder.run_info import write_run_info
from rookexp.self_check import checkup
from rookexp.self_check.rehearsal import Finding, Size, Skipped, Subject
from rookexp.sweep.job import Trial
from rookexp.tasks import reading
from rookexp.track import FanOut
from rookexp.trainer import Objective, Trainer, refuse_diverged

SAMPLES = 3  # prompts whose answers before and after training are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The top-level keys, outside of groups, that every training has."""

    seed: Annotated[int, Ge(0)]  # every random choice of a run derives from it
    task_name: Annotated[str, MinLen(1)]  # first part of the run folder
    steps: Annotated[int, Ge(1)]  # of the whole run, those before a resume included
    save_every: Annotated[int, Ge(1)]  # steps between checkpoints
    keep_checkpoints: Annotated[int, Ge(1)]  # how many of the newest stay on disk
    resume: str | None  # a run folder to continue


@dataclass(frozen=True, slots=True)
class Training:
    """A trainer, ready to run, and what a session needs to know of it."""

    trainer: Trainer
    tracker: FanOut
    start: Start
    stop: stop.Stop
    saver: checkpoint.Saver
    finder: Finder | None  # finds the micro-batch; None = it is as configured
    hardware: Mapping[str, Any]  # the hardware's settings, resolved
    subject: Subject | None = None  # what a self-check examines; None = it has none
    engines: Sequence[str] = ()  # identities of the engines that judge
    malformed: Sequence[reading.Malformed] = ()  # rows of the task's data


def assemble(
    settings: Settings,
    folder: Path,
    *,
    start: Start,
    policy: Pretrained,
    objective: Objective,
    optim: AdamW,
    hardware: Hardware,
    tracker: FanOut,
    evaluate: Callable[[int], dict[str, float]],
    eval_every: int,
    diagnose_every: int | None,
    heads: Mapping[nn.Module, float],
    inner_epochs: int,
    minibatches: int,
    finder: Finder | None,
) -> Training:
    """The trainer with its optimizer and checkpoints, in the state that `start` names."""
    optimizer = optim.optimizer(policy.model, heads)
    if start.checkpoint is not None:
        checkpoint.restore(start.checkpoint, model=policy.model, optimizer=optimizer, modules=objective.modules)
    asked, saver = stop.Stop(), checkpoint.Saver()
    tracker.unread = asked.unread

    @cache
    def tokenizer_file() -> Path:
        policy.tokenizer.save(folder / "tokenizer")  # not earlier: a self-check that finds something leaves no folder
        return folder / "tokenizer" / "tokenizer.json"

    def after_step(step: int) -> None:
        last = step == settings.steps
        early = None if last else asked.ending(step)
        if last or early is not None or step % settings.save_every == 0:
            refuse_diverged(step, policy.model)
            saver.save(
                checkpoint.snapshot(
                    folder,
                    step=step,
                    model=policy.model,
                    tokenizer_file=tokenizer_file(),
                    optimizer=optimizer,
                    modules=objective.modules,
                    keep=settings.keep_checkpoints,
                )
            )
        if early is not None:
            raise early

    trainer = Trainer(
        policy=policy.model,
        objective=objective,
        optimizer=optimizer,
        schedule=optim.schedule.at,
        steps=settings.steps,
        inner_epochs=inner_epochs,
        minibatches=minibatches,
        micro_batch=hardware.micro_batch,
        grad_clip=optim.grad_clip,
        seed=settings.seed,
        tracker=tracker,
        evaluate=evaluate,
        eval_every=eval_every,
        diagnose_every=diagnose_every,
        after_step=after_step,
    )
    return Training(trainer, tracker, start, asked, saver, finder, resolved_hardware(hardware))


def pretrain(training: Training, config: Mapping[str, Any], folder: Path) -> None:
    """Trains, and closes the trackers however training ends."""
    with tracked(training, config, folder, "pretrain"):
        fit(training, folder)
    print(f"model: {checkpoint.latest(folder)}/{checkpoint.MODEL}")


def train(training: Training, config: Mapping[str, Any], folder: Path, trial: Trial | None = None) -> None:
    """Runs the self-check, trains, judges the run by its logged metrics, and prints a report.

    `trial` is the run's trial in a sweep, which may end the run early.
    Raises: Reconfigured if the device suits another batch size, CheckupFailed unless `doctor=off`, both before
    anything is logged; VerdictFailed if `verdict=require` and a criterion failed; RunPruned; RunStopped after a signal,
    in a sweep also one in the last step.
    """
    if training.finder is not None:
        training.finder.grow(training.trainer, folder, resumed=training.start.checkpoint is not None)
    if config["doctor"] == "quick":
        examine(training, checkup.QUICK)
    trainer = training.trainer
    if trial is not None and trainer.evaluate is not None:
        trainer.evaluate = trial.watching(trainer.evaluate, trainer.steps, training.stop.prune)
    with tracked(training, config, folder, "train"):
        fit(training, folder)
        rows = track.read_jsonl(folder / track.METRICS)
        judged = None if config["verdict"] == "off" else verdict.judge_rows(rows)
        training.tracker.summary(
            {
                "costs": report.costs(rows),
                "before_after": {name: [before, after] for name, before, after in report.before_after(rows)},
                "verdict": None if judged is None else asdict(judged),
            }
            | ({} if training.subject is None else {track.ANSWERS: training.subject.greedy.answers()})
        )
        title = f"{config['task_name']}, seed {config['seed']}: {folder.name}"
        report.plot(rows, folder / track.CURVES, title=title)  # before the trackers close: W&B keeps it
    if trial is not None:
        trial.finished(rows)
    if door.in_a_sweep() and isinstance(ending := training.stop.ending(trainer.steps), RunStopped):
        raise ending  # the run is complete, the sweep is not
    completions = [row for row in track.read_jsonl(folder / track.COMPLETIONS) if row["kind"] == "greedy"]
    report.show(rows, completions, judged, folder, samples=SAMPLES)
    if judged is not None and not judged.passed and config["verdict"] == "require":
        failed = [reason for reason in judged.reasons if reason.startswith("FAIL")]
        raise VerdictFailed("verdict FAIL: " + "; ".join(failed))


def examine(training: Training, size: Size) -> None:
    """Runs the self-check; prints a line per check or, at size QUICK, per finding, and a summary if nothing was found.

    A further line says if other work has the cores, which makes the run slow and is nothing wrong with it.
    Raises: CheckupFailed naming the checks that found something.
    """
    assert training.subject is not None
    began, wait, found, count, skipped = time.perf_counter(), CoreWait(), [], 0, 0
    for line in checkup.examine(training.subject, size):
        count += 1
        skipped += isinstance(line.result, Skipped)
        wrong = isinstance(line.result, Finding)
        if wrong:
            found.append(line.name)
        if wrong or size is not checkup.QUICK:
            print(line, flush=True)
    if (share := wait.share() or 0.0) > BUSY:
        slow = SYMPTOMS["core_wait"]
        print(f"self-check: {100 * share:.0f} % {slow.what}; {slow.advice}", flush=True)
    if found:
        names = ", ".join(found)
        raise CheckupFailed(f"the self-check found something: {names}; mend it, or train unchecked with doctor=off")
    checks = f"{count - skipped} checks" + (f", {skipped} skipped," if skipped else "")
    print(f"self-check: nothing found by {checks} in {time.perf_counter() - began:.1f}s", flush=True)


def fit(training: Training, folder: Path) -> None:
    """Runs the remaining steps, with the micro-batch of the finder; a signal ends the run after a complete step.

    However it ends, a checkpoint that is being written is completed. Raises: RunStopped, with that step saved.
    """
    if training.finder is not None:
        training.finder.apply(training.trainer, folder)
    with training.stop.listening():
        try:
            training.trainer.fit(training.start.step)
        finally:
            training.saver.wait()


@contextmanager
def tracked(training: Training, config: Mapping[str, Any], folder: Path, door_name: str) -> Iterator[None]:
    """Opens a run's folder and trackers and, whatever happens inside, closes them with the run's final status.

    The trackers' config has the commits of what came from the Hub. A resumed run is recorded in its folder after its
    first step: a failure before that leaves the folder as it was.
    """
    config = hub.pinned(config)
    command = ""  # the command that continues the run, once it has begun; before that, the same again does

    def note() -> None:
        nonlocal command
        command = f"python -m rookexp.{door_name} {shlex.quote(f'resume={folder}')}"
        found = {"hardware": training.hardware, "engines": training.engines, "data": fingerprints.of_data(config)}
        write_run_info(folder, config, sys.argv, found)
        reading.write(training.malformed, folder)
        for line in reading.note_of(training.malformed, folder):
            print(line, flush=True)
        door.note_start(folder)

    if training.start.checkpoint is None:
        note()
    else:
        at_first_step(training.trainer, note)
    status, reason, signal = "finished", "", ""
    try:
        training.tracker.start(config)  # it may refuse, as W&B online without a key does
        yield
    except BaseException as error:
        status, reason = ending(error)
        signal = str(error) if isinstance(error, RunStopped) else ""
        training.tracker.summary({"reason": reason})
        raise
    finally:
        with ExitStack() as at_last:  # on a full disk the trackers fail, too
            at_last.callback(lambda: hint(status, signal, folder, command))
            training.tracker.finish(status)


def at_first_step(trainer: Trainer, act: Callable[[], None]) -> None:
    """Calls `act` once, after the next step is logged and before the trainer's own `after_step`."""
    after = trainer.after_step

    def first(step: int) -> None:
        act()
        trainer.after_step = after
        if after is not None:
            after(step)

    trainer.after_step = first


def hint(status: str, signal: str, folder: Path, command: str) -> None:
    """Prints how to continue a run that did not end well; `signal` says which signal ended it, and when, or is ""."""
    if command and status not in ("finished", "pruned") and checkpoint.latest(folder) is not None:
        cause = f" by {signal}" if signal else ""
        print(f"{status}{cause}; to go on type: {command}", file=sys.stderr)
    elif status == "diverged":
        print(f"{status}; what it logged: {folder / track.METRICS}", file=sys.stderr)


def ending(error: BaseException) -> tuple[str, str]:
    """The final status of a run that `error` ended, and the reason in one line."""
    if isinstance(error, KeyboardInterrupt | SystemExit | RunStopped):
        return "interrupted", str(error) if isinstance(error, RunStopped) else ""
    known: dict[type, str] = {RunPruned: "pruned", TrainingDiverged: "diverged"}
    status = "interrupted" if mistakes.lacks_space(error) else known.get(type(error), "failed")
    return status, reason_of(error)
