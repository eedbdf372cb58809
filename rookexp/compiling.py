"""Functions of many small passes over tensors: where a GPU computes them, one kernel may take the place of many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What CUDA GPUs compute by kernels of their own; each function is described in `rookexp.kernels`."""

    add_and_norm: Callable[..., tuple[Tensor, Tensor]]
    attend: Callable[..., Tensor]
    draw: Callable[..., tuple[Tensor, Tensor]]
    statistics: Callable[..., tuple[Tensor, Tensor]]
    to_gradient: Callable[..., None]


_compiled_on: str | None = None  # type of device
_kernels: Kernels | None = None


def triton_kernels() -> Kernels:
    """The kernels of this package. Raises: ImportError, or Triton's own errors, where Triton does not work."""
    from rookexp.kernels import attention, logits, norm

    return Kernels(norm.add_and_norm, attention.attend, logits.draw, logits.statistics, logits.to_gradient)


def compile_fusible(device_type: str | None) -> None:
    """From now on, in this process, `fusible` functions of tensors on such a device are compiled, at the first call."""
    global _compiled_on
    _compiled_on = device_type


def use_kernels(kernels: Kernels | None) -> None:
    """From now on, in this process, `kernels_for` finds these."""
    global _kernels
    _kernels = kernels


def kernels_for(x: Tensor) -> Kernels | None:
    """What `use_kernels` was given, if `x` is on a CUDA GPU, in at most 32 bits."""
    return _kernels if x.device.type == "cuda" and x.dtype.itemsize <= 4 else None


def fusible(function: Callable[P, R]) -> Callable[P, R]:
    """The function, or where `compile_fusible` asks for it its compiled form: the same results, up to rounding."""

    @functools.cache
    def compiled() -> Callable[P, R]:
        return torch.compile(function, dynamic=True)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        there = any(isinstance(x, Tensor) and x.device.type == _compiled_on for x in args)
        return (compiled() if there else function)(*args, **kwargs)

    return call
