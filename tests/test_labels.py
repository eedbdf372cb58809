"""Names, groups and tags that a reader recognizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookexp.run_folder import labels

FOLDER = Path("outputs/train/2026-01-02_03-04-05_b9a0c0")


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "train-b9a0c0"),
        (["optim.lr=2e-6", "+model.lora=8", "kl=adaptive"], "lr=2e-6,lora=8,kl=adaptive-b9a0c0"),
        (["optim.lr=1.5e-4", "experiment=x", "optim=y", "optim.lr=8e-5"], "experiment=x,optim=y,lr=8e-5-b9a0c0"),
        (["kl.coef=0", "loss.coef=1", "~debug"], "kl.coef=0,loss.coef=1,debug-b9a0c0"),
        (["track=local", "track.wandb.mode=offline", "resume='x'", "task_name=z"], "train-b9a0c0"),
        (["hub.token=hush", "+wandb.api_key=hush", "steps=2"], "steps=2-b9a0c0"),
    ],
)
def test_a_name_is_what_was_typed_and_where_it_lies(overrides: list[str], name: str) -> None:
    assert labels.name_of(overrides, job=None, task_name="train", folder=FOLDER) == name


def test_a_sweeps_job_has_its_number_in_front() -> None:
    folder = Path("multirun/lr/12")
    assert labels.name_of(["optim.lr=2e-6", "seed=1"], job=12, task_name="train", folder=folder) == "12-lr=2e-6,seed=1"
    assert labels.name_of([], job=0, task_name="train", folder=folder) == "0-train"


def test_long_names_and_tags_are_cut() -> None:
    words = [f"grpo.key_number_{i}={i}" for i in range(20)]
    assert len(labels.short(words)) == labels.LONGEST
    (tag,) = labels.tags_of({"model": "m" * 100})
    assert len(tag) == labels.LONGEST_TAG


def test_tags_are_the_options_that_decide_what_is_trained() -> None:
    choices = {"kl": "adaptive", "experiment": None, "track": "default", "hydra": "default", "hydra/launcher": "basic"}
    choices |= {"sweep": "grid", "sampler": "tpe", "model": "rook_nano"}
    assert labels.tags_of(choices) == ["kl=adaptive", "model=rook_nano"]
