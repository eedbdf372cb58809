"""Whether the Triton kernels compute on this GPU what PyTorch computes there."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from rookexp import draw, ops
from rookexp.models.kv_cache import KVCache
from rookexp.models.static_cache import StaticCache

SHAPE = 24, 3000  # rows, vocabulary: more than a kernel reads at a time, and not a multiple of anything
BOUND = 1e-3  # of a difference, relative to the largest number; in 16 bits BOUND_16
BOUND_16 = 2e-2


def differing(kernels: ModuleType, device: torch.device, dtype: torch.dtype) -> str | None:
    """The first of the `kernels` whose results are not those of PyTorch's operations; None if there is none.

    Call it while `kernels_for` finds none. Takes some seconds the first time, while Triton compiles.
    """
    numbers = torch.Generator().manual_seed(0)
    z, y = (torch.randn(SHAPE, generator=numbers).to(device, dtype) for _ in range(2))
    given = torch.arange(SHAPE[0], device=device), torch.linspace(0.5, 1.5, SHAPE[0], device=device)
    divergence = (0.5, 0.5)
    stats, norms = ops._statistics(z, y, *given, divergence)
    found = kernels.statistics(z, y, *given, divergence)
    if not (_near(found[0], stats) and _near(found[1], norms)):
        return "statistics"
    grads = tuple(torch.linspace(-1, 1, SHAPE[0], device=device)[:, None] for _ in range(3))
    by_torch, by_kernel = z.clone(), z.clone()
    for result, overwrite in ((by_torch, ops._to_gradient), (by_kernel, kernels.to_gradient)):
        overwrite(result, y, *given, stats[..., None], norms, grads, divergence)
    if not _near(by_kernel, by_torch):
        return "to_gradient"
    uniforms = torch.linspace(0, 0.999, SHAPE[0], device=device)
    tokens, logprobs = kernels.draw(z, uniforms, 0.7)
    expected, expected_logprobs = draw.draw(z, uniforms, draw.Sampling(0.7, None, None, 1))
    same = tokens == expected  # rounding may part two at a boundary
    if same.sum() < SHAPE[0] - 1 or not _near(logprobs[same], expected_logprobs[same]):
        return "draw"
    return None if _near(*_attended(kernels, device, dtype)) else "attend"


def _attended(kernels: ModuleType, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The attention outputs of a few tokens of rows that share prompts, by the kernel and by PyTorch."""
    numbers = torch.Generator().manual_seed(0)
    prompts = torch.randn(2, 1, 3, 2, 70, 16, generator=numbers).to(device)
    cache = KVCache(prompts[0], prompts[1], torch.tensor([70, 1, 33], device=device), 4, 1)
    tokens = torch.randn(20, 12, 1, 96, generator=numbers).to(device, dtype)
    both = []
    for of in (kernels, None):
        bytes_needed = math.prod(StaticCache.shape(cache, 80, 4, len(tokens))) * dtype.itemsize
        static = StaticCache(
            cache, 80, 4, len(tokens), dtype, torch.zeros(bytes_needed, dtype=torch.uint8, device=device)
        )
        static.kernels, static.window = of, len(tokens)
        static.fill(cache)
        found = []
        for qkv in tokens:
            found.append(static.attend(0, qkv))
            static.step()
        both.append(torch.stack(found))
    return both[0], both[1]


def _near(a: Tensor, b: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    bound = BOUND if a.dtype.itemsize > 2 else BOUND_16
    return bool(((a.float() - b.float()).abs().amax() <= bound * b.float().abs().amax()).item())
