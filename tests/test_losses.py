"""The clipped loss, its metrics and its aggregations against values computed in float64 on one small batch."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from rookexp import losses, ops

# Fixture T: four completions of one prompt, padded to width 4.
LENGTHS = [3, 2, 4, 1]
MAX_NEW_TOKENS = 8
ADVANTAGES = [0.625, -0.375, 0.125, -0.375]
OLD = [[-0.5, -1, -1.5, 0], [-0.2, -0.4, 0, 0], [-2, -1, -0.5, -0.25], [-0.7, 0, 0, 0]]
LOG_RATIO = [[0.1, -0.2, 0.3, 0], [0.4, -0.5, 0, 0], [0.05, 0, -0.05, 0.25], [-0.3, 0, 0, 0]]
GRPO, TOKEN_MEAN, DAPO, DR_GRPO = -0.0131059646567, -0.1318316847965, -0.1378316847965, -0.0411974014989
AGGREGATIONS = [losses.sequence_mean, losses.token_mean, losses.constant_length]


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fixture_t() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logprobs, old, advantages, mask, each (4, 4)."""
    old = torch.tensor(OLD, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)[:, None] * mask
    return old + torch.tensor(LOG_RATIO, dtype=torch.float64), old, advantages, mask


def total(logprobs, old, advantages, weights, clip=(0.2, 0.2)) -> Tensor:
    return ops.weighted_sum(losses.clipped(logprobs, old, advantages, *clip), weights)


@pytest.mark.parametrize(
    ("aggregate", "clip_high", "expected"),
    [
        (losses.sequence_mean, 0.2, GRPO),
        (losses.token_mean, 0.2, TOKEN_MEAN),
        (losses.token_mean, 0.28, DAPO),
        (losses.constant_length, 0.2, DR_GRPO),
    ],
)
@pytest.mark.parametrize("split", [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[0], [1], [2], [3]], [[3, 1], [2], [0]]])
def test_golden_losses_do_not_depend_on_the_micro_batches(aggregate, clip_high, expected, split):
    logprobs, old, advantages, mask = fixture_t()
    weights = partial(aggregate, max_new_tokens=MAX_NEW_TOKENS)(mask)
    parts = [total(logprobs[i], old[i], advantages[i], weights[i], (0.2, clip_high)) for i in map(torch.tensor, split)]
    assert float(sum(parts)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [(losses.sequence_mean, 0), (losses.token_mean, -0.125), (losses.constant_length, -0.0390625)],
)
def test_on_policy_loss_and_gradient(aggregate, expected):
    """At ratio 1 the gradient is -A times the weight, whatever the loss's value."""
    _, old, advantages, mask = fixture_t()
    weights = aggregate(mask, max_new_tokens=MAX_NEW_TOKENS)
    logprobs = old.clone().requires_grad_()
    loss = total(logprobs, old, advantages, weights)
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-15)
    torch.testing.assert_close(logprobs.grad, -advantages * weights, rtol=0, atol=1e-15)


def test_gradient_is_minus_advantage_times_ratio_or_zero_where_clipped():
    logprobs, old, advantages, _ = fixture_t()
    logprobs.requires_grad_()
    losses.clipped(logprobs, old, advantages, 0.2, 0.2).sum().backward()
    region = losses.clip_fractions(logprobs, old, advantages, 0.2, 0.2)["clip_frac/region"].bool()
    ratio = (logprobs - old).detach().exp()
    torch.testing.assert_close(logprobs.grad, torch.where(region, 0.0, -advantages * ratio), rtol=0, atol=1e-15)
    inputs = (logprobs.detach().requires_grad_(), old, advantages, 0.2, 0.28)
    assert torch.autograd.gradcheck(losses.clipped, inputs)


@pytest.mark.parametrize(
    ("aggregate", "over_all", "over_kept"),
    [
        (losses.sequence_mean, 0.0197260706627, 0.0263014275502),
        (losses.token_mean, -0.1321673804759, -0.1321673804759),
        (losses.constant_length, -0.0247813838392, -0.0330418451190),
    ],
)
def test_a_masked_out_row_is_counted_unless_it_is_left_out(aggregate, over_all, over_kept):
    logprobs, old, advantages, mask = fixture_t()
    mask[2] = False
    weights = aggregate(mask, max_new_tokens=MAX_NEW_TOKENS)
    assert total(logprobs, old, advantages, weights).item() == pytest.approx(over_all, abs=1e-12)
    kept = torch.tensor([0, 1, 3])
    weights = aggregate(mask[kept], max_new_tokens=MAX_NEW_TOKENS)
    loss = total(logprobs[kept], old[kept], advantages[kept], weights)
    assert loss.item() == pytest.approx(over_kept, abs=1e-12)


def test_clip_fractions_and_approximate_kl():
    logprobs, old, advantages, mask = fixture_t()
    weights = losses.token_mean(mask, max_new_tokens=MAX_NEW_TOKENS)
    metrics = losses.clip_fractions(logprobs, old, advantages, 0.2, 0.2)
    metrics |= {"k1": losses.approx_kl_k1(logprobs, old), "k3": losses.approx_kl_k3(logprobs, old)}
    values = {name: ops.weighted_sum(x, weights).item() for name, x in metrics.items()}
    assert values == pytest.approx(
        {
            "clip_frac/any": 0.5,
            "clip_frac/low": 0.2,
            "clip_frac/high": 0.2,
            "clip_frac/region": 0.4,
            "k1": -0.005,
            "k3": 0.0349459994330,
        },
        abs=1e-12,
    )


def test_low_and_high_clip_are_told_apart():
    old = torch.zeros(4)
    logprobs = torch.tensor([0.75, 0.75, 1.25, 1.25]).log()
    advantages = torch.tensor([-1.0, 1.0, 1.0, -1.0])
    loss = losses.clipped(logprobs, old, advantages, 0.2, 0.28)
    torch.testing.assert_close(loss, torch.tensor([0.8, -0.75, -1.25, 1.25]))
    values = {name: x.tolist() for name, x in losses.clip_fractions(logprobs, old, advantages, 0.2, 0.28).items()}
    assert values["clip_frac/any"] == [1, 1, 0, 0]
    assert values["clip_frac/region"] == values["clip_frac/low"] == [1, 0, 0, 0]


def test_metrics_have_no_gradient_and_vanish_on_policy():
    _, old, advantages, _ = fixture_t()
    logprobs = old.clone().requires_grad_()
    metrics = [*losses.clip_fractions(logprobs, old, advantages, 0.2, 0.28).values()]
    metrics += [losses.approx_kl_k1(logprobs, old), losses.approx_kl_k3(logprobs, old)]
    assert all(not x.requires_grad and (x == 0).all() for x in metrics)


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_padding_never_poisons_value_or_gradient(aggregate, garbage):
    logprobs, old, advantages, mask = fixture_t()
    weights = aggregate(mask, max_new_tokens=MAX_NEW_TOKENS)

    def value_and_gradient(logprobs: Tensor) -> tuple[Tensor, Tensor]:
        leaf = logprobs.clone().requires_grad_()
        loss = total(ops.zero_outside(leaf, mask), old, advantages, weights)
        loss.backward()
        return loss.detach(), leaf.grad

    clean = value_and_gradient(logprobs)
    dirty = value_and_gradient(logprobs.masked_fill(~mask, garbage))
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))
    assert (clean[1][~mask] == 0).all()


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_weights_of_rows_without_tokens_are_zero(aggregate):
    mask = torch.zeros(3, 2, dtype=torch.bool)
    assert (aggregate(mask, max_new_tokens=2) == 0).all()
    assert torch.isfinite(aggregate(torch.tensor([[True, False], [False, False]]), max_new_tokens=2)).all()


def test_weights_sum_to_one_or_to_the_share_of_the_constant_length():
    mask = fixture_t()[3]
    assert losses.token_mean(mask, max_new_tokens=8).sum().item() == pytest.approx(1)
    assert losses.sequence_mean(mask, max_new_tokens=8).sum().item() == pytest.approx(1)
    assert losses.constant_length(mask, max_new_tokens=8).sum().item() == pytest.approx(10 / 32)


@st.composite
def batches(draw) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[int]]:
    """logprobs, old, advantages, mask of a random batch, with an order of its rows and places to cut it."""
    n, t = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    floats = st.floats(-2, 2, width=32)
    logprobs, old = (torch.from_numpy(draw(arrays("float64", (n, t), elements=floats))) for _ in range(2))
    advantages = torch.from_numpy(draw(arrays("float64", (n, 1), elements=floats))).expand(n, t)
    mask = torch.arange(t) < torch.tensor(draw(st.lists(st.integers(0, t), min_size=n, max_size=n)))[:, None]
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    return logprobs, old, advantages, mask, order, cuts


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@given(batch=batches())
def test_loss_and_gradient_do_not_depend_on_split_or_order(aggregate, batch):
    logprobs, old, advantages, mask, order, cuts = batch
    whole, parted = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()
    weights = aggregate(mask, max_new_tokens=5)
    loss = total(whole, old, advantages, weights)
    loss.backward()
    weights = torch.empty_like(weights).index_copy_(
        0, torch.tensor(order), aggregate(mask[order], max_new_tokens=5)
    )  # the aggregation of a permuted batch is the permuted aggregation
    value = 0.0
    for i in torch.tensor(order).tensor_split(cuts):
        part = total(parted[i], old[i], advantages[i], weights[i])
        part.backward()
        value += part.item()
    assert value == pytest.approx(loss.item(), abs=1e-12)
    torch.testing.assert_close(parted.grad, whole.grad, rtol=0, atol=1e-12)
    assert (whole.grad[~mask] == 0).all()


@given(batch=batches())
def test_the_clipped_loss_bounds_the_unclipped_one(batch):
    logprobs, old, advantages, *_ = batch
    assert (losses.clipped(logprobs, old, advantages, 0.2, 0.28) >= -(logprobs - old).exp() * advantages - 1e-12).all()
    assert (losses.approx_kl_k3(logprobs, old) >= 0).all()
