"""A device that is none: its tensors refuse what a GPU's refuse, and count how often the host waits for them.

They lie in the host's memory all the same, so that what runs on it gives the numbers of a CPU. It knows nothing of what
is peculiar to CUDA: kernels, autocast, graphs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretended"
OURS = str(Path(__file__).resolve().parent.parent / "rookexp")
aten = torch.ops.aten
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "bincount", "equal", "is_nonzero")
JOINING = (aten.stack.default, aten.cat.default)  # these take no number of another device, either
MATH = 0  # the attention that is made of other operations


class Waits(Counter[str]):
    """How often the host waited for the device, by the function of the package that it did so in."""

    def note(self) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and not frame.f_code.co_filename.startswith(OURS):
            frame = frame.f_back
        self[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"] += 1


class OnDevice(Tensor):
    """A tensor on the device."""

    numbers: Tensor  # what is in it
    waits: Waits  # its device's

    @staticmethod
    def __new__(cls, numbers: Tensor, waits: Waits) -> OnDevice:
        make: Any = Tensor._make_wrapper_subclass
        made: OnDevice = make(
            cls,
            numbers.shape,
            numbers.stride(),
            numbers.storage_offset(),
            dtype=numbers.dtype,
            device=torch.device(NAME, 0),
        )
        made.numbers, made.waits = numbers, waits
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.numbers!r})"

    def tolist(self) -> Any:
        self.waits.note()
        return self.numbers.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(func, args, kwargs or {}, None)


class Device(TorchDispatchMode):
    """While it is entered, tensors can be made on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = Waits()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {}, self.waits)


def computed(func: Any, args: Any, kwargs: dict[str, Any], waits: Waits | None) -> Any:
    """The operation's result, on the device if its arguments are; refused where some are and others are not."""
    if func is aten._fused_sdp_choice.default:
        return MATH
    tensors = [x for x in leaves([*args, *kwargs.values()]) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, OnDevice)]
    waits = there[0].waits if waits is None else waits
    asked = kwargs.get("device")
    to_device = bool(there) if asked is None else torch.device(asked).type == NAME
    if func is aten.copy_.default:
        to_device = isinstance(args[0], OnDevice)
    elif there and func is not aten._to_copy.default:
        lost = [x for x in tensors if not isinstance(x, OnDevice) and (x.dim() > 0 or func in JOINING)]
        if lost and not (func in INDEXING and all(x.dtype == torch.long for x in lost)):
            raise RuntimeError(f"{func}: tensors on {NAME} and on the CPU: {[tuple(x.shape) for x in lost]}")
        by_mask = func in INDEXING and any(x.dtype == torch.bool for x in args[1] if x is not None)
        if by_mask or func.overloadpacket.__name__.startswith(WAITING):
            waits.note()
    if there and not to_device:
        waits.note()
    changed = {name: x if name != "device" or x is None else torch.device("cpu") for name, x in kwargs.items()}
    out = func(*plain(args), **{name: plain(x) for name, x in changed.items()})
    if func._schema.is_mutable:  # what was written to is given back, as it was given
        given = zip(func._schema.arguments, args, strict=False)
        written = [x for argument, x in given if argument.is_write] + [x for x in [kwargs.get("out")] if x is not None]
        returned = len(func._schema.returns)
        return (written[0] if returned == 1 else tuple(written)) if returned else None
    return wrapped(out, waits) if to_device else out


def leaves(x: Any) -> Iterator[Any]:
    """All that is in nested lists and tuples."""
    for item in x:
        if isinstance(item, list | tuple):
            yield from leaves(item)
        else:
            yield item


def plain(x: Any) -> Any:
    """The same on the CPU."""
    if isinstance(x, list | tuple):
        return type(x)(map(plain, x))
    return x.numbers if isinstance(x, OnDevice) else x


def wrapped(x: Any, waits: Waits) -> Any:
    """The same on the device."""
    if isinstance(x, list | tuple):
        return type(x)(wrapped(item, waits) for item in x)
    return OnDevice(x, waits) if isinstance(x, Tensor) else x


class Module(backend_registration._DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


@cache
def registered() -> None:
    """Makes the device known to this process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())


@contextmanager
def pretended_gpu() -> Iterator[Waits]:
    """A device that `torch.device(NAME)` stands for inside."""
    registered()
    swaps, lifts = torch.__future__.get_swap_module_params_on_conversion(), torch._C._only_lift_cpu_tensors()
    torch.__future__.set_swap_module_params_on_conversion(True)  # else module.to cannot change a parameter's kind
    torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor(..., device=NAME) asks no mode
    mode = torch.inference_mode
    begin, end = mode.__enter__, mode.__exit__
    mode.__enter__ = mode.__exit__ = lambda *_: None  # type: ignore[method-assign,assignment]  # this kind has no such
    try:
        with Device() as device:
            yield device.waits
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        torch._C._set_only_lift_cpu_tensors(lifts)
        mode.__enter__, mode.__exit__ = begin, end  # type: ignore[method-assign]
