"""The weights of an aggregation, which no masked-out row and no padding can surprise.

Golden losses are in test_losses.py, and however the batch is cut in test_grpo.py.
"""

from __future__ import annotations

import pytest
import torch
from fixture_t import MAX_NEW_TOKENS, fixture_t, total
from torch import Tensor

from rookexp import aggregation, losses
from rookexp.losses import Clip

CLIP = Clip(clip_low=0.2, clip_high=0.2)
AGGREGATIONS = [
    aggregation.token_mean,
    aggregation.sequence_mean,
    aggregation.constant_length,
    aggregation.sequence_sum,
]


pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("aggregate", [aggregation.token_mean, aggregation.sequence_mean])
def test_a_lone_token_has_all_the_weight(aggregate):
    assert aggregate(torch.tensor([[False, True, False]]), max_new_tokens=5).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ([[0, 1, 2, 3]], -0.1318316847965),
        ([[0, 2], [1, 3]], 0.0162568214897),
        ([[0], [1], [2], [3]], -0.0131059646567),
    ],
)
def test_a_mean_over_each_micro_batch_would_change_even_its_sign(split, expected):
    """Why there is no such aggregation: what it says of one batch depends on how memory made us cut it."""
    batch = fixture_t()
    means = [CLIP(*batch.rows(i).flat()).mean() for i in map(torch.tensor, split)]
    assert float(sum(means)) / len(split) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (aggregation.sequence_mean, 0),
        (aggregation.token_mean, -0.125),
        (aggregation.constant_length, -0.0390625),
        (aggregation.sequence_sum, -0.3125),
    ],
)
def test_on_policy_loss_and_gradient(aggregate, expected):
    """At ratio 1 the gradient is -A times the weight, whatever the loss's value."""
    batch = fixture_t()
    batch.logprobs.copy_(batch.old).requires_grad_()
    weights = aggregate(batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    loss = total(CLIP, batch, weights)
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-15)
    torch.testing.assert_close(batch.logprobs.grad, -batch.advantages * weights, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("aggregate", "over_all", "over_kept"),
    [
        (aggregation.sequence_mean, 0.0197260706627, 0.0263014275502),
        (aggregation.token_mean, -0.1321673804759, -0.1321673804759),
        (aggregation.constant_length, -0.0247813838392, -0.0330418451190),
    ],
)
def test_a_masked_out_row_is_counted_unless_it_is_left_out(aggregate, over_all, over_kept):
    batch = fixture_t()
    batch.mask[2] = False
    weights = aggregate(batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    assert total(CLIP, batch, weights).item() == pytest.approx(over_all, abs=1e-12)
    kept = batch.rows(torch.tensor([0, 1, 3]))
    weights = aggregate(kept.mask, max_new_tokens=MAX_NEW_TOKENS)
    assert total(CLIP, kept, weights).item() == pytest.approx(over_kept, abs=1e-12)


def test_a_token_mean_that_counts_masked_out_tokens_is_another_number():
    """The weights of the unmasked batch, of which a row is then left out: not what `token_mean` of a mask gives."""
    batch = fixture_t()
    weights = aggregation.token_mean(batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    batch.mask[2] = False
    assert total(CLIP, batch, weights).item() == pytest.approx(-0.0793004282856, abs=1e-12)


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_padding_never_reaches_value_or_gradient(aggregate, garbage):
    def value_and_gradient(fill: float) -> tuple[Tensor, Tensor]:
        batch = fixture_t()
        for x in (batch.logprobs, batch.old, batch.advantages):
            x.masked_fill_(~batch.mask, fill)
        batch.logprobs.requires_grad_()
        loss = total(CLIP, batch, aggregate(batch.mask, max_new_tokens=MAX_NEW_TOKENS))
        loss.backward()
        return loss.detach(), batch.logprobs.grad

    clean, dirty = value_and_gradient(0.0), value_and_gradient(garbage)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))
    assert (dirty[1][~fixture_t().mask] == 0).all()


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_weights_of_rows_without_tokens_are_zero(aggregate):
    mask = torch.zeros(3, 2, dtype=torch.bool)
    assert (aggregate(mask, max_new_tokens=2) == 0).all()
    weights = aggregate(torch.tensor([[True, False], [False, False]]), max_new_tokens=2)
    assert torch.isfinite(weights).all()
    assert (weights != 0).tolist() == [[True, False], [False, False]]


def test_weights_sum_to_one_or_to_the_mean_length_or_its_share_of_the_constant():
    mask = fixture_t().mask
    sums = [aggregate(mask, max_new_tokens=MAX_NEW_TOKENS).sum().item() for aggregate in AGGREGATIONS]
    assert sums == pytest.approx([1, 1, 10 / 32, 10 / 4])


def test_sequence_sum_of_gspo_is_luspo():
    batch, clip = fixture_t(), {"clip_low": 0.2, "clip_high": 0.2}
    by_sum = aggregation.sequence_sum(batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    by_mean = aggregation.sequence_mean(batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    luspo = total(losses.Luspo(**clip), batch, by_mean)
    assert luspo.item() == pytest.approx(-0.3807714960899, abs=1e-12)
    torch.testing.assert_close(total(losses.Gspo(**clip), batch, by_sum), luspo, rtol=0, atol=1e-15)
