"""Policy losses of each token, what clipping did to them, and the weights that add them up.

A loss is `ops.weighted_sum(per_token, weights)`. The functions here are elementwise and know no mask: give them
completion tokens only, or pass log-probs through `ops.zero_outside` first, so that padding cannot poison a gradient.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clipped(
    logprobs: Float[Tensor, "*n"],
    old: Float[Tensor, "*n"],
    advantages: Float[Tensor, "*n"],
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "*n"]:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) at each token, to be minimised.

    ratio = exp(logprobs - old), both at the sampling temperature. Where ratio is 1 the gradient is -A grad logprobs.
    Source: Schulman et al. 2017 (arXiv 1707.06347), eq. 7; clip_high above clip_low: Yu et al. 2025 (arXiv 2503.14476).
    """
    ratio = (logprobs - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def clip_fractions(
    logprobs: Float[Tensor, "*n"],
    old: Float[Tensor, "*n"],
    advantages: Float[Tensor, "*n"],
    clip_low: float,
    clip_high: float,
) -> dict[str, Float[Tensor, "*n"]]:
    """Detached 0 or 1 at each token; the mean over completion tokens is the metric of that name.

    clip_frac/any: the ratio left [1 - clip_low, 1 + clip_high], whatever the advantage's sign.
    clip_frac/low: ratio below and A < 0; clip_frac/high: ratio above and A > 0; clip_frac/region: low or high, the
    tokens that get no gradient.
    """
    ratio = (logprobs.detach() - old).exp()
    below, above = ratio < 1 - clip_low, ratio > 1 + clip_high
    low, high = below & (advantages < 0), above & (advantages > 0)
    flags = {"any": below | above, "low": low, "high": high, "region": low | high}
    return {f"clip_frac/{name}": flag.to(ratio.dtype) for name, flag in flags.items()}


def approx_kl_k1(logprobs: Float[Tensor, "*n"], old: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Detached k1 estimate of KL(old || policy) at each token in nats: old - logprobs; signed.

    Source: Schulman 2020, "Approximating KL divergence".
    """
    return old - logprobs.detach()


def approx_kl_k3(logprobs: Float[Tensor, "*n"], old: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Detached k3 estimate of KL(old || policy) at each token in nats: ratio - 1 - log ratio; >= 0.

    Source: Schulman 2020, "Approximating KL divergence".
    """
    log_ratio = logprobs.detach() - old
    return log_ratio.expm1() - log_ratio


def token_mean(mask: Bool[Tensor, "n t"], *, max_new_tokens: int) -> Float[Tensor, "n t"]:
    """1 / (completion tokens in the batch) at completion tokens: every token counts the same; sums to 1.

    Call it on the whole optimizer batch; `max_new_tokens` does not enter. Source: DAPO, Yu et al. 2025
    (arXiv 2503.14476), eq. 8.
    """
    return mask / mask.sum().clamp(min=1)


def sequence_mean(mask: Bool[Tensor, "n t"], *, max_new_tokens: int) -> Float[Tensor, "n t"]:
    """1 / (N n_i) at the n_i completion tokens of row i: every row counts the same; sums to 1.

    Call it on the whole optimizer batch; `max_new_tokens` does not enter. A row without completion tokens adds 0 but
    is counted in N. Source: GRPO, Shao et al. 2024 (arXiv 2402.03300), eq. 3.
    """
    return mask / mask.sum(1, keepdim=True).clamp(min=1) / len(mask)


def constant_length(mask: Bool[Tensor, "n t"], *, max_new_tokens: int) -> Float[Tensor, "n t"]:
    """1 / (N max_new_tokens) at completion tokens: a length that no completion chooses; sums to at most 1.

    Call it on the whole optimizer batch; a row without completion tokens is counted in N. Source: Dr GRPO,
    Liu et al. 2025 (arXiv 2503.20783), section 3.
    """
    return mask / (len(mask) * max_new_tokens)
