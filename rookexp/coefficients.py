"""The coefficient beta of the divergence from the reference, and how it changes once a step.

A controller's `target_nats` is in the unit of what it observes: the step's divergence, in nats per completion token.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from rookexp.errors import ConfigError


class Coefficient(nn.Module):
    """The factor beta of the divergence; once a step it observes the divergence, without beta, and may change.

    Its state is in buffers, so a checkpoint carries it. Keep it on the CPU, where reading it never waits for a device.
    """

    can_be_nonzero: bool  # False: no reference is needed

    def coefficient(self) -> float:
        """beta of the coming step, >= 0."""
        raise NotImplementedError

    def now(self) -> float:
        """`coefficient()`. Raises: ConfigError for what user code may give instead, as any but 0 if it said so."""
        found: Any = self.coefficient()
        most = math.inf if self.can_be_nonzero else 0
        if not isinstance(found, int | float) or not 0 <= found <= most or found == math.inf:
            wanted = "a finite number >= 0" if self.can_be_nonzero else "0, as can_be_nonzero is False"
            raise ConfigError(f"kl={type(self).__name__}: coefficient gave {found!r}; wanted: {wanted}")
        return found

    def observe(self, kl_nats: float | None, *, tokens: int, rows: int) -> None:
        """Ends a step of `tokens` completion tokens in `rows` completions; `kl_nats` is not multiplied by beta.

        `kl_nats` None: no token counted in this step, so nothing was measured; the step counts all the same.
        Raises: ValueError for a negative or NaN divergence: it comes from a signed estimator such as k1, with which a
        controller would drive beta down.
        """
        if kl_nats is not None and not kl_nats >= 0:
            raise ValueError(
                f"kl_nats = {kl_nats}: a coefficient must see an estimator that is never negative, "
                "such as the exact divergence or k3"
            )


# ---- known in advance ----------------------------------------------------------------------------------------------


class NoKL(Coefficient):
    """beta = 0: no reference, no penalty. Source: Yu et al. 2025 (arXiv 2503.14476), section 2.3."""

    can_be_nonzero = False

    def coefficient(self) -> float:
        return 0.0


class FixedKL(Coefficient):
    """beta = `coef`. Source: Shao et al. 2024 (arXiv 2402.03300), eq. 3."""

    def __init__(self, *, coef: Annotated[float, Ge(0)]) -> None:
        super().__init__()
        self.coef = coef
        self.can_be_nonzero = coef > 0

    def coefficient(self) -> float:
        return self.coef


class WarmupKL(Coefficient):
    """beta after n observed steps or tokens: coef min(1, n / warmup) if linear; 0 while n < warmup if switch.

    `warmup` and n are counted in `unit`; tokens are completion tokens.
    """

    done: Tensor  # n, ()

    def __init__(
        self,
        *,
        coef: Annotated[float, Ge(0)],
        warmup: Annotated[int, Ge(0)],
        unit: Literal["steps", "tokens"],
        shape: Literal["switch", "linear"],
    ) -> None:
        super().__init__()
        self.coef = coef
        self.warmup = warmup
        self.unit = unit
        self.shape = shape
        self.can_be_nonzero = coef > 0
        self.register_buffer("done", torch.zeros((), dtype=torch.int64))

    def coefficient(self) -> float:
        """beta of the coming step; the first is 0 unless warmup is 0."""
        done = int(self.done)
        if done >= self.warmup:
            return self.coef
        return self.coef * done / self.warmup if self.shape == "linear" else 0.0

    def observe(self, kl_nats: float | None, *, tokens: int, rows: int) -> None:
        """Counts a step, or its tokens."""
        super().observe(kl_nats, tokens=tokens, rows=rows)
        self.done += {"steps": 1, "tokens": tokens}[self.unit]


class AnnealKL(Coefficient):
    """beta after s observed steps: start_coef + (end_coef - start_coef) min(1, s / anneal_steps)."""

    steps: Tensor  # s, ()

    def __init__(
        self,
        *,
        start_coef: Annotated[float, Ge(0)],
        end_coef: Annotated[float, Ge(0)],
        anneal_steps: Annotated[int, Ge(1)],
    ) -> None:
        super().__init__()
        self.start_coef = start_coef
        self.end_coef = end_coef
        self.anneal_steps = anneal_steps
        self.can_be_nonzero = max(start_coef, end_coef) > 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def coefficient(self) -> float:
        """beta of the coming step, between start_coef and end_coef."""
        share = min(1.0, int(self.steps) / self.anneal_steps)
        return (1 - share) * self.start_coef + share * self.end_coef

    def observe(self, kl_nats: float | None, *, tokens: int, rows: int) -> None:
        """Counts a step."""
        super().observe(kl_nats, tokens=tokens, rows=rows)
        self.steps += 1


# ---- steered by the divergence -------------------------------------------------------------------------------------


class _Controlled(Coefficient):
    """beta starts at `coef` and is multiplied by `factor` after each step, within [min_coef, max_coef].

    min_coef is above 0 because a product would never leave 0 again.
    Raises: ConfigError when `coef` is outside the bounds.
    """

    can_be_nonzero = True
    beta: Tensor  # of the coming step, (), float64

    def __init__(
        self,
        *,
        coef: Annotated[float, Gt(0)],
        target_nats: Annotated[float, Gt(0)],
        min_coef: Annotated[float, Gt(0)],
        max_coef: Annotated[float, Gt(0)],
    ) -> None:
        super().__init__()
        if not min_coef <= coef <= max_coef:
            raise ConfigError(f"kl.coef={coef}: allowed: from kl.min_coef={min_coef} to kl.max_coef={max_coef}")
        self.target_nats = target_nats
        self.min_coef = min_coef
        self.max_coef = max_coef
        self.register_buffer("beta", torch.tensor(coef, dtype=torch.float64))

    def coefficient(self) -> float:
        """beta of the coming step, in [min_coef, max_coef]."""
        return float(self.beta)

    def observe(self, kl_nats: float | None, *, tokens: int, rows: int) -> None:
        """beta <- beta factor, clamped to the bounds; unchanged if nothing was measured."""
        super().observe(kl_nats, tokens=tokens, rows=rows)
        if kl_nats is None:
            return
        self.beta.mul_(self.factor(kl_nats, rows)).clamp_(self.min_coef, self.max_coef)

    def factor(self, kl_nats: float, rows: int) -> float:
        """What beta is multiplied by after a step of `rows` completions; 1 where `kl_nats` is the target."""
        raise NotImplementedError


class AdaptiveKL(_Controlled):
    """beta <- beta up while KL > band_high target; beta <- beta down while KL < band_low target; unchanged between.

    The PPO rule with a configurable band and factors.
    """

    def __init__(
        self,
        *,
        coef: Annotated[float, Gt(0)],
        target_nats: Annotated[float, Gt(0)],
        band_low: Annotated[float, Ge(0), Le(1)],
        band_high: Annotated[float, Ge(1)],
        up: Annotated[float, Gt(1)],
        down: Annotated[float, Gt(0), Lt(1)],
        min_coef: Annotated[float, Gt(0)],
        max_coef: Annotated[float, Gt(0)],
    ) -> None:
        super().__init__(coef=coef, target_nats=target_nats, min_coef=min_coef, max_coef=max_coef)
        self.band_low = band_low
        self.band_high = band_high
        self.up = up
        self.down = down

    def factor(self, kl_nats: float, rows: int) -> float:
        if kl_nats > self.band_high * self.target_nats:
            return self.up
        return self.down if kl_nats < self.band_low * self.target_nats else 1.0


class PpoRuleKL(_Controlled):
    """beta <- 2 beta while KL > 1.5 target; beta <- beta / 2 while KL < target / 1.5; unchanged between.

    Source: Schulman et al. 2017 (arXiv 1707.06347), section 4; the bounds are an addition.
    """

    def factor(self, kl_nats: float, rows: int) -> float:
        if kl_nats > 1.5 * self.target_nats:
            return 2.0
        return 0.5 if kl_nats < self.target_nats / 1.5 else 1.0


class ProportionalKL(_Controlled):
    """beta <- beta (1 + e n / horizon), e = clip(KL / target - 1, -error_clip, error_clip), n = the step's rows.

    n / horizon is the paper's K_beta, 0.1 there, with error_clip 0.2; the paper's KL is per completion, here it is per
    token. Source: Ziegler et al. 2019 (arXiv 1909.08593), section 2.2; the bounds are an addition.
    """

    def __init__(
        self,
        *,
        coef: Annotated[float, Gt(0)],
        target_nats: Annotated[float, Gt(0)],
        error_clip: Annotated[float, Gt(0)],
        horizon: Annotated[int, Ge(1)],
        min_coef: Annotated[float, Gt(0)],
        max_coef: Annotated[float, Gt(0)],
    ) -> None:
        super().__init__(coef=coef, target_nats=target_nats, min_coef=min_coef, max_coef=max_coef)
        self.error_clip = error_clip
        self.horizon = horizon

    def factor(self, kl_nats: float, rows: int) -> float:
        """1 + e n / horizon, at least 1 - error_clip n / horizon; if it is below 0, beta falls to min_coef."""
        error = min(max(kl_nats / self.target_nats - 1, -self.error_clip), self.error_clip)
        return 1 + error * rows / self.horizon
