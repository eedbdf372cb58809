"""Intervals hold what they promise, and the words about differences follow one rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rookexp import statistics


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 11, 30, 99, 400])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.9955, 0.9999])
def test_student_t_is_scipys(freedom: int, level: float) -> None:
    assert statistics.student_t(freedom, level) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-6)


def test_mean_has_students_interval_and_none_for_one_value() -> None:
    values = [0.3, 0.5, 0.4, 0.9]
    found = statistics.mean(values)
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    alone = statistics.mean([0.5])
    assert alone.value == 0.5
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    assert math.isnan(statistics.mean([]).value)
    two = statistics.mean([0.3, 0.5])
    assert (two.low, two.high) == pytest.approx(stats.t.interval(0.95, 1, loc=0.4, scale=0.1))


def test_values_without_a_spread_have_no_interval() -> None:
    for values in ([0.3] * 5, [0.1, 0.2 - 0.1, 0.3 - 0.2], [0.0, 0.0]):
        found = statistics.mean(values)
        assert found.value == pytest.approx(values[0])
        assert math.isnan(found.low)
        assert math.isnan(found.high)


@pytest.mark.parametrize("values", [[math.inf], [math.inf, 1.0], [math.inf, math.inf, 1.0], [math.nan, 1.0]])
def test_values_that_are_not_finite_have_no_interval(values: list[float]) -> None:
    found = statistics.mean(values)
    assert found.value == math.inf or math.isnan(found.value)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_coarse_figures_without_an_effect_raise_no_more_alarms_than_promised() -> None:
    """Rewards on a grid as coarse as the noise: equal differences are common, and no evidence."""
    noise = np.random.default_rng(0).standard_normal((4000, 2, 3)).round()
    pairs = [(dict(enumerate(a)), dict(enumerate(b))) for a, b in noise]
    for comparisons in (1, 11, 65):
        alarms = [statistics.compared(a, b, comparisons=comparisons).said in ("higher", "lower") for a, b in pairs]
        assert np.mean(alarms) <= 1.2 * 0.05 / comparisons + 0.001


def test_bootstrap_is_as_narrow_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for n, promised in ((3, 0.75), (10, 0.90)):
        found = [statistics.bootstrap(rng.standard_normal(n)) for _ in range(60)]
        assert np.mean([one.low <= 0 <= one.high for one in found]) == pytest.approx(promised, abs=0.13)


def test_bootstrap_of_many_values_is_the_interval_of_their_mean_and_of_one_there_is_none() -> None:
    many = np.random.default_rng(1).standard_normal(400)
    found, expected = statistics.bootstrap(many), statistics.mean(many)
    assert found.value == pytest.approx(expected.value)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.015)
    two = statistics.bootstrap([0.0, 1.0])
    assert (two.value, two.low, two.high) == (0.5, 0, 1)
    alone = statistics.bootstrap([0.5])
    assert alone.value == 0.5
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf, 1.0, 2.0]])
def test_signs_of_nothing_and_of_what_is_not_finite_say_nothing(values: list[float]) -> None:
    assert math.isnan(statistics.sign_flip_p(values))


def test_sign_flips_are_counted_exactly() -> None:
    assert statistics.sign_flip_p([1.0, 2.0, 3.0]) == pytest.approx(2 / 8)
    assert statistics.sign_flip_p([1.0, -1.0]) == 1.0
    assert statistics.sign_flip_p([0.1] * 6) == pytest.approx(2 / 64)
    values = np.random.default_rng(0).standard_normal(12) + 0.4
    reference = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert statistics.sign_flip_p(values) == pytest.approx(reference.pvalue)
    many = np.random.default_rng(0).standard_normal(40) + 0.3
    assert statistics.sign_flip_p(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.02)


def test_differences_are_of_common_seeds() -> None:
    a, b = {0: 1.0, 1: 2.0, 5: 9.0}, {1: 0.5, 0: 0.2, 7: 3.0}
    assert statistics.differences(a, b) == pytest.approx([0.8, 1.5])


def test_false_alarms_are_as_rare_as_promised() -> None:
    noise = np.random.default_rng(0).standard_normal((2000, 3))
    assert np.mean([not statistics.same_within_noise(row) for row in noise]) == pytest.approx(0.05, abs=0.015)
    families = noise[:1980].reshape(180, 11, 3)
    alarms = [any(not statistics.same_within_noise(row, comparisons=11) for row in family) for family in families]
    assert np.mean(alarms) == pytest.approx(0.05, abs=0.04)


@pytest.mark.parametrize(
    ("differences", "comparisons", "word"),
    [
        ([0.5], 1, "cannot tell"),
        ([0.5, 0.51], 1, "cannot tell"),
        ([0.5, math.nan, 0.5], 1, "cannot tell"),
        ([0.0, 0.0, 0.0], 1, "identical"),
        ([0.5, 0.6, 0.4], 1, "higher"),
        ([-0.5, -0.6, -0.4], 1, "lower"),
        ([0.5, 0.6, 0.4], 11, "higher?"),
        ([-0.5, -0.6, -0.4], 11, "lower?"),
        ([0.5, 0.1, -0.3], 1, "within noise"),
        ([0.5, 0.5, 0.5], 1, "cannot tell"),
        ([0.1, 0.2 - 0.1, 0.3 - 0.2], 65, "cannot tell"),  # equal but for rounding
        ([-0.5] * 6, 1, "lower"),  # 2 / 2^6 is below 0.05 ...
        ([-0.5] * 6, 2, "lower?"),  # ... and not below 0.025
        ([0.5] * 11, 11, "higher"),
    ],
)
def test_one_word_says_what_seeds_show(differences: list[float], comparisons: int, word: str) -> None:
    a, b = dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0)
    assert statistics.compared(a, b, comparisons=comparisons).said == word


def test_equal_differences_of_means_in_float32_have_no_spread_either() -> None:
    a, b = ({i: float(np.float32(x)) for i, x in enumerate(of)} for of in ((0.3, 0.5, 0.7), (0.2, 0.4, 0.6)))
    assert len(set(statistics.differences(a, b))) > 1
    found = statistics.compared(a, b, comparisons=11)
    assert found.said == "cannot tell"
    assert np.isnan(found.interval.low)
    assert statistics.compared(a, {0: 0.2, 1: 0.4, 2: 0.59}).said == "higher"


def test_differences_of_rounding_size_are_none() -> None:
    a = {0: 0.5 + 1e-8, 1: 0.5 - 2e-8, 2: 0.5}
    assert statistics.compared(a, dict.fromkeys(a, 0.5)).said == "identical"
    large = {0: 1.0, 1: 1.1, 2: 1.11, 3: 1e7}  # the last has no partner, and no say
    assert statistics.compared(large, dict.fromkeys(range(3), 0.0)).said == "higher"
