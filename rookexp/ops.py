"""Tensor operations that a formula needs and PyTorch lacks; pure, no configuration."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rookexp.compiling import fusible, kernels_for

# A divergence, as the weights of KL(policy || reference) and of KL(reference || policy) in it.
Divergence = tuple[float, float]
# Logits, as float32, that a CPU works on at a time: a dozen passes go over them, which then find them in its cache,
# and freed memory is reused. With GPT-2's vocabulary an update takes 0.97 of the time of whole chunks; if
# `hardware.keep_freed` is off, or unavailable, these statistics take 0.4.
CACHED_BYTES = 2 << 20
ALIGNED = 64  # rows of a matrix in 16 bits that a GPU multiplies: with an odd number a product takes 6 times as long


@dataclass(frozen=True, slots=True)
class ReferenceStats:
    """How far the policy is from the reference at M tokens, at the same temperature, in nats."""

    kl: Float[Tensor, " m"]  # the requested divergence, exact over the vocabulary
    logprobs: Float[Tensor, " m"]  # the reference's log-prob of each target, without a gradient
    forward_kl: Float[Tensor, " m"]  # exact KL(policy || reference), without a gradient


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Statistics of the policy softmax(z / temperature) at M tokens."""

    logprobs: Float[Tensor, " m"]  # log-prob of each target, nats
    entropy: Float[Tensor, " m"]  # exact entropy over the vocabulary, nats, in [0, log V]
    ref: ReferenceStats | None  # None: no divergence was requested


def token_stats(
    hidden: Float[Tensor, "m d"],
    head_weight: Float[Tensor, "v d"],
    targets: Int[Tensor, " m"],
    temperature: Float[Tensor, " m"],
    *,
    chunk: int,
    divergence: Divergence | None = None,
    ref_hidden: Float[Tensor, "m e"] | None = None,
    ref_head_weight: Float[Tensor, "v e"] | None = None,
) -> TokenStats:
    """Log-probs, entropies and divergences of M tokens from hidden states, in chunks of `chunk` tokens.

    The policy is softmax(hidden @ head_weight.T / temperature), and so is the reference: one temperature (> 0) per
    token serves sampling, ratio, entropy and divergence. Logits of at most `chunk` tokens exist at a time: in forward,
    and recomputed in backward, except for the last chunk, which is kept for it; so up to `chunk` tokens go through the
    head only once. Products and their logits have the autocast dtype, everything after them at least float32, and the
    head's gradient is summed over chunks in at least float32. An output that the loss does not use costs no backward:
    detach `entropy` or `kl` if they are only metrics. The reference never gets a gradient; with `divergence` None it
    is not used.
    """
    count = len(hidden)
    if more := spare(count, hidden.device.type):
        hidden, targets = F.pad(hidden, (0, 0, 0, more)), F.pad(targets, (0, more))
        temperature = F.pad(temperature, (0, more), value=1.0)
        ref_hidden = None if ref_hidden is None else F.pad(ref_hidden, (0, 0, 0, more))
    found = _TokenStats.apply(hidden, head_weight, targets, temperature, divergence, ref_hidden, ref_head_weight, chunk)
    cut: list[Any] = [None if x is None else x[:count] for x in found]
    logprobs, entropy, *ref = cut
    return TokenStats(logprobs, entropy, None if divergence is None else ReferenceStats(*ref))


def zero_outside(x: Float[Tensor, "*n"], mask: Bool[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """`x` where `mask`, else 0, with no gradient there: padding may hold anything, NaN included."""
    return torch.where(mask, x, 0.0)


def predicted(x: Shaped[Tensor, "n t"], at: Int[Tensor, " m"]) -> Shaped[Tensor, " m"]:
    """The entries of `x` at the tokens that the positions `at` of the flattened (N, T - 1) predict."""
    return x[:, 1:].flatten()[at]


def weighted_sum(x: Float[Tensor, "*n"], weights: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """The sum of x * weights; where a weight is 0, `x` may hold anything, NaN included."""
    return torch.where(weights != 0, x * weights, 0.0).sum()


def aligned(x: Float[Tensor, "*n"], dtype: torch.dtype) -> Float[Tensor, "*m"]:
    """`x` in `dtype`; in 16 bits on a GPU, with zeros up to a multiple of ALIGNED along the first dimension."""
    rows = -len(x) % ALIGNED if dtype.itemsize == 2 and x.device.type != "cpu" else 0
    return torch.cat((x.to(dtype), x.new_zeros(rows, *x.shape[1:], dtype=dtype))) if rows else x.to(dtype)


def spare(count: int, device_type: str) -> int:
    """How many rows to add to `count`, so that products under the caller's autocast have few different shapes.

    On a CPU oneDNN compiles a product in 16 bits for each shape, which takes longer than many a product.
    """
    return rounded(count) - count if device_type == "cpu" and torch.is_autocast_enabled("cpu") else 0


def rounded(count: int) -> int:
    """`count` rounded up to one of 16 sizes between a power of 2 and the next."""
    step = 1 << max(0, count.bit_length() - 5)
    return -(-count // step) * step


def parts(count: int, size: int) -> list[slice]:
    """range(count) in as few slices of at most `size` >= 1 as possible, whose lengths differ by at most 1."""
    number = -(-count // size)
    return [slice(count * i // number, count * (i + 1) // number) for i in range(number)]


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends on the values and order of `parts` alone, in every process on every machine.

    Source: BLAKE2b, RFC 7693.
    """
    key = repr([part if isinstance(part, str) else operator.index(part) for part in parts])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


class _TokenStats(torch.autograd.Function):
    """`token_stats` with its own backward: checkpointing would sum the head's gradient in bf16 and keep more."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        hidden, head_weight, targets, temperature, divergence, ref_hidden, ref_head_weight, chunk = inputs
        ctx.set_materialize_grads(False)
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        ctx.product = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        ctx.divergence, ctx.chunk = divergence, chunk
        vocab = len(head_weight)
        weight = aligned(head_weight, ctx.product)
        ref_weight = None if divergence is None else aligned(ref_head_weight, ctx.product)
        dtype = torch.promote_types(ctx.product, torch.float32)
        stats = torch.empty(6, len(hidden), dtype=dtype, device=hidden.device)
        norms = stats.new_empty(2, 2, len(hidden), 1)  # of the policy and of the reference: see `_softmax`
        z = y = None
        with torch.autocast(device, enabled=False):  # autocast would also compute dot products in its own dtype
            for rows in parts(len(hidden), chunk):
                z = y = None  # freed before the next are allocated
                z = _logits(hidden[rows], weight)  # (C, V or a little more)
                y = None if ref_weight is None else _logits(ref_hidden[rows], ref_weight)
                kernels = kernels_for(z)
                read = _statistics if kernels is None else kernels.statistics
                for few, of in _cached(rows, z):
                    ref = None if y is None else y[of, :vocab]
                    found, norm = read(z[of, :vocab], ref, targets[few], temperature[few], divergence)
                    stats[: len(found), few], norms[: len(norm), :, few] = found, norm
        # Backward begins with the last chunk: keeping its logits saves computing them again, and the peak memory is
        # the same.
        ctx.last = z, y
        ctx.save_for_backward(hidden, head_weight, targets, temperature, ref_hidden, ref_head_weight, stats, norms)
        logprobs, entropy, kl, ref_logprobs, forward_kl, _ = stats
        ctx.mark_non_differentiable(ref_logprobs, forward_kl)
        compared = (None, None, None) if divergence is None else (kl, ref_logprobs, forward_kl)
        return logprobs, entropy, *compared

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head_weight, targets, temperature, ref_hidden, ref_head_weight, stats, norms = ctx.saved_tensors
        vocab = len(head_weight)
        weight = aligned(head_weight, ctx.product)
        ref_weight = None if grads[2] is None else aligned(ref_head_weight, ctx.product)
        weight_grad = torch.zeros_like(head_weight, dtype=stats.dtype) if ctx.needs_input_grad[1] else None
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        z, y = ctx.last
        ctx.last = None, None  # a second backward of the same graph computes them again
        for rows in reversed(parts(len(hidden), ctx.chunk)):
            z = _logits(hidden[rows], weight) if z is None else z  # overwritten by its gradient; 0 in columns past V
            if ref_weight is not None:
                y = _logits(ref_hidden[rows], ref_weight) if y is None else y
            kernels = kernels_for(z)
            overwrite = _to_gradient if kernels is None else kernels.to_gradient
            for few, of in _cached(rows, z):
                ref = None if ref_weight is None else y[of, :vocab]
                known = targets[few], temperature[few], stats[:, few, None], norms[:, :, few]
                given = tuple(None if grad is None else grad[few, None] for grad in grads[:3])
                overwrite(z[of, :vocab], ref, *known, given, ctx.divergence)
            if hidden_grad is not None:
                hidden_grad[rows] = z @ weight
            if weight_grad is not None and ctx.product == stats.dtype:
                weight_grad.addmm_(z[:, :vocab].T, hidden[rows].to(stats.dtype))
            elif weight_grad is not None:
                weight_grad += (z.T @ hidden[rows].to(ctx.product))[:vocab]
            z = y = None
        if weight_grad is not None:
            weight_grad = weight_grad.to(head_weight.dtype)
        return hidden_grad, weight_grad, None, None, None, None, None, None


@fusible
def _statistics(
    z: Float[Tensor, "c v"],
    y: Float[Tensor, "c v"] | None,
    targets: Int[Tensor, " c"],
    temperature: Float[Tensor, " c"],
    divergence: Divergence | None,
) -> tuple[Float[Tensor, "k c"], Float[Tensor, "r 2 c 1"]]:
    """The statistics of the logits `z`, and of their divergence from the logits `y`; see `_softmax` for the second."""
    x, p, norm = _softmax(z, temperature)
    log_total = norm[1, :, 0].log()
    logprobs = x.gather(1, targets[:, None])[:, 0] - log_total
    entropy = log_total - _dot(p, x)
    if y is None or divergence is None:
        return torch.stack([logprobs, entropy]), norm[None]
    ref_x, q, ref_norm = _softmax(y, temperature)
    ref_logprobs = ref_x.gather(1, targets[:, None])[:, 0] - ref_norm[1, :, 0].log()
    apart = x.sub_(ref_x)  # log p - log q, up to a shift
    shift = _shift(p, q, norm[1, :, 0], ref_norm[1, :, 0])
    forward_kl = (_dot(p, apart) - shift).clamp(min=0)
    kl = divergence[0] * forward_kl
    if divergence[1]:
        kl = kl - divergence[1] * (_dot(q, apart) - shift).clamp(max=0)
    return torch.stack([logprobs, entropy, kl, ref_logprobs, forward_kl, shift]), torch.stack([norm, ref_norm])


@fusible
def _to_gradient(
    z: Float[Tensor, "c v"],
    y: Float[Tensor, "c v"] | None,
    targets: Int[Tensor, " c"],
    temperature: Float[Tensor, " c"],
    stats: Float[Tensor, "6 c 1"],
    norms: Float[Tensor, "2 2 c 1"],
    grads: tuple[Tensor | None, ...],
    divergence: Divergence | None,
) -> None:
    """Overwrites the logits `z` by their gradient; `grads` are those of log-prob, entropy and divergence, (C, 1)."""
    _, entropy, _, _, forward_kl, shift = stats
    (top, total), (ref_top, ref_total) = norms
    logprobs_grad, entropy_grad, kl_grad = grads
    x = _tempered(z, temperature).sub_(top)
    p = x.exp().div_(total)
    pull = torch.zeros_like(x)  # the factor of p in the gradient
    if y is not None and kl_grad is not None and divergence is not None:
        ref_x = _tempered(y, temperature).sub_(ref_top)
        apart = (x - ref_x).sub_(shift + forward_kl)
        pull.addcmul_(apart, kl_grad, value=divergence[0])
    if entropy_grad is not None:
        pull.addcmul_(x.add_(entropy - total.log()), entropy_grad, value=-1)
    if logprobs_grad is not None:
        pull.sub_(logprobs_grad)
    grad = pull.mul_(p)
    if y is not None and kl_grad is not None and divergence is not None and divergence[1]:
        grad.addcmul_(p.sub_(ref_x.exp_().div_(ref_total)), kl_grad, value=divergence[1])
    if logprobs_grad is not None:
        grad = _added_at(grad, targets[:, None], logprobs_grad)
    z.copy_(grad.div_(temperature[:, None]))


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden @ weight.T in the weight's dtype, (C, V)."""
    return hidden.to(weight.dtype) @ weight.T


def _cached(rows: slice, logits: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of a few rows at a time: their places among all tokens, and in the `logits` of the chunk `rows`."""
    size = len(logits) if logits.device.type != "cpu" else max(1, CACHED_BYTES // (4 * logits.shape[1]))
    for part in parts(len(logits), size):
        yield slice(rows.start + part.start, rows.start + part.stop), part


def _tempered(logits: Tensor, temperature: Tensor) -> Tensor:
    """logits / temperature in at least float32, a new (C, V)."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True).div_(temperature[:, None])


def _softmax(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x = tempered logits minus their maximum, (C, V); the probabilities; that maximum and sum exp x, (2, C, 1)."""
    x = _tempered(logits, temperature)
    top = x.amax(1, keepdim=True)
    p = x.sub_(top).exp()
    total = p.sum(1, keepdim=True)
    return x, p.div_(total), torch.stack([top, total])


def _dot(a: Float[Tensor, "c v"], b: Float[Tensor, "c v"]) -> Float[Tensor, " c"]:
    """The dot product of each row."""
    return (a * b).sum(1) if torch.compiler.is_compiling() else torch.linalg.vecdot(a, b)  # which it would not fuse


def _added_at(x: Float[Tensor, "c v"], column: Int[Tensor, "c 1"], value: Float[Tensor, "c 1"]) -> Float[Tensor, "c v"]:
    """`x`, which is overwritten, plus a value in one column of each row."""
    if torch.compiler.is_compiling():  # the compiler would not fuse a scatter with the passes around it
        return x + torch.where(torch.arange(x.shape[1], device=x.device) == column, value, 0.0)
    return x.scatter_add_(1, column, value)


def _shift(p: Tensor, q: Tensor, total: Tensor, ref_total: Tensor) -> Tensor:
    """log (total of p / total of q), (C,), as precise as p - q, which a divergence of 1e-7 nats needs.

    The difference of two logs would have a rounding error of their size. The totals are rounded, too, so p and q sum
    only nearly to 1; the sum of p - q corrects for that.
    """
    return ((total - ref_total) / ref_total).log1p() + (p - q).sum(1)
