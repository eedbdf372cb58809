"""TensorBoard's files: what is in them, a resumed run, and a disk that fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rookexp.errors import ConfigError
from rookexp.trackers.tensorboard_tracker import TensorBoardTracker


def record(folder: Path, start: int, stop: int, first_step: int) -> None:
    tracker = TensorBoardTracker(folder=folder, first_step=first_step)
    tracker.start({"optim": {"lr": 1e-3}, "hub": {"token": "hush-hush"}})
    for step in range(start, stop):
        tracker.log(step, {"reward/mean": step / 2, "kl": 0.5})
        rows = [{"kind": kind, "completion": f"{kind} {step}"} for kind in ("sampled", "greedy")]
        tracker.log_completions(step, rows)
    tracker.summary({"verdict": {"passed": True}})
    tracker.finish("finished")
    tracker.log(99, {"kl": 0.0})  # after the end: nothing


@pytest.mark.filterwarnings("default")
def test_scalars_texts_and_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record(tmp_path, 0, 5, 0)  # and was killed two steps after its checkpoint of step 2
    record(tmp_path, 3, 6, 3)
    seen: Any = EventAccumulator(str(tmp_path / "tensorboard"))
    seen.Reload()
    assert [(event.step, event.value) for event in seen.Scalars("reward/mean")] == [(s, s / 2) for s in range(6)]
    texts = {tag.removesuffix("/text_summary"): seen.Tensors(tag) for tag in seen.Tags()["tensors"]}
    assert set(texts) == {"config", "completions/sampled", "completions/greedy", "summary"}
    assert b"greedy 5" in texts["completions/greedy"][-1].tensor_proto.string_val[0]
    assert not any(b"hush-hush" in path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())


@pytest.mark.filterwarnings("default")
def test_a_writer_that_fails_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    pytest.importorskip("tensorboard")
    tracker = TensorBoardTracker(folder=tmp_path, first_step=0)
    tracker.start({})
    tracker._writer.add_scalar = tracker._writer.add_text = fail
    for step in range(3):
        tracker.log(step, {"kl": 0.0})
    tracker.finish("finished")
    assert capsys.readouterr().out.count("tensorboard: OSError: no space left; the training goes on") == 1


def test_a_missing_package_is_said_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'rookexp\[tensorboard\]'"):
        TensorBoardTracker(folder=tmp_path, first_step=0).start({})
