"""When the reference follows the policy: the divergence is then from where the policy was lately, not at the start.

Source: TR-DPO, Gorbatovski et al. 2024 (arXiv 2404.09656).
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn


class Sync:
    """Called once after each step: moves the reference or leaves it. It has no state, the step says it all."""

    moves: bool  # False: the reference stays the policy of the start, and a checkpoint need not carry it

    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> bool:
        """Whether the reference was moved, in place, after `step` steps, counted from 1; the policy is only read.

        Both are models of one kind, with their parameters and buffers in the same order.
        """
        raise NotImplementedError


class Never(Sync):
    """The reference stays the policy of the start."""

    moves = False

    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> bool:
        """False."""
        return False


class _Every(Sync):
    """Moves every parameter after every `every` steps; buffers are copied then."""

    moves = True

    def __init__(self, *, every: Annotated[int, Ge(1)]) -> None:
        self.every = every

    @torch.no_grad()
    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> bool:
        """Whether `every` divides `step`."""
        if step % self.every:
            return False
        for parameter, new in zip(reference.parameters(), policy.parameters(), strict=True):
            self._move(parameter, new)
        for buffer, value in zip(reference.buffers(), policy.buffers(), strict=True):
            buffer.copy_(value)
        return True

    def _move(self, own: Tensor, new: Tensor) -> None:
        """Changes a parameter `own` of the reference by the policy's, `new`."""
        raise NotImplementedError


class HardSync(_Every):
    """reference <- policy after every `every` steps. Source: TR-DPO, its hard update."""

    def _move(self, own: Tensor, new: Tensor) -> None:
        own.copy_(new)


class EmaSync(_Every):
    """reference <- decay reference + (1 - decay) policy after every `every` steps.

    Source: TR-DPO, its soft update, whose alpha is 1 - decay.
    """

    def __init__(self, *, decay: Annotated[float, Gt(0), Lt(1)], every: Annotated[int, Ge(1)]) -> None:
        super().__init__(every=every)
        self.decay = decay

    def _move(self, own: Tensor, new: Tensor) -> None:
        own.lerp_(new, 1 - self.decay)
