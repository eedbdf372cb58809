"""Linear layers for decoding: their matrices are laid out or cast once instead of in every product of a few rows."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rookexp.ops import aligned

ROWS = 32  # number of input rows the layout is optimised for; any number works
# Elements of a float32 matrix up to which the plain product is faster for few rows: a oneDNN call alone takes 15 us.
SMALL = 1 << 17


class PackedLinear(nn.Module):
    """`nn.Linear` with a packed copy of its weights: later changes to the originals do not reach it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.matrix: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), ROWS)
        self.offset = None if bias is None else bias.detach().to(dtype)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n k"]:
        """x @ weight.T + bias."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.matrix, self.offset, "none", [], "")
        return product


class CopiedLinear(nn.Module):
    """`nn.Linear` with a copy of its weights in `dtype`; `copies` can be refreshed in place from `sources`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.sources = [x for x in (weight, bias) if x is not None]
        self.operands = [aligned(x.detach(), dtype).clone() for x in self.sources]
        self.copies = [x[: len(weight)] for x in self.operands]

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n k"]:
        """x @ weight.T + bias."""
        return F.linear(x.to(self.operands[0].dtype), *self.operands)[..., : len(self.copies[0])]


def product_dtype(device_type: str) -> torch.dtype | None:
    """The dtype of matrix products under the caller's autocast; None without autocast: the weights' own dtype."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def packing(weight: Tensor) -> Callable[[Tensor, Tensor | None], nn.Module] | None:
    """A function that packs matrices like `weight` in the dtype of the caller's autocast; None where none can be."""
    dtype = product_dtype("cpu") or weight.dtype
    able = dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if weight.device.type != "cpu" or not able or not torch.backends.mkldnn.is_available():
        return None

    def pack(weight: Tensor, bias: Tensor | None) -> nn.Module:
        small = dtype == torch.float32 and weight.numel() <= SMALL
        return (CopiedLinear if small else PackedLinear)(weight, bias, dtype)

    return pack


def with_packed_layers(module: nn.Module, pack: Callable[[Tensor, Tensor | None], nn.Module]) -> nn.Module:
    """A copy of `module` that shares its weights, except that `pack` has replaced the linear layers."""
    twin = copy.copy(module)
    twin._modules = {
        name: pack(child.weight, child.bias) if isinstance(child, nn.Linear) else with_packed_layers(child, pack)
        for name, child in module._modules.items()
        if child is not None
    }
    return twin
