"""A group's option that is typed beside a recipe stands as its file has it."""

from __future__ import annotations

from typing import Any

import hydra
import pytest

from rookexp import build, composing, door, recipes
from rookexp.errors import ConfigError


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


def test_several_groups_and_a_preset_over_them() -> None:
    config = composed("experiment=ppo", "grpo=default", "baseline=group_mean", "kl=none", "debug=fast")
    alone = composed("grpo=default", "baseline=group_mean", "kl=none", "debug=fast")
    assert [config[name] for name in ("grpo", "baseline", "kl")] == [alone[n] for n in ("grpo", "baseline", "kl")]


def test_nothing_is_added_where_no_option_was_typed_or_several_are_swept() -> None:
    for words in (["experiment=grpo"], ["baseline=rloo"], ["experiment=grpo", "kl.coef=0.1"], ["experiment=null"]):
        assert door.arrange(words, "config") == words
    for words in (["-m", "experiment=grpo", "track=local,tensorboard"], ["-m", "experiment=grpo,dapo", "track=local"]):
        assert door.arrange(words, "config") == words
    for words in (["-m", "experiment=grpo,dapo", "baseline=rloo"], ["-m", "experiment=dapo", "loss=gspo,clip"]):
        assert door.arrange([*words, "sweep=grid"], "config") == [*words, "sweep=grid"]
        with pytest.raises(ConfigError, match=rf"{words[2]}: beside a recipe .* add sweep=grid"):
            door.arrange(words, "config")


def test_flags_stay_in_front_and_a_second_arrangement_changes_nothing() -> None:
    words = door.arrange(["--cfg", "job", "experiment=grpo", "baseline=rloo"], "config")
    assert words[:2] == ["--cfg", "job"]
    assert "~baseline.std" in words
    assert door.arrange(words, "config") == words


def test_a_misspelt_option_is_left_to_the_message_that_explains_it() -> None:
    assert door.arrange(["experiment=grpo", "kl=nne"], "config") == ["experiment=grpo", "kl=nne"]
