"""Curves of points: the mean over seeds at each step, and the lowest and the highest seed around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rookexp import verdict
from rookexp.comparison.points import Point
from rookexp.run_folder.runs import Run

PLACES = 100  # of a panel's longest curve; more steps are averaged into so many bins
# Metric, title, unit, whether the axis is logarithmic.
PANELS = (
    ("eval/reward", "Greedy reward", "reward", False),
    ("reward/mean", "Sampled reward", "reward", False),
    ("kl/forward", "Forward KL to the reference", "nats a token", False),
    ("entropy", "Entropy of the policy", "nats a token", False),
    ("grad_norm", "Gradient norm before clipping", "L2 norm, log scale", True),
    ("kl_share", "KL penalty beside the advantages", "share", False),
    ("frac_reward_zero_std", "Dead groups", "share of groups", False),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over steps: the mean over seeds and, where there are several, their range."""

    steps: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]  # of the lowest seed at that step; () for one seed
    high: tuple[float, ...]
    seeds: int
    per_place: int  # steps in a bin


def panels(points: Sequence[Point]) -> list[tuple[str, str, str, bool]]:
    """The entries of `PANELS` that a run has values of; each of the two rewards is followed by those of its tasks."""
    logged = {name for point in points for run in point.runs for row in run.rows for name in row}
    found = []
    for metric, title, unit, log in PANELS:
        group = metric.split("/")[0]
        tasks = sorted(name for name in logged if name.startswith(f"{group}/mean_")) if unit == "reward" else []
        found += [(metric, title, unit, log)] if metric in logged else []
        found += [(name, f"{title}, {name.removeprefix(f'{group}/mean_')}", unit, log) for name in tasks]
    return found


def bin_width(points: Sequence[Point], metric: str) -> int:
    """How many values of a metric are averaged into one place of a curve, the same for all points."""
    longest = max(len(verdict.column(run.rows, metric)[1]) for point in points for run in point.runs)
    return max(1, -(-longest // PLACES))


def curve(point: Point, metric: str, width: int) -> Curve | None:
    """The curve of the point's finished runs, at the steps that all of them logged; None where there are none."""
    return _over(point.finished, metric, width)


def broken_off(point: Point, metric: str, width: int) -> list[Curve]:
    """A curve for each run that did not finish, as far as it came."""
    found = [_over((run,), metric, width) for run in point.runs if run.status != "finished"]
    return [one for one in found if one is not None]


def _over(members: Sequence[Run], metric: str, width: int) -> Curve | None:
    columns = [verdict.column(run.rows, metric) for run in members]
    columns = [(x, y) for x, y in columns if len(x)]
    if not columns:
        return None
    common = sorted(set.intersection(*(set(x.tolist()) for x, _ in columns)))
    if not common:
        return None
    steps = np.array(common)
    values = np.stack([y[np.isin(x, steps)] for x, y in columns])  # (seeds, steps)
    cuts = range(0, len(steps), width)
    x = np.array([steps[i : i + width].mean() for i in cuts])
    binned = np.stack([values[:, i : i + width].mean(1) for i in cuts], axis=1)
    low, high = (binned.min(0), binned.max(0)) if len(columns) > 1 else (x[:0], x[:0])
    steps_done = tuple(round(float(step), 1) for step in x)
    return Curve(steps_done, _short(binned.mean(0)), _short(low), _short(high), len(columns), width)


def _short(values: Float[np.ndarray, " n"]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)
