"""Handling of completions that are too long: a penalty before the limit, a mask without those truncated."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor


def overlong_penalty(lengths: Int[Tensor, " n"], *, max_new_tokens: int, buffer: int) -> Float[Tensor, " n"]:
    """What each completion's length adds to its reward: clamp((max_new_tokens - buffer - length) / buffer, -1, 0).

    0 up to max_new_tokens - buffer, then a straight line down to -1 at max_new_tokens. A length counts all tokens of
    the completion with its end-of-text, as `Rollouts.mask.sum(1)` does: one that ends with the last token allowed and
    one that was cut there have the same length, and both get -1.
    Source: DAPO, Yu et al. 2025 (arXiv 2503.14476), eq. 13.
    """
    return ((max_new_tokens - buffer - lengths) / buffer).clamp(-1, 0)


def masked_truncated(mask: Bool[Tensor, "n t"], truncated: Bool[Tensor, " n"]) -> Bool[Tensor, "n t"]:
    """`mask` without the tokens of truncated rows; the rows themselves stay.

    The aggregations of this mask keep their own denominators: token_mean divides by the remaining tokens, while
    sequence_mean, sequence_sum and constant_length still count every row in N, so that a truncated row adds 0 and makes
    the others no heavier. With all rows truncated every weight is 0, and so are loss and gradient.
    Source: DAPO, Yu et al. 2025 (arXiv 2503.14476), section 3.4, overlong filtering.
    """
    return mask & ~truncated[:, None]
