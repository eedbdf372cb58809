"""Completions apart from their prompts: no wider than the longest of them, whatever the prompts' lengths."""

from __future__ import annotations

import torch

from rookexp.objectives.completion_positions import completions_of
from rookexp.types import Experience


def test_completions_are_as_wide_as_the_longest_and_prompts_as_theirs() -> None:
    prompt_lengths, sizes = [2, 7, 7, 4], [3, 1, 2, 0]  # the last row has no token that is asked for
    width = 9
    tokens = torch.arange(100, 100 + 4 * width).view(4, width)
    tokens[2, :7] = tokens[1, :7]  # of one prompt
    columns = torch.arange(width)
    starts = torch.tensor(prompt_lengths)[:, None]
    weights = ((columns >= starts) & (columns < starts + torch.tensor(sizes)[:, None])).float()
    nothing = torch.zeros(4, width)
    rows = Experience(
        tokens=tokens,
        weights=weights,
        logprobs=nothing,
        advantages=nothing,
        values=nothing,
        returns=nothing,
        temperature=torch.ones(4),
        prompt=torch.tensor([5, 8, 8, 9]),
        prompt_lengths=torch.tensor(prompt_lengths),
    )
    places = completions_of(rows, rows.predicting())
    assert places.prompts.shape == (3, 7)
    assert places.completions.shape == (4, 3)
    assert places.lengths.tolist() == [2, 7, 4]
    assert places.sizes.tolist() == sizes
    assert places.completions[places.row, places.column].tolist() == tokens[weights > 0].tolist()
    for row, owner in enumerate(places.owner.tolist()):
        length = prompt_lengths[row]
        assert places.prompts[owner, :length].tolist() == tokens[row, :length].tolist()
