"""What a sweep varies: overrides in Hydra's grammar as parameters, their exact grid, and points as overrides again."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    IntervalSweep,
    Override,
    QuotedString,
    RangeSweep,
    Sweep,
    Transformer,
)

from rookexp.config import check
from rookexp.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from optuna.distributions import BaseDistribution

Scalar = int | float | bool | str
Point = Mapping[str, Scalar]  # a value for every parameter, by key
LOG = "log"


@dataclass(frozen=True, slots=True)
class Listed:
    """A parameter with a list of values: from `choice`, a comma list, `glob`, or `range`, whose stop is left out."""

    key: str
    declared: str  # as typed, behind the =
    values: tuple[Scalar, ...]  # in declared order
    texts: tuple[str, ...]  # the values as Hydra reads them
    step: float | int | None = None  # of a range, whose values are numbers and not only categories
    log: bool = False

    def text(self, value: Scalar) -> str:
        """The value as an override spells it."""
        return self.texts[self._index(value)]

    def snapped(self, value: Scalar) -> Scalar:
        """The listed value that a sampler's value, which may be a rounding error off, stands for."""
        return self.values[self._index(value)]

    def holds(self, value: Scalar) -> bool:
        """Whether the value is listed."""
        return any(same(own, value) for own in self.values)

    def distribution(self) -> BaseDistribution:
        """The parameter as an Optuna distribution."""
        from optuna import distributions

        if self.step is None:
            return distributions.CategoricalDistribution(self.values)
        low, high = min(self.values), max(self.values)
        if self.log:
            return distributions.IntDistribution(low, high, log=True)
        kind = distributions.IntDistribution if isinstance(self.step, int) else distributions.FloatDistribution
        return kind(low, high, step=abs(self.step))

    def _index(self, value: Scalar) -> int:
        return next(i for i, own in enumerate(self.values) if same(own, value))


@dataclass(frozen=True, slots=True)
class Interval:
    """A parameter that takes any number from `low` to `high`, whole ones only where both are whole."""

    key: str
    declared: str
    low: float | int
    high: float | int
    log: bool

    @property
    def values(self) -> tuple[Scalar, ...]:
        """All values of an interval of whole numbers; () for one of real numbers, which cannot be counted."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return tuple(range(int(self.low), int(self.high) + 1)) if whole else ()

    def text(self, value: Scalar) -> str:
        """The value as an override spells it."""
        return repr(value)

    def snapped(self, value: Scalar) -> Scalar:
        """The value, unchanged."""
        return value

    def holds(self, value: Scalar) -> bool:
        """Whether the value is a number within the bounds."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def distribution(self) -> BaseDistribution:
        """The parameter as an Optuna distribution."""
        from optuna import distributions

        if isinstance(self.low, int) and isinstance(self.high, int):
            return distributions.IntDistribution(self.low, self.high, log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)


Param = Listed | Interval


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters in declared order, and the overrides that every job has."""

    params: tuple[Param, ...]
    fixed: tuple[str, ...]

    @property
    def declared(self) -> dict[str, str]:
        """Key -> what was typed for it."""
        return {param.key: param.declared for param in self.params}

    @property
    def size(self) -> float:
        """Number of points; infinite with an interval of real numbers."""
        return math.prod(len(param.values) if param.values else math.inf for param in self.params)

    def points(self) -> Iterator[dict[str, Scalar]]:
        """Every point of a space of finite size, the last parameter moving fastest."""
        for values in itertools.product(*(param.values for param in self.params)):
            yield dict(zip(self.declared, values, strict=True))

    def grid(self) -> list[dict[str, Scalar]]:
        """Every point, where all parameters are listed.

        Raises: ConfigError for one that is an interval.
        """
        for param in self.params:
            if isinstance(param, Interval):
                why = "a grid needs listed values; list them, or give sweep.n_trials=N for the sampler to choose"
                raise check.refusal(param.key, param.declared, why)
        return list(self.points())

    def overrides(self, point: Point) -> list[str]:
        """The point as overrides."""
        return [f"{param.key}={param.text(point[param.key])}" for param in self.params]

    def job(self, point: Point) -> list[str]:
        """The overrides of a job: those that every job has, then the point's."""
        return [*self.fixed, *self.overrides(point)]

    def snapped(self, point: Point) -> dict[str, Scalar]:
        """The point in declared order, without rounding errors."""
        return {param.key: param.snapped(point[param.key]) for param in self.params}

    def outside(self, point: Point) -> list[str]:
        """`key=value` for each value of a point that is not in this space."""
        return [f"{p.key}={check.spell(point[p.key])}" for p in self.params if not p.holds(point[p.key])]

    def part(self, typed: Mapping[str, Any], path: str) -> dict[str, Scalar]:
        """The mapping {key: value} that was typed for the key `path`, with each value as the space lists it.

        Raises: ConfigError for a key that does not vary, and for a value that no point has.
        """
        own, found = {param.key: param for param in self.params}, {}
        for key, value in typed.items():
            if key not in own:
                allowed = f"allowed: what varies, {', '.join(own)}{check.nearest(key, own)}"
                raise check.refusal(path, f"{{{key}: {check.spell(value)}}}", allowed)
            plain = value if isinstance(value, int | float | bool | str) else check.spell(value)
            if not own[key].holds(plain):
                allowed = f"allowed: one of {key}={own[key].declared}, or null for the first point"
                raise check.refusal(path, f"{{{key}: {check.spell(value)}}}", allowed)
            found[key] = own[key].snapped(plain)
        return found

    def distributions(self) -> dict[str, BaseDistribution]:
        """The space as Optuna distributions, by key."""
        return {param.key: param.distribution() for param in self.params}


def parse(texts: Sequence[str], loader: ConfigLoader | None) -> Space:
    """The space of overrides such as `lr=1e-5,2e-5`; of a key that comes twice, the later value at the earlier place.

    Raises: ConfigError for a sweep without a value, and for what has no meaning here; HydraException for bad grammar.
    """
    found: dict[str, Param | str] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(texts)):
        key = override.get_key_element()
        found[key] = param_of(override) if override.is_sweep_override() else str(override.input_line)
    params = tuple(value for value in found.values() if not isinstance(value, str))
    return Space(params, tuple(value for value in found.values() if isinstance(value, str)))


def param_of(override: Override) -> Param:
    """The parameter that a sweep override declares."""
    key, declared = override.get_key_element(), str(override.input_line).partition("=")[2]
    sweep = override.value()
    tags = sweep.tags if isinstance(sweep, Sweep) else set()
    if tags - {LOG}:
        raise check.refusal(key, declared, f"no such tag; allowed: {LOG}{check.nearest(min(tags - {LOG}), [LOG])}")
    log = LOG in tags
    if isinstance(sweep, IntervalSweep):
        assert sweep.start is not None
        assert sweep.end is not None
        if not sweep.start < sweep.end or (log and sweep.start <= 0):
            raise check.refusal(key, declared, f"allowed: interval(low, high), low < high{', above 0' if log else ''}")
        return Interval(key, declared, sweep.start, sweep.end, log)
    if isinstance(sweep, RangeSweep):
        values, step = range_values(sweep)
        if log and (step != 1 or not values or values[0] <= 0):
            raise check.refusal(key, declared, "allowed with log: a range of whole numbers above 0 in steps of 1")
        texts = tuple(map(repr, values))
        param = Listed(key, declared, tuple(values), texts, step, log)
    else:
        if log:
            raise check.refusal(key, declared, "allowed with log: interval or range; a list has no scale")
        listed = shuffled(sweep.list, sweep.shuffle) if isinstance(sweep, ChoiceSweep) else override.sweep_iterator()
        items: dict[str, Scalar] = {}
        for item in listed:
            if any(same(plain(item), value) for value in items.values()):  # 1 and 1.0 are one point
                continue
            if plain(item) in items.values():
                raise check.refusal(key, declared, "a study cannot tell true from 1 and false from 0; leave one out")
            items[Transformer.str(item)] = plain(item)
        param = Listed(key, declared, tuple(items.values()), tuple(items))
    if not param.values:
        raise check.refusal(key, declared, "no value; allowed: at least one")
    return param


def range_values(sweep: RangeSweep) -> tuple[list[int] | list[float], int | float]:
    """The values of a range, without its stop, and its step; in decimal arithmetic: range(0, 0.3, 0.1) has 3 values.

    Raises: ConfigError for a step of 0.
    """
    ends = [sweep.start, sweep.stop, sweep.step]
    for cast in getattr(sweep, "transformers", ()):  # Hydra 1.3 has cast the ends already, 1.4 leaves it to us
        ends = [cast(end) for end in ends]
    start, stop, step = (Decimal(str(end)) for end in ends)
    if step == 0:
        raise ConfigError(f"range({start}, {stop}, {step}): allowed: a step that is not 0")
    values = [start + step * i for i in range(max(0, math.ceil((stop - start) / step)))]
    if all(isinstance(end, int) for end in ends):
        return shuffled([int(value) for value in values], sweep.shuffle), int(step)
    return shuffled([float(value) for value in values], sweep.shuffle), float(step)


def shuffled(values: list[Any], shuffle: bool) -> list[Any]:
    """The values as they are, or shuffled with a fixed seed, so that a resumed sweep has the same order."""
    return random.Random(0).sample(values, len(values)) if shuffle else values


def plain(item: Any) -> Scalar:
    """A value of the grammar as a study keeps it: numbers, booleans and words as they are, the rest as text."""
    if isinstance(item, QuotedString):
        return str(item.text)
    return item if isinstance(item, int | float | bool | str) else str(Transformer.str(item))


def same(one: Scalar, other: Scalar) -> bool:
    """Whether two values are one, up to a rounding error."""
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-15)
    return one == other and isinstance(one, bool) == isinstance(other, bool)
