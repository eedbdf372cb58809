"""Run folders read back: a run's configuration, what it logged, and how it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rookexp import chess_text, track, verdict
from rookexp.errors import DataError
from rookexp.run_folder import report
from rookexp.run_folder.run_info import CONFIG, HYDRA, INFO, OVERRIDES

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C's takes a tenth of the time, but some builds lack it
LAST = 20  # logged values that a figure at the end of a run is the mean of
ABSENT = "absent"  # stands for the value of a key that a config does not have
SEED = "seed"
RECORDS = {INFO, track.METRICS, track.SUMMARY}  # a run has one of them beside its config.yaml; conf/ has none
# Keys that say where a run's files go and how it is watched, not what it trains.
RUN_ONLY = ("task_name", "resume", "save_every", "keep_checkpoints", "diagnose_every", "verdict", "doctor", "track")


@dataclass(frozen=True, slots=True)
class Run:
    """The content of a run folder, as far as it is written."""

    folder: Path
    config: dict[str, Any]  # resolved, nested
    overrides: tuple[str, ...]  # as typed; () where Hydra has left no note
    status: str  # summary.json's; "unknown" where there is none
    reason: str | None  # why it did not finish, in one line
    rows: list[dict[str, Any]]  # metrics.jsonl, one object a step
    summary: dict[str, Any]

    @property
    def seed(self) -> int | None:
        """The seed that every random choice of the run derives from; None where the config has none."""
        seed = self.config.get(SEED)
        return seed if isinstance(seed, int) else None


def read(folder: Path) -> Run:
    """The run in a folder; what is not written yet, or was cut off by a kill, reads as empty.

    Raises: DataError for a folder without config.yaml, and for files that are no YAML or JSON.
    """
    config = read_config(folder)
    summary = track.read_summary(folder)
    reason = summary.get("reason")
    return Run(
        folder=folder,
        config=config,
        overrides=overrides(folder),
        status=str(summary.get("status", "unknown")),
        reason=" ".join(str(reason).split()) if reason else None,
        rows=track.read_metrics(folder),
        summary=summary,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of the run in a folder, resolved, as its last start wrote it.

    Raises: DataError for a folder without one, and for a damaged one.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise DataError(f"{folder}: no run folder, it has no {CONFIG}; name a run's folder or one that holds runs")
    config = _yaml(path)
    if not isinstance(config, dict):
        raise DataError(f"{path}: no mapping; was it written by hand?")
    return config


def p_style_of(model: str | None) -> str:
    """The style of P prompts (see `chess_text.P_PROMPTS`) that the run at `model` was trained on; "bare" without a run.

    `model` is a run's folder, a checkpoint in it or the model in that, or anything else that `model.path` takes.
    """
    path = Path(model or "").expanduser().absolute()
    places = [path, *path.parents[:3]] if model else []
    folder = next((p for p in places if (p / CONFIG).is_file() and (p / "checkpoints").is_dir()), None)
    return "bare" if folder is None else p_style_in(read_config(folder))


def p_style_in(config: Mapping[str, Any]) -> str:
    """The style of P prompts in a run of this configuration; "bare" where it has none, several, or an unknown one."""
    values = flat(config)  # the key was `style` until 2026-11-29
    styles = {str(value) for key, value in values.items() if re.fullmatch(r"task\.(tasks\.\w+\.)*(p_)?style", key)}
    return styles.pop() if len(styles) == 1 and styles <= chess_text.P_PROMPTS.keys() else "bare"


def overrides(folder: Path) -> tuple[str, ...]:
    """The overrides typed for a run; () where Hydra has left no note of them. Raises: DataError for a damaged one."""
    path = folder / OVERRIDES
    found = _yaml(path) if path.is_file() else None
    if found is not None and not isinstance(found, list):
        raise DataError(f"{path}: no list; was it written by hand?")
    return tuple(map(str, found or ()))


def options(folder: Path) -> dict[str, str | None]:
    """Group -> the option that the run in a folder was composed of, as Hydra notes it; {} where there is no note."""
    try:
        found = _yaml(folder / HYDRA)["hydra"]["runtime"]["choices"].items()
    except (DataError, OSError, KeyError, TypeError, AttributeError):
        return {}
    return {str(group): option for group, option in found if option is None or isinstance(option, str)}


def find(path: Path) -> list[Path]:
    """The run folders in a folder: itself, or those at any depth below, 2 before 10; none inside another run.

    A link to a folder is followed, each folder once. Hydra's own folders do not count, although there is a config.yaml
    in them.
    """
    found: list[Path] = []
    seen: set[str] = set()
    for folder, inside, files in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        if CONFIG in files and not RECORDS.isdisjoint(files):
            found.append(Path(folder))
            inside.clear()
        inside[:] = [name for name in inside if not name.startswith(".")]
    return sorted(found, key=lambda run: natural(str(run)))


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """A run's figures by name; a figure whose metric was not logged is absent.

    `gain`: last minus first greedy reward; `reward`, `best`: the last and the highest greedy reward; `slope`: of the
    20-value moving average, in reward per 100 steps, from 40 values on, of greedy rewards where each step has one, else
    of sampled ones; `kl` (exact and forward, whatever was optimised), `entropy`, `kl_share`, `dead_groups`: mean of the
    last 20 values; `grad_norm_max`: infinite where a norm was not finite; `seconds`: of all steps; `tokens_per_s`:
    median; `steps`: done.
    """
    found: dict[str, float] = {}
    x, y = verdict.column(rows, "eval/reward")
    if len(y):
        found |= {"reward": y[-1], "best": y.max()}
    if len(y) > 1:
        found["gain"] = y[-1] - y[0]
    sampled = verdict.column(rows, "reward/mean")
    x, y = (x, y) if len(y) >= max(len(sampled[1]), 1) else sampled  # greedy ones compare across temperatures
    if len(y) >= verdict.MIN_VALUES:
        full = slice(verdict.WINDOW - 1, None)  # the average of fewer values than its window is not one
        found["slope"] = 100 * np.polyfit(x[full], verdict.moving_average(y)[full], 1)[0]
    for name, metric in (
        ("kl", "kl/forward"),
        ("entropy", "entropy"),
        ("kl_share", "kl_share"),
        ("dead_groups", "frac_reward_zero_std"),
    ):
        values = verdict.column(rows, metric)[1]
        if len(values):
            found[name] = values[-LAST:].mean()
    norms = [row["grad_norm"] for row in rows if "grad_norm" in row]
    if norms:
        found["grad_norm_max"] = max(np.inf if norm is None else norm for norm in norms)
    if rows:
        found |= report.costs(rows)
    return {name: float(value) for name, value in found.items()}


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every value under its dotted key; a list is a value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{key}.{inner}": leaf for inner, leaf in flat(value).items()}
        else:
            found[str(key)] = value
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Dotted key -> its value in each config, of the keys that vary; without the seed and the keys of `RUN_ONLY`.

    A key that a config does not have has the value `ABSENT` there.
    """
    flats = [flat(config) for config in configs]
    follow = seed_following_keys(flats)
    keys = dict.fromkeys(key for each in flats for key in each if affects_training(key) and key not in follow)
    columns = {key: tuple(each.get(key, ABSENT) for each in flats) for key in keys}
    return {key: values for key, values in columns.items() if len({repr(value) for value in values}) > 1}


def seed_following_keys(flats: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys `*.seed` that equal the run's `seed` in each flat configuration that has them, as for random weights.

    In each, because in one run of several a fixed seed may equal the run's by chance.
    """
    named = {key for each in flats for key in each if key.endswith(f".{SEED}")}
    return {key for key in named if all(each[key] == each.get(SEED) for each in flats if key in each)}


def within(key: str, groups: Collection[str]) -> bool:
    """Whether a dotted key is one of `groups`, or below one."""
    return any(key == group or key.startswith(f"{group}.") for group in groups)


def affects_training(key: str) -> bool:
    """Whether a dotted key affects what is trained; the seed does not count, nor do the keys of `RUN_ONLY`."""
    return key != SEED and key.split(".")[0] not in RUN_ONLY


def natural(text: str) -> list[Any]:
    """A sort key by which numbers in names count as numbers: 2 before 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", text)]


def _yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no YAML ({' '.join(str(error).split())})") from error
