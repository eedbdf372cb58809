"""From the weighted mean of an answer's components, in [0, 1], to a reward in [-0.3, 1]."""

from __future__ import annotations

import math
from typing import Annotated, Protocol

from annotated_types import Ge, Gt, Le, Lt

LOWEST = -0.3
FORMED_BONUS = 0.1  # for a well-formed answer that would earn less than 0
RUNGS = ((0.95, 1.0), (0.8, 0.8), (0.6, 0.6), (0.4, 0.4), (0.2, 0.2))  # (least raw mean, reward), highest first


class Shaping(Protocol):
    """How components become a mean, and a mean a reward."""

    def scaled(self, component: str, value: float) -> float:
        """The value in [0, 1] with which a component in [0, 1] enters the mean."""

    def shaped(self, raw: float, formed: bool) -> float:
        """The reward of an answer with the mean `raw`; `formed`: whether it is well formed."""


class Scaling(Protocol):
    """An increasing map of [0, 1] into itself."""

    def __call__(self, value: float) -> float:
        """The image of `value`."""


# ---- shapings -----------------------------------------------------------------------------------------------------


class Linear:
    """-0.3 + 1.3 raw, and 0.1 more where that is below 0 and the answer well formed."""

    def scaled(self, component: str, value: float) -> float:
        """The component as it is."""
        return value

    def shaped(self, raw: float, formed: bool) -> float:
        """In [-0.3, 1]."""
        return with_bonus(LOWEST + (1.0 - LOWEST) * raw, formed)


class Graduated(Linear):
    """Five rungs: 0.2, 0.4, 0.6, 0.8 and 1.0 from a mean of 0.2, 0.4, 0.6, 0.8 and 0.95.

    Below the first, a well-formed answer earns 0.2 too and any other -0.3. Components are not scaled: scalings belong
    to `Continuous`, beside which RLVR's own rungs were never reached.
    """

    def shaped(self, raw: float, formed: bool) -> float:
        """-0.3 or one of the rungs."""
        lowest = RUNGS[-1][1] if formed else LOWEST
        return next((reward for least, reward in RUNGS if raw >= least), lowest)


class Binary(Linear):
    """1 for a mean above the threshold, else -0.3, and 0.1 more where the answer is well formed."""

    def __init__(self, *, threshold: Annotated[float, Ge(0), Lt(1)]) -> None:
        self.threshold = threshold

    def shaped(self, raw: float, formed: bool) -> float:
        """-0.3, -0.2 or 1."""
        return 1.0 if raw > self.threshold else with_bonus(LOWEST, formed)


class Continuous(Linear):
    """`Linear` of a mean in which `fen` and `evals`, the graded components, are scaled first."""

    def __init__(self, *, fen: Scaling, evals: Scaling) -> None:
        self.scalings = {"fen": fen, "evals": evals}

    def scaled(self, component: str, value: float) -> float:
        """The value under the component's scaling, or as it is where the component has none."""
        return self.scalings[component](value) if component in self.scalings else value


class Unshaped(Linear):
    """The mean itself, in [0, 1]."""

    def shaped(self, raw: float, formed: bool) -> float:
        """`raw`."""
        return raw


def with_bonus(reward: float, formed: bool) -> float:
    """The reward, 0.1 higher where it is below 0 and the answer well formed."""
    return reward + FORMED_BONUS * (formed and reward < 0)


# ---- scalings -----------------------------------------------------------------------------------------------------


class Identity:
    """s."""

    def __call__(self, value: float) -> float:
        """`value`."""
        return value


class Exponential:
    """(e^(rate s) - 1) / (e^rate - 1): the last errors cost the most."""

    def __init__(self, *, rate: Annotated[float, Gt(0), Le(700)]) -> None:
        self.rate = rate

    def __call__(self, value: float) -> float:
        """0 at 0 and 1 at 1."""
        return math.expm1(self.rate * value) / math.expm1(self.rate)


class Sigmoid:
    """1 / (1 + e^(-slope (s - 0.5))): the middle counts the most; 0.5 at 0.5, and 0 and 1 are never reached."""

    def __init__(self, *, slope: Annotated[float, Gt(0)]) -> None:
        self.slope = slope

    def __call__(self, value: float) -> float:
        """Within (0, 1)."""
        return 0.5 + 0.5 * math.tanh(0.5 * self.slope * (value - 0.5))


class Quadratic:
    """s^2."""

    def __call__(self, value: float) -> float:
        """0 at 0 and 1 at 1."""
        return value * value
