"""Policy losses: what each completion token adds to the loss, and which tokens a clip held back.

A loss is an object that maps flat tokens, padding left out, to the loss of each; `ops.weighted_sum` with the weights
of an aggregation adds them up. ratio = exp(logprobs - old), both at the sampling temperature. Where the ratio is 1, a
token of weight w has the gradient -w A grad logprobs under any loss (Luspo: n times that, n its row's tokens), as
long as the tokens of a row share weight and advantage.

No log-ratio is clamped unless a formula says so: a ratio is at most 1 / the probability with which its token was
sampled, a token of probability exp(-50) is never sampled, and float32 holds exp(88). With A > 0 every loss is bounded,
whatever the ratio. With A < 0 Clip, Gspo, GspoToken, Luspo and Gmpo grow in proportion to it, as PPO does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt, Lt
from jaxtyping import Float, Int
from torch import Tensor

from rookexp.errors import ConfigError
from rookexp.types import described

PerToken = Float[Tensor, " m"]  # a number at each of M completion tokens
RowOfToken = Int[Tensor, " m"]  # each token's row number, in any order; all tokens of a row are in one call
Flags = dict[str, PerToken]  # a metric's name, and 0 or 1 at each token


class PolicyLoss:
    """What the objective minimises besides divergence and entropy."""

    whole_rows = False  # True: the ratio is a row's, so its tokens must share one advantage

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        """The loss of each token, to be minimised; a row's loss stands at every token of the row."""
        raise NotImplementedError

    def per_token(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        """The loss of each token as called. Raises: ConfigError for another shape, which user code may give."""
        found: Any = self(logprobs, old, advantages, row)
        if not isinstance(found, Tensor) or found.shape != logprobs.shape:
            raise ConfigError(
                f"loss={type(self).__name__}: it gave {described(found)}; wanted: a tensor of shape "
                f"{list(logprobs.shape)}, the loss of each token"
            )
        return found

    def clip_flags(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> Flags:
        """Detached 0 or 1 at each token; the mean over completion tokens is the metric of that name; {}: no clip.

        clip_frac/any: the ratio left its interval or is above the cap, whatever the advantage's sign. clip_frac/low: it
        is below and A < 0; clip_frac/high: above and A > 0; clip_frac/region: low, high, or above the cap that holds
        for A < 0, which are the tokens without a gradient (in Cispo they keep one).
        """
        return {}


class Clip(PolicyLoss):
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A).

    Source: Schulman et al. 2017 (arXiv 1707.06347), eq. 7; two clips: Yu et al. 2025 (arXiv 2503.14476), eq. 8.
    """

    cap = math.inf  # with A < 0 a ratio above it has no gradient

    def __init__(self, *, clip_low: Annotated[float, Gt(0), Lt(1)], clip_high: Annotated[float, Gt(0)]) -> None:
        self.low, self.high = 1 - clip_low, 1 + clip_high

    def ratio(self, logprobs: PerToken, old: PerToken, row: RowOfToken) -> PerToken:
        """The ratio that is clipped, at each token."""
        return (logprobs - old).exp()

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        ratio = self.ratio(logprobs, old, row)
        return -torch.minimum(ratio * advantages, ratio.clamp(self.low, self.high) * advantages)

    def clip_flags(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> Flags:
        """As in `PolicyLoss`; a row's ratio sets the flags of all its tokens."""
        return _clip_flags(self.ratio(logprobs.detach(), old, row), advantages, self.low, self.high, self.cap)


class DualClip(Clip):
    """`Clip`, and where A < 0 -max(min(...), dual_clip A): no loss above dual_clip |A|.

    Source: Ye et al. 2020 (arXiv 1912.09729).
    """

    def __init__(
        self,
        *,
        clip_low: Annotated[float, Gt(0), Lt(1)],
        clip_high: Annotated[float, Gt(0)],
        dual_clip: Annotated[float, Gt(1)],
    ) -> None:
        super().__init__(clip_low=clip_low, clip_high=clip_high)
        self.cap = dual_clip

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        loss = super().__call__(logprobs, old, advantages, row)
        return torch.where(advantages < 0, torch.minimum(loss, -self.cap * advantages), loss)


class TwoSided(DualClip):
    """-min(min(ratio, delta) A, clip(ratio, 1 - clip_low, 1 + clip_high) A): `DualClip` with delta as the cap.

    Raises: ConfigError when delta is not above 1 + clip_high. Source: Prime Intellect 2025 (arXiv 2505.07291).
    """

    def __init__(
        self,
        *,
        clip_low: Annotated[float, Gt(0), Lt(1)],
        clip_high: Annotated[float, Gt(0)],
        delta: Annotated[float, Gt(1)],
    ) -> None:
        super().__init__(clip_low=clip_low, clip_high=clip_high, dual_clip=delta)
        if delta <= self.high:
            raise ConfigError(f"loss.delta={delta}: allowed: a number > {self.high}, which is 1 + loss.clip_high")


class Gspo(Clip):
    """`Clip` of a row's ratio s = exp(mean over the row of logprobs - old), one value for all its tokens.

    With sequence_mean weights the loss is the paper's mean over rows.
    Source: Zheng et al. 2025 (arXiv 2507.18071), eq. 5-7.
    """

    whole_rows = True

    def ratio(self, logprobs: PerToken, old: PerToken, row: RowOfToken) -> PerToken:
        """The row's s at each of its tokens."""
        return _row_mean(logprobs - old, row).exp()


class GspoToken(Gspo):
    """`Gspo` with sg(s) ratio / sg(ratio) for s: the same value, and the gradient -A s grad logprobs at each token.

    So the tokens of a row may have different advantages; if they share one, the row's gradient is Gspo's.
    Source: Zheng et al. 2025 (arXiv 2507.18071), section on GSPO-token.
    """

    whole_rows = False

    def ratio(self, logprobs: PerToken, old: PerToken, row: RowOfToken) -> PerToken:
        """The row's s at each of its tokens; differentiable in the token's own log-prob only."""
        return super().ratio(logprobs, old, row).detach() * (logprobs - logprobs.detach()).exp()


class Luspo(Gspo):
    """`Gspo` times n, the row's number of tokens; with sequence_mean weights the loss is the paper's mean over rows.

    Source: Liu et al. 2026 (arXiv 2602.05261).
    """

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        return super().__call__(logprobs, old, advantages, row) * _row_length(row)


class Cispo(PolicyLoss):
    """-sg(clip(ratio, 1 - clip_low, 1 + clip_high)) A logprobs: a clipped weight, and no token without a gradient.

    clip_low None: not clipped below. Source: MiniMax 2025 (arXiv 2506.13585), eq. 4-5.
    """

    def __init__(self, *, clip_low: Annotated[float, Gt(0), Lt(1)] | None, clip_high: Annotated[float, Gt(0)]) -> None:
        self.low, self.high = 0.0 if clip_low is None else 1 - clip_low, 1 + clip_high

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        weight = (logprobs.detach() - old).exp().clamp(self.low, self.high)
        return -weight * advantages * logprobs

    def clip_flags(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> Flags:
        """As in `PolicyLoss`; any: the tokens whose weight was clipped."""
        return _clip_flags((logprobs.detach() - old).exp(), advantages, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Gmpo(PolicyLoss):
    """-exp(mean over the row of the clipped logprobs - old) A: the geometric mean of a row's ratios.

    The log-ratio is clipped above at log_clip where A > 0 and below at -log_clip where A < 0; a clipped token has no
    gradient. With sequence_mean weights the loss is the paper's mean over rows.
    Source: Zhao et al. 2025 (arXiv 2507.20673).
    """

    whole_rows = True
    log_clip: Annotated[float, Gt(0)]

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        log_ratio = logprobs - old
        above, below = log_ratio.clamp(max=self.log_clip), log_ratio.clamp(min=-self.log_clip)
        return -_row_mean(torch.where(advantages > 0, above, below), row).exp() * advantages

    def clip_flags(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> Flags:
        """As in `PolicyLoss`, of each token's own ratio."""
        return _clip_flags(logprobs.detach() - old, advantages, -self.log_clip, self.log_clip)


class Reinforce(PolicyLoss):
    """-A logprobs: the plain policy gradient; `old` is unused. Source: Williams 1992."""

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        return -advantages * logprobs


@dataclass(frozen=True, kw_only=True)
class Sapo(PolicyLoss):
    """-f(ratio) A with f = 4 / tau sigmoid(tau (ratio - 1)) in (0, 4 / tau): a soft clip.

    tau is tau_positive where A > 0, else tau_negative. df / dratio = 4 sigmoid (1 - sigmoid), which is 1 at ratio 1.
    Source: Gao et al. 2025 (arXiv 2511.20347).
    """

    tau_positive: Annotated[float, Gt(0)]
    tau_negative: Annotated[float, Gt(0)]

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        ratio = (logprobs - old).exp()
        gate = torch.where(advantages > 0, _soft_gate(ratio, self.tau_positive), _soft_gate(ratio, self.tau_negative))
        return -gate * advantages


@dataclass(frozen=True, kw_only=True)
class Vespo(PolicyLoss):
    """-sg(phi(W)) A logprobs with the row's W = exp(sum of logprobs - old) and phi = W^k exp(lambda (1 - W)).

    (k, lambda) is the positive pair where A >= 0, else the negative. phi(1) = 1; phi rises from 0 to its maximum
    (k / lambda)^k exp(lambda - k) at W = k / lambda and falls to 0. Source: Shen et al. 2026 (arXiv 2602.10693).
    """

    whole_rows = True
    k_positive: Annotated[float, Gt(0)]
    lambda_positive: Annotated[float, Gt(0)]
    k_negative: Annotated[float, Gt(0)]
    lambda_negative: Annotated[float, Gt(0)]

    def __call__(self, logprobs: PerToken, old: PerToken, advantages: PerToken, row: RowOfToken) -> PerToken:
        log_w = _row_sum(logprobs.detach() - old, row)
        positive = _gamma_kernel(log_w, self.k_positive, self.lambda_positive)
        negative = _gamma_kernel(log_w, self.k_negative, self.lambda_negative)
        phi = torch.where(advantages >= 0, positive, negative)
        return -phi * advantages * logprobs


def _clip_flags(ratio: Tensor, advantages: Tensor, low: float, high: float, cap: float = math.inf) -> Flags:
    """`PolicyLoss.clip_flags` of a ratio, or of its log, that is held in [low, high] and, where A < 0, under cap."""
    negative, positive = advantages < 0, advantages > 0
    below, above, capped = ratio < low, ratio > high, (ratio > cap) & negative
    flags = {"any": below | (ratio > min(high, cap)), "low": below & negative, "high": above & positive}
    flags["region"] = flags["low"] | flags["high"] | capped
    return {f"clip_frac/{name}": flag.to(ratio.dtype) for name, flag in flags.items()}


def _soft_gate(ratio: Tensor, tau: float) -> Tensor:
    """f of `Sapo`."""
    return (4 / tau) * (tau * (ratio - 1)).sigmoid()


def _gamma_kernel(log_w: Tensor, k: float, lam: float) -> Tensor:
    """phi of `Vespo`; 0 where W overflows, which is its limit."""
    return (k * log_w + lam * (1 - log_w.exp())).exp()


def _row_sum(x: Tensor, row: Tensor) -> Tensor:
    """The sum of `x` over the tokens of each token's row, at each token."""
    rows, place = row.unique(return_inverse=True)
    return x.new_zeros(len(rows)).index_add(0, place, x)[place]


def _row_mean(x: Tensor, row: Tensor) -> Tensor:
    """The mean of `x` over the tokens of each token's row, at each token."""
    _, place, length = row.unique(return_inverse=True, return_counts=True)
    return x.new_zeros(len(length)).index_add(0, place, x)[place] / length[place]


def _row_length(row: Tensor) -> Tensor:
    """How many tokens each token's row has."""
    _, place, length = row.unique(return_inverse=True, return_counts=True)
    return length[place]
