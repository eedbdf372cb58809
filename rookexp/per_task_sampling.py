"""How each kind of prompt is sampled: as the group grpo says, with the changes to that which the task has for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Protocol, runtime_checkable

from annotated_types import Gt

from rookexp.config import check
from rookexp.errors import ConfigError
from rookexp.generate import Sampling

# Types of the keys; greedy rollouts would all be the same.
ALLOWED: dict[str, Any] = {**check.type_hints(Sampling), "temperature": Annotated[float, Gt(0)]}


@runtime_checkable
class Sampled(Protocol):
    """A task that says for some kinds of its prompts how they are sampled."""

    @property
    def kinds(self) -> Sequence[str]:
        """What `Prompt.task` may be."""

    @property
    def sampling(self) -> Mapping[str, Mapping[str, float | None]]:
        """Keys of `Sampling` and their values, by kind."""


def shared_sampling(grpo: Mapping[str, Any]) -> Sampling:
    """How all prompts are sampled whose kind says nothing else."""
    return Sampling(**{field.name: grpo[field.name] for field in fields(Sampling)})


def own_sampling(task: Any, shared: Sampling) -> dict[str, Sampling]:
    """How the kinds of prompt are sampled that are not sampled as all are: with the task's changes to that.

    Raises: ConfigError for a kind that the task never asks, for a key or value that sampling does not take, and for
    changes in a task inside another, which has the say.
    """
    for name, inner in getattr(task, "tasks", {}).items():
        if kinds := own_sampling(inner, shared):
            kind = min(kinds)
            raise ConfigError(f"task.tasks.{name}.sampling.{kind}: not read inside a mix; set task.sampling.{kind}")
    ways: Mapping[str, Mapping[str, Any]] = task.sampling if isinstance(task, Sampled) else {}
    for kind in ways:
        if kind not in task.kinds:
            why = f"no such prompts in this task; allowed in task.sampling: {', '.join(task.kinds)}"
            raise ConfigError(f"task.sampling.{kind}: {why}{check.nearest(kind, task.kinds, 'task.sampling.')}")
    found = {kind: changed(shared, f"task.sampling.{kind}", changes) for kind, changes in ways.items()}
    return {kind: sampling for kind, sampling in found.items() if sampling != shared}


def changed(shared: Sampling, key: str, changes: Mapping[str, Any]) -> Sampling:
    """The sampling with some values changed.

    Raises: ConfigError naming the key below `key`, the value and what is allowed.
    """
    values = asdict(shared) | dict(changes)
    check.check_call(Sampling, values, key, runtime=False, given=(), also=ALLOWED)
    return Sampling(**values)


def own_lengths(own: Mapping[str, Sampling], shared: Sampling) -> dict[str, int]:
    """The longest completions of the kinds of prompt that have another one than all, for their evaluation, too."""
    lengths = {kind: sampling.max_new_tokens for kind, sampling in own.items()}
    return {kind: length for kind, length in lengths.items() if length != shared.max_new_tokens}


def limits(
    kind: str, shared: Sampling, own: Mapping[str, Sampling], evaluated: int, lengths: Mapping[str, int]
) -> dict[str, int]:
    """The keys that limit a completion of the kind, in rollouts and evaluation, and the tokens they allow."""
    key = f"task.sampling.{kind}"
    found = {key: own[kind].max_new_tokens} if kind in own else {"grpo": shared.max_new_tokens}
    found |= {key: lengths[kind]} if kind in lengths else {"eval": evaluated}
    return {f"{key}.max_new_tokens": tokens for key, tokens in found.items()}
