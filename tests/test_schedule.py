"""Learning-rate factors, step by step."""

import math

import pytest

from rookexp.schedule import Constant, Cosine, Linear

COS = (1 + math.cos(math.pi / 4)) / 2


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(warmup_steps=0), [1, 1, 1]),
        (Constant(warmup_steps=4), [0.25, 0.5, 0.75, 1, 1, 1]),
        (Linear(total_steps=4, warmup_steps=0, floor_ratio=0.0), [1, 0.75, 0.5, 0.25, 0, 0]),
        (Linear(total_steps=6, warmup_steps=2, floor_ratio=0.2), [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (Cosine(total_steps=4, warmup_steps=0, floor_ratio=0.0), [1, COS, 0.5, 1 - COS, 0, 0]),
        (Cosine(total_steps=6, warmup_steps=2, floor_ratio=0.2), [0.5, 1, 1, 0.2 + 0.8 * COS, 0.6, 1 - 0.8 * COS, 0.2]),
        (Cosine(total_steps=2, warmup_steps=4, floor_ratio=0.5), [0.25, 0.5, 0.75, 1, 0.5]),
        (Linear(total_steps=3, warmup_steps=3, floor_ratio=0.0), [1 / 3, 2 / 3, 1, 0]),
    ],
)
def test_factor_of_every_step(schedule, factors):
    assert [schedule.factor(step) for step in range(len(factors))] == pytest.approx(factors, abs=1e-15)


@pytest.mark.parametrize("kind", [Linear, Cosine])
@pytest.mark.parametrize("floor_ratio", [0.0, 0.1, 1.0])
def test_no_step_has_rate_zero_and_the_decay_never_rises(kind, floor_ratio):
    schedule = kind(total_steps=100, warmup_steps=10, floor_ratio=floor_ratio)
    factors = [schedule.factor(step) for step in range(100)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == factors[9] == factors[10] == 1
    assert factors[9:] == sorted(factors[9:], reverse=True)
