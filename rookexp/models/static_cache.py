"""A KV cache whose buffers never move, so that one recorded decoding step serves every token of every batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from rookexp.models.kv_cache import KVCache


class StaticCache:
    """Keys and values of P prompts and of the tokens that G rows per prompt add in lockstep, in the products' dtype.

    Each prompt has its tokens stored once, then the first token of each of its rows, then the second of each, and so
    on. So its rows attend together, each to the prompt and to its own tokens by a mask, and a step reads only as far as
    slots are filled. How far that is, only the device knows.
    """

    def __init__(
        self, like: KVCache, size: int, group_size: int, capacity: int, dtype: torch.dtype, memory: UInt8[Tensor, " b"]
    ) -> None:
        """Room for prompts as in `like`, of up to `size` tokens, and `capacity` tokens a row, in the first bytes of
        `memory`."""
        layers, prompts, heads, _, width = like.prompt_keys.shape
        self.size = size
        self.group_size = group_size
        shape = layers, 2, prompts, heads, size + group_size * capacity, width
        self.kept = memory[: self.bytes(like, size, group_size, capacity, dtype)].view(dtype).view(shape)
        # (P, 1, G, slots): 0 where a row may look, else -inf; `own` is the part of it where each row's newest token is.
        self.mask = self.kept.new_zeros(prompts, 1, group_size, shape[4])
        own = self.kept.new_full((group_size, group_size), -torch.inf).fill_diagonal_(0)
        self.own = own.expand_as(self.mask[..., :group_size])
        self.slots = torch.arange(group_size, device=memory.device)  # (G,) where the rows' next tokens are stored
        self.positions = self.slots.repeat(prompts)  # (N,) the column of each row's next token
        self.window = 0  # added tokens that `attend` reads; the next one must be among them

    @staticmethod
    def bytes(like: KVCache, size: int, group_size: int, capacity: int, dtype: torch.dtype) -> int:
        """The memory that the keys and values of such a cache take."""
        layers, prompts, heads, _, width = like.prompt_keys.shape
        return 2 * layers * heads * width * prompts * (size + group_size * capacity) * dtype.itemsize

    def fill(self, cache: KVCache) -> None:
        """Starts over with the prompts of `cache` and no added tokens."""
        size = cache.prompt_keys.shape[3]
        torch.arange(self.size, self.size + self.group_size, out=self.slots)
        self.positions.copy_(cache.positions)
        self.kept[:, 0, ..., :size, :] = cache.prompt_keys
        self.kept[:, 1, ..., :size, :] = cache.prompt_values
        self.kept[..., size:, :].zero_()  # leftovers of an earlier batch have weight 0, but 0 * NaN is NaN
        self.mask.fill_(-torch.inf)
        self.mask[..., :size] = cache.bias[:, :1]

    def attend(self, layer: int, qkv: Float[Tensor, "n 1 k"]) -> Float[Tensor, "n 1 d"]:
        """The attention output, heads joined, of one more token per row; caches its key and value."""
        _, _, p, h, _, w = self.kept.shape
        apart = qkv.to(self.kept.dtype).view(p, self.group_size, 3, h, w).permute(2, 0, 3, 1, 4)
        q, new = apart[0], apart[1:]  # (P, H, G, W); keys and values (2, P, H, G, W)
        if layer == 0:
            self.mask.index_copy_(3, self.slots, self.own)
        self.kept[layer].index_copy_(3, self.slots, new)
        keys, values = self.kept[layer]
        seen = self.size + self.window * self.group_size
        found = F.scaled_dot_product_attention(q, keys[:, :, :seen], values[:, :, :seen], self.mask[..., :seen])
        return found.transpose(1, 2).reshape(p * self.group_size, 1, h * w).to(qkv.dtype)

    def step(self) -> None:
        """Counts the tokens that `attend` has added to every layer."""
        self.slots += self.group_size
        self.positions += 1
