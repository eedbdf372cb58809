"""The optimizer: what decays, and what is trained beside the model at a rate of its own."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tiny import policy
from torch import Tensor

from rookexp.models.gpt2 import GPT2
from rookexp.objectives.critic import ValueHead
from rookexp.optim import AdamW, Muon, orthogonalised
from rookexp.schedule import Constant

CHOSEN = {"lr": 0.01, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.5, "grad_clip": 1.0}
SETTINGS = AdamW(**CHOSEN, schedule=Constant(warmup_steps=0))
MUON = Muon(**CHOSEN, schedule=Constant(warmup_steps=0), momentum=0.9)


def test_matrices_and_embeddings_decay_and_nothing_else() -> None:
    model = policy()
    matrices, vectors = SETTINGS.optimizer(model, {}).param_groups
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(model.parameters()))
    assert [group["weight_decay"] for group in (matrices, vectors)] == [0.5, 0.0]
    for group in (matrices, vectors):
        assert (group["lr"], group["betas"], group["eps"]) == (0.01, (0.8, 0.9), 1e-6)


def test_a_beta_may_be_written_as_a_whole_number() -> None:
    groups = replace(SETTINGS, betas=[0.9, 0]).optimizer(policy(), {}).param_groups
    assert [group["betas"] for group in groups] == [(0.9, 0.0)] * 2


def test_a_frozen_parameter_is_not_trained() -> None:
    model = policy()
    model.wpe.weight.requires_grad_(False)
    held = [p for group in SETTINGS.optimizer(model, {}).param_groups for p in group["params"]]
    assert len(held) == len(list(model.parameters())) - 1
    assert all(p is not model.wpe.weight for p in held)


def test_a_head_has_its_own_rate_and_does_not_decay() -> None:
    head, other = ValueHead(16), ValueHead(16)
    groups = SETTINGS.optimizer(policy(), {head: 0.3, other: 0.2}).param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups[2:]] == [(0.3, 0.0), (0.2, 0.0)]
    assert [p.shape for p in groups[2]["params"]] == [(1, 16), (1,)]
    assert all(group["betas"] == (0.8, 0.9) for group in groups)


def test_the_first_step_is_as_long_as_each_groups_rate() -> None:
    """Adam's first step is lr in every weight that has a gradient."""
    model, head = policy(), ValueHead(16)
    optimizer = SETTINGS.optimizer(model, {head: 0.3})
    before = model.ln_f.bias.detach().clone()
    (head(model.hidden(torch.ones(1, 3, dtype=torch.long))[0]).sum() + model.ln_f.bias.sum()).backward()
    optimizer.step()
    assert torch.allclose((before - model.ln_f.bias).abs(), torch.full((16,), 0.01), atol=1e-4)
    assert torch.allclose(head.linear.weight.abs(), torch.full((1, 16), 0.3), atol=1e-3)


def test_what_is_uncompiled_steps_bit_by_bit_as_torchs_own_and_has_its_name_and_hooks() -> None:
    model, twin, seen = policy(), policy(), []
    own, torchs = SETTINGS.optimizer(model, {}), torch.optim.AdamW(twin.parameters(), fused=True)
    settings = {name: value for name, value in own.param_groups[0].items() if name != "params"} | {"weight_decay": 0.0}
    for optimizer in (own, torchs):
        optimizer.register_step_post_hook(lambda *_: seen.append(1))
        for group in optimizer.param_groups:
            group |= settings
    for _ in range(3):
        for m, optimizer in ((model, own), (twin, torchs)):
            loss(m).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert (len(seen), type(own).__name__) == (6, "AdamW")


def loss(model: GPT2) -> Tensor:
    tokens = torch.tensor([[1, 4, 2, 5]])
    return (model.hidden(tokens) @ model.head_weight.T).logsumexp(-1).sum()


@pytest.mark.parametrize("shape", [(8, 8), (5, 40), (40, 5)])
def test_orthogonalised_has_the_same_singular_vectors_and_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.T @ orthogonalised(matrix) @ v.T
    values = inside.diagonal()
    assert torch.allclose(inside, values.diag(), atol=1e-6)
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_muon_has_the_matrices_of_the_blocks_and_adamw_all_else() -> None:
    model, head = policy(), ValueHead(16)
    muon, embeddings, vectors, heads = MUON.optimizer(model, {head: 0.3}).param_groups
    names = {p: name for name, p in model.named_parameters()}
    assert {names[p].split(".")[-2] for p in muon["params"]} == {"c_attn", "attn_proj", "c_fc", "mlp_proj"}
    assert {names[p] for p in embeddings["params"]} == {"wte.weight", "wpe.weight"}
    assert len(muon["params"]) + 2 + len(vectors["params"]) == len(names)
    assert [g["weight_decay"] for g in (muon, embeddings, vectors, heads)] == [0.5, 0.5, 0.0, 0.0]
    assert [g["lr"] for g in (muon, embeddings, vectors, heads)] == [0.01, 0.01, 0.01, 0.3]


def test_muons_first_step_is_decay_and_the_scaled_orthogonalised_gradient_and_adamw_steps_beside_it() -> None:
    model, twin = policy(), policy()
    optimizer, other = MUON.optimizer(model, {}), SETTINGS.optimizer(twin, {})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for m in (model, twin):
        loss(m).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    other.step()
    reference = dict(twin.named_parameters())
    for name, p in model.named_parameters():
        expected = reference[name]
        if (".c_" in name or "_proj" in name) and name.endswith("weight"):
            rate = 0.01 * 0.2 * max(p.shape) ** 0.5
            expected = before[name] * (1 - 0.01 * 0.5) - rate * orthogonalised(1.9 * grads[name])
        assert torch.allclose(p, expected, atol=1e-6), name


def test_muons_momentum_is_nesterovs_over_the_sum_of_the_gradients_so_far() -> None:
    """Jordan's M <- mu M + g, then the orthogonalised g + mu M, with gradients that turn from step to step."""
    model = policy()
    optimizer = MUON.optimizer(model, {})
    matrix = optimizer.param_groups[0]["params"][0]
    generator = torch.Generator().manual_seed(1)
    total, rate = torch.zeros_like(matrix), 0.01 * 0.2 * max(matrix.shape) ** 0.5
    for _ in range(4):
        before, matrix.grad = matrix.detach().clone(), torch.randn(matrix.shape, generator=generator)
        total = 0.9 * total + matrix.grad
        optimizer.step()
        expected = before * (1 - 0.01 * 0.5) - rate * orthogonalised(matrix.grad + 0.9 * total)
        assert torch.allclose(matrix, expected, atol=1e-6)


def test_muon_leaves_a_matrix_without_a_gradient_alone() -> None:
    model = policy()
    optimizer = MUON.optimizer(model, {})
    matrices = optimizer.param_groups[0]["params"]
    before = [p.detach().clone() for p in matrices]
    loss(model).backward()
    matrices[0].grad = None
    optimizer.step()
    still = [torch.equal(p, old) for p, old in zip(matrices, before, strict=True)]
    assert still == [True] + [False] * (len(matrices) - 1)


def test_muon_goes_on_from_its_saved_state_bit_by_bit() -> None:
    def train(model: GPT2, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    model = policy()
    optimizer = MUON.optimizer(model, {})
    train(model, optimizer, 2)
    other = copy.deepcopy(model)
    continued = MUON.optimizer(other, {})
    continued.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    copied, copied_optimizer = copy.deepcopy((model, optimizer))  # as the self-check does
    train(model, optimizer, 2)
    train(other, continued, 2)
    train(copied, copied_optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), copied.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
