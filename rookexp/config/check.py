"""Checks config values against the signature of what they build; an error is one readable line. Nothing is built here.

The signature that `_target_` names is the only schema: `Annotated[float, Gt(0)]`, `Literal[...]`, `int | None`, lists.
With `_partial_: true` a runtime object may be absent: a positional parameter, or one of a type that YAML cannot write.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import annotated_types

from rookexp.config.hints import (
    BOUNDS,
    DICT_ORIGINS,
    LIST_ORIGINS,
    SCALARS,
    UNION_ORIGINS,
    fits,
    fixed_items,
    literal_words,
    misfit,
    type_hints,
)
from rookexp.errors import ConfigError

PLAIN = re.compile(r"[\w./-]+", re.ASCII)  # needs no quotes in Hydra's grammar, nor in a shell
YAML_WORDS = {False: ("off", "no"), True: ("on", "yes")}  # what YAML reads as these, unless it is quoted
META_KEYS = ("_target_", "_partial_")
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_node(
    node: Mapping[str, Any], path: str, *, given: Collection[str] = (), also: Mapping[str, Any] | None = None
) -> None:
    """Checks a node, and every node inside it, against the signature of its `_target_`.

    `given`: parameters that the caller passes, which no key may set. `also`: further required keys of this node, which
    other code reads, with their types.
    Raises: ConfigError naming the full key, the value, what is allowed and the nearest spelling.
    """
    if "_target_" in node:
        partial = node.get("_partial_", False)
        if not isinstance(partial, bool):
            raise refusal(f"{path}._partial_", partial, "allowed: true or false")
        target = locate(node["_target_"], f"{path}._target_")
        values = {key: value for key, value in node.items() if key not in META_KEYS}
        check_call(target, values, path, runtime=partial, given=given, also=also or {})
    for key, value in node.items():
        check_inside(value, f"{path}.{key}", given)


def check_inside(value: Any, path: str, given: Collection[str]) -> None:
    """Checks the nodes in a mapping or a list, at any depth; `path` is the key of `value`."""
    if isinstance(value, Mapping):
        check_node(value, path, given=given)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_inside(item, f"{path}[{index}]", given)


def check_call(
    target: Callable[..., Any],
    values: Mapping[str, Any],
    path: str,
    *,
    runtime: bool,
    given: Collection[str],
    also: Mapping[str, Any],
) -> None:
    """Checks that `target(**values)` is a valid call: no key missing or unknown, each of the annotated type and range.

    `runtime`: parameters for objects may be absent because the caller passes them later. `path` is "" at the top.
    `given` and `also` are those of `check_node`.
    Raises: ConfigError.
    """
    parameters = inspect.signature(target).parameters
    own = type_hints(target)
    hints = {n: own.get(n, Any) for n, p in parameters.items() if p.kind in NAMED and n not in given}
    later = {n for n, hint in hints.items() if runtime and is_object(parameters[n], hint)}
    needed = {n for n in hints if n not in later and parameters[n].default is inspect.Parameter.empty} | set(also)
    hints |= also
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and not inherits_signature(target)
    for key, value in values.items():
        hint = hints.get(key, Any)
        if key in hints and not fits(value, hint):
            name, value, hint = misfit(join(path, key), value, hint)
            raise refusal(name, value, f"allowed: {allowed(hint)}{instead(name, value, hint)}")
        if key not in hints and not open_ended:
            keys = [n for n in hints if n not in later]
            listed = (
                f"allowed {f'in {path}' if path else 'at the top'}: {', '.join(keys)}" if keys else f"{path} has none"
            )
            raise refusal(join(path, key), value, f"no such key; {listed}{nearest(key, keys, join(path, ''))}")
    for key in hints:
        if key in needed and key not in values:
            remedy = ""
            if inspect.isfunction(target) and hints[key] is Any:  # a reward, say, in place of what makes one
                remedy = f"; {target.__name__} is called once, with the keys of its file: name a class; see docs/own.md"
            elif key == "tokenizer" and not runtime:
                remedy = "; the run gives it once the model is there: write _partial_: true beside _target_"
            raise ConfigError(f"{join(path, key)}: missing; allowed: {allowed(hints[key])}{remedy}")


def instead(name: str, value: Any, hint: Any) -> str:
    """`; ` and what is typed in place of a value that does not fit its type; "" where nothing is near."""
    if isinstance(value, bool) and (words := [word for word in YAML_WORDS[value] if word in literal_words(hint)]):
        return f'; in a YAML file it is written "{words[0]}", for {words[0]} without quotes means {spell(value)} there'
    if isinstance(value, (bool, int, float)) and fits(spell(value), hint):
        return f"; text that YAML reads as another type is quoted twice: \"{name}='TEXT'\""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return "; this is text; a list has no quotes around its brackets"
    if value and not isinstance(value, (list, Mapping)) and fits([value], hint):
        return f"; type {name}=[{value}]" if PLAIN.fullmatch(str(value)) else f"; type \"{name}=['{value}']\""
    if isinstance(value, str) and (meant := [number for number in numbers(value) if fits(number, hint)]):
        return f"; this is text, the number is typed {name}={meant[0]}"
    return nearest(value, literal_words(hint)) if isinstance(value, str) else ""


def inherits_signature(target: Callable[..., Any]) -> bool:
    """Whether a class has no `__init__` of its own, so that **kwargs in its signature belong to a base class."""
    return inspect.isclass(target) and "__init__" not in vars(target)


def is_object(parameter: inspect.Parameter, hint: Any) -> bool:
    """Whether a parameter is for a runtime object: positional, or of a type that YAML cannot write."""
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return is_object(parameter, args[0])
    if origin in UNION_ORIGINS:
        return all(is_object(parameter, arg) for arg in args if arg is not type(None))
    if origin is Literal or hint is Any or hint in SCALARS:
        return False
    if (origin or hint) in LIST_ORIGINS + DICT_ORIGINS:
        return any(is_object(parameter, arg) for arg in args if arg is not Ellipsis)
    return True


def locate(target: Any, path: str) -> Callable[..., Any]:
    """The class or function that an import path names.

    Raises: ConfigError when there is no such module, no such name in it, or the name is not callable.
    """
    if not isinstance(target, str) or "." not in target:
        raise refusal(path, target, "allowed: an import path such as rookexp.coefficients.FixedKL")
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:cut])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module is there; something that it needs is not installed
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                names = [n for n in vars(found) if not n.startswith("_")]
                raise refusal(path, target, f"no {name!r} in {module_name}{nearest(name, names)}")
            found = getattr(found, name)
        if not callable(found):
            raise refusal(path, target, "not a class or a function")
        return found
    raise refusal(path, target, "no such module; allowed: an import path such as rookexp.coefficients.FixedKL")


def allowed(hint: Any) -> str:
    """What `hint` takes, in words: "an integer >= 1", "forward, reverse or symmetric", "a number > 0, or null"."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        what, comma, each = allowed(args[0]).partition(", each ")  # a list's own length, not that of its items
        return " ".join([what, " and ".join(filter(None, map(rule_text, args[1:])))]).strip() + comma + each
    if origin in UNION_ORIGINS:
        return ", or ".join(allowed(arg) for arg in args)
    if origin is Literal:
        return ", ".join(spell(arg) for arg in args)
    if hint in SCALARS:
        return SCALARS[hint]
    kind = origin or hint
    if fixed_items(kind, args):
        return f"a list of {', then '.join(map(allowed, args))}"
    if kind in LIST_ORIGINS:
        return f"a list, each {allowed(args[0])}" if args else "a list"
    if kind in DICT_ORIGINS:
        return "a mapping"
    if hint is Any or hint is inspect.Parameter.empty:
        return "anything"
    return f"a node whose _target_ builds a {getattr(hint, '__name__', hint)}"


def rule_text(rule: Any) -> str:
    """One constraint as it stands in a message; "" for metadata of other kinds."""
    if isinstance(rule, annotated_types.Len) and rule.min_length == rule.max_length:
        return f"of length {rule.min_length}"
    if isinstance(rule, annotated_types.GroupedMetadata):
        return " and ".join(filter(None, map(rule_text, rule)))
    for kind, name, sign, _ in BOUNDS:
        if isinstance(rule, kind):
            return f"{sign} {getattr(rule, name)}"
    return ""


def nearest(word: str, words: Iterable[str], prefix: str = "") -> str:
    """`; did you mean <prefix>X?` with the closest X of `words`; "" where none is close."""
    by_fold = {other.lower(): other for other in words}
    word = {"gpu": "cuda"}.get(word.lower(), word)
    close = difflib.get_close_matches(word.lower(), by_fold, n=1)
    return f"; did you mean {prefix}{by_fold[close[0]]}?" if close else ""


def join(path: str, key: str) -> str:
    """The dotted key `path.key`; `key` alone where `path` is ""."""
    return f"{path}.{key}" if path else key


def numbers(text: str) -> list[int | float]:
    """What the text would be if it were read as a number: an integer, a float, both or neither."""
    found: list[int | float] = []
    for kind in (int, float):
        with suppress(ValueError):
            found.append(kind(text))
    return found


def spell(value: Any) -> str:
    """A value as YAML writes it; text of more than 60 characters is cut."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def refusal(key: str, value: Any, why: str) -> ConfigError:
    """The ConfigError `KEY=VALUE: WHY`, on one line whatever the key and the value contain."""
    return ConfigError(" ".join(f"{key}={spell(value)}: {why}".splitlines()))
