"""Exact divergences between policy and reference, and how the coefficient in front of them moves.

Here forward is KL(policy || reference) and reverse is KL(reference || policy); much of the literature swaps the words.
At temperature T both distributions are softmax(z / T): the regulariser is the divergence of what is sampled.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn


def forward(logp: Float[Tensor, "*n v"], logq: Float[Tensor, "*n v"]) -> Float[Tensor, "*n"]:
    """KL(policy || reference) = sum_v p (log p - log q) in nats, exact over the vocabulary; >= 0.

    `logp` is the policy's log-softmax, `logq` the reference's. A token with p = 0 adds 0, whatever q is.
    Its gradient at the logits is p (log p - log q - KL). Source: Kullback and Leibler 1951.
    """
    p = logp.exp()
    return _not_below_zero(torch.linalg.vecdot(p, torch.where(p > 0, logp - logq, 0.0)))


def reverse(logp: Float[Tensor, "*n v"], logq: Float[Tensor, "*n v"]) -> Float[Tensor, "*n"]:
    """KL(reference || policy) = sum_v q (log q - log p) in nats, exact over the vocabulary; >= 0.

    `logp` is the policy's log-softmax, `logq` the reference's. A token with q = 0 adds 0, whatever p is.
    Its gradient at the policy's logits is p - q. Source: Kullback and Leibler 1951.
    """
    return forward(logq, logp)


def symmetric(logp: Float[Tensor, "*n v"], logq: Float[Tensor, "*n v"]) -> Float[Tensor, "*n"]:
    """Half of KL(policy || reference) + KL(reference || policy) = sum_v (p - q)(log p - log q) / 2 in nats; >= 0.

    `logp` is the policy's log-softmax, `logq` the reference's. Source: Jeffreys 1946.
    """
    return (forward(logp, logq) + reverse(logp, logq)) / 2


def _not_below_zero(x: Tensor) -> Tensor:
    """`x` with rounding below zero taken out of the value; the gradient is that of `x`."""
    return x - x.detach().clamp(max=0)


class Coefficient(nn.Module):
    """The factor beta in front of the divergence; once a step it sees the divergence, unscaled, and may move.

    Its state is in buffers, so a checkpoint carries it. Keep it on the CPU: reading it then never waits for a device.
    """

    can_be_nonzero: bool  # False: the reference need not exist

    def coefficient(self) -> float:
        """beta of the coming step, >= 0."""
        raise NotImplementedError

    def observe(self, kl_nats: float) -> None:
        """Ends a step whose divergence, not multiplied by beta, was `kl_nats`.

        Raises: ValueError at a negative or NaN value: that is a signed estimator such as k1, and a controller fed with
        it would drive beta to 0.
        """
        if not kl_nats >= 0:
            raise ValueError(
                f"kl_nats = {kl_nats}: a coefficient must see an estimator that is never negative, "
                "such as the exact divergence or k3"
            )


class NoKL(Coefficient):
    """beta = 0: no reference, no penalty. Source: Yu et al. 2025 (arXiv 2503.14476), section 2.3."""

    can_be_nonzero = False

    def coefficient(self) -> float:
        """0."""
        return 0.0


class FixedKL(Coefficient):
    """beta = `coef`. Source: Shao et al. 2024 (arXiv 2402.03300), eq. 3."""

    def __init__(self, *, coef: Annotated[float, Ge(0)]) -> None:
        super().__init__()
        self.coef = coef
        self.can_be_nonzero = coef > 0

    def coefficient(self) -> float:
        """`coef`."""
        return self.coef


class WarmupKL(Coefficient):
    """beta after s observed steps: coef min(1, s / warmup_steps) if linear; 0 while s < warmup_steps if switch."""

    steps: Tensor  # observed steps so far, ()

    def __init__(
        self,
        *,
        coef: Annotated[float, Ge(0)],
        warmup_steps: Annotated[int, Ge(0)],
        shape: Literal["switch", "linear"],
    ) -> None:
        super().__init__()
        self.coef = coef
        self.warmup_steps = warmup_steps
        self.shape = shape
        self.can_be_nonzero = coef > 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def coefficient(self) -> float:
        """beta of the coming step; the first is 0 unless warmup_steps is 0."""
        steps = int(self.steps)
        if steps >= self.warmup_steps:
            return self.coef
        return self.coef * steps / self.warmup_steps if self.shape == "linear" else 0.0

    def observe(self, kl_nats: float) -> None:
        """Counts a step."""
        super().observe(kl_nats)
        self.steps += 1
