"""Where a run computes: device, threads, the dtype that is faster there, micro-batch size, and memory in use."""

from __future__ import annotations

import functools
import gc
import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Protocol

import torch
from annotated_types import Ge, Le

from rookexp import kernel_check
from rookexp.allocator import keep_few_primitives, keep_freed_memory, release_freed_memory
from rookexp.compiling import compile_fusible
from rookexp.errors import ConfigError
from rookexp.models.gpt2 import GPT2
from rookexp.models.replays import CudaGraphs, Replays

PROBE_SIZE = (64, 768, 768)  # M, K, N of the timed product: a few rows through a projection of GPT-2
PROBE_REPEATS = 10
PROBE_GAIN = 1.2  # bf16 must be this much faster to be worth its rounding
GIB = 1 << 30
SIZES, GPU_SIZES = (24, 1024), (64, 8192)  # default micro-batch (rows) and head chunk (tokens)
CLEAR_REFS = Path("/proc/self/clear_refs")  # Linux: writing 5 resets the peak to what is resident
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class Memory(Protocol):
    """The memory of a device, in bytes."""

    @property
    def limit(self) -> int:
        """The most that this process may use."""

    def restart(self) -> None:
        """Frees cached memory and resets the peak."""

    def peak(self) -> int:
        """The most that this process has used since `restart`."""


class Hardware:
    """One device and its precision. Weights stay fp32; `autocast` lowers the precision of computing with them."""

    def __init__(
        self,
        *,
        device: Literal["auto", "cpu", "cuda", "mps"],
        threads: Annotated[int, Ge(1), Le(1024)] | None,
        precision: Literal["auto", "fp32", "bf16"],
        decode: Literal["auto", "eager", "cuda_graph"],
        kernels: Literal["auto", "triton", "torch"],
        compile: bool,
        micro_batch: Annotated[int, Ge(1)] | None,
        head_chunk: Annotated[int, Ge(1)] | None,
        fit: bool,
        grow: Literal["micro_batch", "batch"],
        memory_gib: Annotated[float, Ge(0.001), Le(1_000_000)] | None,
        keep_freed: bool,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = torch.device(find_device(device))
        if self.device.type == "cpu":
            keep_few_primitives()
            if keep_freed:
                keep_freed_memory()
        if self.device.type == "cuda":
            # cuDNN's attention makes a plan for every new shape, milliseconds each, and ragged batches have many.
            torch.backends.cuda.enable_cudnn_sdp(False)
            torch.set_float32_matmul_precision("highest")  # some images use TF32 for fp32
        self.precision = precision if precision != "auto" else fastest_precision(self.device.type)
        if decode == "cuda_graph" and self.device.type != "cuda":
            where = f"needs a CUDA GPU, and this run is on {self.device.type}"
            raise ConfigError(f"hardware.decode={decode}: {where}; allowed: auto, eager")
        self.decode = ("cuda_graph" if self.device.type == "cuda" else "eager") if decode == "auto" else decode
        if compile and self.device.type != "cuda":
            where = f"needs a CUDA GPU, and this run is on {self.device.type}"
            raise ConfigError(f"hardware.compile=true: {where}; allowed: false")
        rows, tokens = GPU_SIZES if self.device.type == "cuda" else SIZES
        self.micro_batch = rows if micro_batch is None else micro_batch
        self.head_chunk = tokens if head_chunk is None else head_chunk
        if grow == "batch" and not fit:
            raise ConfigError("hardware.grow=batch: needs hardware.fit=true; allowed without: micro_batch")
        if memory_gib is not None and not fit:
            raise ConfigError(
                f"hardware.memory_gib={memory_gib}: needs hardware.fit=true; without it type hardware.memory_gib=null"
            )
        compile_fusible(None)  # kernels are compared with what PyTorch computes operation by operation
        self.kernels, self.doubt = kernel_check.chosen(kernels, self.device, self.precision)
        if compile:
            check_compiler(self.device)
            compile_fusible("cuda")
        self.fit = fit
        self.grow = grow
        self.memory_gib = memory_gib

    def placed(self, model: GPT2) -> GPT2:
        """The model, moved to this device and set to decode as `decode` says."""
        model = model.to(self.device)
        if self.decode == "cuda_graph":
            model.replays = Replays(CudaGraphs())
        return model

    def autocast(self) -> AbstractContextManager[None]:
        """A context in which matrix products run in bf16, or one that changes nothing in fp32."""
        if self.precision == "fp32":
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, dtype=torch.bfloat16)
        return context

    def memory(self) -> Memory:
        """A meter of the device's memory.

        Raises: ConfigError if the platform does not report a peak.
        """
        given = None if self.memory_gib is None else int(self.memory_gib * GIB)
        if self.device.type == "cuda":
            return CudaMemory(self.device, given)
        if self.device.type == "cpu" and os.access(CLEAR_REFS, os.W_OK):
            return CpuMemory(given)
        where = f"{self.device.type} on {platform.system()}"
        raise ConfigError(f"hardware.fit=true: nothing tells the peak of the memory of {where}; allowed: false")

    def refuse_fit(self) -> None:
        """Raises: ConfigError for `fit`, which would find nothing where no model is trained."""
        if self.fit:
            raise ConfigError("hardware.fit=true: of training alone; allowed here: false")

    def describe(self) -> dict[str, str | int]:
        """The hardware, precision and versions that this run's measurements depend on, for logs."""
        return {
            "device": self.device.type,
            "device_name": device_name(self.device),
            "threads": torch.get_num_threads(),
            "precision": self.precision,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }


class CudaMemory:
    """A CUDA device's memory; limit: what other processes leave; peak: what the allocator held, fragments included."""

    def __init__(self, device: torch.device, given: int | None) -> None:
        self.device = device
        left = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        self.limit = left if given is None else given

    def restart(self) -> None:
        """Frees cached blocks, also those of an earlier run in this process, and resets the peak."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """The most that the allocator held."""
        return torch.cuda.max_memory_reserved(self.device)


class CpuMemory:
    """The resident set of this process on Linux; its limit is the least of available memory and cgroup limits."""

    def __init__(self, given: int | None) -> None:
        available = kib("/proc/meminfo", "MemAvailable") + kib("/proc/self/status", "VmRSS")
        self.limit = min([available, *limits()]) if given is None else given

    def restart(self) -> None:
        """Returns freed blocks to the system, also those of an earlier run, and resets the peak to what is resident."""
        gc.collect()
        release_freed_memory()
        CLEAR_REFS.write_text("5", encoding="ascii")

    def peak(self) -> int:
        """The largest resident set."""
        return kib("/proc/self/status", "VmHWM")


def kib(path: str, name: str) -> int:
    """The entry `name` of a /proc file, which states it in KiB, in bytes."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def limits() -> list[int]:
    """The memory limits in bytes of this process's control group (a container, a job) and its ancestors, if any."""
    texts = [path.read_text(encoding="utf-8").strip() for path in limit_files() if path.is_file()]
    return [int(text) for text in texts if text != "max"]


def limit_files() -> Iterator[Path]:
    """Files that may state a limit, in versions 1 and 2 of control groups, from the innermost group to the root."""
    lines = OWN_CGROUPS.read_text(encoding="utf-8").splitlines() if OWN_CGROUPS.is_file() else []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        group = PurePosixPath(name.lstrip("/"))
        for each in (group, *group.parents):
            if not controllers:
                yield CGROUPS / each / "memory.max"
            elif "memory" in controllers.split(","):
                yield CGROUPS / "memory" / each / "memory.limit_in_bytes"


def find_device(device: str) -> str:
    """`device`, or for `auto` the first available of cuda, mps and cpu.

    Raises: ConfigError if the named device is not available.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, is_here in here.items() if is_here)
    if not here[device]:
        found = ", ".join(name for name, is_here in here.items() if is_here)
        raise ConfigError(f"hardware.device={device}: none found by torch {torch.__version__}; allowed: auto, {found}")
    return device


def fastest_precision(device_type: str) -> Literal["fp32", "bf16"]:
    """`bf16` if CUDA reports native support, or if a CPU does and is measured to be faster; else, as on MPS, `fp32`."""
    if device_type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device_type == "cpu":
        # Timed only if it has the instructions: on a busy machine, a timing alone could look as if it had them.
        return "bf16" if cpu_has_bf16() and cpu_bf16_speedup() > PROBE_GAIN else "fp32"
    return "fp32"


def check_compiler(device: torch.device) -> None:
    """Raises: ConfigError where `torch.compile` cannot compile for the device, as without a C++ compiler or Triton."""
    try:
        torch.compile(torch.nn.functional.relu)(torch.ones(1, device=device))
    except Exception as error:  # the compiler has many kinds, and Triton others
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"hardware.compile=true: torch.compile fails here ({reason}); allowed: false") from error


def cpu_has_bf16() -> bool:
    """Whether PyTorch has kernels for bf16 products on this CPU that do not emulate them throughout."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def cpu_bf16_speedup() -> float:
    """Time of an fp32 product over that of a bf16 one on this CPU, best of a few in alternation; cached per process.

    `cpu_has_bf16` alone does not suffice: some CPUs have the instructions but no faster kernels.
    """
    m, k, n = PROBE_SIZE
    best = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    pairs = {dtype: (torch.ones(m, k, dtype=dtype), torch.ones(n, k, dtype=dtype)) for dtype in best}
    for turn in range(1 + PROBE_REPEATS):
        for dtype, (left, right) in pairs.items():
            began = time.perf_counter()
            torch.nn.functional.linear(left, right)
            if turn:  # the first warms up
                best[dtype] = min(best[dtype], time.perf_counter() - began)
    return best[torch.float32] / max(best[torch.bfloat16], 1e-9)


def device_name(device: torch.device) -> str:
    """The GPU's or CPU's name as the system gives it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
