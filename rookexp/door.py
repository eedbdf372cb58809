"""What the doors share: where conf/ is, what Hydra's versions differ in, and errors as one line on stderr."""

from __future__ import annotations

import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rookexp import environment, labels, recipes, resume
from rookexp.errors import ConfigError, DataError, EngineError, RookexpError, RunStopped
from rookexp.run_info import is_secret

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

PACKAGE = Path(__file__).resolve().parent
PRESETS = ("experiment", "sweep", "debug")  # groups for which `+group=option` means the same as `group=option`
SWEEPER, SWEEP_KEY = "hydra.sweeper.", "sweep."  # the long name of a sweeper's key, and the one that is typed
FULL_ERROR = "HYDRA_FULL_ERROR"  # Hydra's own variable: 1 shows tracebacks
# Hydra looks for plugins once a process, so our sweeper is there to be found before anything composes, however rookexp
# was installed or not.
PLUGINS = str(PACKAGE / "_hydra")
if PLUGINS not in sys.path:
    sys.path.append(PLUGINS)
HYDRA_VERSION = tuple(int(part) for part in hydra.__version__.split(".")[:2])

Task = Callable[[dict[str, Any], Path], Any]


def enter(task: Task, config_name: str) -> None:
    """Composes conf/<config_name>.yaml with the command line and calls `task(config, run_dir)`; exits on an error.

    `config` is plain and resolved. Exit status: 2 for what was typed or is missing, 1 for a run that failed, 128 and a
    signal's number for one that the signal ended. With HYDRA_FULL_ERROR=1 every error is a traceback.
    """
    wants_traceback = os.environ.get(FULL_ERROR) == "1"
    failed: list[RookexpError] = []
    swept: list[RookexpError] = []  # of a sweep's jobs; each has had its line
    started: list[DictConfig] = []
    sweeps: set[Path] = set()  # folders of Hydra's own

    def job(config: DictConfig) -> Any:
        register_resolvers()  # a launcher may have started another process
        started.append(config)
        if HydraConfig.get().mode == RunMode.MULTIRUN and in_this_process():
            sweeps.add(Path(str(HydraConfig.get().sweep.dir)))
        try:
            return task(plain(config), Path(HydraConfig.get().runtime.output_dir))
        except RunStopped as error:
            sys.exit(error.status)  # of a sweep the jobs to come are not wanted either
        except RookexpError as error:
            if wants_traceback or not in_this_process():
                raise
            # Raised here it would come with a second line by Hydra.
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                typed = " ".join(HydraConfig.get().overrides.task)
                print(f"error: job {HydraConfig.get().job.num} ({typed}): {error}", file=sys.stderr)
                swept.append(error)
            else:
                failed.append(error)
            return None

    register_resolvers()
    try:
        environment.load(Path.cwd())
        sys.argv[1:] = arrange(sys.argv[1:], config_name)
        os.environ[FULL_ERROR] = "1"  # Hydra then lets its errors through to the lines below
        try:
            hydra.main(config_path=str(conf_dir()), config_name=config_name, **version_base())(job)()
        finally:
            if not wants_traceback:
                del os.environ[FULL_ERROR]
        for folder in sweeps:
            from rookexp.sweep import summary

            summary.show(folder)
        if failed:
            raise failed[0]
        if swept:
            sys.exit(max(map(status_of, swept)))
    except RookexpError as error:
        if wants_traceback:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(status_of(error))
    except KeyboardInterrupt:
        if wants_traceback:
            raise
        sys.exit(130)
    except Exception as error:
        if wants_traceback or started:  # a mistake in the program, and its place matters
            raise
        print(f"error: {explain(error, sys.argv[1:], config_name)}", file=sys.stderr)
        sys.exit(2)


def status_of(error: RookexpError) -> int:
    """Exit status: 2 for what was typed or is missing, 1 for a run that failed."""
    return 2 if isinstance(error, (ConfigError, DataError, EngineError)) else 1


def in_this_process() -> bool:
    """Whether this is Hydra's own way to run a job, which needs no exception to know of a failure."""
    parts = HydraConfig.get().sweeper, HydraConfig.get().launcher
    return HydraConfig.get().mode == RunMode.RUN or all(
        str(p["_target_"]).startswith("hydra._internal.") for p in parts
    )


def keep_overrides(folder: Path) -> None:
    """Notes in the folder of a run that goes on what it goes on with; a new run's overrides are there already."""
    if HydraConfig.initialized() and HydraConfig.get().output_subdir is None:
        resume.keep(folder, list(HydraConfig.get().overrides.task))


def conf_dir() -> Path:
    """The folder of the YAML files: inside the package when it was installed from a wheel, else beside it."""
    inside, beside = PACKAGE / "conf", PACKAGE.parent / "conf"
    return inside if inside.is_dir() else beside


def version_base() -> dict[str, str]:
    """`version_base` for Hydra 1.3, which warns without it; 1.4 warns with it."""
    return {"version_base": "1.3"} if HYDRA_VERSION < (1, 4) else {}


def register_resolvers() -> None:
    """What YAML calls as `${NAME:}`.

    `short_id`: six letters that make a run's folder its own. `asset:NAME`: an embedded folder's path. `label:KIND`: the
    run's name, group or tags.
    """
    # Hydra 1.4 comes with OmegaConf 2.4, where this name replaces the other; before, it was another function's.
    register: Any = OmegaConf.register_new_resolver if HYDRA_VERSION < (1, 4) else OmegaConf.register_resolver
    register("short_id", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    register("asset", lambda name: str(PACKAGE / "assets" / name), replace=True)
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
    """The arguments with flags first, without the + of `+experiment=`, `sweep.` long, `resume=` carried out.

    Raises: ConfigError for a flag that Hydra does not have, for a folder that cannot be resumed, and for a sweep's
    recipe or key without a sweep.
    """
    argv = [arg[1:] if arg.startswith(tuple(f"+{group}=" for group in PRESETS)) else arg for arg in argv]
    parser = get_args_parser()
    known, unknown = parser.parse_known_args(argv)
    for arg in unknown:
        if arg.startswith("-"):
            from rookexp import check

            flags = sorted(flag for flag in parser._option_string_actions if flag.startswith("--"))
            hint = check.nearest(arg.split("=")[0], flags)
            raise ConfigError(f"{arg}: no such flag; allowed: key=value, group=option, {', '.join(flags)}{hint}")
    overrides = [*known.overrides, *unknown]
    for text in overrides:
        if is_secret(text.lstrip("+")):  # before Hydra writes it into the run's folder
            key = text.partition("=")[0]
            raise ConfigError(f"{key}=***: others can read what is typed; put W&B's key into .env: WANDB_API_KEY=...")
    flags = [arg for arg in argv if arg not in overrides]
    words = resume.continued(flags, sweeping(overrides, known.multirun), config_name)
    args = parser.parse_args(words)
    if not any(text.startswith(f"{recipes.RECIPES}=") for text in args.overrides):
        return words
    try:
        with configs(args) as extra:
            added = recipes.taken_out(args.overrides, args.config_name or config_name, extra)
    except Exception:  # Hydra will find the same mistake when it composes, and explain() says which it is
        return words
    first = len(words) - len(args.overrides)  # the flags stand before it
    return [*words[:first], *added, *words[first:]]


@contextmanager
def configs(args: Namespace) -> Iterator[list[str]]:
    """Hydra, ready to compose what the flags ask for; the overrides that a --config-dir stands for."""
    path = Path(args.config_path).resolve() if args.config_path else conf_dir()
    GlobalHydra.instance().clear()  # a failed start leaves one behind
    with hydra.initialize_config_dir(str(path), **version_base()):
        yield [f"hydra.searchpath=[file://{Path(args.config_dir).resolve()}]"] if args.config_dir else []


def sweeping(overrides: list[str], multirun: bool) -> list[str]:
    """The overrides with `sweep.KEY=` as `hydra.sweeper.KEY=`.

    Raises: ConfigError for what is about a sweep in a command that is none of ours.
    """
    chosen = [text for text in overrides if text.startswith(("sweep=", "hydra/sweeper="))]
    about = [text for text in overrides if text.startswith((SWEEP_KEY, "sampler=", "pruner="))]
    for text in [*chosen, *about]:
        if not multirun and text != "sweep=null":
            raise ConfigError(f"{text}: about a sweep, which begins with the flag -m")
    if about and not chosen:
        raise ConfigError(f"{about[0]}: which sweep? add a recipe, as in sweep=grid, or hydra/sweeper=rookexp")
    return [SWEEPER + text.removeprefix(SWEEP_KEY) if text.startswith(SWEEP_KEY) else text for text in overrides]


def explain(error: Exception, argv: list[str], config_name: str) -> str:
    """One line for an error of Hydra's: the override that it is about, what is allowed, and the nearest spelling."""
    args = get_args_parser().parse_args(argv)
    try:
        with configs(args) as accepted:
            loader = GlobalHydra.instance().config_loader()
            for text in single_values(args.overrides, loader):
                if not args.multirun and text not in args.overrides:
                    return f"{text.split('=')[0]}: several values need the flag -m; a list is written key=[a,b]"
                try:
                    hydra.compose(args.config_name or config_name, [*accepted, text])
                except Exception as reason:  # a group overridden by a number fails deep inside
                    config = hydra.compose(args.config_name or config_name, accepted, return_hydra_config=True)
                    return explain_override(text, config, loader) or f"{text}: {one_line(reason)}"
                accepted = [*accepted, text]
    except OverrideParseException as reason:
        return f"{reason.override}: allowed: key=value or group=option, quoted where the shell or YAML needs it"
    except (HydraException, OmegaConfBaseException, YAMLError):
        pass  # the config is wrong without any override, or for a reason that only the whole has
    return one_line(error)


def single_values(overrides: list[str], loader: ConfigLoader) -> Iterator[str]:
    """The overrides with the choice of options first; of a sweep, each value by itself."""
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    for override in sorted(parsed, key=lambda o: not loader.get_group_options(o.key_or_group)):
        if override.is_sweep_override() and override.is_discrete_sweep():
            name = (override.input_line or "").split("=", 1)[0]
            yield from (f"{name}={value}" for value in override.sweep_string_iterator())
        elif isinstance(interval := override.value(), IntervalSweep):
            yield f"{override.get_key_element()}={interval.start}"
        else:
            yield override.input_line or ""


def explain_override(text: str, config: DictConfig, loader: ConfigLoader) -> str | None:
    """What is wrong with one override of a config that composes without it; None where nothing more can be said."""
    from rookexp import check

    override: Override = OverridesParser.create(config_loader=loader).parse_override(text)
    key = override.key_or_group
    options = loader.get_group_options(key)
    if options:
        value = str(override.value())
        if value in options:
            return f"{text}: {key} has a choice already; type {key}={value}"
        return f"{text}: allowed: {', '.join(options)}{check.nearest(value, options, f'{key}=')}"
    if override.is_add():
        return f"{text}: there is a value already; type {text.lstrip('+')}"
    parent: Any = config
    done: list[str] = []
    for part in key.split("."):
        if not isinstance(parent, DictConfig):
            return f"{text}: {'.'.join(done)} is a value and holds no keys"
        if part not in parent:
            names = [str(name) for name in parent if name not in (*check.META_KEYS, "hydra")]
            if not done:  # a group without a choice, such as experiment, leaves no key
                names = sorted({*names, *(str(g) for g in config.hydra.runtime.choices if "/" not in g)} - {"hydra"})
            where = f"in {'.'.join(done)}" if done else "at the top"
            hint = same_name(part, config) if not done else ""
            hint = hint or check.nearest(part, names, "".join(f"{name}." for name in done))
            return f"{text}: no such key; allowed {where}: {', '.join(names)}{hint}"
        done.append(part)
        parent = parent._get_node(part)
    return None


def same_name(name: str, config: DictConfig) -> str:
    """`; did you mean group.key?` for the first group with a key of that very name."""
    groups = [str(group) for group, node in config.items() if isinstance(node, DictConfig) and name in node]
    return f"; did you mean {groups[0]}.{name}?" if groups else ""


def one_line(error: BaseException) -> str:
    """An error's message on one line, with that of its cause."""
    texts = [" ".join(str(error).split()), " ".join(str(error.__cause__ or "").split())]
    return ": ".join(text for text in texts if text) or type(error).__name__
