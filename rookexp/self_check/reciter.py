"""A stand-in policy that emits known tokens, which the self-check follows through a run's own sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class Reciter:
    """A policy that emits the next script in each row, whatever the prompt, with certainty of every token.

    The rows of a prompt are adjacent, and their scripts begin with the same token.
    """

    replays = None

    def __init__(self, policy: Any, scripts: Sequence[Sequence[int]]) -> None:
        self.config = policy.config
        self.parameters = policy.parameters
        self.vocabulary = len(policy.head_weight)
        longest = max(map(len, scripts)) + 1
        padded = [[*script, *[script[-1]] * (longest - len(script))] for script in scripts]
        self.scripts = torch.tensor(padded, device=policy.head_weight.device)  # (N, C)
        self.asked = 0  # rows prefilled so far, over all batches

    def prefill(
        self, tokens: Int[Tensor, "p t"], lengths: Int[Tensor, " p"], group_size: int, capacity: int
    ) -> tuple[Int[Tensor, "p 1"], Reciter]:
        """The first token of each prompt's scripts in place of its hidden state; the KV cache is this object."""
        count = len(tokens) * group_size
        self.row = torch.arange(self.asked, self.asked + count, device=tokens.device)
        self.asked += count
        self.place = torch.zeros_like(self.row)
        return self.scripts[self.row[::group_size], :1], self

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Drops all rows but `rows`."""
        self.row, self.place = self.row[rows], self.place[rows]

    def advance(self, taken: Int[Tensor, " n"]) -> None:
        """Accepts, in each row, the first `taken` tokens of the last `decode_ahead`."""
        self.place = self.place + taken

    def packed(self) -> Reciter:
        """This object."""
        return self

    def decode(self, tokens: Int[Tensor, " n"], cache: Reciter) -> Int[Tensor, "n 1"]:
        """The next token of each row in place of its hidden state."""
        words = self.decode_ahead(tokens[:, None], cache)[:, 0]
        self.advance(torch.ones_like(tokens))
        return words

    def decode_ahead(self, tokens: Int[Tensor, "n m"], cache: Reciter) -> Int[Tensor, "n m 1"]:
        """The next m tokens of each row in place of hidden states; `advance` says which are accepted."""
        places = self.place[:, None] + torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        return self.scripts[self.row[:, None], places.clamp(max=self.scripts.shape[1] - 1), None]

    def logits(self, hidden: Int[Tensor, "*n 1"]) -> Float[Tensor, "*n v"]:
        """1e6, large at any temperature, for the token that stands for the hidden state, 0 for all others."""
        return F.one_hot(hidden[..., 0], self.vocabulary) * 1e6
