"""Advantages: what a completion was worth against the other completions of its prompt."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn

from rookexp.errors import ConfigError


class GroupMean(nn.Module):
    """A = (r - mean) / (max(sd, std_floor) + std_eps) within a group; with std "none" A = r - mean, nothing divided.

    `sample` divides the squares by G - 1, `population` by G. Known conventions, as (std, std_eps, std_floor):
    TRL (sample, 1e-4, 0), verl (sample, 1e-6, 0), OpenRLHF (sample, 1e-9, 0), open-instruct (population, 1e-8, 0),
    Dr GRPO (none, -, -). Source: Shao et al. 2024 (arXiv 2402.03300), section 4.1; Liu et al. 2025 (arXiv 2503.20783).
    """

    def __init__(
        self,
        *,
        std: Literal["none", "sample", "population"],
        std_eps: Annotated[float, Ge(0)],
        std_floor: Annotated[float, Ge(0)],
    ) -> None:
        super().__init__()
        self.std = std
        self.std_eps = std_eps
        self.std_floor = std_floor

    def forward(self, rewards: Float[Tensor, "p g"]) -> Float[Tensor, "p g"]:
        """Advantages in rewards' unit, or in standard deviations; exactly 0 in a group of equal rewards.

        Raises: ConfigError when G is 1.
        """
        centred = _centred(rewards)
        if self.std == "none":
            return centred
        sd = rewards.std(1, correction=1 if self.std == "sample" else 0, keepdim=True)  # (P, 1)
        scaled = centred / (sd.clamp(min=self.std_floor) + self.std_eps)
        return torch.where(centred == 0, 0.0, scaled)  # equal rewards without eps and floor: 0 / 0


class Rloo(nn.Module):
    """A = r - mean of the others' rewards = G / (G - 1) (r - mean). Source: Ahmadian et al. 2024 (arXiv 2402.14740)."""

    def forward(self, rewards: Float[Tensor, "p g"]) -> Float[Tensor, "p g"]:
        """Advantages in rewards' unit; exactly 0 in a group of equal rewards.

        Raises: ConfigError when G is 1.
        """
        centred = _centred(rewards)
        group_size = rewards.shape[1]
        return centred * (group_size / (group_size - 1))


def clip_advantages(advantages: Float[Tensor, "*n"], limit: float) -> Float[Tensor, "*n"]:
    """Advantages held within [-limit, limit]."""
    return advantages.clamp(-limit, limit)


def _centred(rewards: Tensor) -> Tensor:
    """r - mean of the group, (P, G); exactly 0 in a group of equal rewards, where rounding would leave a trace."""
    if rewards.shape[1] < 2:
        raise ConfigError(
            "group_size = 1: a lone completion has no others to be compared with, its advantage would always be 0; "
            "set group_size to 2 or more, or choose a baseline that does not come from the group"
        )
    equal = rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)  # (P, 1)
    return torch.where(equal, 0.0, rewards - rewards.mean(1, keepdim=True))
