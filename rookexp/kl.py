"""Divergences of the policy from the reference: exact over the vocabulary, or estimated from the sampled token.

Here forward is KL(policy || reference), reverse is KL(reference || policy); much of the literature swaps the words.
At temperature T both distributions are softmax(z / T): the regulariser is the divergence of what is sampled.

What an estimator measures is not what it optimises. "As a loss" below refers to its expected gradient at one visited
context, for tokens sampled without top_k or top_p from the policy that is updated. No loss on tokens, not even an
exact one, accounts for how the policy changes which contexts are visited; a term in the reward does.
Source: Schulman 2020, "Approximating KL divergence"; gradients: arXiv 2506.09477, 2510.01555, 2512.21852.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rookexp import ops

PerToken = Float[Tensor, " m"]  # a number at each of M completion tokens

# ---- exact ---------------------------------------------------------------------------------------------------------


def forward(logp: Float[Tensor, "*n v"], logq: Float[Tensor, "*n v"]) -> Float[Tensor, "*n"]:
    """KL(policy || reference) = sum_v p (log p - log q) in nats, exact over the vocabulary; >= 0.

    `logp` is the policy's log-softmax, `logq` the reference's. A token with p = 0 adds 0, whatever q is.
    As a loss it optimises itself, without sampling noise: at the logits its gradient is p (log p - log q - KL).
    Source: Kullback and Leibler 1951.
    """
    p = logp.exp()
    return _not_below_zero((p * torch.where(p > 0, logp - logq, 0.0)).sum(-1))


def reverse(logp: Float[Tensor, "*n v"], logq: Float[Tensor, "*n v"]) -> Float[Tensor, "*n"]:
    """KL(reference || policy) = sum_v q (log q - log p) in nats, exact over the vocabulary; >= 0.

    `logp` is the policy's log-softmax, `logq` the reference's. A token with q = 0 adds 0, whatever p is.
    As a loss it optimises itself, without sampling noise: at the policy's logits its gradient is p - q.
    Source: Kullback and Leibler 1951.
    """
    return forward(logq, logp)


def symmetric(logp: Float[Tensor, "*n v"], logq: Float[Tensor, "*n v"]) -> Float[Tensor, "*n"]:
    """Half of KL(policy || reference) + KL(reference || policy) = sum_v (p - q)(log p - log q) / 2 in nats; >= 0.

    `logp` is the policy's log-softmax, `logq` the reference's. As a loss it optimises itself. Source: Jeffreys 1946.
    """
    return (forward(logp, logq) + reverse(logp, logq)) / 2


# ---- sampled: x = logprobs - ref_logprobs, all log-probs at the sampling temperature -------------------------------


def k1(logprobs: PerToken, ref_logprobs: PerToken, old: PerToken) -> PerToken:
    """x in nats; signed; its mean over samples is KL(policy || reference).

    As a loss it optimises nothing: the expected gradient is 0 and only noise is left. In the reward, detached and
    times -beta, it is the one estimator that optimises KL(policy || reference); if a token is also credited with the
    rewards after it, the KL of whole completions. Source: Schulman 2020, "Approximating KL divergence".
    """
    return logprobs - ref_logprobs


def k2(logprobs: PerToken, ref_logprobs: PerToken, old: PerToken) -> PerToken:
    """x^2 / 2 in nats; >= 0; close to KL(policy || reference) if the two are close, biased otherwise.

    As a loss it optimises KL(policy || reference), although its value is biased. Source: as k1.
    """
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: PerToken, ref_logprobs: PerToken, old: PerToken) -> PerToken:
    """exp(-x) - 1 + x in nats; >= 0; its mean over samples is KL(policy || reference).

    As a loss it optimises the other direction, KL(reference || policy). In the reward its pull is
    grad KL(policy || reference) - grad KL(reference || policy), which vanishes to first order around the reference.
    Nothing is clamped: a token e^50 times likelier under the reference costs e^50, in value and in gradient. Float32
    overflows at x = -88.7: below, both are infinite, and the trainer refuses a step with an infinite gradient.
    Source: as k1; as GRPO's loss: Shao et al. 2024 (arXiv 2402.03300), eq. 4.
    """
    minus_x = ref_logprobs - logprobs
    return _not_below_zero(minus_x.expm1() - minus_x)


def absolute(logprobs: PerToken, ref_logprobs: PerToken, old: PerToken) -> PerToken:
    """|x| in nats; >= 0; its mean over samples is no divergence but an upper bound of KL(policy || reference).

    As a loss it optimises sum_v |p - q|, twice the total variation: a token pulls as hard near the reference as far
    from it, which leaves noise where the other losses come to rest.
    """
    return (logprobs - ref_logprobs).abs()


def ratio_k3(logprobs: PerToken, ref_logprobs: PerToken, old: PerToken) -> PerToken:
    """rho k3 with the ratio rho = exp(logprobs - old), which is differentiated too; in nats; >= 0.

    Over samples from `old`, the policy that sampled, its mean is KL(policy || reference), and as a loss it optimises
    exactly that, also after several updates of a batch. Where rho is 1 its gradient is k2's at every token; its
    numerical range is k3's. Source: DeepSeek-AI 2025 (arXiv 2512.02556), section 3.1.
    """
    return (logprobs - old).exp() * k3(logprobs, ref_logprobs, old)


def legacy_sampled(logprobs: PerToken, ref_logprobs: PerToken, old: PerToken) -> PerToken:
    """p x with p = exp(logprobs), signed: wrong, and here only for comparison with runs that were regularised this way.

    A token is already drawn with probability p, so p counts twice: the mean is sum_v p^2 (log p - log q), which is no
    divergence and negative for some policies. As a loss its pull is sum_v p^2 (x + 1) grad log p, which does not
    vanish where the policy is the reference: there it lowers sum_v p^2 / 2 and so flattens the policy.
    """
    return logprobs.exp() * (logprobs - ref_logprobs)


# ---- by name -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exact:
    """A divergence that needs both whole distributions."""

    formula: Callable[[Tensor, Tensor], Tensor]  # (log p, log q), each (..., V), to (...)
    shares: ops.Divergence  # the same, as the weights of forward and reverse KL in `ops.token_stats`


@dataclass(frozen=True, slots=True)
class Sampled:
    """A divergence that needs only the sampled token's log-probs."""

    formula: Callable[[Tensor, Tensor, Tensor], Tensor]  # (logprobs, ref_logprobs, old), each (M,), to (M,)


TYPES: Mapping[str, Exact | Sampled] = {
    "forward": Exact(forward, (1.0, 0.0)),
    "reverse": Exact(reverse, (0.0, 1.0)),
    "symmetric": Exact(symmetric, (0.5, 0.5)),
    "k1": Sampled(k1),
    "k2": Sampled(k2),
    "k3": Sampled(k3),
    "abs": Sampled(absolute),
    "ratio_k3": Sampled(ratio_k3),
    "legacy_sampled": Sampled(legacy_sampled),
}


def _not_below_zero(x: Tensor) -> Tensor:
    """`x` with rounding below zero taken out of the value; the gradient is that of `x`."""
    return x - x.detach().clamp(max=0)
