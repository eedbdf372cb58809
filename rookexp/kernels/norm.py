"""A sum and its layer norm as one Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def add_and_norm(x: Tensor, more: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + more (*n, D), in the dtype of `x`, and its layer norm, in that of `more`: what the next product takes."""
    width = len(weight)
    x, more = x.contiguous(), more.contiguous()
    total, normed = torch.empty_like(x), torch.empty_like(more)
    block = triton.next_power_of_2(width)
    given = x, more, weight, bias, total, normed, width, eps
    _add_and_norm[x.numel() // width,](*given, block, num_warps=min(max(block // 256, 1), 16))
    return total, normed


@triton.jit
def _add_and_norm(x, more, weight, bias, total, normed, width, eps, block: tl.constexpr):
    column = tl.arange(0, block)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    added = tl.load(x + at, mask=inside, other=0.0) + tl.load(more + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + at, added, mask=inside)
    apart = tl.where(inside, added - tl.sum(added, 0) / width, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, 0) / width + eps)
    scaled = apart * scale * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(normed + at, scaled.to(normed.dtype.element_ty), mask=inside)
