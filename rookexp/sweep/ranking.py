"""How the points of a sweep stand: which is best, how each is beside the baseline, and which parameter matters."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from rookexp import statistics
from rookexp.comparison import measures, points, wording
from rookexp.comparison.points import Point
from rookexp.errors import DataError
from rookexp.run_folder import runs
from rookexp.statistics import Interval
from rookexp.sweep import study
from rookexp.sweep.plan import Plan
from rookexp.sweep.space import Listed

DRAWN = 20_000  # samples of a distribution whose quantile is asked
Figures = Mapping[str, Mapping[str, float]]  # seed -> figure -> value


@dataclass(frozen=True)
class Standing:
    """The sweep's trials, one for each point, in their present state."""

    plan: Plan
    trials: Sequence[FrozenTrial]

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials whose jobs all finished."""
        return [trial for trial in self.trials if trial.state == TrialState.COMPLETE]

    @cached_property
    def ranked(self) -> list[FrozenTrial]:
        """The complete trials: those that keep the constraints first, then by the first objective, best first."""
        return sorted(self.complete, key=lambda trial: (not feasible(trial), self.costs(trial)[0]))

    @property
    def best(self) -> list[FrozenTrial]:
        """The best trial that keeps the constraints, in a list; with several objectives all that no other dominates."""
        candidates = [(trial, self.costs(trial)) for trial in self.ranked if feasible(trial)]
        if len(self.plan.settings.objectives) == 1:
            return [trial for trial, _ in candidates[:1]]
        return [
            trial
            for trial, own in candidates
            if not any(other != own and all(map(operator.le, other, own)) for _, other in candidates)
        ]

    def costs(self, trial: FrozenTrial) -> list[float]:
        """A complete trial's objectives, with signs such that less is better."""
        return [sign * value for sign, value in zip(self.plan.settings.signs, trial.values, strict=True)]

    @property
    def baseline(self) -> FrozenTrial | None:
        """The complete trial that others are compared with: the one named, else the first; None while there is none."""
        named = self.plan.space.part(self.plan.settings.baseline or {}, "baseline").items()
        return next((t for t in self.complete if named <= self.plan.space.snapped(t.params).items()), None)

    def beside(self, trial: FrozenTrial, base: FrozenTrial, comparisons: int) -> str:
        """The paired difference of the first objective from the baseline's, in words; or why they are not compared."""
        if reason := self.unlike(trial, base):
            return f"not compared: {reason}"
        found = self.compared(trial, base, comparisons)
        counted = f", {wording.seeds(found.n)}" if found.said == "cannot tell" else ""
        return f"{wording.change(found.interval)} {found.said}{counted}"

    def compared(self, trial: FrozenTrial, other: FrozenTrial, comparisons: int) -> statistics.Difference:
        """The first objective of one complete trial compared with another's, seed by seed."""
        name = next(iter(self.plan.settings.objectives))
        ours, theirs = ({int(s): f[name] for s, f in t.user_attrs[study.FIGURES].items()} for t in (trial, other))
        return statistics.compared(ours, theirs, comparisons=comparisons)

    def rivals(self, trial: FrozenTrial) -> list[FrozenTrial]:
        """The other complete trials that keep the constraints and whose seeds leave open which of the two is better."""
        others = [other for other in self.ranked if feasible(other) and other is not trial]
        found = {other.number: self.compared(trial, other, len(others)).said for other in others}
        return [other for other in others if found[other.number] not in ("higher", "lower", "identical")]

    @property
    def apart(self) -> str | None:
        """The first point that is not measured as the one before it, and why; None where all can be ranked."""
        found = sorted((t for t in self.complete if t.number in self.points), key=lambda t: t.number)
        for before, trial in itertools.pairwise(found):
            if reason := self.unlike(before, trial):
                return f"trial {trial.number} beside trial {before.number}: {reason}"
        return None

    def unlike(self, one: FrozenTrial, other: FrozenTrial) -> str | None:
        """Why the first objective is not the same measure in two points, as under two rewards; None where it is."""
        name = next(iter(self.plan.settings.objectives))
        figure = name if name in measures.FIGURES else "reward" if name.startswith("eval/") else None
        ours, theirs = self.points.get(one.number), self.points.get(other.number)
        if figure is None or ours is None or theirs is None:
            return None
        reason = ours.unlike(theirs, figure)
        return None if reason == measures.NOT_KNOWN else reason

    @cached_property
    def points(self) -> dict[int, Point]:
        """Trial number -> its runs; without complete trials of which a run was deleted: their figures still count."""
        found = {}
        for trial in self.complete:
            try:
                group = [runs.read(self.plan.job_folder(number)) for number in self.plan.jobs(trial.number)]
            except DataError:
                continue
            found[trial.number] = points.of(f"#{trial.number}", group, {})
        return found

    def importance(self) -> dict[str, float]:
        """How much each parameter matters to the first objective, largest first; {} where that cannot be said.

        Nor can it where the points are not all measured alike.

        Where all parameters are listed: the share of the variance between points that the parameter explains by itself
        (main effects; in a whole grid they and the interactions add up to 1). Else Optuna's PED-ANOVA.
        """
        values = [trial.values[0] for trial in self.complete]
        if len(values) < 3 or max(values) == min(values) or self.apart:
            return {}
        if not all(isinstance(param, Listed) for param in self.plan.space.params):
            sign = self.plan.settings.signs[0]  # low targets are good there
            points = optuna.create_study(directions=list(self.plan.settings.objectives.values()))
            points.add_trials(self.complete)  # the sweep's own study has a point as often as it was drawn
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that it is new, and that low targets are meant
                    return optuna.importance.get_param_importances(
                        points, evaluator=PedAnovaImportanceEvaluator(), target=lambda trial: sign * trial.values[0]
                    )
            except (ImportError, ValueError, RuntimeError):  # a package is missing, or too few points
                return {}
        mean = sum(values) / len(values)
        total = sum((value - mean) ** 2 for value in values)
        found = {
            key: sum(len(level) * (sum(level) / len(level) - mean) ** 2 for level in self._levels(key)) / total
            for key in self.plan.space.declared
        }
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def by_chance(self) -> dict[str, tuple[float, float]]:
        """The importance that a parameter without effect has on average, and exceeds once in twenty; {} if not known.

        With L of its values among N points of normal noise it is distributed as Beta((L - 1) / 2, (N - L) / 2), whose
        mean (L - 1) / (N - 1) is the parameter's share of the degrees of freedom.
        """
        if not all(isinstance(param, Listed) for param in self.plan.space.params):
            return {}
        found = {}
        for key in self.plan.space.declared:
            own, all_of = len(self._levels(key)) - 1, len(self.complete) - 1
            if 0 < own < all_of:  # else it has no effect to look for, or explains all
                drawn = np.random.default_rng(0).beta(own / 2, (all_of - own) / 2, DRAWN)
                found[key] = own / all_of, float(np.quantile(drawn, 0.95))
        return found

    def _levels(self, key: str) -> list[list[float]]:
        """The first objective of the complete trials, a list for each value of a parameter."""
        levels: dict[Any, list[float]] = {}
        for trial in self.complete:
            levels.setdefault(self.plan.space.snapped(trial.params)[key], []).append(trial.values[0])
        return list(levels.values())


def feasible(trial: FrozenTrial) -> bool:
    """Whether a trial keeps the constraints."""
    return all(value <= 0 for value in trial.user_attrs.get(study.EXCESS, {}).values())


def spread(known: Figures, name: str) -> Interval:
    """A figure's mean over the seeds of a point, with its 95 % interval."""
    values = [figures[name] for figures in known.values() if name in figures]
    return measures.possible(name, statistics.mean(values))
