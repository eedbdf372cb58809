"""What a sweep is: its space, seeds, objectives, folder, from a command line, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from rookexp.config import check, door, resume
from rookexp.errors import ConfigError
from rookexp.run_folder import runs
from rookexp.run_folder.run_info import redacted
from rookexp.sweep import probe, space
from rookexp.sweep.settings import PREFIX, Settings, settings
from rookexp.sweep.space import Space

STEPS = "steps"
SUBDIR = "${hydra.job.num}"


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


def planned(arguments: Sequence[str], config: DictConfig, context: HydraContext, refuse: door.Check | None) -> Plan:
    """The plan that a command line asks for, checked as far as possible before anything runs.

    `refuse` raises for a configuration that the task would not take.
    Raises: ConfigError; HydraException or OmegaConfBaseException for a value with which no point composes.
    """
    own = settings(OmegaConf.to_container(config.hydra.sweeper, resolve=True))  # type: ignore[arg-type]
    texts = [f"{key}={value}" for key, value in own.params.items()]
    found = space.parse([*texts, *arguments], context.config_loader)
    if not found.params:
        raise ConfigError("sweep: nothing varies; give a key several values, as in optim.lr=1e-5,2e-5")
    for param in found.params:
        if param.key.lstrip("+") == runs.SEED:
            asked = param.declared
            raise ConfigError(f"{runs.SEED}={asked}: seeds are part of a point; type sweep.seeds=[{asked}]")
        if param.key.lstrip("+").partition(".")[0] in runs.RUN_ONLY:
            why = "says where a run's files go or how it is watched, not what it trains; allowed: one value for all"
            raise check.refusal(param.key, param.declared, why)
    subdir = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[call-overload, index]
    if subdir != SUBDIR:
        raise ConfigError(f"hydra.sweep.subdir={subdir}: runs lie under their numbers; allowed: hydra.sweep.dir=FOLDER")
    if own.prunes and own.prune_on == "step" and "minimize" in own.objectives.values():
        raise ConfigError(
            f"{PREFIX}.direction=minimize with a pruner that looks at the greedy reward after each step, where more is "
            f"better; allowed: {PREFIX}.prune_on=seed, which looks at the objective, or pruner=none"
        )
    steps = next((param.declared for param in found.params if param.key.lstrip("+") == STEPS), None)
    if own.prunes and own.prune_on == "step" and steps is not None and len(own.seeds_of(seed_of(found.fixed))) > 1:
        why = "its seeds would not be compared at equal steps; allowed: pruner=none, one seed, or one number of steps"
        raise check.refusal(STEPS, steps, f"a pruner that looks after each step takes a point's seeds in a row, {why}")
    found.part(own.baseline or {}, f"{PREFIX}.baseline")
    if own.n_trials is None:
        found.grid()  # raises where its points cannot be counted
    typed = found.fixed
    found = Space(found.params, tuple(text for text in typed if resume.key_of(text) != runs.SEED))
    own.make_sampler(0)
    own.make_pruner()
    jobs = probe.valid_jobs(found, config, context, refuse)
    base = context.config_loader.load_sweep_config(config, probe.job_overrides(found.fixed, config))
    if own.prunes and own.prune_on == "step" and "eval" not in base:
        why = "this command measures no greedy reward"
        raise ConfigError(f"pruner: {why} to prune on; allowed: pruner=none, or {PREFIX}.prune_on=seed")
    seed = seed_of(typed)
    if seed is None and own.seeds == 1:
        seed = base[runs.SEED]  # a user's own config file may set it
    seeds = own.seeds_of(seed)
    lengths = [(job["steps"], job["eval"]["every"]) for job in jobs]
    points = min(own.n_trials or math.inf, found.size)
    if own.prunes and lengths and (spared := own.never_prunes(points, len(seeds), lengths)):
        print(f"note: the pruner can end nothing early: {door.as_typed(spared)}", flush=True)
    return Plan(
        settings=own,
        space=found,
        seeds=seeds,
        folder=Path(str(config.hydra.sweep.dir)).absolute(),
        config=redacted({str(k): v for k, v in OmegaConf.to_container(base).items() if k != "hydra"}),  # type: ignore[union-attr]
        url=OmegaConf.to_container(config.hydra.sweeper, resolve=False)["storage"],  # type: ignore[call-overload, index]
    )


def seed_of(overrides: Sequence[str]) -> int | None:
    """The typed `seed=`; None where it is not typed. Raises: ConfigError where it is no integer >= 0."""
    texts = [text.partition("=")[2] for text in overrides if resume.key_of(text) == runs.SEED]
    if texts and not texts[-1].isdigit():
        raise ConfigError(f"{runs.SEED}={texts[-1]}: allowed: an integer >= 0")
    return int(texts[-1]) if texts else None
