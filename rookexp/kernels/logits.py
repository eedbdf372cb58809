"""Draws, statistics and gradients of logits as Triton kernels, a program a row: PyTorch's results, up to rounding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 2048  # read at a time
VECTOR = 16  # columns: where as many may be read as one, loads are wide
LOWEST = tl.constexpr(-1e38)  # below any logit; unlike -inf it can be subtracted from itself and multiplied by 0


def draw(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`draw.draw` of any token: from (N, V) and (N,) each row's token and its log-prob, both (N,)."""
    n, vocab = logits.shape
    tokens, logprobs = uniforms.new_empty(n, dtype=torch.long), uniforms.new_empty(n)
    given = logits, logits.stride(0), uniforms.contiguous(), tokens, logprobs, vocab, _reach(logits), temperature
    _draw[n,](*given, _block(vocab), num_warps=8)
    return tokens, logprobs


def statistics(
    z: Tensor, y: Tensor | None, targets: Tensor, temperature: Tensor, divergence: tuple[float, float] | None
) -> tuple[Tensor, Tensor]:
    """`ops._statistics`: reads the logits twice, and adds up both divergences from terms that are never negative."""
    rows, vocab = z.shape
    # x at the target, the sum of p x; of the reference x at the target; the divergences forward and reverse
    found = z.new_empty(2 if y is None else 5, rows, dtype=torch.float32)
    norms = found.new_empty(1 if y is None else 2, 2, rows, 1)
    other = z if y is None else y
    given = z, other, z.stride(0), other.stride(0), targets.contiguous(), temperature.contiguous(), found, norms
    sizes = rows, vocab, min(_reach(z), _reach(other))
    _statistics[rows,](*given, *sizes, y is not None, _block(vocab), num_warps=8)
    total = norms[0, 1, :, 0]
    logprobs, entropy = found[0] - total.log(), total.log() - found[1]
    if divergence is None:
        return torch.stack([logprobs, entropy]), norms
    ref_total = norms[1, 1, :, 0]
    shift = ((total - ref_total) / ref_total).log1p()
    kl = divergence[0] * found[3] + divergence[1] * found[4]
    return torch.stack([logprobs, entropy, kl, found[2] - ref_total.log(), found[3], shift]), norms


def to_gradient(
    z: Tensor,
    y: Tensor | None,
    targets: Tensor,
    temperature: Tensor,
    stats: Tensor,
    norms: Tensor,
    grads: tuple[Tensor | None, ...],
    divergence: tuple[float, float] | None,
) -> None:
    """`ops._to_gradient`: reads the logits once and writes the gradient over them."""
    rows, vocab = z.shape
    of_logprobs, of_entropy, of_kl = (None if grad is None else grad.contiguous() for grad in grads)
    of_kl = None if y is None or divergence is None else of_kl
    known = [x.contiguous() for x in (stats, norms)]
    other = z if y is None else y
    given = z, other, z.stride(0), other.stride(0), targets.contiguous(), temperature.contiguous()
    used = [x is not None for x in (of_logprobs, of_entropy, of_kl)]
    grads = tuple(temperature if grad is None else grad for grad in (of_logprobs, of_entropy, of_kl))
    sizes, weights = (rows, vocab, min(_reach(z), _reach(other))), divergence or (0.0, 0.0)
    _to_gradient[rows,](*given, *known, *grads, *sizes, *weights, *used, _block(vocab), num_warps=8)


def _reach(logits: Tensor) -> int:
    """Columns of (N, V) logits that may be read, and written back: V, or up to a VECTOR where padded rows have them."""
    n, vocab = logits.shape
    assert logits.stride(1) == 1 or vocab == 1
    reach, stride = -(-vocab // VECTOR) * VECTOR, logits.stride(0)
    end = logits.storage_offset() + (n - 1) * stride + reach
    whole = stride % VECTOR == 0 and stride >= reach and end <= logits.untyped_storage().nbytes() // logits.itemsize
    return reach if whole else vocab


def _block(vocab: int) -> int:
    """Columns that a program reads at a time."""
    return min(COLUMNS, int(triton.next_power_of_2(vocab)))


@triton.jit
def _tempered(logits, column, vocab, reach, temperature):
    """Some of a row's logits, divided by its temperature; LOWEST outside."""
    x = tl.load(logits + column, mask=column < reach, other=0.0).to(tl.float32)
    return tl.where(column < vocab, x / temperature, LOWEST)


@triton.jit
def _normaliser(logits, vocab, reach, temperature, block: tl.constexpr):
    """The largest of a row's tempered logits, and the sum of exp(logit - largest)."""
    column = tl.arange(0, block)
    tops = tl.full((block,), LOWEST, tl.float32)
    sums = tl.zeros((block,), tl.float32)
    for start in range(0, vocab, block):
        x = _tempered(logits, start + column, vocab, reach, temperature)
        new_tops = tl.maximum(tops, x)
        sums = sums * tl.exp(tops - new_tops) + tl.exp(x - new_tops)
        tops = new_tops
    top = tl.max(tops, 0)
    return top, tl.sum(sums * tl.exp(tops - top), 0)


@triton.jit
def _draw(logits, stride, uniforms, tokens, logprobs, vocab, reach, temperature, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    column = tl.arange(0, block)
    top, total = _normaliser(logits, vocab, reach, temperature, block)
    share = tl.load(uniforms + row) * total
    # The block at whose end the cumulative weight exceeds the share; by rounding none may, then the last with weight.
    first, before, cumulative = 0, 0.0, 0.0
    for start in range(0, vocab, block):
        weight = tl.sum(tl.exp(_tempered(logits, start + column, vocab, reach, temperature) - top), 0)
        looked_for = (cumulative <= share) & (weight > 0)
        first = tl.where(looked_for, start, first)
        before = tl.where(looked_for, cumulative, before)
        cumulative += weight
    weights = tl.exp(_tempered(logits, first + column, vocab, reach, temperature) - top)
    exceeds = (before + tl.cumsum(weights, 0) > share) & (weights > 0)
    chosen = tl.min(tl.where(exceeds, column, block), 0)
    last = tl.max(tl.where(weights > 0, column, 0), 0)
    token = tl.minimum(first + tl.minimum(chosen, last), vocab - 1)  # any, if all logits are NaN
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.load(logits + token).to(tl.float32) / temperature - top - tl.log(total))


@triton.jit
def _divergence(p, q, a):
    """p (exp(-a) - 1 + a) with a = log p - log q, precisely for a small a, too.

    That is never negative; summed over the vocabulary it equals the sum of p a, because p and q both sum to 1.
    """
    series = a * a * (0.5 - a * (1 / 6 - a * (1 / 24 - a * (1 / 120 - a / 720))))
    return tl.where(tl.abs(a) < 0.1, p * series, q - p + p * a)


@triton.jit
def _statistics(
    z,
    y,
    z_stride,
    y_stride,
    targets,
    temperatures,
    found,
    norms,
    rows,
    vocab,
    reach,
    compared: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    z += row.to(tl.int64) * z_stride
    y += row.to(tl.int64) * y_stride
    found += row
    norms += row
    column = tl.arange(0, block)
    temperature, target = tl.load(temperatures + row), tl.load(targets + row)
    top, total = _normaliser(z, vocab, reach, temperature, block)
    tl.store(norms, top)
    tl.store(norms + rows, total)
    tl.store(found, tl.load(z + target).to(tl.float32) / temperature - top)
    px = tl.zeros((block,), tl.float32)  # p x, like the next two to be summed over the vocabulary
    if compared:
        ref_top, ref_total = _normaliser(y, vocab, reach, temperature, block)
        tl.store(norms + 2 * rows, ref_top)
        tl.store(norms + 3 * rows, ref_total)
        tl.store(found + 2 * rows, tl.load(y + target).to(tl.float32) / temperature - ref_top)
        shift = tl.log(total) - tl.log(ref_total)
        forward = tl.zeros((block,), tl.float32)
        reverse = tl.zeros((block,), tl.float32)
    for start in range(0, vocab, block):
        x = _tempered(z, start + column, vocab, reach, temperature) - top
        p = tl.exp(x) / total
        px += p * x
        if compared:
            ref_x = _tempered(y, start + column, vocab, reach, temperature) - ref_top
            q = tl.exp(ref_x) / ref_total
            forward += _divergence(p, q, x - ref_x - shift)
            reverse += _divergence(q, p, ref_x - x + shift)
    tl.store(found + rows, tl.sum(px, 0))
    if compared:
        tl.store(found + 3 * rows, tl.sum(forward, 0))
        tl.store(found + 4 * rows, tl.sum(reverse, 0))


@triton.jit
def _to_gradient(
    z,
    y,
    z_stride,
    y_stride,
    targets,
    temperatures,
    stats,
    norms,
    logprobs_grads,
    entropy_grads,
    kl_grads,
    rows,
    vocab,
    reach,
    forward_weight,
    reverse_weight,
    of_logprobs: tl.constexpr,
    of_entropy: tl.constexpr,
    of_kl: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    z += row.to(tl.int64) * z_stride
    y += row.to(tl.int64) * y_stride
    temperature = tl.load(temperatures + row)
    top, total = tl.load(norms + row), tl.load(norms + rows + row)
    if of_logprobs:
        logprobs_grad = tl.load(logprobs_grads + row)
        target = tl.load(targets + row)
    if of_entropy:
        entropy_grad = tl.load(entropy_grads + row)
        entropy_shift = tl.load(stats + rows + row) - tl.log(total)
    if of_kl:
        kl_grad = tl.load(kl_grads + row)
        ref_top, ref_total = tl.load(norms + 2 * rows + row), tl.load(norms + 3 * rows + row)
        apart_shift = tl.load(stats + 5 * rows + row) + tl.load(stats + 4 * rows + row)  # shift, forward KL
    for start in range(0, vocab, block):
        column = start + tl.arange(0, block)
        x = _tempered(z, column, vocab, reach, temperature) - top
        p = tl.exp(x) / total
        pull = tl.zeros((block,), tl.float32)  # the factor of p in the gradient
        if of_kl:
            ref_x = _tempered(y, column, vocab, reach, temperature) - ref_top
            pull += forward_weight * kl_grad * (x - ref_x - apart_shift)
        if of_entropy:
            pull -= entropy_grad * (x + entropy_shift)
        if of_logprobs:
            pull -= logprobs_grad
        grad = pull * p
        if of_kl:
            grad += reverse_weight * kl_grad * (p - tl.exp(ref_x) / ref_total)
        if of_logprobs:
            grad += tl.where(column == target, logprobs_grad, 0.0)
        grad = tl.where(column < vocab, grad / temperature, 0.0)
        tl.store(z + column, grad.to(z.dtype.element_ty), mask=column < reach)
