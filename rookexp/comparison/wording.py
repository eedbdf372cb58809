"""A comparison in plain sentences: what differs, and whether the difference is real."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

from rookexp import statistics
from rookexp.comparison import measures, points
from rookexp.comparison.points import Comparison, Point
from rookexp.run_folder import runs
from rookexp.statistics import Difference, Interval
from rookexp.trackers.console import duration

SHOWN_SETTINGS = 6
NORMAL = 6  # seeds from which the sign-flip test can give p < 0.05
# What the words on a page and in a table mean, once.
LEGEND = (
    "Intervals are 95 % intervals (Student's t) over the seeds of finished runs; n is their number.",
    "Differences are paired: of two points under the same seed, on the same evaluation prompts. `higher` and `lower` "
    "mean that the interval of the difference leaves 0 out even when it is widened for the number of points that are "
    "set beside the baseline (Bonferroni). `higher?` and `lower?` mean that the plain 95 % interval does and the "
    "widened one does not: of 20 points that are no different, one looks like that by chance. `within noise` does not "
    "mean equal: the interval says how large a difference may have been missed. "
    f"`cannot tell` means fewer than {statistics.MIN_SEEDS} seeds in common, or differences that are all equal.",
    "With 3 seeds a difference is found 8 times in 10 if it is 3.3 times the standard deviation of the paired "
    "differences, with 5 seeds 1.7 times, with 10 once. Below 6 seeds this rests on the differences being about "
    "normal: the sign-flip test, which needs no such assumption, cannot give p < 0.05 there.",
    "The best of many points looks better than it is, for it was chosen by the same numbers; run it again under new "
    "seeds before it is quoted.",
)


def said(comparison: Comparison) -> list[str]:
    """The sentences that a reader wants first, one or two on each finding."""
    if len(comparison.points) == 1:
        return _one(comparison.points[0], comparison.main)
    if len(comparison.points) == 2:
        (other,) = (point for point in comparison.points if point is not comparison.baseline)
        return _two(comparison.baseline, other, comparison)
    return _many(comparison)


def number(value: float) -> str:
    """A number with three decimals, fewer for a large value, more for a small one; a dash for NaN."""
    if math.isnan(value) or value == 0:
        return "-" if value else "0"
    size = abs(value)
    if size < 0.001:
        return f"{value:.2g}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.{3 if size >= 0.1 else 4}f}"


def signed(value: float) -> str:
    """A difference, with its sign."""
    return ("+" if value > 0 else "") + number(value)


def interval(found: Interval, spell: Callable[[float], str] = number) -> str:
    """`0.52 [0.41, 0.63]`; the value alone where there is no interval."""
    bounds = "" if math.isnan(found.low) else f" [{spell(found.low)}, {spell(found.high)}]"
    return f"{spell(found.value)}{bounds}"


def change(found: Interval) -> str:
    """A difference: `+0.12 [+0.01, +0.23]`."""
    return interval(found, signed)


def seeds(n: int) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{n} seed{'' if n == 1 else 's'}"


def settings(point: Point) -> str:
    """The first few of the point's settings that vary, as they are typed."""
    return _first([points.label(key, value) for key, value in point.settings.items() if value != runs.ABSENT])


def changes(base: Point, other: Point) -> list[tuple[str, str, str]]:
    """Key, the baseline's value and the other's, of every setting in which the two differ."""
    keys = [key for key in base.settings if repr(base.settings[key]) != repr(other.settings[key])]
    return [(key, points.text(base.settings[key]), points.text(other.settings[key])) for key in keys]


def _first(items: Sequence[str], most: int = SHOWN_SETTINGS) -> str:
    left = len(items) - most
    return ", ".join(items[:most]) + (f" and {left} more" if left > 0 else "")


def _one(point: Point, figure: str) -> list[str]:
    values = point.by_seed(figure)
    listed = ", ".join(f"{number(value)} (seed {seed})" for seed, value in values.items())
    lines = [f"All {len(point.runs)} runs have the same settings and differ in the seed only."]
    if len(point.runs) == 1:
        lines = ["There is one run, and nothing to compare it with."]
    if len(values) > 1:
        lines.append(f"{figure.capitalize()}: {listed}; mean {interval(point.interval(figure))}. That spread is noise.")
    elif values:
        lines.append(f"{figure.capitalize()}: {listed}. One seed says nothing about another.")
    return lines + _failed([point])


def _two(base: Point, other: Point, comparison: Comparison) -> list[str]:
    shown = _first([f"{key} {before} → {after}" for key, before, after in changes(base, other)])
    lines = [f"{other.name} {f'differs from {base.name} in {shown}' if shown else f'has the settings of {base.name}'}."]
    found = comparison.beside[other.name].get(comparison.main)
    lines.append(_judged(base, other, comparison.main, found))
    if isinstance(found, Difference) and found.n < statistics.MIN_SEEDS:
        lines += _on_prompts(base, other)
    seconds = [point.interval("seconds").value for point in (base, other)]
    if all(value > 0 for value in seconds):
        ratio = f"{seconds[1] / seconds[0]:.2f} times as long"
        lines.append(f"Time of the steps: {duration(seconds[0])} and {duration(seconds[1])}, {ratio}.")
    return lines + _failed([base, other])


def _judged(base: Point, other: Point, figure: str, found: Difference | str | None) -> str:
    """One sentence on a difference and whether it is real."""
    if found is None:
        return f"No finished run of both has a {figure}: there is nothing to judge."
    means = " and ".join(f"{number(point.interval(figure).value)} ({point.name})" for point in (base, other))
    if isinstance(found, str):
        return f"Their {figure}s, {means}, are not compared: {found}."
    if found.n == 0:
        return (
            f"{figure.capitalize()} {means}: no seed in common, so nothing is paired, and whether the difference "
            f"is real cannot be told. Run both under the same {statistics.MIN_SEEDS} seeds or more."
        )
    common = "the one seed" if found.n == 1 else f"the {seeds(found.n)}"
    amount = f"{figure.capitalize()} {means}; under {common} in common {other.name} has {signed(found.interval.value)}"
    if found.n == 1:
        return f"{amount}. Whether that is more than noise cannot be told; run 3 seeds or more."
    if found.said == "identical":
        return f"{amount}: identical. The setting does not change this figure here."
    test = f"{amount}, {_rests(found, 'seed')}"
    if found.said == "cannot tell":
        few = found.n < statistics.MIN_SEEDS
        why = "Two seeds are too few to tell; run 3 or more" if few else "Equal differences have no spread to judge by"
        return f"{test}. {why}."
    if found.said == "within noise":
        largest = max(abs(found.interval.low), abs(found.interval.high))
        return f"{test}: within noise. That is not equality; a difference of {number(largest)} could have been missed."
    if found.said.endswith("?"):
        return f"{test}: {found.said} Widened for the number of comparisons, the interval does not leave 0 out."
    trust = (
        "" if found.n >= NORMAL else f" {seeds(found.n).capitalize()} show that only if differences are about normal."
    )
    return f"{test}: {found.said}, and more than noise.{trust}"


def _rests(found: Difference, unit: str) -> str:
    """What a mean difference over several seeds or prompts rests on: its interval, where it has one, and its p."""
    bounds = f"95 % interval {signed(found.interval.low)} to {signed(found.interval.high)}"
    return f"{f'the same for each {unit}' if math.isnan(found.interval.low) else bounds}, sign-flip p {found.p:.2g}"


def _on_prompts(base: Point, other: Point) -> list[str]:
    """What single runs can show: whether these two models answer the same prompts differently; [] if not known."""
    if not (base.finished and other.finished):
        return []
    pairs = [(one, two) for one in other.finished for two in base.finished]
    pair = next((each for each in pairs if each[0].seed == each[1].seed), pairs[0])
    if measures.asked_apart(*(measures.asked([run]) for run in pair)):
        return []
    ours, theirs = (
        {
            i: float(row["reward"])
            for i, row in enumerate(sorted(measures.last_answers(run.folder), key=_asked))
            if row["reward"] is not None  # a reward that does not apply
        }
        for run in pair
    )
    found = statistics.compared(ours, theirs)
    each = statistics.differences(ours, theirs)
    better, worse = sum(d > 0 for d in each), sum(d < 0 for d in each)
    span = f", {_rests(found, 'prompt')}" if found.n > 1 else ""
    return [
        f"What can be said of two models, not of the settings ({_of_seeds(*pair)}): on the {found.n} prompts that both "
        f"were asked, {other.name} is better on {better}, worse on {worse} and equal on {found.n - better - worse}; "
        f"mean difference {signed(found.interval.value)}{span}. Another seed may turn it round."
    ]


def _of_seeds(one: runs.Run, other: runs.Run) -> str:
    return f"both of seed {one.seed}" if one.seed == other.seed else f"of seeds {one.seed} and {other.seed}"


def _asked(row: dict[str, object]) -> str:
    return str(row["prompt"])


def _many(comparison: Comparison) -> list[str]:
    figure, base = comparison.main, comparison.baseline
    measured = [point for point in comparison.points if point.by_seed(figure)]
    lines = []
    varied = {key: len({repr(p.settings[key]) for p in comparison.points}) for key in base.settings}
    if varied:
        shown = _first([f"{key} ({count} values)" for key, count in varied.items()])
        lines.append(f"{len(comparison.points)} points differ in {shown}.")
    if not measured:
        return [*lines, f"No finished run has a {figure}: there is nothing to judge.", *_failed(comparison.points)]
    if base in measured:  # rewards for different prompts have no common scale
        measured = [p for p in measured if p is base or isinstance(comparison.beside[p.name].get(figure), Difference)]
    else:  # whether they measure the same has not been checked yet
        for one, other in itertools.pairwise(measured):
            if reason := one.unlike(other, figure):
                apart = f"No best point is named: {base.name} has no {figure}, and {other.name} is not measured as "
                return [*lines, f"{apart}{one.name} ({reason}).", *_failed(comparison.points)]
    first = min if comparison.minimized else max
    whole = [point for point in measured if point.whole] or measured  # fewer seeds may be the easier ones
    most = max(len(point.by_seed(figure)) for point in whole)
    enough = min(most, statistics.MIN_SEEDS)
    fullest = [point for point in whole if len(point.by_seed(figure)) >= enough]
    best = first(fullest, key=lambda point: point.interval(figure).value)
    found = best.interval(figure)
    known = {tuple(point.by_seed(figure).items()) for point in comparison.points}
    if len(measured) > 1 and len(known - {()}) == 1:
        value = f"{interval(found)} in all {len(measured)} points, seed by seed"
        same = f"{figure.capitalize()} is {value}: nothing separates them."
        return [*lines, same, *_failed(comparison.points)]
    spread = interval(found) + (f" over {seeds(len(best.by_seed(figure)))}")
    word = "Lowest" if comparison.minimized else "Highest"
    word += " mean" if len(best.by_seed(figure)) > 1 else ""
    ties = [p.name for p in measured if p is not best and p.by_seed(figure) == best.by_seed(figure)]
    equal = f"; the same in {_first(ties, most=8)}" if ties else ""
    among = "" if len(whole) == len(measured) else " of points whose runs all finished"
    among = among if len(fullest) == len(whole) else f" of points with {seeds(enough)} or more"
    if base in measured and len(measured) < sum(bool(p.by_seed(figure)) for p in comparison.points):
        among += " among those comparable with the baseline"
    lines.append(f"{word} {figure}{among}: {best.name} ({settings(best)}), {spread}{equal}.")
    if best is not base:
        lines.append("Beside the baseline: " + _judged(base, best, figure, comparison.beside[best.name].get(figure)))
    lines.append(_counted(comparison))
    if len(best.by_seed(figure)) >= statistics.MIN_SEEDS:
        others = [point for point in measured if point is not best]
        worse = "higher" if comparison.minimized else "lower"
        alike = [
            point.name
            for point in others
            if statistics.compared(point.by_seed(figure), best.by_seed(figure), comparisons=len(others)).said != worse
        ]
        if alike:
            allowance = f"at the level 0.05 / {len(others)}" if len(others) > 1 else "at the level 0.05"
            lines.append(f"Not shown to be worse than {best.name}, {allowance}: {_first(alike, most=8)}.")
    return lines + _failed(comparison.points)


def _counted(comparison: Comparison) -> str:
    """A sentence that counts the points by how they compare with the baseline."""
    words = get_args(statistics.Word)
    found = [own.get(comparison.main) for own in comparison.beside.values()]
    counts = {word: sum(isinstance(one, Difference) and one.said == word for one in found) for word in words}
    refused = sum(not isinstance(one, Difference) for one in found)
    parts = [f"{count} {word}" for word, count in counts.items() if count]
    parts += [f"{refused} not compared"] if refused else []
    point = f"{comparison.baseline.name} ({settings(comparison.baseline)})"
    return f"Of {len(found)} points beside the baseline {point}, by {comparison.main}: {', '.join(parts)}."


def _failed(found: Sequence[Point]) -> list[str]:
    total = sum(len(point.runs) for point in found)
    states = Counter(run.status for point in found for run in point.runs if run.status != "finished")
    listed = ", ".join(f"{count} {status}" for status, count in states.items())
    return [f"{states.total()} of {total} runs did not finish ({listed})."] if states else []
