"""The value head: what it predicts, what it is trained on, what its loss reaches; with it GRPO is PPO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
from tiny import CONFIG, LONGEST, PROMPTS, Ask, bf16, flat, gae, gradient, grpo, nudged, policy, trainer
from torch import Tensor

from rookexp import coefficients
from rookexp.aggregation import BY_NAME
from rookexp.objectives.critic import ValueHead
from rookexp.objectives.grpo import GRPO
from rookexp.returns import TokenRewards
from rookexp.types import Experience


def actor_critic(model: Any, **changes: Any) -> tuple[GRPO, ValueHead, list[TokenRewards]]:
    """PPO with a head that already predicts something; what its baseline will have been given."""
    objective = grpo(model, **{"baseline": gae(), "single_update": False} | changes)
    head = objective.value_head
    assert head is not None
    if next(model.parameters()).dtype == torch.double:
        head.double()
    nudged(head, 0.5)
    seen: list[TokenRewards] = []
    advantages = objective.baseline.advantages

    def remember(given: TokenRewards) -> Any:
        seen.append(given)
        return advantages(given)

    objective.baseline.advantages = remember  # type: ignore[method-assign]
    return objective, head, seen


def plain_values(objective: GRPO, experience: Experience, row: int) -> Tensor:
    """The head's number before each of one row's completion tokens, and after the last one, from that row alone."""
    at = experience.weights[row].nonzero()[:, 0]
    hidden = objective.policy.hidden(experience.tokens[row : row + 1, : at[-1] + 1])[0]
    weight, bias = objective.value_head.linear.weight[0], objective.value_head.linear.bias[0]  # type: ignore[union-attr]
    return torch.stack([hidden[t - 1] @ weight + bias for t in [*at.tolist(), int(at[-1]) + 1]])


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Advantages and returns of one row; `values` has one more, which follows the row."""
    advantages = []
    for t in range(len(rewards)):
        steps = [rewards[u] + gamma * values[u + 1] - values[u] for u in range(t, len(rewards))]
        advantages.append(sum((gamma * lam) ** k * delta for k, delta in enumerate(steps)))
    return advantages, [a + v for a, v in zip(advantages, values[:-1], strict=True)]


# ---- what is predicted ----------------------------------------------------------------------------------------------


def test_a_new_head_expects_nothing() -> None:
    objective = grpo(policy(), baseline=gae())
    experience, metrics = objective.collect(0)
    assert not experience.values.any()
    assert metrics["value/explained_variance"] == 0
    assert objective.modules["value_head"] is objective.value_head
    assert objective.heads == {objective.value_head: 0.5}
    without = grpo(policy())
    assert without.value_head is None
    assert "value_head" not in without.modules
    assert without.heads == {}


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_values_before_each_token_and_after_the_last_are_those_of_the_row_alone(temperature: float) -> None:
    model = policy().double()
    objective, _, seen = actor_critic(model, temperature=temperature)
    experience, _ = objective.collect(0)
    (given,) = seen
    assert given.values is not None
    assert given.final_values is not None
    for row in range(12):
        expected = plain_values(objective, experience, row)
        at = given.mask[row]
        assert torch.allclose(given.values[row][at], expected[:-1], atol=1e-12)
        assert not given.values[row][~at].any()
        assert given.final_values[row].item() == pytest.approx(expected[-1].item(), abs=1e-12)
    assert torch.equal(experience.values, given.values)
    assert given.values[given.mask].std() > 0.05


def test_rows_that_fill_every_position_have_a_value_after_them_too() -> None:
    full = replace(CONFIG, n_positions=len("ponmlk") + LONGEST)
    model = policy(config=full).double()
    objective, _, seen = actor_critic(model)
    experience, _ = objective.collect(0)
    longest = experience.weights[8:].ne(0).sum(1).argmax() + 8  # of the longest prompt
    assert experience.weights[longest, -1] != 0
    assert experience.tokens.shape[1] == full.n_positions
    expected = plain_values(objective, experience, int(longest))[-1].item()
    assert seen[0].final_values is not None
    assert seen[0].final_values[longest].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bootstrap", ["zero", "value"])
def test_advantages_and_returns_are_those_of_the_plain_sums(bootstrap: str) -> None:
    model = policy().double()
    table: list[dict[str, Any]] = []
    objective, _, _ = actor_critic(
        model,
        baseline=gae(bootstrap=bootstrap),
        kl_placement="reward",
        on_completions=lambda step, rows: table.extend(rows),
    )
    nudged(model, 0.1)  # away from the reference, so that the tokens pay
    experience, metrics = objective.collect(0)
    targets, errors = [], []
    for i, row in enumerate(plain.rows_of(objective, experience)):
        paid = (-0.1 * row.divergence("forward")).tolist()
        paid[-1] += table[i]["reward"]
        values = plain_values(objective, experience, i).tolist()
        values[-1] *= bootstrap == "value" and table[i]["truncated"]
        advantages, returns = plain_gae(paid, values, 0.9, 0.8)
        at = experience.weights[i] != 0
        assert experience.advantages[i][at].tolist() == pytest.approx(advantages, abs=1e-6)
        assert experience.returns[i][at].tolist() == pytest.approx(returns, abs=1e-6)
        assert not experience.returns[i][~at].any()
        assert table[i]["advantage"] == pytest.approx(sum(advantages) / len(advantages), abs=1e-6)
        targets += returns
        errors += [r - v for r, v in zip(returns, values[:-1], strict=True)]
    variances = [torch.tensor(x).var().item() for x in (errors, targets)]
    assert metrics["value/explained_variance"] == pytest.approx(1 - variances[0] / variances[1], abs=1e-5)
    assert {row["truncated"] for row in table} == {True, False}


# ---- what is trained ------------------------------------------------------------------------------------------------


def plain_value_loss(objective: GRPO, experience: Experience, clip: float | None, aggregation: str) -> Tensor:
    """0.3 times the squared errors' halves, each the larger of itself and that of the value held near the old one."""
    rows = []
    for i in range(12):
        at = experience.weights[i] != 0
        value, old = plain_values(objective, experience, i)[:-1], experience.values[i][at]
        target = experience.returns[i][at]
        squares = (value - target) ** 2
        if clip is not None:
            held = torch.max(torch.min(value, old + clip), old - clip)
            squares = torch.max(squares, (held - target) ** 2)
        rows.append(squares / 2)
    return 0.3 * plain.aggregated(aggregation, rows)


@pytest.mark.parametrize("aggregation", BY_NAME)
@pytest.mark.parametrize(("clip", "detach"), [(None, False), (0.02, False), (0.02, True)])
def test_the_value_loss_reaches_the_head_and_only_if_it_may_the_policy(
    aggregation: str, clip: float | None, detach: bool
) -> None:
    model = policy().double()
    baseline = gae(value_clip=clip, detach=detach)
    objective, head, _ = actor_critic(model, baseline=baseline, aggregation=BY_NAME[aggregation])
    experience, _ = objective.collect(0)
    nudged(model, 0.02)
    nudged(head, 0.02)
    terms = objective.loss(experience)
    expected = plain_value_loss(objective, experience, clip, aggregation)
    unclipped = plain_value_loss(objective, experience, None, aggregation)
    assert (expected.item() > unclipped.item()) == (clip is not None)
    assert terms.terms["value"].item() == pytest.approx(expected.item(), rel=1e-6)
    wanted = gradient(head, expected)
    assert torch.allclose(gradient(head, terms.terms["value"]), wanted, atol=1e-6 * float(wanted.abs().max()))
    assert not gradient(head, terms.total - terms.terms["value"]).any()
    wanted = gradient(model, expected)
    if detach:
        assert not gradient(model, terms.terms["value"]).any()
    else:
        assert torch.allclose(gradient(model, terms.terms["value"]), wanted, atol=1e-6 * float(wanted.abs().max()))
        assert wanted.any()
    assert terms.per_token["value/loss"].mean().item() * 0.3 == pytest.approx(
        plain_value_loss(objective, experience, clip, "token_mean").item(), rel=1e-6
    )
    values = torch.cat([plain_values(objective, experience, i)[:-1] for i in range(12)])
    assert torch.allclose(terms.per_token["value/mean"], values, atol=1e-9)


def test_the_head_moves_at_its_own_rate() -> None:
    model = policy().double()
    objective, head, _ = actor_critic(model, coefficient=coefficients.NoKL())
    experience, _ = objective.collect(0)
    expected = gradient(head, objective.loss(experience).total), gradient(model, objective.loss(experience).total)
    before = flat(head), flat(model)
    groups = [{"params": model.parameters()}]
    groups += [{"params": part.parameters(), "lr": rate} for part, rate in objective.heads.items()]
    made = trainer(model, objective, torch.optim.SGD(groups, lr=0.1), lr=None)
    made.schedule = lambda step: 0.5
    assert made.update(0, experience)["lr"] == 0.05
    for part, old, grad, rate in zip((head, model), before, expected, (0.25, 0.05), strict=True):
        assert torch.allclose(flat(part) - old, -rate * grad, atol=1e-9)


def test_values_stay_fp32_under_autocast() -> None:
    made = {"exact": actor_critic(policy()), "bf16": actor_critic(policy(), autocast=bf16, exact_sampler=False)}
    exact, near = (objective.collect(0)[0] for objective, _, _ in made.values())
    same = (exact.tokens[:4, :6] == near.tokens[:4, :6]).all(1)
    assert same.any(), "else there is nothing to compare"
    found, rounded = (x.values[:4, :6][same] for x in (exact, near))
    assert rounded.dtype == torch.float32
    assert torch.allclose(found, rounded, atol=0.1)
    assert not torch.equal(found, rounded)


def test_nothing_depends_on_the_other_prompts_of_the_batch() -> None:
    model = policy().double()
    whole, _, _ = actor_critic(model)
    alone, _, _ = actor_critic(model, task=Ask(PROMPTS[:1]))
    (ours, _), (theirs, _) = whole.collect(0), alone.collect(0)
    width = theirs.tokens.shape[1]
    for name in ("values", "returns", "advantages"):
        assert torch.allclose(getattr(ours, name)[:4, :width], getattr(theirs, name), atol=1e-12)
