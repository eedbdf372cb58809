"""The loss of GRPO as the papers write it: from whole logits, a row and a token at a time, without weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tiny import LONGEST
from torch import Tensor

from rookexp import losses
from rookexp.objectives.grpo import GRPO
from rookexp.types import Experience

BETA, ENTROPY = 0.1, 0.05
LOW, HIGH, CAP = 0.8, 1.28, 1.5
ROW_LOW, ROW_HIGH = 0.95, 1.04
LOG_CLIP = 0.1
CLIP, ROW_CLIP = {"clip_low": 0.2, "clip_high": 0.28}, {"clip_low": 0.05, "clip_high": 0.04}
LOSSES: dict[str, losses.PolicyLoss] = {
    "clip": losses.Clip(**CLIP),
    "dual_clip": losses.DualClip(**CLIP, dual_clip=CAP),
    "two_sided": losses.TwoSided(**CLIP, delta=CAP),
    "gspo": losses.Gspo(**ROW_CLIP),
    "gspo_token": losses.GspoToken(**ROW_CLIP),
    "luspo": losses.Luspo(**ROW_CLIP),
    "cispo": losses.Cispo(**CLIP),
    "sapo": losses.Sapo(tau_positive=1.0, tau_negative=1.05),
    "gmpo": losses.Gmpo(log_clip=LOG_CLIP),
    "vespo": losses.Vespo(k_positive=2.0, lambda_positive=3.0, k_negative=3.0, lambda_negative=2.0),
    "reinforce": losses.Reinforce(),
}


def policy_loss(name: str, new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    """The loss of LOSSES[name] at each token of one row; log-probs and advantages (n,)."""
    n, ratio = len(new), (new - old).exp()
    s = ratio.prod() ** (1 / n)  # GSPO's ratio of the row
    s_token = s.detach() * new.exp() / new.exp().detach()
    w = ratio.prod().detach()
    ppo = clipped(ratio, a, LOW, HIGH)
    tau = torch.where(a > 0, 1.0, 1.05)
    held = torch.where(a > 0, ratio.clamp(max=math.exp(LOG_CLIP)), ratio.clamp(min=math.exp(-LOG_CLIP)))
    k, lam = torch.where(a >= 0, 2.0, 3.0), torch.where(a >= 0, 3.0, 2.0)
    return {
        "clip": -ppo,
        "dual_clip": -torch.where(a < 0, torch.max(ppo, CAP * a), ppo),
        "two_sided": -torch.min(ratio.clamp(max=CAP) * a, ratio.clamp(LOW, HIGH) * a),
        "gspo": -clipped(s, a, ROW_LOW, ROW_HIGH),
        "gspo_token": -clipped(s_token, a, ROW_LOW, ROW_HIGH),
        "luspo": -n * clipped(s, a, ROW_LOW, ROW_HIGH),
        "cispo": -ratio.detach().clamp(LOW, HIGH) * a * new,
        "sapo": -4 / tau / (1 + (-tau * (ratio - 1)).exp()) * a,
        "gmpo": -(held.prod() ** (1 / n)) * a,
        "vespo": -(w**k) * (lam * (1 - w)).exp() * a * new,
        "reinforce": -a * new,
    }[name]


def clipped(ratio: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    """What PPO maximises."""
    return torch.min(ratio * a, ratio.clamp(low, high) * a)


def divergence(name: str, logp: Tensor, logq: Tensor, token: Tensor, old: Tensor) -> Tensor:
    """The divergence at one place: of the distributions (V,), or from the log-probs of the token there."""
    p, q = logp.exp(), logq.exp()
    new, x = logp[token], logp[token] - logq[token]
    k3 = (-x).exp() - 1 + x
    return {
        "forward": (p * (logp - logq)).sum(),
        "reverse": (q * (logq - logp)).sum(),
        "symmetric": ((p - q) * (logp - logq)).sum() / 2,
        "k1": x,
        "k2": x * x / 2,
        "k3": k3,
        "abs": x if x > 0 else -x,
        "ratio_k3": (new - old).exp() * k3,
        "legacy_sampled": new.exp() * x,
    }[name]


def aggregated(name: str, rows: list[Tensor], longest: int = LONGEST) -> Tensor:
    """One number from the losses of the tokens of each row."""
    return {
        "token_mean": torch.cat(rows).mean(),
        "sequence_mean": torch.stack([row.mean() for row in rows]).mean(),
        "constant_length": torch.cat(rows).sum() / (len(rows) * longest),
        "sequence_sum": torch.stack([row.sum() for row in rows]).mean(),
    }[name]


@dataclass
class Row:
    """What both models say of one row's n completion tokens."""

    tokens: Tensor  # ids, (n,)
    old: Tensor  # log-probs under the sampling policy, (n,)
    advantages: Tensor  # (n,)
    logp: Tensor  # the policy's distributions before each token, (n, V)
    logq: Tensor  # and the reference's

    @property
    def new(self) -> Tensor:
        """The policy's log-probs, (n,)."""
        return torch.stack([logp[token] for logp, token in zip(self.logp, self.tokens, strict=True)])

    def divergence(self, name: str, old: Tensor | None = None) -> Tensor:
        """At each token, (n,)."""
        each = zip(self.logp, self.logq, self.tokens, self.old if old is None else old, strict=True)
        return torch.stack([divergence(name, *place) for place in each])


def rows_of(objective: GRPO, experience: Experience) -> list[Row]:
    """The rows that have a weight, each computed alone, without padding."""
    found = []
    for i, weights in enumerate(experience.weights):
        if not weights.any():
            continue
        at = weights.nonzero()[:, 0]
        tokens, temperature = experience.tokens[i], experience.temperature[i]
        logp, logq = (
            (m.hidden(tokens[None, : at[-1]]) @ m.head_weight.T / temperature).log_softmax(-1)[0, at - 1]
            for m in (objective.policy, objective.reference or objective.policy)
        )
        found.append(Row(tokens[at], experience.logprobs[i, at], experience.advantages[i, at], logp, logq))
    return found


def loss(objective: GRPO, experience: Experience, policy_loss_name: str, kl_type: str, aggregation: str) -> Tensor:
    """Policy loss + BETA divergence, unless the reward pays it, - ENTROPY entropy."""
    rows = []
    for row in rows_of(objective, experience):
        terms = policy_loss(policy_loss_name, row.new, row.old, row.advantages)
        terms = terms + ENTROPY * (row.logp.exp() * row.logp).sum(1)
        rows.append(terms if objective.kl_placement == "reward" else terms + BETA * row.divergence(kl_type))
    return aggregated(aggregation, rows)
