"""`python -m rookexp.train`: GRPO training of conf/config.yaml and what the command line changes in it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from rookexp.config import door
from rookexp.errors import ConfigError, RunPruned
from rookexp.run_folder.run_info import TRIAL


def main() -> None:
    """Entry point: composes the config, then trains."""
    door.enter(train, "config", check)


def check(config: dict[str, Any]) -> None:
    """Raises: ConfigError, before anything is built, for a config that no job of a sweep can have."""
    from rookexp import build
    from rookexp.sweep import job

    if build.check_config(config).dry_run:
        raise ConfigError("dry_run=true: not with a sweep, which trains; look at one point of it, without -m")
    if config["hardware"].get("grow") == "batch":
        raise ConfigError(job.GROWS)


def train(config: dict[str, Any], run_folder: Path) -> None:
    """Checks the whole config, builds what it names and trains; writes under `run_folder` only.

    With `dry_run=true` it only checks, without loading weights, whether the run would fit together.
    """
    from rookexp.sweep import job

    with job.at_work(run_folder) as trial:
        if trial is not None and (reason := trial.pruned()):
            # An earlier seed has shown that the point is not worth it, or this run is resumed by hand.
            begun = (run_folder / "checkpoints").is_dir()
            left = f"; to train on, delete {TRIAL} in it and resume" if begun else " before it began"
            print(f"{run_folder}: given up by its sweep ({reason}){left}")
            return
        from rookexp import build, dry_run, session  # these import torch, which --help does not need
        from rookexp.config import across
        from rookexp.run_folder import hub
        from rookexp.run_folder.resume_checks import refuse_other

        run = build.check_config(config)
        if config["hardware"].get("grow") == "batch" and (trial is not None or door.in_a_sweep()):
            raise ConfigError(job.GROWS)
        if run.dry_run:
            across.tell(config, door.typed())
            dry_run.run(config)
            return
        if config["resume"] is not None:
            config = hub.as_before(config, Path(config["resume"]), door.typed())
            refuse_other(Path(config["resume"]), config, swept=trial is not None)
        across.tell(config, door.typed())
        training = build.build_training(config, run_folder)
        with suppress(RunPruned):  # recorded in its folder
            session.train(training, config, run_folder, trial)


if __name__ == "__main__":
    main()
