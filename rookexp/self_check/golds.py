"""Gold answers: completions that earn the most, from a reward or a task that knows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rookexp.errors import ConfigError
from rookexp.types import Prompt, Reward, described

SAME_REWARD = 1e-6  # rewards that differ by less are equal


@runtime_checkable
class Answers(Protocol):
    """A task, or a reward, that knows right answers."""

    def gold(self, prompt: Prompt) -> str | None:
        """A completion of the prompt that earns the highest possible reward; None where only another part knows one."""


def golds_of(prompts: Sequence[Prompt], reward: Reward, task: Any) -> tuple[tuple[Prompt, str], ...]:
    """Each prompt with the reward's gold answer, if it has one, else the task's; prompts with neither are left out.

    Raises: ConfigError for an answer that is no text, as user code may give.
    """
    knowing = [part for part in (reward, task) if isinstance(part, Answers)]

    def gold_of(prompt: Prompt) -> str | None:
        for part in knowing:
            gold: Any = part.gold(prompt)
            if isinstance(gold, str):
                return gold
            if gold is not None:
                raise ConfigError(f"{type(part).__name__}.gold gave {described(gold)}; wanted: a text, or None")
        return None

    answers = map(gold_of, prompts)
    return tuple((prompt, answer) for prompt, answer in zip(prompts, answers, strict=True) if answer is not None)


def dues(prompts: Sequence[Prompt], rewards: Sequence[float]) -> dict[str, float]:
    """What gold answers of each task should earn: the highest of their `rewards`, if those to two prompts earn it.

    A single highest sets no standard (minus infinity), because a reward may say that some prompts are worth more.
    """
    due = {}
    for task in {prompt.task for prompt in prompts}:
        by_text = {p.text: r for p, r in zip(prompts, rewards, strict=True) if p.task == task}
        highest, second = sorted([-math.inf, *by_text.values()])[:-3:-1]
        due[task] = highest if highest - second <= SAME_REWARD else -math.inf
    return due


def is_rewards_own(reward: Reward, prompt: Prompt) -> bool:
    """Whether the gold answer to a prompt is the reward's own, which is exempt from `dues`."""
    return isinstance(reward, Answers) and reward.gold(prompt) is not None
