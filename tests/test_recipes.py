"""A group's option that is typed beside a recipe stands as its file has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.utils import get_args_parser
from omegaconf import open_dict

from rookexp import build
from rookexp.config import composing, door, recipes
from rookexp.errors import ConfigError
from rookexp.sweep import probe


def composed(*typed: str) -> dict[str, Any]:
    """What a command line composes, checked as the door of training checks it."""
    door.register_resolvers()
    overrides = door.arrange(list(typed), "config")
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        config = door.plain(hydra.compose("config", overrides))
    build.check_config(config)
    return config


def recipe_and_plain(group: str, option: str, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return composed("experiment=overfit_r3", f"{group}={option}", *more), composed(
        f"{group}={option}", "steps=50", *more
    )


OPTIONS = [
    ("baseline", "rloo"),
    ("baseline", "gae"),
    ("baseline", "batch_std"),
    ("kl", "none"),
    ("kl", "adaptive"),
    ("loss", "gspo"),
    ("loss", "two_sided"),
    ("optim", "adamw"),
    ("optim", "adamw_step"),
    ("grpo", "default"),
    ("grpo", "ppo"),
    ("reference", "ema"),
    ("reward", "combined"),
]


@pytest.mark.hydra
@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_an_option_typed_beside_a_recipe_is_what_its_file_says(group: str, option: str) -> None:
    both, alone = recipe_and_plain(group, option)
    assert both[group] == alone[group]
    assert both["task_name"] == "overfit_r3"  # the rest is the recipe's
    others = set(both) - {group, "eval"}  # which takes its lengths from grpo
    recipe = composed("experiment=overfit_r3")
    assert {name: both[name] for name in others} == {name: recipe[name] for name in others}


def test_a_value_typed_beside_both_wins() -> None:
    config = composed("experiment=dapo", "loss=gspo", "loss.clip_low=0.001")
    assert config["loss"] == {"_target_": "rookexp.losses.Gspo", "clip_low": 0.001, "clip_high": 4e-4}
    assert composed("experiment=grpo", "kl.coef=0.5")["kl"] == composed("kl=fixed", "kl.coef=0.5")["kl"]


@pytest.mark.parametrize("words", ["experiment=dapo loss=gspo loss.clip_low=0.001", "loss=gspo seed=3", "loss.a=1"])
def test_what_was_typed_is_found_among_what_hydra_was_given(words: str) -> None:
    door.register_resolvers()
    given = door.arrange(words.split(), "config")
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        assert recipes.typed(given, "config") == words.split()


@pytest.mark.hydra
def test_an_option_at_a_path_of_the_recipes_own_stands_as_its_file_has_it() -> None:
    place = "reward@reward.rewards.P"
    assert composed("experiment=black_repair")["reward"]["rewards"]["P"]["best"] == 1.0
    for option in ("engine", "self_consistency", "dataset"):
        config = composed("experiment=black_repair", f"{place}={option}")
        assert config["reward"]["rewards"]["P"] == composed(f"reward={option}")["reward"], option
        assert config["reward"]["rewards"]["A"] == composed("experiment=black_repair")["reward"]["rewards"]["A"]
    assert (
        composed("experiment=black_repair", f"{place}=engine", "reward.rewards.P.best=0.7")["reward"]["rewards"]["P"][
            "best"
        ]
        == 0.7
    )


@pytest.mark.parametrize(
    ("recipe", "outer", "inner"),
    [
        ("black_repair", "reward=rookworld", "reward@reward.rewards.P=engine"),
        ("a_openings", "reward=rookworld", "reward@reward.rewards.A=a_levenshtein"),
        ("full", "reward=rookworld", "reward@reward.rewards.P=engine"),
        ("overfit", "reward=clipped", "reward@reward.reward=a_schema"),
    ],
)
def test_an_option_inside_another_typed_one_stands_as_without_the_recipe(recipe: str, outer: str, inner: str) -> None:
    for words in ([outer, inner], [inner, outer]):
        assert composed(f"experiment={recipe}", *words)["reward"] == composed(outer, inner)["reward"]


def test_the_engine_that_the_full_recipe_names_takes_the_place_of_its_judge_alone() -> None:
    found = composed("experiment=full", "+reward@reward.rewards.P=engine")["reward"]["rewards"]
    assert found["P"] == composed("reward=engine")["reward"]
    assert found["A"] == composed("experiment=full")["reward"]["rewards"]["A"]


def test_several_groups_and_a_preset_over_them() -> None:
    config = composed("experiment=ppo", "grpo=default", "baseline=group_mean", "kl=none", "debug=fast")
    alone = composed("grpo=default", "baseline=group_mean", "kl=none", "debug=fast")
    assert [config[name] for name in ("grpo", "baseline", "kl")] == [alone[n] for n in ("grpo", "baseline", "kl")]


def test_nothing_is_added_where_no_option_was_typed_or_several_are_swept() -> None:
    for words in (["experiment=grpo"], ["baseline=rloo"], ["experiment=grpo", "kl.coef=0.1"], ["~experiment"]):
        assert door.arrange(words, "config") == words
    for words in (["-m", "experiment=grpo", "track=local,tensorboard"], ["-m", "experiment=grpo,dapo", "track=local"]):
        assert door.arrange(words, "config") == words
    for recipe, option in (
        ("grpo,dapo", "baseline=rloo"),
        ("dapo", "loss=gspo,clip"),
        ("choice(grpo,dapo)", "baseline=rloo"),
        ("dapo", "loss=glob(gspo*)"),
        ("dapo", "loss=shuffle(gspo,clip)"),
    ):
        words = ["-m", f"experiment={recipe}", option]
        assert door.arrange([*words, "sweep=grid"], "config") == [*words, "sweep=grid"]
        with pytest.raises(ConfigError, match=rf"{re.escape(option)}: beside a recipe .* add sweep=grid"):
            door.arrange(words, "config")


@pytest.mark.parametrize(
    "words", ["debug=fast experiment=dapo", "debug=fast sweep=grid", "loss=gspo kl=none sweep=grid"]
)
def test_nothing_is_composed_where_no_option_or_recipe_has_values(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "_replaced", None)
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        assert recipes.taken_out(words.split(), "config") == []


@pytest.mark.hydra
def test_null_is_no_recipe() -> None:
    for words in ("experiment=null", "+experiment=null", "sweep=null debug=null", "experiment=dapo experiment=null"):
        assert composed(*words.split()) == composed(), words


def test_flags_stay_in_front_and_a_second_arrangement_changes_nothing() -> None:
    words = door.arrange(["--cfg", "job", "experiment=grpo", "baseline=rloo"], "config")
    assert words[:2] == ["--cfg", "job"]
    assert "~baseline.std" in words
    assert door.arrange(words, "config") == words


def test_a_misspelt_option_is_left_to_the_message_that_explains_it() -> None:
    assert door.arrange(["experiment=grpo", "kl=nne"], "config") == ["experiment=grpo", "kl=nne"]


OWN = {
    "mine.yaml": "defaults: [config, override experiment: dapo, _self_]\noptim: {lr: 0.5}\n",
    "swept.yaml": "defaults: [config, override sweep: own, _self_]\n",
    "capped.yaml": "defaults: [config, override experiment: verl_default, _self_]\n",
    "sweep/own.yaml": "# @package _global_\ndefaults: [grid, override /experiment: dapo, override /kl: fixed]\n"
    "kl: {coef: 0.05}\noptim: {lr: 0.25}\n"
    "hydra: {sweeper: {params: {optim: 'choice(adamw, adamw_cosine)'}}}\n",
}


def own_composed(folder: Path, name: str, *typed: str) -> dict[str, Any]:
    """What a command line with a folder and a file of one's own composes."""
    door.register_resolvers()
    flags = ["--config-dir", str(folder), "--config-name", name]
    words = door.arrange([*flags, *typed], "config")
    assert words[:4] == flags
    with composing.configs(get_args_parser().parse_args(words)):
        return door.plain(hydra.compose(name, [word for word in words[4:] if word != "-m"]))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    for name, text in OWN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.hydra
def test_a_recipe_that_a_file_chooses_gives_way_to_an_option(own: Path) -> None:
    recipe = own_composed(own, "mine")
    assert recipe["loss"]["clip_high"] == 0.28
    typed = own_composed(own, "mine", "loss=gspo", "optim=adamw_cosine")
    assert typed["loss"] == composed("experiment=dapo", "loss=gspo")["loss"]
    assert typed["grpo"] == recipe["grpo"]
    assert typed["optim"]["lr"] == 0.5, "what the file itself says is no recipe's"
    assert own_composed(own, "mine", "loss=gspo", "loss.clip_low=0.1")["loss"]["clip_low"] == 0.1
    with pytest.raises(ConfigError, match="loss=gspo,clip: beside a recipe"):
        own_composed(own, "mine", "-m", "loss=gspo,clip")


def test_a_recipe_that_a_file_chooses_can_be_left_out(own: Path) -> None:
    bare = composed()
    assert own_composed(own, "mine", "experiment=null") == bare | {"optim": bare["optim"] | {"lr": 0.5}}
    assert own_composed(own, "capped", "experiment=null", "loss=gspo") == composed("loss=gspo")
    points = [settled(own, "capped", "sweep=grid", f"experiment={point}", "loss=gspo") for point in ("null", "dapo")]
    assert [point["grpo"]["dead_groups"] for point in points] == ["kept", "resampled"]
    assert [point["loss"] for point in points] == [composed("loss=gspo")["loss"]] * 2


def settled(folder: Path, name: str, *words: str) -> dict[str, Any]:
    """A sweep's job of these words."""
    door.register_resolvers()
    flags = get_args_parser().parse_args(["--config-dir", str(folder), "--config-name", name])
    with composing.configs(flags):
        config = hydra.compose(name, [], return_hydra_config=True)
        with open_dict(config):
            config.hydra.job.config_name = name
        return door.plain(hydra.compose(name, probe.job_overrides(words, config)))


@pytest.mark.parametrize(("name", "more"), [("config", ["sweep=own"]), ("swept", [])])
def test_a_sweeps_own_values_give_way_to_an_option_too(own: Path, name: str, more: list[str]) -> None:
    job = settled(own, name, *more, "optim=adamw_cosine")
    assert (job["kl"]["coef"], job["loss"]["clip_high"], job["steps"]) == (0.05, 0.28, 40)
    assert job["optim"]["lr"] == 0.25, "an option that the recipe varies has the recipe's values"
    for how in ([], ["sampler=random"], ["pruner=median", "hydra/launcher=basic"]):  # groups that only a sweep has
        job = settled(own, name, *more, "optim=adamw", "kl=adaptive", "loss=gspo", *how)
        assert job["kl"] == composed("kl=adaptive")["kl"]
        assert job["loss"] == composed("loss=gspo")["loss"]
        assert job["grpo"] == composed("experiment=dapo")["grpo"]
        assert job["optim"]["lr"] == 0.25


@pytest.mark.hydra
def test_a_sweep_does_by_point_what_a_single_run_does_at_its_start(own: Path) -> None:
    flags = ["--config-dir", str(own), "-m", "--config-name", "swept"]
    assert door.arrange([*flags, "kl=adaptive"], "config") == [*flags, "kl=adaptive"]
    assert door.arrange(["-m", "sweep=kl_types", "kl=adaptive"], "config") == ["-m", "sweep=kl_types", "kl=adaptive"]
    shipped = settled(own, "config", "sweep=kl_types", "kl=adaptive", "grpo.kl_type=k1")
    assert shipped["kl"] == composed("kl=adaptive")["kl"]
