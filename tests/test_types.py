"""The records refuse what is none of them, and cutting one loses nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tiny import Vowels

from rookexp import types
from rookexp.errors import ConfigError
from rookexp.types import Experience, LossTerms, Scores, scores_of

TWO = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.float32, torch.float64])
def test_scores_are_floats_whatever_a_reward_counts_in(dtype: torch.dtype) -> None:
    scores = Scores(TWO.to(dtype), {"part": TWO.to(dtype)})
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert scores.rewards.dtype == scores.parts["part"].dtype == wanted
    assert torch.equal(scores.rewards, TWO.to(dtype).to(wanted))
    assert torch.equal(scores.parts["part"], scores.rewards)


@pytest.mark.parametrize(
    ("shape", "count", "wanted"),
    [
        ((1, 2), None, "a tensor of one number a completion"),
        ((), None, "a tensor of one number a completion"),
        ((3,), 2, "a tensor of 2 numbers, one a completion"),
        ((2, 1), 2, "a tensor of 2 numbers, one a completion"),
    ],
)
def test_what_is_no_number_a_completion_is_refused(shape: tuple[int, ...], count: int | None, wanted: str) -> None:
    """Here behind the shapes that are checked under pytest; tests/test_own.py has it without those."""
    said = f"reward: the parts of Scores: a tensor of shape {list(shape)}; wanted: {wanted}"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        types._floats("the parts", torch.zeros(shape), count)


@pytest.mark.parametrize("name", ["mean", "std", "reward", "prompt"])
def test_a_part_may_not_be_called_as_what_stands_beside_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^reward: part '{name}': a metric or column of every run has that name"):
        Scores(TWO, {"other": TWO, name: TWO})


@pytest.mark.parametrize(("given", "found"), [(Scores(TWO, {}), "2"), (TWO, "Tensor"), (None, "NoneType")])
def test_a_reward_gives_as_many_scores_as_there_are_texts(given: Any, found: str) -> None:
    class Gives(Vowels):
        def score(self, prompts: Any, texts: Any) -> Any:
            return given

    with pytest.raises(ConfigError, match=f"^reward=Gives: score gave {found} for 3 completions; wanted: "):
        scores_of(Gives(), (), ["", "", ""])
    if isinstance(given, Scores):
        assert scores_of(Gives(), (), ["", ""]) is given


def test_rows_are_cut_and_predicted_where_they_have_a_weight() -> None:
    each = [torch.rand(4, 5, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    each[0][:, 3:] = 0
    each[0][1] = 0
    rows = torch.arange(4)
    whole = Experience(rows[:, None] * 10 + torch.arange(5), *each, rows.float(), rows, rows)
    some = whole.rows(torch.tensor([3, 0]), 4)
    assert some.tokens.tolist() == [[30, 31, 32, 33], [0, 1, 2, 3]]
    assert torch.equal(some.advantages, whole.advantages[[3, 0], :4])
    assert some.temperature.tolist() == [3.0, 0.0]
    assert some.prompt.tolist() == [3, 0]
    assert whole.predicting().tolist() == [0, 1, 8, 9, 12, 13]  # of columns 1 and 2, each by the one before


def test_the_loss_is_the_sum_of_its_terms() -> None:
    assert LossTerms({"a": torch.tensor(1.0), "b": torch.tensor(0.5)}, {}).total == 1.5
