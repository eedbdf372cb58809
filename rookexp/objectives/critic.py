"""The critic of PPO: a number a token on top of the policy's hidden states."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ValueHead(nn.Module):
    """What the rest of the completion will be paid, as one linear map of the final hidden state; 0 everywhere at first.

    It computes in fp32, outside autocast: a bf16 value would part the targets from what is compared with them.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The value before each token, in the rewards' unit."""
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.linear(hidden.to(self.linear.weight.dtype))[:, 0]
        return values
