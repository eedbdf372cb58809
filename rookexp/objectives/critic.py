"""The critic of PPO: a number a token on top of the policy's hidden states."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rookexp import ops
from rookexp.objectives.completion_positions import completions_of
from rookexp.types import Experience, Policy


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

    def along(
        self, rows: Experience, mask: Bool[Tensor, "n t"], policy: Policy
    ) -> tuple[Float[Tensor, "n t"], Float[Tensor, " n"]]:
        """The value before each completion token, 0 elsewhere, and after each row's last one."""
        n, width = mask.shape
        longer = F.pad(mask, (1, 0))  # column t + 1 follows token t
        wanted = F.pad(mask, (0, 1)) | longer  # (N, T + 1) completion tokens and the place after each row's last one
        wider = {f.name: F.pad(x, (0, 1)) for f in fields(rows) if (x := getattr(rows, f.name)).dim() == 2}
        padded = replace(rows, **wider | {"weights": wanted.float()})
        at = padded.predicting()
        predicted = self(completions_of(padded, at).hidden(policy))
        values = predicted.new_zeros(n * width).index_copy(0, at, predicted).view(n, width)  # of columns 1 to T
        values = F.pad(values, (1, 0))  # (N, T + 1)
        final = values.gather(1, (longer * torch.arange(width + 1, device=mask.device)).amax(1, keepdim=True))[:, 0]
        return ops.zero_outside(values[:, :-1], mask), final
