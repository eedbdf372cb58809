"""Whether plain YAML values fit type hints: `Annotated[float, Gt(0)]`, `Literal[...]`, `int | None`, lists."""

from __future__ import annotations

import collections.abc
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, Union

import annotated_types

UNION_ORIGINS = (Union, types.UnionType)
LIST_ORIGINS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
DICT_ORIGINS = (dict, collections.abc.Mapping)
SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
}
BOUNDS: tuple[tuple[type, str, str, Callable[[Any, Any], bool]], ...] = (
    (annotated_types.Gt, "gt", ">", operator.gt),
    (annotated_types.Ge, "ge", ">=", operator.ge),
    (annotated_types.Lt, "lt", "<", operator.lt),
    (annotated_types.Le, "le", "<=", operator.le),
    (annotated_types.MinLen, "min_length", "of length >=", lambda value, least: len(value) >= least),
    (annotated_types.MaxLen, "max_length", "of length <=", lambda value, most: len(value) <= most),
)


def type_hints(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a class's constructor or of a function, with their metadata; {} where it has none."""
    found = _annotations(target.__init__ if inspect.isclass(target) else target)
    if found is None and inspect.isclass(target) and is_dataclass(target):
        found = _annotations(target)  # an inherited field's names are imported where it is defined
    return {name: hint for name, hint in (found or {}).items() if name != "return"}


def _annotations(source: Any) -> dict[str, Any] | None:
    try:
        return typing.get_type_hints(source, include_extras=True)
    except (TypeError, NameError):
        return None


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain YAML value is of type `hint`; a mapping with `_target_` counts as the object that it builds."""
    if hint is Any or hint is inspect.Parameter.empty or isinstance(hint, typing.TypeVar):
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return fits(value, args[0]) and (value is None or all(holds(value, rule) for rule in rules(args[1:])))
    if origin in UNION_ORIGINS:
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if isinstance(value, Mapping) and "_target_" in value:
        return hint not in SCALARS
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in SCALARS:
        return isinstance(value, hint)
    kind = origin or hint
    if fixed_items(kind, args):
        return isinstance(value, list) and len(value) == len(args) and all(map(fits, value, args))
    if kind in LIST_ORIGINS:
        item = args[0] if args else Any
        return isinstance(value, list) and all(fits(v, item) for v in value)
    if kind in DICT_ORIGINS:
        item = args[1] if len(args) == 2 else Any
        return isinstance(value, Mapping) and all(isinstance(k, str) and fits(v, item) for k, v in value.items())
    return False  # an object: only a node can give one


def fixed_items(kind: Any, args: Sequence[Any]) -> bool:
    """Whether a hint names each item's type, as `tuple[str, int]` does and `tuple[str, ...]` does not."""
    return kind is tuple and bool(args) and args[-1] is not Ellipsis


def misfit(name: str, value: Any, hint: Any) -> tuple[str, Any, Any]:
    """Name, value and type of the innermost mapping entry that does not fit; the arguments for any other value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNION_ORIGINS and isinstance(value, Mapping):
        return next(
            (misfit(name, value, arg) for arg in args if typing.get_origin(arg) in DICT_ORIGINS), (name, value, hint)
        )
    if origin in DICT_ORIGINS and isinstance(value, Mapping) and len(args) == 2:
        for key, inner in value.items():
            if isinstance(key, str) and not fits(inner, args[1]):
                return misfit(f"{name}.{key}", inner, args[1])
    return name, value, hint


def rules(metadata: Iterable[Any]) -> list[Any]:
    """The single constraints of an `Annotated`; an Interval or Len is two of them."""
    flat: list[Any] = []
    for item in metadata:
        flat.extend(item if isinstance(item, annotated_types.GroupedMetadata) else [item])
    return flat


def holds(value: Any, rule: Any) -> bool:
    """Whether a value meets one constraint of `annotated_types`; True for metadata of other kinds."""
    for kind, name, _, holds_for in BOUNDS:
        if isinstance(rule, kind):
            return holds_for(value, getattr(rule, name))
    return True


def literal_words(hint: Any) -> list[str]:
    """The strings among a hint's `Literal` values."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return [arg for arg in args if isinstance(arg, str)]
    if origin is Annotated:
        return literal_words(args[0])
    if origin in UNION_ORIGINS:
        return [word for arg in args for word in literal_words(arg)]
    return []
