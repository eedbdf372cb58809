"""What a reward that is made of others passes on to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rookexp.errors import ConfigError
from rookexp.types import LongReward, Prompt, Reward


class MadeOf:
    """Rewards by name, each asked all prompts unless `asked` says otherwise; score() is for the heirs to say.

    Raises: ConfigError for one, of a user's own, that cannot score.
    """

    def __init__(self, rewards: Mapping[str, Reward]) -> None:
        for name, reward in rewards.items():
            if not callable(getattr(reward, "score", None)):
                raise ConfigError(f"reward: {name} is a {type(reward).__name__}, without method score; see docs/own.md")
        self.rewards = rewards

    def asked(self, name: str, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts that the reward of this name is asked."""
        return list(prompts)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Begins a step in the rewards that can."""
        for name, reward in self.rewards.items():
            if isinstance(reward, LongReward):
                reward.prepare(self.asked(name, prompts))

    def metrics(self) -> dict[str, float]:
        """What the rewards' work since `prepare` took; of several, each under its own name."""
        found = {name: reward.metrics() for name, reward in self.rewards.items() if isinstance(reward, LongReward)}
        several = sum(map(bool, found.values())) > 1
        return {
            f"{name}/{metric}" if several else metric: value
            for name, metrics in found.items()
            for metric, value in metrics.items()
        }

    def gold(self, prompt: Prompt) -> str | None:
        """The gold completion of the first reward that has its own; None: the task knows one."""
        for name, reward in self.rewards.items():
            own = getattr(reward, "gold", None)
            found: str | None = own(prompt) if own is not None and self.asked(name, [prompt]) else None
            if found is not None:
                return found
        return None
