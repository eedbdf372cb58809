"""Completion tokens separated from their prompts, so that each prompt is computed once for all its rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rookexp.types import Experience, Policy


@dataclass(frozen=True, slots=True)
class Places:
    """M completion tokens, with completions and prompts in separate tensors."""

    prompts: Int[Tensor, "p s"]  # right-padded ids
    lengths: Int[Tensor, " p"]  # tokens of each prompt
    owner: Int[Tensor, " n"]  # index of each row's prompt
    completions: Int[Tensor, "n c"]  # right-padded ids
    sizes: Int[Tensor, " n"]  # tokens of each completion, up to the last one that is among the M
    row: Int[Tensor, " m"]  # row of each of the M tokens
    column: Int[Tensor, " m"]  # and its index in the row's completion

    def hidden(self, policy: Policy) -> Float[Tensor, "m d"]:
        """The final hidden state that predicts each of the M tokens."""
        hidden = policy.hidden_after(self.prompts, self.lengths, self.owner, self.completions, self.sizes)
        return hidden.flatten(0, 1).index_select(0, self.row * hidden.shape[1] + self.column)


def completions_of(rows: Experience, at: Int[Tensor, " m"]) -> Places:
    """The tokens predicted by positions `at` of the flattened (N, T - 1) rows, separated from their prompts."""
    n, width = rows.tokens.shape
    numbers, owner = rows.prompt.unique(return_inverse=True)
    first = torch.zeros_like(numbers).scatter_(0, owner, torch.arange(n, device=owner.device))  # one row of each prompt
    row = at // (width - 1)
    column = at % (width - 1) + 1 - rows.prompt_lengths[row]
    sizes = torch.zeros_like(owner).scatter_reduce(0, row, column + 1, "amax")
    s, c = torch.stack([rows.prompt_lengths.max(), sizes.max()]).tolist()  # of the longest prompt and completion
    columns = rows.prompt_lengths[:, None] + torch.arange(c, device=owner.device)  # (N, C)
    return Places(
        prompts=rows.tokens[first, :s],
        lengths=rows.prompt_lengths[first],
        owner=owner,
        completions=rows.tokens.gather(1, columns.clamp(max=width - 1)),
        sizes=sizes,
        row=row,
        column=column,
    )
