"""RLVR mini's reward, the seed's: a weighted mean of components in [0, 1], shaped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from annotated_types import Ge

from rookexp.chess_text import PolicyAnswer, Transition
from rookexp.errors import PartError
from rookexp.rewards.chess import Asked, PJudged
from rookexp.rewards.environment import AJudged, Given, similarity
from rookexp.rewards.judges import Judge
from rookexp.rewards.rows import Row
from rookexp.rewards.shapings import Shaping

Weight = Annotated[float, Ge(0)]
DIGITS = 9  # decimals to which a mean is rounded: float errors do not move it off a rung
VALUE_ERRORS, VALUE_GIVEN = ((0.01, 1.0), (0.1, 0.7), (0.3, 0.4)), 0.1  # (error below, worth); worth of other errors


class WeightedPolicy(PJudged):
    """The shaped mean of a P answer's form, best move, candidates and evaluations; without form the others are 0.

    `judge` scores the last three. Every Prompt's answer is an Annotation.
    """

    def __init__(
        self, *, format: Weight, best: Weight, candidates: Weight, evals: Weight, judge: Judge, shaping: Shaping
    ) -> None:
        self.weights = require_positive_weight(
            {"format": format, "best": best, "candidates": candidates, "evals": evals}
        )
        self.judge = judge
        self.shaping = shaping

    def worth(self, answer: PolicyAnswer, asked: Asked) -> Row:
        """`reward`, the mean `raw`, and `best`, `candidates`, `evals` as averaged in it; `format_valid` is the form."""
        content = dict.fromkeys(("best", "candidates", "evals"), 0.0)
        if answer.well_formed:
            content = {
                "best": self.judge.best(answer, asked),
                "candidates": self.judge.candidates(answer, asked),
                "evals": self.judge.evals(answer, asked),
            }
        return shaped_mean(self.weights, answer.well_formed, content, self.shaping)


class WeightedEnvironment(AJudged):
    """The shaped mean of an A answer's form, position, flags and reward value; without form the others are 0.

    Position: 1 - Levenshtein distance / length of the longer. Flags: half for each that is right. Value: 1, 0.7, 0.4
    or 0.1 for an error below 0.01, below 0.1, below 0.3 or larger. Every Prompt's answer is a Transition.
    """

    def __init__(self, *, format: Weight, fen: Weight, flags: Weight, value: Weight, shaping: Shaping) -> None:
        self.weights = require_positive_weight({"format": format, "fen": fen, "flags": flags, "value": value})
        self.shaping = shaping

    def worth(self, given: Given, truth: Transition) -> Row:
        """`reward`, the mean `raw`, and `fen`, `flags`, `value` as averaged in it; `state_valid` is the form."""
        content = dict.fromkeys(("fen", "flags", "value"), 0.0)
        if given.formed:
            error = value_error(given, truth)
            content = {
                "fen": similarity(given.answer.new_fen, truth.new_fen),
                "flags": flags_right(given, truth),
                "value": next((worth for below, worth in VALUE_ERRORS if error < below), VALUE_GIVEN),
            }
        return shaped_mean(self.weights, given.formed, content, self.shaping)


def shaped_mean(weights: Mapping[str, float], formed: bool, content: Mapping[str, float], shaping: Shaping) -> Row:
    """A row with the shaped `reward`, the weighted mean `raw`, and the components of `content` as averaged in it."""
    counted = {name: shaping.scaled(name, value) if formed else 0.0 for name, value in content.items()}
    values = {"format": float(formed), **counted}
    raw = round(
        math.fsum(weights[name] * value for name, value in values.items()) / math.fsum(weights.values()), DIGITS
    )
    return {"reward": shaping.shaped(raw, formed), "raw": raw, **counted}


def require_positive_weight(weights: Mapping[str, float]) -> Mapping[str, float]:
    """`weights`, unchanged.

    Raises: ConfigError where all are 0.
    """
    if not any(weights.values()):
        raise PartError(f"{', '.join(weights)}=0: allowed: at least one > 0")
    return weights


def flags_right(given: Given, truth: Transition) -> float:
    """Share of the two flags that are right."""
    return ((given.answer.terminated == truth.terminated) + (given.answer.truncated == truth.truncated)) / 2


def value_error(given: Given, truth: Transition) -> float:
    """The absolute error of the reward that the answer gives; infinite where it gives none."""
    return math.inf if given.answer.reward is None else abs(given.answer.reward - truth.reward)
