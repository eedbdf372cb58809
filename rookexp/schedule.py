"""Learning-rate factors: all updates of step s (0, 1, ...) use the base rate times `factor(s)`.

Every schedule warms up linearly, (s + 1) / warmup_steps for s < warmup_steps, so that no step has rate 0. A decay
runs over the other steps: its progress is (s - warmup_steps) / (total_steps - warmup_steps), 0 at the first of them
and 1 at total_steps, from where the factor stays constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Len, Lt

from rookexp.errors import ConfigError

Milestone = Annotated[Sequence[Annotated[float, Gt(0), Le(1)]], Len(2, 2)]  # (progress, factor from there on)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A linear warm-up, then the factor that `_after` gives."""

    warmup_steps: Annotated[int, Ge(0)]

    def factor(self, step: int) -> float:
        """The factor of step `step`, in [0, 1]."""
        return (step + 1) / self.warmup_steps if step < self.warmup_steps else self._after(step)

    def at(self, step: int) -> float:
        """`factor(step)`. Raises: ConfigError for what user code may give instead of a finite number >= 0."""
        found: Any = self.factor(step)
        if not isinstance(found, int | float) or not 0 <= found < math.inf:
            who = f"optim.schedule={type(self).__name__}"
            raise ConfigError(f"{who}: factor({step}) gave {found!r}; wanted: a finite number >= 0")
        return found

    def _after(self, step: int) -> float:
        """The factor of a step that is not in the warm-up."""
        raise ConfigError(f"optim.schedule={type(self).__name__}: it has no method factor; see docs/own.md")


class Constant(Schedule):
    """1 after the warm-up."""

    def _after(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class CosineRestarts(Schedule):
    """floor_ratio + (1 - floor_ratio) (1 + cos(pi t / cycle_steps)) / 2, t steps after the warm-up or last restart.

    t is 0, 1, ..., cycle_steps - 1, then 0 again: a cycle ends one step before the floor and the next begins at 1.
    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), eq. 5, with T_mult = 1.
    """

    cycle_steps: Annotated[int, Gt(0)]
    floor_ratio: Annotated[float, Ge(0), Le(1)]

    def _after(self, step: int) -> float:
        progress = (step - self.warmup_steps) % self.cycle_steps / self.cycle_steps
        return _from_one(_half_cosine(progress), self.floor_ratio)


@dataclass(frozen=True, kw_only=True)
class _Decay(Schedule):
    """A schedule whose factor after the warm-up depends on the progress."""

    total_steps: Annotated[int, Gt(0)]

    def _after(self, step: int) -> float:
        if step >= self.total_steps:
            return self._at(1.0)
        return self._at((step - self.warmup_steps) / (self.total_steps - self.warmup_steps))

    def _at(self, progress: float) -> float:
        """The factor at a progress in [0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Step(_Decay):
    """The factor of the latest milestone [progress, factor] that is reached, 1 before the first of them.

    A factor is of the base rate, not of the factor before it; the milestones may stand in any order.
    """

    milestones: Sequence[Milestone]

    def _at(self, progress: float) -> float:
        reached = [factor for start, factor in sorted(map(tuple, self.milestones)) if progress >= start]
        return reached[-1] if reached else 1.0


@dataclass(frozen=True, kw_only=True)
class Advanced(_Decay):
    """Half a cosine from 1 to `cosine_floor` up to progress `cosine_share`, from there a straight line to 0 at 1.

    Source: the schedule of that name in RookWorld's training scripts, with cosine_share 0.7 and cosine_floor 0.05.
    """

    cosine_share: Annotated[float, Gt(0), Lt(1)]
    cosine_floor: Annotated[float, Ge(0), Le(1)]

    def _at(self, progress: float) -> float:
        if progress < self.cosine_share:
            return _from_one(_half_cosine(progress / self.cosine_share), self.cosine_floor)
        return self.cosine_floor * (1 - progress) / (1 - self.cosine_share)


@dataclass(frozen=True, kw_only=True)
class _ToFloor(_Decay):
    """From 1 after the warm-up to `floor_ratio` at `total_steps`."""

    floor_ratio: Annotated[float, Ge(0), Le(1)]


class Linear(_ToFloor):
    """floor_ratio + (1 - floor_ratio) (1 - progress) after the warm-up."""

    def _at(self, progress: float) -> float:
        return _from_one(1 - progress, self.floor_ratio)


class Cosine(_ToFloor):
    """floor_ratio + (1 - floor_ratio) (1 + cos(pi progress)) / 2 after the warm-up.

    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), eq. 5, without restarts.
    """

    def _at(self, progress: float) -> float:
        return _from_one(_half_cosine(progress), self.floor_ratio)


def _from_one(share: float, floor: float) -> float:
    """1 at share 1, `floor` at share 0, a straight line between them."""
    return floor + (1 - floor) * share


def _half_cosine(progress: float) -> float:
    """1 at progress 0, 0 at progress 1."""
    return (1 + math.cos(math.pi * progress)) / 2
