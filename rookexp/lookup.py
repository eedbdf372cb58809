"""Guesses at the next tokens of a text that copies from itself, as a completion copies from its prompt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

LAST = 8  # tokens at a row's end that are compared with those before each earlier position


def guess(text: Int[Tensor, "n w"], lengths: Int[Tensor, " n"], count: int) -> Int[Tensor, "n c"]:
    """`count` tokens per row that may follow its first `lengths`: those after the place whose past matches best.

    A match of the last token weighs 8, of the one before it 7, and so on, so a copy with one token changed continues in
    place, and one that has shifted is soon found again; ties go to the latest position. Tokens after `lengths` are not
    read: a guess that reaches them repeats itself from its start.

    Source: after Saxena 2023, prompt lookup decoding, which searches for an exact match of the last tokens.
    """
    columns = torch.arange(text.shape[1], device=text.device)
    back = torch.arange(LAST, 0, -1, device=text.device)
    end = text.gather(1, (lengths[:, None] - back).clamp(min=0))  # (N, 8)
    before = F.pad(text, (LAST, 0), value=-1).unfold(1, LAST, 1)[:, :-1]  # (N, W, 8) tokens before each column
    alike = ((before == end[:, None]) * (LAST + 1 - back)).sum(-1)  # (N, W)
    possible = (columns > 0) & (columns < lengths[:, None])
    start = (alike * len(columns) + columns).masked_fill_(~possible, -1).argmax(1, keepdim=True)
    return text.gather(1, start + torch.arange(count, device=text.device) % (lengths[:, None] - start))
