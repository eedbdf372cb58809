"""Exact divergences, value and gradient, and the coefficients in front of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rookexp import kl
from rookexp.kl import FixedKL, NoKL, WarmupKL

Z = torch.tensor([1, 0, -1, 0.5], dtype=torch.float64)  # the policy's logits
W = torch.tensor([0.2, 0.1, 0, -0.3], dtype=torch.float64)  # the reference's
INF = float("inf")
FORWARD_GRAD = torch.tensor([0.1291151884, -0.1094355155, -0.0979919932, 0.0783123204], dtype=torch.float64)
REVERSE_GRAD = torch.tensor([0.1736994583, -0.0973433965, -0.1817101088, 0.105354047], dtype=torch.float64)
divergences = pytest.mark.parametrize("divergence", [kl.forward, kl.reverse, kl.symmetric])
logits = arrays("float64", (3, 5), elements=st.floats(-30, 30, width=32)).map(torch.from_numpy)


@pytest.mark.parametrize(
    ("divergence", "value", "gradient"),
    [
        (kl.forward, 0.1840345406559, FORWARD_GRAD),
        (kl.reverse, 0.2306527120266, REVERSE_GRAD),
        (kl.symmetric, 0.2073436263413, (FORWARD_GRAD + REVERSE_GRAD) / 2),
    ],
)
def test_golden_value_and_gradient(divergence, value, gradient):
    z = Z.clone().requires_grad_()
    d = divergence(z.log_softmax(-1), W.log_softmax(-1))
    d.backward()
    assert d.item() == pytest.approx(value, abs=1e-13)
    torch.testing.assert_close(z.grad, gradient, rtol=0, atol=1e-10)


@divergences
def test_gradcheck_through_both_softmaxes(divergence):
    z, w = torch.stack([Z, -Z, 3 * Z]).requires_grad_(), torch.stack([W, Z, W * 5]).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, w: divergence(z.log_softmax(-1), w.log_softmax(-1)), (z, w))


@pytest.mark.parametrize("nothing", [-INF, -1e9])
@divergences
def test_a_token_that_neither_can_emit_adds_nothing(divergence, nothing):
    z = torch.cat([Z, torch.tensor([nothing])]).double().requires_grad_()
    w = torch.cat([W, torch.tensor([nothing])]).double()
    d = divergence(z.log_softmax(-1), w.log_softmax(-1))
    d.backward()
    short = Z.clone().requires_grad_()
    expected = divergence(short.log_softmax(-1), W.log_softmax(-1))
    expected.backward()
    assert d.item() == pytest.approx(expected.item(), abs=1e-15)
    torch.testing.assert_close(z.grad, torch.cat([short.grad, torch.zeros(1)]).double(), rtol=0, atol=1e-15)


def test_a_token_that_only_one_can_emit():
    """KL(p || q) is finite where p = 0 < q and infinite where q = 0 < p."""
    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log().requires_grad_()
    q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
    value = kl.forward(p, q)
    value.backward()
    assert value.item() == pytest.approx(torch.tensor(2.0).log().item())
    assert torch.isfinite(p.grad).all()
    assert kl.reverse(p.detach(), q) == kl.symmetric(p.detach(), q) == kl.forward(q, p.detach()) == INF


@divergences
def test_nan_is_not_hidden(divergence):
    assert divergence(torch.tensor([float("nan"), -1.0]), torch.tensor([-1.0, -0.5])).isnan()


@divergences
@given(z=logits, w=logits)
def test_never_negative_and_zero_for_equal_distributions(divergence, z, w):
    for dtype in (torch.float32, torch.float64):
        p, q = z.to(dtype).log_softmax(-1), w.to(dtype).log_softmax(-1)
        assert (divergence(p, q) >= 0).all()
        assert (divergence(p, p) == 0).all()
    naive_forward, naive_reverse = (p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1)
    naive = {kl.forward: naive_forward, kl.reverse: naive_reverse, kl.symmetric: (naive_forward + naive_reverse) / 2}
    torch.testing.assert_close(divergence(p, q), naive[divergence], rtol=1e-12, atol=1e-14)


@divergences
@given(z=logits, w=logits)
def test_no_gradient_is_lost_where_rounding_is_taken_out(divergence, z, w):
    """Nearly equal distributions, whose float32 divergence rounds below zero, keep the gradient of the formula."""
    z = z.float().requires_grad_()
    d = divergence(z.log_softmax(-1), (z.detach() + 1e-4 * w.float()).log_softmax(-1))
    d.sum().backward()
    exact = z.detach().double().requires_grad_()
    divergence(exact.log_softmax(-1), (exact.detach() + 1e-4 * w).log_softmax(-1)).sum().backward()
    torch.testing.assert_close(z.grad.double(), exact.grad, rtol=0, atol=2e-5)


def test_no_and_fixed_coefficients():
    assert (NoKL().coefficient(), NoKL().can_be_nonzero) == (0.0, False)
    assert (FixedKL(coef=0.04).coefficient(), FixedKL(coef=0.04).can_be_nonzero) == (0.04, True)
    assert not FixedKL(coef=0.0).can_be_nonzero


@pytest.mark.parametrize(
    ("shape", "warmup_steps", "expected"),
    [
        ("switch", 3, [0, 0, 0, 0.4, 0.4]),
        ("linear", 4, [0, 0.1, 0.2, 0.3, 0.4, 0.4]),
        ("switch", 0, [0.4, 0.4]),
        ("linear", 0, [0.4, 0.4]),
    ],
)
def test_warmup_step_by_step_and_resumed_at_every_step(shape, warmup_steps, expected):
    coefficient = WarmupKL(coef=0.4, warmup_steps=warmup_steps, shape=shape)
    assert coefficient.can_be_nonzero
    for value in expected:
        assert coefficient.coefficient() == pytest.approx(value)
        resumed = WarmupKL(coef=0.4, warmup_steps=warmup_steps, shape=shape)
        resumed.load_state_dict(coefficient.state_dict())
        assert resumed.coefficient() == coefficient.coefficient()
        coefficient = resumed
        coefficient.observe(0.1)


@pytest.mark.parametrize("coefficient", [NoKL(), FixedKL(coef=0.1), WarmupKL(coef=0.1, warmup_steps=2, shape="linear")])
@pytest.mark.parametrize("kl_nats", [-1e-6, float("nan")])
def test_a_signed_estimator_is_refused(coefficient, kl_nats):
    state = {name: value.clone() for name, value in coefficient.state_dict().items()}
    with pytest.raises(ValueError, match="never negative"):
        coefficient.observe(kl_nats)
    assert state == coefficient.state_dict()
    coefficient.observe(0.0)
