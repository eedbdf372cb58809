"""Aggregations: the weight of each completion token; a loss is `ops.weighted_sum(per_token, weights)`.

Call them on the mask of the whole optimizer batch, so that no weight depends on how the batch is split into
micro-batches. A row without completion tokens, such as a truncated one that is masked out, still counts in N, the
number of rows; to divide by the remaining rows only, pass the mask of those rows alone. There is no mean over each
micro-batch's own tokens: its value, and even its sign, would depend on the split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxtyping import Bool, Float
from torch import Tensor


def token_mean(mask: Bool[Tensor, "n t"], *, max_new_tokens: int) -> Float[Tensor, "n t"]:
    """1 / (completion tokens in the batch) at completion tokens: every token counts the same; sums to 1.

    `max_new_tokens` is unused. Source: DAPO, Yu et al. 2025 (arXiv 2503.14476), eq. 8.
    """
    return mask / mask.sum().clamp(min=1)


def sequence_mean(mask: Bool[Tensor, "n t"], *, max_new_tokens: int) -> Float[Tensor, "n t"]:
    """1 / (N n_i) at the n_i completion tokens of row i: every row counts the same; sums to 1.

    `max_new_tokens` is unused. A row without completion tokens adds 0 but is counted in N.
    Source: GRPO, Shao et al. 2024 (arXiv 2402.03300), eq. 3.
    """
    return mask / mask.sum(1, keepdim=True).clamp(min=1) / len(mask)


def constant_length(mask: Bool[Tensor, "n t"], *, max_new_tokens: int) -> Float[Tensor, "n t"]:
    """1 / (N max_new_tokens) at completion tokens: a divisor that no completion's length changes; sums to at most 1.

    A row without completion tokens is counted in N. Source: Dr GRPO, Liu et al. 2025 (arXiv 2503.20783), section 3.
    """
    return mask / (len(mask) * max_new_tokens)


def sequence_sum(mask: Bool[Tensor, "n t"], *, max_new_tokens: int) -> Float[Tensor, "n t"]:
    """1 / N at completion tokens: the mean over rows of each row's sum over tokens; sums to the mean length in tokens.

    `max_new_tokens` is unused. A row without completion tokens adds 0 but is counted in N.
    `Gspo` with these weights is LUSPO. Source: Liu et al. 2026 (arXiv 2602.05261).
    """
    return mask / len(mask)


BY_NAME: Mapping[str, Callable[..., Tensor]] = {
    f.__name__: f for f in (token_mean, sequence_mean, constant_length, sequence_sum)
}
