"""What trackers call a run: its name (the overrides), its group (the sweep) and its tags (the chosen options)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from rookexp.run_folder.run_info import is_secret

LONGEST = 80  # characters of the overrides in a name
LONGEST_TAG = 64  # W&B refuses a longer one
SILENT = ("resume", "track", "task_name", "hydra", "sweep", "sampler", "pruner")  # they say nothing of what was trained


def of_run(kind: Literal["name", "group", "tags"]) -> Any:
    """A label of the run that Hydra runs, for the resolver `${label:KIND}`; None or [] where it runs none."""
    run = HydraConfig.get() if HydraConfig.initialized() else None
    if kind == "tags":  # a bare list would not pass `--cfg job --resolve`
        return OmegaConf.create([] if run is None else tags_of(run.runtime.choices))
    if run is None or OmegaConf.is_missing(run.runtime, "output_dir"):  # the latter under --cfg
        return None
    swept = run.mode == RunMode.MULTIRUN
    if kind == "group":
        return Path(run.sweep.dir).name if swept else None
    job, folder = run.job.num if swept else None, Path(run.runtime.output_dir)
    return name_of(list(run.overrides.task), job=job, task_name=run.job.name, folder=folder)


def name_of(overrides: Sequence[str], *, job: int | None, task_name: str, folder: Path) -> str:
    """`3-lr=2e-6,seed=1` for a sweep's job; else `lr=2e-6-b9a0c0`, which ends with the id of the run's folder."""
    words = short(overrides) or task_name
    return f"{words}-{folder.name.rpartition('_')[2]}" if job is None else f"{job}-{words}"


def short(overrides: Sequence[str]) -> str:
    """The overrides as one word, each key cut to its last part if that is unique; "" where none says what is trained.

    Of a key that comes twice the last counts, as it does for Hydra: the first may be a recipe's (`recipes.taken_out`).
    """
    found = [text.lstrip("+~").partition("=") for text in overrides if not is_secret(text)]
    pairs = [pair for i, pair in enumerate(found) if all(pair[0] != later[0] for later in found[i + 1 :])]
    pairs = [pair for pair in pairs if pair[0].split(".")[0] not in SILENT]
    last = [key.rpartition(".")[2] for key, *_ in pairs]
    words = [
        f"{end if last.count(end) == 1 else key}{sign}{value}"
        for (key, sign, value), end in zip(pairs, last, strict=True)
    ]
    return cut(",".join(words), LONGEST)


def tags_of(choices: Mapping[str, Any]) -> list[str]:
    """`group=option` of each group that decides what is trained."""
    chosen = {group: option for group, option in choices.items() if group.split("/")[0] not in SILENT}
    return [cut(f"{group}={option}", LONGEST_TAG) for group, option in chosen.items() if option is not None]


def cut(text: str, length: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"
