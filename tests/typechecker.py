"""The checks of annotations under pytest: beartype, where an int may stand for a float as it does in Python.

A check takes longer than most of the functions. So of each function's calls in a test the first ones are checked, and
then every so many.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException

CONF = BeartypeConf(is_pep484_tower=True)
FIRST = EVERY = 16
calls: Counter[CodeType] = Counter()  # of each function in the running test
shaped: Callable[..., Any] = jaxtyping.jaxtyped


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its calls checked; unchanged where it names a Protocol, which only mypy can check."""
    try:
        return beartype(conf=CONF)(function)
    except BeartypeDecorHintException:
        return function


def some_calls(typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """`jaxtyping.jaxtyped` for a function's first calls in a test, and for each `EVERY`th after them."""

    def decorated(function: Any) -> Any:
        if not isinstance(function, FunctionType):  # a class
            return shaped(function, typechecker=typechecker)
        checked = None

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal checked
            calls[function.__code__] = count = calls[function.__code__] + 1
            if count > FIRST and count % EVERY:
                return function(*args, **kwargs)
            if checked is None:
                checked = shaped(function, typechecker=typechecker)
            return checked(*args, **kwargs)

        return call

    return decorated
