"""What a sweep leaves to read: trials.csv, optimization_results.yaml and a page at any time, a table at its end."""

from __future__ import annotations

import csv
import io
import itertools
import math
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import optuna
import yaml
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from rookexp import check, compare, measures, runs, statistics, wording
from rookexp.console import reader
from rookexp.errors import DataError
from rookexp.files import write_atomic
from rookexp.report import PLAIN_WIDTH
from rookexp.run_info import plain
from rookexp.runs import Run
from rookexp.statistics import Interval
from rookexp.sweep import storage, study
from rookexp.sweep.space import Listed
from rookexp.sweep.study import Book, Plan

if TYPE_CHECKING:
    from rich.table import Table

TABLE, BEST, PAGE = "trials.csv", "optimization_results.yaml", "sweep.html"
FIRST = ("gain", "reward", "best", "kl", "entropy", "kl_share", "seconds")  # columns, where they were logged
WORDS = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
Figures = Mapping[str, Mapping[str, float]]  # seed -> figure -> value
Measured = tuple[Run, dict[int, measures.Asked]]


def spread(plan: Plan, known: Figures, name: str) -> Interval:
    """A figure over the seeds of a point: the sweep's statistic with its 95 % interval."""
    values = [figures[name] for figures in known.values() if name in figures]
    return (
        statistics.mean(values) if plan.settings.statistic == "mean" else statistics.bootstrap(values, statistics.iqm)
    )


def complete(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials whose jobs all finished."""
    return [trial for trial in trials if trial.state == TrialState.COMPLETE]


def feasible(trial: FrozenTrial) -> bool:
    """Whether a trial keeps the constraints."""
    return all(value <= 0 for value in trial.user_attrs.get("excess", {}).values())


def ranked(plan: Plan, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Complete trials: those that keep the constraints first, then by the first objective, best first."""
    return sorted(complete(trials), key=lambda t: (not feasible(t), plan.settings.signs[0] * t.values[0]))


def best(plan: Plan, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The best trial; with several objectives all that no other is better than in one and as good in the others."""
    candidates = [trial for trial in ranked(plan, trials) if feasible(trial)]
    signs = plan.settings.signs
    if len(signs) == 1:
        return candidates[:1]
    costs = {t.number: [sign * value for sign, value in zip(signs, t.values, strict=True)] for t in candidates}
    return [
        one
        for one in candidates
        if not any(
            costs[other.number] != costs[one.number]
            and all(a <= b for a, b in zip(costs[other.number], costs[one.number], strict=True))
            for other in candidates
        )
    ]


def write(plan: Plan, book: Book) -> None:
    """Brings trials.csv, optimization_results.yaml and sweep.html up to date; each is whole at any time."""
    trials = book.trials()
    text = io.StringIO()
    rows = [row(plan, trial) for trial in trials]
    names = list(dict.fromkeys(name for one in rows for name in one))
    table = csv.DictWriter(text, names, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomic(plan.folder / TABLE, text.getvalue())
    write_atomic(plan.folder / BEST, yaml.safe_dump(plain(summary(plan, trials)), sort_keys=False))
    if complete(trials):
        try:
            compare.write_page([plan.folder], plan.folder / PAGE)
        except Exception as error:  # a page that cannot be drawn is no reason to end a sweep
            print(f"{PAGE}: {type(error).__name__}: {error}", file=sys.stderr)


def row(plan: Plan, trial: FrozenTrial) -> dict[str, Any]:
    """A trial's line of trials.csv: what it is, how it ended, and its figures over the seeds."""
    jobs = plan.jobs(trial.number)
    point = plan.space.snapped(study.point_of(trial))
    known = trial.user_attrs.get(study.FIGURES, {})
    found = {
        "trial": trial.number,
        "state": trial.state.name.lower(),
        "reason": trial.user_attrs.get(study.REASON, ""),
        "folders": " ".join(map(str, jobs)),
        **{f"params_{key}": value for key, value in point.items()},
        "seeds": len(known),
    }
    for name in dict.fromkeys([*plan.settings.figures, *FIRST]):
        values = spread(plan, known, name)
        if math.isfinite(values.value):
            found |= {name: values.value, f"{name}_low": values.low, f"{name}_high": values.high}
    return found | {key: value for key, value in trial.user_attrs.get("excess", {}).items() if value > 0}


def summary(plan: Plan, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    """optimization_results.yaml: the official sweeper's keys and, behind them, where to look."""
    top = [] if apart(plan, trials) else best(plan, trials)
    states = [trial.state for trial in trials]
    found: dict[str, Any] = {"name": "optuna"}
    if len(plan.settings.objectives) > 1:
        found["solutions"] = [{"params": plan.space.snapped(t.params), "values": t.values} for t in top]
    else:
        found["best_params"] = plan.space.snapped(top[0].params) if top else None
        found["best_value"] = top[0].values[0] if top else None
    return found | {
        "best_trials": [trial.number for trial in top],
        "best_folders": [str(plan.job_folder(number)) for trial in top for number in plan.jobs(trial.number)],
        "objectives": dict(plan.settings.objectives),
        "counts": {state.name.lower(): states.count(state) for state in TrialState},
    }


def line(plan: Plan, trial: FrozenTrial) -> str:
    """What is said when a trial has ended."""
    point = " ".join(plan.space.overrides(trial.params))
    said = trial.user_attrs.get(study.REASON) or ", ".join(
        f"{name} {interval_text(spread(plan, trial.user_attrs[study.FIGURES], name))}"
        for name in plan.settings.objectives
    )
    return f"trial {trial.number} {WORDS[trial.state]}: {point}: {said}"


def interval_text(values: Interval) -> str:
    """`0.53 [0.48, 0.58]`, without the bounds where there are none."""
    bounds = f" [{values.low:.3g}, {values.high:.3g}]" if math.isfinite(values.low) else ""
    return f"{values.value:.4g}{bounds}"


def baseline(plan: Plan, trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The point that others are compared with: the named one, else the first; None until it is complete."""
    named = plan.space.part(plan.settings.baseline or {}, "baseline")
    for trial in complete(trials):
        if named.items() <= plan.space.snapped(trial.params).items():
            return trial
    return None


def beside(plan: Plan, trial: FrozenTrial, base: FrozenTrial, comparisons: int) -> str:
    """The paired difference of the first objective to the baseline, and what it is worth."""
    if reason := unlike(plan, measured(plan, trial), measured(plan, base)):
        return f"not compared: {reason}"
    (name, direction), *_ = plan.settings.objectives.items()
    one, other = ({int(s): f[name] for s, f in t.user_attrs[study.FIGURES].items()} for t in (trial, base))
    found = statistics.compared(one, other, comparisons=comparisons)
    good = "higher" if direction == "maximize" else "lower"
    few = f"{wording.seeds(found.n)}: cannot tell"
    words = {"identical": "identical", "within noise": "same within noise", "cannot tell": few}
    side = "better" if found.said.rstrip("?") == good else "worse"
    said = words.get(found.said, side + "?" * found.said.endswith("?"))
    low, high = found.interval.low, found.interval.high
    bounds = f" [{low:+.3g}, {high:+.3g}]" if math.isfinite(low) else ""
    return f"{found.interval.value:+.3g}{bounds} {said}"


def apart(plan: Plan, trials: Sequence[FrozenTrial]) -> str | None:
    """The first complete point that is not measured as the one before it, and why; None where all are ranked."""
    found = [(trial.number, measured(plan, trial)) for trial in sorted(complete(trials), key=lambda t: t.number)]
    there = [(number, own) for number, own in found if own is not None]
    for (before, one), (number, other) in itertools.pairwise(there):
        if reason := unlike(plan, one, other):
            return f"trial {number} beside trial {before}: {reason}"
    return None


def measured(plan: Plan, trial: FrozenTrial) -> Measured | None:
    """A run of a complete point, and what each seed was asked; None where one was deleted: its figures count."""
    try:
        found = [runs.read(plan.job_folder(number)) for number in plan.jobs(trial.number)]
    except DataError:
        return None
    return found[0], measures.asked(found)


def unlike(plan: Plan, one: Measured | None, other: Measured | None) -> str | None:
    """Why the first objective is not the same measure in two points, as under two rewards; None where it is."""
    name = next(iter(plan.settings.objectives))
    figure = name if name in measures.FIGURES else "reward" if name.startswith("eval/") else None
    if figure is None or one is None or other is None:
        return None
    reason = measures.unlike(figure, one[0], other[0], one[1], other[1])
    return None if reason == measures.NOT_KNOWN else reason


def table(plan: Plan, trials: Sequence[FrozenTrial]) -> Table:
    """The trials that have ended, best first, those without a result last with the reason."""
    from rich.markup import escape
    from rich.table import Table

    base = baseline(plan, trials)
    order = ranked(plan, trials)
    rest = [t for t in trials if t.state in (TrialState.PRUNED, TrialState.FAIL)]
    told = Table(box=None, pad_edge=False)
    keys = list(plan.space.declared)
    for name in ("trial", *(short(key, keys) for key in keys), *plan.settings.objectives):
        told.add_column(name, overflow="fold")
    told.add_column("" if base is None else f"beside trial {base.number}", overflow="fold")
    for trial in (*order, *rest):
        point = plan.space.snapped(trial.params)
        cells = [str(trial.number), *(check.spell(value) for value in point.values())]
        if trial.state == TrialState.COMPLETE:
            known = trial.user_attrs[study.FIGURES]
            cells += [interval_text(spread(plan, known, name)) for name in plan.settings.objectives]
            broken = [name for name, value in trial.user_attrs["excess"].items() if value > 0]
            if broken:
                cells.append(f"breaks {', '.join(broken)}")
            elif base is not None:
                own = trial.number == base.number
                cells.append("(baseline)" if own else beside(plan, trial, base, len(order) - 1))
        else:
            cells += ["-"] * len(plan.settings.objectives)
            cells.append(f"{WORDS[trial.state]}: {trial.user_attrs.get(study.REASON, '')}")
        told.add_row(*map(escape, cells))
    return told


def short(key: str, keys: Sequence[str]) -> str:
    """A key's last part, where no other one ends so."""
    last = key.rpartition(".")[2]
    return last if [other.rpartition(".")[2] for other in keys].count(last) == 1 else key


def importance(plan: Plan, book: Book, trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """How much each parameter matters to the first objective, largest first; {} where that cannot be said.

    Of lists: the share of the variance between points that the parameter explains by itself (main effects; in a
    whole grid they and the interactions add up to 1). Else Optuna's PED-ANOVA.
    """
    done = complete(trials)
    values = [trial.values[0] for trial in done]
    if len(done) < 3 or max(values) == min(values):
        return {}
    if not all(isinstance(param, Listed) for param in plan.space.params):
        sign = plan.settings.signs[0]  # low targets are good there
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is new, and that low targets are meant
                return optuna.importance.get_param_importances(
                    book.study, evaluator=PedAnovaImportanceEvaluator(), target=lambda trial: sign * trial.values[0]
                )
        except (ImportError, ValueError, RuntimeError):  # a package is missing, or too few points
            return {}
    mean = sum(values) / len(values)
    total = sum((value - mean) ** 2 for value in values)
    found = {}
    for key in plan.space.declared:
        levels: dict[Any, list[float]] = {}
        for trial, value in zip(done, values, strict=True):
            levels.setdefault(plan.space.snapped(trial.params)[key], []).append(value)
        found[key] = sum(len(own) * (sum(own) / len(own) - mean) ** 2 for own in levels.values()) / total
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def show(plan: Plan, book: Book, file: IO[str] | None = None) -> None:
    """Writes the end of a sweep: the table, the best point, what matters, and where to look on."""
    console = reader(file, PLAIN_WIDTH)
    trials = book.trials()
    console.print(table(plan, trials), highlight=False)
    for text in closing(plan, book, trials):
        console.print(text, soft_wrap=True, highlight=False, markup=False)


def closing(plan: Plan, book: Book, trials: Sequence[FrozenTrial]) -> list[str]:
    """The lines below the table."""
    lines = [""]
    several = len(plan.settings.objectives) > 1
    done = [trial for trial in complete(trials) if feasible(trial)]
    mixed = apart(plan, trials)
    equal = len(done) > 1 and len({tuple(trial.values) for trial in done}) == 1
    if mixed:
        lines.append(f"no best point, for not all are measured alike; {mixed}")
    elif equal:
        names = ", ".join(plan.settings.objectives)
        lines.append(
            f"nothing separates the {len(done)} points: {names} the same in all; what varies has no effect here"
        )
    for trial in [] if equal or mixed else best(plan, trials):
        point = " ".join(plan.space.overrides(trial.params))
        ties = "" if several else ", ".join(str(t.number) for t in done if t.values == trial.values and t is not trial)
        same = f"; as good: trial {ties}" if ties else ""
        lines.append(f"{'not dominated' if several else 'best'}: trial {trial.number}, {point}{same}")
    if len(complete(trials)) > 1 and not equal:
        lines.append(
            f"{plan.settings.statistic} of {wording.seeds(len(plan.seeds))}, [95 % interval]; the best of many points "
            "looks better than it is: run it again under new seeds before you believe its number"
        )
    shares = importance(plan, book, trials)
    if shares:
        lines.append("importance: " + ", ".join(f"{key} {share:.0%}" for key, share in shares.items()))
    where = storage.placed(plan.url, plan.folder) if plan.url else plan.folder / storage.JOURNAL
    return [
        *lines,
        f"files:     {plan.folder / PAGE}, {TABLE}, {BEST}",
        f"compare:   python -m rookexp.compare {shlex.quote(str(plan.folder))}",
        f"dashboard: optuna-dashboard {shlex.quote(str(where))}",
    ]
