"""A tiny task is learned from chance to almost always, in seconds, through the objective and the loop of real runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny import VOCAB, Ask, Record, grpo, trainer

from rookexp import kl
from rookexp.baselines import GroupMean, Rloo
from rookexp.generate import Sampling
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.types import Prompt, Scores

GROUP_MEAN = GroupMean(std="sample", std_eps=1e-4, std_floor=0.05)
NO_KL, LIGHT_KL = kl.NoKL(), kl.FixedKL(coef=0.02)


class Finds:
    """1 where the letter that follows the prompt's last one in the alphabet is in the completion, else 0."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        group = len(texts) // len(prompts)
        wanted = [chr(ord(prompt.text[-1]) + 1) for prompt in prompts for _ in range(group)]
        return Scores(torch.tensor([float(w in text) for w, text in zip(wanted, texts, strict=True)]), {})


def learned(steps: int = 45, **changes: Any) -> list[float]:
    """The mean reward of each step."""
    model = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=8, vocab_size=VOCAB))
    model.init_weights(torch.Generator().manual_seed(0))
    objective = grpo(
        model,
        task=Ask(["b", "n"]),
        reward=Finds(),
        sampling=Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=2),
        group_size=24,
        head_chunk=1024,
        entropy_coef=0.0,
        **changes,
    )
    record = Record()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    trainer(model, objective, optimizer, lr=1e-2, steps=steps, grad_clip=1.0, tracker=record).fit()
    return [row["reward/mean"] for row in record.rows]


@pytest.mark.parametrize(
    ("baseline", "coefficient", "divergence"),
    [
        pytest.param(GROUP_MEAN, NO_KL, kl.forward, id="group_mean"),
        pytest.param(Rloo(), NO_KL, kl.forward, id="rloo"),
        pytest.param(GROUP_MEAN, LIGHT_KL, kl.forward, id="forward"),
        pytest.param(GROUP_MEAN, LIGHT_KL, kl.reverse, id="reverse"),
        pytest.param(GROUP_MEAN, LIGHT_KL, kl.symmetric, id="symmetric"),
    ],
)
def test_reward_rises_from_chance_to_almost_always(baseline: Any, coefficient: Any, divergence: Any) -> None:
    rewards = learned(baseline=baseline, coefficient=coefficient, divergence=divergence)
    assert rewards[0] < 0.25
    assert sum(rewards[-5:]) / 5 > 0.95


def test_a_heavy_penalty_holds_the_policy_back() -> None:
    rewards = learned(baseline=GROUP_MEAN, coefficient=kl.FixedKL(coef=100.0))
    assert sum(rewards[-5:]) / 5 < 0.4
