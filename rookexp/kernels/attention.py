"""The attention of a new token per row to cached keys and values, as a Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
KEYS, KEY_BYTES = 64, 8192  # most that `attend` reads at a time: its tiles must fit into shared memory


def attend(qkv: Tensor, kept: Tensor, lengths: Tensor, positions: Tensor, size: int) -> Tensor:
    """`StaticCache.attend`: the attention output, heads joined, of one more token per row; caches its key and value.

    Of B bunches of S rows, H heads of width W and slots for the keys and values of tokens: `qkv` (B S, 3 H W), `kept`
    (2, B, H, slots, W) in the same dtype, `lengths` (B,) of prompts, whose first slot is 0, `positions` (B S,) of the
    rows' tokens, which a bunch adds in lockstep; those after a prompt begin at the slot `size`, one of each row of the
    bunch after another. Returns (B S, H W). A bunch and a head are one program, which reads the slots that are filled,
    and no others, once.
    """
    _, bunches, heads, slots, width = kept.shape
    qkv, sharers = qkv.contiguous(), len(qkv) // bunches
    out = qkv.new_empty(len(qkv), heads * width)
    rows = max(16, triton.next_power_of_2(sharers))  # a product of tiles has at least 16 in each direction
    scale = LOG2_E * width**-0.5
    shape = bunches, heads, slots, size, sharers, scale, width
    wide = max(16, triton.next_power_of_2(width))
    keys = max(16, min(KEYS, KEY_BYTES // (wide * qkv.itemsize)))
    _attend[bunches, heads](qkv, kept, lengths, positions, out, *shape, wide, rows, keys, num_warps=4, num_stages=3)
    return out


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
