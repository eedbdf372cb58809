"""When the reference follows the policy, or the policy goes back to the reference.

The divergence is from where the policy was lately, instead of at the start, where the reference follows it (TR-DPO,
Gorbatovski et al. 2024, arXiv 2404.09656).
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn


class Sync:
    """Called once after each step: moves one of the two or leaves both. It has no state, the step says it all."""

    moves: bool  # False: the reference stays the policy of the start, and a checkpoint need not carry it
    needed = False  # whether it cannot do its work without a reference

    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> bool:
        """Whether one was moved, in place, after `step` steps, counted from 1; the other one is only read.

        Both are models of one kind, with their parameters and buffers in the same order.
        """
        raise NotImplementedError


class Never(Sync):
    """The reference stays the policy of the start."""

    moves = False

    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> bool:
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


class Interpolate(Sync):
    """policy <- reference + share (policy - reference) after step `at`, in the weights; the reference never moves.

    What a short training has learned well outlasts a shorter way to it, and much of what it has spoiled besides does
    not. A run that goes on from there, with more steps, goes on from the interpolated weights.
    Source: WARP, Rame et al. 2024 (arXiv 2406.16768), its linear interpolation towards initialization.
    """

    moves = False
    needed = True

    def __init__(self, *, share: Annotated[float, Gt(0), Lt(1)], at: Annotated[int, Ge(1)]) -> None:
        self.share = share
        self.at = at

    @torch.no_grad()
    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> bool:
        """Whether `step` is `at`."""
        if step != self.at:
            return False
        for parameter, start in zip(policy.parameters(), reference.parameters(), strict=True):
            parameter.lerp_(start, 1 - self.share)
        return True
