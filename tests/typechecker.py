"""The checker of annotations under pytest: beartype, where an int may stand for a float as it does in Python."""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException

CONF = BeartypeConf(is_pep484_tower=True)


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its calls checked; unchanged where it names a Protocol, which only mypy can check."""
    try:
        return beartype(conf=CONF)(function)
    except BeartypeDecorHintException:
        return function
