"""Greedy answers to a fixed set of prompts, scored by the reward: what is compared before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from rookexp import generate
from rookexp.objectives.rollouts import Codec, completion_texts
from rookexp.types import Prompt, Reward

BATCH = 256  # prompts answered at a time; bounds the memory and changes no answer


class Greedy:
    """Evaluates the policy at temperature 0 on the same prompts every time, so that differences are the policy's."""

    def __init__(
        self,
        *,
        policy: generate.Decoder,
        tokenizer: Codec,
        prompts: Sequence[Prompt],
        reward: Reward,
        max_new_tokens: int,
        autocast: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.reward = reward
        self.max_new_tokens = max_new_tokens
        self.autocast = autocast
        self.completions: list[dict[str, Any]] = []  # of the latest evaluation: prompt, completion, reward and parts

    def __call__(self, step: int) -> dict[str, float]:
        """`eval/reward`, its sd over prompts (N), the share cut off, and every part as `eval/<part>`.

        A part's mean is over the prompts to which it applies, those where it is not NaN.
        """
        texts: list[str] = []
        truncated: list[Tensor] = []
        for start in range(0, len(self.prompts), BATCH):
            ids = [prompt.ids for prompt in self.prompts[start : start + BATCH]]
            with self.autocast():
                samples = generate.greedy(self.policy, ids, self.max_new_tokens, self.tokenizer.eot_id)
            texts += completion_texts(samples, self.tokenizer)
            truncated.append(samples.truncated)
        scores = self.reward.score(self.prompts, texts)
        parts = {name: part.tolist() for name, part in scores.parts.items()}
        rewards = scores.rewards.tolist()
        self.completions = [
            {
                "step": step,
                "prompt": prompt.text,
                "completion": texts[i],
                "reward": rewards[i],
                **{name: part[i] for name, part in parts.items()},
            }
            for i, prompt in enumerate(self.prompts)
        ]
        means = {f"eval/{name}": float(part.nanmean()) for name, part in scores.parts.items()}
        return {
            "eval/reward": float(scores.rewards.mean()),
            "eval/reward_std": float(scores.rewards.std(correction=0)),
            "eval/truncated_frac": float(torch.cat(truncated).float().mean()),
            **means,
        }
