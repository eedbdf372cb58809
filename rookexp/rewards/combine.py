"""Several rewards as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from rookexp.errors import ConfigError, PartError
from rookexp.types import LongReward, Prompt, Reward, Scores, all_equal, scores_of

TRACE = 1e-5  # standard deviations: what rounding can leave of a sum of normalised rewards that should be 0


class MadeOf:
    """Rewards by name; each gets all prompts unless a subclass overrides `asked`. Subclasses implement score().

    Raises: ConfigError for a reward, such as a user's own, that has no method `score`.
    """

    def __init__(self, rewards: Mapping[str, Reward]) -> None:
        for name, reward in rewards.items():
            if not callable(getattr(reward, "score", None)):
                raise ConfigError(f"reward: {name} is a {type(reward).__name__}, without method score; see docs/own.md")
        self.rewards = rewards

    def asked(self, name: str, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts that the reward `name` has to score."""
        return list(prompts)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Begins a step: passes its prompts to each reward that has `prepare`."""
        for name, reward in self.rewards.items():
            if isinstance(reward, LongReward):
                reward.prepare(self.asked(name, prompts))

    def metrics(self) -> dict[str, float]:
        """The rewards' own metrics since `prepare`, with the reward's name in front where several rewards have some."""
        found = {name: reward.metrics() for name, reward in self.rewards.items() if isinstance(reward, LongReward)}
        several = sum(map(bool, found.values())) > 1
        return {
            f"{name}/{metric}" if several else metric: value
            for name, metrics in found.items()
            for metric, value in metrics.items()
        }

    def gold(self, prompt: Prompt) -> str | None:
        """The gold completion of the first reward that has one for the prompt; None: the task provides it."""
        for name, reward in self.rewards.items():
            own = getattr(reward, "gold", None)
            found: str | None = own(prompt) if own is not None and self.asked(name, [prompt]) else None
            if found is not None:
                return found
        return None


class Combined(MadeOf):
    """sum_k w_k r_k of several rewards r_k, as they are or each normalised within the group of its prompt.

    `sum_then_normalise`: as they are; normalisation is left to the baseline, as with a single reward.
    `normalise_then_sum`: r_k is replaced by (r_k - mean) / sd of its group (sd over G - 1; 0 where all are equal), so
    that a reward that varies little counts as much as one that varies a lot. A baseline that then divides by the sd
    of the whole batch makes it GDPO; one that divides by the group's sd normalises every group's sum once more.
    Source: GDPO, Liu et al. 2026 (arXiv 2601.05242).
    """

    def __init__(
        self,
        *,
        rewards: Mapping[str, Reward],
        weights: Mapping[str, Annotated[float, Ge(0)]],
        normalise: Literal["sum_then_normalise", "normalise_then_sum"],
    ) -> None:
        for name in rewards:
            if name not in weights:
                raise PartError(f"weights.{name}: missing; allowed: a number >= 0 for each of {', '.join(rewards)}")
        for name, weight in weights.items():
            if name not in rewards:
                raise PartError(f"weights.{name}={weight}: no such reward; allowed: {', '.join(rewards) or 'none'}")
        if not any(weights.values()):
            raise PartError(f"weights={dict(weights)}: allowed: at least one > 0")
        super().__init__(rewards)
        self.weights = weights
        self.normalise = normalise

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Rewards (N,) of N = P x G completions, row p*G+g for prompt p.

        A reward of NaN does not apply to the row. It counts neither as 0 nor in its group's mean and sd: the other
        rewards make up for it, see `weighted`. A row is NaN where no reward with a weight applies, and whoever
        compares completions has to leave it out.
        With one completion per prompt, as in a greedy evaluation, there is no group: both modes then sum the rewards as
        they are; unlike normalised rewards, these sums can be compared from step to step.
        Parts (N,): `<name>`, each reward's own values, never normalised, and its parts as `<name>/<part>`.
        """
        scores = {name: scores_of(reward, prompts, texts) for name, reward in self.rewards.items()}
        values = torch.stack([each.rewards for each in scores.values()])  # (K, N)
        group_size = len(texts) // len(prompts)
        weights = values.new_tensor([self.weights[name] for name in scores])
        plain = weighted(torch.stack([each.comparable for each in scores.values()]), weights)
        parts = {name: each.rewards for name, each in scores.items()}
        for name, each in scores.items():
            parts |= {f"{name}/{part}": value for part, value in each.parts.items()}
        normalise = self.normalise == "normalise_then_sum" and group_size > 1
        if normalise:
            values = normalised(values.view(len(scores), -1, group_size)).flatten(1)
        rewards = weighted(values, weights)
        if normalise:  # a group's mean is 0, so a group of equal sums should be exactly 0
            rewards = rewards.masked_fill(rewards.abs() <= TRACE * weights.sum(), 0)
        inside = any(each.unnormalised is not None for each in scores.values())
        return Scores(rewards, parts, unnormalised=plain if normalise or inside else None)


class Clipped(MadeOf):
    """Another reward clamped to [low, high]; its parts are unchanged."""

    def __init__(self, *, reward: Reward, low: float, high: float) -> None:
        if not low < high:
            raise PartError(f"high={high}: allowed: above low={low}")
        super().__init__({"reward": reward})
        self.reward = reward
        self.low = low
        self.high = high

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Rewards (N,) of N = P x G completions, row p*G+g for prompt p; NaN stays. Adds the part `unclipped`."""
        scores = scores_of(self.reward, prompts, texts)
        before = None if scores.unnormalised is None else scores.unnormalised.clamp(self.low, self.high)
        parts = {**scores.parts, "unclipped": scores.rewards}
        return Scores(scores.rewards.clamp(self.low, self.high), parts, unnormalised=before)


def weighted(values: Float[Tensor, "k n"], weights: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    """sum_k w_k v_k over the values that are not NaN, times (sum of all weights) / (sum of these values' weights).

    That is the sum of all weights times the weighted mean of the values that are known, and the plain weighted sum
    where all are; NaN where no value with a weight is.
    """
    known = ~values.isnan()
    present = (weights[:, None] * known).sum(0)  # (N,)
    absent = (weights[:, None] * ~known).sum(0)
    return (weights[:, None] * torch.where(known, values, 0.0)).sum(0) * (1 + absent / present)


def normalised(values: Float[Tensor, "*k g"]) -> Float[Tensor, "*k g"]:
    """(v - mean) / sd within the last axis, sd over G - 1, of the values that are not NaN; NaN stays.

    Exactly 0 where they are all equal up to rounding, which would be blown up, or where there is only one.
    """
    known = ~values.isnan()
    filled = torch.where(known, values, values.nanmedian(-1, keepdim=True).values)
    equal = all_equal(filled, -1)[..., None]
    centred = values - values.nanmean(-1, keepdim=True)
    sd = (centred.square().nansum(-1, keepdim=True) / (known.sum(-1, keepdim=True) - 1)).sqrt()
    return torch.where(equal & known, 0.0, centred / sd)
