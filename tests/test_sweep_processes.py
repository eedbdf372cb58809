"""Sweeps in processes of their own: killed at any moment, joined by others, spread over workers."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.trial import TrialState

from rookexp.errors import ConfigError
from rookexp.sweep import liveness
from rookexp.sweep.storage import JOURNAL, storage_of

FAKE = [sys.executable, str(Path(__file__).with_name("sweep_task.py"))]
GRID = ["-m", "sweep=grid", "debug=fast", "steps=3", "optim.lr=0.1,0.2,0.3,0.4"]
REAL = ["-m", "sweep=grid", "debug=fast", "steps=4", "optim.lr=0.01,0.02", "optim.schedule.warmup_steps=1"]


@contextmanager
def process(
    root: Path, folder: Path, command: list[str], *words: str, step_s: float = 0.0
) -> Iterator[subprocess.Popen[str]]:
    """A command, started; killed at the end if it still runs."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        "SWEEP_TASK_SECONDS": str(step_s),
        "OMP_NUM_THREADS": "1",
    }
    out = subprocess.PIPE
    running = subprocess.Popen([*command, *words], cwd=folder, env=env, stdout=out, stderr=out, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def finish(running: subprocess.Popen[str]) -> str:
    """Waits for a process; what it said."""
    said, error = running.communicate(timeout=120)
    assert running.returncode == 0, said + error
    return said


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "trials.csv").read_text(encoding="utf-8").splitlines()))


def noted(folder: Path, kind: str) -> Counter[str]:
    """How often each job has noted a start or an end."""
    lines = (folder / "log").read_text(encoding="utf-8").splitlines() if (folder / "log").exists() else []
    return Counter(line.split()[0] for line in lines if line.split()[1] == kind)


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_at_most_a_step(root: Path, tmp_path: Path) -> None:
    folder, dice, kills = tmp_path / "multirun" / "debug", random.Random(1), 0
    log = folder / "log"
    while True:
        before = log.stat().st_size if log.exists() else 0
        with process(root, tmp_path, FAKE, *GRID, step_s=0.1) as running:
            while running.poll() is None and (not log.exists() or log.stat().st_size == before):
                time.sleep(0.02)
            try:
                running.wait(timeout=2 * dice.random())  # four or five steps, or what is between two points
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGKILL)
                running.wait()
                kills += 1
                assert kills < 40, "no progress"
                continue
            assert running.returncode == 0, running.communicate()
            break
    assert kills > 0
    assert [row["state"] for row in table(folder)] == ["complete"] * 4
    assert [float(row["params_optim.lr"]) for row in table(folder)] == [0.1, 0.2, 0.3, 0.4]
    assert noted(folder, "end") == Counter("0123"), "no point is finished twice"
    for job in range(4):
        steps = [row["step"] for row in map(json.loads, (folder / str(job) / "metrics.jsonl").read_text().splitlines())]
        assert steps == [0, 1, 2, 3]
    # A step is noted twice only where the process died while, or right after, it ran.
    assert sum((noted(folder, "step") - Counter({str(job): 4 for job in range(4)})).values()) <= kills


@pytest.mark.slow
def test_processes_that_join_share_the_points_and_take_over_from_a_dead_one(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "multirun" / "debug"
    with process(root, tmp_path, FAKE, *GRID, step_s=0.3) as dies:
        while not noted(folder, "step"):
            time.sleep(0.05)
        with (
            process(root, tmp_path, FAKE, *GRID, step_s=0.1) as one,
            process(root, tmp_path, FAKE, *GRID, step_s=0.1) as two,
        ):
            while len(noted(folder, "start")) < 3:
                time.sleep(0.05)
            dies.kill()
            dies.wait()
            finish(one)
            finish(two)
    states = [row["state"] for row in table(folder)]
    ended = noted(folder, "end")
    assert set(ended.values()) == {1}, "nothing runs twice"
    assert len(ended) == states.count("complete") == 4
    assert sorted(path.name for path in folder.iterdir() if path.name.isdigit()) == list("0123")
    assert not [path for path in (folder / liveness.FOLDER).iterdir() if liveness.held(path)]


@pytest.mark.hydra
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="needs hydra-joblib-launcher")
def test_two_workers_of_joblib(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "multirun" / "debug"
    words = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "sweep.n_jobs=2", "sweep.max_failure_rate=1"]
    with process(root, tmp_path, FAKE, *GRID, *words, "grpo.entropy_coef=0,0.1", step_s=0.1) as running:
        finish(running)
    rows = table(folder)
    assert [row["state"] for row in rows] == ["complete", "fail"] * 4
    assert {row["reason"] for row in rows[1::2]} == {"ZeroDivisionError: a mistake"}
    assert noted(folder, "start") == Counter(map(str, range(8)))


@contextmanager
def worker(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock until its input is closed."""
    holds = "import sys; from pathlib import Path; from rookexp.sweep.liveness import locked\n"
    holds += f"with locked(Path({str(lock)!r})): print(flush=True); sys.stdin.read()"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holds], stdin=pipe, stdout=pipe, text=True, env=env) as running:
        assert running.stdout
        running.stdout.readline()
        yield running


@pytest.mark.slow
def test_jobs_that_outlive_their_sweep_are_waited_for_and_told(root: Path, tmp_path: Path) -> None:
    """As under joblib, whose workers finish what they do when the process that launched them is killed."""
    folder = tmp_path / "multirun" / "debug"
    line = ["-m", "sweep=grid", "debug=fast", "steps=3", "optim.lr=0.1,0.2"]
    with process(root, tmp_path, FAKE, *line, step_s=0.3):
        while not noted(folder, "start")["1"]:
            time.sleep(0.05)
    with (
        worker(folder / liveness.FOLDER / "job-1") as orphan,
        process(root, tmp_path, FAKE, *line) as again,
    ):
        assert again.stdout
        said = [again.stdout.readline(), again.stdout.readline()]
        assert said[1] == "sweep debug: waiting for jobs of trial 1, which outlived their sweep\n"
        assert orphan.stdin
        orphan.stdin.close()
        finish(again)
    assert [row["state"] for row in table(folder)] == ["complete", "complete"]


KILLED = """
import os, time
from rookexp import track, train
log = track.JsonlTracker.log
def last(self, step, values):
    log(self, step, values)
    if step == 3 and self.folder.name == "1":
        while not (self.folder / "checkpoints" / "step-000002").exists():  # it is written beside the training
            time.sleep(0.01)
        os._exit(9)
track.JsonlTracker.log = last
train.main()
"""


@pytest.mark.slow
def test_a_killed_training_goes_on_from_its_checkpoint_as_if_nothing_had_been(root: Path, tmp_path: Path) -> None:
    train = [sys.executable, "-m", "rookexp.train"]
    with process(root, tmp_path, train, *REAL, "sweep.study_name=straight") as running:
        finish(running)
    with process(root, tmp_path, [sys.executable, "-c", KILLED], *REAL) as running:
        running.communicate(timeout=120)
        assert running.returncode == 9
    folder, straight = tmp_path / "multirun" / "debug", tmp_path / "multirun" / "straight"
    assert [path.name for path in (folder / "1" / "checkpoints").iterdir()] == ["step-000002"]
    with process(root, tmp_path, train, *REAL) as running:
        finish(running)
    assert [row["gain"] for row in table(folder)] == [row["gain"] for row in table(straight)]
    model = Path("1/checkpoints/step-000004/model/model.safetensors")
    assert (folder / model).read_bytes() == (straight / model).read_bytes()
    config = yaml.safe_load((folder / "1" / "config.yaml").read_text(encoding="utf-8"))
    assert config["resume"] == str(folder / "1"), "from the checkpoint, not from the start"


def test_a_lock_is_given_back_by_a_killed_process(tmp_path: Path) -> None:
    holds = "import sys; from pathlib import Path; from rookexp.sweep.liveness import Worker\n"
    holds += f"with Worker(Path({str(tmp_path)!r})) as w: print(w.name, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holds]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with (
        liveness.Worker(tmp_path) as own,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as other,
    ):
        assert other.stdout
        name = other.stdout.readline().strip()
        assert own.alive(name)
        other.kill()
        other.wait()
        assert not own.alive(name)
        assert own.alive(own.name)
        assert not own.alive("nobody")


def test_a_process_on_another_machine_lives_while_its_file_is_young(tmp_path: Path) -> None:
    with liveness.Worker(tmp_path) as own:
        other = own.folder / "elsewhere.1.ab"
        other.touch()
        assert own.alive(other.name)
        past = time.time() - 2 * liveness.SILENT_S
        os.utime(other, (past, past))
        assert not own.alive(other.name)


def test_a_torn_line_of_the_journal_is_mended(tmp_path: Path) -> None:
    storage = storage_of(None, tmp_path)
    made = optuna.create_study(storage=storage, study_name="a")
    made.add_trial(optuna.trial.create_trial(value=1.0))
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(b'{"op_code":4,"wor')
    again = optuna.load_study(storage=storage_of(None, tmp_path), study_name="a")
    again.add_trial(optuna.trial.create_trial(value=2.0))
    last = optuna.load_study(storage=storage_of(None, tmp_path), study_name="a")
    assert [trial.value for trial in last.trials] == [1.0, 2.0]
    assert {trial.state for trial in last.trials} == {TrialState.COMPLETE}


@pytest.mark.parametrize("url", ["secret", "sqlite:////nowhere/secret.db", "nosuchdb://user:secret@host/x"])
def test_a_database_that_cannot_be_opened_names_the_key_and_no_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweep.storage: no database .*; allowed: a URL") as caught:
        storage_of(url, tmp_path)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
