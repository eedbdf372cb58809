"""Rollouts: samples completions of a step's prompts and scores them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rookexp import generate, ops, types
from rookexp.draw import Sampling
from rookexp.errors import ConfigError
from rookexp.types import LongReward, Policy, Prompt, Reward, Rollouts, Scores, Stages, Tokenizer, scores_of, stages_of


@runtime_checkable
class SamplingPolicy(Policy, generate.Decoder, Protocol):
    """A policy that can be trained and sampled from."""


@runtime_checkable
class Task(Protocol):
    """A source of prompts."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The P prompts of a step."""


@dataclass(kw_only=True, eq=False)
class RolloutSource:
    """Samples and scores a step's groups; the result depends only on the weights, the seed and the step."""

    policy: SamplingPolicy
    tokenizer: Tokenizer
    task: Task
    reward: Reward
    sampling: Sampling
    own_sampling: Mapping[str, Sampling]  # by kind of prompt, for the kinds that do not use `sampling`
    group_size: int
    resamples: int  # how often a dead group is sampled again at most
    by_stage: bool  # whether the baseline compares stages: a dead group is then one with all stages equal
    overlong_buffer: int | None
    seed: int
    autocast: types.Autocast

    def collect(self, step: int) -> tuple[Rollouts, Scores, int]:
        """The step's completions, their scores, and how many completions were sampled in all.

        Dead groups are sampled again from the same prompts with other seeds, at most `resamples` times; groups that
        are still dead after that stay.
        Raises: ConfigError when the reward of a completion is not finite, such as NaN where it does not apply.
        """
        prompts = self.task.select(step)
        if isinstance(self.reward, LongReward):
            self.reward.prepare(prompts)
        rollouts = self.sample(step, prompts)
        scores = self.score(rollouts)
        sampled = len(rollouts.texts)
        for attempt in range(1, self.resamples + 1):
            dead = self.dead(scores).nonzero()[:, 0].tolist()
            if not dead:
                break
            again = self.sample(step, [rollouts.prompts[p] for p in dead], attempt)
            rollouts, scores = with_groups(rollouts, scores, dead, again, self.score(again), self.tokenizer.eot_id)
            sampled += len(again.texts)
        return rollouts, scores, sampled

    def dead(self, scores: Scores) -> Bool[Tensor, " p"]:
        """Which groups are dead: their rewards are equal, so that a baseline that compares them learns nothing."""
        return scores.dead(self.group_size, by_stage=self.by_stage)

    def sample(self, step: int, prompts: Sequence[Prompt], attempt: int = 0) -> Rollouts:
        """A group of completions for each prompt; every row has its own seed, whatever is sampled beside it.

        Prompts with the same sampling settings are decoded in one batch.
        """
        again = (attempt,) if attempt else ()
        parts, rows = [], []
        for some, sampling in self.batches(prompts):
            places = [(p, g) for p in some for g in range(self.group_size)]
            seeds = [ops.seed_of(self.seed, "rollout", step, p, g, *again) for p, g in places]
            ids = [prompts[p].ids for p in some]
            with self.autocast():
                parts.append(generate.sample(self.policy, ids, seeds, sampling, self.tokenizer.eot_id))
            rows += [p * self.group_size + g for p, g in places]
        samples = parts[0] if len(parts) == 1 else joined(parts, rows, self.tokenizer.eot_id)
        temperatures = samples.logprobs.new_tensor([self.sampling_of(prompt).temperature for prompt in prompts])
        return Rollouts(
            tokens=samples.tokens,
            mask=samples.mask,
            logprobs=samples.logprobs,
            temperature=temperatures.repeat_interleave(self.group_size),
            truncated=samples.truncated,
            forwards=samples.forwards,
            prompts=tuple(prompts),
            texts=completion_texts(samples, self.tokenizer),
            group_size=self.group_size,
        )

    def sampling_of(self, prompt: Prompt) -> Sampling:
        """The prompt's sampling settings: those of its kind if there are any, else the common ones."""
        return self.own_sampling.get(prompt.task, self.sampling)

    def batches(self, prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], Sampling]]:
        """For each distinct sampling setting, the indices of the prompts that use it, and the setting."""
        samplings = [self.sampling_of(prompt) for prompt in prompts]
        for sampling in dict.fromkeys(samplings):
            yield [p for p, other in enumerate(samplings) if other == sampling], sampling

    def score(self, rollouts: Rollouts) -> Scores:
        """The scores; the penalty on long completions, part `overlong` (-1 to 0), is added to the rewards.

        Raises: ConfigError when a reward is not finite.
        """
        scores = scores_of(self.reward, rollouts.prompts, rollouts.texts)
        rewards, parts, stages, before = scores.rewards, dict(scores.parts), scores.stages, scores.unnormalised
        if not (finite := rewards.isfinite()).all():
            row = int((~finite).nonzero()[0])
            asked = rollouts.prompts[row // self.group_size].text
            no_part = "; NaN is where no part applies: every task needs a reward with a weight above 0"
            raise ConfigError(
                f"reward: {float(rewards[row])} for a completion of {asked!r}; wanted: a finite number"
                f"{no_part if rewards[row].isnan() else ''}"
            )
        if self.overlong_buffer is not None:
            limits = torch.tensor([self.sampling_of(prompt).max_new_tokens for prompt in rollouts.prompts])
            longest = int(limits.max())
            places = torch.tensor([self.policy.config.n_positions - len(prompt.ids) for prompt in rollouts.prompts])
            # The penalty depends on the tokens left before the prompt's own limit or the model's last position.
            later = (longest - limits.minimum(places)).repeat_interleave(self.group_size)
            parts["overlong"] = overlong_penalty(
                rollouts.mask.sum(1).cpu() + later, max_new_tokens=longest, buffer=self.overlong_buffer
            )
            rewards = rewards + parts["overlong"]
            before = None if before is None else before + parts["overlong"]
            if stages is not None:
                *others, last = stages.rewards.unbind(1)
                stages = replace(stages, rewards=torch.stack([*others, last + parts["overlong"]], 1))
        return Scores(rewards, parts, stages, before)

    def stages(self, rollouts: Rollouts, stages: Stages) -> Int[Tensor, "n t"]:
        """The index of the stage in which the text of each completion token ends; 0 outside the completions."""
        tokens, mask = rollouts.tokens.cpu(), rollouts.mask.cpu()
        found = torch.zeros_like(tokens)
        for row, ends in enumerate(stages.ends.tolist()):
            places = mask[row].nonzero()[:, 0]
            ids = tokens[row, places].tolist()
            reach = partial(self._reach, ids)
            for end in ends[:-1]:
                found[row, places[bisect_right(range(len(ids)), end, key=reach) :]] += 1
        return found.to(rollouts.tokens.device)

    def _reach(self, ids: Sequence[int], last: int) -> int:
        """The length in characters of the text of ids[: last + 1]."""
        return len(self.tokenizer.decode(ids[: last + 1]))


def overlong_penalty(lengths: Int[Tensor, " n"], *, max_new_tokens: int, buffer: int) -> Float[Tensor, " n"]:
    """What each completion's length adds to its reward: clamp((max_new_tokens - buffer - length) / buffer, -1, 0).

    0 up to max_new_tokens - buffer, then a straight line down to -1 at max_new_tokens. A length counts all tokens of
    the completion with its end-of-text, as `Rollouts.mask.sum(1)` does: one that ends with the last token allowed and
    one that was cut there have the same length, and both get -1.
    Source: DAPO, Yu et al. 2025 (arXiv 2503.14476), eq. 13.
    """
    return ((max_new_tokens - buffer - lengths) / buffer).clamp(-1, 0)


def with_groups(
    rollouts: Rollouts, scores: Scores, groups: Sequence[int], new: Rollouts, new_scores: Scores, eot_id: int
) -> tuple[Rollouts, Scores]:
    """The rollouts and scores, with the groups at indices `groups` replaced by those of `new`, in order."""
    size = rollouts.group_size
    rows = [p * size + g for p in groups for g in range(size)]
    width = max(rollouts.tokens.shape[1], new.tokens.shape[1])
    texts = list(rollouts.texts)
    for row, text in zip(rows, new.texts, strict=True):
        texts[row] = text

    def put(old: Tensor, fresh: Tensor, fill: float) -> Tensor:
        old, fresh = (widened(x, width, fill) for x in (old, fresh))
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
    absent = torch.full_like(new_scores.rewards, math.nan)  # for parts of tasks that were not resampled
    parts = {name: put(part, new_scores.parts.get(name, absent), 0) for name, part in scores.parts.items()}
    stages = stages_of([(range(len(texts)), scores), (rows, new_scores)], texts)
    changed = scores.unnormalised is not None or new_scores.unnormalised is not None
    before = put(scores.comparable, new_scores.comparable, 0) if changed else None
    return merged, Scores(put(scores.rewards, new_scores.rewards, 0), parts, stages, before)


def joined(parts: Sequence[generate.Samples], rows: Sequence[int], eot_id: int) -> generate.Samples:
    """The parts merged into one; `rows[i]` is the row of the result that row i of the concatenated parts becomes."""
    width = max(part.tokens.shape[1] for part in parts)
    order = torch.tensor(rows, device=parts[0].tokens.device).argsort()
    fills = {"tokens": eot_id}
    return generate.Samples(
        **{
            f.name: torch.cat([widened(getattr(part, f.name), width, fills.get(f.name, 0)) for part in parts])[order]
            for f in fields(generate.Samples)
        }
    )


def widened(x: Tensor, width: int, fill: float) -> Tensor:
    """A 2-D `x` right-padded with `fill` to `width` columns; a 1-D `x`, one value per row, is returned unchanged."""
    return F.pad(x, (0, width - x.shape[1]), value=fill) if x.dim() == 2 else x


def completion_texts(samples: generate.Samples, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The completion of each row as text, without its end-of-text."""
    tokens, mask = samples.tokens.cpu(), samples.mask.cpu()
    starts = mask.byte().argmax(1)
    spans = zip(tokens.tolist(), starts.tolist(), (starts + mask.sum(1)).tolist(), strict=True)
    return tuple(tokenizer.decode_all([row[start:end] for row, start, end in spans]))
