"""Token statistics against the plain formula over full logits, and the small helpers."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from rookexp import kl, ops

M, D, V = 7, 4, 11
Z = torch.tensor([[1, 0, -1, 0.5]], dtype=torch.float64)  # logits of one token
DIVERGENCES = [None, kl.forward, kl.reverse, kl.symmetric]
SHARES = {None: None} | {each.formula: each.shares for each in kl.TYPES.values() if isinstance(each, kl.Exact)}


def inputs(dtype=torch.float64, m=M, d=D, v=V) -> dict:
    """Arguments of `token_stats` without chunk and divergence; the rows have different temperatures."""
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    return {
        "hidden": draw(m, d).requires_grad_(),
        "head_weight": draw(v, d).requires_grad_(),
        "targets": torch.randint(v, (m,), generator=g),
        "temperature": torch.linspace(0.5, 1.5, m).to(dtype),
        "ref_hidden": draw(m, d + 1),
        "ref_head_weight": draw(v, d + 1),
    }


def naive(x: dict, divergence) -> tuple[Tensor, ...]:
    """Log-probs, entropies and divergences by the book."""
    logp = (x["hidden"] @ x["head_weight"].T / x["temperature"][:, None]).log_softmax(1)
    stats = (logp.gather(1, x["targets"][:, None])[:, 0], -(logp.exp() * logp).sum(1))
    if divergence is None:
        return stats
    logq = (x["ref_hidden"] @ x["ref_head_weight"].T / x["temperature"][:, None]).log_softmax(1)
    return (*stats, divergence(logp, logq))


def fused(x: dict, divergence, chunk: int) -> tuple[Tensor, ...]:
    stats = ops.token_stats(**x, divergence=SHARES[divergence], chunk=chunk)
    assert (stats.ref is None) == (divergence is None)
    return stats.logprobs, stats.entropy, *(() if stats.ref is None else (stats.ref.kl,))


def gradients(x: dict, stats: tuple[Tensor, ...], used: list[int]) -> tuple[Tensor, ...]:
    """Gradients at hidden and head_weight of a sum over the `used` statistics with different weights a token."""
    loss = sum((stats[i] * torch.linspace(-1, 2 + i, len(stats[i])).to(stats[i])).sum() for i in used)
    return torch.autograd.grad(loss, (x["hidden"], x["head_weight"]), retain_graph=True)


def test_golden_values_and_gradients():
    """With the identity as head the hidden state is the logits, so its gradient is theirs."""
    z = Z.clone().requires_grad_()
    eye, w = torch.eye(4).double(), torch.tensor([[0.2, 0.1, 0, -0.3]], dtype=torch.float64)
    one = torch.ones(1).double()
    for divergence, kl_nats, kl_grad in [
        (kl.forward, 0.1840345406559, [0.1291151884, -0.1094355155, -0.0979919932, 0.0783123204]),
        (kl.reverse, 0.2306527120266, [0.1736994583, -0.0973433965, -0.1817101088, 0.105354047]),
    ]:
        against = {"divergence": SHARES[divergence], "ref_hidden": w, "ref_head_weight": eye}
        stats = ops.token_stats(z, eye, torch.tensor([3]), one, chunk=8, **against)
        assert stats.logprobs.item() == pytest.approx(-1.2465672692, abs=1e-10)
        assert stats.entropy.item() == pytest.approx(1.1929791180110, abs=1e-12)
        assert stats.ref.kl.item() == pytest.approx(kl_nats, abs=1e-12)
        (entropy_grad,) = torch.autograd.grad(stats.entropy.sum(), z, retain_graph=True)
        expected = [-0.21159513, 0.0965299895, 0.099659084, 0.0154060565]
        assert entropy_grad[0].tolist() == pytest.approx(expected, abs=1e-9)
        assert torch.autograd.grad(stats.ref.kl.sum(), z)[0][0].tolist() == pytest.approx(kl_grad, abs=1e-10)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, [-0.7465672692, -1.7465672692, -2.7465672692, -1.2465672692]),
        (1.3, [-0.8581500220, -1.6273807913, -2.3966115605, -1.2427654067]),
    ],
)
def test_log_probs_are_those_of_the_tempered_policy(temperature, expected):
    t = torch.full((4,), temperature, dtype=torch.float64)
    stats = ops.token_stats(Z.expand(4, 4), torch.eye(4).double(), torch.arange(4), t, chunk=3)
    assert stats.logprobs.tolist() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("chunk", [1, 3, M, 100])
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("used", [[0], [1], [0, 1], [2], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("cached_rows", [1, 2, 100])
def test_values_and_gradients_equal_the_plain_formula(chunk, divergence, used, cached_rows, monkeypatch):
    monkeypatch.setattr(ops, "CACHED_BYTES", cached_rows * 4 * V)
    if divergence is None:
        used = [i for i in used if i < 2] or [0]
    x = inputs()
    expected, stats = naive(x, divergence), fused(x, divergence, chunk)
    torch.testing.assert_close(stats, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gradients(x, stats, used), gradients(x, expected, used), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_gradcheck(divergence):
    x = inputs(m=3, d=2, v=5)
    leaves = x.pop("hidden"), x.pop("head_weight")
    assert torch.autograd.gradcheck(
        lambda hidden, head: fused({**x, "hidden": hidden, "head_weight": head}, divergence, 2), leaves
    )


@pytest.mark.parametrize("name", ["hidden", "head_weight"])
def test_a_frozen_input_gets_no_gradient(name):
    x = inputs()
    x[name].requires_grad_(False)
    stats = fused(x, kl.forward, 3)
    sum(s.sum() for s in stats).backward()
    assert {n for n in ("hidden", "head_weight") if x[n].grad is not None} == {"hidden", "head_weight"} - {name}


def test_no_tokens():
    x = inputs(m=0)
    stats = fused(x, kl.forward, 3)
    assert [s.shape for s in stats] == [(0,)] * 3
    assert all((g == 0).all() for g in gradients(x, stats, [0, 1, 2]))


def test_equal_models_have_divergence_exactly_zero():
    x = inputs(torch.float32, m=50, d=16, v=100)
    x |= {"ref_hidden": x["hidden"].detach(), "ref_head_weight": x["head_weight"].detach()}
    for divergence in DIVERGENCES[1:]:
        assert (fused(x, divergence, 8)[2] == 0).all()


def test_an_unused_statistic_costs_no_backward_and_the_last_chunk_goes_through_the_head_once(monkeypatch):
    """Of a divergence that is only a metric the reference is not projected again."""
    x, calls, real = inputs(), [], ops._logits

    def logits(hidden: Tensor, weight: Tensor) -> Tensor:
        calls.append("policy" if hidden.shape[1] == D else "reference")
        return real(hidden, weight)

    monkeypatch.setattr(ops, "_logits", logits)
    both = ["policy", "reference"]
    stats = fused(x, kl.forward, 4)
    assert calls == 2 * both
    gradients(x, stats, [0])
    assert calls[4:] == ["policy"]
    gradients(x, stats, [0])  # the graph is kept: the last chunk is then computed again, too
    assert calls[5:] == ["policy", "policy"]
    calls.clear()
    gradients(x, fused(x, kl.forward, 4), [0, 2])
    assert calls[4:] == both
    calls.clear()
    gradients(x, fused(x, None, M), [0, 1])
    assert calls == ["policy"]


def test_never_more_than_a_chunk_of_logits():
    """Between forward and backward the graph keeps the inputs and a few numbers a token; no tensor ever made has tokens
    x vocabulary.
    """
    m, v, chunk = 64, 100, 8
    x = inputs(m=m, v=v)
    kept, made = [], []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made.extend(t.numel() for t in (out if isinstance(out, tuple) else [out]) if isinstance(t, Tensor))
            return out

    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with Watch():
        with hooks:
            stats = fused(x, kl.symmetric, chunk)
        gradients(x, stats, [0, 1, 2])
    given = {t.data_ptr() for t in x.values()}
    assert {t.data_ptr() for t in kept} > given
    assert sum(t.numel() for t in kept if t.data_ptr() not in given) <= 10 * m
    assert made.count(chunk * v) > 10 * (m // chunk)  # the watch saw the chunks of both passes
    assert max(made) == chunk * v


class Alive(TorchDispatchMode):
    """The most bytes that were alive at one time in what was made here, and the largest single tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for made in torch.utils._pytree.tree_leaves(out):
            if isinstance(made, Tensor) and made.untyped_storage()._cdata not in given:
                storage = made.untyped_storage()
                self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.largest = max(self.largest, storage.nbytes())
        self.storages = {key: kept for key, kept in self.storages.items() if not kept[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.storages.values()))
        return out


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_memory_at_the_vocabulary_of_gpt2_is_that_of_a_chunk_however_many_tokens(divergence):
    """In forward and backward a few chunks' logits are alive; four times the tokens add no more than their own size."""
    v, chunk, most = 50_257, 2, {}
    for m in (8, 32):
        x = inputs(torch.float32, m=m, v=v)
        with Alive() as watch:
            gradients(x, fused(x, divergence, chunk), [0, 1] if divergence is None else [0, 1, 2])
        logits, head = 4 * chunk * v, 4 * v * D
        assert watch.largest == max(logits, head)
        assert watch.most < 10 * logits + 2 * head
        most[m] = watch.most
    assert most[32] - most[8] < 24 * 4 * 24  # 24 more tokens, a few numbers each
    assert 4 * 32 * v > most[32]  # what the plain formula would need for its logits alone


def cast(x: dict, dtype: torch.dtype) -> dict:
    """The same arguments in another precision, the leaves leaves again."""
    made = {n: t.detach().to(dtype) if t.is_floating_point() else t for n, t in x.items()}
    return made | {n: made[n].requires_grad_() for n in ("hidden", "head_weight")}


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_gradients_at_the_vocabulary_of_gpt2_are_those_of_the_plain_formula(divergence):
    """To 1e-12 in float64; in float32 the softmax over so many words alone costs 1e-5, and the chunks add little."""
    used = [0, 1] if divergence is None else [0, 1, 2]
    single = inputs(torch.float32, m=12, v=50_257)
    double = cast(single, torch.float64)
    expected = gradients(double, naive(double, divergence), used)
    found = gradients(double, fused(double, divergence, 5), used)
    rounded = [gradients(single, stats, used) for stats in (fused(single, divergence, 5), naive(single, divergence))]
    for want, got, chunked, whole in zip(expected, found, *rounded, strict=True):
        errors = [((x - want).norm() / want.norm()).item() for x in (got, chunked, whole)]
        assert errors[0] < 1e-12
        assert errors[1] < 1e-4
        assert errors[1] < 8 * errors[2]


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("divergence", DIVERGENCES[1:])
def test_the_references_log_probs_are_the_plain_ones_and_have_no_gradient(chunk, divergence):
    x = inputs()
    x["ref_hidden"].requires_grad_()
    x["ref_head_weight"].requires_grad_()
    stats = ops.token_stats(**x, divergence=SHARES[divergence], chunk=chunk)
    logq = (x["ref_hidden"] @ x["ref_head_weight"].T / x["temperature"][:, None]).log_softmax(1)
    expected = torch.stack([logq[i, target] for i, target in enumerate(x["targets"])])
    torch.testing.assert_close(stats.ref.logprobs, expected.detach(), rtol=1e-12, atol=1e-13)
    assert not stats.ref.logprobs.requires_grad
    (stats.logprobs - stats.ref.logprobs).square().sum().backward()  # an estimator's gradient is the policy's alone
    assert x["ref_hidden"].grad is None
    assert x["ref_head_weight"].grad is None
    logp = (x["hidden"] @ x["head_weight"].T / x["temperature"][:, None]).log_softmax(1)
    plain = (logp.gather(1, x["targets"][:, None])[:, 0] - expected.detach()).square().sum()
    for name in ("hidden", "head_weight"):
        torch.testing.assert_close(x[name].grad, torch.autograd.grad(plain, x[name], retain_graph=True)[0])


def test_without_a_divergence_the_reference_is_not_touched():
    stats = ops.token_stats(**inputs() | {"ref_hidden": None, "ref_head_weight": None}, divergence=None, chunk=3)
    assert stats.ref is None


def test_autocast_multiplies_in_bf16_and_does_the_rest_in_float32():
    x = inputs(torch.float32, m=40, d=32, v=60)
    rounded = {n: t.detach().bfloat16() if t.is_floating_point() and n != "temperature" else t for n, t in x.items()}
    logp = (rounded["hidden"] @ rounded["head_weight"].T).float().div(x["temperature"][:, None]).log_softmax(1)
    expected = logp.gather(1, x["targets"][:, None])[:, 0]
    with torch.autocast("cpu", torch.bfloat16):
        stats = fused(x, kl.forward, 16)
    assert {s.dtype for s in stats} == {torch.float32}
    torch.testing.assert_close(stats[0], expected, rtol=0, atol=1e-5)
    grads = gradients(x, stats, [0, 1, 2])
    assert {g.dtype for g in grads} == {torch.float32}
    for got, want in zip(grads, gradients(x, naive(x, kl.forward), [0, 1, 2]), strict=True):
        assert ((got - want).norm() / want.norm()).item() < 0.02  # bf16 keeps 8 bits


@pytest.mark.parametrize("divergence", [kl.forward, kl.reverse, kl.symmetric])
def test_autocast_rounds_no_entropy_and_no_divergence(divergence):
    """From the same bf16 logits float64 gives the same, of a reference so near that bf16 would lose its divergence."""
    x = inputs(torch.float32, m=40, d=32, v=60)
    hidden, weight = x["hidden"].detach(), x["head_weight"].detach()
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    x |= {"ref_hidden": hidden, "ref_head_weight": weight + 0.01 * noise}
    heat = x["temperature"][:, None].double()
    heads = weight, x["ref_head_weight"]
    logp, logq = (((hidden.bfloat16() @ w.bfloat16().T).double() / heat).log_softmax(1) for w in heads)
    with torch.autocast("cpu", torch.bfloat16):
        stats = ops.token_stats(**x, divergence=SHARES[divergence], chunk=16)
        alone = divergence(logp.float(), logq.float())
    expected = divergence(logp, logq)
    assert 1e-6 < expected.median() < 1e-2
    torch.testing.assert_close(stats.entropy.double(), -(logp.exp() * logp).sum(1), rtol=0, atol=1e-5)
    for got, want in ((stats.ref.kl, expected), (alone, expected), (stats.ref.forward_kl, kl.forward(logp, logq))):
        torch.testing.assert_close(got.double(), want, rtol=0.01, atol=1e-7)


def test_a_bf16_model_gets_bf16_gradients_and_float32_statistics():
    x = inputs(torch.bfloat16, m=6)
    stats = fused(x, kl.forward, 4)
    assert {s.dtype for s in stats} == {torch.float32}
    assert {g.dtype for g in gradients(x, stats, [0, 1, 2])} == {torch.bfloat16}


def test_float32_log_probs_of_large_logits():
    """Logits around -60, as GPT-2's are, cost no more than float32's rounding."""
    x = inputs(torch.float64, m=30, d=8, v=200)
    x["hidden"].data[:, 0], x["head_weight"].data[:, 0] = -8.0, 8.0
    exact = naive(x, None)
    stats = fused({n: t.float() if t.is_floating_point() else t for n, t in x.items()}, None, 7)
    torch.testing.assert_close(stats, tuple(e.float() for e in exact), rtol=0, atol=1e-4)


@given(st.integers(0, 1 << 40))
def test_counts_are_rounded_up_by_at_most_a_sixteenth_to_few_sizes(count):
    size = ops.rounded(count)
    assert count <= size <= count * 17 / 16
    assert ops.rounded(size) == size
    assert size >> max(0, size.bit_length() - 5) << max(0, size.bit_length() - 5) == size


def test_products_of_a_ragged_batch_under_autocast_have_a_rounded_number_of_rows(monkeypatch):
    x = inputs(torch.float32, m=67, v=32)
    shapes = []
    plain = ops._logits
    monkeypatch.setattr(ops, "_logits", lambda hidden, weight: shapes.append(len(hidden)) or plain(hidden, weight))

    def found() -> tuple[Tensor, ...]:
        shapes.clear()
        with torch.autocast("cpu", torch.bfloat16):
            stats = ops.token_stats(**x, chunk=1000, divergence=(0.5, 0.5))
        kept = stats.logprobs, stats.entropy, stats.ref.kl, stats.ref.logprobs, stats.ref.forward_kl
        weights = torch.linspace(-1, 1, 67)
        loss = sum((weights * each).sum() for each in kept[:3])
        return *kept, *torch.autograd.grad(loss, (x["hidden"], x["head_weight"]))

    extended = found()
    assert shapes == [68, 68]  # the policy's and the reference's
    monkeypatch.setattr(ops, "spare", lambda count, device_type: 0)
    for a, b in zip(extended, found(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert shapes == [67, 67]


def test_zero_outside_and_weighted_sum_ignore_what_padding_holds():
    x = torch.tensor([1.0, float("nan"), 2.0, float("inf")], requires_grad=True)
    e = torch.tensor(1.0).exp().item()
    mask = torch.tensor([True, False, True, False])
    loss = ops.weighted_sum(x, torch.tensor([0.5, 0.0, 2.0, 0.0])) + ops.zero_outside(x, mask).exp()[mask].sum()
    loss.backward()
    assert loss.item() == pytest.approx(4.5 + e + e**2)
    assert x.grad.tolist() == pytest.approx([0.5 + e, 0, 2 + e**2, 0])
    assert ops.weighted_sum(x.detach(), mask.float()).item() == 3
    assert ops.weighted_sum(x.detach(), torch.ones(4)).isnan()  # a weighted NaN is not hidden


@pytest.mark.parametrize(("count", "size", "lengths"), [(12, 5, [4, 4, 4]), (7, 7, [7]), (3, 2, [1, 2]), (0, 4, [])])
def test_parts_are_few_even_and_whole(count, size, lengths):
    found = [list(range(count))[part] for part in ops.parts(count, size)]
    assert [len(part) for part in found] == lengths
    assert [i for part in found for i in part] == list(range(count))


def test_seeds_are_the_same_in_every_process():
    assert ops.seed_of(42, "sample", 3, 1) == 1552755343752671741
    code = "from rookexp.ops import seed_of; print(seed_of(42, 'sample', 3, 1))"
    assert int(subprocess.check_output([sys.executable, "-c", code])) == ops.seed_of(42, "sample", 3, 1)


def test_seeds_tell_parts_apart():
    parts = [(1, 23), (12, 3), (123,), ("1", 23), (1, "23"), ("1, 23",), (23, 1), (), (0,), (-1,), ("a", "b"), ("ab",)]
    assert len({ops.seed_of(*p) for p in parts}) == len(parts)
    with pytest.raises(TypeError):
        ops.seed_of(0.5)


@given(st.lists(st.integers() | st.text()))
def test_seeds_fit_a_generator(parts):
    seed = ops.seed_of(*parts)
    assert 0 <= seed < 2**63
    torch.Generator().manual_seed(seed)


COMPILED = """
import sys
import torch
from test_ops import DIVERGENCES, fused, gradients, inputs
from tiny import policy

from rookexp import compiling

device, = sys.argv[1:]
x = inputs(torch.float32, m=40, d=16, v=97)
x = {name: y.detach().to(device).requires_grad_(y.requires_grad) for name, y in x.items()}
model = policy().to(device)
rows = torch.randint(7, (3, 9), generator=torch.Generator().manual_seed(0)).to(device)


def results():
    for divergence, used in zip(DIVERGENCES, ([0], [0, 1], [0, 2], [0, 1, 2])):
        stats = fused(x, divergence, 16)
        yield from (*stats, *gradients(x, stats, used))
    hidden = model.hidden(rows)
    yield from (hidden, *torch.autograd.grad(hidden.square().sum(), list(model.blocks.parameters())))


plain = [each.detach().clone() for each in results()]
compiling.compile_fusible(device)
try:
    torch.compile(torch.relu)(torch.ones(1, device=device))
except Exception as error:
    sys.exit(f"no compiler: {error}")
before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
found = list(results())
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before + 4, "something was compiled"
for a, b in zip(found, plain, strict=True):
    torch.testing.assert_close(a.detach(), b, rtol=1e-4, atol=1e-4)
"""


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_compiled_functions_compute_what_they_say(device, root):
    """In a process without the hook that checks shapes, which the compiler cannot look through."""
    code = [sys.executable, "-c", COMPILED, device]
    done = subprocess.run(code, cwd=root / "tests", capture_output=True, text=True)
    if done.stderr.startswith("no compiler"):
        pytest.skip(done.stderr[:200])
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_gpu_computes_what_a_cpu_computes_in_bf16_with_an_odd_vocabulary(divergence):
    here = inputs(torch.bfloat16, m=40, d=16, v=97)
    there = {name: x.detach().cuda().requires_grad_(x.requires_grad) for name, x in here.items()}
    both = []
    for x in (here, there):
        stats = fused(x, divergence, 16)
        both.append([*stats, *gradients(x, stats, [0, 1])])
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=2e-2, atol=2e-2)
