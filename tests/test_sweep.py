"""Sweeps as a shell meets them: exact grids, seeds, samplers, recipes, and what is left to read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sweep_task
from sweeping import LR, Sweeps, lrs, started

from rookexp.comparison import points as comparison


@pytest.mark.hydra
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_grid_is_exact_and_in_order_whatever_the_sampler(sampler: str, sweep: Sweeps) -> None:
    sweep(f"optim.lr=0.2,0.1 grpo.kl_type=k1,k3 sampler={sampler}")
    points = [(row["params_optim.lr"], row["params_grpo.kl_type"]) for row in sweep.rows()]
    assert points == [("0.2", "k1"), ("0.2", "k3"), ("0.1", "k1"), ("0.1", "k3")]
    assert started(sweep.log()) == [0, 1, 2, 3]
    assert sweep.status == 0


def test_no_recipe_can_be_a_point_beside_recipes(sweep: Sweeps) -> None:
    sweep("experiment=null,dapo")
    assert sweep.column("params_experiment") == ["null", "dapo"]
    assert [sweep.config(job)["loss"]["clip_high"] for job in range(2)] == [0.2, 0.28]


def test_a_recipe_of_ones_own_gives_way_to_an_option_that_varies(sweep: Sweeps, tmp_path: Path) -> None:
    (tmp_path / "é" / "experiment").mkdir(parents=True)
    (tmp_path / "é" / "experiment" / "own.yaml").write_text(
        "# @package _global_\ndefaults: [{override /loss: clip}]\nseed: 5\nloss: {clip_low: 0.111, clip_high: 0.222}\n"
    )
    sweep(f"hydra.searchpath=['file://{tmp_path}/é'] experiment=own loss=clip,gspo")
    configs = [sweep.config(job) for job in range(2)]
    assert [config["loss"]["clip_high"] for config in configs] == [0.2, 0.0004], "as the options' own files have it"
    assert [config["seed"] for config in configs] == [5, 5], "as the recipe has it"


@pytest.mark.parametrize("how", ["sampler=random sweep.n_trials=2", "pruner=median"])
def test_a_sampler_and_a_pruner_stand_beside_a_recipe_and_an_option(how: str, sweep: Sweeps) -> None:
    sweep(f"experiment=dapo loss=gspo optim.lr=0.1,0.2 sweep.study_name=debug {how}")
    assert sweep.column("state") == ["complete"] * 2
    assert sweep.config(0)["loss"] == {"_target_": "rookexp.losses.Gspo", "clip_low": 3e-4, "clip_high": 4e-4}


def test_recipes_that_vary_are_in_one_folder_whatever_they_are_called(sweep: Sweeps) -> None:
    sweep("experiment=grpo,dapo", fast="steps=3 track=local")  # debug=fast would call them all debug
    assert sweep.status == 0
    folder = sweep.folder.with_name("train")
    assert sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name.isdigit()) == ["0", "1"]
    assert [path.name for path in folder.parent.iterdir()] == ["train"]


@pytest.mark.hydra
def test_seeds_are_part_of_a_point(sweep: Sweeps) -> None:
    sweep(f"{LR} sweep.seeds=[3,5]")
    assert started(sweep.log()) == [0, 1, 2, 3, 4, 5]
    notes = [json.loads((sweep.folder / str(job) / "trial.json").read_text(encoding="utf-8")) for job in range(6)]
    assert [(note["trial"], note["seed"]) for note in notes] == [(0, 3), (0, 5), (1, 3), (1, 5), (2, 3), (2, 5)]
    configs = [sweep.config(job) for job in range(6)]
    assert [config["seed"] for config in configs] == [3, 5] * 3
    assert len({config["task"]["seed"] for config in configs}) == 1, "else points are asked different prompts"
    # gain = steps * (lr - seed / 10), so that the mean over both seeds is 3 (lr - 0.4)
    assert [float(gain) for gain in sweep.column("gain")] == pytest.approx([3 * (lr - 0.4) for lr in (0.1, 0.2, 0.3)])
    assert sweep.results()["best_params"] == {"optim.lr": 0.3}
    assert sweep.results()["best_value"] == pytest.approx(-0.3)
    about = json.loads((sweep.folder / "sweep.json").read_text(encoding="utf-8"))
    assert about["seeds"] == [3, 5]
    assert about["params"] == {"optim.lr": "0.1,0.2,0.3"}
    assert about["objectives"] == [{"name": "gain", "direction": "maximize"}]


def test_the_table_says_what_the_seeds_show_and_the_same_command_runs_nothing(sweep: Sweeps) -> None:
    line = f"{LR} sweep.seeds=2 sweep.baseline={{optim.lr:2e-1}}"
    sweep(line)
    lines = [line for line in sweep.said.splitlines() if line[:1] in "012" and "[" in line]
    assert [line[0] for line in lines] == ["2", "1", "0"], "best first"
    assert "(baseline)" in lines[1]
    assert lines[0].rstrip().endswith("+0.300 cannot tell, 2 seeds"), "without a spread there is no interval"
    assert "beside trial 1" in sweep.said
    assert "best: trial 2, optim.lr=0.3\n" in sweep.said
    assert f"python -m rookexp.compare {sweep.folder}" in sweep.said
    assert f"optuna-dashboard {sweep.folder}/study.journal" in sweep.said
    assert "importance" not in sweep.said, "of the only parameter"
    before, table = sweep.files(), sweep.rows()
    assert sweep(line) == []
    assert "3 points x 2 seeds = 6 jobs" in sweep.said
    assert "; 3 of the points done" in sweep.said, "not of the jobs"
    after = sweep.files()
    assert all(after[path] == before[path] for path in before if path.parent != sweep.folder), "each run's folder"
    assert sweep.rows() == table


def test_points_that_nothing_separates_have_no_best(sweep: Sweeps) -> None:
    sweep("grpo.kl_type=k1,k2")
    assert "nothing separates the 2 points: gain the same in all; what varies has no effect on it here" in sweep.said
    assert "best: " not in sweep.said


def test_as_good_as_the_best_is_named(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 grpo.kl_type=k1,k2")
    chance = r"\(by chance 33 %, once in twenty over (89|90|91) %\)"
    assert re.search(rf"importance: optim\.lr 100 % {chance}, grpo\.kl_type 0 % {chance}", sweep.said)
    assert "best: trial 2, optim.lr=0.2 grpo.kl_type=k1; as good: trial 3" in sweep.said


def test_an_option_of_a_group_can_be_the_baseline(sweep: Sweeps) -> None:
    sweep("baseline=group_mean,none sweep.baseline={baseline:none}")
    assert "beside trial 1" in sweep.said
    found = comparison.compare([sweep.folder])
    assert found.baseline.name == "#1"
    assert not any("has no run here" in note for note in found.notes)


def test_values_in_brackets_are_shown_as_they_are(sweep: Sweeps) -> None:
    sweep('eval.positions="a[/y]","[red]" optim.lr=0.1')
    assert sweep.column("state") == ["complete", "complete"]
    table = sweep.said[sweep.said.index("trial  ") : sweep.said.index("nothing separates")]
    assert "a[/y]" in table
    assert "[red]" in table


def test_a_constraint_decides_who_can_be_best(sweep: Sweeps) -> None:
    sweep("optim.lr=0.2,0.1 kl.coef=0,1 sweep.constraints=['kl>=0.5']")
    assert sweep.results()["best_params"] == {"optim.lr": 0.2, "kl.coef": 1}
    assert "breaks kl >= 0.5" in sweep.said


@pytest.mark.hydra
def test_several_objectives_have_no_single_best(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 kl.coef=0,1 sweep.objective=[gain,kl] sweep.direction=[maximize,minimize]")
    found = [solution["params"] for solution in sweep.results()["solutions"]]
    assert found == [{"optim.lr": 0.2, "kl.coef": 0}]
    assert "not dominated: trial 2" in sweep.said


def test_points_under_different_rewards_are_not_ranked(sweep: Sweeps) -> None:
    sweep("reward=policy,binary optim.lr=0.1 sweep.seeds=2")
    assert sweep.column("state") == ["complete", "complete"]
    assert "not compared: not the same measure: reward._target_ differs" in " ".join(sweep.said.split())
    assert "no best point, for not all are measured alike; trial 1 beside trial 0" in sweep.said
    assert "best: trial" not in sweep.said
    assert sweep.results()["best_params"] is None


def test_a_sampler_never_runs_a_point_twice_and_ends_with_the_space(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 kl.coef=0,1 sampler=tpe sweep.n_trials=50")
    points = [(row["params_optim.lr"], row["params_kl.coef"]) for row in sweep.rows()]
    assert len(points) == len(set(points)) == 4
    assert len(started(sweep.log())) == 4


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_points_that_are_run_together_are_different_ones(sampler: str, sweep: Sweeps) -> None:
    sweep(f"optim.lr=0.1,0.2,0.3,0.4 sampler={sampler} sweep.n_trials=4 sweep.n_jobs=4")
    assert sorted(lrs(sweep.rows())) == [0.1, 0.2, 0.3, 0.4]
    assert len(started(sweep.log())) == 4


@pytest.mark.parametrize(
    ("sampler", "words", "trials"),
    [
        ("gp", "sweep.sampler.n_startup_trials=3", 5),
        ("cmaes", "", 3),
        ("qmc", "", 3),
        ("nsga2", "sweep.sampler.population_size=2", 4),
        ("nsga3", "sweep.sampler.population_size=2", 4),
    ],
)
def test_every_sampler_draws_goes_on_and_stays_in_the_space(
    sampler: str, words: str, trials: int, sweep: Sweeps
) -> None:
    line = f"optim.lr=interval(0.1,0.5) kl.coef=interval(0,1) sampler={sampler} {words}"
    sweep(f"{line} sweep.n_trials=2")
    assert started(sweep(f"{line} sweep.n_trials={trials}")) == list(range(2, trials))
    assert sweep.status == 0
    drawn = lrs(sweep.rows())
    assert len(set(zip(drawn, sweep.column("params_kl.coef"), strict=True))) == trials
    assert all(0.1 <= lr <= 0.5 for lr in drawn)
    if sampler == "gp":  # which has a model of what it has seen: the gain rises with the rate
        assert max(drawn[3:]) >= max(drawn[:3])


def test_a_required_verdict_is_the_sweeps_status(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = sweep_task.JsonlTracker.summary

    def judged(self: sweep_task.JsonlTracker, values: dict[str, Any]) -> None:
        summary(self, {**values, "verdict": {"passed": self.folder.name != "1"}})

    monkeypatch.setattr(sweep_task.JsonlTracker, "summary", judged)
    sweep("optim.lr=0.1,0.2 verdict=report")
    assert sweep.status == 0
    for _ in range(2):
        sweep(f"{LR} verdict=require sweep.study_name=required")
        assert sweep.status == 1
        folder = sweep.folder.with_name("required")
        assert sweep.error.splitlines()[-1] == f"error: sweep required: a verdict is FAIL, of job 1 in {folder}"
        assert "best: trial 2" in sweep.said


RECIPES = sorted(path.stem for path in (Path(__file__).parent.parent / "conf" / "sweep").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "grid"])
def test_every_recipe_is_a_sweep(recipe: str, sweep: Sweeps) -> None:
    first = "steps=1 sweep.study_name=debug sweep.seeds=1 sweep.max_failure_rate=0"
    sweep(first if recipe == "lr_beta_entropy" else f"{first} sweep.n_trials=2", f"sweep={recipe}")
    assert sweep.status == 0, sweep.error
    assert set(sweep.column("state")) == {"complete"}
    assert (sweep.config(0)["save_every"], sweep.config(0)["keep_checkpoints"]) in ((1, 1), (2, 1))
    if recipe == "lr_beta_entropy":  # the log's twelve points, in its order
        keys = ["params_optim.lr", "params_kl.coef", "params_grpo.entropy_coef"]
        points = [tuple(float(row[key]) for key in keys) for row in sweep.rows()]
        assert points == [(lr, kl, h) for lr in (2e-6, 3e-6) for kl in (0, 0.0025, 0.005) for h in (0, 0.005)]


def test_the_name_optuna_is_ours_where_it_is_free(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 hydra/sweeper=optuna", "")
    assert sweep.column("state") == ["complete"] * 2


@pytest.mark.hydra
def test_hydras_own_sweep_ends_with_a_table(sweep: Sweeps) -> None:
    sweep(f"{LR} seed=0,1 hydra.sweep.dir=multirun/debug", "")
    assert started(sweep.log()) == [0, 1, 2, 3, 4, 5]
    header, *lines = [line.split() for line in sweep.said.splitlines()[-8:-1]]
    assert header == ["job", "optim.lr", "seed", "gain", "reward", "kl", "entropy", "seconds", "ended"]
    assert lines[3] == ["3", "0.2", "1", "0.3", "0.3", "0.005", "-", "4", "finished"]
    assert sweep.said.splitlines()[-1].startswith("compare: python -m rookexp.compare ")


def test_hydras_own_sweep_has_one_folder_whatever_its_recipes_are_called(sweep: Sweeps, tmp_path: Path) -> None:
    sweep("task_name=one,two", "")
    (folder,) = (tmp_path / "multirun").iterdir()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["0", "1"]
