"""Trackers: complete records, plain pipes, and guards around what must not end a training."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rookexp import track
from rookexp.errors import DataError
from rookexp.run_folder import run_info
from rookexp.trackers import console


def jsonl(folder: Path, first_step: int = 0) -> track.JsonlTracker:
    tracker = track.JsonlTracker(folder=folder, first_step=first_step)
    tracker.start({})
    return tracker


def feed(tracker: track.Tracker, start: int, stop: int) -> None:
    for step in range(start, stop):
        tracker.log(step, {"reward/mean": step / 3, "kl": 0.1 * step})
        tracker.log_completions(step, [{"prompt": "P: ä", "completion": f"M: {step}", "reward": 0.5}])


def record(folder: Path, start: int, stop: int) -> None:
    tracker = jsonl(folder, first_step=start)
    feed(tracker, start, stop)
    tracker.finish("interrupted")


def test_one_object_a_step_readable_while_running(tmp_path: Path) -> None:
    tracker = jsonl(tmp_path)
    tracker.log(0, {"eval/reward": 0.25})
    tracker.log(1, {"reward/mean": 0.5, "kl": math.nan, "ratio/max": math.inf})
    tracker.log(1, {"eval/reward": np.float64(0.75)})
    expected = [
        {"step": 0, "eval/reward": 0.25},
        {"step": 1, "reward/mean": 0.5, "kl": None, "ratio/max": None, "eval/reward": 0.75},
    ]
    assert track.read_jsonl(tmp_path / "metrics.jsonl") == expected  # before it is closed
    with pytest.raises(ValueError, match="step 0 logged after step 1"):
        tracker.log(0, {})
    tracker.finish("finished")
    tracker.finish("finished")


def test_a_step_opens_no_file_and_adds_its_own_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What logging costs does not grow with the run: counted, for seconds would be those of the machine."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a file is opened in a step")

    tracker, sizes = jsonl(tmp_path), [0]
    with monkeypatch.context() as patch:
        for name in ("builtins.open", "io.open", "os.open"):
            patch.setattr(name, refused)
        for step in range(30):
            tracker.log(step, {f"metric/{i}": 0.5 for i in range(80)})
            tracker.log_completions(step, [{"completion": "M: e2e4"}] * 4)
            sizes.append(sum((tmp_path / name).stat().st_size for name in (track.METRICS, track.COMPLETIONS)))
    lines = [after - before for before, after in pairwise(sizes)]
    assert set(lines[:10]) == {lines[0]}
    assert set(lines[10:]) == {lines[0] + 5}, "a digit more in each of five lines"
    tracker.finish("finished")


@pytest.mark.parametrize("died", [5, 7, 9])
def test_a_resumed_run_leaves_the_files_of_a_straight_run(tmp_path: Path, died: int) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    record(straight, 0, 10)
    record(broken, 0, died)
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step":9,"rew')  # killed within a line
    record(broken, 5, 10)
    for name in ("metrics.jsonl", "completions.jsonl"):
        assert (broken / name).read_bytes() == (straight / name).read_bytes()


def test_a_resumed_run_does_not_log_what_is_done(tmp_path: Path) -> None:
    tracker = jsonl(tmp_path, first_step=5)
    with pytest.raises(ValueError, match="step 4 logged after step 4"):
        tracker.log(4, {})
    tracker.finish("failed")


def test_a_new_run_in_a_used_folder_starts_over(tmp_path: Path) -> None:
    record(tmp_path, 0, 3)
    record(tmp_path, 0, 1)
    assert [row["step"] for row in track.read_jsonl(tmp_path / "metrics.jsonl")] == [0]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0}\nnonsense\n{"step":1}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl: row 2"):
        track.read_jsonl(path)


def test_summary_says_how_the_run_ended(tmp_path: Path) -> None:
    tracker = jsonl(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "running"
    tracker.summary({"figures": {"slope": math.nan}, "reasons": ("PASS a",), "folder": tmp_path})
    tracker.finish("failed")
    expected = {"status": "failed", "figures": {"slope": None}, "reasons": ["PASS a"], "folder": str(tmp_path)}
    assert json.loads((tmp_path / "summary.json").read_text()) == expected
    assert not list(tmp_path.glob("*.partial"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console_run(steps: int, every: int) -> None:
    tracker = console.ConsoleTracker(every=every, total_steps=steps)
    tracker.start({})
    tracker.log(0, {"eval/reward": 0.25})
    for step in range(1, steps + 1):
        tracker.log(step, {"reward/mean": 0.5, "kl": 0.01, "entropy": 1.2, "grad_norm": 0.8, "tokens_per_s": 1234.0})
    tracker.finish("finished")
    tracker.finish("finished")


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console_run(7, 3)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\r" not in out
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        "step 0/7",
        "step 3/7",
        "step 6/7",
        "step 7/7",
        "finished after 0s",
    ]
    assert "reward 0.500  kl 0.0100  entropy 1.200  grad 0.8  tok/s 1234  eta 0s" in out


def test_a_pretraining_shows_its_losses(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = console.ConsoleTracker(every=1, total_steps=1)
    tracker.log(0, {"eval/loss": 2.0})
    tracker.log(1, {"loss": 1.5, "eval/loss": 1.25})
    assert capsys.readouterr().out.splitlines() == [
        "step 0/1  eval 2.0000",
        "step 1/1  loss 1.5000  eval 1.2500  eta 0s",
    ]


def test_a_terminal_gets_a_live_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    console_run(3, 1)
    assert sys.stdout is terminal
    assert "\x1b[" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()
    assert terminal.getvalue().endswith("finished after 0s\n")


def test_time_left_is_median_pace_times_steps_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 102.0, 104.0, 154.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    tracker = console.ConsoleTracker(every=1000, total_steps=13)
    tracker.start({})
    assert tracker.eta_s(0) is None
    for step in (0, 1, 2, 3):
        tracker.log(step, {})
    assert tracker.eta_s(3) == 20.0
    assert [console.duration(s) for s in (0.4, 59.6, 187, 7505)] == ["0s", "1m00s", "3m07s", "2h05m"]


class Recorder(track.Tracker):
    def __init__(self, log: list[str], broken: bool) -> None:
        self.calls = log
        self.broken = broken

    def start(self, config: Any) -> None:
        self.calls.append("start")

    def log(self, step: int, metrics: Any) -> None:
        self.calls.append(f"log {step}")

    def log_completions(self, step: int, rows: Any) -> None:
        self.calls.append(f"completions {step}")

    def summary(self, values: Any) -> None:
        self.calls.append("summary")

    def finish(self, status: str) -> None:
        self.calls.append(status)
        if self.broken:
            raise OSError("disk")


def test_fan_out_reaches_all_and_closes_all(tmp_path: Path) -> None:
    calls: list[str] = []
    fan = track.FanOut(trackers=[Recorder(calls, True), Recorder(calls, False)])
    fan.start({})
    fan.log(1, {})
    fan.log_completions(1, [])
    fan.summary({})
    with pytest.raises(OSError, match="disk"):
        fan.finish("failed")
    assert calls == [call for call in ("start", "log 1", "completions 1", "summary", "failed") for _ in range(2)]


def test_a_guard_says_the_first_error_in_a_line_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("no entry for key hush-hush-key\nsecond line")

    monkeypatch.setenv("WANDB_API_KEY", "hush-hush-key")
    guard = track.Guard("service")
    assert [guard(lambda: None), guard(fail), guard(fail)] == [True, False, False]
    said = "service: RuntimeError: no entry for key ***; the training goes on, metrics are in the run folder\n"
    assert capsys.readouterr().out == said


def test_a_refused_setting_is_named_behind_its_heading() -> None:
    refused = ValueError("1 validation error for Settings\nrun_tags\n  Value error, 70 characters\n    For further")
    assert track.first_line(refused) == (
        "ValueError: 1 validation error for Settings run_tags Value error, 70 characters"
    )


def test_a_run_keeps_its_id(tmp_path: Path) -> None:
    first, second = track.run_id(tmp_path / "a"), track.run_id(tmp_path / "b")
    assert (track.run_id(tmp_path / "a"), len(first)) == (first, 8)
    assert first != second


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("sweep.storage=postgresql+psycopg://me:hush@host/name", True),
        ("sweep.storage=redis://:hush@host:6379/0", True),
        ("sweep.storage=postgresql+psycopg://${oc.env:DB_USER}:${oc.env:DB_PASSWORD}@host/name", False),
        ("sweep.storage=postgresql://me@host:5432/name", False),
        ("sweep.storage=sqlite:///study.db", False),
        ("hydra.searchpath=[pkg://a,file://b:c]", False),
        ("reward@reward.rewards.P=engine", False),
    ],
)
def test_a_password_in_an_address_is_seen(word: str, found: bool) -> None:
    assert run_info.is_secret(word) is found


def test_run_info_has_the_config_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hush-env")
    config = {"seed": 7, "task": {"data_seed": 3, "eval": {"seed": 5}}, "hub": {"token": "hush-config"}}
    config["grpo"] = {"max_new_tokens": 8, "token": None}
    for number in (1, 2):
        run_info.write_run_info(tmp_path, config, ["train.py", "hub.token=hush-argv", f"steps={number}"])
    info = json.loads((tmp_path / "run.json").read_text())
    assert info["seeds"] == {"seed": 7, "task.data_seed": 3, "task.eval.seed": 5}
    assert info["argv"] == ["train.py", "hub.token=***", "steps=2"]
    assert [start["argv"][-1] for start in info["earlier_starts"]] == ["steps=1"]
    assert info["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert saved == config | {"hub": {"token": "***"}}
    assert not any("hush" in path.read_text() for path in tmp_path.iterdir())


def test_git_state_is_revision_and_dirt_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=n", "-c", "user.email=e@e")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    code = tmp_path / "package" / "run_info.py"
    code.parent.mkdir()
    code.write_text("")
    monkeypatch.setattr(run_info, "__file__", str(code))
    assert run_info.git_state() is None
    git("init", "-q")
    assert run_info.git_state() is None  # inside a repository, but not of it
    git("add", "."), git("commit", "-qm", "one")
    assert run_info.git_state() == {"revision": git("rev-parse", "HEAD").strip(), "dirty": False}
    (tmp_path / "new.py").write_text("")
    assert run_info.git_state()["dirty"]


@pytest.mark.parametrize(("beside", "ours"), [("rookexp/__init__.py", True), ("rookexp/rookexp/__init__.py", False)])
def test_only_a_conf_beside_the_package_is_rookexps_own(beside: str, ours: bool, tmp_path: Path) -> None:
    """A user's conf/ may stand beside a checkout that is called rookexp."""
    (tmp_path / beside).parent.mkdir(parents=True)
    (tmp_path / beside).touch()
    (tmp_path / "conf").mkdir()
    assert run_info.own_conf(str(tmp_path / "conf")) == (None if ours else str(tmp_path / "conf"))
