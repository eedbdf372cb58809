"""What was found of each item before and after the training with several seeds: rates, changes, and what holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookexp import statistics
from rookexp.statistics import Difference, Interval
from rookexp.tasks.figures import Figure

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
ROUNDING = 1e-9  # the mean of 0.97, 1 and 1 is 1 - 0.01 and a little less
BeforeAfter = tuple[Mapping[int, Sequence[Row]], Mapping[int, Sequence[Row]]]  # answers by seed, in the order of asking
# Under every table.
READING = """\
Rates in percent, changes in points. Before: Wilson's 95 % interval over the n items; after and change over seeds:
Student's t over the runs, cut at 0 and 100 %; change over items: bootstrap, with each item's mean over the runs. The
last word is that of `python -m rookexp.compare`: "higher" and "lower" hold at the level 0.05 / (rows of the table),
with a question mark at 0.05 alone; "within noise" is not "equal".
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """What was found of each item, from 0 to 1, before and after the training with each seed."""

    name: str
    seeds: tuple[int, ...]
    before: Array  # (seeds, items)
    after: Array

    @property
    def count(self) -> int:
        """Of items."""
        return self.after.shape[1]

    def means(self) -> tuple[dict[int, float], dict[int, float]]:
        """By seed, before and after."""
        before, after = (dict(zip(self.seeds, y.mean(1).tolist(), strict=True)) for y in (self.before, self.after))
        return before, after

    def start(self) -> Interval:
        """Before: Wilson's interval over the items; where these differ between seeds, a bootstrap one."""
        items = self.before.mean(0)
        if np.isin(items, (0, 1)).all():
            figure = Figure(int(items.sum()), len(items))
            return Interval(figure.share, *figure.interval)
        return over(items)

    def end(self) -> Interval:
        """After: Student's t interval over seeds, within what a rate can be."""
        found = statistics.mean(list(self.means()[1].values()))
        return Interval(found.value, max(found.low, 0.0), min(found.high, 1.0))

    def change(self, *, comparisons: int = 1) -> Difference:
        """After minus before over seeds, and the word for it."""
        before, after = self.means()
        return statistics.compared(after, before, comparisons=comparisons)

    def over_items(self) -> Interval:
        """After minus before: a bootstrap over the items, with each item's mean over the seeds."""
        return over(self.after.mean(0) - self.before.mean(0))

    def only(self, name: str, items: Sequence[int]) -> Rate:
        """The rate of these items alone."""
        return Rate(f"{self.name}, {name}", self.seeds, self.before[:, items], self.after[:, items])

    def line(self, comparisons: int) -> str:
        """A row of the table."""
        found = self.change(comparisons=comparisons)
        cells = [self.name, str(self.count), percent(self.start()), percent(self.end())]
        cells += [percent(found.interval, sign="+"), percent(self.over_items(), sign="+"), found.said]
        return f"| {' | '.join(cells)} |"


def rate(name: str, answers: BeforeAfter, of: Callable[[Row], float]) -> Rate:
    """The rate of answers, of which `of` finds a number from 0 to 1 in each."""
    before, after = (np.array([[float(of(row)) for row in rows] for rows in some.values()]) for some in answers)
    return Rate(name, tuple(answers[1]), before, after)


def over(items: Array) -> Interval:
    """The mean with its bootstrap interval."""
    found = statistics.bootstrap(items)
    return found if found.low < found.high else Interval(found.value, math.nan, math.nan)


def percent(found: Interval, *, sign: str = "") -> str:
    """In percent, or in points where that is a change."""
    bounds = "" if math.isnan(found.low) else f" [{100 * found.low:{sign}.1f}, {100 * found.high:{sign}.1f}]"
    return f"{100 * found.value:{sign}.1f}{'' if sign else ' %'}{bounds}"


def table(rates: Sequence[Rate]) -> str:
    """Every rate before and after."""
    head = "| | n | before | after | change over seeds | change over items | |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *(rate.line(len(rates)) for rate in rates)])


# ---- claims -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What was asked, what was found, and the word for it, which begins with `holds` or `does not hold`."""

    asked: str
    found: str
    word: str


def judged(found: Interval, low: float, high: float) -> str:
    """Whether a value, and its whole interval, is from `low` to `high`, give or take the rounding of a mean."""
    low, high = low - ROUNDING, high + ROUNDING
    if not low <= found.value <= high:
        return "does not hold"
    if math.isnan(found.low):
        return "holds in the mean; there is no interval"
    return "holds" if low <= found.low and found.high <= high else "holds in the mean, not in the whole interval"


def verdict(claims: Sequence[Claim]) -> str:
    """The claims as a table, then the word for all."""
    lines = ["| asked | found | |", "|---|---|---|"]
    lines += [f"| {each.asked} | {each.found} | {each.word} |" for each in claims]
    missed = [each.asked for each in claims if not each.word.startswith("holds")]
    whole = all(each.word == "holds" for each in claims)
    said = f"Does not hold: {'; '.join(missed)}" if missed else "All of it holds" if whole else "Holds in the means"
    return "\n".join([*lines, "", f"**{said}.**"])
