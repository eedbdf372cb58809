"""Policy-gradient training on groups of completions: sample, score, turn rewards into advantages, update.

With a group baseline and the clipped loss it is GRPO (Shao et al. 2024, arXiv 2402.03300), with `returns.Gae` PPO.
The policy loss, the divergence and its coefficient, the baseline, the aggregation and the reference's update rule are
separate objects. Every distribution, of policy and reference, sampled or scored, is softmax(logits / temperature).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rookexp import kl, losses, ops, returns
from rookexp.coefficients import Coefficient
from rookexp.draw import Sampling
from rookexp.objectives.completion_positions import completions_of
from rookexp.objectives.critic import ValueHead
from rookexp.objectives.grpo_choices import refuse_contradictions
from rookexp.objectives.rollout_metrics import completion_rows, kl_share_of_rewards, rollout_metrics
from rookexp.objectives.rollouts import RolloutSource, SamplingPolicy, Task
from rookexp.reference import Sync
from rookexp.returns import Advantages, Baseline, TokenRewards
from rookexp.types import Autocast, Experience, LongReward, LossTerms, Policy, Reward, Rollouts, Scores, Tokenizer

Aggregation = Callable[..., Tensor]  # (mask (N, T), max_new_tokens=) -> weights (N, T): see rookexp.aggregation


@dataclass(kw_only=True, eq=False)
class GRPO:
    """Policy loss + beta divergence - entropy_coef entropy (+ a value loss), each token weighted by the aggregation."""

    policy: SamplingPolicy
    tokenizer: Tokenizer
    task: Task
    reward: Reward
    baseline: Baseline
    coefficient: Coefficient
    divergence: kl.Exact | kl.Sampled
    policy_loss: losses.PolicyLoss
    aggregation: Aggregation
    reference_sync: Sync
    sampling: Sampling
    own_sampling: Mapping[str, Sampling]  # by kind of prompt, for the kinds that do not use `sampling`
    group_size: Annotated[int, Ge(1)]
    kl_placement: Literal["loss", "reward"]
    entropy_coef: Annotated[float, Ge(0)]
    advantage_clip: Annotated[float, Gt(0)] | None
    dead_groups: Literal["kept", "dropped", "resampled"]
    max_resamples: Annotated[int, Ge(1)]
    truncated: Literal["kept", "masked"]
    overlong_buffer: Annotated[int, Ge(1)] | None
    single_update: bool  # whether a batch has one update, which then is of the policy that sampled it
    exact_sampler: bool  # whether sampling computes log-probs exactly as the training forward does
    seed: int
    autocast: Autocast
    head_chunk: Annotated[int, Ge(1)]
    on_completions: Callable[[int, Sequence[dict[str, Any]]], None]

    def __post_init__(self) -> None:
        refuse_contradictions(
            baseline=self.baseline,
            coefficient=self.coefficient,
            policy_loss=self.policy_loss,
            reference_sync=self.reference_sync,
            sampling=self.sampling,
            own_sampling=self.own_sampling,
            group_size=self.group_size,
            dead_groups=self.dead_groups,
            overlong_buffer=self.overlong_buffer,
        )
        self.max_new_tokens = max(each.max_new_tokens for each in (self.sampling, *self.own_sampling.values()))
        self.source = RolloutSource(
            policy=self.policy,
            tokenizer=self.tokenizer,
            task=self.task,
            reward=self.reward,
            sampling=self.sampling,
            own_sampling=self.own_sampling,
            group_size=self.group_size,
            resamples=self.max_resamples if self.dead_groups == "resampled" else 0,
            by_stage=self.baseline.by_stage,
            overlong_buffer=self.overlong_buffer,
            seed=self.seed,
            autocast=self.autocast,
        )
        self.measured = self.divergence.shares if isinstance(self.divergence, kl.Exact) else (1.0, 0.0)
        self.modules: dict[str, nn.Module] = {"baseline": self.baseline, "coefficient": self.coefficient}
        self.reference: SamplingPolicy | None = None
        if self.coefficient.can_be_nonzero:
            self.reference = copy.deepcopy(self.policy)
            for parameter in self.reference.parameters():
                parameter.requires_grad_(False)
            if self.reference_sync.moves:
                self.modules["reference"] = cast("nn.Module", self.reference)
        self.rows = 0  # completions of the last step
        self.heads: dict[nn.Module, float] = {}  # modules trained beside the policy, and their learning rates
        self.value_head: ValueHead | None = None
        if self.baseline.needs_values:
            self.value_head = ValueHead(self.policy.head_weight.shape[1]).to(self.policy.head_weight.device)
            self.modules["value_head"] = self.value_head
            self.heads[self.value_head] = self.baseline.value_lr

    # ---- collect ------------------------------------------------------------------------------------------------

    def collect(self, step: int) -> tuple[Experience, dict[str, float]]:
        """Samples and scores the step's completions and computes their advantages; returns the batch and metrics."""
        rollouts, scores, sampled = self.source.collect(step)
        self.rows = len(rollouts.texts)
        dead = self.source.dead(scores)
        metrics = rollout_metrics(rollouts, scores, dead) | {"completions/sampled": float(sampled)}
        if not self.baseline.needs_groups:  # equal rewards teach, too
            del metrics["frac_reward_zero_std"]
        if isinstance(self.source.reward, LongReward):
            metrics |= self.source.reward.metrics()
        # `kept` are the rows that count: all, or those of living groups; the others are treated as never sampled.
        living = ~dead.to(rollouts.mask.device) | (self.dead_groups == "kept")
        kept = living.repeat_interleave(self.group_size)
        experience = self._experience(rollouts, kept)
        rescored = not self.exact_sampler and not self.single_update
        seen: dict[str, Tensor] = {}
        if rescored or self.value_head is not None or self._pays_kl():
            seen = self._training_forward(experience, rollouts.mask)
        if rescored:
            error = (seen["logprobs"] - rollouts.logprobs).abs().sum() / rollouts.mask.sum()
            metrics["sampler/abs_logprob_error"] = float(error)
            experience = replace(experience, logprobs=seen["logprobs"])
        found = self._advantages(rollouts, scores, kept, seen)
        if self.kl_placement == "reward" and self.reference is not None:
            metrics["kl_share"] = 0.0
            if self._pays_kl() and kept.any():
                penalties = self.coefficient.now() * seen["kl"][kept].sum(1)
                outcomes = scores.rewards.to(kept.device)[kept]
                metrics["kl_share"] = kl_share_of_rewards(penalties, outcomes, self.group_size)
        experience = replace(experience, advantages=found.advantages)
        if found.returns is not None:
            explained = returns.explained_variance(seen["values"], found.returns, rollouts.mask)
            metrics["value/explained_variance"] = float(explained)
            experience = replace(experience, values=seen["values"], returns=found.returns)
        per_row = found.advantages.sum(1) / rollouts.mask.sum(1).clamp(min=1)
        self.on_completions(step + 1, completion_rows(rollouts, scores, per_row))
        return experience, metrics

    def _experience(self, rollouts: Rollouts, kept: Bool[Tensor, " n"]) -> Experience:
        """The rollouts, with weights on the kept rows' completion tokens; advantages, values and returns are 0."""
        # Overlong filtering: a truncated row counts in N, without a weight (DAPO, arXiv 2503.14476, section 3.4).
        mask = rollouts.mask & ~rollouts.truncated[:, None] if self.truncated == "masked" else rollouts.mask
        zeros = torch.zeros_like(rollouts.logprobs)
        weights = zeros.clone()
        if kept.any():
            weights[kept] = self.aggregation(mask[kept], max_new_tokens=self.max_new_tokens)
        prompts = torch.arange(len(rollouts.prompts), device=mask.device)
        return Experience(
            tokens=rollouts.tokens,
            weights=weights,
            logprobs=rollouts.logprobs,
            advantages=zeros,
            values=zeros,
            returns=zeros,
            temperature=rollouts.temperature,
            prompt=prompts.repeat_interleave(self.group_size),
            prompt_lengths=rollouts.mask.int().argmax(1),
        )

    def _advantages(
        self,
        rollouts: Rollouts,
        scores: Scores,
        kept: Bool[Tensor, " n"],
        seen: Mapping[str, Tensor],
    ) -> Advantages:
        """The baseline's advantages for the kept rows, clipped to +-advantage_clip, and its returns; other rows are 0.

        With kl_placement=reward the baseline gets the rewards less beta times the divergence.
        Raises: ConfigError where the baseline compares stages and the reward has none.
        """
        if not kept.any():
            return Advantages(torch.zeros_like(rollouts.logprobs), None)
        stage = None
        if not self.baseline.by_stage:
            paid = returns.at_last_token(scores.rewards.to(kept.device), rollouts.mask)
        elif scores.stages is None:
            raise returns.no_stages(self.baseline, self.source.reward)
        else:
            stage = self.source.stages(rollouts, scores.stages)
            paid = returns.at_stages(scores.stages, stage, rollouts.mask)
        if self._pays_kl():
            paid = paid - self.coefficient.now() * seen["kl"]
        living = zip(rollouts.prompts, kept[:: self.group_size].tolist(), strict=True)
        given = TokenRewards(
            rewards=paid[kept],
            mask=rollouts.mask[kept],
            group_size=self.group_size,
            tasks=tuple(prompt.source or prompt.task for prompt, keep in living if keep),
            values=seen["values"][kept] if "values" in seen else None,
            truncated=rollouts.truncated[kept],
            final_values=seen["final_values"][kept] if "final_values" in seen else None,
            stage=None if stage is None else stage[kept],
        )
        found = self.baseline.advantages(given)

        def whole(x: Float[Tensor, "k t"]) -> Float[Tensor, "n t"]:
            return x.new_zeros(paid.shape).index_put((kept,), x)

        limit = self.advantage_clip
        advantages = found.advantages if limit is None else found.advantages.clamp(-limit, limit)
        return Advantages(whole(advantages), None if found.returns is None else whole(found.returns))

    def _pays_kl(self) -> bool:
        """Whether this step's rewards include the divergence, with a coefficient above 0."""
        return self.kl_placement == "reward" and self.coefficient.now() > 0

    @torch.no_grad()
    def _training_forward(self, experience: Experience, mask: Tensor) -> dict[str, Tensor]:
        """Results of the training forward on the completions before the update, computed one group at a time.

        `logprobs`, `kl` (the divergence in the reward) and `values`, each (N, T) and 0 outside the completions;
        `final_values` (N,), the value after each row's last token. All but `logprobs` are left out where not needed.
        """
        found: dict[str, list[Tensor]] = {}
        n, width = experience.tokens.shape
        for index in torch.arange(n, device=mask.device).split(self.group_size):
            rows = replace(experience.rows(index, width), weights=mask[index].float())
            at = rows.predicting()
            stats, hidden = self._stats(rows, at, self.reference if self._pays_kl() else None)
            flat = {"logprobs": stats.logprobs}
            if self.value_head is not None:
                flat["values"] = self.value_head(hidden)
            if stats.ref is not None:
                flat["kl"] = self._penalty(stats.logprobs, stats.ref, stats.logprobs)
            for name, values in flat.items():
                whole = values.new_zeros(len(index) * (width - 1)).index_copy(0, at, values)
                found.setdefault(name, []).append(F.pad(whole.view(len(index), -1), (1, 0)))
            if self.value_head is not None and self.baseline.bootstraps:
                with self.autocast():
                    found.setdefault("final_values", []).append(self.value_head.at_end(rows, mask[index], self.policy))
        return {name: torch.cat(values) for name, values in found.items()}

    # ---- loss ---------------------------------------------------------------------------------------------------

    def loss(self, micro: Experience) -> LossTerms:
        """Sum over tokens of weight * (policy loss + beta divergence - entropy_coef entropy + value_coef value loss).

        The old log-probs are the sampler's if it computes exactly as the training forward does. If not, those differ
        by rounding, and a training forward gives them: one before the first of several updates, or, for a single
        update, this one, because the policy that sampled is the policy being updated; its ratio is exactly 1.
        """
        at = micro.predicting()
        stats, hidden = self._stats(micro, at, self.reference)
        weights, sampled, advantages = (
            ops.predicted(x, at) for x in (micro.weights, micro.logprobs, micro.advantages)
        )  # (M,) each
        row = at // (micro.tokens.shape[1] - 1)
        logprobs, entropy, now = stats.logprobs, stats.entropy, stats.logprobs.detach()
        old = now if self.single_update and not self.exact_sampler else sampled
        beta = 0.0 if self.kl_placement == "reward" else self.coefficient.now()

        terms = {"policy": ops.weighted_sum(self.policy_loss.per_token(logprobs, old, advantages, row), weights)}
        if stats.ref is not None and beta:
            terms["kl"] = beta * ops.weighted_sum(self._penalty(logprobs, stats.ref, old), weights)
        if self.entropy_coef:
            terms["entropy"] = -self.entropy_coef * ops.weighted_sum(entropy, weights)

        per_token = {
            "entropy": entropy.detach(),  # nats, at the sampling temperature
            "ratio/max": (now - old).exp(),
            # KL(old || policy) in nats: how far the step has moved the policy already.
            **{f"approx_kl/{f.__name__}": f(old, now, now) for f in (kl.k1, kl.k3)},
            "advantage/abs_mean": advantages.abs(),
            **self.policy_loss.clip_flags(logprobs, old, advantages, row),
        }
        if stats.ref is not None:
            per_token["kl"] = stats.ref.kl.detach()  # nats, exact, not multiplied by beta
            per_token["kl/forward"] = stats.ref.forward_kl  # KL(policy || reference), whichever divergence is penalised
            per_token |= {f"kl/{f.__name__}": f(now, stats.ref.logprobs, now) for f in (kl.k1, kl.k2, kl.k3)}
        if self.single_update:
            per_token["sampler/abs_logprob_error"] = (now - sampled).abs()
        if self.value_head is not None:
            before, targets = (ops.predicted(x, at) for x in (micro.values, micro.returns))
            values = self.value_head(hidden.detach() if self.baseline.detach else hidden)
            value_loss = returns.value_loss(values, before, targets, self.baseline.value_clip)
            terms["value"] = self.baseline.value_coef * ops.weighted_sum(value_loss, weights)
            per_token |= {"value/mean": values.detach(), "value/loss": value_loss.detach()}
        return LossTerms(terms, per_token)

    def _penalty(self, logprobs: Tensor, ref: ops.ReferenceStats, old: Tensor) -> Float[Tensor, " m"]:
        """The penalised divergence at each token."""
        if isinstance(self.divergence, kl.Exact):
            return ref.kl
        return self.divergence.formula(logprobs, ref.logprobs, old)

    def _stats(
        self, rows: Experience, at: Int[Tensor, " m"], reference: Policy | None
    ) -> tuple[ops.TokenStats, Float[Tensor, "m d"]]:
        """Log-prob, entropy and divergence of the tokens predicted by positions `at`, and their hidden states."""
        places = completions_of(rows, at)
        with self.autocast():
            hidden = places.hidden(self.policy)
            with torch.no_grad():
                ref_hidden = None if reference is None else places.hidden(reference)
            stats = ops.token_stats(
                hidden,
                self.policy.head_weight,
                ops.predicted(rows.tokens, at),
                rows.temperature[places.row],
                chunk=self.head_chunk,
                divergence=None if reference is None else self.measured,
                ref_hidden=ref_hidden,
                ref_head_weight=None if reference is None else reference.head_weight,
            )
        return stats, hidden

    # ---- observe ------------------------------------------------------------------------------------------------

    def observe(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """The step's kl_coef and kl_share; also updates the coefficient and, where due, the reference or the policy.

        kl_coef is the beta that the step's loss used. kl_share = beta KL / (beta KL + mean |A|), in [0, 1], compares
        the penalty with the advantages that pull against it, both as token means. It is not a share of the loss, whose
        policy term is near 0 on-policy whatever its gradient; grad_share/kl is the share of the gradient's norm. A
        divergence in the reward is part of A: its kl_share comes from `collect`, which compares it with the outcomes.
        """
        if self.reference is None:
            return {}
        beta, kl_nats = self.coefficient.now(), metrics.get("kl")
        tokens = round(metrics["completions/mean_length"] * self.rows)  # including those without a weight
        self.coefficient.observe(kl_nats, tokens=tokens, rows=self.rows)
        self.reference_sync.update(step + 1, cast("nn.Module", self.reference), cast("nn.Module", self.policy))
        if kl_nats is None or self.kl_placement == "reward":  # None: no token counted, as every group was dropped
            return {"kl_coef": beta}
        penalty = beta * kl_nats
        pull = penalty + metrics["advantage/abs_mean"]
        return {"kl_coef": beta, "kl_share": penalty / pull if pull else 0.0}
