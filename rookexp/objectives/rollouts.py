"""Rollouts: completions of a step's prompts, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from rookexp import generate, ops, shaping
from rookexp.errors import ConfigError
from rookexp.types import LongReward, Policy, Prompt, Reward, Rollouts, Scores


@runtime_checkable
class SamplingPolicy(Policy, generate.Decoder, Protocol):
    """A policy that can be trained and sampled from."""


@runtime_checkable
class Task(Protocol):
    """What the policy is asked."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The P problems of a step."""


@runtime_checkable
class Codec(Protocol):
    """Token ids to text."""

    @property
    def eot_id(self) -> int:
        """The id that ends a completion."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""


class RolloutSource:
    """Samples and scores a step's groups; what it gives depends on the weights, the seed and the step alone."""

    def __init__(
        self,
        *,
        policy: SamplingPolicy,
        tokenizer: Codec,
        task: Task,
        reward: Reward,
        sampling: generate.Sampling,
        group_size: int,
        resamples: int,
        overlong_buffer: int | None,
        seed: int,
        autocast: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.task = task
        self.reward = reward
        self.sampling = sampling
        self.group_size = group_size
        self.resamples = resamples  # how often a dead group is asked again
        self.overlong_buffer = overlong_buffer
        self.seed = seed
        self.autocast = autocast

    def collect(self, step: int) -> tuple[Rollouts, Scores, int]:
        """The step's completions, their scores, and how many were sampled for them.

        The prompts of dead groups, whose rewards are all equal, are asked again with other draws, at most `resamples`
        times; what is dead then stays.
        Raises: ConfigError when the reward does not apply to a completion.
        """
        prompts = self.task.select(step)
        if isinstance(self.reward, LongReward):
            self.reward.prepare(prompts)
        rollouts = self.sample(step, prompts)
        scores = self.score(rollouts)
        sampled = len(rollouts.texts)
        for attempt in range(1, self.resamples + 1):
            rewards = scores.rewards.view(len(rollouts.prompts), self.group_size)
            dead = (rewards.amax(1) == rewards.amin(1)).nonzero()[:, 0].tolist()
            if not dead:
                break
            again = self.sample(step, [rollouts.prompts[p] for p in dead], attempt)
            rollouts, scores = with_groups(rollouts, scores, dead, again, self.score(again), self.tokenizer.eot_id)
            sampled += len(again.texts)
        return rollouts, scores, sampled

    def sample(self, step: int, prompts: Sequence[Prompt], attempt: int = 0) -> Rollouts:
        """A group of completions for each prompt; every row has a seed of its own."""
        again = (attempt,) if attempt else ()
        groups = range(self.group_size)
        seeds = [ops.seed_of(self.seed, "rollout", step, p, g, *again) for p in range(len(prompts)) for g in groups]
        with self.autocast():
            samples = generate.sample(
                self.policy, [p.ids for p in prompts], seeds, self.sampling, self.tokenizer.eot_id
            )
        return Rollouts(
            tokens=samples.tokens,
            mask=samples.mask,
            logprobs=samples.logprobs,
            temperature=torch.full_like(samples.logprobs[:, 0], self.sampling.temperature),
            truncated=samples.truncated,
            forwards=samples.forwards,
            prompts=tuple(prompts),
            texts=completion_texts(samples, self.tokenizer),
            group_size=self.group_size,
        )

    def score(self, rollouts: Rollouts) -> Scores:
        """The rewards, less the penalty on long completions, which is the part `overlong`."""
        scores = self.reward.score(rollouts.prompts, rollouts.texts)
        rewards, parts = scores.rewards.view(len(rollouts.texts)), dict(scores.parts)
        if rewards.isnan().any():
            prompt = rollouts.prompts[int(rewards.isnan().nonzero()[0]) // self.group_size]
            raise ConfigError(
                f"reward: no component applies to a completion of {prompt.text!r}; "
                "every task needs a reward with a weight above 0"
            )
        if self.overlong_buffer is not None:
            parts["overlong"] = shaping.overlong_penalty(
                rollouts.mask.sum(1).cpu(), max_new_tokens=self.sampling.max_new_tokens, buffer=self.overlong_buffer
            )
            rewards = rewards + parts["overlong"]
        return Scores(rewards, parts)


def with_groups(
    rollouts: Rollouts, scores: Scores, groups: Sequence[int], new: Rollouts, new_scores: Scores, eot_id: int
) -> tuple[Rollouts, Scores]:
    """The rollouts and scores with the groups at `groups` replaced by the new ones, in order."""
    size = rollouts.group_size
    rows = [p * size + g for p in groups for g in range(size)]
    width = max(rollouts.tokens.shape[1], new.tokens.shape[1])
    texts = list(rollouts.texts)
    for row, text in zip(rows, new.texts, strict=True):
        texts[row] = text

    def put(old: Tensor, fresh: Tensor, fill: float) -> Tensor:
        old, fresh = (F.pad(x, (0, width - x.shape[1]), value=fill) if x.dim() == 2 else x for x in (old, fresh))
        return old.index_copy(0, torch.tensor(rows, device=old.device), fresh)

    merged = replace(
        rollouts,
        tokens=put(rollouts.tokens, new.tokens, eot_id),
        mask=put(rollouts.mask, new.mask, 0),
        logprobs=put(rollouts.logprobs, new.logprobs, 0),
        truncated=put(rollouts.truncated, new.truncated, 0),
        forwards=put(rollouts.forwards, new.forwards, 0),
        texts=tuple(texts),
    )
    absent = torch.full_like(new_scores.rewards, math.nan)  # a part of a task of which nothing was asked again
    parts = {name: put(part, new_scores.parts.get(name, absent), 0) for name, part in scores.parts.items()}
    return merged, Scores(put(scores.rewards, new_scores.rewards, 0), parts)


def completion_texts(samples: generate.Samples, tokenizer: Codec) -> tuple[str, ...]:
    """The completion of each row as text, without its end-of-text."""
    tokens, mask = samples.tokens.cpu(), samples.mask.cpu()
    return tuple(tokenizer.decode(row[kept].tolist()) for row, kept in zip(tokens, mask, strict=True))
