"""Gold answers: completions that earn the most, from a reward or a task that knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rookexp.errors import ConfigError
from rookexp.types import Prompt, Reward, described


@runtime_checkable
class Answers(Protocol):
    """A task, or a reward, that knows right answers."""

    def gold(self, prompt: Prompt) -> str | None:
        """A completion of the prompt that earns the highest possible reward; None where only another part knows one."""


def golds_of(prompts: Sequence[Prompt], reward: Reward, task: Any) -> tuple[tuple[Prompt, str], ...]:
    """Each prompt with the reward's gold answer, if it has one, else the task's; prompts with neither are left out.

    Raises: ConfigError for an answer that is no text, as user code may give.
    """
    knowing = [part for part in (reward, task) if isinstance(part, Answers)]

    def gold_of(prompt: Prompt) -> str | None:
        for part in knowing:
            gold: Any = part.gold(prompt)
            if isinstance(gold, str):
                return gold
            if gold is not None:
                raise ConfigError(f"{type(part).__name__}.gold gave {described(gold)}; wanted: a text, or None")
        return None

    answers = map(gold_of, prompts)
    return tuple((prompt, answer) for prompt, answer in zip(prompts, answers, strict=True) if answer is not None)
