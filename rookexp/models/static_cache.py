"""A KV cache whose buffers never move, so that one recorded decoding step serves every token of every batch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rookexp.models.kv_cache import KVCache


class StaticCache(KVCache):
    """A KVCache allocated at full capacity from the start; the number of tokens in it is kept on the device.

    Attention reads the slots of added tokens up to `window`, a number on the host, and masks those after the newest
    token. Rows are never dropped.
    """

    def __init__(self, like: KVCache, size: int, group_size: int, capacity: int, memory: Float[Tensor, " m"]) -> None:
        """Room for prompts as in `like`, up to `size` tokens each, in the first `element_count` items of `memory`."""
        layers, prompts, heads, _, width = like.prompt_keys.shape
        shape = layers, prompts, heads, size, width
        each = torch.Size(shape).numel()
        keys, values = memory[: 2 * each].view(2, *shape)
        super().__init__(keys, values, torch.zeros_like(like.lengths), group_size, 0)
        own = memory[2 * each : self.element_count(like, size, group_size, capacity)]
        self.own = own.view(layers, 2, prompts, heads, group_size, capacity, width)
        self._assign(self.owner)
        self.slots = torch.arange(capacity, device=memory.device)
        self.hidden = self.slots > 0  # True at the slots after the next token's
        self.written = torch.zeros(1, dtype=torch.long, device=memory.device)  # tokens that each row has added
        self.window = 0  # slots that `attend` reads

    @staticmethod
    def element_count(like: KVCache, size: int, group_size: int, capacity: int) -> int:
        """The number of elements of memory that such a cache takes."""
        layers, prompts, heads, _, width = like.prompt_keys.shape
        return 2 * layers * heads * width * prompts * (size + group_size * capacity)

    @property
    def positions(self) -> Tensor:
        """The column of each row's next token."""
        return self.lengths[self.owner] + self.written

    def fill(self, cache: KVCache) -> None:
        """Starts over with the prompts of `cache` and no added tokens."""
        size = cache.prompt_keys.shape[3]
        self.bias.fill_(-torch.inf)
        self.bias[..., :size] = cache.bias
        self.lengths.copy_(cache.lengths)
        for own, new in ((self.prompt_keys, cache.prompt_keys), (self.prompt_values, cache.prompt_values)):
            own[..., :size, :] = new
            own[..., size:, :].zero_()  # leftovers of an earlier batch have weight 0, but 0 * NaN is NaN
        self.own.zero_()
        self.written.zero_()
        self.hidden.copy_(self.slots > 0)

    def attend(self, layer: int, qkv: Float[Tensor, "n 1 k"]) -> Float[Tensor, "n 1 d"]:
        """The attention output, heads joined, of one more token per row; caches its key and value."""
        q, new = self._heads(qkv)
        self.own[layer].index_copy_(4, self.written, new.to(q.dtype))
        return self._attended(layer, q, self.window, self.hidden[: self.window], qkv.dtype)

    def step(self) -> None:
        """Counts the tokens that `attend` has added to every layer."""
        self.written += 1
        torch.gt(self.slots, self.written, out=self.hidden)
