"""Fixture T of the golden values: four completions of one prompt, padded to width 4, and any batch of that form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rookexp import ops
from rookexp.losses import PolicyLoss

MAX_NEW_TOKENS = 8
LENGTHS = [3, 2, 4, 1]
ADVANTAGES = [0.625, -0.375, 0.125, -0.375]
OLD = [[-0.5, -1, -1.5, 0], [-0.2, -0.4, 0, 0], [-2, -1, -0.5, -0.25], [-0.7, 0, 0, 0]]
LOG_RATIO = [[0.1, -0.2, 0.3, 0], [0.4, -0.5, 0, 0], [0.05, 0, -0.05, 0.25], [-0.3, 0, 0, 0]]


@dataclass(frozen=True)
class Batch:
    """N rows of width T, each (N, T)."""

    logprobs: Tensor
    old: Tensor
    advantages: Tensor
    mask: Tensor

    def rows(self, index: Tensor) -> Batch:
        """The rows at `index`."""
        return Batch(self.logprobs[index], self.old[index], self.advantages[index], self.mask[index])

    def flat(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a loss takes: log-probs, old ones, advantages and row numbers of the completion tokens, each (M,)."""
        row = torch.arange(len(self.mask))[:, None].expand_as(self.mask)
        return tuple(x[self.mask] for x in (self.logprobs, self.old, self.advantages, row))


def fixture_t() -> Batch:
    """The fixture in float64."""
    old, log_ratio, advantages = (torch.tensor(x, dtype=torch.float64) for x in (OLD, LOG_RATIO, ADVANTAGES))
    mask = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
    return Batch(old + log_ratio, old, advantages[:, None] * mask, mask)


def total(loss: PolicyLoss, batch: Batch, weights: Tensor) -> Tensor:
    """The batch's part of the loss."""
    return ops.weighted_sum(loss(*batch.flat()), weights[batch.mask])
