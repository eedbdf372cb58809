"""Learning-rate factors, step by step."""

import itertools
import math

import pytest

from rookexp.errors import ConfigError
from rookexp.schedule import Advanced, Constant, Cosine, CosineRestarts, Linear, Schedule, Step

COS = (1 + math.cos(math.pi / 4)) / 2  # half a cosine after a quarter of its way
THIRDS = [[1 / 3, 0.5], [2 / 3, 0.25]]


def half_cosine(progress: float, floor: float) -> float:
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(warmup_steps=0), [1, 1, 1]),
        (Constant(warmup_steps=4), [0.25, 0.5, 0.75, 1, 1, 1]),
        (Linear(total_steps=4, warmup_steps=0, floor_ratio=0.0), [1, 0.75, 0.5, 0.25, 0, 0]),
        (Linear(total_steps=6, warmup_steps=2, floor_ratio=0.2), [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (Cosine(total_steps=4, warmup_steps=0, floor_ratio=0.0), [1, COS, 0.5, 1 - COS, 0, 0]),
        (
            Cosine(total_steps=6, warmup_steps=2, floor_ratio=0.2),
            [0.5, 1, 1, 0.2 + 0.8 * COS, 0.6, 1 - 0.8 * COS, 0.2],
        ),
        (Cosine(total_steps=2, warmup_steps=4, floor_ratio=0.5), [0.25, 0.5, 0.75, 1, 0.5]),
        (Linear(total_steps=3, warmup_steps=3, floor_ratio=0.0), [1 / 3, 2 / 3, 1, 0]),
        (
            CosineRestarts(cycle_steps=4, warmup_steps=2, floor_ratio=0.2),
            [0.5, 1, *[1, 0.2 + 0.8 * COS, 0.6, 1 - 0.8 * COS] * 3, 1],
        ),
        (CosineRestarts(cycle_steps=4, warmup_steps=1, floor_ratio=0.0), [1, *[1, COS, 0.5, 1 - COS] * 2, 1]),
        (CosineRestarts(cycle_steps=1, warmup_steps=0, floor_ratio=0.0), [1, 1, 1]),
        (
            Step(total_steps=9, warmup_steps=0, milestones=THIRDS),
            [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25],
        ),
        (Step(total_steps=5, warmup_steps=2, milestones=THIRDS[::-1]), [0.5, 1, 1, 0.5, 0.25, 0.25]),
        (Step(total_steps=4, warmup_steps=0, milestones=[[1.0, 0.1]]), [1, 1, 1, 1, 0.1]),
        (Step(total_steps=2, warmup_steps=2, milestones=THIRDS), [0.5, 1, 0.25]),
        (Step(total_steps=2, warmup_steps=0, milestones=[]), [1, 1, 1]),
        (
            Advanced(total_steps=12, warmup_steps=2, cosine_share=0.7, cosine_floor=0.05),
            [0.5, 1, *[half_cosine(i / 7, 0.05) for i in range(7)], 0.05, 0.1 / 3, 0.05 / 3, 0, 0],
        ),
        (Advanced(total_steps=4, warmup_steps=0, cosine_share=0.5, cosine_floor=0.2), [1, 0.6, 0.2, 0.1, 0]),
    ],
)
def test_factor_of_every_step(schedule, factors):
    assert [schedule.factor(step) for step in range(len(factors))] == pytest.approx(factors, abs=1e-15)


LONG = 10_000
CONTINUOUS = {
    "constant": Constant(warmup_steps=LONG // 10),
    "linear": Linear(total_steps=LONG, warmup_steps=LONG // 10, floor_ratio=0.1),
    "cosine": Cosine(total_steps=LONG, warmup_steps=LONG // 10, floor_ratio=0.1),
    "advanced": Advanced(total_steps=LONG, warmup_steps=LONG // 10, cosine_share=0.7, cosine_floor=0.05),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_no_jump_anywhere_and_none_at_the_end(name):
    """The steepest part is the warm-up, 10 / LONG a step."""
    factors = [CONTINUOUS[name].factor(step) for step in range(LONG + 2)]
    assert max(abs(b - a) for a, b in itertools.pairwise(factors)) <= 10.001 / LONG


def jumps(schedule) -> dict[int, float]:
    """The changes of more than 0.02 from one step to the next, by the later of the two."""
    factors = [schedule.factor(step) for step in range(301)]
    changes = {step: factors[step] - factors[step - 1] for step in range(1, 301)}
    return {step: change for step, change in changes.items() if abs(change) > 0.02}


def test_jumps_only_at_milestones_and_restarts():
    step = Step(total_steps=300, warmup_steps=0, milestones=THIRDS)
    assert jumps(step) == {100: -0.5, 200: -0.25}
    restarts = CosineRestarts(cycle_steps=100, warmup_steps=0, floor_ratio=0.1)
    assert jumps(restarts) == pytest.approx({100: 0.9, 200: 0.9, 300: 0.9}, abs=1e-3)


@pytest.mark.parametrize(
    "schedule",
    [kind(total_steps=100, warmup_steps=10, floor_ratio=f) for kind in (Linear, Cosine) for f in (0.0, 0.1, 1.0)]
    + [
        Step(total_steps=100, warmup_steps=10, milestones=THIRDS),
        Advanced(total_steps=100, warmup_steps=10, cosine_share=0.7, cosine_floor=0.05),
    ],
)
def test_no_step_has_rate_zero_and_the_decay_never_rises(schedule):
    factors = [schedule.factor(step) for step in range(100)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == factors[9] == factors[10] == 1
    assert factors[9:] == sorted(factors[9:], reverse=True)


@pytest.mark.parametrize("given", [-0.1, math.nan, math.inf, None, "1"])
def test_what_user_code_may_not_give_is_refused(given):
    class Own(Schedule):
        def factor(self, step):
            return given

    with pytest.raises(ConfigError, match=r"^optim\.schedule=Own: factor\(3\) gave .*; wanted: a finite number >= 0$"):
        Own(warmup_steps=0).at(3)


@pytest.mark.parametrize("given", [0, 0.0, 1, 2.5])
def test_user_code_may_give_a_rate_of_0_or_above_the_full_one(given):
    class Own(Schedule):
        def factor(self, step):
            return given

    assert Own(warmup_steps=0).at(3) == given


def test_a_schedule_without_its_method_is_one_line():
    class Own(Schedule):
        pass

    with pytest.raises(ConfigError, match=r"^optim\.schedule=Own: it has no method factor; see docs/own\.md$"):
        Own(warmup_steps=0).at(0)
