"""Groups runs into points, each of runs that differ in the seed only, and compares every point with a baseline."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookexp import statistics
from rookexp.comparison import measures
from rookexp.comparison import notes as told
from rookexp.config import check
from rookexp.errors import ConfigError, DataError
from rookexp.run_folder import runs
from rookexp.run_folder.run_info import CONFIG, SWEEP, TRIAL
from rookexp.run_folder.runs import Run
from rookexp.statistics import Difference, Interval

MAIN = "gain"  # the figure by which points are judged, unless a sweep has another objective
RECIPES = ("experiment", "sweep", "debug")  # groups whose options set values of other groups
OPTION = " (option)"  # behind a setting that has the name of a figure, as the groups kl and reward: columns have both


@dataclass(frozen=True, slots=True)
class Point:
    """Runs of one configuration under several seeds."""

    name: str
    runs: tuple[Run, ...]  # one a seed, in the order of the seeds
    figures: tuple[dict[str, float], ...]  # of each run
    settings: dict[str, Any]  # key -> value, of what varies among the points
    asked: dict[int, measures.Asked]  # by seed, of the runs that have logged it
    total: int  # runs; of a sweep's trial also those that have not begun, as where it was pruned between two seeds

    @property
    def whole(self) -> bool:
        """Whether all runs came to their end."""
        return len(self.finished) == self.total

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that came to their end; only these count."""
        return tuple(run for run in self.runs if run.status == "finished")

    def by_seed(self, figure: str) -> dict[int, float]:
        """Seed -> the figure, of each finished run that has it; a run without a seed counts as seed 0."""
        pairs = zip(self.runs, self.figures, strict=True)
        return {run.seed or 0: own[figure] for run, own in pairs if run.status == "finished" and figure in own}

    @property
    def verdicts(self) -> list[bool]:
        """Whether each run that was judged has passed."""
        return [bool(run.summary["verdict"]["passed"]) for run in self.runs if run.summary.get("verdict")]

    def interval(self, figure: str) -> Interval:
        """The mean over the seeds of finished runs, with Student's t interval cut to the figure's possible values."""
        return measures.possible(figure, statistics.mean(list(self.by_seed(figure).values())))

    def unlike(self, other: Point, figure: str) -> str | None:
        """Why a figure is not the same measure in the two points, as under two rewards; None where it is."""
        return measures.unlike(figure, self.runs[0], other.runs[0], self.asked, other.asked)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Points, and each of them beside the baseline."""

    title: str
    points: tuple[Point, ...]
    baseline: Point
    beside: dict[str, dict[str, Difference | str]]  # point -> figure -> difference, or why there is none
    main: str  # the figure that the words are about
    notes: tuple[str, ...]  # what a reader has to know before the numbers
    minimized: bool = False  # whether less of the main figure is better, as a sweep may have it

    @property
    def ranked(self) -> list[Point]:
        """The baseline, then the others by their mean of the main figure, best first; those without one last."""
        sign = 1 if self.minimized else -1

        def key(point: Point) -> tuple[bool, float]:
            value = point.interval(self.main).value
            return value != value, sign * value

        return [self.baseline, *sorted((point for point in self.points if point is not self.baseline), key=key)]


def compare(folders: Sequence[Path], *, baseline: str | None = None) -> Comparison:
    """The runs in the folders as points, each compared with the baseline.

    The baseline is the named point, else the sweep's own, else the first that has finished and is more than a debug
    run. A trial of a sweep is named `#7`, other points after their first run's folder. A folder without a run is left
    out with a note, as in `sweep/*`; a file is left out without one.
    Raises: DataError for a name that does not exist, and where there is no run at all; ConfigError where no point has
    the baseline's name.
    """
    inside = {folder: runs.find(folder) for folder in folders}
    found = [run for some in inside.values() for run in some]
    missing = next((folder for folder in folders if not folder.exists()), None)
    if missing is not None or not found:
        why = f"{missing}: no such folder" if missing is not None else f"{' '.join(map(str, folders))}: no run in it"
        raise DataError(f"{why}; allowed: run folders (with a {CONFIG}) and folders that hold them")
    notes = [f"{folder}: no run in it; left out" for folder, some in inside.items() if folder.is_dir() and not some]
    read = [runs.read(folder) for folder in dict.fromkeys(path.resolve() for path in found)]
    follow = runs.seed_following_keys([runs.flat(run.config) for run in read])
    groups: dict[str, list[Run]] = {}
    for run in read:
        groups.setdefault(_group(run, follow), []).append(run)
    members = [_one_a_seed(group, notes) for group in groups.values()]
    varying = runs.differing([group[0].config for group in members])
    varying = dict(sorted(varying.items(), key=_rank))
    names = _names(members)
    settings = {
        f"{key}{OPTION}" if key in measures.FIGURES else key: values
        for key, values in _settings(members, varying).items()
    }
    points = tuple(
        of(name, group, {key: values[i] for key, values in settings.items()})
        for i, (name, group) in enumerate(zip(names, members, strict=True))
    )
    base = _baseline(points, baseline, folders, notes)
    main = MAIN if any(MAIN in own for point in points for own in point.figures) else "tokens_per_s"
    main, minimized = _aimed_at(folders, main, notes)
    count = sum(bool(point.by_seed(main)) for point in points if point is not base)
    beside = {point.name: _beside(point, base, main, count) for point in points if point is not base}
    notes += told.of(points, varying)
    title = folders[0].resolve().name if len(folders) == 1 else f"{len(points)} points, {len(read)} runs"
    return Comparison(title, points, base, beside, main, tuple(notes), minimized)


def of(name: str, group: Sequence[Run], settings: dict[str, Any]) -> Point:
    """The point of some runs that differ in the seed only."""
    figures = tuple(runs.figures(run.rows) for run in group)
    total = max(len(group), trial(group[0]).get("seeds", 0))
    return Point(name, tuple(group), figures, settings, measures.asked(group), total)


def _rank(item: tuple[str, tuple[Any, ...]]) -> tuple[bool, int]:
    """Of a key and its values: paths last, and first what has most values, which tells the points apart."""
    return any("/" in str(value) for value in item[1]), -len(set(map(repr, item[1])))


def label(key: str, value: Any) -> str:
    """A setting as it would be typed, import paths without their modules."""
    return f"{key.removesuffix('._target_').removesuffix(OPTION)}={text(value)}"


def text(value: Any) -> str:
    """A config value in a table: short floats, and of an import path the last word."""
    if isinstance(value, bool) or value is None:
        return check.spell(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and value.startswith("rookexp."):
        return value.rpartition(".")[2]
    return "[" + ",".join(map(text, value)) + "]" if isinstance(value, list) else str(value)


def trial(run: Run) -> dict[str, Any]:
    """The note of a sweep on the run's place in it (trial.json); {} outside of sweeps."""
    return told.read(run.folder / TRIAL)


def sweep(folder: Path) -> dict[str, Any]:
    """The note of a sweep on itself (sweep.json); {} for a folder that is no sweep's."""
    return told.read(folder / SWEEP)


def _group(run: Run, follow: Collection[str]) -> str:
    """A key that is equal for runs of one point: a sweep's trial, else the configuration without its varying seeds."""
    number = trial(run).get("trial")
    if number is not None:
        return f"{run.folder.parent}\n{number}"
    told = {
        key: value for key, value in runs.flat(run.config).items() if runs.affects_training(key) and key not in follow
    }
    return json.dumps(told, sort_keys=True, default=str)


def _one_a_seed(group: Sequence[Run], notes: list[str]) -> list[Run]:
    """One run per seed, in the seeds' order; notes the others.

    Of several it is one that finished, if any did, of these one that had its settings from its first step on, and of
    these the last.
    """
    kept: dict[int | None, Run] = {}
    for run in group:
        other = kept.setdefault(run.seed, run)
        if other is not run:
            better, left = (other, run) if _worth(other) > _worth(run) else (run, other)
            mixed = "" if _worth(left)[1] else ", from its first step on" if _worth(better)[1] else " in the end"
            notes.append(f"{left.folder.name} is left out: {better.folder.name} has the same settings and seed{mixed}")
            kept[run.seed] = better
    return sorted(kept.values(), key=lambda run: (run.seed is None, run.seed or 0))


def _worth(run: Run) -> tuple[bool, bool]:
    """What makes one of two runs with equal settings the better one: it finished; it had them from the first step."""
    return run.status == "finished", not told.anew(run)


def _settings(groups: Sequence[Sequence[Run]], varying: Mapping[str, tuple[Any, ...]]) -> Mapping[str, tuple[Any, ...]]:
    """Key -> value in each point, of what varies; in trials of one sweep, first what was typed to vary."""
    notes = [trial(group[0]) for group in groups]
    alike = {(note.get("sweep"), tuple(note.get("params", {}))) for note in notes}
    if len(alike) > 1 or not notes[0].get("params"):
        return _by_option(groups, varying)
    typed = {key: tuple(note["params"][key] for note in notes) for key in notes[0]["params"]}
    paths = [key.lstrip("+").rpartition("@")[2] for key in typed]
    rest = {k: v for k, v in varying.items() if not runs.within(k, paths)}
    return {key: values for key, values in typed.items() if len(set(map(repr, values))) > 1} | rest


def _by_option(groups: Sequence[Sequence[Run]], varying: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The same, with a group's option, as `baseline=rloo`, in place of the keys that differ by that choice alone."""
    chosen = [runs.options(group[0].folder) for group in groups]
    said = [dict(text.lstrip("+~").partition("=")[::2] for text in group[0].overrides) for group in groups]
    if any(len({own.get(name) for own in each}) > 1 for name in RECIPES for each in (chosen, said)):
        return dict(varying)  # a recipe has values of its own for an option's keys
    typed = {key for own in said for key in own} - {name for own in chosen for name in own}
    found = dict(varying)
    for name in chosen[0]:
        options = tuple(own.get(name) for own in chosen)
        inside = [key for key in varying if runs.within(key, [name.rpartition("@")[2].replace("/", ".")])]
        pairs = {key: set(zip(options, map(repr, varying[key]), strict=True)) for key in inside}
        decided = [key for key in inside if len(pairs[key]) == len(set(options)) > 1 and not runs.within(key, typed)]
        if decided and None not in options:
            found = {name: options, **{key: values for key, values in found.items() if key not in decided}}
    return dict(sorted(found.items(), key=_rank))


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A short name for each point, unique: its trial's number, or its first run's folder."""
    names = []
    for group in groups:
        number = trial(group[0]).get("trial")
        names.append(group[0].folder.name if number is None else f"#{number}")
    if len(set(names)) < len(names):
        names = [f"{group[0].folder.parent.name}/{name}" for group, name in zip(groups, names, strict=True)]
    return [name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})" for i, name in enumerate(names)]


def _baseline(points: Sequence[Point], asked: str | None, folders: Sequence[Path], notes: list[str]) -> Point:
    if asked is not None:
        for point in points:
            if asked in (point.name, point.name.removeprefix("#")):
                return point
        for point in points:
            if Path(asked).resolve() in (run.folder for run in point.runs):
                return point
        listed = ", ".join(point.name for point in points[:20])
        raise ConfigError(f"--baseline {asked}: no such point; allowed: {listed}{', ...' if len(points) > 20 else ''}")
    named = sweep(folders[0]).get("baseline") if len(folders) == 1 else None
    if isinstance(named, Mapping):
        for point in points:
            # A group's option is in the sweep's own note alone: a configuration has the option's values.
            given = runs.flat(point.runs[0].config) | trial(point.runs[0]).get("params", {})
            if all(key in given and text(given[key]) == text(value) for key, value in named.items()):
                return point
    # False comes before True, and of equals the first.
    base = min(points, key=lambda point: (not point.finished, _tiny(point), not point.whole))
    if isinstance(named, Mapping) and named:
        wanted = ", ".join(label(key, value) for key, value in named.items())
        notes.append(f"the sweep's baseline, {wanted}, has no run here; points are compared with {base.name}")
    return base


def _tiny(point: Point) -> bool:
    """Whether the point's runs only show that it runs, by an option of conf/debug."""
    return any(text.startswith("debug=") and text != "debug=null" for text in point.runs[0].overrides)


def _aimed_at(folders: Sequence[Path], main: str, notes: list[str]) -> tuple[str, bool]:
    """The figure to judge by, and whether less of it is better: a single sweep's first objective where it is one."""
    objectives = sweep(folders[0]).get("objectives") if len(folders) == 1 else None
    if not objectives:
        others = {str(each["name"]) for folder in folders for each in sweep(folder).get("objectives") or ()} - {main}
        if others:
            notes.append(f"several folders are judged by {main}; a sweep among them is about {', '.join(others)}")
        return main, False
    name, minimized = str(objectives[0]["name"]), objectives[0]["direction"] == "minimize"
    if name in measures.FIGURES:
        return name, minimized
    notes.append(f"points are judged by {main} here; the sweep's objective is {name}, which is in its trials.csv")
    return main, False


def _beside(point: Point, base: Point, main: str, comparisons: int) -> dict[str, Difference | str]:
    """Figure -> the difference from the baseline, or why there is none, of each figure that both have.

    Only the main figure's is corrected for the number of points.
    """
    found: dict[str, Difference | str] = {}
    for figure in measures.FIGURES:
        ours, theirs = point.by_seed(figure), base.by_seed(figure)
        if not ours or not theirs:
            continue
        refused = point.unlike(base, figure)
        found[figure] = refused or statistics.compared(ours, theirs, comparisons=comparisons if figure == main else 1)
    return found
