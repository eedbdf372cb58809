"""Guesses at the next tokens of a text that copies from itself, as a completion copies from its prompt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

LAST = 8  # tokens at a row's end that a place is compared with


def guess(text: Int[Tensor, "n w"], lengths: Int[Tensor, " n"], count: int) -> Int[Tensor, "n c"]:
    """`count` tokens a row that may follow its first `lengths`: those after the place whose last tokens are most alike.

    The last token weighs 8, the one before it 7, and so on, so a copy with one token changed goes on where it was, and
    one that has shifted is found again soon; of places alike the latest. What stands after `lengths` is not read: the
    guess repeats itself from there.

    Source: after Saxena 2023, prompt lookup decoding, which looks for the last tokens without a change among them.
    """
    columns = torch.arange(text.shape[1], device=text.device)
    back = torch.arange(LAST, 0, -1, device=text.device)
    end = text.gather(1, (lengths[:, None] - back).clamp(min=0))  # (N, 8)
    before = F.pad(text, (LAST, 0), value=-1).unfold(1, LAST, 1)[:, :-1]  # (N, W, 8) tokens before each column
    alike = ((before == end[:, None]) * (LAST + 1 - back)).sum(-1)  # (N, W)
    possible = (columns > 0) & (columns < lengths[:, None])
    start = (alike * len(columns) + columns).masked_fill_(~possible, -1).argmax(1, keepdim=True)
    return text.gather(1, start + torch.arange(count, device=text.device) % (lengths[:, None] - start))
