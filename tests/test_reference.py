"""When the reference follows the policy, and how."""

import copy

import pytest
import torch
from torch import nn

from rookexp.config import check, nodes
from rookexp.reference import EmaSync, HardSync, Interpolate, Never, Sync

RULES = [Never(), HardSync(every=1), EmaSync(decay=0.9, every=1)]


class Model(nn.Module):
    """Two layers that share a weight, a frozen parameter, a float and an integer buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("mean", torch.randn(4, generator=generator))
        self.register_buffer("seen", torch.tensor(seed))
        self.register_buffer("cache", torch.randn(2, generator=generator), persistent=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def pair() -> tuple[Model, Model]:
    """A frozen reference and a policy."""
    return Model(1).requires_grad_(False), Model(2)


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def same(one: nn.Module, other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), other, strict=True))


def moved(rule: Sync, step: int, reference: nn.Module, policy: nn.Module) -> bool:
    """Whether the update of a step has changed one of the two."""
    before = copy.deepcopy([tensors(model) for model in (reference, policy)])
    rule.update(step, reference, policy)
    return not all(map(same, (reference, policy), before))


def test_never():
    reference, policy = pair()
    assert not Never().moves
    assert not any(moved(Never(), step, reference, policy) for step in range(1, 5))


def test_a_hard_update_is_a_bitwise_copy_after_every_third_step():
    reference, policy = pair()
    rule = HardSync(every=3)
    assert rule.moves
    assert [moved(rule, step, reference, policy) for step in (1, 2)] == [False, False]
    with torch.no_grad():
        policy.first.weight[0, 0] = -0.0  # equal to 0, but another bit
    assert moved(rule, 3, reference, policy)
    assert same(reference, tensors(policy))
    assert reference.first.weight[0, 0].signbit()
    steps = []
    for step in range(4, 13):
        with torch.no_grad():
            policy.first.weight.add_(1)
        steps += [step] if moved(rule, step, reference, policy) else []
    assert steps == [6, 9, 12]


def test_a_soft_update_is_the_formula_for_parameters_and_a_copy_for_buffers():
    reference, policy = pair()
    rule = EmaSync(decay=0.9, every=2)
    assert rule.moves
    expected = [p.double() for p in reference.parameters()]
    for step in range(1, 7):
        assert moved(rule, step, reference, policy) == (step in (2, 4, 6))
        if step % 2 == 0:
            pairs = zip(expected, policy.parameters(), strict=True)
            expected = [0.9 * own + 0.1 * new.double() for own, new in pairs]
            assert all(torch.equal(a, b) for a, b in zip(reference.buffers(), policy.buffers(), strict=True))
        for own, value in zip(reference.parameters(), expected, strict=True):
            torch.testing.assert_close(own.double(), value, rtol=0, atol=1e-6)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.5)
            policy.seen += 1


def test_what_is_equal_stays_equal():
    policy = Model(3)
    reference = copy.deepcopy(policy)
    assert not moved(EmaSync(decay=0.3, every=1), 1, reference, policy)


@pytest.mark.parametrize("rule", RULES)
def test_no_graph_no_gradient_no_shared_memory_and_the_policy_is_only_read(rule):
    reference, policy = pair()
    before = copy.deepcopy(tensors(policy))
    places = [tensor.data_ptr() for tensor in tensors(reference)]
    loss = policy.second(policy.first(torch.ones(3))).sum()  # a graph that is alive during the update
    rule.update(1, reference, policy)
    loss.backward()
    assert same(policy, before)
    assert [tensor.data_ptr() for tensor in tensors(reference)] == places
    assert not any(tensor.requires_grad or tensor.grad_fn is not None for tensor in tensors(reference))
    assert policy.first.weight.requires_grad
    assert policy.first.weight.grad is not None
    assert reference.second.weight is reference.first.weight


def test_an_interpolation_moves_the_policy_alone_after_its_step_alone():
    reference, policy = pair()
    start, end = copy.deepcopy(tensors(reference)), copy.deepcopy(tensors(policy))
    rule = Interpolate(share=0.75, at=3)
    assert not rule.moves
    assert [moved(rule, step, reference, policy) for step in (1, 2, 4)] == [False] * 3
    assert moved(rule, 3, reference, policy)
    assert same(reference, start)
    for now, own, other in zip(policy.parameters(), end, start, strict=False):
        assert torch.allclose(now, 0.75 * own + 0.25 * other, atol=1e-6)
    assert policy.second.weight is policy.first.weight
    assert all(torch.equal(now, own) for now, own in zip(policy.buffers(), end[-3:], strict=True))
    assert policy.first.weight.requires_grad
    assert not any(tensor.requires_grad for tensor in tensors(reference))


def test_models_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match="argument 2 is longer"):
        HardSync(every=1).update(1, nn.Linear(2, 2, bias=False), nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("option", "kind"), [("never", Never), ("hard", HardSync), ("ema", EmaSync), ("interpolate", Interpolate)]
)
def test_the_options_build(root, option, kind):
    yaml = pytest.importorskip("yaml")
    node = yaml.safe_load(
        (root / "conf" / "reference" / f"{option}.yaml").read_text(encoding="utf-8").replace("${steps}", "4")
    )
    check.check_node(node, "reference")
    assert type(nodes.make(node)) is kind
