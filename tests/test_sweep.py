"""Sweeps as a shell meets them: exact grids, seeds, failures, pruning, going on, and what is left to read."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import hydra
import optuna
import pytest
import sweep_task
import yaml
from omegaconf import OmegaConf

from rookexp import train
from rookexp.comparison import points as comparison
from rookexp.config import door
from rookexp.config.composing import conf_dir, version_base
from rookexp.errors import RunPruned
from rookexp.sweep import job, liveness, settings
from rookexp.sweep.settings import Settings

FAST = "debug=fast steps=3 kl=fixed"
LR = "optim.lr=0.1,0.2,0.3"


class Sweeps:
    """Types commands in an empty folder, and reads what they leave."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder / "multirun" / "debug"
        self.monkeypatch = monkeypatch
        self.capfd = capfd
        self.status = 0
        self.error = self.said = ""

    def __call__(self, line: str, recipe: str = "sweep=grid") -> list[str]:
        """Runs `-m sweep=grid` with the words of a line; what the jobs have noted meanwhile."""
        before = len(self.log())
        self.monkeypatch.setattr(sys, "argv", ["train", "-m", *recipe.split(), *FAST.split(), *line.split()])
        self.status = 0
        try:
            door.enter(sweep_task.task, "config")
        except SystemExit as end:
            self.status = end.code if isinstance(end.code, int) else 1
        self.said, self.error = self.capfd.readouterr()
        return self.log()[before:]

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def rows(self) -> list[dict[str, str]]:
        """trials.csv."""
        return list(csv.DictReader((self.folder / "trials.csv").read_text(encoding="utf-8").splitlines()))

    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / "optimization_results.yaml").read_text(encoding="utf-8"))
        return found

    def column(self, name: str) -> list[str]:
        return [row[name] for row in self.rows()]


@pytest.fixture
def sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], quiet_logging: None
) -> Sweeps:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.FULL_ERROR, raising=False)
    return Sweeps(tmp_path, monkeypatch, capfd)


def started(notes: list[str]) -> list[int]:
    return [int(note.split()[0]) for note in notes if " start " in note]


def lrs(rows: list[dict[str, str]]) -> list[float]:
    return [float(row["params_optim.lr"]) for row in rows]


# ---- grids and seeds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_a_grid_is_exact_and_in_order_under_every_sampler(sampler: str, sweep: Sweeps) -> None:
    sweep(f"optim.lr=0.1,0.2 grpo.kl_type=k1,k2,k3 sampler={sampler}")
    points = [(row["params_optim.lr"], row["params_grpo.kl_type"]) for row in sweep.rows()]
    assert points == [(lr, kl) for lr in ("0.1", "0.2") for kl in ("k1", "k2", "k3")]
    assert started(sweep.log()) == [0, 1, 2, 3, 4, 5]
    assert sweep.status == 0


@pytest.mark.slow
def test_the_recipe_of_the_log_has_its_twelve_points(sweep: Sweeps) -> None:
    sweep("", "sweep=lr_beta_entropy sweep.study_name=debug steps=1")
    keys = ["params_optim.lr", "params_kl.coef", "params_grpo.entropy_coef"]
    points = [tuple(float(row[key]) for key in keys) for row in sweep.rows()]
    assert points == [(lr, kl, h) for lr in (2e-6, 3e-6) for kl in (0, 0.0025, 0.005) for h in (0, 0.005)]


def test_no_recipe_can_be_a_point_beside_recipes(sweep: Sweeps) -> None:
    sweep("experiment=null,dapo")
    assert sweep.column("params_experiment") == ["null", "dapo"]
    configs = [yaml.safe_load((sweep.folder / str(job) / "config.yaml").read_text("utf-8")) for job in range(2)]
    assert [config["loss"]["clip_high"] for config in configs] == [0.2, 0.28]


def test_a_recipe_of_ones_own_gives_way_to_an_option_that_varies(sweep: Sweeps, tmp_path: Path) -> None:
    (tmp_path / "é" / "experiment").mkdir(parents=True)
    (tmp_path / "é" / "experiment" / "own.yaml").write_text(
        "# @package _global_\ndefaults: [{override /loss: clip}]\nseed: 5\nloss: {clip_low: 0.111, clip_high: 0.222}\n"
    )
    sweep(f"hydra.searchpath=['file://{tmp_path}/é'] experiment=own loss=clip,gspo")
    configs = [yaml.safe_load((sweep.folder / str(job) / "config.yaml").read_text("utf-8")) for job in range(2)]
    assert [config["loss"]["clip_high"] for config in configs] == [0.2, 0.0004], "as the options' own files have it"
    assert [config["seed"] for config in configs] == [5, 5], "as the recipe has it"


@pytest.mark.parametrize("how", ["sampler=random sweep.n_trials=2", "pruner=median"])
def test_a_sampler_and_a_pruner_stand_beside_a_recipe_and_an_option(how: str, sweep: Sweeps) -> None:
    sweep(f"experiment=dapo loss=gspo optim.lr=0.1,0.2 sweep.study_name=debug {how}")
    assert sweep.column("state") == ["complete"] * 2
    config = yaml.safe_load((sweep.folder / "0" / "config.yaml").read_text("utf-8"))
    assert config["loss"] == {"_target_": "rookexp.losses.Gspo", "clip_low": 3e-4, "clip_high": 4e-4}


def test_recipes_that_vary_are_in_one_folder_whatever_they_are_called(
    sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "FAST", "steps=3 track=local")  # debug=fast would call them all debug
    sweep("experiment=grpo,dapo")
    assert sweep.status == 0
    folder = sweep.folder.with_name("train")
    assert sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name.isdigit()) == ["0", "1"]
    assert [path.name for path in folder.parent.iterdir()] == ["train"]


def test_seeds_are_part_of_a_point(sweep: Sweeps) -> None:
    sweep(f"{LR} sweep.seeds=[3,5]")
    assert started(sweep.log()) == [0, 1, 2, 3, 4, 5]
    notes = [json.loads((sweep.folder / str(job) / "trial.json").read_text(encoding="utf-8")) for job in range(6)]
    assert [(note["trial"], note["seed"]) for note in notes] == [(0, 3), (0, 5), (1, 3), (1, 5), (2, 3), (2, 5)]
    configs = [yaml.safe_load((sweep.folder / str(job) / "config.yaml").read_text("utf-8")) for job in range(6)]
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


def test_the_table_says_what_the_seeds_show(sweep: Sweeps) -> None:
    sweep(f"{LR} sweep.seeds=4 sweep.baseline={{optim.lr:0.2}}")
    lines = [line for line in sweep.said.splitlines() if line[:1] in "012" and "[" in line]
    assert [line[0] for line in lines] == ["2", "1", "0"], "best first"
    assert "(baseline)" in lines[1]
    assert lines[0].rstrip().endswith("+0.300 cannot tell, 4 seeds"), "without a spread there is no interval"
    assert "beside trial 1" in sweep.said
    assert "best: trial 2, optim.lr=0.3\nnot told apart from it by 4 seeds: trial 1, 0\n" in sweep.said
    assert f"python -m rookexp.compare {sweep.folder}" in sweep.said
    assert f"optuna-dashboard {sweep.folder}/study.journal" in sweep.said
    assert "importance" not in sweep.said, "of the only parameter"


def test_points_that_nothing_separates_have_no_best(sweep: Sweeps) -> None:
    sweep("grpo.kl_type=k1,k2,k3")
    assert "nothing separates the 3 points: gain the same in all; what varies has no effect on it here" in sweep.said
    assert "best: " not in sweep.said


def test_as_good_as_the_best_is_named(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 grpo.kl_type=k1,k2")
    chance = r"\(by chance 33 %, once in twenty over (89|90|91) %\)"
    assert re.search(rf"importance: optim\.lr 100 % {chance}, grpo\.kl_type 0 % {chance}", sweep.said)
    assert "best: trial 2, optim.lr=0.2 grpo.kl_type=k1; as good: trial 3" in sweep.said


# ---- going on -------------------------------------------------------------------------------------------------------


def test_the_same_command_again_runs_nothing_and_changes_no_run(sweep: Sweeps) -> None:
    sweep(f"{LR} sweep.seeds=2")
    before = {path: path.read_bytes() for path in sweep.folder.glob("[0-9]*/**/*") if path.is_file()}
    table = sweep.rows()
    assert sweep(f"{LR} sweep.seeds=2") == []
    assert "3 points x 2 seeds = 6 jobs" in sweep.said
    assert "; 3 of the points done" in sweep.said, "not of the jobs"
    assert {path: path.read_bytes() for path in before} == before
    assert sweep.rows() == table


def test_a_signal_ends_the_sweep_and_the_same_command_goes_on(sweep: Sweeps) -> None:
    line = "grpo.entropy_coef=0,0.4,0.01"
    sweep(line)
    assert sweep.status == 143
    assert "sweep debug: stopped; the same command goes on with it" in sweep.error
    assert sweep.column("state") == ["complete", "running", "waiting"]
    notes = sweep(line)
    assert notes[0] == "1 start 1", "where it was"
    assert started(notes) == [1, 2]
    assert sweep.column("state") == ["complete"] * 3


def test_more_values_add_points_and_keep_what_was_run(sweep: Sweeps) -> None:
    sweep("optim.lr=0.2,0.3 grpo.kl_type=k1,k2")
    assert started(sweep("optim.lr=0.1,0.2,0.3 grpo.kl_type=k1,k2")) == [4, 5]
    assert lrs(sweep.rows()) == [0.2, 0.2, 0.3, 0.3, 0.1, 0.1]
    assert started(sweep("optim.lr=0.1,0.2,0.3 grpo.kl_type=k1,k2,k3")) == [6, 7, 8]
    assert sweep.column("state") == ["complete"] * 9
    assert [float(v) for v in sweep.column("gain")] == pytest.approx([3 * lr for lr in lrs(sweep.rows())])


REFUSED = {
    "optim.lr=0.2,0.3": "holds runs that are not in the space any more (optim.lr=0.1): optim.lr was 0.1,0.2, now "
    "0.2,0.3; give their values too, or type another name, as in sweep.study_name=NAME",
    "optim.lr=0.1,0.2 steps=4": "holds another sweep: steps was 3, now 4; type another name",
    "optim.lr=0.1,0.2 kl.coef=0.5": "kl.coef was 0.005, now 0.5",
    "optim.lr=0.1,0.2 sweep.seeds=2": "seeds was [0], now [0, 1]",
    "optim.lr=0.1,0.2 sweep.objective=reward": "objectives was gain (maximize), now reward (maximize); type another",
    "optim.lr=0.1,0.2 sweep.constraints=['kl<=1']": "constraints was [], now ['kl<=1']",
    "kl.coef=0.1,0.2": "the parameters were optim.lr, now kl.coef",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_sweep_that_is_another_one_is_refused_with_the_difference(line: str, sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2")
    before = {path: path.read_bytes() for path in sweep.folder.rglob("*") if path.is_file()}
    assert sweep(line) == []
    assert sweep.status == 2
    assert sweep.error.count("\n") == 1
    assert REFUSED[line] in sweep.error
    assert {path: path.read_bytes() for path in before} == before


def test_what_may_differ_between_two_starts(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 hardware.threads=1")
    assert sweep("optim.lr=0.1,0.2 hardware.threads=2 keep_checkpoints=3") == []
    assert sweep.status == 0


def test_n_trials_is_a_total_and_going_on_draws_what_a_straight_sweep_would(sweep: Sweeps) -> None:
    line = "optim.lr=tag(log,interval(1e-3,1)) kl.coef=interval(0,1) sampler=random"
    sweep(f"{line} sweep.n_trials=6 sweep.study_name=straight")
    straight = sweep.folder.with_name("straight") / "trials.csv"
    sweep(f"{line} sweep.n_trials=2")
    assert len(sweep.rows()) == 2
    assert started(sweep(f"{line} sweep.n_trials=6")) == [2, 3, 4, 5]
    assert (sweep.folder / "trials.csv").read_text("utf-8") == straight.read_text("utf-8")
    assert len(set(lrs(sweep.rows()))) == 6


def test_n_trials_is_a_total_when_a_grid_goes_on_as_a_search(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, suggest = 0, optuna.trial.Trial._suggest

    def stopped(self: optuna.trial.Trial, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return suggest(self, *given)

    line = "optim.lr=0.1,0.2,0.3,0.4,0.5,0.6"
    with monkeypatch.context() as patch:
        patch.setattr(optuna.trial.Trial, "_suggest", stopped)
        sweep(line)
    assert sweep.column("state").count("complete") == 2
    assert len(started(sweep(f"{line} sweep.n_trials=3"))) == 1
    assert sweep.status == 0
    assert sweep.column("state").count("complete") == 3


def test_a_sampler_never_runs_a_point_twice_and_ends_with_the_space(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2,0.3 kl.coef=0,1 sampler=tpe sweep.n_trials=50")
    points = [(row["params_optim.lr"], row["params_kl.coef"]) for row in sweep.rows()]
    assert len(points) == len(set(points)) == 6
    assert len(started(sweep.log())) == 6


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_points_that_are_run_together_are_different_ones(sampler: str, sweep: Sweeps) -> None:
    sweep(f"optim.lr=0.1,0.2,0.3,0.4 sampler={sampler} sweep.n_trials=4 sweep.n_jobs=4")
    assert sorted(lrs(sweep.rows())) == [0.1, 0.2, 0.3, 0.4]
    assert len(started(sweep.log())) == 4


@pytest.mark.parametrize("call", [3, 4])  # of a point's two values neither has been chosen, or one
@pytest.mark.parametrize("again", ["", ",0.3"])
@pytest.mark.parametrize("search", ["", "sampler=tpe sweep.n_trials=4"])
def test_a_sweep_stopped_while_it_chooses_a_point_goes_on(
    search: str, again: str, call: int, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, calls, suggest = f"kl.coef=0,1 {search}", 0, optuna.trial.Trial._suggest

    def stopped(self: optuna.trial.Trial, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return suggest(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.trial.Trial, "_suggest", stopped)
        sweep(f"optim.lr=0.1,0.2 {line}")
    assert "stopped; the same command goes on with it" in sweep.error
    sweep(f"optim.lr=0.1,0.2{again} {line}")
    assert (sweep.status, sweep.error) == (0, "")
    points = list(zip(lrs(sweep.rows()), sweep.column("params_kl.coef"), strict=True))
    assert len(points) == len(set(points)) == (6 if again and not search else 4)
    assert set(sweep.column("state")) == {"complete"}


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ("gp", "sweep.sampler.n_startup_trials=3"),
        ("cmaes", ""),
        ("qmc", ""),
        ("nsga2", "sweep.sampler.population_size=2"),
        ("nsga3", "sweep.sampler.population_size=2"),
    ],
)
def test_every_sampler_draws_goes_on_and_stays_in_the_space(sampler: str, words: str, sweep: Sweeps) -> None:
    line = f"optim.lr=interval(0.1,0.5) kl.coef=interval(0,1) sampler={sampler} {words}"
    sweep(f"{line} sweep.n_trials=4")
    assert started(sweep(f"{line} sweep.n_trials=6")) == [4, 5]
    assert sweep.status == 0
    drawn = lrs(sweep.rows())
    assert len(set(zip(drawn, sweep.column("params_kl.coef"), strict=True))) == 6
    assert all(0.1 <= lr <= 0.5 for lr in drawn)
    if sampler == "gp":  # which has a model of what it has seen: the gain rises with the rate
        assert max(drawn[3:]) >= max(drawn[:3])


def test_a_database_keeps_the_study_as_the_journal_does(sweep: Sweeps) -> None:
    line = "optim.lr=0.1,0.2 sweep.storage=sqlite:///study.db"
    sweep(line)
    assert (sweep.folder / "study.db").is_file()
    assert not (sweep.folder / "study.journal").exists()
    assert sweep(line) == []
    assert started(sweep("optim.lr=0.1,0.2,0.3 sweep.storage=sqlite:///study.db")) == [2]
    assert sweep.results()["best_params"] == {"optim.lr": 0.3}
    assert f"optuna-dashboard sqlite:///{sweep.folder}/study.db" in sweep.said


@pytest.mark.parametrize("damage", ["garbage\n", None])
def test_a_damaged_study_is_refused_by_its_name(damage: str | None, sweep: Sweeps) -> None:
    sweep(LR)
    journal = sweep.folder / "study.journal"
    if damage is None:
        journal.unlink()
    else:
        journal.write_text(damage + journal.read_text(encoding="utf-8"), encoding="utf-8")
    assert sweep(LR) == []
    assert sweep.status == 2
    assert sweep.error.count("\n") == 1, sweep.error
    assert f"{sweep.folder}: sweep.json and study.journal do not make a study (" in sweep.error
    assert "type another name, as in sweep.study_name=NAME" in sweep.error


# ---- failures -------------------------------------------------------------------------------------------------------


def test_failures_are_trials_with_a_reason_and_the_sweep_goes_on(sweep: Sweeps) -> None:
    sweep("grpo.entropy_coef=0.1,0.2,0.3,0,0.01 sweep.max_failure_rate=1")
    assert sweep.column("state") == ["fail", "fail", "fail", "complete", "complete"]
    assert sweep.column("reason")[:3] == [
        "ZeroDivisionError: a mistake",
        "seed 0: gain is not a number, or was not logged",
        "step 0: not finite",
    ]
    assert "a mistake" in (sweep.folder / "0" / "error.txt").read_text(encoding="utf-8")
    assert sweep.status == 0


def test_the_same_command_tries_what_raised_again(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "grpo.entropy_coef=0.1,0.2,0.3,0{} sweep.max_failure_rate=1"
    sweep(line.format(""))
    assert started(sweep(line.format(""))) == [0], "what diverges is a result, and so is what logs no number"
    assert sweep.column("state") == ["fail", "fail", "fail", "complete"]
    assert "a mistake" in (sweep.folder / "0" / "error.txt").read_text(encoding="utf-8")
    monkeypatch.setattr(sweep_task, "RAISES", -1.0)
    assert sweep(line.format(",0.01"))[0] == "0 start 0", "now it is mended"
    assert sweep.column("state") == ["complete", "fail", "fail", "complete", "complete"]
    assert sweep.column("folders") == list("01234")
    assert not (sweep.folder / "0" / "error.txt").exists()
    assert sweep(line.format(",0.01")) == []


@pytest.mark.parametrize("words", ["sampler=random sweep.n_trials=3", "sweep.storage=sqlite:///study.db"])
def test_a_search_and_a_database_try_it_again_too(words: str, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"grpo.entropy_coef=0.1,0,0.01 {words}"
    sweep(line)
    (failed,) = (row["folders"] for row in sweep.rows() if row["state"] == "fail")
    monkeypatch.setattr(sweep_task, "RAISES", -1.0)
    assert started(sweep(line)) == [int(failed)]
    assert sweep.column("state") == ["complete"] * 3
    assert sweep(line) == []


def test_who_joins_a_sweep_tries_nothing_again(sweep: Sweeps) -> None:
    line = "grpo.entropy_coef=0.1,0,0.01"
    sweep(line)
    with liveness.Worker(sweep.folder):
        assert sweep(line) == []
    (sweep.folder / "workers" / "job-1").touch()
    assert started(sweep(line)) == [0]


def test_a_failed_job_that_was_mended_by_hand_counts(sweep: Sweeps) -> None:
    line = "grpo.entropy_coef=0.1,0 optim.lr=0.1,0.2 sweep.max_failure_rate=1"
    sweep(line)
    assert sweep.column("state") == ["fail", "fail", "complete", "complete"]
    note = (sweep.folder / "0" / "trial.json").read_text(encoding="utf-8")
    shutil.rmtree(sweep.folder / "0")
    shutil.copytree(sweep.folder / "2", sweep.folder / "0")
    (sweep.folder / "0" / "trial.json").write_text(note, encoding="utf-8")
    assert started(sweep(line)) == [1]
    assert sweep.column("state") == ["complete", "fail", "complete", "complete"]
    assert [float(gain or 0) for gain in sweep.column("gain")] == pytest.approx([0.3, 0, 0.3, 0.6])


def test_a_failed_point_may_be_taken_away(sweep: Sweeps) -> None:
    sweep("grpo.entropy_coef=0.01,0.1,0")
    assert sweep.column("state") == ["complete", "fail", "complete"]
    assert started(sweep("grpo.entropy_coef=0.01,0,0.02")) == [3]
    assert (sweep.status, sweep.error) == (0, "")
    assert sweep.column("state") == ["complete"] * 3
    assert sweep.column("folders") == ["0", "2", "3"]


def test_a_point_to_try_again_keeps_its_number_when_that_is_interrupted(
    sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "optim.lr=0.1,0.2{} grpo.entropy_coef=0.1,0 sweep.max_failure_rate=1"
    sweep(line.format(""))
    assert sweep.column("state") == ["fail", "complete", "fail", "complete"]

    def stopped(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_task, "RAISES", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(sweep_task, "train", stopped)
        sweep(line.format(""))
    assert sweep.status == 130
    assert sweep.column("state") == ["running", "complete", "waiting", "complete"]
    assert started(sweep(line.format(",0.3"))) == [0, 2, 4, 5]
    assert sweep.column("state") == ["complete"] * 6
    assert sweep.column("folders") == list("012345")


def test_a_value_that_makes_no_configuration_is_refused_before_anything_runs(sweep: Sweeps) -> None:
    assert sweep("kl=fixed,none kl.coef=0.1,0.2") == []
    assert sweep.status == 2
    assert sweep.error.startswith("error: kl.coef=0.1: kl=none has no keys; choose another option of kl")
    assert not sweep.folder.exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("baseline=group_mean,dr_grpp", "baseline=dr_grpp: allowed: "),
        ("optim.lr=1e-4,abc baseline=group_mean,none", "optim.lr=abc: allowed: a number > 0"),
        ("optim.lr=1e-4,2e-4 dry_run=true", "dry_run=true: not with a sweep"),
        ("optim.lr=1e-4,-1e-4 sweep.n_trials=2", "optim.lr=-0.0001: allowed: a number > 0"),
    ],
)
def test_what_a_training_would_refuse_no_sweep_begins(
    line: str, said: str, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "-m", "sweep=grid", *FAST.split(), *line.split()])
    with pytest.raises(SystemExit) as ended:
        train.main()
    error = sweep.capfd.readouterr().err
    assert ended.value.code == 2
    assert error.count("\n") == 1
    assert error.startswith(f"error: {said}")
    assert not sweep.folder.exists()


@pytest.mark.parametrize("words", ["sweep.objective=eval/rewrad", "sweep.constraints=['eval/rewrad<=1']"])
def test_a_figure_that_no_run_logs_ends_the_sweep_after_the_first_point(words: str, sweep: Sweeps) -> None:
    line = f"{LR} sweep.seeds=2 {words}"
    assert started(sweep(line)) == [0, 1]
    assert sweep.status == 2
    said = "error: sweep debug: no run logs eval/rewrad; did you mean eval/reward?; it is for sweep.objective and "
    assert sweep.error.startswith(said)
    assert sweep.error.count("\n") == 1
    assert sweep(line) == []
    assert sweep.error.startswith(said)
    assert started(sweep(line.replace("rewrad", "reward"))) == [2, 3, 4, 5], "the first point is not run again"
    assert sweep.column("state") == ["complete"] * 3
    assert sweep(line) == []
    assert re.search(r"(objectives|constraints) was .*, now .*rewrad", sweep.error), "now it is another sweep"


def test_without_a_greedy_reward_its_figures_end_the_sweep_after_the_first_point(
    sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sweep_task.JsonlTracker.log

    def less(self: sweep_task.JsonlTracker, step: int, metrics: dict[str, float]) -> None:
        log(self, step, {name: value for name, value in metrics.items() if name != job.GREEDY} | {"loss": 1.0 + step})

    monkeypatch.setattr(sweep_task.JsonlTracker, "log", less)
    assert started(sweep(LR)) == [0]
    assert sweep.error.startswith("error: sweep debug: no run logs gain; it is for sweep.objective and .constraints,")
    assert started(sweep(f"{LR} sweep.objective=loss")) == [1, 2]


def test_a_figure_that_one_point_does_not_log_fails_that_point(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    log = sweep_task.JsonlTracker.log

    def more(self: sweep_task.JsonlTracker, step: int, metrics: dict[str, float]) -> None:
        log(self, step, metrics if self.folder.name == "1" else metrics | {"extra": 1.0 + step})

    monkeypatch.setattr(sweep_task.JsonlTracker, "log", more)
    sweep(f"{LR} sweep.objective=extra")
    assert sweep.column("state") == ["complete", "fail", "complete"]
    assert sweep.column("reason")[1] == "seed 0: extra is not a number, or was not logged"


def test_a_required_verdict_is_the_sweeps_status(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = sweep_task.JsonlTracker.summary

    def judged(self: sweep_task.JsonlTracker, values: dict[str, Any]) -> None:
        summary(self, {**values, "verdict": {"passed": self.folder.name != "1"}})

    monkeypatch.setattr(sweep_task.JsonlTracker, "summary", judged)
    sweep(f"{LR} verdict=report")
    assert sweep.status == 0
    for _ in range(2):
        sweep(f"{LR} verdict=require sweep.study_name=required")
        assert sweep.status == 1
        folder = sweep.folder.with_name("required")
        assert sweep.error.splitlines()[-1] == f"error: sweep required: a verdict is FAIL, of job 1 in {folder}"
        assert "best: trial 2" in sweep.said


def test_a_full_disk_ends_the_sweep_and_the_same_command_goes_on(sweep: Sweeps) -> None:
    whole = ["1 start 0", "1 step 0", "1 step 1", "1 step 2", "1 step 3", "1 end"]
    line = "grpo.entropy_coef=0.6,0 sweep.max_failure_rate=0"
    assert sweep(line) == ["0 start 0", "0 step 0", "0 step 1"]
    assert sweep.status == 1
    assert f"sweep debug: {sweep.folder}/0: OSError: [Errno 28] No space" in sweep.error.splitlines()[-1]
    assert sweep.error.splitlines()[-1].endswith("; with more space the same command goes on")
    assert sweep(line) == ["0 start 1", "0 step 2", "0 step 3", "0 end", *whole]
    assert sweep.column("state") == ["complete", "complete"]


def test_a_folder_that_is_deleted_fails_its_point_alone(sweep: Sweeps) -> None:
    sweep("grpo.entropy_coef=0.7,0 sweep.max_failure_rate=1")
    assert sweep.column("state") == ["fail", "complete"]
    assert "No such file or directory" in sweep.column("reason")[0]
    assert "FileNotFoundError" in (sweep.folder / "0" / "error.txt").read_text(encoding="utf-8")


def test_a_baseline_is_named_by_value(sweep: Sweeps) -> None:
    sweep(f"{LR} sweep.baseline={{optim.lr:2e-1}}")
    assert "beside trial 1" in sweep.said


def test_an_option_of_a_group_can_be_the_baseline(sweep: Sweeps) -> None:
    sweep("baseline=group_mean,none,rloo sweep.baseline={baseline:none}")
    assert "beside trial 1" in sweep.said
    found = comparison.compare([sweep.folder])
    assert found.baseline.name == "#1"
    assert not any("has no run here" in note for note in found.notes)


def test_too_many_failures_end_it(sweep: Sweeps) -> None:
    notes = sweep("grpo.entropy_coef=0.1,0.2,0.3,0.01,0.02")
    assert started(notes) == [0, 1, 2]
    assert sweep.status == 1
    last = sweep.error.splitlines()[-1]
    assert last.startswith("error: sweep debug: 3 of 3 points failed, more than sweep.max_failure_rate=0.5")
    assert "trial 0: ZeroDivisionError: a mistake; trial 1: " in last


def test_a_seed_that_fails_fails_its_point(sweep: Sweeps) -> None:
    sweep("grpo.entropy_coef=0,0.3 sweep.seeds=2")
    assert sweep.column("reason") == ["", "seed 0: step 0: not finite"]


# ---- pruning, constraints, several objectives -----------------------------------------------------------------------


def test_a_hopeless_run_is_pruned_at_a_step_and_keeps_its_state(sweep: Sweeps) -> None:
    pruner = "pruner=median sweep.pruner.n_startup_trials=2 sweep.pruner.n_warmup_steps=2"
    sweep(f"optim.lr=0.3,0.2,0.01,0.4 {pruner}")
    assert sweep.column("state") == ["complete", "complete", "pruned", "complete"]
    assert sweep.column("reason")[2] == "pruned by MedianPruner after step 2, at 0.02"
    summary = json.loads((sweep.folder / "2" / "summary.json").read_text(encoding="utf-8"))
    assert summary == {"status": "pruned", "reason": "pruned by MedianPruner after step 2, at 0.02"}
    assert (sweep.folder / "2" / "state").read_text(encoding="utf-8") == "2"
    assert sweep(f"optim.lr=0.3,0.2,0.01,0.4 {pruner}") == [], "a pruned point is done"


def test_hyperband_ends_the_worse_of_a_bracket(sweep: Sweeps) -> None:
    words = "sweep.pruner.min_resource=1 sweep.pruner.max_resource=3"
    sweep(f"optim.lr=0.6,0.5,0.4,0.3,0.2,0.1 sweep.n_trials=null pruner=hyperband {words}")
    states = sweep.column("state")
    assert states[0] == "complete", "the best point goes to its end"
    assert "pruned" in states
    assert all(reason.startswith("pruned by HyperbandPruner after step") for reason in sweep.column("reason") if reason)


def test_a_point_that_is_computed_to_its_end_keeps_its_value(sweep: Sweeps) -> None:
    pruner = "pruner=median sweep.pruner.n_startup_trials=1 sweep.pruner.n_min_trials=1 sweep.pruner.n_warmup_steps=3"
    sweep(f"optim.lr=0.3,0.2,0.1 {pruner}")
    assert sweep.column("state") == ["complete"] * 3
    sweep("optim.lr=0.3,0.1 sweep.seeds=4 pruner=wilcoxon sweep.study_name=seeds")
    assert [path.name for path in sorted(sweep.folder.with_name("seeds").glob("[0-9]*"))] == list("01234567")
    trials = (sweep.folder.with_name("seeds") / "trials.csv").read_text(encoding="utf-8")
    assert "pruned" not in trials


def test_figures_are_of_runs_that_came_to_their_end(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1 grpo.entropy_coef=0,0.3 sweep.seeds=2 sweep.max_failure_rate=1")
    assert sweep.column("state") == ["complete", "fail"]
    assert sweep.column("seeds") == ["2", "0"]
    assert sweep.column("gain")[1] == ""


def test_nothing_is_pruned_unless_asked(sweep: Sweeps) -> None:
    sweep("optim.lr=0.3,0.2,0.01,0.001")
    assert sweep.column("state") == ["complete"] * 4


def test_a_pruned_seed_spares_the_others(sweep: Sweeps) -> None:
    pruner = "pruner=median sweep.pruner.n_startup_trials=2 sweep.pruner.n_warmup_steps=1"
    sweep(f"optim.lr=0.3,0.2,0.01 sweep.seeds=3 {pruner}")
    assert started(sweep.log()) == [0, 1, 2, 3, 4, 5, 6]
    assert sweep.column("state")[2] == "pruned"


def test_the_best_value_of_an_earlier_seed_speaks_for_no_later_one(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    for values in ((0.1, 0.2, 0.2, 0.3, 0.4, 0.5), (0.9, 0.9, 0.9)):  # two seeds of three steps; the first of another
        running = study.ask()
        for step, value in enumerate(values, 1):
            running.report(value, step)
        if len(values) == 6:
            study.tell(running, 0.5)
    pruner: dict[str, Any] = {"_target_": "optuna.pruners.MedianPruner"}
    note: dict[str, Any] = {"place": 1, "prune_on": "step", "trial_id": 1, "pruner": pruner}
    trial = job.Trial(note, tmp_path)
    trial._open = study
    ends: list[RunPruned] = []
    watched = trial.watching(lambda _: {job.GREEDY: 0.35}, 3, ends.append)
    watched(1)
    assert ends == [], "0.35, where the other point was at 0.3"
    watched(2)
    assert [str(end) for end in ends] == ["pruned by MedianPruner after step 2, at 0.35"], "beside 0.4"
    for spared in ({"pruner": {**pruner, "n_warmup_steps": 3}}, {"seeds": 2}):
        trial.note = note | spared
        watched(2 if "pruner" in spared else 3)
    assert len(ends) == 1, "each seed has its first steps, and a point that is computed to its end its value"


def prunes(how: Settings, folder: Path, points: int, seeds: int, steps: int, every: int) -> bool:
    """Whether the pruner ends one of some points, each worse than all before it."""
    study = optuna.create_study(direction="maximize", pruner=how.make_pruner(), study_name="a")
    for point in range(points):
        running = study.ask()
        for place in range(seeds):
            note = {"place": place, "seeds": seeds, "seed": place, "trial_id": point, "objective": "x"}
            trial = job.Trial(note | {"pruner": how.pruner, "prune_on": how.prune_on}, folder)
            trial._open = study
            worth = -point * (1 + place / 10)
            ends: list[RunPruned] = []
            watched = trial.watching(lambda _, worth=worth: {job.GREEDY: worth}, steps, ends.append)  # type: ignore[misc]
            for step in sorted({*range(0, steps, every), steps}):
                watched(step)
            trial.finished([{"step": steps, "x": worth}])
            if trial.pruned():
                return True
        study.tell(running, -point)
    return False


@pytest.mark.parametrize(
    ("pruner", "sizes"),
    [
        ("median", [(5, 1, 12, 1), (4, 1, 12, 1), (5, 1, 10, 1), (5, 1, 11, 1), (5, 2, 10, 1), (5, 2, 9, 1)]),
        ("median", [(5, 1, 15, 5), (5, 1, 15, 8), (5, 1, 17, 8), (5, 1, 12, 20), (5, 2, 12, 20)]),
        ("hyperband", [(9, 1, 45, 1), (9, 1, 6, 1), (9, 1, 5, 1), (9, 1, 9, 9)]),
        ("hyperband", [(9, 2, 5, 1), (9, 2, 3, 1), (9, 2, 2, 1)]),
        ("wilcoxon", [(2, 8, 1, 1), (2, 5, 1, 1), (2, 4, 1, 1), (2, 1, 1, 1)]),
        ("median sweep.prune_on=seed", [(5, 12, 1, 1), (5, 11, 1, 1), (5, 1, 20, 1)]),
        ("median sweep.prune_on=seed sweep.pruner.n_warmup_steps=0", [(5, 2, 1, 1), (5, 1, 1, 1)]),
        ("wilcoxon sweep.pruner.p_threshold=0.125", [(2, 5, 1, 1), (2, 4, 1, 1)]),
        ("wilcoxon sweep.pruner.p_threshold=0.3", [(2, 4, 1, 1), (2, 3, 1, 1)]),
    ],
)  # fmt: skip
def test_a_pruner_that_can_end_nothing_says_so_and_no_other_does(
    pruner: str, sizes: list[tuple[int, int, int, int]], tmp_path: Path
) -> None:
    words = f"sweep=grid pruner={pruner}".replace("sweep.", "hydra.sweeper.").split()
    with hydra.initialize_config_dir(str(conf_dir()), **version_base()):
        node = hydra.compose("config", words, return_hydra_config=True).hydra.sweeper
    node.study_name = "a"
    how = settings.settings(OmegaConf.to_container(node))
    for points, seeds, steps, every in sizes:
        why = how.never_prunes(points, seeds, [(steps, every)])
        assert (why is None) == prunes(how, tmp_path, points, seeds, steps, every), (points, seeds, steps, every, why)


def test_wilcoxon_gives_a_point_up_after_some_seeds(sweep: Sweeps) -> None:
    sweep("optim.lr=0.3,0.1 sweep.seeds=8 pruner=wilcoxon")
    assert sweep.column("state") == ["complete", "pruned"]
    count = len(started(sweep.log())) - 8
    assert 3 <= count < 8
    assert sweep.column("reason")[1].startswith(f"pruned by WilcoxonPruner after seed {count - 1}")


def test_a_constraint_decides_who_can_be_best(sweep: Sweeps) -> None:
    sweep("optim.lr=0.2,0.1 kl.coef=0,1 ++sweep.constraints=['kl>=0.5']".replace("++", ""))
    assert sweep.results()["best_params"] == {"optim.lr": 0.2, "kl.coef": 1}
    assert "breaks kl >= 0.5" in sweep.said


def test_several_objectives_have_no_single_best(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 kl.coef=0,1 sweep.objective=[gain,kl] sweep.direction=[maximize,minimize]")
    found = [solution["params"] for solution in sweep.results()["solutions"]]
    assert found == [{"optim.lr": 0.2, "kl.coef": 0}]
    assert "not dominated: trial 2" in sweep.said


def test_points_under_different_rewards_are_not_ranked(sweep: Sweeps) -> None:
    sweep("reward=policy,binary optim.lr=0.1 sweep.seeds=3")
    assert sweep.column("state") == ["complete", "complete"]
    assert "not compared: not the same measure: reward._target_ differs" in " ".join(sweep.said.split())
    assert "no best point, for not all are measured alike; trial 1 beside trial 0" in sweep.said
    assert "best: trial" not in sweep.said
    assert sweep.results()["best_params"] is None


def test_going_on_needs_no_folder_of_a_finished_point(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2")
    shutil.rmtree(sweep.folder / "0")
    sweep(LR)
    assert sweep.status == 0
    assert sweep.column("state") == ["complete"] * 3
    assert sweep.results()["best_params"] == {"optim.lr": 0.3}
    assert "note: of runs that are done, the folder is gone: 0; trials.csv keeps" in sweep.said


@pytest.mark.parametrize(
    ("lost", "line", "told"),
    [
        (["sweep.json"], LR, "its study has points, and sweep.json is gone; type another name"),
        (["sweep.json", "study.journal"], "optim.lr=0.3,0.2", "0: holds another run than that of optim.lr=0.3 seed=0;"),
        (["sweep.json", "study.journal"], f"{LR} sweep.seeds=[7]", "0: holds another run than that of optim.lr=0.1"),
        (["sweep.json", "study.journal", "0/trial.json"], LR, "0: holds another run than that of optim.lr=0.1"),
    ],
)
def test_no_run_of_another_point_is_taken_over(lost: list[str], line: str, told: str, sweep: Sweeps) -> None:
    sweep(LR)
    for name in lost:
        (sweep.folder / name).unlink()
    before = sorted(sweep.folder.glob("[0-9]*/*"))
    assert sweep(line) == []
    assert sweep.status == 2
    assert sweep.error.count("\n") == 1, sweep.error
    assert told in sweep.error
    assert sorted(sweep.folder.glob("[0-9]*/*")) == before


def test_a_sweep_without_its_study_takes_its_own_runs_again(sweep: Sweeps) -> None:
    sweep(LR)
    for name in ("sweep.json", "study.journal"):
        (sweep.folder / name).unlink()
    assert sweep(LR) == []
    assert sweep.status == 0
    assert sweep.column("state") == ["complete"] * 3


def test_values_in_brackets_are_shown_as_they_are(sweep: Sweeps) -> None:
    sweep('eval.positions="a[/y]","[red]" optim.lr=0.1')
    assert sweep.column("state") == ["complete", "complete"]
    table = sweep.said[sweep.said.index("trial  ") : sweep.said.index("nothing separates")]
    assert "a[/y]" in table
    assert "[red]" in table


# ---- mistakes -------------------------------------------------------------------------------------------------------

MISTAKES = {
    "optim.lrr=0.1,0.2": "optim.lrr=0.1: no such key; allowed in optim: ",
    "optim.lr=0.1": "sweep: nothing varies; give a key several values, as in optim.lr=1e-5,2e-5",
    "optim.lr=interval(0,1)": "optim.lr=interval(0,1): a grid needs listed values",
    "seed=1,2": "seed=1,2: seeds are part of a point; type sweep.seeds=[1,2]",
    "++seed=1,2": "seed=1,2: seeds are part of a point; type sweep.seeds=[1,2]",
    "task_name=a,b": "task_name=a,b: says where a run's files go or how it is watched, not what it trains",
    f"{LR} +track.wandb.name=a,b": "track.wandb.name=a,b: says where a run's files go",
    "optim.lr=0.1,0.2 hydra.sweep.subdir=x": "hydra.sweep.subdir=x: runs lie under their numbers",
    f"{LR} pruner=median sweep.objective=kl sweep.direction=minimize": "sweep.direction=minimize with a pruner that",
    "steps=2,3 pruner=median sweep.seeds=2": "steps=2,3: a pruner that looks after each step takes a point's seeds in",
    f"{LR} seed=3 sweep.seeds=2": "seed=3: sweep.seeds=2 says which; leave one of them out",
    f"{LR} sweep.baseline={{optim.lrr:0.1}}": "sweep.baseline={optim.lrr: 0.1}: allowed: what varies, optim.lr; did",
    f"{LR} sweep.baseline={{optim.lr:0.4}}": "sweep.baseline={optim.lr: 0.4}: allowed: one of optim.lr=0.1,0.2,0.3, or",
    "optim.lr=1,true": "optim.lr=1,true: a study cannot tell true from 1",
    f"{LR} sweep.seeds={{_target_:os.getcwd}}": "sweep.seeds={'_target_': 'os.getcwd'}: allowed: a value; only the",
    f"{LR} sweep.seeds=0": "sweep.seeds=0: allowed: an integer >= 1",
    f"{LR} sweep.study_name=../x": "sweep.study_name=../x: allowed: a name of a folder inside multirun",
    f"{LR} sweep.n_trails=3": "did you mean sweep.n_trials?",
    f"{LR} sweep.direction=up": "sweep.direction=up: allowed: maximize, minimize",
    f"{LR} sweep.constraints=[kl]": "sweep.constraints=kl: allowed: a figure, <= or >=, and a number",
    f"{LR} sweep.objective=[gain,kl] pruner=median": "pruner: one objective can be pruned on, not gain, kl",
    "kl=none,fixed kl.coef=0.1": "kl.coef=0.1: kl=none has no keys; choose another option of kl",
    "kl=fixed,none kl.coef=0.1": "kl.coef=0.1: kl=none has no keys; choose another option of kl",
    f"{LR} sweep.objective=gian": "sweep.objective=gian: no figure or metric of that name; did you mean gain?",
    f"{LR} sweep.objective=[gain,entropi]": "sweep.objective=entropi: no figure or metric of that name; did you mean ",
    f"{LR} sweep.constraints=['gradnorm<=1']": "sweep.constraints=gradnorm: no figure or metric of that name; did you ",
    f"{LR} sweep.constraints=[kl<=1,gain>=0]": "in quotes of its own: \"sweep.constraints=['kl<=1','gain>=0']\"",
    f"{LR} sweep.constraints='kl<=1'": "sweep.constraints=kl<=1: allowed: a list, each text; type "
    "\"sweep.constraints=['kl<=1']\"",
    f"{LR} sweep.storage=sqlite:///${{oc.env:NONE}}.db": "sweep.storage=sqlite:///${oc.env:NONE}.db: KeyError raised",
    f"{LR} sampler=tpe,random": "sampler=tpe,random: is about the sweep itself and has one value",
    f"{LR} sweep=grid,tpe_pruned": "sweep=grid,tpe_pruned: is about the sweep itself and has one value",
    f"{LR} sweep.seeds=1,2": "sweep.seeds=1,2: is about the sweep itself and has one value; a list is written sweep.",
    f"{LR} sampler=tpee": "sampler=tpee: allowed: cmaes, gp, nsga2, nsga3, qmc, random, tpe; did you mean sampler=tpe?",
    f"{LR} sweep.sampler.seed=x": "sweep.sampler: TPESampler does not take ",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_runs(line: str, sweep: Sweeps) -> None:
    assert sweep(line) == []
    assert sweep.status == 2
    assert sweep.error.count("\n") == 1, sweep.error
    assert MISTAKES[line] in sweep.error


def test_a_pruner_needs_a_command_that_measures_the_greedy_reward(sweep: Sweeps) -> None:
    line = f"pretrain -m hydra/sweeper=rookexp {LR} corpus=none pruner=median"
    sweep.monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit):
        door.enter(sweep_task.task, "pretrain")
    assert sweep.capfd.readouterr().err.startswith("error: pruner: this command measures no greedy reward to prune on;")


def test_a_sweep_needs_its_flag_and_its_keys_a_sweep(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(f"{LR} sweep.seeds=2", "")
    assert sweep.error.startswith("error: sweep.seeds=2: which sweep? add a recipe, as in sweep=grid")
    monkeypatch.setattr(sys, "argv", ["train", "sweep=grid"])
    with pytest.raises(SystemExit):
        door.enter(sweep_task.task, "config")
    assert sweep.capfd.readouterr().err == "error: sweep=grid: about a sweep, which begins with the flag -m\n"


def test_the_name_optuna_is_ours_where_it_is_free(sweep: Sweeps) -> None:
    sweep(f"{LR} hydra/sweeper=optuna", "")
    assert sweep.column("state") == ["complete"] * 3


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


RECIPES = sorted(path.stem for path in (Path(__file__).parent.parent / "conf" / "sweep").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "grid"])
def test_every_recipe_is_a_sweep(recipe: str, sweep: Sweeps) -> None:
    more = "sweep.n_trials=3" if recipe == "tpe_pruned" else ""
    sweep(f"steps=1 sweep.study_name=debug sweep.seeds=1 sweep.max_failure_rate=0 {more}", f"sweep={recipe}")
    assert sweep.status == 0, sweep.error
    assert set(sweep.column("state")) == {"complete"}
    config = yaml.safe_load((sweep.folder / "0" / "config.yaml").read_text(encoding="utf-8"))
    assert (config["save_every"], config["keep_checkpoints"]) in ((1, 1), (2, 1))


def test_a_job_that_leaves_no_result_is_no_endless_sweep(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with dry_run=true, or another command than train."""
    launched = []
    monkeypatch.setattr(sweep_task, "task", lambda config, folder: launched.append(folder))
    sweep("optim.lr=0.1,0.2")
    assert len(launched) == 6
    assert sweep.status == 1
    assert sweep.column("reason")[0].startswith("launched 3 times without an end: it left no result")
