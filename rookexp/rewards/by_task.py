"""One reward for each task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rookexp.errors import ConfigError, PartError
from rookexp.rewards.combine import MadeOf
from rookexp.rewards.rows import completions_each
from rookexp.types import Prompt, Reward, Scores, scores_of, stages_of


class ByTask(MadeOf):
    """Scores each completion with the reward of its prompt's task: `rewards.P` for P prompts, and so on."""

    def __init__(self, *, rewards: Mapping[str, Reward]) -> None:
        if not rewards:
            raise PartError("rewards={}: allowed: a reward for each task, such as rewards.P")
        super().__init__(rewards)

    def asked(self, name: str, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts of the task `name`."""
        return [prompt for prompt in prompts if prompt.task == name]

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Rewards (N,) of N = P x G completions, row p*G+g for prompt p; each reward sees only the rows of its task.

        Parts (N,): those of the rewards, under their own names, NaN for the rows of a task that has no such part. A
        task without prompts adds none. Stages: those of the rewards that have any.
        Raises: ConfigError for a prompt of a task without a reward.
        """
        size = completions_each(prompts, texts)
        for prompt in prompts:
            if prompt.task not in self.rewards:
                raise ConfigError(
                    f"reward.rewards.{prompt.task}: missing; allowed: a reward for each task that is asked, "
                    f"here only for {', '.join(self.rewards)}"
                )
        columns: dict[str, Tensor] = {}
        found: list[tuple[list[int], Scores]] = []
        for task, reward in self.rewards.items():
            asked = [p for p, prompt in enumerate(prompts) if prompt.task == task]
            if not asked:
                continue
            rows = [p * size + g for p in asked for g in range(size)]
            scores = scores_of(reward, [prompts[p] for p in asked], [texts[row] for row in rows])
            found.append((rows, scores))
            for name, values in [("", scores.rewards), *scores.parts.items()]:
                whole = columns.setdefault(name, torch.full((len(texts),), math.nan, dtype=values.dtype))
                whole[rows] = values
        rewards = columns.pop("")
        before = None
        if any(scores.unnormalised is not None for _, scores in found):
            before = rewards.clone()
            for rows, scores in found:
                before[rows] = scores.comparable
        return Scores(rewards, columns, stages_of(found, texts), before)
