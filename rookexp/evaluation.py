"""Greedy answers to a fixed set of prompts, scored by the reward: the measure compared before and after training."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from rookexp import generate, ops
from rookexp.errors import TrainingDiverged
from rookexp.objectives.rollouts import completion_texts
from rookexp.types import Autocast, Prompt, Reward, Tokenizer, by_task, scores_of

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in an object's default repr
BATCH = 256  # prompts answered at a time; bounds the memory and changes no answer


@dataclass(kw_only=True, eq=False)
class Greedy:
    """Evaluates the policy at temperature 0 on the same prompts every time, so that any difference is the policy's."""

    policy: generate.Decoder
    tokenizer: Tokenizer
    prompts: Sequence[Prompt]
    reward: Reward
    max_new_tokens: Annotated[int, Ge(1)]
    own_lengths: Mapping[str, int]  # max_new_tokens of the kinds of prompt that have another limit
    autocast: Autocast
    batch: int = field(default=BATCH, init=False)  # lowered by `hardware.fit` if that many do not fit in memory
    completions: list[dict[str, Any]] = field(default_factory=list, init=False)  # with rewards, of the last evaluation

    def __call__(self, step: int) -> dict[str, float]:
        """Metrics: the mean reward, its sd over prompts (dividing by N), the share truncated, each part's mean.

        With several tasks, `eval/mean_<task>` is the mean reward of each task's prompts. A part's mean, `eval/<part>`,
        is over the prompts to which it applies, those where it is not NaN.
        Raises: TrainingDiverged for logits that are not finite, of which answers could be read all the same.
        """
        by_row: dict[int, str] = {}
        truncated: list[Tensor] = []
        for rows, length in self.batches():
            with self.autocast():
                samples = generate.greedy(
                    self.policy, [self.prompts[row].ids for row in rows], length, self.tokenizer.eot_id
                )
            if not samples.logprobs.isfinite().all():
                raise TrainingDiverged(f"step {step}: logits of the evaluation are not finite; lower optim.lr")
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
        """A hex digest of the prompts and their reference answers; equal for evaluations that measure the same."""
        asked = sorted((prompt.text, ADDRESS.sub("", repr(prompt.answer))) for prompt in self.prompts)
        return f"{ops.seed_of(*itertools.chain(*asked)):016x}"

    def length_of(self, prompt: Prompt) -> int:
        """The longest answer to the prompt in tokens, end-of-text included."""
        return self.own_lengths.get(prompt.task, self.max_new_tokens)

    def batches(self) -> Iterator[tuple[list[int], int]]:
        """Rows of the prompts that are decoded together, and the longest answer to them in tokens."""
        lengths = [self.length_of(prompt) for prompt in self.prompts]
        for length in dict.fromkeys(lengths):
            rows = [row for row, other in enumerate(lengths) if other == length]
            yield from ((rows[i : i + self.batch], length) for i in range(0, len(rows), self.batch))
