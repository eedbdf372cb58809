"""The grammar of a space: what is typed, what a grid and a study make of it, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from rookexp.errors import ConfigError
from rookexp.sweep import space

pytestmark = pytest.mark.hydra

LISTS: dict[str, list[Any]] = {
    "a=1,2": [1, 2],
    "a=choice(3,1,2)": [3, 1, 2],
    "a=1e-5,2e-5": [1e-5, 2e-5],
    "a=1,1,2": [1, 2],
    "a=1,1.0,1e0,2": [1, 2],
    "a=x,null,true": ["x", "null", True],
    "a='b c',d": ["b c", "d"],
    "a=[1,2],[3]": ["[1,2]", "[3]"],
    "a=sort(3,1,2)": [1, 2, 3],
    "a=range(1,4,2)": [1, 3],
    "a=range(3)": [0, 1, 2],
    "a=range(5,0,-2)": [5, 3, 1],
    "a=range(0.0,0.3,0.1)": [0.0, 0.1, 0.2],
    "a=range(0,0.9,0.3)": [0.0, 0.3, 0.6],
    "a=float(range(1,3))": [1.0, 2.0],
    "a=shuffle(range(5))": [3, 4, 0, 1, 2],
    "a=shuffle(1,2,3)": [2, 3, 1],
    "a=tag(log,range(1,4))": [1, 2, 3],
    "+a=1,2": [1, 2],
}


def parse(*texts: str) -> space.Space:
    return space.parse(texts, None)


@pytest.mark.parametrize("text", LISTS)
def test_a_list_has_its_values_in_order_and_goes_back_to_what_was_typed(text: str) -> None:
    found = parse(text)
    (param,) = found.params
    assert [(v, type(v)) for v in param.values] == [(v, type(v)) for v in LISTS[text]]
    points = found.grid()
    assert [*parse(*(t for p in points for t in found.overrides(p))).fixed] == found.overrides(points[-1])
    for point in points:
        again = space.parse([found.overrides(point)[0] + ",other"], None).params[0]
        assert space.same(again.values[0], point[param.key])
        assert param.distribution()._contains(param.distribution().to_internal_repr(point[param.key]))


@given(st.integers(-50, 50), st.integers(1, 400), st.integers(0, 60))
def test_a_range_is_exact_and_leaves_its_stop_out(start: int, step: int, count: int) -> None:
    ends = [Decimal(start) / 100, Decimal(start + step * count) / 100, Decimal(step) / 100]
    typed = f"a=range({float(ends[0])},{float(ends[1])},{float(ends[2])})"
    if count == 0:
        with pytest.raises(ConfigError, match="no value"):
            parse(typed)
        return
    assert list(parse(typed).params[0].values) == [float(ends[0] + ends[2] * i) for i in range(count)]


def test_the_grid_is_the_product_with_the_last_parameter_fastest() -> None:
    found = parse("b=x,y", "c=3", "a=range(1,3)", "~d")
    assert found.fixed == ("c=3", "~d")
    assert found.grid() == [{"b": b, "a": a} for b in ("x", "y") for a in (1, 2)]
    assert [found.overrides(p) for p in found.grid()][1] == ["b=x", "a=2"]
    assert found.size == 4


def test_a_later_value_stands_at_the_earlier_place() -> None:
    found = parse("a=1,2", "b=1,2", "c=1", "a=3,4", "c=2")
    assert found.declared == {"a": "3,4", "b": "1,2"}
    assert found.fixed == ("c=2",)


DISTRIBUTIONS = {
    "a=1,2": CategoricalDistribution((1, 2)),
    "a=range(1,8,3)": IntDistribution(1, 7, step=3),
    "a=range(8,1,-3)": IntDistribution(2, 8, step=3),
    "a=range(0,1,0.25)": FloatDistribution(0, 0.75, step=0.25),
    "a=tag(log,range(1,9))": IntDistribution(1, 8, log=True),
    "a=interval(0,1)": FloatDistribution(0, 1),
    "a=interval(1,2.5)": FloatDistribution(1, 2.5),
    "a=int(interval(1,5))": IntDistribution(1, 5),
    "a=tag(log,interval(1e-6,1e-4))": FloatDistribution(1e-6, 1e-4, log=True),
    "a=tag(log,int(interval(1,64)))": IntDistribution(1, 64, log=True),
}


@pytest.mark.parametrize("text", DISTRIBUTIONS)
def test_what_a_study_makes_of_it(text: str) -> None:
    assert parse(text).distributions() == {"a": DISTRIBUTIONS[text]}


def test_an_interval_is_open_to_real_numbers_and_counts_whole_ones() -> None:
    assert parse("a=interval(0,1)").size == float("inf")
    assert parse("a=int(interval(1,5))", "b=1,2").size == 10
    assert list(parse("a=int(interval(1,2))", "b=x,y").points())[2] == {"a": 2, "b": "x"}
    with pytest.raises(ConfigError, match=r"a=interval\(0,1\): a grid needs listed values; .* sweep.n_trials=N"):
        parse("a=interval(0,1)").grid()


def test_a_samplers_rounding_error_is_no_other_value() -> None:
    found = parse("a=range(0,1,0.1)")
    assert found.snapped({"a": 0.1 + 0.2}) == {"a": 0.3}
    assert found.overrides({"a": 0.1 + 0.2}) == ["a=0.3"]


def test_what_lies_outside_of_a_changed_space() -> None:
    found = parse("a=1,2", "b=interval(0,1)")
    assert found.outside({"a": 2, "b": 0.5}) == []
    assert found.outside({"a": 3, "b": 2.0}) == ["a=3", "b=2.0"]


REFUSED = {
    "a=tag(lg,interval(1,2))": "a=tag(lg,interval(1,2)): no such tag; allowed: log; did you mean log?",
    "a=tag(log,choice(1,2))": "a=tag(log,choice(1,2)): allowed with log: interval or range",
    "a=tag(log,range(0,3))": "allowed with log: a range of whole numbers above 0 in steps of 1",
    "a=tag(log,interval(0,1))": "allowed: interval(low, high), low < high, above 0",
    "a=interval(2,1)": "allowed: interval(low, high), low < high",
    "a=interval(1,1)": "allowed: interval(low, high), low < high",
    "a=range(3,1)": "a=range(3,1): no value; allowed: at least one",
    "a=range(1,3,0)": "range(1, 3, 0): allowed: a step that is not 0",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert REFUSED[text] in str(error.value)
