"""A tiny task is learned from chance to almost always, in seconds, through the objective and the loop of real runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny import VOCAB, Ask, Record, gae, grpo, trainer

from rookexp import coefficients, kl, losses
from rookexp.baselines import GroupMean, Rloo
from rookexp.draw import Sampling
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.optim import AdamW
from rookexp.returns import ReinforcePP
from rookexp.schedule import Constant
from rookexp.types import Prompt, Scores

GROUP_MEAN = GroupMean(std="sample", std_eps=1e-4, std_floor=0.05)
NO_KL, LIGHT_KL = coefficients.NoKL(), coefficients.FixedKL(coef=0.02)
ROW_CLIP = {"clip_low": 3e-2, "clip_high": 4e-2}


class Finds:
    """1 where the letter that follows the prompt's last one in the alphabet is in the completion, else 0."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        group = len(texts) // len(prompts)
        wanted = [chr(ord(prompt.text[-1]) + 1) for prompt in prompts for _ in range(group)]
        return Scores(torch.tensor([float(w in text) for w, text in zip(wanted, texts, strict=True)]), {})


def learned(steps: int = 45, inner_epochs: int = 1, minibatches: int = 1, **changes: Any) -> list[dict[str, float]]:
    """The metrics of each step."""
    model = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=8, vocab_size=VOCAB))
    model.init_weights(torch.Generator().manual_seed(0))
    arguments = {"baseline": GROUP_MEAN, "coefficient": NO_KL, "single_update": inner_epochs * minibatches == 1}
    objective = grpo(
        model,
        task=Ask(["b", "n"]),
        reward=Finds(),
        sampling=Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=2),
        group_size=24,
        head_chunk=1024,
        entropy_coef=0.0,
        **arguments | changes,
    )
    record = Record()
    optim = AdamW(
        lr=1e-2, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, grad_clip=1.0, schedule=Constant(warmup_steps=0)
    )
    optimizer = optim.optimizer(model, objective.heads)
    passes = {"inner_epochs": inner_epochs, "minibatches": minibatches}
    trainer(model, objective, optimizer, lr=None, steps=steps, grad_clip=1.0, tracker=record, **passes).fit()
    return record.rows


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="group_mean"),
        pytest.param({"baseline": Rloo()}, id="rloo"),
        *(
            pytest.param({"coefficient": LIGHT_KL, "divergence": kl.TYPES[name]}, id=name)
            for name in ("forward", "reverse", "symmetric", "k3")
        ),
        # Undivided: where all rewards are 1, a division by their sd would leave nothing but the penalty.
        pytest.param(
            {"coefficient": LIGHT_KL, "divergence": kl.TYPES["k1"], "kl_placement": "reward", "baseline": Rloo()},
            id="k1_reward",
        ),
        pytest.param({"baseline": ReinforcePP(gamma=1.0), "policy_loss": losses.Reinforce()}, id="reinforce_pp"),
        pytest.param({"policy_loss": losses.Gspo(**ROW_CLIP), "inner_epochs": 2}, id="gspo"),
        pytest.param({"policy_loss": losses.Cispo(clip_low=None, clip_high=4.0), "inner_epochs": 2}, id="cispo"),
        pytest.param({"dead_groups": "resampled", "steps": 25, "inner_epochs": 2}, id="resampled"),
    ],
)
def test_reward_rises_from_chance_to_almost_always(changes: dict[str, Any]) -> None:
    rewards = [row["reward/mean"] for row in learned(**changes)]
    assert rewards[0] < 0.25
    assert sum(rewards[-5:]) / 5 > 0.95


def test_ppo_with_epochs_and_minibatches_learns_the_task_and_what_to_expect() -> None:
    baseline = gae(gamma=1.0, lam=0.95, whiten=True, bootstrap="zero", value_lr=1e-2, value_coef=0.1, detach=True)
    rows = learned(steps=25, inner_epochs=2, minibatches=2, baseline=baseline)
    assert rows[0]["reward/mean"] < 0.25
    assert sum(row["reward/mean"] for row in rows[-5:]) / 5 > 0.95
    assert rows[0]["value/explained_variance"] == 0
    assert rows[-1]["value/mean"] > 0.7


def test_a_heavy_penalty_holds_the_policy_back() -> None:
    rewards = [row["reward/mean"] for row in learned(coefficient=coefficients.FixedKL(coef=100.0))]
    assert sum(rewards[-5:]) / 5 < 0.4
