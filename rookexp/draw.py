"""From logits to tokens: temperature, top-k, top-p and the inverse of the cumulative distribution."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, Int
from torch import Tensor

from rookexp.compiling import fusible, kernels_for

LEAST = 2.0**-25  # for a uniform of 0, which stands for those between 0 and 2^-24


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn: logits are divided by the temperature, then cut by top-k, then by top-p."""

    temperature: Annotated[float, Ge(0)]  # 0 = greedy
    top_k: Annotated[int, Ge(1)] | None  # only the k most likely tokens; None = all
    top_p: Annotated[float, Gt(0), Le(1)] | None  # only the fewest tokens with this share of the mass; None = all
    max_new_tokens: Annotated[int, Ge(1)]  # longest completion in tokens, end-of-text included
    lookup: Annotated[int, Ge(0), Le(64)] = 0  # tokens guessed from the text so far, checked in one forward; 0 = none

    @property
    def unfiltered(self) -> bool:
        """Whether every token can be drawn."""
        return self.temperature > 0 and self.top_k is None and self.top_p in (None, 1)

    @property
    def blind(self) -> bool:
        """Whether drawing a token reads nothing back to the host; with top-p or lookup it does."""
        return self.top_p in (None, 1) and self.lookup == 0


def draw(
    logits: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"], sampling: Sampling
) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """A token per row and its log-prob in nats over the whole vocabulary; at temperature 0 the most likely token."""
    kernels = kernels_for(logits)
    if kernels is not None and sampling.unfiltered:
        return kernels.draw(logits, uniforms, sampling.temperature)
    logits = logits.float()
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    if sampling.temperature > 0:
        tokens = inverse_cdf(filtered(logits, sampling.top_k, sampling.top_p).softmax(-1), uniforms)[:, None]
    else:
        tokens = logits.max(-1, keepdim=True).indices  # twice as fast as argmax on a CPU
    return tokens[:, 0], logits.log_softmax(-1).gather(1, tokens)[:, 0]


def filtered(logits: Float[Tensor, "n v"], top_k: int | None, top_p: float | None) -> Float[Tensor, "n v"]:
    """`logits` with -inf outside the k most likely tokens, then outside the fewest of those with a share p of the mass.

    Tokens tied with the last one kept are kept too, so the result does not depend on the order of a sort.
    """
    vocab = logits.shape[-1]
    if top_k is not None and top_k < vocab:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p is None or top_p >= 1:
        return logits
    normaliser = logits.logsumexp(-1, keepdim=True)
    width = min(top_k or 64, vocab)
    while True:  # mostly a few tokens hold the share; a full sort of the vocabulary is the last resort
        values = logits.topk(width).values
        mass = (values - normaliser).exp().cumsum(-1)
        if width in (vocab, top_k) or bool((mass[:, -1] >= top_p).all()):
            break
        width = min(8 * width, vocab)
    last = (mass < top_p).sum(-1, keepdim=True).clamp(max=width - 1)
    return logits.masked_fill(logits < values.gather(1, last), -torch.inf)


def inverse_cdf(weights: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Each row's first token whose cumulative weight exceeds uniform x total; never a token of weight 0.

    Finds a block of about sqrt(V) tokens first, then the token inside it: a cumulative sum over all V is slower.
    """
    vocab = weights.shape[1]
    side = isqrt(vocab - 1) + 1
    full = vocab // side * side  # tokens of full blocks
    sums = weights[:, :full].unflatten(1, (-1, side)).sum(-1)
    if full < vocab:
        sums = torch.cat((sums, weights[:, full:].sum(-1, keepdim=True)), 1)
    block, inside = _exceeds(sums, uniforms)
    places = block[:, None] * side + torch.arange(side, device=block.device)
    rest = weights.gather(1, places.clamp(max=vocab - 1)).masked_fill_(places >= vocab, 0)
    token, _ = _exceeds(rest, inside)
    return block * side + token


@fusible
def _exceeds(weights: Float[Tensor, "n m"], uniforms: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """The entry at which the cumulative weight first exceeds uniform x total, and how far into it, 0..1; both (N,)."""
    # Float rounding: a share can round up to the total, and a parallel cumulative sum need not grow. With entries of
    # weight zero masked and the share held below the largest sum, some entry exceeds it, and that one has weight.
    cumulative = weights.cumsum(-1).masked_fill_(weights <= 0, 0)
    total = cumulative.amax(-1, keepdim=True)
    share = torch.minimum(uniforms[:, None] * total, total.nextafter(torch.zeros_like(total)))
    index = (cumulative > share).byte().argmax(-1, keepdim=True)
    weight = weights.gather(1, index)
    inside = 1 - (cumulative.gather(1, index) - share) / weight
    # By rounding many a uniform lies at the very start of its block, whose first token may be next to impossible.
    return index[:, 0], inside.clamp(LEAST, 1)[:, 0]
