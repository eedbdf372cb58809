"""What a few seeds can show: intervals, paired differences, and one rule for "the same within noise"."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, " n"] | Sequence[float]

# "higher?": the 95 % interval excludes 0, but includes it once it is widened for the number of comparisons.
Word = Literal["higher", "lower", "higher?", "lower?", "within noise", "identical", "cannot tell"]

LEVEL = 0.95
RESAMPLES = 2000
ROUNDING = 1e-9  # of the largest value: values that differ by less count as equal
SINGLE = 1e-6  # the same for paired differences, of the largest of the values compared: many are means in float32
EXACT_FLIPS = 16  # up to this many differences, all sign patterns (65 536) are enumerated
DRAWN_FLIPS = 20_000
MIN_SEEDS = 3  # fewer differences have an interval too, but one that can be narrow by coincidence


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % confidence interval; NaN bounds where the values do not give one."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """a - b over the seeds that both have."""

    n: int  # seeds in common
    interval: Interval  # mean difference; Student's t
    p: float  # two-sided, by flipping signs; NaN without seeds in common
    said: Word  # of a, compared with b


def mean(values: Values, *, level: float = LEVEL, rounding: float = 0.0) -> Interval:
    """The mean with Student's t interval; its bounds are NaN for values without a spread, and all is NaN for none.

    One value has no spread, nor have several that are equal up to rounding (of their own, or up to `rounding` from what
    they were computed of), as on a coarse scale: an interval of width 0 would claim a certainty that they do not give.
    Nor is there one with a value that is not finite, as a largest gradient norm may be. Exact for normal values only.
    With 3 values its half-width is 2.5 standard deviations, with 5 values 1.2, with 10 values 0.7.
    """
    y = np.asarray(values, float)
    if not len(y):
        return Interval(math.nan, math.nan, math.nan)
    if not np.isfinite(y).all() or np.ptp(y) <= max(ROUNDING * np.abs(y).max(), rounding):
        return Interval(float(y.mean()), math.nan, math.nan)
    half = student_t(len(y) - 1, level) * float(y.std(ddof=1)) / math.sqrt(len(y))
    return Interval(float(y.mean()), float(y.mean()) - half, float(y.mean()) + half)


def bootstrap(values: Values) -> Interval:
    """The mean with its percentile bootstrap interval, for many values that are far from normal.

    Too narrow for few values: from 3 normal values it covers the true mean in 75 cases of 100, from 5 in 84, from 10 in
    90, where `mean` does in 95.
    """
    y = np.asarray(values, float)
    if len(y) < 2:
        return mean(y)
    rng = np.random.default_rng(0)
    drawn = [y[rng.integers(len(y), size=len(y))].mean() for _ in range(RESAMPLES)]  # one at a time: y may be long
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(y.mean()), float(low), float(high))


def differences(a: Mapping[int, float], b: Mapping[int, float]) -> list[float]:
    """a - b, both by seed, for the seeds that both have, in ascending order of the seeds."""
    return [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]


def sign_flip_p(values: Values) -> float:
    """Two-sided p of a mean this far from 0, if each difference could as well have had the other sign.

    Assumes symmetry about 0 and nothing else. Exact up to 16 values, else from 20 000 random sign patterns. It cannot
    be less than 2 / 2^n: 0.25 for 3 seeds, 0.06 for 5, below 0.05 from 6 on. NaN without values or if one is not
    finite.
    """
    y = np.asarray(values, float)
    if not len(y) or not np.isfinite(y).all():
        return math.nan
    if len(y) <= EXACT_FLIPS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(y))))
    else:
        signs = np.random.default_rng(0).choice((1.0, -1.0), size=(DRAWN_FLIPS, len(y)))
        signs[0] = 1.0  # the observed pattern is one of the possible ones
    sums = np.abs(signs @ y)
    return float(np.mean(sums >= sums[0] * (1 - 1e-9)))


def same_within_noise(values: Values, *, comparisons: int = 1, rounding: float = 0.0) -> bool | None:
    """Whether paired differences are no evidence against 0; None if they cannot decide it. The one rule of all tables.

    True if Student's t interval at the level 1 - 0.05 / comparisons includes 0: with 11 points compared with one
    baseline, the chance of any false alarm among them is then at most 5 %. "Within noise" is not "equal": the interval
    says how large a difference these seeds could have missed. With 1 comparison, 3 seeds detect a difference of 3.3
    standard deviations of the differences 8 times in 10, 5 seeds one of 1.7, 10 seeds one of 1.0. With so few, it rests
    on the differences being about normal; `sign_flip_p` needs no such assumption and can show nothing below 6 seeds.
    None for fewer than 3 differences, and for differences that are all equal, which have no interval (equal up to
    `rounding`, too, see `mean`), unless `sign_flip_p` is at most 0.05 / comparisons: then False.
    """
    y = np.asarray(values, float)
    if len(y) < MIN_SEEDS or not np.isfinite(y).all():
        return None
    chance = (1 - LEVEL) / max(comparisons, 1)
    found = mean(y, level=1 - chance, rounding=rounding)
    if math.isnan(found.low):
        return False if sign_flip_p(y) <= chance else None
    return found.low <= 0 <= found.high


def compared(a: Mapping[int, float], b: Mapping[int, float], *, comparisons: int = 1) -> Difference:
    """a compared with b over the seeds in common; `said` is the verdict by the rule of `same_within_noise`."""
    both = [abs(values[seed]) for values in (a, b) for seed in a.keys() & b.keys()]
    rounding = SINGLE * max(filter(math.isfinite, both), default=0.0)
    found = [0.0 if abs(x) <= rounding else x for x in differences(a, b)]
    interval = mean(found, rounding=rounding)
    way: Literal["higher", "lower"] = "higher" if interval.value > 0 else "lower"
    same = same_within_noise(found, rounding=rounding)
    said: Word
    if len(found) >= MIN_SEEDS and not any(found):
        said = "identical"
    elif same is None:
        said = "cannot tell"
    elif same:
        said = "within noise"
    elif same_within_noise(found, comparisons=comparisons, rounding=rounding) is False:
        said = way
    else:
        said = "higher?" if way == "higher" else "lower?"
    return Difference(len(found), interval, sign_flip_p(found), said)


@lru_cache(maxsize=256)
def student_t(freedom: int, level: float) -> float:
    """The t for which P(|T| <= t) = `level` under Student's t with `freedom` >= 1 degrees of freedom.

    Bisects the distribution function that Abramowitz and Stegun 26.7.3 and 26.7.4 give in closed form.
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t) for Student's t with `freedom` degrees of freedom."""
    theta = math.atan(t / math.sqrt(freedom))
    cos2 = math.cos(theta) ** 2
    odd = freedom % 2
    term = total = math.cos(theta) if odd else 1.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cos2 * (k - 1) / k
        total += term
    if not odd:
        return math.sin(theta) * total
    return 2 / math.pi * (theta + (math.sin(theta) * total if freedom > 1 else 0.0))
