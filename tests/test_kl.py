"""Divergences, exact and sampled: values, gradients, and what each optimises, by enumerating a small vocabulary."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rookexp import kl
from rookexp.kl import Exact, Sampled

Z = torch.tensor([1, 0, -1, 0.5], dtype=torch.float64)  # the policy's logits
W = torch.tensor([0.2, 0.1, 0, -0.3], dtype=torch.float64)  # the reference's
INF = float("inf")
FORWARD_GRAD = torch.tensor([0.1291151884, -0.1094355155, -0.0979919932, 0.0783123204], dtype=torch.float64)
REVERSE_GRAD = torch.tensor([0.1736994583, -0.0973433965, -0.1817101088, 0.105354047], dtype=torch.float64)
divergences = pytest.mark.parametrize("divergence", [kl.forward, kl.reverse, kl.symmetric])

# Fixture T, its ten tokens in a row: log-probs when sampled, log pi - log old, and x = log pi - log reference.
OLD = torch.tensor([-0.5, -1, -1.5, -0.2, -0.4, -2, -1, -0.5, -0.25, -0.7], dtype=torch.float64)
LOG_RATIO = torch.tensor([0.1, -0.2, 0.3, 0.4, -0.5, 0.05, 0, -0.05, 0.25, -0.3], dtype=torch.float64)
X = torch.tensor([0.2, -0.1, 0, 0.05, 0.3, -0.2, 0.1, 0.15, -0.05, 0.4], dtype=torch.float64)
SAMPLED = [kl.k1, kl.k2, kl.k3, kl.absolute, kl.ratio_k3, kl.legacy_sampled]
NON_NEGATIVE = [kl.k2, kl.k3, kl.absolute, kl.ratio_k3]

logits = arrays("float64", (3, 5), elements=st.floats(-30, 30, width=32)).map(torch.from_numpy)
few_logits = arrays("float64", 4, elements=st.floats(-4, 4)).map(torch.from_numpy)


# ---- exact ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, [-0.7465672692, -1.7465672692, -2.7465672692, -1.2465672692]),
        (1.3, [-0.8581500220, -1.6273807913, -2.3966115605, -1.2427654067]),
    ],
)
def test_at_a_temperature_it_is_the_divergence_of_the_tempered_distributions(temperature, expected):
    z = Z.clone().requires_grad_()
    logp, logq = (z / temperature).log_softmax(-1), (W / temperature).log_softmax(-1)
    torch.testing.assert_close(logp.detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)
    value = kl.forward(logp, logq)
    value.backward()
    p, log_ratio = logp.detach().exp(), (logp - logq).detach()
    assert value.item() == pytest.approx(float((p * log_ratio).sum()), abs=1e-14)
    gradient = p * (log_ratio - value.detach()) / temperature
    torch.testing.assert_close(z.grad, gradient, rtol=0, atol=1e-14)


# ---- sampled: values and gradients at given tokens -----------------------------------------------------------------


def on_fixture_t(formula) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and derivative by logprobs at each token of Fixture T."""
    logprobs = (OLD + LOG_RATIO).requires_grad_()
    value = formula(logprobs, logprobs.detach() - X, OLD)
    value.sum().backward()
    return value.detach(), logprobs.grad


@pytest.mark.parametrize(
    ("formula", "token_mean"),
    [
        (kl.k1, 0.085),
        (kl.k2, 0.018875),
        (kl.k3, 0.0174488611369),
        (kl.absolute, 0.155),
        (kl.ratio_k3, 0.0142775614139),
    ],
)
def test_golden_token_means(formula, token_mean):
    assert on_fixture_t(formula)[0].mean().item() == pytest.approx(token_mean, abs=1e-13)


@pytest.mark.parametrize(
    ("formula", "derivative"),
    [
        (kl.k1, torch.ones_like(X)),
        (kl.k2, X),
        (kl.k3, 1 - (-X).exp()),
        (kl.absolute, X.sign()),
        (kl.ratio_k3, LOG_RATIO.exp() * X),
        (kl.legacy_sampled, (OLD + LOG_RATIO).exp() * (X + 1)),
    ],
)
def test_derivative_by_the_log_prob(formula, derivative):
    torch.testing.assert_close(on_fixture_t(formula)[1], derivative, rtol=0, atol=1e-14)


@pytest.mark.parametrize("formula", NON_NEGATIVE)
@settings(max_examples=30)
@given(z=logits, w=logits)
def test_estimators_that_are_never_negative(formula, z, w):
    for dtype in (torch.float32, torch.float64):
        logp, logq = z.to(dtype).log_softmax(-1).flatten(), w.to(dtype).log_softmax(-1).flatten()
        assert (formula(logp, logq, logp) >= 0).all()
        assert (formula(logp, logp + 1e-4 * logq, logp) >= 0).all()
        assert (formula(logp, logp, logp) == 0).all()


def test_k3_keeps_its_gradient_where_rounding_is_taken_out():
    logprobs = torch.linspace(-3e-4, 3e-4, 501).requires_grad_()
    kl.k3(logprobs, torch.zeros(501), logprobs.detach()).sum().backward()
    exact = -(-logprobs.detach().double()).expm1()
    torch.testing.assert_close(logprobs.grad.double(), exact, rtol=0, atol=2e-7)


@pytest.mark.parametrize("formula", SAMPLED)
@pytest.mark.parametrize("minus_x", [-50.0, 50.0])
def test_far_log_ratios_stay_finite_and_exact_in_float32(formula, minus_x):
    def both(dtype):
        logprobs = torch.tensor([min(0, -minus_x) - 0.25], dtype=dtype).requires_grad_()
        value = formula(logprobs, logprobs.detach() + minus_x, logprobs.detach() - 0.1)
        value.backward()
        return value.detach().double(), logprobs.grad.double()

    for single, double in zip(both(torch.float32), both(torch.float64), strict=True):
        assert single.isfinite().all()
        torch.testing.assert_close(single, double, rtol=1e-5, atol=1e-6)


def test_beyond_float32_k3_is_infinite_and_not_another_number():
    zero = torch.zeros(1)
    assert kl.k3(zero - 88.5, zero, zero).isfinite().all()
    assert kl.k3(zero - 89, zero, zero) == INF
    assert kl.k3(zero, zero - INF, zero) == INF  # a token that the reference cannot emit
    for formula in SAMPLED:
        assert formula(zero + float("nan"), zero, zero).isnan().all()


# ---- what each optimises: expectations over every token of the vocabulary ------------------------------------------


def gradient_at(z, function):
    z = z.clone().requires_grad_()
    function(z.log_softmax(-1)).backward()
    return z.grad


def expected_gradient(formula, z, logq, sampler=None):
    """The mean gradient at z of `formula` as the loss of a token drawn from `sampler`, else from the policy."""
    old = z.log_softmax(-1) if sampler is None else sampler
    return gradient_at(z, lambda logp: (old.exp() * formula(logp, logq, old)).sum())


def twice_total_variation(logp, logq):
    return (logp.exp() - logq.exp()).abs().sum()


@pytest.mark.parametrize(
    ("formula", "optimised"),
    [
        (kl.k1, lambda logp, logq: 0 * logp.sum()),
        (kl.k2, kl.forward),
        (kl.k3, kl.reverse),
        (kl.absolute, twice_total_variation),
        (kl.ratio_k3, kl.forward),
    ],
)
@settings(max_examples=30)
@given(z=few_logits, w=few_logits)
def test_expected_gradient_as_a_loss(formula, optimised, z, w):
    logq = w.log_softmax(-1)
    expected = gradient_at(z, lambda logp: optimised(logp, logq))
    if formula is kl.absolute and ((z.log_softmax(-1) - logq).abs() < 1e-9).any():
        return  # it has a kink there
    torch.testing.assert_close(expected_gradient(formula, z, logq), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("formula", "gradient"),
    [
        (kl.k1, torch.zeros_like(Z)),
        (kl.k2, FORWARD_GRAD),
        (kl.k3, REVERSE_GRAD),
        (kl.ratio_k3, FORWARD_GRAD),
    ],
)
def test_golden_expected_gradient(formula, gradient):
    torch.testing.assert_close(expected_gradient(formula, Z, W.log_softmax(-1)), gradient, rtol=0, atol=1e-10)


@settings(max_examples=30)
@given(z=few_logits, w=few_logits)
def test_expected_values(z, w):
    logp, logq = z.log_softmax(-1), w.log_softmax(-1)
    means = {formula: float((logp.exp() * formula(logp, logq, logp)).sum()) for formula in SAMPLED}
    exact = float(kl.forward(logp, logq))
    for formula in (kl.k1, kl.k3, kl.ratio_k3):
        assert means[formula] == pytest.approx(exact, rel=1e-11, abs=1e-12)
    assert means[kl.absolute] >= exact - 1e-12
    assert means[kl.legacy_sampled] == pytest.approx(float((2 * logp).exp() @ (logp - logq)), rel=1e-11, abs=1e-12)


@settings(max_examples=30)
@given(z=few_logits, w=few_logits, y=few_logits)
def test_after_other_updates_only_the_ratio_keeps_k3_right(z, w, y):
    """Samples of an older policy: rho k3 keeps value and gradient of KL(policy || reference)."""
    logp, logq, old = z.log_softmax(-1), w.log_softmax(-1), y.log_softmax(-1)
    value = float((old.exp() * kl.ratio_k3(logp, logq, old)).sum())
    assert value == pytest.approx(float(kl.forward(logp, logq)), rel=1e-10, abs=1e-11)
    expected = gradient_at(z, lambda logp: kl.forward(logp, logq))
    torch.testing.assert_close(expected_gradient(kl.ratio_k3, z, logq, old), expected, rtol=1e-10, atol=1e-11)


def test_at_ratio_one_ratio_k3_pulls_as_k2_does_at_every_token():
    def gradient(formula):
        logprobs = OLD.clone().requires_grad_()
        formula(logprobs, OLD - X, OLD).sum().backward()
        return logprobs.grad

    torch.testing.assert_close(gradient(kl.ratio_k3), gradient(kl.k2), rtol=0, atol=1e-14)


@settings(max_examples=30)
@given(z=few_logits, w=few_logits)
def test_expected_gradient_in_the_reward(z, w):
    """The score function with a detached penalty: k1 gives KL(policy || reference), k3 mostly cancels."""
    logq = w.log_softmax(-1)
    forward, reverse = (gradient_at(z, lambda logp, d=d: d(logp, logq)) for d in (kl.forward, kl.reverse))

    def scored(formula):
        logp = z.log_softmax(-1)
        return gradient_at(z, lambda live: (logp.exp() * formula(logp, logq, logp) * live).sum())

    torch.testing.assert_close(scored(kl.k1), forward, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(scored(kl.k3), forward - reverse, rtol=1e-11, atol=1e-12)


def test_only_the_reward_sees_which_contexts_are_visited():
    """Two tokens of a vocabulary of three: k1 paid with what follows gives the divergence of whole sequences."""
    generator = torch.Generator().manual_seed(0)
    z1, z2, w1, w2 = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in [(3,), (3, 3), (3,), (3, 3)]
    )
    logq1, logq2 = w1.log_softmax(-1), w2.log_softmax(-1)  # (a,), (a, b): b after a

    def gradient(function):
        a, ab = z1.clone().requires_grad_(), z2.clone().requires_grad_()
        grads = torch.autograd.grad(function(a.log_softmax(-1), ab.log_softmax(-1)), (a, ab), materialize_grads=True)
        return torch.cat([grad.flatten() for grad in grads])

    def sequence_kl(a, ab):
        return kl.forward((a[:, None] + ab).flatten(), (logq1[:, None] + logq2).flatten())

    def in_the_reward(a, ab):
        drawn, x1, x2 = (a[:, None] + ab).detach().exp(), (a - logq1).detach()[:, None], (ab - logq2).detach()
        return (drawn * ((x1 + x2) * a[:, None] + x2 * ab)).sum()

    def as_a_loss(a, ab):
        return kl.forward(a, logq1) + (a.detach().exp() * kl.forward(ab, logq2)).sum()

    def of_visits(a, ab):
        return (a.exp() * kl.forward(ab, logq2).detach()).sum()

    whole = gradient(sequence_kl)
    torch.testing.assert_close(gradient(in_the_reward), whole, rtol=0, atol=1e-13)
    torch.testing.assert_close(gradient(as_a_loss), whole - gradient(of_visits), rtol=0, atol=1e-13)
    assert gradient(of_visits).abs().max() > 0.05, "else nothing is shown"


def test_what_is_wrong_with_legacy_sampled():
    logp, logq = torch.tensor([[0.1, 0.9], [0.01, 0.99]], dtype=torch.float64).log()
    assert (logp.exp() * kl.legacy_sampled(logp, logq, logp)).sum() < -0.05  # KL(policy || reference) is 0.14
    at_the_reference = expected_gradient(kl.legacy_sampled, Z, Z.log_softmax(-1))
    flattening = gradient_at(Z, lambda logp: (2 * logp).exp().sum() / 2)
    torch.testing.assert_close(at_the_reference, flattening, rtol=0, atol=1e-14)
    assert at_the_reference.abs().max() > 0.05


# ---- by word -------------------------------------------------------------------------------------------------------


def test_every_word_names_its_formula():
    exact = {"forward": kl.forward, "reverse": kl.reverse, "symmetric": kl.symmetric}
    sampled = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3, "abs": kl.absolute}
    sampled |= {"ratio_k3": kl.ratio_k3, "legacy_sampled": kl.legacy_sampled}
    shares = {"forward": (1.0, 0.0), "reverse": (0.0, 1.0), "symmetric": (0.5, 0.5)}
    kinds = {word: Exact(formula, shares[word]) for word, formula in exact.items()}
    kinds |= {word: Sampled(formula) for word, formula in sampled.items()}
    assert kinds == kl.TYPES
