"""The optimizer: what decays, and what is trained beside the model at a rate of its own."""

from __future__ import annotations

import torch
from tiny import policy

from rookexp.objectives.critic import ValueHead
from rookexp.optim import AdamW
from rookexp.schedule import Constant

SETTINGS = AdamW(
    lr=0.01, betas=[0.8, 0.9], eps=1e-6, weight_decay=0.5, grad_clip=1.0, schedule=Constant(warmup_steps=0)
)


def test_matrices_and_embeddings_decay_and_nothing_else() -> None:
    model = policy()
    matrices, vectors = SETTINGS.optimizer(model, {}).param_groups
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(model.parameters()))
    assert [group["weight_decay"] for group in (matrices, vectors)] == [0.5, 0.0]
    for group in (matrices, vectors):
        assert (group["lr"], group["betas"], group["eps"]) == (0.01, (0.8, 0.9), 1e-6)


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
