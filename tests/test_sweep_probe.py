"""What is found out of a space before its first job: which values make no configuration, in how few tries."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.conf import HydraConf
from omegaconf import OmegaConf

from rookexp.config import across, recipes
from rookexp.errors import ConfigError
from rookexp.sweep import probe, space


@pytest.fixture(autouse=True)
def _no_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "taken_out", lambda overrides, config_name, searchpath: [])


class Loader:
    """Composes what is typed as it stands."""

    def __init__(self) -> None:
        self.tried: list[dict[str, str]] = []

    def load_sweep_config(self, config: Any, overrides: list[str]) -> Any:
        pairs = dict(text.split("=") for text in overrides)
        self.tried.append(pairs)
        return OmegaConf.create({**pairs, "hydra": HydraConf()})


def tried(texts: list[str], wrong: Any) -> list[dict[str, str]]:
    """The points that were composed where `wrong(config)` says which are refused."""

    def check(config: Mapping[str, Any]) -> None:
        if wrong(config):
            raise ConfigError(" ".join(f"{key}={value}" for key, value in config.items()))

    loader = Loader()
    config: Any = OmegaConf.create({"hydra": {"job": {"config_name": "config"}}})
    context: Any = SimpleNamespace(config_loader=loader)
    probe.valid_jobs(space.parse(texts, None), config, context, check)
    return loader.tried


def test_each_value_is_composed_once_where_all_are_right() -> None:
    assert tried(["a=1,2,3", "b=x,y"], lambda config: False) == [
        {"a": "1", "b": "x"}, {"a": "2", "b": "y"}, {"a": "3", "b": "x"},
    ]  # fmt: skip


def test_of_an_interval_the_ends_are_tried() -> None:
    points = tried(["a=int(interval(1,900))", "b=x,y,z"], lambda config: False)
    assert [point["a"] for point in points] == ["1", "900", "1"]


def test_values_that_do_not_go_together_are_no_mistake() -> None:
    wrong = {("none", "0.1"), ("fixed", "null"), ("none", "0.2")}
    found = tried(["kl=none,fixed", "coef=0.1,null,0.2"], lambda config: (config["kl"], config["coef"]) in wrong)
    assert len(found) <= 10


@pytest.mark.parametrize("position", range(3))
def test_a_value_that_is_wrong_everywhere_is_named_beside_right_ones(position: int) -> None:
    values = ["1", "2"]
    values.insert(position, "oops")
    with pytest.raises(ConfigError, match="^a=oops b=[xyz]$"):
        tried([f"a={','.join(values)}", "b=x,y,z"], lambda config: config["a"] == "oops")


def test_no_point_is_composed_twice() -> None:
    seen: list[str] = []

    def wrong(config: Mapping[str, Any]) -> bool:
        seen.append(config["a"])
        return config["a"] == "oops"

    with pytest.raises(ConfigError, match="^a=oops$"):
        tried(["a=1,oops"], wrong)
    assert seen == ["1", "oops"]


def test_where_nothing_is_right_little_is_tried() -> None:
    count = 0

    def wrong(config: Mapping[str, Any]) -> bool:
        nonlocal count
        count += 1
        return True

    values = ",".join(map(str, range(9)))
    with pytest.raises(ConfigError, match="^a=0 b=0$"):
        tried([f"a={values}", f"b={values}"], wrong)
    assert count == probe.MOST - 2, "of the points that were tried two came twice"


def test_a_value_that_is_right_beside_the_first_right_ones_alone_is_found() -> None:
    def wrong(config: Mapping[str, Any]) -> bool:
        if config["c"] == "2":
            return (config["a"], config["d"]) != ("1", "1")
        return config["a"] == "0" and int(config["d"]) < 25

    points = tried(["a=0,1", "c=0,1,2", f"d={','.join(map(str, range(30)))}"], wrong)
    assert points[-1] == {"a": "1", "c": "2", "d": "1"}


def test_a_value_that_is_right_late_in_the_grid_is_found() -> None:
    def wrong(config: Mapping[str, Any]) -> bool:
        return config["a"] == "2" and config["b"] != "6"

    assert len(tried(["a=1,2", "b=0,1,2,3,4,5,6"], wrong)) <= 7 + probe.MOST


@pytest.mark.parametrize(
    ("whys", "said"),
    [
        (("changes nothing: so", "changes nothing: so"), "note: a=1,2 changes nothing: so; points that differ in it "),
        (("warms up over 1 steps", "warms up over 2 steps"), ""),
        (("changes nothing: so", "is published for that"), ""),
    ],
)
def test_points_are_the_same_where_what_differs_changes_nothing_in_any(
    whys: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(across, "idle", lambda job, varied: [(varied[0], whys[int(job["a"]) - 1])])
    tried(["a=1,2"], lambda config: False)
    out = capsys.readouterr().out
    assert out.startswith(said) if said else not out
