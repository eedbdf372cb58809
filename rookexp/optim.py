"""The optimizer's settings and how it is made from them; the trainer alone calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import torch
from annotated_types import Ge, Gt, Len, Lt
from torch import nn


class Schedule(Protocol):
    """A learning rate's course."""

    def factor(self, step: int) -> float:
        """The factor of the base rate at optimizer step `step`, counted from 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay. Source: Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2."""

    lr: Annotated[float, Gt(0)]  # base learning rate; the schedule multiplies it
    betas: Annotated[Sequence[Annotated[float, Ge(0), Lt(1)]], Len(2, 2)]  # decay of the two moments
    eps: Annotated[float, Gt(0)]  # added to the root of the second moment
    weight_decay: Annotated[float, Ge(0)]  # of matrices and embeddings; biases and norms never decay
    grad_clip: Annotated[float, Gt(0)]  # largest gradient norm; longer gradients are scaled down to it
    schedule: Schedule  # the learning rate's course

    def optimizer(self, model: nn.Module, heads: Mapping[nn.Module, float]) -> torch.optim.Optimizer:
        """A new optimizer of the trainable parameters; fused where the device has such a kernel.

        `heads` are trained beside the model, each at its own base rate and without decay.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        groups += [{"params": list(head.parameters()), "weight_decay": 0.0, "lr": lr} for head, lr in heads.items()]
        fused = all(p.device.type in ("cuda", "cpu") for p in parameters)
        return torch.optim.AdamW(groups, lr=self.lr, betas=(self.betas[0], self.betas[1]), eps=self.eps, fused=fused)
