"""The choice between Triton kernels and PyTorch's: the former where they compute on this GPU what the latter do."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from rookexp import draw, ops
from rookexp.compiling import Kernels, triton_kernels, use_kernels
from rookexp.errors import ConfigError
from rookexp.models.kv_cache import KVCache
from rookexp.models.static_cache import StaticCache

ROWS = 24
WIDTH = 700  # of a model: several warps, the last one not full
VOCABULARIES = (97, 104), (3001, 3008)  # and columns in memory: less than a kernel reads at a time, and more
BOUND, BOUND_16 = 1e-4, 2e-2  # of a difference, relative to the largest number; the second in 16 bits


def chosen(asked: str, device: torch.device, precision: str) -> tuple[str, str | None]:
    """`triton` or `torch`, whose kernels this process uses from now on; where `auto` cannot take `triton`, the reason.

    Raises: ConfigError where `triton` was asked for and does not work.
    """
    use_kernels(None)
    if asked == "torch" or (asked == "auto" and device.type != "cuda"):
        return "torch", None
    reason = why_no_kernels(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    if reason is None:
        return "triton", None
    if asked == "triton":
        raise ConfigError(f"hardware.kernels=triton: {reason}; allowed: auto, torch")
    return "torch", reason


def why_no_kernels(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels do not work on the device; None where they do, and then they are used from now on."""
    if device.type != "cuda":
        return f"needs a CUDA GPU, and this run is on {device.type}"
    try:
        kernels = triton_kernels()
        fault = differing(kernels, device, dtype)
    except Exception as error:  # a missing Triton or C compiler, an old GPU: each has kinds of its own
        reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
        try:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize(device)
        except RuntimeError:  # nothing else would work in this process, either
            raise ConfigError(
                f"hardware.kernels=triton: a kernel broke the GPU's context ({reason}); allowed: torch"
            ) from error
        return f"Triton does not work here ({reason})"
    if fault is not None:
        return f"on this GPU, the kernel `{fault}` does not compute what PyTorch computes"
    use_kernels(kernels)
    return None


def differing(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> str | None:
    """The first of the `kernels` whose results are not those of PyTorch's operations; None if there is none.

    Call it while `kernels_for` finds none. Takes some seconds the first time, while Triton compiles.
    """
    for vocab, columns in VOCABULARIES:
        if fault := _differing(kernels, vocab, columns, device, dtype):
            return fault
    if not all(map(_near, *_summed(kernels, device, dtype))):
        return "add_and_norm"
    return None if _near(*_attended(kernels, device, dtype)) else "attend"


def _differing(kernels: Kernels, vocab: int, columns: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """The same of those that read logits."""
    numbers = torch.Generator().manual_seed(0)
    both = torch.randn(2, ROWS, columns, generator=numbers).to(device, dtype)
    z, y = both[..., :vocab]
    given = torch.arange(ROWS, device=device), torch.linspace(0.5, 1.5, ROWS, device=device)
    divergence = (0.5, 0.5)
    stats, norms = ops._statistics(z, y, *given, divergence)
    found, found_norms = kernels.statistics(z, y, *given, divergence)
    if not (all(map(_near, found, stats)) and _near(found_norms, norms)):
        return "statistics"
    grads = tuple(torch.linspace(-1, 1, ROWS, device=device)[:, None] for _ in range(3))
    results = [both[0].clone()[:, :vocab] for _ in range(2)]
    for result, overwrite in zip(results, (kernels.to_gradient, ops._to_gradient), strict=True):
        overwrite(result, y, *given, stats[..., None], norms, grads, divergence)
    if not _near(*results):
        return "to_gradient"
    uniforms = torch.linspace(0, 0.999, ROWS, device=device)
    tokens, logprobs = kernels.draw(z, uniforms, 0.7)
    expected, expected_logprobs = draw.draw(z, uniforms, draw.Sampling(0.7, None, None, 1))
    same = tokens == expected  # rounding may part two at a boundary
    return None if same.sum() >= ROWS - 1 and _near(logprobs[same], expected_logprobs[same]) else "draw"


def _summed(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """A few rows plus others, and the layer norm of these sums, by the kernel and by PyTorch."""
    x, more, (weight, bias, *_) = torch.randn(3, ROWS, WIDTH, generator=torch.Generator().manual_seed(0)).to(device)
    yield kernels.add_and_norm(x, more.to(dtype), weight, bias, 1e-5)
    total = x + more.to(dtype)
    yield total, F.layer_norm(total, weight.shape, weight, bias, 1e-5)


def _attended(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The attention outputs of a few tokens of rows that share prompts, by the kernel and by PyTorch."""
    numbers = torch.Generator().manual_seed(0)
    prompts = torch.randn(2, 1, 3, 2, 70, 16, generator=numbers).to(device)
    cache = KVCache(prompts[0], prompts[1], torch.tensor([70, 1, 33], device=device), 4, 1)
    tokens = torch.randn(20, 12, 1, 96, generator=numbers).to(device, dtype)
    room = 80, 4, len(tokens)
    both = []
    for of in (kernels, None):
        count = math.prod(StaticCache.shape(cache, *room)) * dtype.itemsize
        static = StaticCache(cache, *room, dtype, torch.zeros(count, dtype=torch.uint8, device=device))
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
