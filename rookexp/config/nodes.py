"""Checks plain config nodes, and builds the objects that their `_target_` names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from annotated_types import MinLen

from rookexp.config import check
from rookexp.errors import ConfigError, DataError, PartError

Config = Mapping[str, Any]

TASK_NAME: dict[str, Any] = {"task_name": Annotated[str, MinLen(1)]}  # in every config: Hydra names folders by it


def check_groups(
    config: Config,
    groups: Collection[str],
    target: Callable[..., Any],
    *,
    given: Collection[str] = (),
    group_given: Mapping[str, Collection[str]],
    group_also: Mapping[str, Config],
) -> dict[str, Any]:
    """Checks a whole config; returns its top-level keys that are parameters of `target`. All others must be `groups`.

    `given`: parameters of `target` that no key may set; `group_given`: the same for a group's target; `group_also`:
    further keys of a group, which other code reads, with their types.
    Raises: ConfigError naming the full key, the value, what is allowed and the nearest spelling.
    """
    top = {key: value for key, value in config.items() if key not in groups}
    parameters = [name for name in inspect.signature(target).parameters if name not in given]
    names = [*groups, *dict.fromkeys([*parameters, *TASK_NAME])]
    for key, value in top.items():
        if key not in names:
            near = check.nearest(key, names)
            raise check.refusal(key, value, f"no such key or group; allowed at the top: {', '.join(names)}{near}")
    also = {} if "task_name" in parameters else TASK_NAME
    check.check_call(target, top, "", runtime=False, given=given, also=also)
    for group in groups:
        node = config.get(group)
        if not isinstance(node, Mapping):
            raise check.refusal(group, node, f"allowed: an option of conf/{group}/, as in {group}=NAME")
        if group == "track":  # which holds several nodes
            for name, inner in node.items():
                if not isinstance(inner, Mapping) or "_target_" not in inner:
                    raise check.refusal(f"track.{name}", inner, "allowed: a node with a _target_")
        elif "_target_" not in node:
            raise ConfigError(f"{group}._target_: missing; allowed: an import path, or {group}=NAME")
        check.check_node(node, group, given=group_given.get(group, ()), also=group_also.get(group))
    return {key: value for key, value in top.items() if key in parameters}


def make(node: Config, path: str = "", /, **objects: Any) -> Any:
    """Builds what a checked node's `_target_` names, from its keys, the nodes inside it, and `objects` by name.

    Of `objects` only those are passed that the target has a parameter for and the node has no key for. With
    `_partial_: true` and a required parameter still missing, the result is a functools.partial that takes it.
    Raises: ConfigError or DataError for what the target refuses; `path` is the node's own dotted key, "" where unknown.
    """
    target = check.locate(node["_target_"], "_target_")
    values = {
        key: inside(value, objects, check.join(path, key)) for key, value in node.items() if key not in check.META_KEYS
    }
    named = {n: p for n, p in inspect.signature(target).parameters.items() if p.kind in check.NAMED}
    values = {name: value for name, value in objects.items() if name in named} | values
    call = functools.partial(target, **values)
    waits = any(n not in values and p.default is inspect.Parameter.empty for n, p in named.items())
    if waits and node.get("_partial_", False):
        return call
    try:
        return call()
    except PartError as error:
        raise ConfigError(check.join(path, str(error))) from error
    except DataError as error:
        raise DataError(f"{path}: {error}" if path else str(error)) from error


def inside(value: Any, objects: Config, path: str) -> Any:
    """A config value with the nodes in it built; `path` is the value's dotted key."""
    if isinstance(value, Mapping) and "_target_" in value:
        return make(value, path, **objects)
    if isinstance(value, Mapping):
        return {key: inside(inner, objects, check.join(path, key)) for key, inner in value.items()}
    return [inside(item, objects, path) for item in value] if isinstance(value, list) else value


def without(node: Config, keys: Collection[str]) -> dict[str, Any]:
    """A copy of the node without some keys."""
    return {key: value for key, value in node.items() if key not in keys}
