"""A run's parts that may be user code, such as task, reward and loss, and the prompts of its greedy evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from rookexp.coefficients import Coefficient
from rookexp.config import check
from rookexp.config.nodes import Config, make
from rookexp.errors import ConfigError, DataError
from rookexp.losses import PolicyLoss
from rookexp.reference import Sync
from rookexp.returns import Baseline, no_stages
from rookexp.rewards.by_task import ByTask
from rookexp.rewards.combine import MadeOf
from rookexp.tasks.mixed import notes_of, subtasks
from rookexp.types import Prompt

METHODS = {"task": ("select", "prompts"), "reward": ("score",)}  # methods that a run calls, also of user code
KINDS = {"loss": PolicyLoss, "baseline": Baseline, "kl": Coefficient, "reference": Sync}  # whose members a run reads
OVERRIDDEN = {  # a kind's methods that only raise, of which a class of a user's overrides one
    "loss": ("__call__",),
    "baseline": ("forward", "advantages"),
    "kl": ("coefficient",),
    "reference": ("update",),
}
DECLARED = {"kl": "can_be_nonzero", "reference": "moves"}  # attributes that a kind declares without a value


def build_group(config: Config, group: str, **objects: Any) -> Any:
    """The object that the config node of `group` builds, which may be user code.

    Raises: ConfigError if it lacks a method that the run calls, or is not of the group's kind.
    """
    made, kind = make(config[group], group, **objects), KINDS.get(group, object)
    wrong = [f"it has no method {name}" for name in METHODS.get(group, ()) if not callable(getattr(made, name, None))]
    if not isinstance(made, kind):
        wrong.append(f"it is no {kind.__module__}.{kind.__name__}")
    elif methods := OVERRIDDEN.get(group, ()):
        if all(getattr(type(made), name) is getattr(kind, name) for name in methods):
            wrong.append(f"it has no method {' or '.join(methods)}")
        if isinstance(made, nn.Module) and "_parameters" not in vars(made):
            wrong.append("its __init__ does not call super().__init__()")
        elif (name := DECLARED.get(group)) and not isinstance(getattr(made, name, None), bool):
            wrong.append(f"it has no {name}, True or False")
    if wrong:
        raise check.refusal(group, config[group]["_target_"], f"{wrong[0]}; see docs/own.md")
    return made


def may_have_stages(reward: Any) -> bool:
    """Whether `reward` may score by stages of a completion: as its `staged` says; without that, True for user code.

    Whether a user's reward returns stages is unknown until it has scored.
    """
    if isinstance(reward, ByTask):
        return any(map(may_have_stages, reward.rewards.values()))
    return bool(getattr(reward, "staged", not type(reward).__module__.startswith("rookexp.")))


def refuse_without_stages(baseline: Baseline, reward: Any) -> None:
    """Raises: ConfigError for a baseline of stages with a reward that has none."""
    if baseline.by_stage and not may_have_stages(reward):
        raise no_stages(baseline, reward)


def engines_of(reward: Any) -> list[str]:
    """The identity of each engine that judges: that of the reward itself, or of the rewards that it is made of."""
    if isinstance(reward, MadeOf):
        return [identity for each in reward.rewards.values() for identity in engines_of(each)]
    identity = getattr(getattr(reward, "engine", None), "engine", None)
    return [identity] if isinstance(identity, str) else []


def evaluation_prompts(config: Config, task: Any, objects: Config) -> tuple[Prompt, ...]:
    """The prompts of the greedy evaluation: the task's own, or those of the same task on `eval.positions`.

    Raises: ConfigError if the task has no positions to replace, or returns anything but prompts; DataError for
    positions that cannot be used.
    """
    asked = config["eval"]["positions"]
    prompts_of("select", task.select(0))
    try:
        source = task if asked is None else make(with_positions(config["task"], asked), **objects)
    except DataError as error:
        raise DataError(f"eval.positions: {error}; eval.positions=null for the task's own") from error
    if asked is not None:
        for note in notes_of([source]):
            print(f"eval.positions: {note}", flush=True)
    return prompts_of("prompts", source.prompts())


def with_positions(task: Config, positions: str | Mapping[str, str]) -> Config:
    """A task's node with other positions: one file for all, or for each task named in a mix a file of its own.

    Raises: ConfigError if there is no `positions` key to replace.
    """
    tasks = subtasks(task)
    able = [name for name, node in tasks.items() if "positions" in node]
    own = "eval.positions=null for the task's own"
    allowed = f"allowed: 'eval.positions={{{', '.join(f'{name}: FILE' for name in able)}}}', or {own}" if able else own
    if isinstance(positions, str):
        if "positions" not in task:
            wrong = f"this task has several sources or its own split; {allowed}"
            raise check.refusal("eval.positions", positions, wrong)
        return {**task, "positions": positions}
    for name, file in positions.items():
        if name not in able:
            remedy = f"allowed: eval.positions=FILE, or {own}" if "positions" in task else allowed
            raise check.refusal(f"eval.positions.{name}", file, f"no task of that name has positions; {remedy}")
    replaced = {name: {**tasks[name], "positions": file} for name, file in positions.items()}
    return {**task, "tasks": {**task["tasks"], **replaced}} if replaced else task


def with_prompts(value: Any, given: int, count: int) -> Any:
    """A copy of a task's node in which every `prompts` key equal to `given`, also in nested nodes, is `count`."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: count if key == "prompts" and inner == given else with_prompts(inner, given, count)
        for key, inner in value.items()
    }


def prompts_of(method: str, given: Any) -> tuple[Prompt, ...]:
    """`given`, which a task's `method` returned, as a tuple. Raises: ConfigError unless it is one or more prompts."""
    if isinstance(given, Sequence) and given and all(isinstance(each, Prompt) for each in given):
        return tuple(given)
    what = "nothing" if given is None or given == () else f"a {type(given).__name__}"
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        what += f" with a {next(type(each).__name__ for each in given if not isinstance(each, Prompt))}"
    raise ConfigError(
        f"task: {method} gave {what}; wanted: a tuple of rookexp.types.Prompt, one or more; see docs/own.md"
    )
