"""Numbers in sentences."""

from __future__ import annotations

import math

import pytest

from rookexp import wording
from rookexp.statistics import Interval


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"), (math.nan, "-"), (0.0123456, "0.0123"), (0.09994, "0.0999"), (0.1, "0.100"), (-0.1, "-0.100"),
        (9.9994, "9.999"), (10.0, "10.0"), (-99.94, "-99.9"), (100.0, "100"), (-12345.6, "-12346"),
    ],
)  # fmt: skip
def test_a_number_has_three_digits_that_matter(value: float, said: str) -> None:
    assert wording.number(value) == said
    assert wording.signed(value) == ("+" if value > 0 else "") + said


def test_intervals_and_seeds_and_long_lists() -> None:
    assert wording.interval(Interval(0.5, 0.25, 10.0)) == "0.500 [0.250, 10.0]"
    assert wording.interval(Interval(0.5, math.nan, math.nan)) == "0.500"
    assert [wording.seeds(n) for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    letters = list("abcdefgh")
    assert wording._first(letters[:6]) == "a, b, c, d, e, f"
    assert wording._first(letters) == "a, b, c, d, e, f and 2 more"
    assert wording._first(letters, "more keys", most=7) == "a, b, c, d, e, f, g and 1 more keys"
