"""The machine's measured limits, and the least arithmetic that a step and a decoded token need."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rookexp import hardware
from rookexp.benchmark.turns import Turns, now
from rookexp.models.gpt2 import GPT2Config

COPIED_BYTES = 1 << 27  # size of the timed copy: more than a cache holds
PRODUCTS = ((1024, 1024, 1024), (2048, 768, 3072))  # M, K, N
GPU_PRODUCTS = (*PRODUCTS, (8192, 4096, 8192))  # the others are too small for a large card
WIDE = (768, 50257)  # K, N of a product with one row, which is bound by reading its weights
REPEATS = 5
QUEUED = 50  # calls per timing on a GPU, where a single one takes less time than to launch it and wait for it
SETS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")
CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as measured; rates are those of all threads together."""

    name: str  # of the CPU or GPU
    sets: tuple[str, ...]  # instruction sets of the CPU that matter here
    cores: int  # that this process may use
    threads: int  # of PyTorch
    memory_gib: float  # of the machine
    precision: str  # the one that hardware=auto chooses: fp32 or bf16
    copy_gb_s: float  # bytes read and written by a copy, over seconds
    weights_gb_s: float  # bytes of weights read by a product with one row, over seconds
    gflop_s: Mapping[str, float]  # fastest product by dtype; bf16 only where it is faster

    @property
    def best_gflop_s(self) -> float:
        """The rate of the fastest product."""
        return max(self.gflop_s.values())


def measure(spec: Mapping[str, Any], turns: Turns) -> None:
    """Answers one turn with the fields of a Machine."""
    turns.wait()
    device = hardware.find_device(spec["config"]["hardware"]["device"])
    precision = hardware.fastest_precision(device)
    dtypes = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if precision == "bf16" else {})
    products = GPU_PRODUCTS if device == "cuda" else PRODUCTS
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    row, wide = torch.ones(1, WIDE[0], device=device), torch.ones(WIDE[1], WIDE[0], device=device)
    turns.answer(
        name=hardware.device_name(torch.device(device)),
        sets=instruction_sets(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        threads=torch.get_num_threads(),
        memory_gib=hardware.kib(str(MEMINFO), "MemTotal") / hardware.GIB if MEMINFO.is_file() else 0.0,
        precision=precision,
        copy_gb_s=2 * COPIED_BYTES / best_s(lambda: target.copy_(source), device) / 1e9,
        weights_gb_s=4 * wide.numel() / best_s(lambda: torch.nn.functional.linear(row, wide), device) / 1e9,
        gflop_s={
            name: max(product_gflop_s(*size, dtype, device) for size in products) for name, dtype in dtypes.items()
        },
    )
    turns.wait()


def product_gflop_s(m: int, k: int, n: int, dtype: torch.dtype, device: str) -> float:
    """The rate of a product (M, K) x (K, N), in GFLOP/s."""
    left, right = (torch.ones(*size, dtype=dtype, device=device) for size in ((m, k), (n, k)))
    return 2 * m * k * n / best_s(lambda: torch.nn.functional.linear(left, right), device) / 1e9


def best_s(act: Callable[[], object], device: str) -> float:
    """Seconds of a call: the fastest of REPEATS timings after a warm-up."""
    calls = QUEUED if device == "cuda" else 1
    times = []
    for _ in range(1 + REPEATS):
        began = now(device)
        for _ in range(calls):
            act()
        times.append((now(device) - began) / calls)
    return min(times[1:])


def instruction_sets() -> list[str]:
    """The CPU's architecture and, on Linux, those of SETS that it has."""
    if not CPUINFO.is_file():
        return [platform.machine()]
    lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    has = next((line.split(":")[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return [platform.machine(), *(name for name in SETS if name in has)]


def block_weights(config: GPT2Config) -> int:
    """The number of weights in the blocks' matrices, which every token goes through."""
    return 12 * config.n_layer * config.n_embd**2


def step_flop(config: GPT2Config, *, prompt_tokens: float, completion_tokens: float, reference: bool) -> float:
    """The least arithmetic of a step: 2 N D to decode, 2 N D for the reference, 6 N D to learn (N weights, D tokens).

    Every prompt counts once for its group, the head (width x vocabulary) for completion tokens only; attention's own
    products are left out.
    """
    tokens = prompt_tokens + completion_tokens
    once = 2 * (block_weights(config) * tokens + config.n_embd * config.vocab_size * completion_tokens)
    return once * (1 + 3 + reference)


def decode_floor_s(config: GPT2Config, machine: Machine, *, rows: int, tokens: int, precision: str) -> float:
    """The least seconds to add `tokens` to each row; each reads all weights and multiplies them with every row once."""
    weights = block_weights(config) + config.n_embd * config.vocab_size
    size = 2 if precision == "bf16" else 4
    read_s = size * weights / (max(machine.weights_gb_s, machine.copy_gb_s) * 1e9)
    return tokens * max(read_s, 2 * weights * rows / (machine.gflop_s[precision] * 1e9))
