"""Watches a run's metrics: prints one plain line when one of them leaves its healthy range."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from rookexp.track import Tracker

Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, slots=True)
class Symptom:
    """A metric that is a share and should stay small."""

    metric: str  # its name
    what: str  # a share of what
    advice: str  # what it usually means, and the one thing to try
    steps: int = 1  # how many of its latest values the compared median is over


ROUNDED = 1e-6  # a share this little above its limit is at it: metrics are fp32 numbers
SYMPTOMS = {
    "core_wait": Symptom(
        "core_wait",
        "of the time in which it could compute it waits for a core that other work has",
        "its threads wait for each other, too, which can take many times as long: try hardware.threads=1",
        steps=3,
    ),
    "dead_groups": Symptom(
        "frac_reward_zero_std",
        "of the groups have equal rewards throughout",
        "they teach nothing, as the prompts are too easy or too hard for this policy: try grpo.dead_groups=resampled, "
        "or a larger grpo.group_size",
    ),
    "clip_frac": Symptom(
        "clip_frac/any",
        "of the tokens are clipped in the only update of a batch, whose ratios are 1",
        "sampler and training disagree on temperature, tokens or positions: try python -m rookexp.doctor",
    ),
    "truncated": Symptom(
        "completions/truncated_frac",
        "of the completions were cut off before an end of text",
        "the reward judges unfinished answers: try a larger grpo.max_new_tokens",
    ),
    "identical": Symptom(
        "completions/identical_frac",
        "of the completions repeat another one of their group",
        "the policy hardly explores, a group is worth little more than one completion: try a higher grpo.temperature",
    ),
    "kl_gradient": Symptom(
        "grad_share/kl",
        "of the gradient comes from the divergence",
        "the reference holds the policy where it is, whatever the reward says: try a smaller kl.coef",
    ),
    "entropy_gradient": Symptom(
        "grad_share/entropy",
        "of the gradient comes from the entropy bonus",
        "the policy is pushed towards noise, whatever the reward says: try a smaller grpo.entropy_coef",
    ),
}


@dataclass(slots=True)
class Episodes:
    """Counts the episodes in which something was wrong."""

    calm_looks: int  # consecutive looks without a finding that end an episode
    count: int = 0  # episodes so far
    left: int = 0  # such looks that the current episode still needs to end; 0: there is none

    def begins(self, wrong: bool) -> bool:
        """Records one more look; True if an episode begins with it."""
        anew = wrong and not self.left
        self.count += anew
        self.left = self.calm_looks if wrong else max(0, self.left - 1)
        return anew


class HealthTracker(Tracker):
    """Warns on standard error when a metric is beyond its limit; the summary counts it as `health: {name: episodes}`.

    An episode begins with the first step beyond the limit, which prints one line, and ends after `calm_steps`
    consecutive steps within it; steps that do not log the metric do not count. In the summary a name has a number, 0 or
    more, once its metric was seen.

    The entropy's limits are `entropy_share` of its first value and `entropy_rise_nats` above it. That value is kept for
    each set of tasks that a step has, because A answers have a hundredth of the entropy of P answers from the start.
    The KL share is the median of its last `kl_share_steps` values, the wait for a core that of its last 3. `clip_frac`
    is checked only if a batch has one update: its ratios are 1, so the limit is always 0; `sampler_nats` limits the
    error that makes them differ from 1, and detects it in bf16, too. `kl_rise_nats` limits how far KL(policy ||
    reference) rises from one step to the next, if both have the same tasks. Of the gradient only the shares of
    divergence and entropy are checked.

    Nothing is saved: a resumed run begins with no episode and no count, and its first entropy is that of its own
    first step. `trackers` receive the summary, also those that join the sequence later.
    """

    def __init__(
        self,
        *,
        dead_groups: Share,
        entropy_share: Share,
        entropy_rise_nats: Annotated[float, Ge(0)],
        kl_share: Share,
        kl_share_steps: Annotated[int, Gt(0)],
        kl_rise_nats: Annotated[float, Ge(0)],
        sampler_nats: Annotated[float, Ge(0)],
        truncated: Share,
        identical: Share,
        grad_share: Share,
        core_wait: Share,
        calm_steps: Annotated[int, Gt(0)],
        trackers: Sequence[Tracker],
    ) -> None:
        self.entropy_share = entropy_share
        self.entropy_rise_nats = entropy_rise_nats
        self.kl_share = kl_share
        self.kl_rise_nats = kl_rise_nats
        self.sampler_nats = sampler_nats
        self.calm_steps = calm_steps
        self.trackers = trackers
        self._limits = {"dead_groups": dead_groups, "truncated": truncated, "identical": identical}
        self._limits |= {"kl_gradient": grad_share, "entropy_gradient": grad_share}
        self._limits["core_wait"] = core_wait
        self._values: dict[str, deque[float]] = {}  # the latest, by name in SYMPTOMS
        self._first_entropies: dict[frozenset[str], float] = {}  # by the tasks of the step, as its metrics name them
        self._last_kl: dict[frozenset[str], float] = {}  # of the last step, by its tasks
        self._kl_shares: deque[float] = deque(maxlen=kl_share_steps)
        self._episodes: dict[str, Episodes] = {}
        self._told: dict[str, int] = {}

    def start(self, config: Mapping[str, Any]) -> None:
        grpo = config.get("grpo", {})
        if grpo.get("inner_epochs") == grpo.get("minibatches") == 1:
            self._limits["clip_frac"] = 0.0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, wrong, line in self._looks({k: v for k, v in metrics.items() if math.isfinite(v)}):
            if self._episodes.setdefault(name, Episodes(self.calm_steps)).begins(wrong):
                print(f"health: step {step}: {line}", file=sys.stderr, flush=True)
        counts = {name: episodes.count for name, episodes in self._episodes.items()}
        if counts != self._told:
            self._told = counts
            for tracker in self.trackers:
                tracker.summary({"health": counts})

    def _looks(self, seen: Mapping[str, float]) -> Iterator[tuple[str, bool, str]]:
        """For each check that the step's finite metrics allow: its name, whether it fails, and the line about it."""
        for name, limit in self._limits.items():
            symptom = SYMPTOMS[name]
            if (value := seen.get(symptom.metric)) is not None:
                values = self._values.setdefault(name, deque(maxlen=symptom.steps))
                values.append(value)
                share = median(values)
                line = f"{_percent(share)} {symptom.what} (limit {_percent(limit)}); {symptom.advice}"
                yield name, len(values) == symptom.steps and share > limit + ROUNDED, line
        tasks = frozenset(name for name in seen if name.startswith("reward/mean_"))
        if (entropy := seen.get("entropy")) is not None:
            first = self._first_entropies.setdefault(tasks, entropy)
            limit = self.entropy_share * first
            line = (
                f"entropy {entropy:.3g} nats a token, {first:.3g} at first (limit {limit:.3g}); "
                "the policy collapses onto one answer to each prompt: try a larger grpo.entropy_coef"
            )
            yield "entropy", entropy < limit, line
            highest = first + self.entropy_rise_nats
            line = (
                f"entropy {entropy:.3g} nats a token, {first:.3g} at first (limit {highest:.3g}); "
                "the policy dissolves into noise: try a smaller optim.lr, or a smaller grpo.entropy_coef"
            )
            yield "entropy_rise", entropy > highest, line
        if (kl := seen.get("kl/forward")) is not None:
            rise, self._last_kl = kl - self._last_kl.get(tasks, kl), {tasks: kl}
            line = (
                f"the KL to the reference rose by {rise:.3g} nats a token in one step (limit {self.kl_rise_nats:g}); "
                "the step was too long and undoes what the model knew: try a smaller optim.lr"
            )
            yield "kl_rise", rise > self.kl_rise_nats, line
        if (error := seen.get("sampler/abs_logprob_error")) is not None:
            line = (
                f"sampler and training differ by {error:.3g} nats a token (limit {self.sampler_nats:g}); "
                "they disagree on temperature, tokens or positions: try python -m rookexp.doctor"
            )
            yield "sampler", error > self.sampler_nats, line
        if (kl_share := seen.get("kl_share")) is not None:
            self._kl_shares.append(kl_share)
            steps, middle = len(self._kl_shares), median(self._kl_shares)
            line = (
                f"KL share {middle:.2f}, median of the last {steps} steps (limit {self.kl_share:g}); "
                "the penalty outweighs the advantages and the policy stays near the reference: try a smaller kl.coef"
            )
            yield "kl_share", steps == self._kl_shares.maxlen and middle > self.kl_share, line


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
