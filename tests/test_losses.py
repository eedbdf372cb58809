"""Every policy loss against golden values, closed-form gradients and identities, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fixture_t import MAX_NEW_TOKENS, Batch, fixture_t, total
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rookexp import kl, ops
from rookexp.aggregation import constant_length, sequence_mean, sequence_sum, token_mean
from rookexp.errors import ConfigError
from rookexp.losses import (
    Cispo,
    Clip,
    DualClip,
    Gmpo,
    Gspo,
    GspoToken,
    Luspo,
    PolicyLoss,
    Reinforce,
    Sapo,
    TwoSided,
    Vespo,
)

AGGREGATIONS = [token_mean, sequence_mean, constant_length, sequence_sum]
EVEN = {"clip_low": 0.2, "clip_high": 0.2}
DAPO = {"clip_low": 0.2, "clip_high": 0.28}
TINY = {"clip_low": 3e-4, "clip_high": 4e-4}
SAPO = {"tau_positive": 1.0, "tau_negative": 1.05}
VESPO = {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0}

Slope = Callable[[Tensor, float], Tensor]  # a row's log-ratios (n,) and its advantage, to (n,): see SLOPES


pytestmark = pytest.mark.usefixtures("float64")


# ---- closed forms -------------------------------------------------------------------------------------------------


def clip_slope(low: float, high: float, cap: float = math.inf) -> Slope:
    def slope(delta: Tensor, a: float) -> Tensor:
        ratio = delta.exp()
        gone = ratio > high if a > 0 else (ratio < low) | (ratio > cap)
        return torch.where(gone, 0.0, -a * ratio)

    return slope


def row_slope(low: float, high: float, per_token: bool = False) -> Slope:
    """-A s at each token of an unclipped row; n times that with `per_token`."""

    def slope(delta: Tensor, a: float) -> Tensor:
        s = math.exp(delta.mean())
        gone = s > high if a > 0 else s < low
        times = len(delta) if per_token else 1
        return torch.full_like(delta, 0.0 if gone else -a * s * times)

    return slope


def cispo_slope(low: float, high: float) -> Slope:
    return lambda delta, a: -delta.exp().clamp(low, high) * a


def sapo_slope(delta: Tensor, a: float) -> Tensor:
    tau = 1.0 if a > 0 else 1.05
    gate = 1 / (1 + (-tau * (delta.exp() - 1)).exp())
    return -a * 4 * gate * (1 - gate) * delta.exp()


def gmpo_slope(delta: Tensor, a: float) -> Tensor:
    gone = delta > 0.4 if a > 0 else delta < -0.4
    held = delta.clamp(max=0.4) if a > 0 else delta.clamp(min=-0.4)
    return torch.where(gone, 0.0, -a * held.mean().exp())


def vespo_slope(delta: Tensor, a: float) -> Tensor:
    k, lam = (2, 3) if a >= 0 else (3, 2)
    w = math.exp(delta.sum())
    return torch.full_like(delta, -a * w**k * math.exp(lam * (1 - w)))


# Each loss with what it makes of Fixture T and with its slope: the gradient of a row's summed loss at its log-probs.
CASES: list[tuple[PolicyLoss, Callable[..., Tensor], float, Slope]] = [
    (Clip(**EVEN), sequence_mean, -0.0131059646567, clip_slope(0.8, 1.2)),
    (Clip(**EVEN), token_mean, -0.1318316847965, clip_slope(0.8, 1.2)),
    (Clip(**DAPO), token_mean, -0.1378316847965, clip_slope(0.8, 1.28)),
    (Clip(**EVEN), constant_length, -0.0411974014989, clip_slope(0.8, 1.2)),
    (Clip(**EVEN), sequence_sum, -0.3295792119913, clip_slope(0.8, 1.2)),
    (DualClip(**EVEN, dual_clip=3.0), token_mean, -0.1318316847965, clip_slope(0.8, 1.2, 3)),
    (TwoSided(**EVEN, delta=3.0), token_mean, -0.1318316847965, clip_slope(0.8, 1.2, 3)),
    (Gspo(**TINY), sequence_mean, -0.00013125, row_slope(1 - 3e-4, 1 + 4e-4)),
    (Gspo(**EVEN), sequence_mean, -0.0361094285672, row_slope(0.8, 1.2)),
    (GspoToken(**TINY), sequence_mean, -0.00013125, row_slope(1 - 3e-4, 1 + 4e-4)),
    (GspoToken(**EVEN), sequence_mean, -0.0361094285672, row_slope(0.8, 1.2)),
    (Luspo(**EVEN), sequence_mean, -0.3807714960899, row_slope(0.8, 1.2, per_token=True)),
    (Cispo(clip_low=None, clip_high=0.28), token_mean, 0.1910474216595, cispo_slope(0, 1.28)),
    (Cispo(**DAPO), token_mean, 0.1822985147003, cispo_slope(0.8, 1.28)),
    (Sapo(**SAPO), sequence_mean, -0.0539564127255, sapo_slope),
    (Gmpo(log_clip=0.4), sequence_mean, -0.0370854789253, gmpo_slope),
    (Vespo(**VESPO), token_mean, 0.1160073758714, vespo_slope),
    (Reinforce(), token_mean, 0.155, lambda delta, a: torch.full_like(delta, -a)),
]
# Every loss once, as its last case has it.
SLOPES = list({type(loss): (loss, slope) for loss, _, _, slope in CASES}.values())
LOSSES = [loss for loss, _ in SLOPES]


def named(value: Any) -> str | None:
    """A test's name for a loss or an aggregation."""
    return getattr(value, "__name__", type(value).__name__) if callable(value) else None


def closed_form(slope: Slope, batch: Batch, weights: Tensor) -> Tensor:
    """The gradient (N, T) that `slope` says, row by row; the weights of a row are equal."""
    expected = torch.zeros_like(weights)
    for i, kept in enumerate(batch.mask):
        if kept.any():
            delta = (batch.logprobs - batch.old).detach()[i][kept]
            expected[i][kept] = weights[i][kept] * slope(delta, batch.advantages[i][kept][0].item())
    return expected


def value_and_gradient(loss: PolicyLoss, batch: Batch, weights: Tensor) -> tuple[float, Tensor]:
    """The loss of a batch and its gradient (N, T)."""
    leaf = batch.logprobs.detach().clone().requires_grad_()
    value = total(loss, replace(batch, logprobs=leaf), weights)
    value.backward()
    return value.item(), leaf.grad


# ---- golden values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "aggregate", "expected", "slope"), CASES, ids=named)
def test_golden_value_and_gradient(loss, aggregate, expected, slope):
    batch = fixture_t()
    weights = aggregate(batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    value, gradient = value_and_gradient(loss, batch, weights)
    assert value == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(gradient, closed_form(slope, batch, weights), rtol=0, atol=1e-15)


def test_golden_ratios_and_weights_of_rows():
    """The ratio and the kernel of each row, read off the losses."""
    logprobs, old, advantages, row = fixture_t().flat()
    first = torch.tensor([0, 3, 5, 9])  # of each row
    ratios = Gspo(**EVEN).ratio(logprobs, old, row)[first]
    assert ratios.tolist() == pytest.approx([1.0689391057, 0.9512294245, 1.0644944589, 0.7408182207], abs=1e-10)
    phi = (Vespo(**VESPO)(logprobs, old, advantages, row) / (-advantages * logprobs))[first]
    assert phi.tolist() == pytest.approx([0.767813607, 0.8961254756, 0.7032264989, 0.6827432253], abs=1e-9)


@pytest.mark.parametrize("loss", [DualClip(**EVEN, dual_clip=3.0), TwoSided(**EVEN, delta=3.0)], ids=named)
def test_a_bad_token_costs_no_more_than_the_cap(loss):
    logprobs = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]).log().requires_grad_()
    value = loss(logprobs, torch.zeros(5), -torch.ones(5), torch.arange(5))
    assert value.tolist() == pytest.approx([1, 2, 3, 3, 3])
    value.sum().backward()
    assert logprobs.grad[[0, 1, 3, 4]].tolist() == pytest.approx([1, 2, 0, 0])
    flags = loss.clip_flags(logprobs, torch.zeros(5), -torch.ones(5), torch.arange(5))
    assert flags["clip_frac/region"][[0, 1, 3, 4]].tolist() == [0, 0, 1, 1]
    assert flags["clip_frac/high"].sum() == 0


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_gradcheck_where_the_value_has_that_gradient(loss):
    """Away from the clips' corners; a stopped gradient is no derivative of the value (SLOPES has those)."""
    logprobs, old, advantages, row = fixture_t().flat()
    check = torch.autograd.gradcheck(
        lambda x: loss(x, old, advantages, row), logprobs.requires_grad_(), raise_exception=False
    )
    assert check == (not isinstance(loss, (Cispo, Vespo, GspoToken)))


# ---- identities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", AGGREGATIONS, ids=named)
@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_at_ratio_one_all_share_one_gradient_and_clip_nothing(loss, aggregate):
    batch = fixture_t()
    batch = replace(batch, logprobs=batch.old)
    weights = aggregate(batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    _, gradient = value_and_gradient(loss, batch, weights)
    times = batch.mask.sum(1, keepdim=True) if isinstance(loss, Luspo) else 1
    torch.testing.assert_close(gradient, -batch.advantages * weights * times, rtol=0, atol=1e-15)
    assert all((flag == 0).all() for flag in loss.clip_flags(*batch.flat()).values())


def test_gspo_token_may_weigh_the_tokens_of_a_row_apart():
    """Its gradient is -A s at each token, of which A is the token's own; Gspo would spread A over the row."""
    logprobs, old, _, row = fixture_t().flat()
    advantages = torch.linspace(-1, 1, 10)
    logprobs.requires_grad_()
    wide = GspoToken(clip_low=0.9, clip_high=9.0)
    wide(logprobs, old, advantages, row).sum().backward()
    s = Gspo(**EVEN).ratio(logprobs.detach(), old, row)
    torch.testing.assert_close(logprobs.grad, -advantages * s, rtol=0, atol=1e-15)
    assert [type(loss).__name__ for loss in LOSSES if loss.whole_rows] == ["Gspo", "Luspo", "Gmpo", "Vespo"]


def test_a_row_of_one_token_is_clipped_as_that_token():
    batch = fixture_t()
    one = replace(batch, mask=torch.arange(4) < torch.ones(4, 1))
    clipped = Clip(**EVEN)(*one.flat())
    for loss in (Gspo(**EVEN), GspoToken(**EVEN), Luspo(**EVEN)):
        torch.testing.assert_close(loss(*one.flat()), clipped, rtol=0, atol=1e-15)
    wide = Clip(clip_low=0.999, clip_high=999.0)
    torch.testing.assert_close(Gmpo(log_clip=9.0)(*one.flat()), wide(*one.flat()), rtol=0, atol=1e-15)


def test_a_ratio_above_a_low_cap_is_any_whatever_the_sign():
    loss = DualClip(**DAPO, dual_clip=1.1)
    old, row, advantages = torch.zeros(2), torch.arange(2), torch.tensor([1.0, -1.0])
    flags = loss.clip_flags(torch.full((2,), 1.16).log(), old, advantages, row)
    assert flags["clip_frac/any"].tolist() == [1, 1]
    assert flags["clip_frac/region"].tolist() == [0, 1]


def test_low_and_high_clip_are_told_apart():
    old, row = torch.zeros(4), torch.arange(4)
    logprobs = torch.tensor([0.75, 0.75, 1.25, 1.25]).log()
    advantages = torch.tensor([-1.0, 1.0, 1.0, -1.0])
    torch.testing.assert_close(Clip(**DAPO)(logprobs, old, advantages, row), torch.tensor([0.8, -0.75, -1.25, 1.25]))
    flags = Clip(**DAPO).clip_flags(logprobs, old, advantages, row)
    assert flags["clip_frac/any"].tolist() == [1, 1, 0, 0]
    assert flags["clip_frac/region"].tolist() == flags["clip_frac/low"].tolist() == [1, 0, 0, 0]


def test_delta_stands_behind_the_clip():
    with pytest.raises(ConfigError, match=r"loss\.delta=1\.2: allowed: a number > 1\.2"):
        TwoSided(clip_low=0.2, clip_high=0.2, delta=1.2)


# ---- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Clip(**EVEN), [0.5, 0.2, 0.2, 0.4]),
        (DualClip(**EVEN, dual_clip=1.4), [0.5, 0.2, 0.2, 0.5]),
        (DualClip(clip_low=0.2, clip_high=1.0, dual_clip=1.4), [0.3, 0.2, 0.0, 0.3]),
        (Gspo(**EVEN), [0.1, 0.1, 0.0, 0.1]),
        (GspoToken(**TINY), [1.0, 0.3, 0.7, 1.0]),
        (Cispo(**DAPO), [0.5, 0.2, 0.2, 0.4]),
        (Cispo(clip_low=None, clip_high=0.28), [0.3, 0.0, 0.2, 0.2]),
        (Gmpo(log_clip=0.35), [0.2, 0.1, 0.0, 0.1]),
        (Sapo(**SAPO), []),
        (Vespo(**VESPO), []),
        (Reinforce(), []),
    ],
    ids=named,
)
def test_clip_fractions(loss, expected):
    batch = fixture_t()
    weights = token_mean(batch.mask, max_new_tokens=MAX_NEW_TOKENS)[batch.mask]
    flags = loss.clip_flags(*batch.flat())
    names = ["clip_frac/any", "clip_frac/low", "clip_frac/high", "clip_frac/region"][: len(expected)]
    assert {name: ops.weighted_sum(flag, weights).item() for name, flag in flags.items()} == pytest.approx(
        dict(zip(names, expected, strict=True))
    )


def test_approximate_kl():
    logprobs, old, *_ = fixture_t().flat()
    assert kl.k1(old, logprobs, logprobs).mean().item() == pytest.approx(-0.005, abs=1e-12)
    assert kl.k3(old, logprobs, logprobs).mean().item() == pytest.approx(0.0349459994330, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_metrics_have_no_gradient(loss):
    logprobs, old, advantages, row = fixture_t().flat()
    logprobs.requires_grad_()
    assert all(not x.requires_grad for x in loss.clip_flags(logprobs, old, advantages, row).values())


# ---- any batch ----------------------------------------------------------------------------------------------------


@st.composite
def batches(draw: st.DrawFn) -> tuple[Batch, torch.Generator, list[int]]:
    """A ragged batch, rows without tokens included, with a source of orders and places to cut its rows."""
    lengths = torch.tensor(draw(st.lists(st.integers(0, 5), min_size=1, max_size=6)))
    n = len(lengths)
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logprobs, old = -2 * torch.rand(2, n, 5, generator=rng, dtype=torch.float64)
    advantages = torch.randn(n, 1, generator=rng, dtype=torch.float64) * draw(st.sampled_from([0.0, 1.0]))
    mask = torch.arange(5) < lengths[:, None]
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    return Batch(logprobs, old, advantages.expand(n, 5), mask), rng, cuts


@pytest.mark.parametrize("aggregate", AGGREGATIONS, ids=named)
@settings(max_examples=20)
@given(drawn=batches())
def test_gradients_are_the_closed_forms(aggregate, drawn):
    batch, *_ = drawn
    weights = aggregate(batch.mask, max_new_tokens=5)
    for loss, slope in SLOPES:
        _, gradient = value_and_gradient(loss, batch, weights)
        torch.testing.assert_close(gradient, closed_form(slope, batch, weights), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("aggregate", AGGREGATIONS, ids=named)
@settings(max_examples=20)
@given(drawn=batches())
def test_value_and_gradient_do_not_depend_on_split_or_order(aggregate, drawn):
    batch, rng, cuts = drawn
    weights = aggregate(batch.mask, max_new_tokens=5)
    order = torch.randperm(len(batch.mask), generator=rng)
    permuted = torch.empty_like(weights)
    permuted[order] = aggregate(batch.mask[order], max_new_tokens=5)
    torch.testing.assert_close(permuted, weights)
    for loss in LOSSES:
        value, gradient = value_and_gradient(loss, batch, weights)
        parts, grads = 0.0, torch.zeros_like(gradient)
        for i in order.tensor_split(cuts):
            part, grads[i] = value_and_gradient(loss, batch.rows(i), weights[i])
            parts += part
        assert parts == pytest.approx(value, abs=1e-12)
        torch.testing.assert_close(grads, gradient, rtol=1e-12, atol=1e-13)


@settings(max_examples=20)
@given(drawn=batches())
def test_tokens_may_stand_in_any_order_under_any_row_numbers(drawn):
    batch, rng, _ = drawn
    logprobs, old, advantages, row = batch.flat()
    order = torch.randperm(len(row), generator=rng)
    numbers = torch.randperm(1000, generator=rng)[: len(batch.mask)] - 500
    for loss in LOSSES:
        mixed = loss(logprobs[order], old[order], advantages[order], numbers[row][order])
        torch.testing.assert_close(mixed, loss(logprobs, old, advantages, row)[order], rtol=1e-12, atol=1e-13)


@settings(max_examples=20)
@given(drawn=batches())
def test_two_sided_is_dual_clip_and_both_bound_the_clip(drawn):
    batch, *_ = drawn
    dual, two_sided = DualClip(**DAPO, dual_clip=1.5), TwoSided(**DAPO, delta=1.5)
    weights = sequence_sum(batch.mask, max_new_tokens=5)
    value, gradient = value_and_gradient(dual, batch, weights)
    other, other_gradient = value_and_gradient(two_sided, batch, weights)
    assert value == pytest.approx(other, abs=1e-12)
    torch.testing.assert_close(gradient, other_gradient, rtol=1e-12, atol=1e-13)
    logprobs, old, advantages, _ = flat = batch.flat()
    ratio = (logprobs - old).exp()
    assert (Clip(**DAPO)(*flat) >= -ratio * advantages - 1e-12).all()
    assert (dual(*flat) <= Clip(**DAPO)(*flat) + 1e-12).all()


@pytest.mark.parametrize("loss", [Clip(**DAPO), DualClip(**DAPO, dual_clip=1.5), Gmpo(log_clip=0.2)], ids=named)
@settings(max_examples=20)
@given(drawn=batches())
def test_the_region_is_the_tokens_without_a_gradient_and_has_none_where_the_advantage_is_zero(loss, drawn):
    logprobs, old, advantages, row = drawn[0].flat()
    logprobs.requires_grad_()
    loss(logprobs, old, advantages, row).sum().backward()
    flags = loss.clip_flags(logprobs, old, advantages, row)
    assert flags["clip_frac/region"].equal(((logprobs.grad == 0) & (advantages != 0)).double())
    assert (flags["clip_frac/low"] <= (advantages < 0) * flags["clip_frac/any"]).all()
    assert (flags["clip_frac/high"] <= (advantages > 0) * flags["clip_frac/any"]).all()


@pytest.mark.parametrize("loss", LOSSES, ids=named)
@pytest.mark.parametrize("log_ratio", [50.0, -50.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_all_reason_stays_finite_in_float32(loss, log_ratio, advantage):
    """Rows of three tokens and of one; W of the first is exp(150), which float32 does not hold."""
    new, old = (-1.0, -51.0) if log_ratio > 0 else (-51.0, -1.0)
    logprobs = torch.full((4,), new, dtype=torch.float32, requires_grad=True)
    old, advantages = (torch.full((4,), x, dtype=torch.float32) for x in (old, advantage))
    row = torch.tensor([0, 0, 0, 1])
    value = loss(logprobs, old, advantages, row)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value).all()
    assert torch.isfinite(logprobs.grad).all()
    flags = loss.clip_flags(logprobs, old, advantages, row)
    assert all(torch.isfinite(flag).all() for flag in flags.values())
    proportional = isinstance(loss, (Clip, Gmpo)) and not isinstance(loss, (DualClip, TwoSided))
    if not (proportional and advantage < 0):
        assert value.abs().max() <= 4 * 51  # the largest factor here is Sapo's 4, and |log-prob| is 51


@pytest.mark.parametrize("pair", [(2.0, 3.0), (3.0, 2.0)])
def test_the_kernel_of_vespo_is_largest_where_it_says(pair):
    k, lam = pair
    loss = Vespo(k_positive=k, lambda_positive=lam, k_negative=k, lambda_negative=lam)
    delta = torch.cat([torch.linspace(-30, 200, 2301), torch.tensor([k / lam]).log()])
    phi = -loss(torch.ones_like(delta), 1 - delta, torch.ones_like(delta), torch.arange(len(delta)))
    assert phi.argmax() == len(delta) - 1
    assert phi.max().item() == pytest.approx((k / lam) ** k * math.exp(lam - k))
    assert phi.min() >= 0


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_no_tokens_no_loss(loss):
    empty = torch.zeros(0)
    assert loss(empty, empty, empty, torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert isinstance(loss, PolicyLoss)


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_precision_is_that_of_the_inputs(loss):
    """Whatever PyTorch's default is."""
    batch = fixture_t()
    expected = loss(*batch.flat())
    torch.set_default_dtype(torch.float32)
    assert torch.equal(loss(*batch.flat()), expected)
