"""Group Relative Policy Optimization: sample G completions a prompt, compare them within the group, update.

Source: Shao et al. 2024 (arXiv 2402.03300). Every distribution, of policy and reference, sampled or scored, is
softmax(logits / temperature).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from jaxtyping import Float, Int
from torch import Tensor, nn

from rookexp import baselines, generate, losses, ops
from rookexp.kl import Coefficient
from rookexp.types import Experience, LossTerms, Policy, Prompt, Rollouts, Scores

Aggregation = Callable[..., Tensor]  # (mask (N, T), max_new_tokens=) to weights (N, T): see rookexp.losses


@runtime_checkable
class SamplingPolicy(Policy, generate.Decoder, Protocol):
    """A policy that can be trained and sampled from."""


@runtime_checkable
class Task(Protocol):
    """What the policy is asked."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The P problems of a step."""


@runtime_checkable
class Reward(Protocol):
    """What completions are worth."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Scores of N = P x G completions, prompt-major."""


@runtime_checkable
class Codec(Protocol):
    """Token ids to text."""

    @property
    def eot_id(self) -> int:
        """The id that ends a completion."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""


class GRPO:
    """Clipped policy gradient with group advantages, an exact divergence from a frozen reference, and entropy."""

    def __init__(
        self,
        *,
        policy: SamplingPolicy,
        tokenizer: Codec,
        task: Task,
        reward: Reward,
        baseline: nn.Module,
        coefficient: Coefficient,
        divergence: ops.Divergence,
        aggregation: Aggregation,
        sampling: generate.Sampling,
        group_size: Annotated[int, Ge(2)],
        clip_low: Annotated[float, Gt(0), Lt(1)],
        clip_high: Annotated[float, Gt(0)],
        entropy_coef: Annotated[float, Ge(0)],
        advantage_clip: Annotated[float, Gt(0)] | None,
        single_update: bool,
        exact_sampler: bool,
        seed: int,
        autocast: Callable[[], AbstractContextManager[None]],
        head_chunk: Annotated[int, Ge(1)],
        on_completions: Callable[[int, Sequence[dict[str, Any]]], None],
    ) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.task = task
        self.reward = reward
        self.baseline = baseline
        self.coefficient = coefficient
        self.divergence = divergence
        self.aggregation = aggregation
        self.sampling = sampling
        self.group_size = group_size
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.entropy_coef = entropy_coef
        self.advantage_clip = advantage_clip
        self.single_update = single_update
        self.exact_sampler = exact_sampler
        self.seed = seed
        self.autocast = autocast
        self.head_chunk = head_chunk
        self.on_completions = on_completions
        self.modules: dict[str, nn.Module] = {"baseline": baseline, "coefficient": coefficient}
        self.reference: SamplingPolicy | None = None
        if coefficient.can_be_nonzero:
            self.reference = copy.deepcopy(policy)
            for parameter in self.reference.parameters():
                parameter.requires_grad_(False)

    # ---- collect ------------------------------------------------------------------------------------------------

    def collect(self, step: int) -> tuple[Experience, dict[str, float]]:
        """Samples, scores and compares the step's completions."""
        rollouts = self.rollouts(step)
        scores = self.reward.score(rollouts.prompts, rollouts.texts)
        rewards = scores.rewards.view(len(rollouts.prompts), self.group_size)  # (P, G)
        advantages = self.baseline(rewards)
        if self.advantage_clip is not None:
            advantages = baselines.clip_advantages(advantages, self.advantage_clip)
        self.on_completions(step + 1, completion_rows(rollouts, scores, advantages))
        experience = Experience(
            tokens=rollouts.tokens,
            weights=self.aggregation(rollouts.mask, max_new_tokens=self.sampling.max_new_tokens),
            logprobs=rollouts.logprobs,
            advantages=advantages.to(rollouts.mask.device).view(-1, 1) * rollouts.mask,
            temperature=rollouts.temperature,
            prompt=torch.arange(len(rollouts.prompts), device=rollouts.mask.device).repeat_interleave(self.group_size),
            prompt_lengths=rollouts.mask.int().argmax(1),
        )
        metrics = rollout_metrics(rollouts, scores, rewards)
        if not self.exact_sampler and not self.single_update:
            old = self._logprobs(experience)
            error = (old - rollouts.logprobs).abs().sum() / rollouts.mask.sum()
            metrics["sampler/abs_logprob_error"] = float(error)
            experience = replace(experience, logprobs=old)
        return experience, metrics

    def rollouts(self, step: int) -> Rollouts:
        """The step's completions; every row has a seed of its own."""
        prompts = self.task.select(step)
        groups = range(self.group_size)
        seeds = [ops.seed_of(self.seed, "rollout", step, p, g) for p in range(len(prompts)) for g in groups]
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
            prompts=prompts,
            texts=completion_texts(samples, self.tokenizer),
            group_size=self.group_size,
        )

    def _logprobs(self, experience: Experience) -> Float[Tensor, "n t"]:
        """Each weighted token's log-prob in the training forward, else 0; a group's rows at a time."""
        n, width = experience.tokens.shape
        groups = []
        with torch.no_grad():
            for index in torch.arange(n).split(self.group_size):
                rows = experience.rows(index, width)
                at = rows.predicting()
                logprobs = self._stats(rows, at, None).logprobs
                flat = logprobs.new_zeros(len(index) * (width - 1)).index_copy(0, at, logprobs)
                groups.append(F.pad(flat.view(len(index), -1), (1, 0)))
        return torch.cat(groups)

    # ---- loss ---------------------------------------------------------------------------------------------------

    def loss(self, micro: Experience) -> LossTerms:
        """Sum over tokens of weight * (clipped policy loss + beta KL - entropy_coef entropy).

        The old log-probs are the sampler's where it computes as the training forward does; else, rounding apart, they
        are that forward's: taken before the first of several updates, or, for a single one, from this very forward,
        because the policy that sampled is the policy that is updated; its ratio is exactly 1.
        """
        at = micro.predicting()
        stats = self._stats(micro, at, self.reference)
        weights, sampled, advantages = (
            x[:, 1:].flatten()[at] for x in (micro.weights, micro.logprobs, micro.advantages)
        )  # (M,) each
        logprobs, entropy, kl = stats.logprobs, stats.entropy, stats.kl
        old = logprobs.detach() if self.single_update and not self.exact_sampler else sampled
        beta = self.coefficient.coefficient()

        policy_loss = ops.weighted_sum(
            losses.clipped(logprobs, old, advantages, self.clip_low, self.clip_high), weights
        )
        total = policy_loss
        if kl is not None and beta:
            total = total + beta * ops.weighted_sum(kl, weights)
        if self.entropy_coef:
            total = total - self.entropy_coef * ops.weighted_sum(entropy, weights)

        per_token = {
            "entropy": entropy.detach(),  # nats, at the sampling temperature
            "ratio/max": (logprobs.detach() - old).exp(),
            "approx_kl": losses.approx_kl_k3(logprobs, old),  # nats; how far the step has moved the policy already
            "advantage/abs_mean": advantages.abs(),
            **losses.clip_fractions(logprobs, old, advantages, self.clip_low, self.clip_high),
        }
        if kl is not None:
            per_token["kl"] = kl.detach()  # nats, of `divergence`, not multiplied by beta
        if self.single_update:
            per_token["sampler/abs_logprob_error"] = (logprobs.detach() - sampled).abs()
        return LossTerms(total, {"policy_loss": policy_loss.detach()}, per_token)

    def _stats(self, rows: Experience, at: Int[Tensor, " m"], reference: Policy | None) -> ops.TokenStats:
        """Log-prob, entropy and divergence of the tokens that the positions `at` predict."""
        places = completions_of(rows, at)
        with self.autocast():
            hidden = places.hidden(self.policy)
            with torch.no_grad():
                ref_hidden = None if reference is None else places.hidden(reference)
            return ops.token_stats(
                hidden,
                self.policy.head_weight,
                rows.tokens[:, 1:].flatten()[at],
                rows.temperature[places.row],
                divergence=None if reference is None else self.divergence,
                ref_hidden=ref_hidden,
                ref_head_weight=None if reference is None else reference.head_weight,
                chunk=self.head_chunk,
            )

    # ---- observe ------------------------------------------------------------------------------------------------

    def observe(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The step's kl_coef and kl_share; then the coefficient sees the step's divergence and may move.

        kl_coef is the beta that the step's loss used. kl_share = beta KL / (beta KL + mean |A|), in [0, 1], compares
        the penalty with the advantages that pull against it, both as token means. It is no share of the loss, whose
        policy term is near 0 on-policy whatever its gradient, and none of the gradient's norm, which would take a
        second backward.
        """
        if "kl" not in metrics:
            return {}
        beta, kl_nats = self.coefficient.coefficient(), metrics["kl"]
        self.coefficient.observe(kl_nats)
        penalty = beta * kl_nats
        pull = penalty + metrics["advantage/abs_mean"]
        return {"kl_coef": beta, "kl_share": penalty / pull if pull else 0.0}


@dataclass(frozen=True, slots=True)
class Places:
    """M tokens of completions whose prompts stand apart, so that a prompt is computed once for all its rows."""

    prompts: Int[Tensor, "p s"]  # right-padded ids
    lengths: Int[Tensor, " p"]  # tokens of each prompt
    owner: Int[Tensor, " n"]  # each row's prompt
    completions: Int[Tensor, "n c"]  # right-padded ids
    row: Int[Tensor, " m"]  # each token's row
    column: Int[Tensor, " m"]  # and its place in the row's completion

    def hidden(self, policy: Policy) -> Float[Tensor, "m d"]:
        """The hidden state that predicts each token."""
        return policy.hidden_after(self.prompts, self.lengths, self.owner, self.completions)[self.row, self.column]


def completions_of(rows: Experience, at: Int[Tensor, " m"]) -> Places:
    """The tokens that the positions `at` of the flattened (N, T - 1) rows predict, their prompts taken apart."""
    n, width = rows.tokens.shape
    numbers, owner = rows.prompt.unique(return_inverse=True)
    first = torch.zeros_like(numbers).scatter_(
        0, owner, torch.arange(n, device=owner.device)
    )  # some row of each prompt
    shortest, longest = torch.stack([rows.prompt_lengths.min(), rows.prompt_lengths.max()]).tolist()
    columns = rows.prompt_lengths[:, None] + torch.arange(width - shortest, device=owner.device)  # (N, C)
    row = at // (width - 1)
    return Places(
        prompts=rows.tokens[first, :longest],
        lengths=rows.prompt_lengths[first],
        owner=owner,
        completions=rows.tokens.gather(1, columns.clamp(max=width - 1)),
        row=row,
        column=at % (width - 1) + 1 - rows.prompt_lengths[row],
    )


def completion_texts(samples: generate.Samples, tokenizer: Codec) -> tuple[str, ...]:
    """The completion of each row as text, without its end-of-text."""
    tokens, mask = samples.tokens.cpu(), samples.mask.cpu()
    return tuple(tokenizer.decode(row[kept].tolist()) for row, kept in zip(tokens, mask, strict=True))


def rollout_metrics(rollouts: Rollouts, scores: Scores, rewards: Float[Tensor, "p g"]) -> dict[str, float]:
    """What is known before the update; parts are means over the completions to which they apply.

    reward/std is over all completions (N - 1); frac_reward_zero_std is the share of groups whose rewards are all equal,
    which teach nothing; completions/truncated_frac is the share without an end-of-text.
    """
    dead = rewards.amax(1) == rewards.amin(1)
    values = {
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(),
        "frac_reward_zero_std": dead.float().mean(),
        "completions/mean_length": rollouts.mask.sum(1).float().mean(),
        "completions/truncated_frac": rollouts.truncated.float().mean(),
    }
    values |= {f"reward/{name}": part.nanmean() for name, part in scores.parts.items()}
    return {name: float(value) for name, value in values.items()}


def completion_rows(rollouts: Rollouts, scores: Scores, advantages: Float[Tensor, "p g"]) -> list[dict[str, Any]]:
    """One row a completion for the completions table."""
    flat, rewards, truncated = advantages.flatten().tolist(), scores.rewards.tolist(), rollouts.truncated.tolist()
    parts = {name: part.tolist() for name, part in scores.parts.items()}
    return [
        {
            "prompt": rollouts.prompts[i // rollouts.group_size].text,
            "completion": text,
            "reward": rewards[i],
            "advantage": flat[i],
            "truncated": truncated[i],
            **{name: part[i] for name, part in parts.items()},
        }
        for i, text in enumerate(rollouts.texts)
    ]
