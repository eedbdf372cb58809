"""What is wrong with a command line that Hydra refuses: one line with the key, the value, and what is allowed."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from rookexp.config import recipes
from rookexp.config.composing import configs, quoted
from rookexp.errors import NotSaved, lacks_memory

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

SAID = 200  # characters shown of an allocator's message
MERGED = ("track", *recipes.PRESETS)  # groups of which several options make one configuration
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def explain(error: Exception, argv: list[str], config_name: str) -> str:
    """One line for an error of Hydra's: the override that it is about, what is allowed, and the nearest spelling."""
    args = get_args_parser().parse_args(argv)
    try:
        with configs(args) as accepted:
            loader = GlobalHydra.instance().config_loader()
            texts = list(single_values(args.overrides, loader))
            if not args.multirun and (several := next((text for text in texts if text not in args.overrides), None)):
                key = several.partition("=")[0]
                hint = "" if is_alone(key, loader) else "; a list is written key=[a,b]"
                return f"{key}: several values need the flag -m{hint}"
            if said := no_such_file(args.config_name, loader):
                return said
            for order in orders(texts, loader):
                if said := refused(args.config_name or config_name, accepted, order, loader):
                    return said
    except OverrideParseException as reason:
        return f"{reason.override}: allowed: key=value or group=option{as_text(str(reason.override))}"
    except (HydraException, OmegaConfBaseException, YAMLError):
        pass  # the config is wrong without overrides, or only with all of them together
    if isinstance(error, InterpolationResolutionError):  # of the sweeper's keys, and it does not say of which
        leading = [text for text in args.overrides if "${" in text]
        return f"{leading[0]}: {one_line(error)}" if len(leading) == 1 else one_line(error)
    return one_line(error)


def no_such_file(name: str | None, loader: ConfigLoader) -> str | None:
    """One line for a typed `--config-name` that is in none of the config folders; None for one that is, or none."""
    from rookexp.config import check

    names = [found for found in loader.get_group_options("", ObjectType.CONFIG) if not found.startswith("_")]
    if name is None or name.removesuffix(".yaml") in names:
        return None
    return f"--config-name {name}: no such file; allowed: {', '.join(names)}{check.nearest(name, names)}"


def refused(name: str, accepted: list[str], texts: Sequence[str], loader: ConfigLoader) -> str | None:
    """One line for an override that does not compose with those before it, which do; None where all compose.

    It is the first such one, found by halves, unless a later one mends what it breaks.
    """

    def reason(count: int) -> Exception | None:
        try:
            hydra.compose(name, [*accepted, *texts[:count]])
        except Exception as error:  # a group overridden by a number fails deep inside
            return error
        return None

    composes, fails = 0, len(texts)
    if (error := reason(fails)) is None:
        return None
    while fails - composes > 1:
        half = (composes + fails) // 2
        if (found := reason(half)) is None:
            composes = half
        else:
            fails, error = half, found
    config = hydra.compose(name, [*accepted, *texts[:composes]], return_hydra_config=True)
    text = texts[composes]
    return explain_override(text, config, loader) or f"{text}: {one_line(error)}"


def orders(texts: list[str], loader: ConfigLoader) -> Iterator[list[str]]:
    """Yields the overrides, options of groups first; then so that each of a group's several options is its last."""
    yield texts
    groups = [text.partition("=")[0] for text in texts if loader.get_group_options(text.lstrip("+").partition("=")[0])]
    for i, group in enumerate(groups):
        if group in groups[i + 1 :]:
            yield [*texts[:i], *texts[i + 1 : len(groups)], texts[i], *texts[len(groups) :]]


def as_text(text: str) -> str:
    """A hint how to type an override that Hydra's grammar refuses; "" where quotes or brackets would not help."""
    key, equals, value = text.partition("=")
    if value.startswith("(") and value.endswith(")") and is_typed(listed := f"{key}=[{value[1:-1]}]"):
        return f"; a list is written {listed}"
    plain = f"{key}={in_grammar(value)}"
    return (
        f'; a value with such characters stands in quotes of its own: "{plain}"' if equals and is_typed(plain) else ""
    )


def in_grammar(value: str) -> str:
    """A value in quotes where Hydra's grammar asks for them, which in a list is around its items."""
    if value.startswith("[") and value.endswith("]"):
        return f"[{','.join(map(in_grammar, value[1:-1].split(',')))}]"
    return value if is_typed(f"key={value}") else quoted(value)


def is_typed(text: str) -> bool:
    """Whether Hydra's grammar takes an override."""
    try:
        OverridesParser.create().parse_override(text)
    except HydraException:
        return False
    return True


def single_values(overrides: list[str], loader: ConfigLoader) -> Iterator[str]:
    """Yields the overrides, choices of options first; a sweep gives one per value, an interval its start alone."""
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    for override in sorted(parsed, key=lambda o: not loader.get_group_options(o.key_or_group)):
        if override.is_sweep_override() and override.is_discrete_sweep():
            name = (override.input_line or "").split("=", 1)[0]
            yield from (f"{name}={value}" for value in override.sweep_string_iterator())
        elif isinstance(interval := override.value(), IntervalSweep):
            yield f"{override.get_key_element()}={interval.start}"
        else:
            yield override.input_line or ""


def unmeant(overrides: Sequence[str], *, multirun: bool) -> str | None:
    """One line for the first override that Hydra would take without a word, but hardly as it was meant, if any.

    A list of options of a group, which it would lay over each other; with `multirun` a sweep without a value, as of a
    glob that no option matches, which would run nothing, or with one twice, which would run the same job twice.
    Needs an initialized Hydra.
    """
    loader = GlobalHydra.instance().config_loader()
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        line, key = override.input_line, override.key_or_group
        if isinstance(override.value(), list) and is_alone(key, loader):
            return f"{line}: allowed: one option; of several the last would win"
        if not (multirun and override.is_sweep_override() and override.is_discrete_sweep()):
            continue
        values = [*override.sweep_iterator()]
        if not values:
            options = loader.get_group_options(key)
            why = f"no option matches; allowed: {', '.join(options)}" if options else "no value; allowed: at least one"
            return f"{line}: {why}"
        shown = [*map(repr, values)]  # 1 is not true
        if twice := [value for value, text in zip(values, shown, strict=True) if shown.count(text) > 1]:
            return f"{line}: {twice[0]} is there twice; allowed: each value once, for each is a run"
    return None


def is_alone(key: str, loader: ConfigLoader) -> bool:
    """Whether a key is a group of rookexp's of which only one option can be chosen."""
    group = key.lstrip("+").partition("@")[0]
    return group not in MERGED and not group.startswith("hydra/") and bool(loader.get_group_options(group))


def explain_override(text: str, config: DictConfig, loader: ConfigLoader) -> str | None:
    """What is wrong with one override of a config that composes without it; None where nothing more can be said."""
    from rookexp.config import check

    override: Override = OverridesParser.create(config_loader=loader).parse_override(text)
    key = override.key_or_group
    options = sorted({*loader.get_group_options(key), *(file.stem for file in own_files(key, config))})
    if options:
        value = str(override.value())
        if value in options and override.package is not None:  # GROUP@PATH, which the defaults list does not have
            return f"{text}: type +{text}" if not override.is_add() else f"{text}: there is an option already"
        if value in options and key not in config.hydra.runtime.choices:
            groups = sorted({str(g) for g in config.hydra.runtime.choices if "/" not in g} - {"hydra"})
            return f"{text}: not a group of this command, which has {', '.join(groups) or 'none'}"
        if value in options and override.is_add():
            return f"{text}: {key} has a choice already; type {key}={value}"
        if value in options:  # the option's file does not compose, as YAML or as a config
            return None
        hint = "; one of several may be null with sweep=grid" if text in recipes.NULLS else ""
        return f"{text}: allowed: {', '.join(options)}{hint or check.nearest(value, options, f'{key}=')}"
    if override.is_add():
        return f"{text}: there is a value already; type {text.lstrip('+')}"
    parent: Any = config
    done: list[str] = []
    for part in key.split("."):
        if not isinstance(parent, DictConfig):
            return f"{text}: {'.'.join(done)} is a value and holds no keys"
        if part not in parent:
            names = [str(name) for name in parent if name != "hydra" and not str(name).startswith("_")]
            if not done:  # a group without a choice, such as experiment, leaves no key
                names = sorted({*names, *(str(g) for g in config.hydra.runtime.choices if "/" not in g)} - {"hydra"})
            where = f"in {'.'.join(done)}" if done else "at the top"
            hint = f"; did you mean sweep.{key}?" if part in ("sampler", "pruner") and "." in key else ""
            hint = hint or (same_name(part, config) if not done else "")
            hint = hint or check.nearest(part, names, "".join(f"{name}." for name in done))
            hint = hint or of_others(done, part, config) or same_name(part, config)
            if done and not names:  # such as kl=none
                place = ".".join(done)
                for group, option in config.hydra.runtime.choices.items():
                    if group.rpartition("@")[2].replace("/", ".") == place:
                        return f"{text}: {group}={option} has no keys; choose another option of {group}"
                return f"{text}: {place} has no keys"
            return f"{text}: no such key; allowed {where}: {', '.join(names) or 'none'}{hint}"
        done.append(part)
        parent = parent._get_node(part)
    if isinstance(parent, ListConfig) and isinstance(override.value(), dict):
        return f"{text}: allowed: a list, which stands in square brackets"
    return None


def own_files(group: str, config: DictConfig) -> Iterator[Path]:
    """Yields the files of a group's options in the config folders, with those that were added on the command line."""
    for source in config.hydra.runtime.config_sources:
        if source.schema == "file":
            yield from sorted((Path(source.path) / group).glob("*.yaml"))


def of_others(place: list[str], key: str, config: DictConfig) -> str:
    """`; GROUP=OPTION has it` for the options whose files have the key, if the place is a group; "" where none has."""
    files = own_files(place[0], config) if len(place) == 1 else ()
    having = [f"{place[0]}={file.stem}" for file in files if key in OmegaConf.load(file)]
    return f"; {', '.join(having)} {'has' if len(having) == 1 else 'have'} it" if having else ""


def same_name(name: str, config: DictConfig) -> str:
    """`; did you mean group.key?` for the first group with a key of that very name; Hydra's own is none."""
    nodes = [(str(group), node) for group, node in config.items() if group != "hydra"]
    groups = [group for group, node in nodes if isinstance(node, DictConfig) and name in node]
    return f"; did you mean {groups[0]}.{name}?" if groups else ""


def of_system(error: BaseException, *, started: bool) -> str | None:
    """One line for an error of the system, such as a full disk or no memory, with what helps; None for other errors.

    Once a run has started, a missing file is a bug in the program, hence None.
    """
    if lacks_memory(error):
        less = "a smaller hardware.micro_batch, grpo.group_size or grpo.max_new_tokens"
        return f"out of memory: {one_line(error)[:SAID]}; {less} needs less, and hardware.fit=true finds what fits"
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError) or cause.strerror is None:
        return None
    said = f"{cause.filename or 'the run folder'}: {cause.strerror}"
    if cause.errno in FULL:
        return f"{said}; free some space and type the same again, or resume=FOLDER where a run has begun"
    if cause.errno == errno.EROFS or not started:
        where = "type hydra.run.dir=FOLDER, with -m hydra.sweep.dir=FOLDER, or resume=A COPY of the run"
        return f"{said}; a run must be able to write: {where}"
    if isinstance(cause, PermissionError) and cause.filename:
        return f"{said}; it needs the right to be read, or written, by who types this"
    return None


def lacks_space(error: object) -> bool:
    """Whether the disk, mostly a full one, is the cause, so that the same command may succeed when repeated."""
    return isinstance(error, NotSaved) or (isinstance(error, OSError) and error.errno in FULL)


def one_line(error: BaseException) -> str:
    """An error's message on one line, with that of its cause."""
    texts = [" ".join(str(error).split()), " ".join(str(error.__cause__ or "").split())]
    return ": ".join(text for text in texts if text) or type(error).__name__
