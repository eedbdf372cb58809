"""Triton kernels for a CUDA GPU: what PyTorch computes in many passes, in one or two, the same up to rounding.

Imported by `hardware` alone, and used where Triton works; who calls them finds them by `compiling.kernels_for`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
KEYS = 64  # of `attend`, read at a time
COLUMNS = 2048  # of logits, read at a time
LOWEST = tl.constexpr(-1e38)  # below any logit; unlike -inf it can be subtracted from itself and multiplied by 0


def attend(qkv: Tensor, kept: Tensor, lengths: Tensor, positions: Tensor, size: int) -> Tensor:
    """`StaticCache.attend`: the attention output, heads joined, of one more token per row; caches its key and value.

    Of B bunches of S rows, H heads of width W and slots for the keys and values of tokens: `qkv` (B S, 3 H W), `kept`
    (2, B, H, slots, W) in the same dtype, `lengths` (B,) of prompts, whose first slot is 0, `positions` (B S,) of the
    rows' tokens; those after a prompt begin at the slot `size`, one of each row of the bunch after another. Returns
    (B S, H W). A bunch and a head are one program, which reads the slots that are filled, and no others, once.
    """
    _, bunches, heads, slots, width = kept.shape
    qkv, sharers = qkv.contiguous(), len(qkv) // bunches
    out = qkv.new_empty(len(qkv), heads * width)
    rows = max(16, triton.next_power_of_2(sharers))  # a product of tiles has at least 16 in each direction
    scale = LOG2_E * width**-0.5
    shape = bunches, heads, slots, size, sharers, scale, width
    wide = max(16, triton.next_power_of_2(width))
    _attend[bunches, heads](qkv, kept, lengths, positions, out, *shape, wide, rows, KEYS, num_warps=4, num_stages=3)
    return out


def draw(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`draw.draw` of any token: from (N, V) and (N,) each row's token and its log-prob, both (N,)."""
    n, vocab = logits.shape
    tokens, logprobs = uniforms.new_empty(n, dtype=torch.long), uniforms.new_empty(n)
    given = logits, logits.stride(0), uniforms, tokens, logprobs, vocab, temperature
    _draw[n,](*given, _block(vocab), num_warps=8)
    return tokens, logprobs


def statistics(
    z: Tensor, y: Tensor | None, targets: Tensor, temperature: Tensor, divergence: tuple[float, float] | None
) -> tuple[Tensor, Tensor]:
    """`ops._statistics`: reads the logits twice, and adds up both divergences from terms that are never negative."""
    rows, vocab = z.shape
    found = z.new_empty(2 if y is None else 5, rows, dtype=torch.float32)
    norms = found.new_empty(1 if y is None else 2, 2, rows, 1)
    other = z if y is None else y
    given = z, other, z.stride(0), other.stride(0), targets, temperature, found, norms, rows, vocab
    _statistics[rows,](*given, y is not None, _block(vocab), num_warps=8)
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
    given = z, other, z.stride(0), other.stride(0), targets, temperature
    used = [x is not None for x in (of_logprobs, of_entropy, of_kl)]
    grads = tuple(temperature if grad is None else grad for grad in (of_logprobs, of_entropy, of_kl))
    weights = divergence or (0.0, 0.0)
    _to_gradient[rows,](*given, *known, *grads, rows, vocab, *weights, *used, _block(vocab), num_warps=8)


def _block(vocab: int) -> int:
    """Columns that a program reads at a time."""
    return min(COLUMNS, int(triton.next_power_of_2(vocab)))


@triton.jit
def _attend(
    qkv,
    kept,
    lengths,
    positions,
    out,
    bunches,
    heads,
    slots,
    size,
    sharers,
    scale,
    width: tl.constexpr,
    wide: tl.constexpr,  # a power of two, at least the width
    row_count: tl.constexpr,  # the same of the sharers
    block: tl.constexpr,
):
    bunch, head = tl.program_id(0), tl.program_id(1)
    rows, columns = tl.arange(0, row_count), tl.arange(0, wide)
    inside = (columns < width)[None, :]
    real = (rows < sharers)[:, None] & inside
    d = heads * width
    at = (bunch * sharers + rows)[:, None] * d + head * width + columns[None, :]  # in the output
    of_row = qkv + at + (bunch * sharers + rows)[:, None] * (2 * d)
    q = tl.load(of_row, mask=real, other=0.0)
    k = tl.load(of_row + d, mask=real, other=0.0)
    v = tl.load(of_row + 2 * d, mask=real, other=0.0)
    length = tl.load(lengths + bunch).to(tl.int32)
    added = (tl.load(positions + bunch * sharers).to(tl.int32) - length) * sharers
    keys = kept + (bunch.to(tl.int64) * heads + head) * slots * width
    values = keys + tl.cast(bunches, tl.int64) * heads * slots * width
    new = (size + added + rows)[:, None] * width + columns[None, :]
    tl.store(keys + new, k, mask=real)
    tl.store(values + new, v, mask=real)
    # A row sees its own new token, which is not read back, and then what was there before.
    top = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
    total = tl.full((row_count,), 1.0, tl.float32)
    result = v.to(tl.float32)
    count = length + added
    for start in range(0, count, block):
        n = start + tl.arange(0, block)
        own = n - length  # from 0 on behind the prompt: row, row, ..., then the rows' next tokens
        there = (n < count)[:, None] & inside
        place = tl.where(own < 0, n, size + own)[:, None] * width + columns[None, :]
        some_keys = tl.load(keys + place, mask=there, other=0.0)
        some_values = tl.load(values + place, mask=there, other=0.0)
        seen = (n < count)[None, :] & ((own < 0)[None, :] | (own[None, :] % sharers == rows[:, None]))
        scores = tl.dot(q, tl.trans(some_keys), input_precision="ieee") * scale
        scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp2(top - new_top)
        weights = tl.exp2(scores - new_top[:, None])
        total = total * shrink + tl.sum(weights, 1)
        more = tl.dot(weights.to(some_values.dtype), some_values, input_precision="ieee")
        result = result * shrink[:, None] + more
        top = new_top
    tl.store(out + at, (result / total[:, None]).to(out.dtype.element_ty), mask=real)


@triton.jit
def _tempered(logits, column, vocab, temperature):
    """Some of a row's logits, divided by its temperature; LOWEST outside."""
    x = tl.load(logits + column, mask=column < vocab, other=0.0).to(tl.float32)
    return tl.where(column < vocab, x / temperature, LOWEST)


@triton.jit
def _normaliser(logits, vocab, temperature, block: tl.constexpr):
    """The largest of a row's tempered logits, and the sum of exp(logit - largest)."""
    column = tl.arange(0, block)
    tops = tl.full((block,), LOWEST, tl.float32)
    sums = tl.zeros((block,), tl.float32)
    for start in range(0, vocab, block):
        x = _tempered(logits, start + column, vocab, temperature)
        new_tops = tl.maximum(tops, x)
        sums = sums * tl.exp(tops - new_tops) + tl.exp(x - new_tops)
        tops = new_tops
    top = tl.max(tops, 0)
    return top, tl.sum(sums * tl.exp(tops - top), 0)


@triton.jit
def _draw(logits, stride, uniforms, tokens, logprobs, vocab, temperature, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    column = tl.arange(0, block)
    top, total = _normaliser(logits, vocab, temperature, block)
    share = tl.load(uniforms + row) * total
    # The block at whose end the cumulative weight exceeds the share; by rounding none may, then the last with weight.
    first, before, cumulative = 0, 0.0, 0.0
    for start in range(0, vocab, block):
        weight = tl.sum(tl.exp(_tempered(logits, start + column, vocab, temperature) - top), 0)
        looked_for = (cumulative <= share) & (weight > 0)
        first = tl.where(looked_for, start, first)
        before = tl.where(looked_for, cumulative, before)
        cumulative += weight
    weights = tl.exp(_tempered(logits, first + column, vocab, temperature) - top)
    exceeds = (before + tl.cumsum(weights, 0) > share) & (weights > 0)
    chosen = tl.min(tl.where(exceeds, column, block), 0)
    last = tl.max(tl.where(weights > 0, column, 0), 0)
    token = first + tl.minimum(chosen, last)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.load(logits + token).to(tl.float32) / temperature - top - tl.log(total))


@triton.jit
def _divergence(p, q, a):
    """p (exp(-a) - 1 + a) with a = log p - log q, precisely for a small a, too: never negative, and its sum is that of
    p a, as the sum of p exp(-a) = q is that of p.
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
    top, total = _normaliser(z, vocab, temperature, block)
    tl.store(norms, top)
    tl.store(norms + rows, total)
    tl.store(found, tl.load(z + target).to(tl.float32) / temperature - top)
    px = tl.zeros((block,), tl.float32)  # p x, like the next two to be summed over the vocabulary
    if compared:
        ref_top, ref_total = _normaliser(y, vocab, temperature, block)
        tl.store(norms + 2 * rows, ref_top)
        tl.store(norms + 3 * rows, ref_total)
        tl.store(found + 2 * rows, tl.load(y + target).to(tl.float32) / temperature - ref_top)
        shift = tl.log(total) - tl.log(ref_total)
        forward = tl.zeros((block,), tl.float32)
        reverse = tl.zeros((block,), tl.float32)
    for start in range(0, vocab, block):
        x = _tempered(z, start + column, vocab, temperature) - top
        p = tl.exp(x) / total
        px += p * x
        if compared:
            ref_x = _tempered(y, start + column, vocab, temperature) - ref_top
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
        apart_shift = tl.load(stats + 5 * rows + row) + tl.load(stats + 4 * rows + row)
    for start in range(0, vocab, block):
        column = start + tl.arange(0, block)
        x = _tempered(z, column, vocab, temperature) - top
        p = tl.exp(x) / total
        pull = tl.zeros((block,), tl.float32)  # the factor of p in the gradient
        if of_kl:
            ref_x = _tempered(y, column, vocab, temperature) - ref_top
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
        tl.store(z + column, (grad / temperature).to(z.dtype.element_ty), mask=column < vocab)
