"""What a step's rollouts show before the update: metrics, and the rows of the completions table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from rookexp.types import Prompt, Rollouts, Scores, by_task


def rollout_metrics(rollouts: Rollouts, scores: Scores, dead: Bool[Tensor, " p"]) -> dict[str, float]:
    """A step's metrics before the update; each reward part is the mean over the completions to which it applies.

    reward/std is over all completions (divisor N - 1), 0 for a single one. frac_reward_zero_std is the share of dead
    groups, in which there is nothing to compare; frac_groups_all_best and frac_groups_all_worst are the shares of
    groups that are dead at the step's highest and lowest reward, 0 if these are equal. completions/identical_frac is
    the share of completions whose text occurs again in their group; completions/truncated_frac the share without an
    end-of-text. completions/tokens_per_forward is 1 without lookup. With several tasks, reward/mean_<task> is each
    task's mean reward. Rewards are those before any normalisation within groups, where the reward tells them.
    """
    rewards = scores.comparable.view(len(dead), -1)  # (P, G)
    highest, lowest = rewards.amax(), rewards.amin()
    varied = highest > lowest
    group_size = rollouts.group_size
    groups = [rollouts.texts[i : i + group_size] for i in range(0, len(rollouts.texts), group_size)]
    repeated = sum(group.count(text) > 1 for group in groups for text in group)
    values: dict[str, Tensor | float] = {
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(correction=min(1, rewards.numel() - 1)),
        "frac_reward_zero_std": dead.float().mean(),
        "frac_groups_all_best": (dead & (rewards[:, 0] == highest) & varied).float().mean(),
        "frac_groups_all_worst": (dead & (rewards[:, 0] == lowest) & varied).float().mean(),
        "completions/mean_length": rollouts.mask.sum(1).float().mean(),
        "completions/truncated_frac": rollouts.truncated.float().mean(),
        "completions/identical_frac": repeated / len(rollouts.texts),
        "completions/tokens_per_forward": rollouts.mask.sum() / rollouts.forwards.sum(),
    }
    values |= {f"reward/{name}": part.nanmean() for name, part in scores.parts.items()}
    values |= {f"reward/mean_{task}": rewards[places].mean() for task, places in by_task(rollouts.prompts).items()}
    return {name: float(value) for name, value in values.items()}


def kl_share_of_rewards(penalties: Float[Tensor, " n"], outcomes: Float[Tensor, " n"], group_size: int) -> float:
    """a / (a + b) for the spreads of the divergences in the reward (a) and of the outcome rewards (b); 0 if a is 0.

    `penalties`: beta times each completion's divergence. Spread: the mean |x - mean| within a group, or within the step
    for groups of one. Whatever the baseline divides by divides both.
    """
    size = group_size if group_size > 1 else len(outcomes)

    def spread(x: Float[Tensor, " n"]) -> float:
        groups = x.view(-1, size)
        return float((groups - groups.mean(1, keepdim=True)).abs().mean())

    a, b = spread(penalties), spread(outcomes)
    return a / (a + b) if a else 0.0


def completion_rows(rollouts: Rollouts, scores: Scores, advantages: Float[Tensor, " n"]) -> list[dict[str, Any]]:
    """One row per completion for the completions table; `advantages` are means over each completion's tokens."""
    flat, rewards, truncated = advantages.tolist(), scores.rewards.tolist(), rollouts.truncated.tolist()
    parts = {name: part.tolist() for name, part in scores.parts.items()}
    prompts: Sequence[Prompt] = rollouts.prompts
    before = None if scores.unnormalised is None else scores.unnormalised.tolist()
    return [
        {
            "prompt": prompts[i // rollouts.group_size].text,
            "completion": text,
            "reward": rewards[i],
            "advantage": flat[i],
            "truncated": truncated[i],
            **({} if before is None else {"unnormalised": before[i]}),
            **{name: part[i] for name, part in parts.items()},
        }
        for i, text in enumerate(rollouts.texts)
    ]
