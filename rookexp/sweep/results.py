"""What a sweep leaves to read: trials.csv, optimization_results.yaml and a page at any time, a table at its end."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from typing import IO, Any

import yaml
from optuna.trial import FrozenTrial, TrialState

from rookexp import statistics
from rookexp.comparison import points, wording
from rookexp.config import check
from rookexp.files import csv_of, write_atomic
from rookexp.run_folder.report import PLAIN_WIDTH
from rookexp.run_folder.run_info import plain
from rookexp.sweep import storage, study
from rookexp.sweep.plan import Plan
from rookexp.sweep.ranking import Standing, feasible, spread
from rookexp.sweep.study import Book
from rookexp.trackers.console import plain_table, reader

TABLE, BEST, PAGE = "trials.csv", "optimization_results.yaml", "sweep.html"
NAMED = 6  # trials, at most, in a line of the summary
FIRST = ("gain", "reward", "best", "kl", "entropy", "kl_share", "seconds")  # columns, where they were logged
WORDS = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def write(plan: Plan, book: Book) -> None:
    """Brings trials.csv, optimization_results.yaml and sweep.html up to date; each is replaced as a whole."""
    now = Standing(plan, book.trials())
    write_atomic(plan.folder / TABLE, csv_of([row(plan, trial) for trial in now.trials], nan="nan"))
    write_atomic(plan.folder / BEST, yaml.safe_dump(plain(summary(now)), sort_keys=False))
    if now.complete:
        try:
            # Here, for it takes a second to import, and a mistyped sweep need not wait for it.
            from rookexp.comparison import page

            page.write(points.compare([plan.folder]), plan.folder / PAGE)
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
        values = spread(known, name)
        if math.isfinite(values.value):
            found |= {name: values.value, f"{name}_low": values.low, f"{name}_high": values.high}
    return found | {key: value for key, value in trial.user_attrs.get(study.EXCESS, {}).items() if value > 0}


def summary(now: Standing) -> dict[str, Any]:
    """The content of optimization_results.yaml: the keys of Optuna's official sweeper, then where the best runs are."""
    plan = now.plan
    top = [] if now.apart else now.best
    states = [trial.state for trial in now.trials]
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
    """The line that is printed when a trial has ended."""
    point = " ".join(plan.space.overrides(trial.params))
    said = trial.user_attrs.get(study.REASON) or ", ".join(
        f"{name} {wording.interval(spread(trial.user_attrs[study.FIGURES], name))}" for name in plan.settings.objectives
    )
    return f"trial {trial.number} {WORDS[trial.state]}: {point}: {said}"


def table(now: Standing) -> tuple[list[str], list[list[str]]]:
    """The trials that have ended, best first, those without a result last with the reason: headings and rows."""
    plan, base = now.plan, now.baseline
    keys, objectives = list(plan.space.declared), list(plan.settings.objectives)
    rows = []
    for trial in (*now.ranked, *(t for t in now.trials if t.state in (TrialState.PRUNED, TrialState.FAIL))):
        cells = [str(trial.number), *map(check.spell, plan.space.snapped(trial.params).values())]
        if trial.state == TrialState.COMPLETE:
            cells += [wording.interval(spread(trial.user_attrs[study.FIGURES], name)) for name in objectives]
            broken = [name for name, value in trial.user_attrs[study.EXCESS].items() if value > 0]
            if broken:
                cells.append(f"breaks {', '.join(broken)}")
            elif base is not None:
                own = trial.number == base.number
                cells.append("(baseline)" if own else now.beside(trial, base, len(now.ranked) - 1))
        else:
            cells += ["-"] * len(objectives)
            word, reason = WORDS[trial.state], trial.user_attrs.get(study.REASON, "")
            cells.append(reason if reason.startswith(word) else f"{word}: {reason}")  # "pruned by ..." says both
        rows.append(cells)
    last = "" if base is None else f"beside trial {base.number}"
    return ["trial", *(short(key, keys) for key in keys), *objectives, last], rows


def short(key: str, keys: Sequence[str]) -> str:
    """A key's last part where it is unique among `keys`, else the whole key."""
    last = key.rpartition(".")[2]
    return last if [other.rpartition(".")[2] for other in keys].count(last) == 1 else key


def show(plan: Plan, book: Book, file: IO[str] | None = None) -> None:
    """Writes the end of a sweep: the table, the best point, what matters, and where to look on."""
    console = reader(file, PLAIN_WIDTH)
    now = Standing(plan, book.trials())
    console.print(plain_table(*table(now)), highlight=False)
    for text in closing(now):
        console.print(text, soft_wrap=True, highlight=False, markup=False)


def closing(now: Standing) -> list[str]:
    """The lines below the table."""
    plan, lines = now.plan, [""]
    several = len(plan.settings.objectives) > 1
    done = [trial for trial in now.complete if feasible(trial)]
    mixed = now.apart
    equal = len(done) > 1 and len({tuple(trial.values) for trial in done}) == 1
    if mixed:
        lines.append(f"no best point, for not all are measured alike; {mixed}")
    elif now.complete and not done:
        lines.append("no best point, for none keeps the constraints")
    elif equal:
        names = ", ".join(plan.settings.objectives)
        whole = len(done) == len(now.trials)
        which, why = ("", "; what varies has no effect on it here") if whole else (" that were measured", "")
        lines.append(f"nothing separates the {len(done)} points{which}: {names} the same in all{why}")
    for trial in [] if equal or mixed else now.best:
        point = " ".join(plan.space.overrides(trial.params))
        ties = "" if several else ", ".join(str(t.number) for t in done if t.values == trial.values and t is not trial)
        same = f"; as good: trial {ties}" if ties else ""
        lines.append(f"{'not dominated' if several else 'best'}: trial {trial.number}, {point}{same}")
        if not several and len(plan.seeds) >= statistics.MIN_SEEDS and (rivals := now.rivals(trial)):
            numbers = f"trial {', '.join(str(t.number) for t in rivals)}"
            many = f"all {len(rivals)}" if len(rivals) == len(done) - 1 else f"{len(rivals)} of the {len(done) - 1}"
            which = numbers if len(rivals) <= NAMED else f"{many} others"
            lines.append(f"not told apart from it by {len(plan.seeds)} seeds: {which}")
    if len(now.complete) > 1 and not equal:
        of = f"mean of {wording.seeds(len(plan.seeds))}, [95 % interval]; "
        lines.append(
            f"{of if len(plan.seeds) > 1 else ''}the best of many points looks better than it is: run it again under "
            "new seeds before you believe its number"
        )
    shares = now.importance()
    if len(shares) > 1:  # of a lone parameter it would be all
        chance = {
            key: f" (by chance {100 * usual:.0f} %, once in twenty over {100 * most:.0f} %)"
            for key, (usual, most) in now.by_chance().items()
        }
        found = (f"{key} {100 * share:.0f} %{chance.get(key, '')}" for key, share in shares.items())
        lines.append(f"importance: {', '.join(found)}")
    where = storage.placed(plan.url, plan.folder) if plan.url else plan.folder / storage.JOURNAL
    return [
        *lines,
        f"files:     {plan.folder / PAGE}, {TABLE}, {BEST}",
        f"compare:   python -m rookexp.compare {shlex.quote(str(plan.folder))}",
        f"dashboard: optuna-dashboard {shlex.quote(str(where))}",
    ]
