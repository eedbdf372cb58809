"""When the reference follows the policy, or the policy moves back towards the reference.

With a reference that follows, the divergence is from a recent policy instead of the initial one (TR-DPO, Gorbatovski
et al. 2024, arXiv 2404.09656).
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn


class Sync:
    """Called once after each step: moves the reference, the policy or neither. Stateless: only the step matters."""

    moves: bool  # False: the reference stays the initial policy, and a checkpoint need not carry it
    needed = False  # True: it cannot work without a reference

    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> None:
        """Moves one model in place, or neither, after `step` >= 1 steps, and only reads the other.

        Both models have the same architecture, with parameters and buffers in the same order.
        """
        raise NotImplementedError


class Never(Sync):
    """The reference stays the initial policy."""

    moves = False

    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> None:
        """Moves nothing."""


class _Every(Sync):
    """Moves every parameter of the reference after every `every` steps, and copies buffers then."""

    moves = True

    def __init__(self, *, every: Annotated[int, Ge(1)]) -> None:
        self.every = every

    @torch.no_grad()
    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> None:
        """Moves the reference if `every` divides `step`."""
        if step % self.every:
            return
        for parameter, new in zip(reference.parameters(), policy.parameters(), strict=True):
            self._move(parameter, new)
        for buffer, value in zip(reference.buffers(), policy.buffers(), strict=True):
            buffer.copy_(value)

    def _move(self, own: Tensor, new: Tensor) -> None:
        """Moves a parameter `own` of the reference in place towards the policy's, `new`."""
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

    What a short training has learned well survives going only part of the way, and much of the damage that it has done
    besides does not. A run that continues with more steps continues from the interpolated weights.
    Source: WARP, Rame et al. 2024 (arXiv 2406.16768), its linear interpolation towards initialization.
    """

    moves = False
    needed = True

    def __init__(self, *, share: Annotated[float, Gt(0), Lt(1)], at: Annotated[int, Ge(1)]) -> None:
        self.share = share
        self.at = at

    @torch.no_grad()
    def update(self, step: int, reference: nn.Module, policy: nn.Module) -> None:
        """Moves the policy if `step` is `at`."""
        if step != self.at:
            return
        for parameter, start in zip(policy.parameters(), reference.parameters(), strict=True):
            parameter.lerp_(start, 1 - self.share)
