"""What the command-line entry points (doors) share: from typed words to a task's call; errors as one stderr line."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rookexp import stop
from rookexp.config import composing, environment, mistakes, recipes, resume
from rookexp.config.composing import HYDRA_VERSION, PACKAGE, conf_dir, configs, refuse_hidden, searchpath, version_base
from rookexp.errors import ConfigError, DataError, EngineError, Reconfigured, RookexpError, RunStopped
from rookexp.run_folder import labels
from rookexp.run_folder.run_info import is_secret

SWEEPER, SWEEP_KEY = "hydra.sweeper.", "sweep."  # prefix of a sweeper's key in the config, and as typed
HYDRAS_OWN = (SWEEPER + "params", SWEEPER + "max_batch_size")  # keys that Hydra's own sweeper has, too
SWEEPS = ("sweep=", "hydra/sweeper=")  # overrides that make -m one of our sweeps
FULL_ERROR = "HYDRA_FULL_ERROR"  # Hydra's own variable: 1 shows tracebacks

Task = Callable[[dict[str, Any], Path], Any]
Check = Callable[[dict[str, Any]], Any]


def enter(task: Task, config_name: str, check: Check | None = None) -> None:
    """Composes conf/<config_name>.yaml with the command line and calls `task(config, run_dir)`; exits on an error.

    `config` is plain and resolved. `check` raises for a configuration that the task would refuse; a sweep calls it
    before its first job.
    Exit status: 2 for a mistake in what was typed or something missing, 1 for a run that failed, 128 + N for one that
    signal N ended. With HYDRA_FULL_ERROR=1 every error is a traceback.
    """
    environment.print_any_text()
    wants_traceback = os.environ.get(FULL_ERROR) == "1"
    started = False
    failed: list[int] = []  # exit status of each job whose error was printed
    sweeps: set[Path] = set()  # folders of sweeps by Hydra's own sweeper

    def job(config: DictConfig) -> Any:
        nonlocal started
        started = True
        register_resolvers()  # a launcher may have started another process
        which = ""
        if in_a_sweep() and in_this_process():
            sweeps.add(Path(str(HydraConfig.get().sweep.dir)))
            which = f"job {HydraConfig.get().job.num} ({' '.join(HydraConfig.get().overrides.task)}): "
        try:
            return call(task, config)
        except RunStopped as error:
            sys.exit(error.status)  # of a sweep the remaining jobs are not wanted either
        except BrokenPipeError:  # if it were raised, Hydra would print a line
            sys.exit(stop.unread())
        except (RookexpError, OSError, MemoryError, RuntimeError) as error:
            told = line_and_status(error, config_name, started=True)
            if told is None or wants_traceback or not in_this_process():
                raise
            print(f"error: {which}{told[0]}", file=sys.stderr)  # if raised, Hydra would add a line
            failed.append(told[1])
        finally:
            leave_no_empty(Path(HydraConfig.get().runtime.output_dir))

    job.check = check  # type: ignore[attr-defined]  # which the sweeper finds there
    try:
        through_hydra(job, config_name)
        for folder in sweeps:
            from rookexp.sweep import summary

            summary.show(folder)
        sys.stdout.flush()  # here, because an error at interpreter exit could not set the exit status
        if failed:
            sys.exit(max(failed))
    except KeyboardInterrupt:
        if wants_traceback:
            raise
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(stop.unread())
    except Exception as error:
        told = None if wants_traceback else line_and_status(error, config_name, started=started)
        if told is None:
            raise
        print(f"error: {told[0]}", file=sys.stderr)
        sys.exit(told[1])


def through_hydra(job: Callable[[DictConfig], Any], config_name: str) -> None:
    """Has Hydra read the command line and call the job, once or for each point of a sweep; raises Hydra's errors."""
    register_resolvers()
    # For each group that --help lists, Hydra deep-copies all that it knows, above all this store of its own defaults.
    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
    environment.load(Path.cwd())
    sys.argv[1:] = arrange(sys.argv[1:], config_name)
    asked = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # else Hydra would print its errors itself
    try:
        hydra.main(config_path=str(conf_dir()), config_name=config_name, **version_base())(job)()
    finally:
        if asked != "1":
            del os.environ[FULL_ERROR]


def call(task: Task, config: DictConfig) -> Any:
    """The task's result; where the task has found a key's value itself (Reconfigured), it is called again with that."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        return task(plain(config), folder)
    except Reconfigured as found:
        OmegaConf.update(config, found.key, found.value)
    return task(plain(config), folder)  # here nothing holds what the first call has built


def leave_no_empty(folder: Path) -> None:
    """Removes the run folder that Hydra has made if it is empty, as after a refused command.
    Then also those of its parents inside the working directory that this leaves empty. The log file goes with it.
    """
    with suppress(OSError):  # stops at one that is not empty
        for made in (folder, *folder.parents):
            if made == folder != Path.cwd() or Path.cwd() in made.parents:
                made.rmdir()
    for handler in [h for h in logging.root.handlers if isinstance(h, logging.FileHandler)]:
        if not Path(handler.baseFilename).parent.exists():  # PyTorch may log its statistics at Python's exit
            logging.root.removeHandler(handler)


def line_and_status(error: Exception, config_name: str, *, started: bool) -> tuple[str, int] | None:
    """An error as a line, and the exit status: 2 for what was typed wrong or is missing, 1 for a failed run.

    None for a bug in the program, which needs its traceback.
    """
    if isinstance(error, RookexpError):
        return as_typed(error), 2 if isinstance(error, (ConfigError, DataError, EngineError)) else 1
    if said := mistakes.of_system(error, started=started):
        return said, 1 if started else 2
    return None if started else (as_typed(mistakes.explain(error, sys.argv[1:], config_name)), 2)


def as_typed(message: object) -> str:
    """A message in which a sweep's keys stand as they are typed, `sweep.KEY` for `hydra.sweeper.KEY`."""
    return str(message).replace(SWEEPER.rstrip("."), SWEEP_KEY.rstrip("."))


def in_this_process() -> bool:
    """Whether Hydra's own sweeper and launcher run the job in this process, where a failure need not be raised."""
    parts = HydraConfig.get().sweeper, HydraConfig.get().launcher
    return HydraConfig.get().mode == RunMode.RUN or all(
        str(p["_target_"]).startswith("hydra._internal.") for p in parts
    )


def in_a_sweep() -> bool:
    """Whether this run is one of several that -m has started, by a sweep of ours or by Hydra's own."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def typed() -> list[str]:
    """The overrides of this run as typed, without those of `recipes.taken_out`; [] where Hydra has not started it."""
    if not HydraConfig.initialized():
        return []
    given = HydraConfig.get().overrides
    return recipes.typed(list(given.task), str(HydraConfig.get().job.config_name), searchpath(given.hydra))


def note_start(folder: Path) -> None:
    """Records in a run's folder the overrides and Hydra settings that it was started or resumed with."""
    if HydraConfig.initialized():
        resume.note(folder, typed(), OmegaConf.to_yaml(HydraConfig.instance().cfg))


def register_resolvers() -> None:
    """Registers the resolvers that YAML calls as `${NAME:}`.

    `short_id`: six hex digits that make a run's folder unique. `asset:NAME`: an embedded folder's path. `conf`: the
    folder of all options. `label:KIND`: the run's name, group or tags.
    """
    # Hydra 1.4 comes with OmegaConf 2.4, where `register_resolver` is the new name; before, it named another function.
    register: Any = OmegaConf.register_new_resolver if HYDRA_VERSION < (1, 4) else OmegaConf.register_resolver
    register("short_id", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    register("asset", lambda name: str(PACKAGE / "assets" / name), replace=True)
    register("conf", lambda: str(conf_dir()), replace=True)
    register("label", labels.of_run, replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """The config as dicts, lists and scalars with every interpolation resolved.

    Raises: ConfigError for an interpolation that leads nowhere and for a `???` that was not given.
    """
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"{error.full_key or 'config'}: {reason}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def arrange(argv: list[str], config_name: str) -> list[str]:
    """The arguments for Hydra: flags first, no + in `+experiment=`, `sweep.` in full, `resume=` and recipes resolved.

    Raises: ConfigError for a flag that Hydra does not have, for a folder that is not there or cannot be resumed, for a
    typed secret, for a name or file that cannot be used, and for a sweep's recipe or key without a sweep.
    """
    argv = [arg[1:] if arg.startswith(tuple(f"+{group}=" for group in recipes.PRESETS)) else arg for arg in argv]
    argv = recipes.without_null(argv)
    parser = get_args_parser()
    parser.allow_abbrev = False  # else --experiment=NAME is taken for --experimental-rerun
    known, unknown = parser.parse_known_args(argv)
    for arg in unknown:
        if arg.startswith("-"):
            from rookexp.config import check

            flags = sorted(flag for flag in parser._option_string_actions if flag.startswith("--"))
            key, equals, _ = arg.partition("=")
            hint = check.nearest(key, flags) if "config" in key or not equals else f"; did you mean {arg.lstrip('-')}?"
            raise ConfigError(f"{arg}: no such flag; allowed: key=value, group=option, {', '.join(flags)}{hint}")
    if known.config_dir is not None and not Path(known.config_dir).is_dir():  # Hydra would say so twice
        raise ConfigError(f"--config-dir {known.config_dir}: no such folder; allowed: one that is laid out like conf/")
    argv = [*argv, *composing.in_place(known.config_path)]
    overrides = [*known.overrides, *unknown]
    for text in overrides:
        plainly = text.lstrip("+")
        if is_secret(plainly):  # before Hydra writes it into the run's folder
            key = text.partition("=")[0]
            into = "WANDB_API_KEY=... for W&B; a database's password is then typed as ${oc.env:NAME}"
            raise ConfigError(f"{key}=***: others can read what is typed; put it into .env: {into}")
        if plainly.startswith("hydra.job.chdir=") and text.partition("=")[2].lower() != "false":
            raise ConfigError(f"{text}: relative paths would lead elsewhere; a run writes into its own folder anyway")
        if plainly.startswith("hydra.mode="):
            raise ConfigError(f"{text}: type the flag -m in its place, for several runs, or nothing, for one")
        name = text.partition("=")[2].strip("'\"")
        if plainly.startswith("task_name=") and (set("/[{") & set(name) or name in ("null", ".", "..")):
            raise ConfigError(f"{text}: allowed: a name without / [ {{, and not null, . or ..")
    flags = [arg for arg in argv if arg not in overrides]
    words = resume.continued(flags, sweeping(overrides, known.multirun), config_name)
    args = parser.parse_args(words)
    name = args.config_name or config_name
    try:
        refuse_hidden(args)
        recipes.refuse_local(args)
        with configs(args) as extra:  # as Hydra will compose it
            if wrong := mistakes.unmeant(args.overrides, multirun=known.multirun):
                raise ConfigError(wrong)
            if known.multirun and (
                any(text.startswith(SWEEPS) for text in overrides) or "sweep" in recipes.chosen_by(name, extra)
            ):
                return words  # our sweep takes out the recipe's values for each point
            if interval := next((text for text in args.overrides if "interval(" in text and known.multirun), None):
                raise ConfigError(f"{interval}: for a search by another sampler: add sweep=grid sweep.n_trials=N")
            varied = recipes.varied(args.overrides, name, extra) if known.multirun else []
            added = recipes.taken_out(args.overrides, name, extra)
    except (HydraException, OmegaConfBaseException, YAMLError):
        return words  # Hydra will find the same mistake when it composes, and mistakes.explain says which it is
    if varied:
        raise ConfigError(
            f"{' '.join(varied)}: beside a recipe Hydra's own -m runs each option with the recipe's values; "
            "add sweep=grid, which gives each its own"
        )
    first = len(words) - len(args.overrides)  # the flags stand before it
    return [*words[:first], *added, *words[first:]]


def sweeping(overrides: list[str], multirun: bool) -> list[str]:
    """The overrides with `sweep.KEY=` as `hydra.sweeper.KEY=`.

    Raises: ConfigError for a sweep's option in a command that is not one of our sweeps, and for several values of one.
    """
    chosen = [text for text in overrides if text.startswith(SWEEPS)]
    about = [
        text
        for text in overrides
        if text.startswith((SWEEP_KEY, SWEEPER, "sampler=", "pruner=")) and not text.startswith(HYDRAS_OWN)
    ]
    for text in [*chosen, *about]:
        if not multirun:
            raise ConfigError(f"{text}: about a sweep, which begins with the flag -m")
    for text in [*chosen, *about]:
        with suppress(HydraException):  # which Hydra will find again
            if OverridesParser.create().parse_override(text).is_sweep_override():
                key, _, value = text.partition("=")
                listed = f"; a list is written {key}=[{value}]" if key.startswith(SWEEP_KEY) else ""
                raise ConfigError(f"{text}: is about the sweep itself and has one value{listed}")
    if about and not chosen:
        raise ConfigError(f"{about[0]}: which sweep? add a recipe, as in sweep=grid, or hydra/sweeper=rookexp")
    return [SWEEPER + text.removeprefix(SWEEP_KEY) if text.startswith(SWEEP_KEY) else text for text in overrides]
