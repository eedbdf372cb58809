"""The keys of conf/bench.yaml, their checks, and the settings that a side gets."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Len, Lt, MinLen

from rookexp import build
from rookexp.benchmark.workload import POSITIONS
from rookexp.config import across, check
from rookexp.errors import ConfigError

GROUPS = ("grpo", "loss", "baseline", "kl", "reference", "optim", "hardware")
COMPARED = ("trl", "transformers", "accelerate", "datasets")  # packages of the extra `bench`
# The values with which TRL's GRPOTrainer, given the settings that `theirs.step` passes on, does the same work.
MIRRORED = {
    "loss._target_": ("rookexp.losses.Clip",),
    "baseline._target_": ("rookexp.baselines.GroupMean",),
    "baseline.std": ("sample",),
    "kl._target_": ("rookexp.coefficients.FixedKL", "rookexp.coefficients.NoKL"),
    "reference._target_": ("rookexp.reference.Never",),
    "optim._target_": ("rookexp.optim.AdamW",),
    "optim.schedule._target_": ("rookexp.schedule.Constant",),
    "optim.schedule.warmup_steps": (0,),
    "grpo.kl_type": ("ratio_k3",),
    "grpo.kl_placement": ("loss",),
    "grpo.aggregation": ("token_mean",),
    "grpo.entropy_coef": (0.0,),
    "grpo.advantage_clip": (None,),
    "grpo.dead_groups": ("kept",),
    "grpo.truncated": ("kept",),
    "grpo.overlong_buffer": (None,),
    "grpo.inner_epochs": (1,),
    "grpo.minibatches": (1,),
    "grpo.top_k": (None,),
    "grpo.top_p": (None,),
}
FAR = 10**9  # steps: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The keys at the top of conf/bench.yaml that belong to no group."""

    task_name: Annotated[str, MinLen(1)]  # first part of the run folder
    sizes: Annotated[Sequence[Literal["tiny", "1m", "nano", "4m", "124m"]], MinLen(1)]  # models
    parts: Annotated[Sequence[Literal["step", "decode", "scaling", "train"]], MinLen(1)]  # what is measured
    against: Sequence[Literal["trl_default", "trl_fastest"]]  # what a step is compared with
    repeats: Annotated[int, Ge(1)]  # measured turns
    warmups: Annotated[int, Ge(0)]  # turns before them
    batches: Sequence[Annotated[int, Ge(1)]]  # rows of a decoded batch
    scaling_rows: Annotated[Sequence[Annotated[int, Ge(1)]], MinLen(1)]  # rows of a step
    scaling_tokens: Annotated[Sequence[Annotated[int, Ge(1)]], MinLen(1)]  # new tokens of a step
    prompt_tokens: Annotated[Sequence[Annotated[int, Ge(1)]], Len(2, 2)]  # shortest and longest prompt
    end_rate: Annotated[float, Ge(0), Lt(1)]  # chance that a token ends its completion
    seed: Annotated[int, Ge(0)]  # of weights, prompts and draws
    report: Annotated[str, MinLen(1)] | None  # the file that is added to


def checked(config: Mapping[str, Any]) -> Bench:
    """The keys that belong to no group, after a check of all.

    Raises: ConfigError for a key or value that is not allowed, for a setting that TRL's side lacks but would have to
    match, for a package that is not installed, and for a report that cannot be added to.
    """
    asked = Bench(**build.check_groups(config, GROUPS, Bench))
    shortest, longest = asked.prompt_tokens
    if shortest > longest:
        raise check.refusal("prompt_tokens", list(asked.prompt_tokens), "allowed: the shorter number first")
    refuse_what_is_too_long(asked, config["grpo"]["max_new_tokens"])
    across.check_rows(config["grpo"])
    group = config["grpo"]["group_size"]
    if "scaling" in asked.parts and any(rows % group for rows in asked.scaling_rows):
        allowed = f"allowed: multiples of grpo.group_size={group}"
        raise check.refusal("scaling_rows", list(asked.scaling_rows), allowed)
    compares = "step" in asked.parts and asked.against
    if compares:
        refuse_what_trl_lacks(config)
    if compares or "decode" in asked.parts:
        missing = [name for name in COMPARED if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)}: not installed; type `pip install 'rookexp[bench]'`, or measure rookexp alone "
                "with parts=[step,scaling,train] against=[]"
            )
    if asked.report is not None:
        refuse_unwritable(asked.report)
    return asked


def refuse_what_is_too_long(asked: Bench, max_new_tokens: int) -> None:
    """Raises: ConfigError where a part's longest prompt and completion have more tokens than a model has positions.

    `max_new_tokens` is that of grpo, with which the parts step and decode are measured.
    """
    longest = max(asked.prompt_tokens)
    lengths = {"grpo.max_new_tokens": max_new_tokens} if {"step", "decode"} & set(asked.parts) else {}
    if "scaling" in asked.parts:
        lengths["scaling_tokens"] = max(asked.scaling_tokens)
    for key, new_tokens in lengths.items():
        if longest + new_tokens > POSITIONS:
            value = list(asked.prompt_tokens)
            why = f"with {key}={new_tokens} up to {longest + new_tokens} tokens; allowed: at most {POSITIONS} together"
            raise check.refusal("prompt_tokens", value, why)


def refuse_what_trl_lacks(config: Mapping[str, Any]) -> None:
    """Raises: ConfigError for a setting that TRL refuses, or with which the two sides would not do the same work."""
    if (group := config["grpo"]["group_size"]) < 2:
        raise check.refusal("grpo.group_size", group, "TRL's side needs two; allowed: an integer >= 2, or against=[]")
    for key, allowed in MIRRORED.items():
        value: Any = config
        for name in key.split("."):
            value = value[name]
        if value not in allowed:
            words = " or ".join(map(check.spell, allowed))
            raise check.refusal(key, value, f"TRL's side has no such setting; allowed: {words}, or against=[]")


def refuse_unwritable(report: str) -> None:
    """Raises: ConfigError for a report that cannot be added to; what is made to find that out is removed."""
    made: list[Path] = []
    try:
        file = Path(report).expanduser().resolve()  # a link to a file that is yet to be made stays
        made = [path for path in (file, *file.parents) if not path.exists()]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a", encoding="utf-8").close()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~NAME of nobody
        allowed = "allowed: a file in a folder of yours, or null"
        raise check.refusal("report", report, f"cannot be written ({error}); {allowed}") from error
    finally:
        for path in made:
            if path.is_dir():
                path.rmdir()
            elif path.is_file():
                path.unlink()


def training(config: Mapping[str, Any], workload: Path, *, steps: int, **grpo: int) -> dict[str, Any]:
    """The configuration of a training on a workload, in the form of conf/config.yaml; `grpo` overrides that group."""
    group = {**config["grpo"], **grpo}
    pretrained = {"_target_": "rookexp.policies.pretrained", "path": str(workload), "revision": None}
    asked = {"_target_": "rookexp.benchmark.workload.Words", "_partial_": True, "folder": str(workload)}
    greedy = {"_target_": "rookexp.evaluation.Greedy", "_partial_": True, "positions": None, "every": FAR}
    return {
        **{name: config[name] for name in GROUPS},
        "grpo": group,
        "model": {**pretrained, "parameters": None},
        "task": {**asked, "prompts": group["prompts_per_step"]},
        "reward": {"_target_": "rookexp.benchmark.workload.EvenShare"},
        "eval": {**greedy, "max_new_tokens": group["max_new_tokens"]},
        "track": {"jsonl": {"_target_": "rookexp.track.JsonlTracker", "_partial_": True}},
        "seed": config["seed"],
        "task_name": config["task_name"],
        "steps": steps,
        "save_every": FAR,
        "keep_checkpoints": 1,
        "diagnose_every": None,
        "resume": None,
        "verdict": "off",
        "doctor": "off",
        "dry_run": False,
    }
