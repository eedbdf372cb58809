"""What a transformer remembers while it decodes, and how a new token attends to it."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


class KVCache:
    """Keys and values of P prompts, held once each, and of the tokens that N rows, a group a prompt, have added since.

    Rows that add their tokens in step, as `decode` has them, leave no gaps: no mask, no scattered writes. After
    `decode_ahead` each row has its own count of tokens. Kept and attended in fp32: scores rounded to bf16 part the
    sampler from the training forward.
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
        self.bias = prompt_keys.new_zeros(prompts, 1, 1, size).masked_fill_(padding[:, None, None], -torch.inf)
        self.keys = prompt_keys.new_empty(layers, prompts * group_size, heads, capacity, width)
        self.values = torch.empty_like(self.keys)
        self.added = 0  # tokens that the row with the most of them has added
        self.counts: Tensor | None = None  # (N,) tokens that each row has added; None = `added`, all of them
        self._assign(torch.arange(prompts, device=lengths.device).repeat_interleave(group_size))

    @property
    def positions(self) -> Int[Tensor, " n"]:
        """The column of each row's next token."""
        return self.lengths[self.owner] + (self.added if self.counts is None else self.counts)

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Drops all rows but these, given in ascending order, and the prompts that no row continues."""

        for layer in (*self.keys, *self.values):  # in place: beside a full cache there may be no room for another
            layer[: len(rows), :, : self.added] = layer[rows, :, : self.added]
        self.keys, self.values = self.keys[:, : len(rows)], self.values[:, : len(rows)]
        self.counts = None if self.counts is None else self.counts[rows]
        prompts, owner = self.owner[rows].unique(return_inverse=True)
        self.prompt_keys, self.prompt_values = self.prompt_keys[:, prompts], self.prompt_values[:, prompts]
        self.lengths, self.bias = self.lengths[prompts], self.bias[prompts]
        self._assign(owner)

    def advance(self, taken: Int[Tensor, " n"]) -> None:
        """Of the tokens of the last `decode_ahead`, each row's first `taken` stay."""
        if self.counts is None:  # from now on rows have slots that they have not filled: weight 0, but 0 * NaN is NaN
            self.values[:, :, :, self.added :] = self.values[:, :, :, self.added :].nan_to_num()
        self.counts = taken if self.counts is None else self.counts + taken
        self.added = int(self.counts.max())

    def step(self) -> None:
        """The tokens just attended to are in."""
        self.added += 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "n h 1 w"]:
        """The heads' values of one more token a row from its (N, H, 1, D/H) query, key and value; caches the latter."""
        self.keys[layer, :, :, self.added] = k[:, :, 0]
        self.values[layer, :, :, self.added] = v[:, :, 0]
        return self._attended(layer, q, self.added + 1, None)

    def attend_ahead(self, layer: int, q: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> Float[Tensor, "n h m w"]:
        """`attend` for M tokens a row, which go to the cache's `slots` (N, M) and see the slots up to their own."""
        rows = torch.arange(len(q), device=q.device)[:, None]
        self.keys[layer, rows, :, slots] = k.transpose(1, 2).to(self.keys.dtype)
        self.values[layer, rows, :, slots] = v.transpose(1, 2).to(self.values.dtype)
        size = self.added + slots.shape[1]
        later = torch.arange(size, device=q.device) > slots[:, None, :, None]  # (N, 1, M, A)
        return self._attended(layer, q, size, later)

    def _attended(self, layer: int, q: Tensor, size: int, hidden: Tensor | None) -> Float[Tensor, "n h m w"]:
        """The heads' values from the prompts and the first `size` added slots, less those that are `hidden`."""
        keys, values = (x[layer, :, :, :size] for x in (self.keys, self.values))  # (N, H, A, D/H)
        query = q.float() * q.shape[-1] ** -0.5
        m = q.shape[2]
        with torch.autocast(q.device.type, enabled=False):
            on_prompt = self._apart(self._together(query) @ self.prompt_keys[layer].transpose(2, 3) + self.bias, m)
            on_added = query @ keys.transpose(2, 3)
            if hidden is not None:
                on_added = on_added.masked_fill_(hidden, -torch.inf)
            weights = torch.cat((on_prompt, on_added), -1).softmax(-1)  # (N, H, M, S + A)
            on_prompt, on_added = weights.split((on_prompt.shape[3], size), -1)
            out = self._apart(self._together(on_prompt) @ self.prompt_values[layer], m) + on_added @ values
        return out.to(q.dtype)

    def _assign(self, owner: Int[Tensor, " n"]) -> None:
        """Row n continues prompt owner[n]; rows are sorted by prompt."""
        counts = owner.bincount()
        first = counts.cumsum(0) - counts
        self.owner = owner
        self.place = torch.arange(len(owner), device=owner.device) - first[owner]  # (N,) of a row in its group
        places = torch.arange(int(counts.max()), device=owner.device)
        self.members = (first[:, None] + places).clamp(max=len(owner) - 1)  # (P, G); a short group ends in strangers
        self.whole = self.members.numel() == len(owner)  # no group is short

    def _together(self, x: Float[Tensor, "n h m k"]) -> Float[Tensor, "p h gm k"]:
        """The rows side by side under their prompts, so that one product serves a whole group."""
        groups = x.view(*self.members.shape, *x.shape[1:]) if self.whole else x[self.members]
        return groups.transpose(1, 2).flatten(2, 3)

    def _apart(self, x: Float[Tensor, "p h gm k"], m: int) -> Float[Tensor, "n h m k"]:
        """The rows of `m` tokens one by one again."""
        groups = x.view(*x.shape[:2], -1, m, x.shape[3])
        return groups.transpose(1, 2).flatten(0, 1) if self.whole else groups[self.owner, :, self.place]
