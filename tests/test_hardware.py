"""Device, precision and what is said of them."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import hydra
import pytest
import tiny
import torch

from rookexp import allocator, build, hardware, kernel_check, tokenizers
from rookexp.config import check, composing
from rookexp.errors import ConfigError
from rookexp.hardware import Hardware
from rookexp.models.replays import Replays
from rookexp.policies import Pretrained

CPU: dict[str, Any] = {"device": "cpu", "threads": None, "precision": "fp32", "micro_batch": 4, "head_chunk": 64}
CPU |= {
    "decode": "auto",
    "kernels": "auto",
    "compile": False,
    "fit": False,
    "grow": "micro_batch",
    "memory_gib": None,
    "keep_freed": True,
}


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_sets_what_products_are_computed_in(precision: str, dtype: torch.dtype) -> None:
    here = Hardware(**CPU | {"precision": precision})
    weight = torch.ones(2, 2)
    with here.autocast():
        assert (weight @ weight).dtype == dtype
    assert (weight @ weight).dtype == torch.float32
    assert here.precision == precision


@pytest.mark.parametrize(("speedup", "precision"), [(3.0, "bf16"), (1.0, "fp32"), (0.1, "fp32")])
def test_auto_takes_the_faster_precision(speedup: float, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_bf16_speedup", lambda: speedup)
    monkeypatch.setattr(hardware, "cpu_has_bf16", lambda: True)
    assert Hardware(**CPU | {"precision": "auto"}).precision == precision


def test_auto_is_fp32_without_the_instructions_whatever_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_bf16_speedup", lambda: 9.0)  # as where the fp32 product was held up
    monkeypatch.setattr(hardware, "cpu_has_bf16", lambda: False)
    assert Hardware(**CPU | {"precision": "auto"}).precision == "fp32"


def test_the_speed_is_measured_once_and_quickly() -> None:
    hardware.cpu_bf16_speedup.cache_clear()
    began = time.perf_counter()
    speedup = hardware.cpu_bf16_speedup()
    assert time.perf_counter() - began < 1
    assert speedup > 0
    assert hardware.cpu_bf16_speedup() == speedup


def test_threads_are_set_or_left() -> None:
    torch.set_num_threads(1)
    Hardware(**CPU)
    assert torch.get_num_threads() == 1
    assert Hardware(**CPU | {"threads": 2}).describe()["threads"] == 2


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"hardware\.device=cuda: .* allowed: auto, cpu"):
        Hardware(**CPU | {"device": "cuda"})
    assert Hardware(**CPU | {"device": "auto"}).device == torch.device("cpu")


def test_graphs_are_of_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"hardware\.decode=cuda_graph: needs a CUDA GPU, .* cpu; allowed: auto, eager"
    ):
        Hardware(**CPU | {"decode": "cuda_graph"})
    assert Hardware(**CPU).placed(tiny.policy()).replays is None
    made: list[Any] = []
    monkeypatch.setattr(hardware, "find_device", lambda device: "cuda")
    monkeypatch.setattr(hardware, "CudaGraphs", lambda: made.append(lambda step: step) or made[-1])
    assert Hardware(**CPU | {"decode": "eager"}).decode == "eager"
    here = Hardware(**CPU)
    assert here.decode == "cuda_graph", "what auto takes there"
    here.device = torch.device("cpu")  # a model cannot go to the other one here
    replays = [here.placed(tiny.policy()).replays for _ in range(2)]
    assert [own.record for own in replays if isinstance(own, Replays)] == made
    assert len(set(made)) == 2, "a model's own"


def test_a_gpus_functions_are_compiled_where_a_run_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"hardware\.compile=true: needs a CUDA GPU, .* on cpu; allowed: false"):
        Hardware(**CPU | {"compile": True})
    asked: list[str | None] = []
    monkeypatch.setattr(hardware, "find_device", lambda device: "cuda")
    monkeypatch.setattr(hardware, "compile_fusible", asked.append)
    Hardware(**CPU)
    monkeypatch.setattr(hardware, "check_compiler", lambda device: None)
    Hardware(**CPU | {"compile": True})
    assert asked == [None, None, "cuda"]


def test_kernels_are_tritons_on_a_gpu_where_they_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(kernel_check, "use_kernels", found.append)
    assert Hardware(**CPU).kernels == "torch"
    with pytest.raises(
        ConfigError, match=r"hardware\.kernels=triton: needs a CUDA GPU, .* on cpu; allowed: auto, torch"
    ):
        Hardware(**CPU | {"kernels": "triton"})
    kernels = Mock()
    monkeypatch.setattr(kernel_check, "triton_kernels", lambda: kernels)
    monkeypatch.setattr(hardware, "find_device", lambda device: "cuda")
    asked: list[Any] = []
    monkeypatch.setattr(kernel_check, "differing", lambda *given: asked.append(given))
    here = Hardware(**CPU)
    assert (here.kernels, here.doubt, asked) == ("triton", None, [(kernels, torch.device("cuda"), torch.float32)])
    assert found[-1] is kernels
    here = Hardware(**CPU | {"kernels": "torch"})
    assert (here.kernels, here.doubt, found[-1]) == ("torch", None, None)
    monkeypatch.setattr(kernel_check, "differing", lambda *given: "draw")
    here = Hardware(**CPU)
    told = "on this GPU, the kernel `draw` does not compute what PyTorch computes"
    assert (here.kernels, here.doubt, found[-1]) == ("torch", told, None)
    here.device = torch.device("cpu")  # a model cannot go to the other one here
    here.decode = "eager"
    made = Pretrained(tiny.policy(), tokenizers.characters())
    monkeypatch.setattr(build, "make", lambda *given: made)
    build.load_policy({"model": {}}, here)
    assert capsys.readouterr().err == f"note: hardware.kernels=torch, the slower ones: {told}\n"

    def broken(*given: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nand a page more")

    monkeypatch.setattr(kernel_check, "differing", broken)
    assert Hardware(**CPU).doubt == "Triton does not work here (RuntimeError: Failed to find C compiler.)"
    with pytest.raises(ConfigError) as error:
        Hardware(**CPU | {"kernels": "triton"})
    told = "Triton does not work here (RuntimeError: Failed to find C compiler.); allowed: auto, torch"
    assert str(error.value) == f"hardware.kernels=triton: {told}"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)  # as after an illegal access: nothing works any more
    with pytest.raises(ConfigError, match=r"a kernel broke the GPU's context \(RuntimeError: .*\); allowed: torch"):
        Hardware(**CPU)


def test_a_compiler_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any) -> Any:
        raise RuntimeError("InvalidCxxCompiler: no working C++ compiler\nand a page more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(ConfigError) as found:
        hardware.check_compiler(torch.device("cpu"))
    reason = "InvalidCxxCompiler: no working C++ compiler"
    assert str(found.value) == f"hardware.compile=true: torch.compile fails here ({reason}); allowed: false"


@pytest.mark.parametrize(("device", "sizes"), [("cpu", (24, 1024)), ("cuda", (64, 8192))])
def test_sizes_that_are_not_given_are_those_of_the_device(
    device: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "find_device", lambda _: device)
    here = Hardware(**CPU | {"micro_batch": None, "head_chunk": None})
    assert (here.micro_batch, here.head_chunk) == sizes
    here = Hardware(**CPU | {"micro_batch": 3})
    assert (here.micro_batch, here.head_chunk) == (3, 64)


def test_a_gpu_computes_fp32_in_fp32_and_plans_no_attention_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.set_float32_matmul_precision("high")
        Hardware(**CPU)
        assert torch.backends.cuda.cudnn_sdp_enabled()
        monkeypatch.setattr(hardware, "find_device", lambda _: "cuda")
        Hardware(**CPU)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before[0])
        torch.set_float32_matmul_precision(before[1])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_kept_where_glibc_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.libc_ver()[0] == "glibc":
        assert allocator.keep_freed_memory()
    asked: list[tuple[int, int]] = []
    old = SimpleNamespace(mallopt=lambda name, size: asked.append((name, size)) or int(size <= 1 << 25))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: old)
    assert allocator.keep_freed_memory()
    assert asked == [(-3, 1 << 30), (-3, 1 << 25), (-1, -1)], "an older glibc has a limit"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()


MANY_SHAPES = """
import torch
from rookexp.allocator import keep_few_primitives
from rookexp.hardware import kib

keep_few_primitives()
weight = torch.ones(256, 256, dtype=torch.bfloat16)
grown = []
for first, end in ((100, 400), (400, 500)):  # more than are kept, then others
    for rows in range(first, end):
        torch.nn.functional.linear(torch.ones(rows, 256, dtype=torch.bfloat16), weight)
    grown.append(kib("/proc/self/status", "VmRSS") >> 20)
print(grown[-1] - grown[0])
"""


@pytest.mark.skipif(sys.platform != "linux" or not hardware.cpu_has_bf16(), reason="oneDNN's products, /proc")
def test_products_of_ever_new_shapes_take_no_more_memory(root: Path) -> None:
    for given, grows in (({}, False), (dict.fromkeys(allocator.PRIMITIVE_CACHES, "1024"), True)):
        env = {name: value for name, value in os.environ.items() if name not in allocator.PRIMITIVE_CACHES}
        done = subprocess.run([sys.executable, "-c", MANY_SHAPES], cwd=root, env=env | given, capture_output=True)
        assert (int(done.stdout) > 25) == grows, "MiB; what is set already stands"


def test_only_a_cpu_run_that_may_changes_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(hardware, "keep_freed_memory", lambda: calls.append(1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Hardware(**CPU | {"device": "cuda"})
    Hardware(**CPU | {"keep_freed": False})
    assert not calls
    Hardware(**CPU)
    assert calls


def test_products_are_bounded_on_a_cpu_before_the_first_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(hardware, "keep_few_primitives", lambda: calls.append("bound"))
    monkeypatch.setattr(hardware, "fastest_precision", lambda device: calls.append("product") or "fp32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Hardware(**CPU | {"device": "cuda"})
    assert not calls
    Hardware(**CPU | {"precision": "auto"})
    assert calls == ["bound", "product"]


def test_what_is_said_of_a_run() -> None:
    said = Hardware(**CPU).describe()
    assert set(said) == {"device", "device_name", "threads", "precision", "torch", "python"}
    assert all(said.values())


needs_peaks = pytest.mark.skipif(not os.access(hardware.CLEAR_REFS, os.W_OK), reason="no peak of a process here")


@needs_peaks
def test_the_peak_is_what_was_resident_since_the_restart() -> None:
    memory = Hardware(**CPU).memory()
    memory.restart()
    before = memory.peak()
    with mmap.mmap(-1, 1 << 26) as block:  # not from memory that this process has freed and kept
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        assert memory.peak() - before > len(block) * 0.9
    assert before < memory.limit
    memory.restart()
    assert memory.peak() < before + (1 << 25)


@needs_peaks
def test_the_limit_is_given_or_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Hardware(**CPU | {"fit": True, "memory_gib": 1.5}).memory().limit == 3 << 29
    assert Hardware(**CPU | {"fit": True, "memory_gib": 0.001}).memory().limit == int(0.001 * hardware.GIB)
    monkeypatch.setattr(hardware, "limits", list)
    assert Hardware(**CPU).memory().limit > 1 << 27
    monkeypatch.setattr(hardware, "limits", lambda: [1 << 26])
    assert Hardware(**CPU).memory().limit == 1 << 26, "a container's limit is the smaller one"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "max\n"}, []),
        ("0::/a/job\n", {"a/memory.max": "7\n", "a/job/memory.max": "9\n", "a/other/memory.max": "1\n"}, [9, 7]),
        ("0::/not/seen/here\n", {"memory.max": "5\n"}, [5]),
        (
            "5:cpu:/a\n4:hugetlb,memory:/a/job\n1:name=systemd:/a\n0::/a\n",
            {f"memory/{name}memory.limit_in_bytes": f"{n}\n" for name, n in (("", 9), ("a/", 7), ("a/job/", 8))},
            [8, 7, 9],
        ),
        (None, {"memory.max": "5\n"}, []),
    ],
)
def test_limits_are_those_of_all_control_groups_around_the_process(
    own: str | None, files: dict[str, str], expected: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text, encoding="utf-8")
    if own is not None:
        (tmp_path / "own").write_text(own, encoding="utf-8")
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(hardware, "OWN_CGROUPS", tmp_path / "own")
    assert hardware.limits() == expected


@needs_peaks
def test_what_an_earlier_run_has_left_is_freed_first() -> None:
    memory = Hardware(**CPU).memory()
    memory.restart()
    before = memory.peak()
    left: list[Any] = [torch.ones(1 << 25)]  # 128 MiB
    left.append(left)
    del left
    memory.restart()
    assert memory.peak() - before < 1 << 25


@pytest.mark.parametrize("given", [0, 1e-10, 1e300])
def test_a_limit_that_no_machine_has_is_refused(given: float) -> None:
    node = {"_target_": "rookexp.hardware.Hardware", **CPU, "fit": True, "memory_gib": given}
    with pytest.raises(ConfigError, match=r"hardware\.memory_gib=.*: allowed: a number >= 0\.001 and <= 1000000"):
        check.check_node(node, "hardware")


def test_a_limit_without_fit_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"hardware\.memory_gib=8: needs hardware\.fit=true; without it type hardware\.memory_gib=null",
    ):
        Hardware(**CPU | {"memory_gib": 8})


@pytest.mark.parametrize("door", ["evaluate", "uci"])
def test_fit_is_refused_where_nothing_is_trained(door: str, root: Path, tmp_path: Path) -> None:
    file = root / "rookexp" / "assets" / "positions" / "transitions-eval.txt"
    typed = ["hardware=cpu", "hardware.fit=true", *([f"documents=[{file}]"] if door == "evaluate" else [])]
    done = subprocess.run(
        [sys.executable, "-m", f"rookexp.{door}", *typed], input="isready\n", cwd=tmp_path, text=True,
        env={"PYTHONPATH": str(root), "PATH": os.environ["PATH"]}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: hardware.fit=true: of training alone; allowed here: false"


def test_fit_is_refused_where_nothing_tells_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "CLEAR_REFS", Path("/nowhere"))
    with pytest.raises(ConfigError, match=r"hardware\.fit=true: .* memory of cpu .*; allowed: false"):
        Hardware(**CPU | {"fit": True}).memory()


def test_every_option_computes_in_its_own_way() -> None:
    names = sorted(path.stem for path in (composing.conf_dir() / "hardware").glob("*.yaml"))
    assert names == ["auto", "cpu", "cuda", "h100", "h200", "rtx3080", "rtx4090"]
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        nodes = [hydra.compose(f"hardware/{name}")["hardware"] for name in names]
    ways = {tuple(node[key] for key in ("device", "precision", "micro_batch", "head_chunk")) for node in nodes}
    assert len(ways) == len(names)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_allocator_tells_the_peak_on_a_gpu() -> None:
    memory = Hardware(**CPU | {"device": "cuda"}).memory()
    memory.restart()
    before = memory.peak()
    block = torch.ones(1 << 26, device="cuda")  # 256 MiB
    assert memory.peak() - before >= block.nbytes
    del block
    memory.restart()
    assert memory.peak() == before
    assert 0 < before + (1 << 28) < memory.limit


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_preferred() -> None:
    here = Hardware(**CPU | {"device": "auto", "precision": "auto"})
    assert here.device.type == "cuda"
    assert here.describe()["device_name"] == torch.cuda.get_device_name()
