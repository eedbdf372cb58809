"""Numbers in sentences."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from made_runs import make

from rookexp.comparison import points, wording
from rookexp.statistics import Interval


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"), (math.nan, "-"), (0.0123456, "0.0123"), (0.09994, "0.0999"), (0.1, "0.100"), (-0.1, "-0.100"),
        (9.9994, "9.999"), (10.0, "10.0"), (-99.94, "-99.9"), (100.0, "100"), (-12345.6, "-12346"),
        (0.001, "0.0010"), (0.00044, "0.00044"), (-0.0000312, "-3.1e-05"),
    ],
)  # fmt: skip
def test_a_number_has_three_digits_that_matter(value: float, said: str) -> None:
    assert wording.number(value) == said
    assert wording.signed(value) == ("+" if value > 0 else "") + said


def test_who_is_not_shown_to_be_worse(tmp_path: Path) -> None:
    """Also a point that is better under the seeds in common, and one of which nothing can be told."""
    gains = {
        0: (0.1, 0.1, 0.1, 0.1),
        1: (0.3, 0.31, 0.3, 0.9),
        2: (0.4, 0.412, 0.401, None),
        3: (0.44, 0.45, None, None),
        4: (0.2, 0.211, 0.2, 0.8),
    }
    for trial, values in gains.items():
        for seed, gain in enumerate(values):
            settings = {"optim.lr": 1e-5 * (trial + 1), "seed": seed}
            status = "finished" if gain is not None else "diverged"
            make(tmp_path / f"{trial}-{seed}", gain=gain or 0.0, status=status, trial=trial, **settings)
    lines = wording.said(points.compare([tmp_path]))
    assert "Highest mean gain of points whose runs all finished: #1 (" in " ".join(lines)
    (said,) = (line for line in lines if line.startswith("Not shown"))
    assert said == "Not shown to be worse than #1, at the level 0.05 / 4: #0, #2, #3."


def test_one_lucky_seed_is_no_best_point(tmp_path: Path) -> None:
    for name, gains in (("a", {0: 0.4, 1: 0.42, 4: 0.6}), ("b", {4: 0.58}), ("c", {0: 0.3, 1: 0.31, 4: 0.5})):
        for seed, gain in gains.items():
            make(tmp_path / f"{name}{seed}", gain=gain, seed=seed, **{"optim.lr": 1.0 + ord(name)})
    said = " ".join(wording.said(points.compare([tmp_path])))
    assert "Highest mean gain of points with 3 seeds or more: a0 (" in said


def test_one_seed_more_is_no_best_point_either(tmp_path: Path) -> None:
    for name, gain, count in (("a", 0.1, 6), ("b", 0.6, 5), ("c", 0.8, 5)):
        for seed in range(count):
            make(tmp_path / f"{name}{seed}", gain=gain + seed / 100, seed=seed, **{"optim.lr": 1.0 + ord(name)})
    assert "Highest mean gain: c0 (" in " ".join(wording.said(points.compare([tmp_path])))


def test_two_models_are_of_one_seed_where_they_can_be(tmp_path: Path) -> None:
    for name, seeds in (("a", (1, 2)), ("b", (2, 3))):
        for seed in seeds:
            make(tmp_path / f"{name}{seed}", gain=0.1 * seed, seed=seed, **{"optim.lr": 1.0 if name == "a" else 2.0})
    (said,) = (line for line in wording.said(points.compare([tmp_path])) if line.startswith("What can be said"))
    assert said.startswith("What can be said of two models, not of the settings (both of seed 2): on the 2 prompts")
    assert "equal on 2; mean difference 0, " in said
    apart = points.compare([tmp_path / "a1", tmp_path / "b3"])
    (said,) = (line for line in wording.said(apart) if line.startswith("What can be said"))
    assert "(of seeds 3 and 1)" in said
    assert "mean difference +0.200" in said


def test_without_a_baseline_nothing_is_ranked_across_rewards(tmp_path: Path) -> None:
    make(tmp_path / "0", trial=0, status="diverged")
    (tmp_path / "sweep.json").write_text(json.dumps({"baseline": {"reward.best": 0.5, "optim.lr": 1e-4}}))
    make(tmp_path / "1", trial=1, gain=0.1, **{"optim.lr": 1e-5})
    make(tmp_path / "2", trial=2, gain=3.0, **{"reward.best": 5.0})
    lines = wording.said(points.compare([tmp_path]))
    said = "No best point is named: #0 has no gain, and #2 is not measured as #1 (not the same measure: "
    assert f"{said}reward.best differs)." in lines
    assert not [line for line in lines if "Highest" in line]


def test_a_best_point_of_those_comparable_is_called_that(tmp_path: Path) -> None:
    make(tmp_path / "a", gain=0.1, **{"reward.best": 0.5})
    for name, best in (("b", 5.0), ("c", 6.0)):
        make(tmp_path / name, gain=3.0, **{"reward.best": best})
    (said,) = (line for line in wording.said(points.compare([tmp_path], baseline="a")) if "Highest" in line)
    assert said.startswith("Highest gain among those comparable with the baseline: a (")


def test_intervals_and_seeds_and_long_lists() -> None:
    assert wording.interval(Interval(0.5, 0.25, 10.0)) == "0.500 [0.250, 10.0]"
    assert wording.interval(Interval(0.5, math.nan, math.nan)) == "0.500"
    assert [wording.seeds(n) for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    letters = list("abcdefgh")
    assert wording._first(letters[:6]) == "a, b, c, d, e, f"
    assert wording._first(letters) == "a, b, c, d, e, f and 2 more"
    assert wording._first(letters, most=7) == "a, b, c, d, e, f, g and 1 more"


def test_two_sweeps_may_have_the_same_point(tmp_path: Path) -> None:
    for sweep in ("first", "second"):
        make(tmp_path / sweep / "0", trial=0)
    found = points.compare([tmp_path / "first", tmp_path / "second"])
    assert wording.said(found)[0] == "second/#0 has the settings of first/#0."
