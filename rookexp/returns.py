"""The base class of baselines, those whose advantages differ from token to token, and the loss of value heads.

Rows are completions; a formula uses only the completion tokens in `mask` and is 0 elsewhere. A value is the head's
prediction, before a token is sampled, of the return of the rest of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rookexp import ops
from rookexp.errors import ConfigError
from rookexp.types import Stages, described

ROUNDING = 1e-5  # of the largest number: returns that differ by less count as equal, as each is a sum over many tokens
VAR_EPS = 1e-8  # added to the variance that `whiten` divides by, as TRL and verl do


@dataclass(frozen=True, slots=True)
class TokenRewards:
    """The rewards of a step's completions, token by token, and the value head's predictions."""

    rewards: Float[Tensor, "n t"]  # reward of each token, else 0; an outcome reward: see `at_last_token`
    mask: Bool[Tensor, "n t"]  # True at completion tokens
    group_size: int  # G; rows are prompt-major: row p*G+g
    tasks: tuple[str, ...]  # the task of each of the P prompts: its name in the configuration, or else the kind
    values: Float[Tensor, "n t"] | None  # the value head's prediction before each completion token; None: no head
    truncated: Bool[Tensor, " n"]  # True where no end-of-text was sampled
    final_values: Float[Tensor, " n"] | None = None  # its prediction after each row's last token; None: not requested
    stage: Int[Tensor, "n t"] | None = None  # which of its row's stages each token belongs to; None: there is one


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages and value targets at completion tokens; 0 elsewhere. No gradient flows through either."""

    advantages: Float[Tensor, "n t"]  # positive: better than expected
    returns: Float[Tensor, "n t"] | None  # what the value head should have predicted; None: there is no head


class Baseline(nn.Module):
    """Turns rewards into advantages; by default outcome-level: all tokens of a row share one advantage.

    An outcome-level baseline implements `forward`, a token-level one `advantages`. State is in buffers.
    """

    needs_values = False  # True: reads `TokenRewards.values`
    needs_groups = True  # True: a group of one completion is an error
    whole_rows = True  # False: the tokens of a row may have different advantages
    bootstraps = False  # True: reads `TokenRewards.final_values`
    by_stage = False  # True: reads `TokenRewards.stage`, and a reward is paid where it is earned
    # Where `needs_values`, how the head is trained: see Gae.
    value_lr: float
    value_coef: float
    value_clip: float | None
    detach: bool

    @torch.no_grad()
    def advantages(self, given: TokenRewards) -> Advantages:
        """The advantage of each row's summed rewards, on every completion token of the row."""
        rewards = given.rewards.sum(1).view(len(given.tasks), given.group_size)  # (P, G)
        found: Any = self(rewards, given.tasks)
        if not isinstance(found, Tensor) or found.shape != rewards.shape:
            raise ConfigError(
                f"baseline={type(self).__name__}: forward gave {described(found)}; wanted: a tensor of shape "
                f"{list(rewards.shape)}, prompts x completions"
            )
        return Advantages(torch.where(given.mask, found.reshape(-1, 1), 0.0), None)

    def forward(self, rewards: Float[Tensor, "p g"], tasks: Sequence[str]) -> Float[Tensor, "p g"]:
        """The advantage of each completion of P prompts, whose tasks are `tasks`."""
        raise NotImplementedError


class Gae(Baseline):
    """A_t = sum_k (gamma lam)^k delta_{t+k}, delta_t = r_t + gamma V_{t+1} - V_t, from a value head; returns A + V.

    `whiten` standardises A over the step's completion tokens; the returns stay as they are. `bootstrap` sets the value
    after a truncated row: `zero` as after a finished row, since its outcome reward is for the text as it was cut (as in
    TRL, verl, OpenRLHF); `value` what the head predicts, which counts an outcome twice and is for rows whose rewards
    would have continued. `value_lr`, `value_coef`, `value_clip` and `detach` are for the code that trains the head: see
    `value_loss`. Source: see `gae`.
    """

    needs_values = True
    needs_groups = False
    whole_rows = False

    def __init__(
        self,
        *,
        gamma: Annotated[float, Gt(0), Le(1)],
        lam: Annotated[float, Ge(0), Le(1)],
        whiten: bool,
        bootstrap: Literal["zero", "value"],
        value_lr: Annotated[float, Gt(0)],
        value_coef: Annotated[float, Gt(0)],
        value_clip: Annotated[float, Gt(0)] | None,
        detach: bool,
    ) -> None:
        super().__init__()
        self.gamma = gamma
        self.lam = lam
        self.whiten = whiten
        self.bootstraps = bootstrap == "value"
        self.value_lr = value_lr
        self.value_coef = value_coef
        self.value_clip = value_clip
        self.detach = detach

    @torch.no_grad()
    def advantages(self, given: TokenRewards) -> Advantages:
        """Advantages in the rewards' unit, or whitened, and the value head's targets in the rewards' unit.

        Raises: ValueError if a prediction that is needed is None.
        """
        values, final_values = given.values, given.final_values
        bootstrap = torch.zeros_like(given.rewards[:, 0])  # (N,)
        if values is None or (self.bootstraps and final_values is None):
            raise ValueError("Gae needs the value head's predictions: values, and final_values with bootstrap=value")
        if self.bootstraps and final_values is not None:
            bootstrap = torch.where(given.truncated, final_values, bootstrap)
        advantages = gae(given.rewards, values, given.mask, self.gamma, self.lam, bootstrap)
        targets = ops.zero_outside(advantages + values, given.mask)
        return Advantages(whiten(advantages, given.mask) if self.whiten else advantages, targets)


class ReinforcePP(Baseline):
    """A = G_t whitened over the step's completion tokens, G_t = r_t + gamma G_{t+1} the rewards to go; no values.

    In the paper a token's reward is -beta k1, plus the outcome on the last: the divergence belongs in the reward.
    Source: Hu 2025 (arXiv 2501.03262).
    """

    needs_groups = False
    whole_rows = False

    def __init__(self, *, gamma: Annotated[float, Gt(0), Le(1)]) -> None:
        super().__init__()
        self.gamma = gamma

    @torch.no_grad()
    def advantages(self, given: TokenRewards) -> Advantages:
        """Advantages in standard deviations of the step's tokens; exactly 0 when all rewards to go are equal."""
        to_go = reward_to_go(given.rewards, given.mask, self.gamma)
        return Advantages(whiten(to_go, given.mask), None)


def at_last_token(rewards: Float[Tensor, " n"], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """Each row's outcome reward on its last completion token, 0 elsewhere.

    In a row without completion tokens it is in column 0: it still counts in its group, but for no token.
    """
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).amax(1, keepdim=True)  # (N, 1)
    return rewards.new_zeros(mask.shape).scatter(1, last, rewards[:, None])


def at_stages(stages: Stages, stage: Int[Tensor, "n t"], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """Each stage's reward on the stage's last completion token; if it has no token, on the row's last one."""
    columns = torch.arange(mask.shape[1], device=mask.device)
    paid = torch.zeros(mask.shape, device=mask.device)
    for k, rewards in enumerate(stages.rewards.to(paid).unbind(1)):
        own = mask & (stage == k)
        there = torch.where(own.any(1, keepdim=True), own, mask)
        paid.scatter_add_(1, (there * columns).amax(1, keepdim=True), rewards[:, None])
    return paid


@torch.no_grad()
def gae(
    rewards: Float[Tensor, "n t"],
    values: Float[Tensor, "n t"],
    mask: Bool[Tensor, "n t"],
    gamma: float,
    lam: float,
    bootstrap: Float[Tensor, " n"],
) -> Float[Tensor, "n t"]:
    """A_t = delta_t + gamma lam A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t; A + V is the value head's target.

    After a row's last completion token V is `bootstrap`, 0 where the row has ended, and A is 0. lam 0 leaves delta,
    lam 1 the discounted rewards to go less V. Detached. Source: Schulman et al. 2016 (arXiv 1506.02438), eq. 16.
    """
    advantages = torch.zeros_like(rewards)
    advantage, value = torch.zeros_like(bootstrap), bootstrap  # (N,) those of the next completion token
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * value - values[:, t]
        advantage = torch.where(mask[:, t], delta + gamma * lam * advantage, advantage)
        value = torch.where(mask[:, t], values[:, t], value)
        advantages[:, t] = advantage
    return ops.zero_outside(advantages, mask)


def reward_to_go(rewards: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], gamma: float) -> Float[Tensor, "n t"]:
    """G_t = r_t + gamma G_{t+1}, the discounted rewards from each token to its row's end; detached."""
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0, torch.zeros_like(rewards[:, 0]))


@torch.no_grad()
def whiten(x: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """(x - mean) / sqrt(var + 1e-8) over all M completion tokens of the batch; var divides the squares by M - 1.

    Detached; exactly 0 if these x are all equal, so also if there is one or none. As in TRL and verl; OpenRLHF
    divides the squares by M. Source: Huang et al. 2024 (arXiv 2403.17031).
    """
    tokens = x[mask]
    if _all_equal(tokens):
        return torch.zeros_like(x)
    return ops.zero_outside((x - tokens.mean()) / (tokens.var() + VAR_EPS).sqrt(), mask)


def value_loss(
    values: Float[Tensor, "*n"], old_values: Float[Tensor, "*n"], returns: Float[Tensor, "*n"], clip: float | None
) -> Float[Tensor, "*n"]:
    """max((V - R)^2, (V' - R)^2) / 2 at each token, V' = V held within `clip` of the old V; clip None: (V - R)^2 / 2.

    Its gradient reaches `values` alone; there is none where V has come nearer to R than V'.
    Source: Schulman et al. 2017 (arXiv 1707.06347), eq. 9; the clip: Engstrom et al. 2020 (arXiv 2005.12729).
    """
    old, targets = old_values.detach(), returns.detach()
    squares = (values - targets).square()
    if clip is not None:
        held = old + (values - old).clamp(-clip, clip)
        squares = torch.maximum(squares, (held - targets).square())
    return squares / 2


@torch.no_grad()
def explained_variance(
    values: Float[Tensor, "n t"], returns: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"]
) -> Float[Tensor, ""]:
    """1 - Var(R - V) / Var(R) over completion tokens, <= 1: 1 if V is R up to a constant, 0 if V is a constant.

    0 when the returns are all equal, up to the rounding of R = A + V, where there is nothing to explain.
    Source: Huang et al. 2022, CleanRL.
    """
    tokens, known = returns[mask], values[mask]
    if _all_equal(tokens) or tokens.amax() - tokens.amin() <= ROUNDING * torch.cat((tokens, known)).abs().amax():
        return tokens.new_zeros(())
    return 1 - (tokens - known).var() / tokens.var()


def _all_equal(x: Tensor) -> bool:
    """Whether a flat tensor's elements are all equal; True of an empty one."""
    return len(x) == 0 or bool(x.amax() == x.amin())


def no_stages(baseline: Baseline, reward: object) -> ConfigError:
    """The error for a baseline that compares stages together with a reward that has none."""
    return ConfigError(
        f"baseline={type(baseline).__name__} with reward={type(reward).__name__}: it compares stages, and the reward "
        "does not say where in a completion it is earned; choose reward=policy, engine or rookworld, or "
        "baseline=group_mean"
    )
