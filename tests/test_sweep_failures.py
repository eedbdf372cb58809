"""Points of a sweep that fail: what is told, what is tried again, and when the sweep ends."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import sweep_task
from sweeping import LR, Sweeps, started

from rookexp.sweep import liveness


def test_failures_have_a_reason_and_the_same_command_tries_what_raised_again(
    sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "grpo.entropy_coef=0.1,0.2,0.3,0{} sweep.max_failure_rate=1"
    sweep(line.format(""))
    assert sweep.status == 0
    assert sweep.column("state") == ["fail", "fail", "fail", "complete"]
    assert sweep.column("reason")[:3] == [
        "ZeroDivisionError: a mistake",
        "seed 0: gain is not a number, or was not logged",
        "step 0: not finite",
    ]
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


def test_a_figure_that_one_point_does_not_log_fails_that_point(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    log = sweep_task.JsonlTracker.log

    def more(self: sweep_task.JsonlTracker, step: int, metrics: dict[str, float]) -> None:
        log(self, step, metrics if self.folder.name == "1" else metrics | {"extra": 1.0 + step})

    monkeypatch.setattr(sweep_task.JsonlTracker, "log", more)
    sweep(f"{LR} sweep.objective=extra")
    assert sweep.column("state") == ["complete", "fail", "complete"]
    assert sweep.column("reason")[1] == "seed 0: extra is not a number, or was not logged"


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


def test_too_many_failures_end_it(sweep: Sweeps) -> None:
    notes = sweep("grpo.entropy_coef=0.1,0.2,0.3,0.01,0.02")
    assert started(notes) == [0, 1, 2]
    assert sweep.status == 1
    last = sweep.error.splitlines()[-1]
    assert last.startswith("error: sweep debug: 3 of 3 points failed, more than sweep.max_failure_rate=0.5")
    assert "trial 0: ZeroDivisionError: a mistake; trial 1: " in last


def test_a_seed_that_fails_fails_its_point(sweep: Sweeps) -> None:
    sweep("optim.lr=0.1 grpo.entropy_coef=0,0.3 sweep.seeds=2 sweep.max_failure_rate=1")
    assert sweep.column("reason") == ["", "seed 0: step 0: not finite"]
    assert sweep.column("state") == ["complete", "fail"]
    assert sweep.column("seeds") == ["2", "0"]
    assert sweep.column("gain")[1] == "", "figures are of runs that came to their end"


def test_a_job_that_leaves_no_result_is_no_endless_sweep(sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with dry_run=true, or another command than train."""
    launched = []
    monkeypatch.setattr(sweep_task, "task", lambda config, folder: launched.append(folder))
    sweep("optim.lr=0.1,0.2")
    assert len(launched) == 6
    assert sweep.status == 1
    assert sweep.column("reason")[0].startswith("launched 3 times without an end: it left no result")
