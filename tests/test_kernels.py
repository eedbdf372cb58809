"""Triton's kernels against PyTorch's operations: interpreted on a CPU, where Triton is installed, compiled on a GPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_generate import EOT, equal, mixed_prompts, wild
from test_ops import DIVERGENCES, fused, gradients, inputs
from test_replays import SAMPLING, replaying
from torch import Tensor

from rookexp import compiling, kernel_check
from rookexp.compiling import Kernels
from rookexp.draw import Sampling, draw
from rookexp.generate import sample
from rookexp.models.kv_cache import KVCache
from rookexp.models.static_cache import StaticCache

triton = pytest.importorskip("triton", reason="no Triton here")
kernels = compiling.triton_kernels()

# The interpreters of Triton before 3.7 stop at numpy 2.4, those before 3.2 at `tl.arange` of an argument.
OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
HERE = pytest.mark.skipif(
    torch.cuda.is_available() or OLD, reason="compiled, not interpreted, where a GPU is; Triton's interpreter is old"
)
THERE = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
on_any_device = pytest.mark.parametrize("device", [pytest.param("cpu", marks=HERE), pytest.param("cuda", marks=THERE)])


class Switch:
    """What `kernels_for` finds, on a CPU, too."""

    def __init__(self) -> None:
        self.found: Kernels | None = None

    def __call__(self, x: Tensor) -> Kernels | None:
        return self.found


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Switch]:
    switch = Switch()
    for module in ("rookexp.ops", "rookexp.draw", "rookexp.models.gpt2", "rookexp.models.static_cache"):
        monkeypatch.setattr(f"{module}.kernels_for", switch)
    return switch


def static(cache: KVCache, group_size: int, dtype: torch.dtype, device: str) -> StaticCache:
    """A filled cache, in memory with leftovers that are not finite."""
    count = math.prod(StaticCache.shape(cache, 16, group_size, 9)) * dtype.itemsize
    memory = torch.full((count,), 255, dtype=torch.uint8, device=device)
    found = StaticCache(cache, 16, group_size, 9, dtype, memory)
    found.fill(cache)
    found.window = 9
    return found


# The interpreter multiplies bf16 as if its bits were integers.
@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param("cpu", torch.float32, marks=HERE),
        pytest.param("cuda", torch.float32, marks=THERE),
        pytest.param("cuda", torch.bfloat16, marks=THERE),
    ],
)
@pytest.mark.parametrize(("group_size", "width"), [(1, 8), (3, 20), (4, 64), (10, 16)])
def test_a_token_attends_as_by_pytorch(
    device: str, dtype: torch.dtype, group_size: int, width: int, switch: Switch
) -> None:
    draws = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws).to(device)

    lengths = torch.tensor([11, 1, 8], device=device)
    prompts = KVCache(numbers(2, 3, 2, 11, width), numbers(2, 3, 2, 11, width), lengths, group_size, 1)
    by_torch = static(prompts, group_size, dtype, device)
    switch.found = kernels
    by_kernel = static(prompts, group_size, dtype, device)
    for _ in range(9):
        for layer in range(2):
            qkv = numbers(3 * group_size, 1, 6 * width)
            expected, found = (cache.attend(layer, qkv) for cache in (by_torch, by_kernel))
            bound = 2e-6 if dtype == torch.float32 else 0.03
            torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
        by_torch.step()
        by_kernel.step()


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param("cpu", torch.float32, marks=HERE),
        pytest.param("cpu", torch.bfloat16, marks=HERE),
        pytest.param("cuda", torch.float32, marks=THERE),
        pytest.param("cuda", torch.bfloat16, marks=THERE),
    ],
)
@pytest.mark.parametrize("shape", [(5, 1, 768), (3, 20), (1, 1, 5000)])
def test_a_sum_is_normed_as_by_pytorch(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    draws = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws).to(device)

    x, more = 30 + 3 * numbers(*shape), numbers(*shape).to(dtype)
    weight, bias = numbers(shape[-1]), numbers(shape[-1])
    total, normed = kernels.add_and_norm(x, more, weight, bias, 1e-2)
    assert torch.equal(total, x + more)
    assert normed.dtype == dtype
    exact = torch.nn.functional.layer_norm(total.double(), shape[-1:], weight.double(), bias.double(), 1e-2)
    bound = 1e-5 if dtype == torch.float32 else 2**-7  # the interpreter cuts bf16 off
    torch.testing.assert_close(normed.double(), exact, rtol=bound, atol=bound)


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the interpreter
@on_any_device
@pytest.mark.parametrize(("vocab", "temperature"), [(7, 1.0), (2048, 0.7), (5000, 1.3)])
def test_tokens_are_drawn_as_by_pytorch(device: str, vocab: int, temperature: float, switch: Switch) -> None:
    draws = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(90, vocab, generator=draws)
    logits[:, 1::3] = -torch.inf
    logits[-1, 1:] = -torch.inf
    uniforms = torch.rand(90, generator=draws)
    uniforms[0], uniforms[1], uniforms[-1] = 0, 1 - 2**-24, 1 - 2**-24
    logits, uniforms = logits.to(device), uniforms.to(device)
    tokens, logprobs = kernels.draw(logits, uniforms, temperature)
    expected, expected_logprobs = draw(logits, uniforms, Sampling(temperature, None, None, 1))
    same = tokens == expected
    assert same.float().mean() > 0.98, "two sums in another order may part at a boundary"
    torch.testing.assert_close(logprobs[same], expected_logprobs[same], rtol=1e-5, atol=1e-5)
    assert logits.gather(1, tokens[:, None]).isfinite().all(), "never a token of weight 0"
    assert tokens[[0, -1]].tolist() == [0, 0]
    padding = torch.full((len(logits), -vocab % 16 + 16), 99.0, device=device)
    wide = torch.cat((logits, padding), 1)[:, :vocab]  # as a padded head has them
    assert torch.equal(kernels.draw(wide, uniforms, temperature)[0], tokens)
    nan_tokens, nan_logprobs = kernels.draw(torch.full_like(logits, torch.nan), uniforms, temperature)
    assert nan_tokens.amin() >= 0
    assert nan_tokens.amax() < vocab, "any token will do, as long as there is an embedding for it"
    assert nan_logprobs.isnan().all()


@on_any_device
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_statistics_and_gradients_are_pytorchs(device: str, divergence: Any, switch: Switch) -> None:
    x = {name: y.detach().to(device) for name, y in inputs(torch.float32, m=40, d=16, v=97).items()}
    used = [0, 1, 2] if divergence is not None else [0, 1]
    for outputs in (used[:1], used[-1:], used):
        both = []
        for switch.found in (None, kernels):
            mine = {name: y.clone().requires_grad_(y.is_floating_point()) for name, y in x.items()}
            stats = fused(mine, divergence, 16)
            both.append([*stats, *gradients(mine, stats, outputs)])
        for found, expected in zip(*both, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 if device == "cpu" else 1e-4)


@on_any_device
def test_a_tiny_divergence_is_exact(device: str) -> None:
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(8, 3000, generator=draws)
    y = z + 1e-3 * torch.randn(8, 3000, generator=draws)
    exact = torch.nn.functional.kl_div(*(x.double().log_softmax(-1) for x in (y, z)), reduction="none", log_target=True)
    given = z.to(device), y.to(device), torch.zeros(8, dtype=torch.long, device=device), torch.ones(8, device=device)
    kl = kernels.statistics(*given, (1.0, 0.0))[0][2].cpu().double()
    torch.testing.assert_close(kl, exact.sum(-1), rtol=1e-3, atol=0)
    stats, _ = kernels.statistics(given[0], given[0].clone(), *given[2:], (0.5, 0.5))
    assert stats[2].tolist() == stats[5].tolist() == [0.0] * 8, "exactly 0 where both are the same"


@HERE
def test_samples_are_those_of_the_eager_loop(switch: Switch) -> None:
    model, prompts = wild(), mixed_prompts(3)
    twin = replaying(model)
    for _ in range(2):
        switch.found = None
        expected = sample(model, prompts, range(6), SAMPLING, EOT)
        switch.found = kernels
        equal(sample(twin, prompts, range(6), SAMPLING, EOT), expected)
        prompts = prompts[::-1]
    assert twin.replays is not None
    (batch,) = twin.replays.batches.values()
    assert len(batch.replays) == 1, "one recording for every token"


COMPILED = """
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

from rookexp import compiling

kernels = compiling.triton_kernels()
found = SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
)
triton.runtime.driver.set_active(found)
run = triton.JITFunction.run
made = []
triton.JITFunction.run = lambda *args, **kwargs: made.append(run(*args, **kwargs | {"warmup": True}))
numbers = torch.ones(8, dtype=torch.long)
low = torch.bfloat16
for sharers, width, dtype in ((1, 16, low), (4, 64, low), (10, 20, low), (4, 256, low), (4, 64, torch.float32)):
    kept = torch.zeros(2, 4, 2, 32, width, dtype=dtype)
    kernels.attend(kept.new_zeros(4 * sharers, 6 * width), kept, numbers, numbers, 16)
kept = torch.zeros(2, 1, 1, 32, 256)
kernels.attend(kept.new_zeros(1, 3 * 256), kept, numbers, numbers, 16)
for dtype, width in ((low, 768), (torch.float32, 20), (low, 5000)):
    x, weight = torch.zeros(8, 1, width), torch.ones(width)
    kernels.add_and_norm(x, x.to(dtype), weight, weight, 1e-5)
z, x = torch.zeros(8, 4096, dtype=low), torch.ones(8)
for given in (z[:, :3007], z[:1].float()):
    kernels.draw(given, x, 1.0)
    kernels.statistics(given, None, numbers, x, None)
    kernels.statistics(given, given, numbers, x, (1.0, 0.0))
    for grads in ((x, None, None), (x, x, x), (None, None, x)):
        kernels.to_gradient(given, given, numbers, x, torch.ones(6, 8), torch.ones(2, 2, 8), grads, (0.5, 0.5))
smallest = 99 << 10  # of shared memory a program may have, since Ampere
print(len(made), all(len(kernel.asm["cubin"]) > 1000 and kernel.metadata.shared <= smallest for kernel in made))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(root: Path, tmp_path: Path) -> None:
    """No GPU is needed for that; an interpreted kernel may still have what the compiler refuses."""
    changed = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        cwd=root,
        env=os.environ | changed,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "21 True\n", done.stderr[-3000:]


def test_kernels_are_for_a_gpu_alone_and_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_kernels", kernels)
    assert compiling.kernels_for(torch.ones(1)) is None
    there = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
    find: Any = compiling.kernels_for
    assert find(there) is kernels
    assert find(SimpleNamespace(device=torch.device("cuda"), dtype=torch.float64)) is None
    compiling.use_kernels(None)
    assert find(there) is None


@on_any_device
@pytest.mark.usefixtures("switch")
def test_kernels_that_compute_something_else_are_found(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(**changed: Any) -> str | None:
        return kernel_check.differing(replace(kernels, **changed), torch.device(device), torch.float32)

    assert differing() is None
    monkeypatch.setattr(kernel_check, "VOCABULARIES", kernel_check.VOCABULARIES[:1])  # is quicker
    assert differing(statistics=lambda *given: tuple(1.01 * x for x in kernels.statistics(*given))) == "statistics"
    assert differing(to_gradient=lambda *given: None) == "to_gradient"
    assert differing(draw=lambda z, u, t: kernels.draw(z, 1 - u, t)) == "draw"
    assert differing(draw=lambda z, u, t: (kernels.draw(z, u, t)[0], -u)) == "draw"
    assert differing(attend=lambda *given: 1.01 * kernels.attend(*given)) == "attend"
    assert differing(add_and_norm=lambda x, *given: (x, kernels.add_and_norm(x, *given)[1])) == "add_and_norm"
    assert differing(add_and_norm=lambda *given: (kernels.add_and_norm(*given)[0], given[0])) == "add_and_norm"
