"""Trackio's database: one run a folder, continued by its id; and a package that fails or is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rookexp.errors import ConfigError
from rookexp.trackers.trackio_tracker import TrackioTracker

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import sys
from pathlib import Path
from rookexp.trackers.trackio_tracker import TrackioTracker
for name, steps in (("0", range(0, 3)), ("1", range(0, 2)), ("0", range(3, 5))):  # the third resumes the first
    tracker = TrackioTracker(project="p", group="g", name="same", folder=Path(sys.argv[1]) / name)
    tracker.start({"seed": 0, "hub": {"token": "hush-hush"}})
    for step in steps:
        tracker.log(step, {"eval/reward": step})
        tracker.log_completions(step, [{"kind": "greedy", "completion": f"c{step}"}])
    tracker.finish("finished")
    tracker.log(99, {})
from trackio.sqlite_storage import SQLiteStorage
for run in sorted(SQLiteStorage.get_runs("p")):
    rows = SQLiteStorage.get_logs("p", run)
    print("SEEN", run[:5], [row["step"] for row in rows if "eval/reward" in row],
          [row["completions"]["_value"][0]["completion"] for row in rows if "completions" in row])
"""


@pytest.mark.slow
def test_a_resumed_run_goes_on_and_another_of_that_name_does_not(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "db"), "PYTHONPATH": path}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    seen = sorted(line for line in done.stdout.splitlines() if line.startswith("SEEN"))
    assert seen == [
        "SEEN same- [0, 1, 2, 3, 4] ['c0', 'c1', 'c2', 'c3', 'c4']",
        "SEEN same- [0, 1] ['c0', 'c1']",
    ]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"hush-hush" in path.read_bytes() for path in files)


def test_a_package_that_fails_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("database is locked")

    run = types.SimpleNamespace(log=fail, finish=fail)
    for init in (fail, lambda *_, **__: run):
        fake = types.ModuleType("trackio")
        fake.init, fake.Table = init, lambda *_: None
        monkeypatch.setitem(sys.modules, "trackio", fake)
        tracker = TrackioTracker(project="p", group=None, name=None, folder=tmp_path)
        tracker.start({})
        tracker.log(0, {"kl": 0.0})
        tracker.log_completions(0, [{"completion": "c"}])
        tracker.finish("failed")
        assert capsys.readouterr().out.count("trackio: OSError: database is locked; the training goes on") == 1


def test_a_run_that_goes_on_with_other_words_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    fake = types.ModuleType("trackio")
    fake.init = lambda *_, name, **__: names.append(name)
    monkeypatch.setitem(sys.modules, "trackio", fake)
    for words in ("lr=1", "lr=1,steps=9", None):
        TrackioTracker(project="p", group=None, name=words, folder=tmp_path / "run").start({})
    assert names[0].startswith("lr=1-")
    assert names == names[:1] * 3


def test_a_missing_package_is_said_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match=r"pip install 'rookexp\[trackio\]'"):
        TrackioTracker(project="p", group=None, name=None, folder=tmp_path).start({})
