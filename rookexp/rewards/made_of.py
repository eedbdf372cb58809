"""The base class of rewards made of other rewards: what it passes on to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rookexp.errors import ConfigError
from rookexp.types import LongReward, Prompt, Reward


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
