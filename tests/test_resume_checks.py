"""What a run that goes on must keep: as a sweep's job all that trains it, else what it is measured by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import config, make

from rookexp.errors import ConfigError
from rookexp.run_folder import resume_checks


def begun(folder: Path, **changes: Any) -> Path:
    """A run with a checkpoint."""
    make(folder, **changes)
    (folder / "checkpoints" / "step-000005").mkdir(parents=True)
    return folder


def refused(folder: Path, *, swept: bool = False, **changes: Any) -> str:
    """The message with which a run under other settings is refused, after its folder; "" where it goes on."""
    try:
        resume_checks.refuse_other(folder, config(**changes), swept=swept)
    except ConfigError as error:
        return str(error).removeprefix(f"{folder}: ")
    return ""


ENGINE = {f"reward.engine.{name}" for name in ("path", "processes", "timeout_s", "retries", "cache")}
MEASURE = {
    "seed",
    "task",
    "task.seed",
    "task.own",
    "reward",
    "reward.best",
    "reward.engine.depth",
    "reward.engine.paths",
}
MEASURE |= {
    "eval.positions",
    "eval.positions.P",
    "eval.max_new_tokens",
    "eval._target_",
    "task.sampling.P.max_new_tokens",
    "corpus",
    "validation_documents",
}
FREE = {"optim.lr", "task_name", "rewarded", "eval.every", "seeds", "model.seed", "hardware.device", "grpo.temperature"}
FREE |= {"task.sampling.P.temperature", "task.total_steps", "task.schedule", "task.prompts", "verdict"}
FREE |= {"batch_documents", "prompt_weight", "eval_every"}


@pytest.mark.parametrize("key", sorted(MEASURE | ENGINE | FREE))
def test_what_a_value_decides(key: str) -> None:
    assert resume_checks._measures(key, {}) is (key in MEASURE)
    untrained = {"hardware.device", "task_name", "verdict"}
    assert resume_checks._trains(key, {}) is (key not in untrained)


@pytest.mark.parametrize(
    ("before", "measured"),
    [
        ({"task.order": "fixed"}, True),
        ({"task.order": "fixed", "hardware.grow": "memory"}, True),
        ({"task.order": "fixed", "hardware.grow": "batch"}, False),  # a number that the run has found
        ({"task.order": "epochs"}, False),  # of a step: the evaluation asks all
        ({"order": "fixed"}, False),
    ],
)
def test_the_number_of_prompts_is_a_measure_where_the_evaluation_asks_those(
    before: dict[str, str], measured: bool
) -> None:
    assert resume_checks._measures("task.prompts", before) is measured
    assert not resume_checks._measures("grpo.prompts", {"grpo.order": "fixed"})


@pytest.mark.parametrize(
    ("key", "one", "other", "same"),
    [
        ("optim.lr", 1, 1.0, True),
        ("optim.lr", 1, 2, False),
        ("task.positions", "/here/a.jsonl", "/there/a.jsonl", True),
        ("task.data", "/here/a", "/there/a", True),
        ("task.data", "/here/a", "/here/b", False),
        ("corpus", "/here/a", "/there/a", True),
        ("corpus", "/here/a", "/here/b", False),
        ("task.data", None, "/here/a", False),
        ("task.data", "/here/a", None, False),
        ("positions", "/here/a", "/there/a", True),
        ("task.named", "/here/a", "/there/a", False),
        ("model.path", "/one/rookexp/assets/x/y", "/two/rookexp/assets/x/y", True),
        ("model.path", "/one/rookexp/assets/x", "/one/rookexp/assets/y", False),
        ("model.path", "/one/rookexp/assets/x", "/one/x", False),
        ("model.path", "/one/x", "/one/rookexp/assets/x", False),
    ],
)
def test_data_may_have_moved(key: str, one: Any, other: Any, same: bool) -> None:
    assert resume_checks._same(key, one, other) is same


def test_a_run_goes_on_with_another_rate_and_a_job_of_a_sweep_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(tmp_path / "run")
    assert refused(folder) == refused(folder, swept=True) == ""
    other = {"optim.lr": 1e-3}
    assert capsys.readouterr().out == ""
    assert refused(folder, **other, **{"hardware.device": "cuda"}) == ""
    assert capsys.readouterr().out.startswith("from step-000005 on: optim.lr was 0.0001, now 0.001")
    assert refused(folder, swept=True, **other).startswith(
        "a job of a sweep, whose values are the sweep's: optim.lr was 0.0001, now 0.001; to train on with others copy"
    )
    assert refused(folder, swept=True, **{"hardware.device": "cuda", "task_name": "other", "resume": "x"}) == ""
    assert "seed was 0, now 1; to" in refused(folder, swept=True, seed=1)


def test_a_key_that_comes_or_goes_is_a_difference_and_a_seed_that_follows_is_none(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", **{"reward.old": True})
    assert "evaluation: reward.old was true, now absent; a new" in refused(folder)
    assert "reward.old was true, now absent; reward.new was absent, now 1; a" in refused(folder, **{"reward.new": 1})
    drawn = begun(tmp_path / "drawn", **{"task.seed": 0})
    assert "evaluation: seed was 0, now 1; a new" in refused(drawn, **{"seed": 1, "task.seed": 1})
    assert "evaluation: task.seed was 0, now 1; a new" in refused(drawn, **{"task.seed": 1})


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, "; and 1 more"), (5, "; and 2 more")])
def test_three_differences_are_told_and_the_others_counted(count: int, more: str, tmp_path: Path) -> None:
    old, new = ({f"reward.r{i}": sign * (i + 1) for i in range(count)} for sign in (1, -1))
    told = "; ".join(f"reward.r{i} was {i + 1}, now {-i - 1}" for i in range(3))
    assert f"evaluation: {told}{more}; a new one" in refused(begun(tmp_path / "run", **old), **new)


def test_what_a_checkpoint_has_is_not_typed_anew(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    kl = {"_target_": "x.AdaptiveKL", "coef": 0.005}
    folder = begun(tmp_path / "run", model={"path": str(base)}, kl=kl)
    said = refused(folder, model={"path": "other"}, kl=kl)
    assert "now other: a run that goes on has it from its checkpoint; leave it out" in said
    assert refused(folder, model={"path": str(base)}, kl=kl) == ""
    said = refused(folder, model={"path": str(base)}, kl=kl | {"coef": 0.03})
    assert said.startswith("kl.coef was 0.005, now 0.03: a run that goes on has it from its checkpoint")
    base.rmdir()
    assert refused(folder, model={"path": "moved"}, kl=kl) == "", "its folder has been moved"
    fixed = begun(tmp_path / "fixed", kl=kl | {"_target_": "x.FixedKL"})
    assert refused(fixed, kl={"_target_": "x.FixedKL", "coef": 0.03}) == ""


def test_a_secret_is_no_difference(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", **{"reward.api_key": "***"})
    assert refused(folder, **{"reward.api_key": "abc"}) == ""


def test_there_is_nothing_to_keep_before_the_first_checkpoint_or_without_a_configuration(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    assert refused(folder, seed=1) == ""
    begun(tmp_path / "other")
    assert refused(tmp_path / "other", seed=1) != ""
    (tmp_path / "other" / "config.yaml").unlink()
    assert refused(tmp_path / "other", seed=1) == ""
