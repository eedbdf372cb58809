"""Device, precision and what is said of them."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookexp import hardware
from rookexp.errors import ConfigError
from rookexp.hardware import Hardware

CPU: dict[str, Any] = {"device": "cpu", "threads": None, "precision": "fp32", "micro_batch": 4, "head_chunk": 64}


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
    assert Hardware(**CPU | {"precision": "auto"}).precision == precision


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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_kept_where_glibc_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.libc_ver()[0] == "glibc":
        assert hardware.keep_freed_memory()
    asked: list[tuple[int, int]] = []
    old = SimpleNamespace(mallopt=lambda name, size: asked.append((name, size)) or int(size <= 1 << 25))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: old)
    assert hardware.keep_freed_memory()
    assert asked == [(-3, 1 << 30), (-3, 1 << 25), (-1, 1 << 30), (-1, 1 << 25)], "an older glibc has a limit"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not hardware.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not hardware.keep_freed_memory()


def test_only_a_cpu_run_changes_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(hardware, "keep_freed_memory", lambda: calls.append(1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Hardware(**CPU | {"device": "cuda"})
    assert not calls
    Hardware(**CPU)
    assert calls


def test_what_is_said_of_a_run() -> None:
    said = Hardware(**CPU).describe()
    assert set(said) == {"device", "device_name", "threads", "precision", "torch", "python"}
    assert all(said.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_preferred() -> None:
    here = Hardware(**CPU | {"device": "auto", "precision": "auto"})
    assert here.device.type == "cuda"
    assert here.describe()["device_name"] == torch.cuda.get_device_name()
