"""Greedy answers to a fixed set of prompts, scored by the reward: what is compared before and after."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from rookexp import generate, ops
from rookexp.objectives.rollouts import completion_texts
from rookexp.types import Prompt, Reward, Tokenizer, by_task, scores_of

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of an object that says nothing of what is in it
BATCH = 256  # prompts answered at a time; bounds the memory and changes no answer


class Greedy:
    """Evaluates the policy at temperature 0 on the same prompts every time, so that differences are the policy's."""

    def __init__(
        self,
        *,
        policy: generate.Decoder,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        reward: Reward,
        max_new_tokens: int,
        own_lengths: Mapping[str, int],
        autocast: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.reward = reward
        self.max_new_tokens = max_new_tokens
        self.own_lengths = own_lengths  # of the kinds of prompt that have another longest completion
        self.autocast = autocast
        self.batch = BATCH  # smaller where `hardware.fit` found that so many do not fit
        self.completions: list[dict[str, Any]] = []  # of the latest evaluation: prompt, completion, reward and parts

    def __call__(self, step: int) -> dict[str, float]:
        """`eval/reward`, its sd over prompts (N), the share cut off, and every part as `eval/<part>`.

        With several tasks `eval/mean_<task>` is the reward of each one's. A part's mean is over the prompts to which it
        applies, those where it is not NaN.
        """
        by_row: dict[int, str] = {}
        truncated: list[Tensor] = []
        for rows, length in self.batches():
            with self.autocast():
                samples = generate.greedy(
                    self.policy, [self.prompts[row].ids for row in rows], length, self.tokenizer.eot_id
                )
            by_row |= zip(rows, completion_texts(samples, self.tokenizer), strict=True)
            truncated.append(samples.truncated)
        texts = [by_row[row] for row in range(len(self.prompts))]
        scores = scores_of(self.reward, self.prompts, texts)
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
            **{f"eval/mean_{task}": float(scores.rewards[rows].mean()) for task, rows in by_task(self.prompts).items()},
            **means,
        }

    def answers(self) -> str:
        """A digest of the prompts and what their reward compares with; equal where evaluations are one measure."""
        asked = sorted((prompt.text, ADDRESS.sub("", repr(prompt.answer))) for prompt in self.prompts)
        return f"{ops.seed_of(*itertools.chain(*asked)):016x}"

    def length_of(self, prompt: Prompt) -> int:
        """Longest answer to the prompt in tokens, end of text included."""
        return self.own_lengths.get(prompt.task, self.max_new_tokens)

    def batches(self) -> Iterator[tuple[list[int], int]]:
        """Which prompts are answered together, and the longest answer of these."""
        lengths = [self.length_of(prompt) for prompt in self.prompts]
        for length in dict.fromkeys(lengths):
            rows = [row for row, other in enumerate(lengths) if other == length]
            yield from ((rows[i : i + self.batch], length) for i in range(0, len(rows), self.batch))
