"""Runs that are continued, ended by a signal, and judged, from the command line to the bytes on disk."""

from __future__ import annotations

import errno
import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import policy

from rookexp import pretrain, session, train, verdict
from rookexp.config import composing, door, resume
from rookexp.errors import ConfigError, NotSaved, TrainingDiverged
from rookexp.run_folder import resume_checks, run_info
from rookexp.stop import Stop
from rookexp.sweep import job
from rookexp.tasks import reading
from rookexp.track import JsonlTracker
from rookexp.trainer import Trainer, refuse_diverged

TINY = "model=fresh_nano model.n_layer=1 model.n_head=2 model.n_embd=16 hardware=cpu hardware.precision=fp32"
TRAIN = f"debug=fast {TINY} optim.lr=0.01 kl.coef=0.5 kl.warmup=1 hardware.threads=1 steps=4"
TRAIN += " baseline=gae reference=ema reference.decay=0.5"  # all that has a state
PRETRAIN = f"{TINY} hardware.threads=1 corpus=corpus steps=4 save_every=2 eval_every=1 batch_documents=3"
TIMING = ("step_s", "tokens_per_s")
NEWEST = "checkpoints/step-000004"
Shell = Callable[..., int]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quiet_logging: None) -> Shell:
    """Types a command line in an empty folder; the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.FULL_ERROR, raising=False)
    doors = {"train": (train.train, "config"), "pretrain": (pretrain.pretrain, "pretrain")}

    def call(line: str, *more: str, name: str = "train") -> int:
        monkeypatch.setattr(sys, "argv", [f"rookexp-{name}", *line.split(), *more])
        try:
            door.enter(*doors[name])
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0
        return 0

    return call


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


def assert_same_run(one: Path, other: Path) -> None:
    """Metrics but for times, completions, weights and optimizer state, to the bit."""
    assert metrics(one) == metrics(other)
    files = [f"{NEWEST}/model/model.safetensors", f"{NEWEST}/optimizer.safetensors", f"{NEWEST}/modules.safetensors"]
    files += ["completions.jsonl"] if (one / "completions.jsonl").exists() else []
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], object]) -> None:
    """Does something once, while `step` is being logged."""
    log = JsonlTracker.log
    waiting = [step]

    def hooked(self: JsonlTracker, now: int, values: Any) -> None:
        log(self, now, values)
        if now in waiting:
            waiting.remove(now)
            act()

    monkeypatch.setattr(JsonlTracker, "log", hooked)


KILLED = """
import os, sys, time
from rookexp import policies, track, train
from rookexp.config import composing
log = track.JsonlTracker.log
def last(self, step, values):
    log(self, step, values)
    if step == 3:
        policies.load(composing.PACKAGE / "assets" / "rook_nano")
        compiler = "torch._dynamo" in sys.modules  # 2 s of import for a run that compiles nothing
        ends = time.monotonic() + 60
        while not os.path.isdir("killed/checkpoints/step-000002") and time.monotonic() < ends:
            time.sleep(0.01)  # a thread writes it; a slow disk is no loss of a step
        os._exit(8 if compiler else 9)
track.JsonlTracker.log = last
train.main()
"""


def test_a_killed_run_goes_on_as_if_it_had_not_been(shell: Shell, root: Path, tmp_path: Path) -> None:
    assert shell(TRAIN, "hydra.run.dir=straight") == 0
    rows = metrics(tmp_path / "straight")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert min(rows[4]["kl"], rows[2]["kl"]) > 0, "else nothing is compared"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *TRAIN.split(), "hydra.run.dir=killed"],
        env={"PYTHONPATH": str(root), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    assert [row["step"] for row in metrics(tmp_path / "killed")] == [0, 1, 2, 3]
    assert [path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()] == ["step-000002"]
    assert shell("resume=killed") == 0
    assert_same_run(tmp_path / "straight", tmp_path / "killed")
    assert json.loads((tmp_path / "killed" / "summary.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert len(json.loads((tmp_path / "killed" / "run.json").read_text(encoding="utf-8"))["earlier_starts"]) == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] in (
        ["straight", "killed"],
        ["killed", "straight"],
    )


def test_a_run_goes_on_with_the_folder_that_stood_in_place_of_conf(shell: Shell, tmp_path: Path) -> None:
    own = tmp_path / "mine"
    shutil.copytree(composing.conf_dir(), own)
    file = own / "kl" / "fixed.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("coef: 0.005", "coef: 0.25"), encoding="utf-8")
    words = f"debug=fast {TINY} hardware.threads=1 steps=2 kl=fixed hydra.run.dir=run"
    assert shell(f"--config-path mine {words}") == 0
    assert shell("resume=run steps=3") == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))["kl"]["coef"] == 0.25


def test_an_interpolation_is_of_the_start_and_the_end_whether_resumed_or_not(shell: Shell, tmp_path: Path) -> None:
    line = f"debug=fast {TINY} optim.lr=0.01 kl.coef=0.5 kl.warmup=1 hardware.threads=1 save_every=2 eval.every=4"
    for folder, words in (
        ("start", "steps=1 optim.lr=1e-30"),
        ("end", "steps=4"),
        ("back", "steps=4 reference=interpolate reference.share=0.25"),
    ):
        assert shell(f"{line} {words} hydra.run.dir={folder}") == 0
    start, end, back = (
        load_file(next((tmp_path / folder).glob(f"checkpoints/step-00000{step}/model/model.safetensors")))
        for folder, step in (("start", 1), ("end", 4), ("back", 4))
    )
    for name, weight in back.items():
        torch.testing.assert_close(weight, 0.75 * start[name] + 0.25 * end[name])
    assert not all(torch.equal(start[name], end[name]) for name in end), "else nothing is compared"
    shutil.copytree(tmp_path / "back", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / NEWEST)
    (tmp_path / "again" / "summary.json").unlink()
    assert shell("resume=again") == 0
    assert_same_run(tmp_path / "back", tmp_path / "again")


def test_a_folder_has_one_run_at_a_time_and_none_over_another(
    shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = f"{TRAIN} hydra.run.dir=run"
    assert shell(line) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").rglob("*.safetensors")}
    capfd.readouterr()
    assert shell(f"{line} steps=2") == 2, "else the newest checkpoint would be the other run's"
    assert f"{tmp_path}/run: holds a run already (step-000004); go on with it: resume=" in capfd.readouterr().err
    with job.at_work(tmp_path / "run"):
        assert shell("resume=run steps=5") == 2
    assert "run: another process is at work in it" in capfd.readouterr().err
    assert before == {path: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").rglob("*.safetensors")}
    assert shell("resume=run steps=5") == 0


def test_a_job_of_a_sweep_keeps_the_values_of_its_point(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    line = f"-m sweep=grid {TRAIN} steps=2 save_every=1 optim.lr=0.01,0.02"
    at_step(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert shell(line) == 143
    capfd.readouterr()
    assert shell("resume=multirun/debug/0 optim.lr=0.05") == 2
    folder = tmp_path / "multirun" / "debug" / "0"
    assert capfd.readouterr().err == (
        f"error: {folder}: a job of a sweep, whose values are the sweep's: optim.lr was 0.01, now 0.05; to train on "
        "with others copy the folder, delete trial.json in the copy and resume that\n"
    )
    assert shell("resume=multirun/debug/0 hardware.micro_batch=2 keep_checkpoints=3") == 0
    assert shell("resume=multirun/debug/0 steps=3") == 2
    assert "steps was 2, now 3" in capfd.readouterr().err
    assert shell(f"{line} hardware.micro_batch=4") == 0
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2]


OTHER_MEASURES = {
    "seed=1": "seed was 0, now 1",
    "reward=binary": "reward._target_ was rookexp.rewards.chess.PolicyReward, now ",
    "++reward.best=0.9": "reward.best was 0.5, now 0.9",
    "task.seed=3": "task.seed was 88, now 3",
    "grpo.prompts_per_step=4": "task.prompts was 2, now 4",
    "eval.max_new_tokens=5": "eval.max_new_tokens was ",
}


def test_a_run_that_goes_on_is_measured_as_before(
    shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert shell(TRAIN, "hydra.run.dir=run", "steps=1") == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for typed, said in OTHER_MEASURES.items():
        capfd.readouterr()
        assert shell(f"resume=run steps=2 {typed}") == 2, typed
        error = capfd.readouterr().err
        assert f"{tmp_path}/run: a run that goes on keeps its seed, task, reward and evaluation: {said}" in error
        weights = tmp_path / "run" / "checkpoints" / "step-000001" / "model"
        assert error.endswith(f"a new one can begin with its weights: model=rook_nano model.path={weights}\n")
        assert error.count("\n") == 1
    assert all(path.read_bytes() == text for path, text in before.items() if path.suffix != ".log")
    config = (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
    moved = re.sub(r"positions: .*/assets/", "positions: /elsewhere/rookexp/assets/", config)
    assert moved != config
    (tmp_path / "run" / "config.yaml").write_text(moved, encoding="utf-8")
    allowed = "optim.lr=0.02 kl.coef=0.1 grpo.temperature=0.9 eval.every=1 hardware.micro_batch=2"
    assert shell(f"resume=run steps=2 {allowed}") == 0


def test_data_and_package_may_lie_elsewhere() -> None:
    assert resume_checks._same("task.positions", "mine.jsonl", "/elsewhere/mine.jsonl")
    assert not resume_checks._same("eval.positions", "mine.jsonl", "/elsewhere/other.jsonl")
    assert resume_checks._same("eval.positions.P", "mine.jsonl", "/elsewhere/mine.jsonl")
    assert resume_checks._same("model.path", "/one/rookexp/assets/rook_nano", "/other/rookexp/assets/rook_nano")
    assert not resume_checks._same("model.path", "/run/step-000001/model", "/run/step-000002/model")


def test_phases_and_sampling_do_not_change_what_is_measured() -> None:
    before = {"task.order": "epochs", "task.tasks.P.order": "fixed"}
    keys = (
        "task.total_steps",
        "task.schedule",
        "task.prompts",
        "task.sampling.P.temperature",
        "reward.engine.processes",
    )
    assert not [key for key in keys if resume_checks._measures(key, before)]
    assert resume_checks._measures("task.sampling.P.max_new_tokens", before)
    assert resume_checks._measures("task.tasks.P.prompts", before)


def test_what_fails_before_a_step_leaves_a_finished_run_as_it_was(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert shell(TRAIN, "hydra.run.dir=run", "steps=1") == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.suffix in (".json", ".yaml")}
    capfd.readouterr()
    with monkeypatch.context() as broken:
        broken.setattr(Trainer, "update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shell("resume=run steps=2 optim.lr=0.05")
    assert "to go on type" not in capfd.readouterr().err, "the same again would fail again, as on a read-only disk"
    assert all(path.read_bytes() == text for path, text in before.items())
    assert shell("resume=run steps=2") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], len(metrics(tmp_path / "run"))) == ("finished", 3)


def test_a_runs_folder_has_the_malformed_rows_of_its_data(
    shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = Path(__file__).with_name("released.txt").read_text(encoding="utf-8").splitlines()
    bad = [f"once upon a time, {number}" for number in range(7)]
    (tmp_path / "train.txt").write_text("\n".join([*rows, *bad]) + "\n", encoding="utf-8")
    typed = f"{TINY} hardware.threads=1 task=rookworld reward=rookworld grpo.max_new_tokens=96 grpo.group_size=2"
    typed += " grpo.prompts_per_step=2 track=local steps=1 verdict=off"
    assert shell(f"{typed} task.data=train.txt hydra.run.dir=run doctor=off") == 0
    lines = capfd.readouterr().out.splitlines()
    listed = [number for number, line in enumerate(lines) if line.startswith("train.txt: malformed: ")]
    assert len(listed) == 5
    assert lines[listed[-1] + 1] == f"7 malformed rows with reasons and texts: {tmp_path / 'run' / reading.MALFORMED}"
    found = [json.loads(line) for line in (tmp_path / "run" / reading.MALFORMED).read_text().splitlines()]
    by_row = {row["row"]: row for row in found}
    for number, text in enumerate(bad, start=len(rows) + 1):
        why = f"neither a P nor an A document: {text!r}"
        assert by_row[f"line {number}"] == {"file": "train.txt", "row": f"line {number}", "reason": why, "text": text}
    assert shell(f"{typed.replace('tokens=96', 'tokens=9')} task.data=train.txt hydra.run.dir=refused") == 1
    assert reading.MALFORMED not in capfd.readouterr().out, "the self-check found something and left no folder"
    assert not (tmp_path / "refused").exists()
    clean = typed.replace("steps=1", "steps=1 task.data=clean.txt hydra.run.dir=clean doctor=off")
    (tmp_path / "clean.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "clean").mkdir()
    (tmp_path / "clean" / reading.MALFORMED).touch()  # of a run that ended before it had a checkpoint
    assert shell(clean) == 0
    assert not (tmp_path / "clean" / reading.MALFORMED).exists()
    assert reading.MALFORMED not in capfd.readouterr().out


def make_corpus(folder: Path) -> None:
    (folder / "corpus").mkdir()
    for name, count in (("train", 7), ("validation", 2)):
        lines = [f"P: {'8/' * i}k w - - 0 {i}" for i in range(count)]
        (folder / "corpus" / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGHUP as a terminal's programs have it, also where the tests were started by `nohup`, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_after_the_step_and_the_run_goes_on(
    number: signal.Signals,
    status: int,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_corpus(tmp_path)
    assert shell(PRETRAIN, "hydra.run.dir=straight", name="pretrain") == 0
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    at_step(monkeypatch, 3, lambda: os.kill(os.getpid(), number))
    assert shell(PRETRAIN, "hydra.run.dir=ended", name="pretrain") == status
    said = capfd.readouterr().err
    assert f"{number.name}: this step is finished and saved first" in said
    assert said.splitlines()[-1] == (
        f"interrupted by {number.name} after step 3; to go on type: "
        f"python -m rookexp.pretrain resume={tmp_path / 'ended'}"
    )
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    assert (tmp_path / "ended" / "checkpoints" / "step-000003").is_dir(), "between two regular ones"
    assert json.loads((tmp_path / "ended" / "summary.json").read_text(encoding="utf-8"))["status"] == "interrupted"
    assert shell("resume=ended corpus=other", name="pretrain") == 2
    assert (
        "a run that goes on keeps its seed, corpus and validation: corpus was corpus, now other"
        in capfd.readouterr().err
    )
    assert shell("resume=ended", name="pretrain") == 0
    assert_same_run(tmp_path / "straight", tmp_path / "ended")


@pytest.mark.usefixtures("heard")
def test_what_a_run_still_says_to_a_terminal_that_closed_is_no_error() -> None:
    leader, follower = pty.openpty()
    output = os.dup(1)
    try:
        os.dup2(follower, 1)
        with Stop().listening():
            os.close(leader)
            os.close(follower)
            with pytest.raises(OSError, match="Input/output error"):
                os.write(1, b"said")
            os.kill(os.getpid(), signal.SIGHUP)
            assert os.write(1, b"said") == 4
    finally:
        os.dup2(output, 1)
        os.close(output)


def test_a_run_that_shall_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        stop = Stop()
        with stop.listening():
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_documents_that_a_model_cannot_be_trained_on(
    shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_corpus(tmp_path)
    assert shell(PRETRAIN, "model.n_positions=12", name="pretrain") == 2
    said = capfd.readouterr().err
    assert re.search(r"error: corpus/train\.txt: a document takes \d+ positions, and the model has 12; ", said)
    (tmp_path / "corpus" / "validation.txt").write_text("\n", encoding="utf-8")
    assert shell(PRETRAIN, name="pretrain") == 2
    assert capfd.readouterr().err == "error: corpus/validation.txt: empty; make it with `python -m rookexp.data`\n"


def test_what_a_pretraining_cannot_do_as_typed_is_said(
    shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_corpus(tmp_path)
    assert shell(PRETRAIN, "optim.schedule.warmup_steps=8", "validation_documents=500", name="pretrain") == 0
    count = len((tmp_path / "corpus" / "validation.txt").read_text(encoding="utf-8").splitlines())
    late = "warms up over 8 steps, and the run has 4: the rate ends at 50% of optim.lr"
    notes = [line for line in capfd.readouterr().out.splitlines() if line.startswith("note:")]
    assert notes == [
        f"note: optim.schedule.warmup_steps=8 {late}",
        f"note: validation_documents=500: corpus/validation.txt has {count}",
    ]


def test_a_sweep_ends_with_the_job_that_a_signal_ended(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert shell(TRAIN, "-m", "seed=1,2", "hydra.sweep.dir=sweep") == 143
    assert [path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()] == ["0"]
    assert shell("resume=sweep/0 steps=2") == 0
    assert [row["step"] for row in metrics(tmp_path / "sweep" / "0")] == [0, 1, 2]


@pytest.mark.parametrize("words", ["seed=1,2", "sweep=grid grpo.entropy_coef=0,0.1"])
def test_a_signal_in_a_jobs_last_step_ends_the_sweep_too(
    words: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert shell(TRAIN, "-m", *words.split(), "steps=2", "hydra.sweep.dir=sweep") == 143
    assert [path.name for path in (tmp_path / "sweep").iterdir() if path.name.isdigit()] == ["0"]
    done = json.loads((tmp_path / "sweep" / "0" / "summary.json").read_text(encoding="utf-8"))
    assert done["status"] == "finished", "the job has all its steps"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("steps=1 optim.lr=1e38", "logits of the evaluation are not finite"),
        ("steps=3 eval.every=3 optim.lr=1e38", "its update left .* not finite, .*"),
        ("steps=1 optim.lr=1e6", "logits of the evaluation are not finite"),
    ],
)
def test_no_checkpoint_is_made_of_weights_that_an_update_has_broken(
    more: str, said: str, shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = f"{more} save_every=1 optim.grad_clip=1e9 doctor=off hydra.run.dir=run"
    assert shell(TRAIN, *words.split()) == 1
    assert re.search(rf"error: step 1: {said}; lower optim\.lr", capfd.readouterr().err)
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["status"] == "diverged"
    assert not list((tmp_path / "run").glob("checkpoints/*"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_broken_weight_is_found_by_its_tensors_name(value: float) -> None:
    model = policy()
    refuse_diverged(3, model)
    with torch.no_grad():
        model.blocks[0].c_fc.weight[1, 2] = value
    with pytest.raises(TrainingDiverged, match=r"^step 3: its update left 'blocks\.0\.c_fc\.weight' with values"):
        refuse_diverged(3, model)


def test_a_checkpoints_folder_is_no_runs(shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shell(TRAIN, "steps=1", "hydra.run.dir=run") == 0
    (found,) = (tmp_path / "run" / "checkpoints").iterdir()
    for inside in ("checkpoints", f"checkpoints/{found.name}"):
        assert shell(f"resume=run/{inside} steps=2") == 2
        said = capfd.readouterr().err.splitlines()[-1]
        assert said == (
            f"error: resume=run/{inside}: in a run's folder, and not that itself; type resume={tmp_path}/run"
        )
    assert shell("resume=run steps=2") == 0


@pytest.mark.parametrize(("second", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_second_signal_does_not_wait(second: signal.Signals, error: type[BaseException]) -> None:
    stop = Stop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(error):
            os.kill(os.getpid(), second)


PIPED = f"""
import os, sys
from rookexp import train
from rookexp.config import door
sys.argv = ["train", *"{TRAIN} steps=50 save_every=50 track=local hydra.run.dir=run".split()]
sys.argv += [f"track.health.{{name}}=1" for name in ("truncated", "identical", "dead_groups")]  # which speak on stderr
if os.environ["SIGNAL"]:
    import signal
    from rookexp import trainer
    update = trainer.Trainer.update
    def signalled(self, step, experience):
        if step == 1:
            sys.stdin.read()  # until who reads has gone
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, step, experience)
    trainer.Trainer.update = signalled
door.enter(train.train, "config")
"""


@pytest.mark.parametrize(
    ("signalled", "together", "status"),
    [("", False, 141), ("", True, 141), ("SIGINT", False, 130), ("SIGINT", True, 130)],
)
def test_a_run_whose_output_is_not_read_any_more_is_saved(
    signalled: str, together: bool, status: int, root: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root), "SIGNAL": signalled}
    pipe, err = subprocess.PIPE, subprocess.STDOUT if together else subprocess.PIPE
    words = [sys.executable, "-c", PIPED]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=err) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert any(line.startswith(b"step 1/") for line in running.stdout)
        running.stdout.close()  # as `head` does, and a `tee` that the same Ctrl-C has ended
        running.stdin.close()
        said = b"" if running.stderr is None else running.stderr.read()
    assert running.returncode == status
    done = [row["step"] for row in metrics(tmp_path / "run")][-1]
    assert 2 <= done < 50
    assert (tmp_path / "run" / "checkpoints" / f"step-{done:06d}").is_dir()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "interrupted"
    if not together:
        name = signalled or "SIGPIPE"
        assert f"interrupted by {name} after step {done}; to go on type: ".encode() in said
        assert b"Traceback" not in said


def test_a_command_that_is_refused_leaves_the_run_in_its_folder_as_it_was(shell: Shell, tmp_path: Path) -> None:
    assert shell(TRAIN, "hydra.run.dir=run", "steps=2") == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for line in ("optim.lr=0.02 steps=3", "dry_run=true", "optim.lr=-1"):
        shell(TRAIN, "hydra.run.dir=run", *line.split())
        changed = [str(path) for path, text in before.items() if path.read_bytes() != text and path.suffix != ".log"]
        assert not changed
    assert shell("resume=run steps=3") == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))["optim"]["lr"] == 0.01


@pytest.mark.hydra
def test_a_finished_run_says_so_and_goes_on_when_steps_grow(
    shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "it's, a=b"
    assert shell(TRAIN, "hydra.run.dir=made", "steps=2") == 0
    shutil.move(tmp_path / "made", odd)  # runs may be moved, and folders have odd names
    before = {path: path.read_bytes() for path in odd.rglob("*") if path.is_file() and path.suffix != ".log"}
    capfd.readouterr()
    assert shell("", f"resume={odd}") == 2
    assert f"{odd} is finished, with 2 steps done; allowed: more than 2" in capfd.readouterr().err
    assert shell("steps=4 optim.lr=-1", f"resume={odd}") == 2
    assert capfd.readouterr().err == "error: optim.lr=-1: allowed: a number > 0\n"
    assert all(path.read_bytes() == text for path, text in before.items()), "a refused command changes nothing"
    assert shell("steps=4 optim.grad_clip=0.5", f"resume={odd}") == 0
    assert [row["step"] for row in metrics(odd)] == [0, 1, 2, 3, 4]
    config = yaml.safe_load((odd / "config.yaml").read_text(encoding="utf-8"))
    assert (config["optim"]["lr"], config["optim"]["grad_clip"], config["steps"]) == (0.01, 0.5, 4)
    saved = yaml.safe_load((odd / run_info.OVERRIDES).read_text(encoding="utf-8"))
    assert [text for text in saved if text.startswith(("steps", "optim", "resume"))] == [
        "optim.lr=0.01",
        "steps=4",
        "optim.grad_clip=0.5",
    ]


def test_what_cannot_be_resumed_is_said_in_one_line(
    shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert shell(TRAIN, "hydra.run.dir=stillborn", "steps=1") == 0
    shutil.rmtree(tmp_path / "stillborn" / "checkpoints")
    capfd.readouterr()
    for line, words in {
        "resume=nowhere": "resume=nowhere: no such folder; allowed: a run folder with a checkpoint, or null",
        "resume=": "resume=: no such folder",
        "resume=empty": "resume=empty: not a run's folder",
        "resume=.": "resume=.: a folder of runs; name one, as ",
        "model.path=.": "model: .: a folder of runs; name one, as stillborn",
        "resume=stillborn optim.lr=1": "/stillborn: no checkpoint in it; allowed: ",
        "-m resume=stillborn seed=1,2": "resume=stillborn: not with -m; each job of a sweep has a folder",
        "resume=stillborn,empty": "no such folder",
    }.items():
        assert shell(line) == 2
        error = capfd.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert words in error
    assert shell("resume=stillborn", name="pretrain") == 2
    assert "a run of another door; type python -m rookexp.train resume=stillborn" in capfd.readouterr().err


def test_resume_null_is_a_new_run() -> None:
    assert resume.continued(["-m"], ["a=1", "resume=null"], "config") == ["-m", "a=1", "resume=null"]
    assert resume.continued([], ["resume=x"], "data") == ["resume=x"], "a door whose runs are not resumed"


def test_a_run_that_goes_on_elsewhere_says_what_it_does_not_find_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began = tmp_path / "began"
    (began / "mygpt2").mkdir(parents=True)
    (tmp_path / ".hydra").mkdir()
    sources = [{"path": "a", "provider": "main"}]
    runtime = {"config_sources": sources, "cwd": str(began)}
    about = {"hydra": {"job": {"config_name": "config"}, "runtime": runtime}}
    (tmp_path / resume.HYDRA).write_text(yaml.safe_dump(about), encoding="utf-8")
    saved = ["model.path=mygpt2", "seed=3", "task_name=mine"]
    (tmp_path / run_info.OVERRIDES).write_text(yaml.safe_dump(saved), encoding="utf-8")

    def told(place: Path) -> str:
        monkeypatch.chdir(place)
        resume.continued([], [f"resume={tmp_path}"], "config")
        return capsys.readouterr().err

    assert told(began) == ""
    begun = f"go to {began}, or type an absolute path"
    assert told(tmp_path) == f"note: model.path=mygpt2: not here, but where the run began; {begun}\n"
    sources.append({"path": str(began), "provider": "command-line"})
    (began / "mygpt2").rmdir()
    (tmp_path / resume.HYDRA).write_text(yaml.safe_dump(about), encoding="utf-8")
    assert told(tmp_path) == f"note: the run began in {began}; modules of your own are looked for here\n"


def test_typed_overrides_win_and_a_folder_of_options_is_found_again(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    sources = [{"path": "a", "provider": "main"}, {"path": "mine", "provider": "command-line"}]
    about = {"hydra": {"job": {"config_name": "config"}, "runtime": {"config_sources": sources}}}
    (tmp_path / resume.HYDRA).write_text(yaml.safe_dump(about), encoding="utf-8")
    saved = ["kl=fixed", "kl.coef=0.1", "+a.b=1", "seed=3", "resume=earlier"]
    (tmp_path / run_info.OVERRIDES).write_text(yaml.safe_dump(saved), encoding="utf-8")
    place = [f"resume='{tmp_path}'", f"hydra.run.dir='{tmp_path}'"]
    line = resume.continued(["--cfg", "job"], ["kl=none", "++a.b=2", f"resume='{tmp_path}'"], "config")
    assert line == ["--config-dir", "mine", "--cfg", "job", "seed=3", "kl=none", "++a.b=2", *place]
    for given in (["--config-dir", "other"], ["--config-dir=other"], ["-cd", "other"]):
        line = resume.continued(given, [f"resume={tmp_path}"], "config")
        assert line == [*given, *saved[:4], *place]
    about["hydra"]["job"]["config_name"] = "own"
    (tmp_path / resume.HYDRA).write_text(yaml.safe_dump(about), encoding="utf-8")
    flags = ["--config-dir", "mine", "--config-name", "own"]
    assert resume.continued([], [f"resume={tmp_path}"], "config") == [*flags, *saved[:4], *place]
    line = resume.continued(["-cn", "other"], [f"resume={tmp_path}"], "config")
    assert line == [*flags[:2], "-cn", "other", *saved[:4], *place]
    with pytest.raises(ConfigError, match=r"a run goes on in its own folder; leave hydra.run.dir=elsewhere out"):
        resume.continued([], [f"resume={tmp_path}", "hydra.run.dir=elsewhere"], "config")
    assert resume.continued([], [f"resume={tmp_path}", f"hydra.run.dir={tmp_path}"], "config")[-1] == place[-1]


def test_a_pruned_run_that_is_resumed_says_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / run_info.TRIAL).write_text("{}", encoding="utf-8")
    monkeypatch.setattr(job.Trial, "pruned", lambda _: "pruned by MedianPruner")
    train.train({}, tmp_path)
    said = f"{tmp_path}: given up by its sweep (pruned by MedianPruner)"
    assert capsys.readouterr().out == f"{said} before it began\n", "there is nothing to resume"
    (tmp_path / "checkpoints").mkdir()
    train.train({}, tmp_path)
    assert capsys.readouterr().out == f"{said}; to train on, delete trial.json in it and resume\n"


def test_a_run_without_space_can_go_on() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert session.ending(full) == ("interrupted", "OSError: [Errno 28] No space left on device")
    assert session.ending(NotSaved("step-000002: not written")) == ("interrupted", "step-000002: not written")
    assert session.ending(OSError(errno.EACCES, "closed"))[0] == "failed"


@pytest.mark.parametrize(
    ("word", "passed", "status"), [("require", False, 1), ("require", True, 0), ("report", False, 0), ("off", False, 0)]
)
def test_only_a_required_verdict_decides_the_exit_status(
    word: str,
    passed: bool,
    status: int,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    judged = verdict.Verdict(passed, ("PASS slope: 1", f"{'PASS' if passed else 'FAIL'} rise: 0 (more)"), {})
    monkeypatch.setattr(verdict, "judge_rows", lambda rows: judged)
    assert shell(TRAIN, "hydra.run.dir=made", "steps=1", f"verdict={word}") == status
    captured = capfd.readouterr()
    said = [line for line in captured.err.splitlines() if not line.startswith("health: ")]
    assert said == (["error: verdict FAIL: FAIL rise: 0 (more)"] if status else [])
    assert ("rise: 0 (more)" in captured.out) == (word != "off")
    assert (tmp_path / "made" / "curves.png").is_file()
    summary = json.loads((tmp_path / "made" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "finished"
    assert (summary["verdict"] or {}).get("passed") == (None if word == "off" else passed)


FROM_HUB = "debug=fast model=rookworld_124m model.path=owner/name model.parameters=null kl.coef=0.1 kl.warmup=1"


def revision(folder: Path) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["model"]["revision"]


def test_a_run_notes_the_commit_of_its_model_on_the_hub_and_goes_on_with_it(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repo, commits = tmp_path / "cache" / "models--owner--name", ["a" * 40, "b" * 40]
    for commit in commits:
        shutil.copytree(door.PACKAGE / "assets" / "rook_nano", repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    for branch in ("main", "v1"):
        (repo / "refs" / branch).write_text(commits[0])
    assert shell(f"{FROM_HUB} hydra.run.dir=run") == 0
    assert shell(f"{FROM_HUB} model.revision=v1 hydra.run.dir=tagged") == 0
    assert revision(tmp_path / "run") == revision(tmp_path / "tagged") == commits[0]
    for branch in ("main", "v1"):
        (repo / "refs" / branch).write_text(commits[1])
    (repo / "snapshots" / commits[1] / "model.safetensors").unlink()  # who loads this one fails
    for folder in ("run", "tagged"):
        assert shell(f"resume={folder} steps=3") == 0
        assert revision(tmp_path / folder) == commits[0]
    assert shell("resume=run steps=4 model.revision=v1") == 2
    assert shell(f"resume=run steps=4 model.revision={commits[0]}") == 0
    assert shell(f"{FROM_HUB} hydra.run.dir=other") == 2
