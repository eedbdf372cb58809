"""The overlong penalty, and what the aggregations make of a mask without the completions that were cut off."""

import pytest
import torch

from rookexp import aggregation, ops
from rookexp.shaping import masked_truncated, overlong_penalty

AGGREGATIONS = [
    aggregation.token_mean,
    aggregation.sequence_mean,
    aggregation.sequence_sum,
    aggregation.constant_length,
]

# numerics.md, fixture T: log-ratios and advantages of four completions
DELTAS = [[0.1, -0.2, 0.3], [0.4, -0.5], [0.05, 0, -0.05, 0.25], [-0.3]]
ADVANTAGES = torch.tensor([0.625, -0.375, 0.125, -0.375], dtype=torch.float64)
THIRD = torch.tensor([False, False, True, False])


def fixture() -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's clipped loss (N, T), and the mask."""
    mask = torch.arange(4) < torch.tensor([[len(row)] for row in DELTAS])
    deltas = torch.zeros(4, 4, dtype=torch.float64)
    deltas[mask] = torch.tensor([x for row in DELTAS for x in row], dtype=torch.float64)
    ratio = deltas.exp()
    advantages = ADVANTAGES[:, None]
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages), mask


@pytest.mark.parametrize(
    ("weigh", "expected"),
    [
        (aggregation.token_mean, -0.1321673804759),  # over the tokens that are left
        (aggregation.sequence_mean, 0.0197260706627),  # over all four rows
        (aggregation.constant_length, -0.0247813838392),  # over all four rows
        (aggregation.sequence_sum, -0.0247813838392 * 8),  # over all four rows
    ],
)
def test_golden_losses_without_the_third_completion(weigh, expected):
    loss, mask = fixture()
    weights = weigh(masked_truncated(mask, THIRD), max_new_tokens=8)
    assert ops.weighted_sum(loss, weights.double()).item() == pytest.approx(expected, abs=1e-8)  # weights are float32
    assert (weights[2] == 0).all()


@pytest.mark.parametrize(
    ("weigh", "expected"),
    [
        (aggregation.sequence_mean, 0.0263014275502),
        (aggregation.constant_length, -0.0330418451190),
    ],
)
def test_leaving_the_row_out_is_another_number(weigh, expected):
    loss, mask = fixture()
    weights = weigh(mask[~THIRD], max_new_tokens=8)
    assert ops.weighted_sum(loss[~THIRD], weights.double()).item() == pytest.approx(expected, abs=1e-8)


def test_a_mask_taken_after_the_weights_would_keep_the_denominator_of_all_tokens():
    loss, mask = fixture()
    weights = aggregation.token_mean(mask, max_new_tokens=8) * masked_truncated(mask, THIRD)
    assert ops.weighted_sum(loss, weights.double()).item() == pytest.approx(-0.0793004282856, abs=1e-8)


@pytest.mark.parametrize("weigh", AGGREGATIONS)
def test_none_or_all_cut_off(weigh):
    loss, mask = fixture()
    none, every = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    assert torch.equal(masked_truncated(mask, none), mask)
    weights = weigh(masked_truncated(mask, every), max_new_tokens=8)
    assert ops.weighted_sum(loss, weights.double()) == 0


def test_golden_penalties_with_a_limit_of_100_and_a_buffer_of_20():
    lengths = torch.tensor([0, 1, 79, 80, 81, 90, 99, 100, 101, 1000])
    penalties = overlong_penalty(lengths, max_new_tokens=100, buffer=20)
    assert penalties.tolist() == pytest.approx([0, 0, 0, 0, -0.05, -0.5, -0.95, -1, -1, -1])


@pytest.mark.parametrize(("buffer", "expected"), [(100, [0, -0.5, -1]), (1, [0, 0, -1])])
def test_the_longest_and_the_shortest_buffer(buffer, expected):
    lengths = torch.tensor([0, 50, 100])
    assert overlong_penalty(lengths, max_new_tokens=100, buffer=buffer).tolist() == pytest.approx(expected)
