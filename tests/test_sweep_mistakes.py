"""What a sweep refuses: in one line, before anything runs or after the first point."""

from __future__ import annotations

import re
import sys

import pytest
import sweep_task
from sweeping import FAST, LR, Sweeps, started

from rookexp import train
from rookexp.config import door
from rookexp.sweep import job

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
    "kl=fixed,none kl.coef=0.1,0.2": "kl.coef=0.1: kl=none has no keys; choose another option of kl",
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
    f"{LR} sweep.sampler.seed=x": "TPESampler does not take sweep.sampler.n_startup_trials=10, sweep.sampler.seed=x: ",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_runs(line: str, sweep: Sweeps) -> None:
    assert sweep(line) == []
    assert sweep.status == 2
    assert sweep.error.count("\n") == 1, sweep.error
    assert MISTAKES[line] in sweep.error
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
    line = f"optim.lr=0.1,0.2 sweep.seeds=2 {words}"
    assert started(sweep(line)) == [0, 1]
    assert sweep.status == 2
    said = "error: sweep debug: no run logs eval/rewrad; did you mean eval/reward?; it is for sweep.objective and "
    assert sweep.error.startswith(said)
    assert sweep.error.count("\n") == 1
    assert sweep(line) == []
    assert sweep.error.startswith(said)
    assert started(sweep(line.replace("rewrad", "reward"))) == [2, 3], "the first point is not run again"
    assert sweep.column("state") == ["complete"] * 2
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
