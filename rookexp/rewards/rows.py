"""From the score of one completion to the scores of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from rookexp.types import Prompt, Scores

Row = Mapping[str, float]  # the `reward` of a completion, and its parts by name; NaN = not applicable


def completions_each(prompts: Sequence[Prompt], texts: Sequence[str]) -> int:
    """How many completions each prompt has.

    Raises: ValueError where that is not a whole number, or 0.
    """
    if not prompts or not texts or len(texts) % len(prompts):
        raise ValueError(f"{len(texts)} texts are no whole number of completions for {len(prompts)} prompts")
    return len(texts) // len(prompts)


def scored(prompts: Sequence[Prompt], texts: Sequence[str], reader: Callable[[Prompt], Callable[[str], Row]]) -> Scores:
    """Scores of N = P x G completions, row p*G+g for prompt p; `reader(prompt)` is what scores each of its texts."""
    group = completions_each(prompts, texts)
    rows: list[Row] = []
    for p, prompt in enumerate(prompts):
        rows += map(reader(prompt), texts[p * group : (p + 1) * group])
    columns = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    return Scores(rewards=columns.pop("reward"), parts=columns)
