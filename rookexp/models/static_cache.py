"""A KV cache whose buffers never move, so that one recorded decoding step serves every token of every batch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from rookexp.compiling import kernels_for
from rookexp.models.kv_cache import KVCache

SHARERS = 4  # most rows that attend together to one copy of their prompt; more would leave parts of a GPU idle


class StaticCache:
    """Keys and values of P prompts and of the tokens that G rows per prompt add in lockstep, in the products' dtype.

    Up to SHARERS rows of a prompt are a bunch, with the prompt's tokens stored once, then the first token of each of
    its rows, then the second of each, and so on. So they attend together, and each to the prompt and its own tokens.
    How many slots are filled, only the device knows. A kernel reads these; PyTorch's attention reads a whole window
    under a mask.
    """

    def __init__(
        self, like: KVCache, size: int, group_size: int, capacity: int, dtype: torch.dtype, memory: UInt8[Tensor, " b"]
    ) -> None:
        """Room at the start of `memory` for `like`'s prompts, up to `size` tokens each, and `capacity` tokens a row."""
        shape = self.shape(like, size, group_size, capacity)
        bunches, sharers = shape[2], len(like.lengths) * group_size // shape[2]
        self.size = size
        self.kept = memory[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        self.kernels = kernels_for(self.kept)
        self.lengths = torch.zeros(bunches, dtype=torch.long, device=memory.device)  # tokens of each bunch's prompt
        # (B, 1, sharers, slots): 0 where a row may look, else -inf; `own` is its part at each row's newest token.
        self.mask = self.kept.new_zeros(bunches, 1, sharers, shape[4])
        own = self.kept.new_full((sharers, sharers), -torch.inf).fill_diagonal_(0)
        self.own = own.expand_as(self.mask[..., :sharers])
        self.slots = torch.arange(sharers, device=memory.device)  # where a bunch's next tokens are stored
        self.positions = self.slots.repeat(bunches)  # (N,) the column of each row's next token
        self.window = 0  # added tokens that `attend` reads without a kernel; the next one must be among them

    @staticmethod
    def shape(like: KVCache, size: int, group_size: int, capacity: int) -> tuple[int, ...]:
        """The shape of such a cache's keys and values: layers, these two, bunches, heads, slots, width of a head."""
        layers, prompts, heads, _, width = like.prompt_keys.shape
        sharers = max(number for number in range(1, SHARERS + 1) if group_size % number == 0)
        return layers, 2, prompts * group_size // sharers, heads, size + sharers * capacity, width

    def fill(self, cache: KVCache) -> None:
        """Starts over with the prompts of `cache` and no added tokens."""
        prompts, size = cache.bias.shape[0], cache.bias.shape[3]
        torch.arange(self.size, self.size + len(self.slots), out=self.slots)
        self.positions.copy_(cache.positions)
        self.lengths.view(prompts, -1).copy_(cache.lengths[:, None])
        kept = self.kept.unflatten(2, (prompts, -1))  # (L, 2, P, bunches of a prompt, H, slots, W)
        kept[:, 0, ..., :size, :] = cache.prompt_keys[:, :, None]
        kept[:, 1, ..., :size, :] = cache.prompt_values[:, :, None]
        if self.kernels is None:
            kept[..., size:, :].zero_()  # leftovers of an earlier batch have weight 0, but 0 * NaN is NaN
            self.mask.fill_(-torch.inf)
            self.mask.unflatten(0, (prompts, -1))[..., :size] = cache.bias[:, None, :1]

    def attend(self, layer: int, qkv: Float[Tensor, "n 1 k"]) -> Float[Tensor, "n 1 d"]:
        """The attention output, heads joined, of one more token per row; caches its key and value."""
        if self.kernels is not None:
            known = self.kept[layer], self.lengths, self.positions, self.size
            return self.kernels.attend(qkv[:, 0].to(self.kept.dtype), *known)[:, None].to(qkv.dtype)
        _, _, bunches, heads, _, width = self.kept.shape
        apart = qkv.to(self.kept.dtype).view(bunches, len(self.slots), 3, heads, width).permute(2, 0, 3, 1, 4)
        q, new = apart[0], apart[1:]  # (B, H, sharers, W); keys and values (2, B, H, sharers, W)
        if layer == 0:
            self.mask.index_copy_(3, self.slots, self.own)
        self.kept[layer].index_copy_(3, self.slots, new)
        keys, values = self.kept[layer]
        seen = self.size + self.window * len(self.slots)
        found = F.scaled_dot_product_attention(q, keys[:, :, :seen], values[:, :, :seen], self.mask[..., :seen])
        return found.transpose(1, 2).reshape(len(qkv), 1, -1).to(qkv.dtype)

    def step(self) -> None:
        """Counts the tokens that `attend` has added to every layer."""
        self.slots += len(self.slots)
        self.positions += 1
