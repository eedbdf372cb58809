"""Learning-rate factors: optimizer step s (0, 1, ...) runs at the base rate times `factor(s)`.

Every schedule warms up linearly, (s + 1) / warmup_steps for s < warmup_steps, so that no step has rate 0. The decay
runs over the other steps: its progress is (s - warmup_steps) / (total_steps - warmup_steps), 0 at the first of them
and 1 at total_steps, where the factor is `floor_ratio` and stays there.
"""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Ge, Gt, Le


class Constant:
    """1 after the warm-up."""

    def __init__(self, *, warmup_steps: Annotated[int, Ge(0)]) -> None:
        self.warmup_steps = warmup_steps

    def factor(self, step: int) -> float:
        """The factor of optimizer step `step`, in (0, 1]."""
        return (step + 1) / self.warmup_steps if step < self.warmup_steps else 1.0


class _Decay:
    """From 1 after the warm-up to `floor_ratio` at `total_steps`."""

    def __init__(
        self,
        *,
        total_steps: Annotated[int, Gt(0)],
        warmup_steps: Annotated[int, Ge(0)],
        floor_ratio: Annotated[float, Ge(0), Le(1)],
    ) -> None:
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.floor_ratio = floor_ratio

    def factor(self, step: int) -> float:
        """The factor of optimizer step `step`, in [0, 1]."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step >= self.total_steps:
            return self.floor_ratio
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.floor_ratio + (1 - self.floor_ratio) * self._remaining(progress)

    def _remaining(self, progress: float) -> float:
        """1 at progress 0, 0 at progress 1."""
        raise NotImplementedError


class Linear(_Decay):
    """floor_ratio + (1 - floor_ratio) (1 - progress) after the warm-up."""

    def _remaining(self, progress: float) -> float:
        return 1 - progress


class Cosine(_Decay):
    """floor_ratio + (1 - floor_ratio) (1 + cos(pi progress)) / 2 after the warm-up.

    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), eq. 5, without restarts.
    """

    def _remaining(self, progress: float) -> float:
        return (1 + math.cos(math.pi * progress)) / 2
