"""Where a run begins, and what a resumed one must keep to stay one run: its measure, in a sweep all its settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookexp import checkpoint, track
from rookexp.comparison import measures
from rookexp.config import check
from rookexp.errors import ConfigError
from rookexp.hardware import Hardware
from rookexp.run_folder import fingerprints, runs
from rookexp.run_folder.run_info import CONFIG, INFO, TRIAL, read_info, redacted

ASKED = (runs.SEED, "task", "eval.positions", "corpus", "validation_documents")
# The evaluation does not depend on these, except for the sampling keys in `measures.SCORED`.
UNSEEN = ("task.sampling", "task.total_steps", "task.schedule")
CONTROLLED = ("AdaptiveKL", "ProportionalKL", "PpoRuleKL")  # coefficients that a controller moves by the measured KL
ASSETS = "/rookexp/assets/"  # wherever the package lies
DATA = {"positions", "data", "corpus"}  # parts of keys that name files or folders of rows
COMPUTED = ("precision", "device")  # of the resolved hardware settings: results depend on them
BATCH = "grpo.prompts_per_step"
SHOWN = 3  # keys in a message


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins."""

    step: int  # steps that are done
    checkpoint: Path | None  # the state after them; None for a new run


def find_start(resume: str | None, steps: int, folder: Path) -> Start:
    """The newest checkpoint of the run folder `resume`, or a new run in `folder` if that is None. Loads no model.

    Raises: ConfigError if `resume` has no checkpoint, if no step is left to do, or if a new run would mix its
    checkpoints with another's.
    """
    if resume is None:
        if (other := checkpoint.latest(folder)) is not None:
            raise ConfigError(
                f"{folder}: holds a run already ({other.name}); go on with it: {shlex.quote(f'resume={folder}')}, or "
                "type another folder: hydra.run.dir=FOLDER, with -m hydra.sweep.dir=FOLDER"
            )
        return Start(0, None)
    newest = checkpoint.latest(Path(resume))
    if newest is None:
        raise ConfigError(
            f"resume={resume}: no checkpoint in it; allowed: a run folder with one, or null to start anew"
        )
    done = int(newest.name.rpartition("-")[2])
    # One that was killed right before its summary goes on, if only to write that.
    if done > steps or (done == steps and track.read_summary(Path(resume)).get("status") == "finished"):
        raise check.refusal("steps", steps, f"{resume} is finished, with {done} steps done; allowed: more than {done}")
    return Start(done, newest)


def refuse_other(folder: Path, config: Mapping[str, Any], *, swept: bool) -> None:
    """Refuses to resume the run in `folder` where that would make two runs of it; `swept`: it is a job of a sweep.

    Any other difference from what was trained so far is printed.
    Raises: ConfigError with each key, its value so far and the new one, and for data whose content has changed;
    DataError for a damaged config.yaml.
    """
    newest = checkpoint.latest(folder)
    if newest is None or not (folder / CONFIG).is_file():
        return  # nothing to resume, which the start reports
    before, now = runs.flat(runs.read_config(folder)), runs.flat(redacted(config))
    judged = _trains if swept else _measures
    follow = runs.seed_following_keys([before, now])
    changed = {
        key: f"{key} was {_spell(before, key)}, now {_spell(now, key)}"
        for key in dict.fromkeys([*before, *now])
        if key not in follow and not _same(key, before.get(key), now.get(key))
    }
    if unread := [said for key, said in changed.items() if _in_checkpoint(key, before)]:
        raise ConfigError(
            f"{folder}: {'; '.join(unread)}: a run that goes on has it from its checkpoint; leave it out, or begin a "
            f"new run with its weights: model=rook_nano model.path={newest / checkpoint.MODEL}"
        )
    differs = [said for key, said in changed.items() if judged(key, before)]
    if not differs:
        _refuse_other_data(folder, newest, config)
        grown = BATCH in changed and {before.get("hardware.grow"), now.get("hardware.grow")} == {"batch"}
        other = [said for key, said in changed.items() if _trains(key, before)]
        if other and not grown:  # a grown batch: the run restarts with its own, which is checked like this, too
            print(f"from {newest.name} on: {'; '.join(other)}", flush=True)
        return
    listed = "; ".join(differs[:SHOWN]) + (f"; and {len(differs) - SHOWN} more" if len(differs) > SHOWN else "")
    if swept:
        raise ConfigError(
            f"{folder}: a job of a sweep, whose values are the sweep's: {listed}; to train on with others copy the "
            f"folder, delete {TRIAL} in the copy and resume that"
        )
    keeps = "task, reward and evaluation" if "task" in config else "corpus and validation"
    raise ConfigError(
        f"{folder}: a run that goes on keeps its seed, {keeps}: {listed}; a new one can begin with its weights: "
        f"model=rook_nano model.path={newest / checkpoint.MODEL}"
    )


def _refuse_other_data(folder: Path, newest: Path, config: Mapping[str, Any]) -> None:
    """Raises: ConfigError for the first data file whose content is not that of the run's last start."""
    had, have = read_info(folder).get("data", {}), fingerprints.of_data(config)
    for key in (key for key in had if key in have):
        for file in {**had[key], **have[key]}:
            was, now = (files[key].get(file, runs.ABSENT) for files in (had, have))
            if was != now:
                raise ConfigError(
                    f"{folder}: {key}: {file} was {was}, now {now}: a run that goes on keeps its data; put the file "
                    "back as it was, or begin a new run with its weights: model=rook_nano "
                    f"model.path={newest / checkpoint.MODEL}"
                )


def resolved_hardware(hardware: Hardware) -> dict[str, Any]:
    """The resolved hardware settings, without `auto` or null; the micro-batch is None where `hardware.fit` finds it."""
    rows = None if hardware.fit else hardware.micro_batch
    ways = {"decode": hardware.decode, "kernels": hardware.kernels}
    return {**hardware.describe(), **ways, "micro_batch": rows, "head_chunk": hardware.head_chunk}


def tell_other_hardware(folder: Path, asked: str | None, here: Mapping[str, Any]) -> None:
    """Prints where the resumed run in `folder` is computed otherwise than before; `here`: its `resolved_hardware`.

    That is allowed, for its weights are fp32 everywhere, but not to a job of a sweep whose `hardware.precision` was
    `asked` as auto: the sweep's points would differ by the precision, too.
    Raises: ConfigError for such a job where another run of its sweep had another precision.
    """
    before = read_info(folder).get("hardware", {})
    if other := [f"{k} was {before[k]}, now {here[k]}" for k in COMPUTED if before.get(k, here[k]) != here[k]]:
        print(f"note: from here on computed otherwise: {'; '.join(other)}; numbers differ by rounding", flush=True)
    if asked != "auto" or not (folder / TRIAL).is_file():
        return
    for path in sorted(folder.parent.glob(f"*/{INFO}")):
        precision = read_info(path.parent).get("hardware", {}).get("precision", here["precision"])
        if precision != here["precision"]:
            raise ConfigError(
                f"hardware.precision=auto: {here['precision']} on this machine, and {path.parent} of the same sweep "
                f"was in {precision}; allowed: hardware.precision={precision}; "
                f"hardware.precision={here['precision']} mixes them"
            )


def tell_other_engines(folder: Path, here: Sequence[str]) -> None:
    """Prints where other engines judge the resumed run in `folder` than before, as after an upgrade of Stockfish."""
    before = read_info(folder).get("engines", here)
    if list(before) != list(here):
        was, now = (", ".join(engines) or "none" for engines in (before, here))
        print(f"note: from here on judged by {now}, so far by {was}: rewards may differ", flush=True)


def _in_checkpoint(key: str, before: Mapping[str, Any]) -> bool:
    """Whether a resumed run reads this key from its checkpoint, not its config; `model.path` if that still exists."""
    if key == "kl.coef":
        return str(before.get("kl._target_")).rpartition(".")[2] in CONTROLLED
    return key.startswith("model.") and (key != "model.path" or Path(str(before.get(key))).expanduser().exists())


def _trains(key: str, before: Mapping[str, Any]) -> bool:
    """Whether a key determines what a sweep's job trains: the seed, and what affects training but for the hardware."""
    return key == runs.SEED or (runs.affects_training(key) and key.split(".")[0] != "hardware")


def _measures(key: str, before: Mapping[str, Any]) -> bool:
    """Whether a key determines the evaluation's prompts or how their answers are scored."""
    if runs.within(key, measures.SCORED):
        return not key.endswith(measures.UNSCORED)
    task, _, last = key.rpartition(".")
    if last == "prompts" and (before.get(f"{task}.order") != "fixed" or before.get("hardware.grow") == "batch"):
        return False  # prompts of a step, where the evaluation asks all; or a number that the run has found
    return runs.within(key, ASKED) and not runs.within(key, UNSEEN)


def _same(key: str, one: Any, other: Any) -> bool:
    """Whether two values are equal; data and the package may have moved, and are then the same by their names."""
    if isinstance(one, str) and isinstance(other, str):
        if ASSETS in one and ASSETS in other:
            return one.rpartition(ASSETS)[2] == other.rpartition(ASSETS)[2]
        if DATA & set(key.split(".")):
            return Path(one).name == Path(other).name
    return bool(one == other)


def _spell(flat: Mapping[str, Any], key: str) -> str:
    return check.spell(flat.get(key, runs.ABSENT))
