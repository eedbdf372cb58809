"""The key-value cache of a decoding transformer, and the attention of new tokens to it."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


class KVCache:
    """Keys and values of P prompts, stored once each, and of the tokens that N rows, one group per prompt, have added.

    While all groups are whole, their rows are contiguous under each head, so that one product with a prompt's keys
    serves its group without a copy; after rows are dropped, each is stored by itself. Rows that add tokens in lockstep,
    as in `decode`, leave no gaps: no mask, no scattered writes. After `decode_ahead` each row has its own token count.
    Stored and attended in fp32: scores rounded to bf16 would make the sampler differ from the training forward.
    """

    def __init__(
        self,
        prompt_keys: Float[Tensor, "l p h s w"],
        prompt_values: Float[Tensor, "l p h s w"],
        lengths: Int[Tensor, " p"],
        group_size: int,
        capacity: int,
    ) -> None:
        layers, prompts, heads, size, width = prompt_keys.shape
        self.prompt_keys = prompt_keys
        self.prompt_values = prompt_values
        self.lengths = lengths  # (P,) tokens of each prompt
        padding = torch.arange(size, device=lengths.device) >= lengths[:, None]
        bias = prompt_keys.new_zeros(prompts, size).masked_fill_(padding, -torch.inf)
        self.bias = bias[:, None, None].repeat(1, heads, 1, 1)  # (P, H, 1, S)
        # Keys and values of added tokens, (L, 2, P, H, G, capacity, D/H); (L, 2, N, H, 1, ...) after rows are dropped.
        self.own = prompt_keys.new_empty(layers, 2, prompts, heads, group_size, capacity, width)
        self.added = 0  # most tokens that any row has added
        self.counts: Tensor | None = None  # (N,) tokens that each row has added; None = `added` in every row
        self._assign(torch.arange(prompts, device=lengths.device).repeat_interleave(group_size))

    @property
    def positions(self) -> Int[Tensor, " n"]:
        """The column of each row's next token."""
        return self.lengths[self.owner] + (self.added if self.counts is None else self.counts)

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Drops all rows but `rows`, indices in ascending order, and the prompts that no row continues."""
        layers, _, _, heads, group_size, capacity, width = self.own.shape
        places = rows // group_size, slice(None), rows % group_size, slice(self.added)
        shape = len(rows), heads, 1, capacity, width
        own = self.own.view(layers, 2, -1)[..., : torch.Size(shape).numel()].view(layers, 2, *shape)
        for old, new in zip(self.own.flatten(0, 1), own.flatten(0, 1), strict=True):
            new[:, :, 0, : self.added] = old[places]  # in place: beside a full cache there may be no memory for another
        self.own = own
        self.counts = None if self.counts is None else self.counts[rows]
        prompts, owner = self.owner[rows].unique(return_inverse=True)
        self.prompt_keys, self.prompt_values = self.prompt_keys[:, prompts], self.prompt_values[:, prompts]
        self.lengths, self.bias = self.lengths[prompts], self.bias[prompts]
        self._assign(owner)

    def advance(self, taken: Int[Tensor, " n"]) -> None:
        """Keeps each row's first `taken` tokens of the last `decode_ahead`."""
        if self.counts is None:  # from now on rows may have unfilled slots: weight 0, but 0 * NaN is NaN
            self.own[..., self.added :, :].nan_to_num_()
        self.counts = taken if self.counts is None else self.counts + taken
        self.added = int(self.counts.max())

    def step(self) -> None:
        """Counts the tokens that `attend` has added to every layer."""
        self.added += 1

    def attend(self, layer: int, qkv: Float[Tensor, "n 1 k"]) -> Float[Tensor, "n 1 d"]:
        """The attention output, heads joined, of one more token per row; caches its key and value."""
        q, new = self._heads(qkv)
        self.own[layer, ..., self.added, :] = new[..., 0, :]
        return self._attended(layer, q, self.added + 1, None, qkv.dtype)

    def attend_ahead(self, layer: int, qkv: Float[Tensor, "n m k"], places: Int[Tensor, "n m"]) -> Tensor:
        """`attend` for M tokens per row, stored in the slots `places` (N, M); each sees the slots up to its own."""
        q, new = self._heads(qkv)
        at = places.view(q.shape[0], 1, q.shape[2], -1, 1)
        self.own[layer].scatter_(4, at.expand_as(new), new.to(q.dtype))
        size = self.added + places.shape[1]
        return self._attended(layer, q, size, torch.arange(size, device=at.device) > at, qkv.dtype)

    def _heads(self, qkv: Float[Tensor, "n m k"]) -> tuple[Tensor, Tensor]:
        """Queries (P, H, G, M, W), divided by the root of W, and keys and values (2, P, H, G, M, W)."""
        _, _, p, h, g, _, w = self.own.shape
        apart = qkv.view(p, g, -1, 3, h, w).permute(3, 0, 4, 1, 2, 5)
        q = torch.empty(apart.shape[1:], dtype=self.own.dtype, device=qkv.device).copy_(apart[0])
        return q.mul_(w**-0.5), apart[1:]

    def _attended(
        self, layer: int, q: Float[Tensor, "p h g m w"], size: int, hidden: Tensor | None, dtype: torch.dtype
    ) -> Float[Tensor, "n m d"]:
        """The attention output, heads joined, over prompts and the first `size` added tokens where not `hidden`."""
        p, h, g, m, w = q.shape
        prompt_keys, prompt_values, keys, values = self.flat[layer]
        with torch.autocast(q.device.type, enabled=False):
            on_prompt = torch.baddbmm(self.flat_bias, self._together(q), prompt_keys)
            on_added = torch.bmm(q.view(-1, m, w), keys[..., :size]).view(p, h, g, m, size)
            if hidden is not None:
                on_added = on_added.masked_fill_(hidden, -torch.inf)
            weights = torch.cat((self._apart(on_prompt, q), on_added), -1).softmax(-1)  # (P, H, G, M, S + A)
            on_prompt, on_added = weights.split((on_prompt.shape[2], size), -1)
            out = self._apart(torch.bmm(self._together(on_prompt), prompt_values), q).view(-1, m, w)
            out = out.baddbmm_(on_added.view(-1, m, size), values[:, :size]).view(q.shape)
        joined = torch.empty(p, g, m, h, w, dtype=dtype, device=q.device).copy_(out.permute(0, 2, 3, 1, 4))
        return joined.view(p * g, m, h * w)

    def _assign(self, owner: Int[Tensor, " n"]) -> None:
        """Sets the indices and views that depend on `owner`: row n continues prompt owner[n], sorted by prompt."""
        counts = owner.bincount()
        first = counts.cumsum(0) - counts
        self.owner = owner
        self.place = torch.arange(len(owner), device=owner.device) - first[owner]  # (N,) a row's index in its group
        places = torch.arange(int(counts.max()), device=owner.device)
        self.members = (first[:, None] + places).clamp(max=len(owner) - 1)  # (P, G); short groups end in other rows
        self.whole = self.own.shape[2] == len(counts)  # rows are stored as the products with prompts need them
        # Views for the products, per layer: keys (P H, W, S) and values (P H, S, W) of the prompts, and those of the
        # added tokens, (N H, W, capacity) and (N H, capacity, W).
        self.flat = [
            (k.flatten(0, 1).mT, v.flatten(0, 1), own[0].flatten(0, 2).mT, own[1].flatten(0, 2))
            for k, v, own in zip(self.prompt_keys, self.prompt_values, self.own, strict=True)
        ]
        self.flat_bias = self.bias.flatten(0, 1)  # (P H, 1, S)

    def _together(self, x: Float[Tensor, "p h g m k"]) -> Float[Tensor, "ph gm k"]:
        """The rows of each group in one dimension, so that one product with their prompt serves them all."""
        groups = x if self.whole else x[self.members, :, 0].transpose(1, 2)
        return groups.reshape(-1, groups.shape[2] * x.shape[3], x.shape[4])

    def _apart(self, x: Float[Tensor, "ph gm k"], like: Float[Tensor, "p h g m w"]) -> Float[Tensor, "p h g m k"]:
        """The inverse of `_together`: the rows in the layout of `like`."""
        _, h, _, m, _ = like.shape
        groups = x.view(len(self.members), h, -1, m, x.shape[2])
        return groups if self.whole else groups[self.owner, :, self.place, None]
