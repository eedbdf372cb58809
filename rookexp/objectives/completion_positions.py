"""Completion tokens with their prompts apart, so that a prompt is computed once for all its rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rookexp.types import Experience, Policy


@dataclass(frozen=True, slots=True)
class Places:
    """M tokens of completions whose prompts stand apart."""

    prompts: Int[Tensor, "p s"]  # right-padded ids
    lengths: Int[Tensor, " p"]  # tokens of each prompt
    owner: Int[Tensor, " n"]  # each row's prompt
    completions: Int[Tensor, "n c"]  # right-padded ids
    sizes: Int[Tensor, " n"]  # tokens of each completion, up to the last of the M
    row: Int[Tensor, " m"]  # each token's row
    column: Int[Tensor, " m"]  # and its place in the row's completion

    def hidden(self, policy: Policy) -> Float[Tensor, "m d"]:
        """The hidden state that predicts each token."""
        hidden = policy.hidden_after(self.prompts, self.lengths, self.owner, self.completions, self.sizes)
        return hidden.flatten(0, 1).index_select(0, self.row * hidden.shape[1] + self.column)


def completions_of(rows: Experience, at: Int[Tensor, " m"]) -> Places:
    """The tokens that the positions `at` of the flattened (N, T - 1) rows predict, their prompts taken apart."""
    n, width = rows.tokens.shape
    numbers, owner = rows.prompt.unique(return_inverse=True)
    first = torch.zeros_like(numbers).scatter_(0, owner, torch.arange(n, device=owner.device))  # a row of each prompt
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
