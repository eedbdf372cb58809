"""`experiment=dapo loss=gspo`: a recipe, and a group's option that was typed beside it.

In Hydra a recipe's values win over those of any option of its groups, so that the typed option would run with the
recipe's numbers for another one, or be refused for keys that it does not have. Here the typed option stands as its file
has it; a value typed beside it still wins over both. The same holds for a sweep's recipe, and for one that a user's own
config file chooses. An option that a sweep's recipe itself varies keeps the recipe's values.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from rookexp.config import check, composing
from rookexp.config.composing import conf_dir
from rookexp.errors import ConfigError

RECIPES = ("experiment", "sweep")  # groups whose options set values of other groups
PRESETS = (*RECIPES, "debug")  # groups without an option unless one is typed, so that a + before it means nothing
DROPPED = {f"~{group}" for group in RECIPES}
NULLS = {f"{group}=null" for group in PRESETS}
GLOBAL = re.compile(r"(\s*#\s*@.*\n)*\s*#\s*@package\s+_global_\s*$", re.MULTILINE)  # at the start of a file
QUOTES = " \t'\""
NO_VALUES = {"experiment": "~experiment", "sweep": "sweep=grid"}  # without sweep=grid no sampler= or pruner= composes


def without_null(overrides: Sequence[str]) -> list[str]:
    """The overrides with `~GROUP` for each `GROUP=null` of `PRESETS`: Hydra 1.3 takes no null for a group's option."""
    return [f"~{text.removesuffix('=null')}" if text in NULLS else text for text in overrides]


def refuse_local(args: Namespace) -> None:
    """Raises: ConfigError for a typed recipe of a user's own whose values Hydra would put under the recipe's group.

    Hydra reads `# @package` only in the lines before the first one of another kind, a comment included.
    """
    for place in filter(None, [args.config_dir, *composing.places(args.overrides)]):
        for group, _, options in (text.lstrip("+").partition("=") for text in args.overrides):
            for option in options.split(",") if group in PRESETS else ():
                path = Path(place.removeprefix("file://"), group, f"{option.strip(QUOTES)}.yaml")
                if path.is_file() and not GLOBAL.match(path.read_text(encoding="utf-8", errors="replace")):
                    raise ConfigError(
                        f"{path}: without `# @package _global_` its values would go under {group}, not to the keys "
                        "that they name; make it the first line, above any comment"
                    )


def taken_out(overrides: Sequence[str], config_name: str, searchpath: Sequence[str] = ()) -> list[str]:
    """The overrides that take a recipe's values out of the groups whose option was typed; they go before all others.

    [] without a recipe, or where several recipes are swept. A group of which several options are swept keeps the
    recipe's values. `searchpath`: Hydra's override for it, if any. Needs an initialized Hydra.
    Raises: whatever Hydra raises for a recipe or an option that does not exist.
    """
    typed = dict(text.split("=", 1) for text in overrides if "=" in text)
    given = [f"{group}={typed.pop(group)}" for group in RECIPES if group in typed]
    given += [text for text in overrides if text in DROPPED]
    chosen = {key: value for key, value in typed.items() if not _several(value) and _is_group(key)}
    sets_values = {*given} - {*NO_VALUES.values()} or _is_own(config_name)
    if not chosen.keys() - {*PRESETS} or any(map(_several, given)) or not sets_values:
        return []
    loader = GlobalHydra.instance().config_loader()
    changes = _replaced(loader, tuple(chosen.items()), tuple(given), config_name, tuple(searchpath))
    return [text for text in changes if text not in overrides]


@lru_cache(maxsize=64)  # the points of a sweep repeat the same call
def _replaced(
    loader: ConfigLoader,
    chosen: tuple[tuple[str, str], ...],
    given: tuple[str, ...],
    config_name: str,
    searchpath: tuple[str, ...],
) -> tuple[str, ...]:
    """`taken_out` for the `chosen` pairs of group and option; `loader` only keys the cache (of what its files say)."""
    both = hydra.compose(
        config_name, [*searchpath, *(f"{key}={value}" for key, value in chosen), *given], return_hydra_config=True
    )
    found = [group for group in RECIPES if both.hydra.runtime.choices.get(group) is not None]
    varied = OmegaConf.select(both, "hydra.sweeper.params") or {}
    # By group: the recipes whose values its option replaces.
    over = {key: tuple(one for one in found if one != "sweep" or key not in varied) for key, _ in chosen}
    # GROUP@PATH=OPTION, for a path that only the recipe has, is composed at a path of its own.
    aside = {key: f"+{key.partition('@')[0]}@aside_{place}" for place, (key, _) in enumerate(chosen) if "@" in key}
    alone = {}
    for without in {*over.values()} - {()}:
        options = [f"{aside.get(key, key)}={value}" for key, value in chosen]
        options += [text for text in given if text.partition("=")[0] not in without]
        alone[without] = hydra.compose(config_name, [*searchpath, *options, *(NO_VALUES[group] for group in without)])
    paths = {key.rpartition("@")[2] for key, _ in chosen}
    changes: list[str] = []
    for key, _ in chosen:
        if without := over[key]:
            path = key.rpartition("@")[2]
            have, want = _at(both, path), _at(alone[without], aside.get(key, key).rpartition("@")[2])
            changes += [] if want is None else _changes(path, have, want, paths - {path})
    return tuple(changes)


def typed(overrides: Sequence[str], config_name: str, searchpath: Sequence[str] = ()) -> list[str]:
    """The overrides without those that come from `taken_out`; `searchpath` as there."""
    options = [text for text in overrides if text in DROPPED or ("=" in text and _is_group(text.split("=")[0]))]
    added = taken_out(options, config_name, searchpath)
    return [text for text in overrides if text not in added]


def chosen_by(config_name: str, searchpath: Sequence[str]) -> list[str]:
    """The groups of `RECIPES` of which a user's own config file chooses an option; `searchpath` as in `taken_out`."""
    if not _is_own(config_name):
        return []
    choices = hydra.compose(config_name, [*searchpath], return_hydra_config=True).hydra.runtime.choices
    return [group for group in RECIPES if choices.get(group) is not None]


def _is_own(config_name: str) -> bool:
    """Whether it is a user's own config file, named by --config-name; those that come with rookexp choose no recipe."""
    return not (conf_dir() / f"{config_name}.yaml").is_file()


def _is_group(key: str) -> bool:
    """Whether the key names a group, alone or with the path that its option goes to, as GROUP@PATH."""
    return bool(GlobalHydra.instance().config_loader().get_group_options(key.partition("@")[0]))


def _at(config: Any, path: str) -> Any:
    """The plain value at a path, None where there is none."""
    node = OmegaConf.select(config, path)
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node


def varied(overrides: Sequence[str], config_name: str, searchpath: Sequence[str]) -> list[str]:
    """The groups whose options vary, or stand beside several recipes, so that no one command can take the values out.

    As `GROUP=OPTIONS`; only groups of which a recipe sets values. Needs and raises what `taken_out` does.
    """
    typed = dict(text.split("=", 1) for text in overrides if "=" in text)
    recipe = typed.pop(RECIPES[0], "")
    several = [key for key, value in typed.items() if _several(recipe) or _several(value)]
    given = [[text] for text in _each(RECIPES[0], recipe)] if recipe else [[]]
    return [
        f"{key}={typed[key]}"
        for key in several
        if _is_group(key)
        and any(
            taken_out([*one, text], config_name, searchpath) for one, text in product(given, _each(key, typed[key]))
        )
    ]


def _changes(path: str, have: Any, want: Any, others: Set[str]) -> Iterator[str]:
    """Yields the overrides that turn the node `have` at `path` into `want`, but for the paths of `others`."""
    if path in others:
        return
    if isinstance(have, Mapping) and isinstance(want, Mapping):
        for key in have:
            if key in want:
                yield from _changes(f"{path}.{key}", have[key], want[key], others)
            else:
                if have[key] is None:  # Hydra deletes no null
                    yield f"{path}.{key}=0"
                yield f"~{path}.{key}"
        yield from (f"+{path}.{key}={_spelled(value)}" for key, value in want.items() if key not in have)
    elif have != want:
        yield f"{path}={_spelled(want)}"


def _several(value: str) -> bool:
    """Whether a sweep is asked for: a comma list, or a function such as choice(...) or glob(...)."""
    return "," in value or "(" in value


def _each(key: str, values: str) -> list[str]:
    """The overrides of a key by each of the values that a sweep is asked for, or by its one value."""
    loader = GlobalHydra.instance().config_loader()
    [override] = OverridesParser.create(config_loader=loader).parse_overrides([f"{key}={values}"])
    swept = override.sweep_string_iterator() if override.is_sweep_override() else [values]
    return [f"{key}={value}" for value in swept]


def _spelled(value: Any) -> str:
    """A value in Hydra's grammar of overrides."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_spelled(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spelled, value)) + "]"
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"
    return check.spell(value)
