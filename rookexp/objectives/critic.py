"""The critic of PPO: one value per token, computed from the policy's hidden states."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rookexp.objectives.completion_positions import completions_of
from rookexp.types import Experience, Policy


class ValueHead(nn.Module):
    """Predicts the reward of the rest of the completion: a linear map of the final hidden state, initially 0.

    It computes in fp32, outside autocast: bf16 rounding would separate the targets from the values compared with them.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The value predicted by each hidden state, in the unit of the rewards."""
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.linear(hidden.to(self.linear.weight.dtype))[:, 0]
        return values

    def at_end(self, rows: Experience, mask: Bool[Tensor, "n t"], policy: Policy) -> Float[Tensor, " n"]:
        """The value after each row's last completion token."""
        wider = {f.name: F.pad(x, (0, 1)) for f in fields(rows) if (x := getattr(rows, f.name)).dim() == 2}
        after = F.pad(mask, (1, 0)) & ~F.pad(mask, (0, 1))  # (N, T + 1) the column after each row's last token
        padded = replace(rows, **wider | {"weights": after.float()})
        values: Tensor = self(completions_of(padded, padded.predicting()).hidden(policy))
        return values
