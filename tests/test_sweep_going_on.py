"""A sweep goes on with the same command, with more values, after a stop; another sweep does not take its place."""

from __future__ import annotations

import shutil
from typing import Any

import optuna
import pytest
from sweeping import LR, Sweeps, lrs, started


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


@pytest.mark.hydra
def test_more_values_add_points_and_keep_what_was_run(sweep: Sweeps) -> None:
    sweep("optim.lr=0.2,0.3 grpo.kl_type=k1,k2")
    assert started(sweep("optim.lr=0.1,0.2,0.3 grpo.kl_type=k1,k2,k3")) == [4, 5, 6, 7, 8]
    assert lrs(sweep.rows())[:4] == [0.2, 0.2, 0.3, 0.3]
    grid = {(lr, kl) for lr in (0.1, 0.2, 0.3) for kl in ("k1", "k2", "k3")}
    assert set(zip(lrs(sweep.rows()), sweep.column("params_grpo.kl_type"), strict=True)) == grid
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


def test_a_sweep_that_is_another_one_is_refused_with_the_difference(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2")
    before = sweep.files()
    for line, told in REFUSED.items():
        assert sweep(line) == []
        assert sweep.status == 2
        assert sweep.error.count("\n") == 1, sweep.error
        assert told in sweep.error
        assert sweep.files() == before


def test_what_may_differ_between_two_starts(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2 hardware.threads=1")
    assert sweep("optim.lr=0.1,0.2 hardware.threads=2 keep_checkpoints=3") == []
    assert sweep.status == 0


def test_n_trials_is_a_total_and_going_on_draws_what_a_straight_sweep_would(sweep: Sweeps) -> None:
    line = "optim.lr=tag(log,interval(1e-3,1)) kl.coef=interval(0,1) sampler=random"
    sweep(f"{line} sweep.n_trials=4 sweep.study_name=straight")
    straight = sweep.folder.with_name("straight") / "trials.csv"
    sweep(f"{line} sweep.n_trials=2")
    assert len(sweep.rows()) == 2
    assert started(sweep(f"{line} sweep.n_trials=4")) == [2, 3]
    assert (sweep.folder / "trials.csv").read_text("utf-8") == straight.read_text("utf-8")
    assert len(set(lrs(sweep.rows()))) == 4


def test_n_trials_is_a_total_when_a_grid_goes_on_as_a_search(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, suggest = 0, optuna.trial.Trial._suggest

    def stopped(self: optuna.trial.Trial, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return suggest(self, *given)

    line = "optim.lr=0.1,0.2,0.3,0.4"
    with monkeypatch.context() as patch:
        patch.setattr(optuna.trial.Trial, "_suggest", stopped)
        sweep(line)
    assert sweep.column("state").count("complete") == 2
    assert len(started(sweep(f"{line} sweep.n_trials=3"))) == 1
    assert sweep.status == 0
    assert sweep.column("state").count("complete") == 3


TPE = "sampler=tpe sweep.n_trials=4"


# At call 3 neither of a point's two values has been chosen, at call 4 one.
@pytest.mark.parametrize(("search", "again", "call"), [("", "", 3), ("", ",0.3", 4), (TPE, "", 4), (TPE, ",0.3", 3)])
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


def test_a_database_keeps_the_study_as_the_journal_does(sweep: Sweeps) -> None:
    line = "optim.lr=0.1,0.2 sweep.storage=sqlite:///study.db"
    sweep(line)
    assert (sweep.folder / "study.db").is_file()
    assert not (sweep.folder / "study.journal").exists()
    assert sweep(line) == []
    assert started(sweep("optim.lr=0.1,0.2,0.3 sweep.storage=sqlite:///study.db")) == [2]
    assert sweep.results()["best_params"] == {"optim.lr": 0.3}
    assert f"optuna-dashboard sqlite:///{sweep.folder}/study.db" in sweep.said


def test_a_damaged_study_is_refused_by_its_name(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2")
    journal = sweep.folder / "study.journal"
    for damaged in ("garbage\n" + journal.read_text(encoding="utf-8"), None):
        journal.unlink()
        if damaged is not None:
            journal.write_text(damaged, encoding="utf-8")
        assert sweep("optim.lr=0.1,0.2") == []
        assert sweep.status == 2
        assert sweep.error.count("\n") == 1, sweep.error
        assert f"{sweep.folder}: sweep.json and study.journal do not make a study (" in sweep.error
        assert "type another name, as in sweep.study_name=NAME" in sweep.error


def test_going_on_needs_no_folder_of_a_finished_point(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1,0.2")
    shutil.rmtree(sweep.folder / "0")
    sweep(LR)
    assert sweep.status == 0
    assert sweep.column("state") == ["complete"] * 3
    assert sweep.results()["best_params"] == {"optim.lr": 0.3}
    assert "note: of runs that are done, the folder is gone: 0; trials.csv keeps" in sweep.said


BOTH = ["sweep.json", "study.journal"]
LOST: list[tuple[list[str], str, str]] = [
    (["sweep.json"], LR, "its study has points, and sweep.json is gone; type another name"),
    (BOTH, "optim.lr=0.3,0.2", "0: holds another run than that of optim.lr=0.3 seed=0;"),
    (BOTH, f"{LR} sweep.seeds=[7]", "0: holds another run than that of optim.lr=0.1"),
    ([*BOTH, "0/trial.json"], LR, "0: holds another run than that of optim.lr=0.1"),
]


def test_a_sweep_without_its_study_takes_its_own_runs_and_no_others(sweep: Sweeps) -> None:
    sweep(LR)
    whole = shutil.copytree(sweep.folder, sweep.folder.with_name("whole"))
    for lost, line, told in LOST:
        shutil.rmtree(sweep.folder)
        shutil.copytree(whole, sweep.folder)
        for name in lost:
            (sweep.folder / name).unlink()
        before = sorted(sweep.folder.glob("[0-9]*/*"))
        assert sweep(line) == []
        assert sweep.status == 2
        assert sweep.error.count("\n") == 1, sweep.error
        assert told in sweep.error
        assert sorted(sweep.folder.glob("[0-9]*/*")) == before
    shutil.rmtree(sweep.folder)
    shutil.move(whole, sweep.folder)
    for name in BOTH:
        (sweep.folder / name).unlink()
    assert sweep(LR) == []
    assert sweep.status == 0
    assert sweep.column("state") == ["complete"] * 3
