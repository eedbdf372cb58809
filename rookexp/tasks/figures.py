"""Figures that answers are counted into: shares, means and medians, each with its 95 % confidence interval."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rookexp import statistics

Z95 = 1.959964
MANY = 20  # fewest values for which the bootstrap interval is used


@dataclass(frozen=True, slots=True)
class Figure:
    """`hits` of `total`, as a share with its 95 % Wilson score interval. Source: Wilson 1927.

    For observations that are not independent, the interval is that of `sized` independent ones with the same share.
    """

    hits: int
    total: int
    sized: float | None = field(default=None, compare=False)  # effective sample size; None: independent, `total`

    @property
    def share(self) -> float:
        """hits / total in [0, 1]; NaN where the total is 0."""
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end in [0, 1]; (0, 1) where the total is 0."""
        if not self.total:
            return (0.0, 1.0)
        n, p = self.total if self.sized is None else self.sized, self.share
        centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
        return (max(0.0, centre - half), min(1.0, centre + half))

    def record(self) -> dict[str, Any]:
        """The figure as an object for a JSON file."""
        share = self.share if self.total else None
        return {"share": share, "interval": self.interval, "hits": self.hits, "total": self.total}

    def __str__(self) -> str:
        if not self.total:
            return "nothing to count"
        low, high = self.interval
        return f"{100 * self.share:.1f} % [{100 * low:.1f}, {100 * high:.1f}] ({self.hits}/{self.total})"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean or median of `total` observations, with its 95 % interval; None where that is unknown."""

    value: float
    interval: tuple[float, float] | None
    total: int
    kind: Literal["mean", "median"] = "mean"

    def record(self) -> dict[str, Any]:
        """The figure as an object for a JSON file."""
        return {self.kind: self.value, "interval": self.interval, "total": self.total}

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"
        kind = "" if self.kind == "mean" else f"{self.kind}, "
        return f"{self.value:.3f}{interval} ({kind}n = {self.total})"


Figures = dict[str, Figure | Estimate]


def pooled(bunches: Sequence[tuple[int, int]]) -> Figure:
    """The share of hits in clusters (hits, total), such as the moves of an answer; only clusters are independent.

    The effective sample size is the total over the design effect, that is how much more the share varies between
    clusters than with independent observations, at least 1; smaller still where few clusters show how much it varies;
    the number of clusters where that is unknown, as with all hits or none. Source: Korn and Graubard 1998, Kish 1965.
    """
    known = [(hits, size) for hits, size in bunches if size]
    hits, total, n = sum(h for h, _ in known), sum(size for _, size in known), len(known)
    if n < 2 or hits in (0, total):
        return Figure(hits, total, min(n, total))
    share = hits / total
    variance = math.fsum((h - share * size) ** 2 for h, size in known) * n / (n - 1) / total**2
    design = max(1.0, total * variance / (share * (1 - share)))
    return Figure(hits, total, total / design * (Z95 / statistics.student_t(n - 1, statistics.LEVEL)) ** 2)


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of one or more values >= 0, with Student's interval from the sample's standard deviation."""
    return ratio_of(values, [1] * len(values))


def ratio_of(amounts: Sequence[float], sizes: Sequence[float]) -> Estimate:
    """sum(amounts) / sum(sizes) of observations with an amount >= 0 and a size each; `total` counts the observations.

    Student's interval treats observations as independent, not units of size, and is cut off at 0, below which it might
    reach with few, uneven ones; None where all have the same ratio, or for one, which says nothing about the spread.
    Source: Cochran 1977, eq. 6.13.
    """
    n, size = len(amounts), math.fsum(sizes)
    ratio = math.fsum(amounts) / size
    squares = math.fsum((amount - ratio * each) ** 2 for amount, each in zip(amounts, sizes, strict=True))
    if n < 2 or squares == 0:
        return Estimate(ratio, None, n)
    half = statistics.student_t(n - 1, statistics.LEVEL) * math.sqrt(squares / (n - 1) / n) / (size / n)
    return Estimate(ratio, (max(0.0, ratio - half), ratio + half), n)


def median_of(values: Sequence[float]) -> Estimate:
    """The median of at least one value; its interval ends at two of the values, and is None for fewer than 6.

    It leaves out k values at each end, the largest k for which n tosses of a fair coin give at most k heads with a
    probability of at most 1 / 40.
    """
    y, n = sorted(values), len(values)
    middle = (y[(n - 1) // 2] + y[n // 2]) / 2
    cut, ways, below = 0, 1, 1  # ways: subsets of `cut` values; below: of at most `cut`
    while below <= 2**n // 40:
        cut += 1
        ways = ways * (n - cut + 1) // cut
        below += ways
    return Estimate(middle, (y[cut - 1], y[n - cut]) if cut else None, n, "median")


def bounded(values: Sequence[float], most: float = 1.0) -> Estimate:
    """The mean of values in [0, most], which may be far from normal, with an interval that is the same at every call.

    The interval is the percentile bootstrap's; for fewer than MANY values, for which that is too narrow, Student's
    within the bounds. Values that are all equal say nothing about their spread: the interval is then None.
    """
    few = len(values) < MANY
    found = statistics.mean(values) if few else statistics.bootstrap(values)
    known = found.low < found.high
    return Estimate(found.value, (max(found.low, 0.0), min(found.high, most)) if known else None, len(values))


class Tally:
    """Collects observations by name; shares keep the order in which their names first occurred."""

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._bunches: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._values: dict[str, list[float]] = defaultdict(list)
        self._ranked: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, hits: int, total: int = 1) -> None:
        """Counts `total` yes-or-no observations, `hits` of them yes."""
        if total:
            self._seen[name][0] += hits
            self._seen[name][1] += total

    def add_bunch(self, name: str, hits: int, total: int) -> None:
        """Counts `total` yes-or-no observations that depend on each other, `hits` of them yes."""
        self.add(name, hits, total)
        self._bunches[name].append((hits, total))

    def measure(self, name: str, value: float) -> None:
        """Adds one number in [0, 1] to those of which the figure is the mean."""
        self._values[name].append(value)

    def rank(self, name: str, value: float) -> None:
        """Adds one number to those of which the figure is the median."""
        self._ranked[name].append(value)

    def figures(self) -> Figures:
        """The figure of each name: shares, then means, then medians; means and medians are sorted by name."""
        shares = {name: Figure(hits, total) for name, (hits, total) in self._seen.items()}
        shares |= {name: pooled(self._bunches[name]) for name in shares if name in self._bunches}
        means = {name: bounded(values) for name, values in sorted(self._values.items())}
        return {**shares, **means, **{name: median_of(values) for name, values in sorted(self._ranked.items())}}


def by_side(sides: dict[str, Tally]) -> Figures:
    """The figures of each side's tally, with the side's name appended to theirs."""
    return {f"{key}, {side}": figure for side, tally in sides.items() for key, figure in tally.figures().items()}
