"""Baselines: a completion's advantage relative to the other completions of its prompt, or to earlier steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float
from torch import Tensor

from rookexp import ops
from rookexp.errors import ConfigError
from rookexp.returns import Advantages, Baseline, TokenRewards
from rookexp.types import all_equal

# The dimension that a standard deviation is taken over (None: all), and its correction: 1 divides by n - 1, 0 by n.
STDS: dict[str, tuple[int | None, int]] = {"sample": (1, 1), "population": (1, 0), "batch": (None, 1)}
EMA_TASKS = 16  # most averages that an Ema can hold


class GroupMean(Baseline):
    """A = (r - mean) / (max(sd, std_floor) + std_eps) within a group; with std "none" A = r - mean, undivided.

    `sample` divides the squares by G - 1, `population` by G; `batch` is the sd of all P x G rewards of the step, the
    squares divided by P G - 1, while the mean is still the group's. Known conventions, as (std, std_eps, std_floor):
    TRL (sample, 1e-4, 0), verl (sample, 1e-6, 0), OpenRLHF (sample, 1e-9, 0), open-instruct (population, 1e-8, 0),
    Dr GRPO (none, -, -), Lite PPO (batch, 1e-4, 0). Source: Shao et al. 2024 (arXiv 2402.03300), section 4.1;
    Liu et al. 2025 (arXiv 2503.20783); batch: Liu et al. 2025 (arXiv 2508.08221).
    """

    def __init__(
        self,
        *,
        std: Literal["none", "sample", "population", "batch"],
        std_eps: Annotated[float, Ge(0)],
        std_floor: Annotated[float, Ge(0)],
    ) -> None:
        super().__init__()
        self.std = std
        self.std_eps = std_eps
        self.std_floor = std_floor

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        """Advantages in the rewards' unit, or in standard deviations; exactly 0 in a group of equal rewards.

        Raises: ConfigError when G is 1.
        """
        return self._divided(_centred(rewards, rewards.mean(1, keepdim=True))[..., None], rewards)[..., 0]

    def _divided(self, compared: Float[Tensor, "p g k"], rewards: Float[Tensor, "p g"]) -> Float[Tensor, "p g k"]:
        """`compared` divided by the sd of `rewards` that `std` names, 0 where that is 0; undivided for std "none"."""
        if self.std == "none":
            return compared
        over, less = STDS[self.std]
        divisor = rewards.std(over, correction=less, keepdim=True).clamp(min=self.std_floor) + self.std_eps
        return torch.where(divisor[..., None] == 0, 0.0, compared / divisor[..., None])


class Process(GroupMean):
    """Process supervision: a token's advantage is the sum over the stages it is credited with, each against its group.

    The advantage of stage k is r_k - mean r_k, the mean being over the group's rows that have the stage, divided as
    `GroupMean` divides the whole reward. So if all rows have all stages, a row's stage advantages add up to its outcome
    advantage; a single stage has just that one. Rows with equal whole rewards may differ in their stages; the divisor
    then is `std_floor`. With `credit` "own" a token is credited with its own stage, with "to_go" with its own and all
    later ones. "own" is biased, as a list that leads to a bad choice is not blamed for it, but has less noise, as the
    choice says nothing about the list before it.
    Source: Shao et al. 2024 (arXiv 2402.03300), section 4.1.3, which is `to_go` with one mean and sd over all stages.
    """

    whole_rows = False
    by_stage = True

    def __init__(
        self,
        *,
        std: Literal["none", "sample", "population", "batch"],
        std_eps: Annotated[float, Ge(0)],
        std_floor: Annotated[float, Gt(0)],
        credit: Literal["own", "to_go"],
    ) -> None:
        super().__init__(std=std, std_eps=std_eps, std_floor=std_floor)
        self.credit = credit

    @torch.no_grad()
    def advantages(self, given: TokenRewards) -> Advantages:
        """Advantages token by token, in the unit of `GroupMean`'s; a stage with equal rewards adds exactly 0.

        Raises: ConfigError when G is 1.
        """
        _refuse_one(given.group_size)
        stage = torch.zeros_like(given.mask, dtype=torch.long) if given.stage is None else given.stage
        shape = len(given.tasks), given.group_size, int(stage.max()) + 1

        def by_stage(x: Float[Tensor, "n t"]) -> Float[Tensor, "p g k"]:
            return x.new_zeros(len(x), shape[2]).scatter_add_(1, stage, x).view(shape)

        earned, there = by_stage(given.rewards), by_stage(given.mask.to(given.rewards)) > 0
        highest = earned.masked_fill(~there, -torch.inf).amax(1, keepdim=True)  # (P, 1, K)
        equal = highest == earned.masked_fill(~there, torch.inf).amin(1, keepdim=True)
        mean = (earned * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
        compared = torch.where(there & ~equal, earned - mean, 0.0)
        found = self._divided(compared, earned.sum(2))
        if self.credit == "to_go":
            found = found.flip(2).cumsum(2).flip(2)
        return Advantages(torch.where(given.mask, found.flatten(0, 1).gather(1, stage), 0.0), None)


class Rloo(Baseline):
    """A = r - mean of the others = G / (G - 1) (r - mean). Source: Ahmadian et al. 2024 (arXiv 2402.14740)."""

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        """Advantages in the rewards' unit; exactly 0 in a group of equal rewards.

        Raises: ConfigError when G is 1.
        """
        group_size = rewards.shape[1]
        return _centred(rewards, rewards.mean(1, keepdim=True)) * (group_size / (group_size - 1))


class LeaveOneOut(Baseline):
    """A = (r - mean of the others) / (sd of the others + std_eps); undivided where the others are all equal.

    The sd divides the squares by G - 2, the number of others minus 1; equality allows for a millionth of the largest.
    Source: NeMo-RL's GRPO, with std_eps 1e-6.
    """

    def __init__(self, *, std_eps: Annotated[float, Ge(0)]) -> None:
        super().__init__()
        self.std_eps = std_eps

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        """Advantages in standard deviations of the others; exactly 0 in a group of equal rewards.

        Raises: ConfigError when G is 1.
        """
        g = rewards.shape[1]
        columns = torch.arange(g, device=rewards.device).expand(g, g)
        others = rewards[:, columns[columns != columns.T].view(g, g - 1)]  # (P, G, G - 1)
        compared = _centred(rewards, others.mean(2))
        sd = others.std(2, correction=min(g - 2, 1))  # G = 2: the sd of a single other is 0
        return torch.where(all_equal(others, 2), compared, compared / (sd + self.std_eps))


class Adaptive(Baseline):
    """A = r - median of a group whose sd is above `threshold`, r - mean of any other; not divided.

    The sd divides the squares by G - 1; the median of an even group is the mean of the middle two. The median keeps
    one outlier from making all others look bad: if most rewards are equal, their advantage is 0 and a better one stands
    unopposed. Source: none in the literature; the RookWorld RLVR project's baseline of that name, with threshold 0.1.
    """

    def __init__(self, *, threshold: Annotated[float, Ge(0)]) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        """Advantages in the rewards' unit; exactly 0 in a group of equal rewards.

        Raises: ConfigError when G is 1.
        """
        from_mean = _centred(rewards, rewards.mean(1, keepdim=True))
        from_median = _centred(rewards, rewards.quantile(0.5, 1, keepdim=True))
        return torch.where(rewards.std(1, keepdim=True) > self.threshold, from_median, from_mean)


class MaxRL(Baseline):
    """A = (r - mean) / mean within a group; 0 in a group whose mean is not above `min_mean`.

    With rewards 0 and 1 the mean is the success rate p, and 1 / p turns the gradient of p into that of log p; a group
    without a success teaches nothing. This interpretation, and the bound A <= G - 1, require rewards >= 0. A mean below
    0 would flip the sign of every advantage and one just above 0 would blow it up, hence `min_mean`.
    Source: Tajwar et al. 2026 (arXiv 2602.02710).
    """

    def __init__(self, *, min_mean: Annotated[float, Ge(0)]) -> None:
        super().__init__()
        self.min_mean = min_mean

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        """Advantages in units of the group's mean reward, >= -1 for rewards >= 0; exactly 0 if all rewards are equal.

        Raises: ConfigError when G is 1.
        """
        mean = rewards.mean(1, keepdim=True)
        return torch.where(mean <= self.min_mean, 0.0, _centred(rewards, mean) / mean)


class Ema(Baseline):
    """A = r - b, then b <- b + alpha (mean r of the step - b); b starts at 0.

    `per` "global" keeps one b over all rewards, "task" one for each task, which starts at the task's first step.
    b does not depend on the rewards that it is subtracted from, so it does not change the gradient's expectation.
    Source: Williams 1992, reinforcement comparison; one b a task: Liu et al. 2025 (arXiv 2506.24119).
    """

    needs_groups = False
    means: Tensor  # b of each task, (EMA_TASKS,)
    owners: Tensor  # ops.seed_of the task that a mean belongs to; 0: free, (EMA_TASKS,)

    def __init__(self, *, alpha: Annotated[float, Gt(0), Le(1)], per: Literal["global", "task"]) -> None:
        super().__init__()
        self.alpha = alpha
        self.per = per
        self.register_buffer("means", torch.zeros(EMA_TASKS, dtype=torch.float64))
        self.register_buffer("owners", torch.zeros(EMA_TASKS, dtype=torch.int64))

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        """Advantages in the rewards' unit; then updates the averages, so call it once a step.

        Raises: ConfigError for more than EMA_TASKS tasks.
        """
        places = torch.tensor([self._place(task) for task in tasks], device=rewards.device)  # (P,)
        advantages = rewards - self.means.to(rewards)[places, None]
        for place in places.unique().tolist():
            self.means[place] += self.alpha * (float(rewards[places == place].mean()) - self.means[place])
        return advantages

    def _place(self, task: str) -> int:
        """The index of the task's mean in `means`; a new task takes the next free one."""
        owner = ops.seed_of(task if self.per == "task" else "all tasks")
        owners: list[int] = self.owners.tolist()
        if owner not in owners:
            if 0 not in owners:
                raise ConfigError(f"baseline.per=task: {task!r} is one task more than {EMA_TASKS}; allowed: global")
            self.owners[owners.index(0)] = owner
        return self.owners.tolist().index(owner)


class NoBaseline(Baseline):
    """A = r. Source: Williams 1992, REINFORCE without reinforcement baseline."""

    needs_groups = False

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        return rewards.clone()


def _centred(rewards: Tensor, baseline: Tensor) -> Tensor:
    """r - baseline, (P, G); exactly 0 in a group of equal rewards, where rounding would leave a residue."""
    _refuse_one(rewards.shape[1])
    return torch.where(all_equal(rewards, 1)[:, None], 0.0, rewards - baseline)


def _refuse_one(group_size: int) -> None:
    """Raises: ConfigError for a group of one."""
    if group_size < 2:
        raise ConfigError(
            "group_size = 1: a lone completion has no others to be compared with, its advantage would always be 0; "
            "set group_size to 2 or more, or choose a baseline that does not come from the group: ema, gae, "
            "reinforce_pp or none"
        )
