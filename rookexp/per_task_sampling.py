"""How each kind of prompt is sampled: as the group `grpo` says, with the task's overrides for that kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Protocol, runtime_checkable

from annotated_types import Ge, Gt

from rookexp.config import check, hints
from rookexp.draw import Sampling
from rookexp.errors import ConfigError

# Types of the keys; temperature is above 0 and top_k above 1, as greedy rollouts of a prompt would all be the same.
ALLOWED: dict[str, Any] = hints.type_hints(Sampling) | {
    "temperature": Annotated[float, Gt(0)],
    "top_k": Annotated[int, Ge(2)] | None,
}


@runtime_checkable
class Sampled(Protocol):
    """A task with overrides of sampling for some kinds of its prompts."""

    @property
    def kinds(self) -> Sequence[str]:
        """The values that `Prompt.task` may have."""

    @property
    def sampling(self) -> Mapping[str, Mapping[str, float | None]]:
        """The overridden keys of `Sampling` with their values, by kind."""


def shared_sampling(grpo: Mapping[str, Any]) -> Sampling:
    """The sampling of all prompts whose kind has no overrides."""
    return Sampling(**{field.name: grpo[field.name] for field in fields(Sampling)})


def own_sampling(task: Any, shared: Sampling) -> dict[str, Sampling]:
    """The sampling of each kind of prompt that, by the task's overrides, is sampled differently from `shared`.

    Raises: ConfigError for a kind of prompt that the task never has, for a key or value that `Sampling` does not take,
    and for overrides in a task inside a mix, of which only those of the mix count.
    """
    for name, inner in getattr(task, "tasks", {}).items():
        if kinds := own_sampling(inner, shared):
            kind = min(kinds)
            raise ConfigError(f"task.tasks.{name}.sampling.{kind}: not read inside a mix; set task.sampling.{kind}")
    overrides: Mapping[str, Mapping[str, Any]] = task.sampling if isinstance(task, Sampled) else {}
    for kind in overrides:
        if kind not in task.kinds:
            why = f"no such prompts in this task; allowed in task.sampling: {', '.join(task.kinds)}"
            raise ConfigError(f"task.sampling.{kind}: {why}{check.nearest(kind, task.kinds, 'task.sampling.')}")
    found = {kind: changed(shared, f"task.sampling.{kind}", changes) for kind, changes in overrides.items()}
    return {kind: sampling for kind, sampling in found.items() if sampling != shared}


def changed(shared: Sampling, key: str, changes: Mapping[str, Any]) -> Sampling:
    """`shared` with some values changed.

    Raises: ConfigError naming the key below `key`, the value and what is allowed.
    """
    values = asdict(shared) | dict(changes)
    check.check_call(Sampling, values, key, runtime=False, given=(), also=ALLOWED)
    return Sampling(**values)


def own_lengths(own: Mapping[str, Sampling], shared: Sampling) -> dict[str, int]:
    """`max_new_tokens` of each kind of prompt where it differs from `shared`; it also holds in their evaluation."""
    lengths = {kind: sampling.max_new_tokens for kind, sampling in own.items()}
    return {kind: length for kind, length in lengths.items() if length != shared.max_new_tokens}


def limits(
    kind: str, shared: Sampling, own: Mapping[str, Sampling], evaluated: int, lengths: Mapping[str, int]
) -> dict[str, int]:
    """The config keys that limit a completion of `kind`, in rollouts and in evaluation, and the tokens they allow."""
    key = f"task.sampling.{kind}"
    found = {key: own[kind].max_new_tokens} if kind in own else {"grpo": shared.max_new_tokens}
    found |= {key: lengths[kind]} if kind in lengths else {"eval": evaluated}
    return {f"{key}.max_new_tokens": tokens for key, tokens in found.items()}
