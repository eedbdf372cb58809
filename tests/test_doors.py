"""The doors as a shell meets them: every mistake is one line, each run has its folder, and asking is quick."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from rookexp import bench, build, data, doctor, evaluate, export, pretrain, train, uci
from rookexp.config import composing, door, environment, mistakes
from rookexp.errors import ConfigError, TrainingDiverged

DOORS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "config": train.train,
    "pretrain": pretrain.pretrain,
    "data": data.make_corpus,
    "evaluate": evaluate.evaluate,
    "export": export.export,
    "uci": uci.uci,
    "bench": bench.bench,
}


class Entered:
    """What the door gave its task."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], Path]] = []
        self.error: Exception | None = None

    def __call__(self, config: dict[str, Any], run_folder: Path) -> None:
        self.calls.append((config, run_folder))
        build.check_config(config)
        if self.error is not None:
            raise self.error


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quiet_logging: None) -> Any:
    """Calls the door as a shell would, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.FULL_ERROR, raising=False)

    def call(*argv: str, error: Exception | None = None) -> Entered:
        monkeypatch.setattr(sys, "argv", ["rookexp-train", *argv])
        task = Entered()
        task.error = error
        door.enter(task, "config")
        return task

    return call


# ---- mistakes -------------------------------------------------------------------------------------------------------

MISTAKES = {
    # found by the checker
    "grpo.kl_type=simmetric": "grpo.kl_type=simmetric: allowed: forward, reverse, symmetric, k1, k2, k3, abs, "
    "ratio_k3, legacy_sampled; did you mean symmetric?",
    "grpo.kl_placement=los": "grpo.kl_placement=los: allowed: loss, reward; did you mean loss?",
    "grpo.aggregation=token": "grpo.aggregation=token: allowed: token_mean, sequence_mean, constant_length, ",
    "grpo.dead_groups=drop": "grpo.dead_groups=drop: allowed: kept, dropped, resampled; did you mean dropped?",
    "grpo.overlong_buffer=0": "grpo.overlong_buffer=0: allowed: an integer >= 1, or null",
    "grpo.temperature=0": "grpo.temperature=0: allowed: a number > 0",
    "grpo.top_k=1": "grpo.top_k=1: allowed: an integer >= 2, or null",
    "grpo.inner_epochs=0": "grpo.inner_epochs=0: allowed: an integer >= 1",
    "grpo.group_size=2.5": "grpo.group_size=2.5: allowed: an integer",
    "optim.lr=-1": "optim.lr=-1: allowed: a number > 0",
    "optim.lr=abc": "optim.lr=abc: allowed: a number > 0",
    "optim.lr=nan": "optim.lr=nan: allowed: a number > 0",
    "optim.betas=[0.9]": "optim.betas=[0.9]: allowed: a list of length 2, each a number >= 0 and < 1",
    "hardware.device=gpu": "hardware.device=gpu: allowed: auto, cpu, cuda, mps",
    "kl._target_=rookexp.coefficients.Warmup": "no 'Warmup' in rookexp.coefficients; did you mean WarmupKL?",
    "model=gpt2_tiny model.path=x": "seed; model=retokenized, model=rook_nano, model=rookworld_124m have it",
    "games=2": "task, task_name, track, verdict\n",
    "+optim.lrr=3": "optim.lrr=3: no such key; allowed in optim: lr, betas",
    "+grpo.seed=3": "grpo.seed=3: no such key",
    "+kl.extra.key=1": "kl.extra={'key': 1}: no such key",
    "kl=none +kl.x=1": "kl.x=1: no such key; kl has none",
    "baseline=rloo +baseline.x=1": "baseline.x=1: no such key; baseline has none",
    "loss=reinforce +loss.clip_low=1": "loss.clip_low=1: no such key; loss has none",
    "loss=cispo loss.clip_low=1": "loss.clip_low=1: allowed: a number > 0 and < 1, or null",
    "reference=ema reference.decay=1": "reference.decay=1: allowed: a number > 0 and < 1",
    "baseline=gae baseline.lam=1.5": "baseline.lam=1.5: allowed: a number >= 0 and <= 1",
    "+foo=1": "foo=1: no such key or group; allowed at the top: grpo, model, task",
    "grpo.prompts_per_step=0": "grpo.prompts_per_step=0: allowed: an integer >= 1",
    "+kll=fixed": "kll=fixed: no such key or group",
    "~grpo.kl_type": "grpo.kl_type: missing; allowed: forward, reverse, symmetric, k1",
    "~optim.lr": "optim.lr: missing; allowed: a number > 0",
    "~kl": "kl=null: allowed: an option of conf/kl/, as in kl=NAME",
    "+track.extra=1": "track.extra=1: allowed: a node with a _target_",
    "seed=-1": "seed=-1: allowed: an integer >= 0",
    "verdict=requir": "verdict=requir: allowed: report, require, off; did you mean require?",
    "model.path=${nope}": "model.path: Interpolation key 'nope' not found",
    "seed=???": "seed: ",
    # found before composing, or by the machine
    "task_name=a/b": "task_name=a/b: allowed: a name without /",
    "task_name=..": "task_name=..: allowed: a name without / [ {, and not null, . or ..",
    "task_name=null": "task_name=null: allowed: a name without / [ {, and not null",
    "hydra.job.chdir=true": "hydra.job.chdir=true: relative paths would lead elsewhere",
    "++task_name=a/b": "++task_name=a/b: allowed: a name without /",
    "++hydra.job.chdir=true": "++hydra.job.chdir=true: relative paths would lead elsewhere",
    "-m optim.lr=interval(1e-5,1e-3)": "optim.lr=interval(1e-5,1e-3): for a search by another sampler: add ",
    "grpo.lookup=65": "grpo.lookup=65: allowed: an integer >= 0 and <= 64",
    "hardware.threads=1025": "hardware.threads=1025: allowed: an integer >= 1 and <= 1024",
    "hydra.run.dir=/proc/x": "/proc/x: No such file or directory; a run must be able to write: type ",
    # found while composing
    "grpo.kl_typ=x": "did you mean grpo.kl_type?",
    "kl=none kl.coef=1": "kl.coef=1: kl=none has no keys; choose another option of kl",
    "reward=rookworld reward.rewards.A.x=1": "reward@reward.rewards.A=a_exact has no keys; choose another option of r",
    "reward=linear reward.rewards.P.judge.x=1": "judge.x=1: reward.rewards.P.judge has no keys\n",
    "kl=warmpu": "kl=warmpu: allowed: adaptive, anneal, fixed, none, ppo_rule, proportional, warmup; did you mean "
    "kl=warmup?",
    "hardware=gpu": "; did you mean hardware=cuda?",
    "klx=none": "klx=none: no such key; allowed at the top: ",
    "lr=3": "did you mean optim.lr?",
    "grpo=1": "grpo=1: allowed: default, ppo",
    "kl.coef.x=1": "kl.coef.x=1: kl.coef is a value and holds no keys",
    "+kl=fixed": "+kl=fixed: kl has a choice already; type kl=fixed",
    "task@task.tasks.A=a_games task=rookworld_mix": "task@task.tasks.A=a_games: type +task@task.tasks.A=a_games",
    "+optim.lr=3": "+optim.lr=3: there is a value already; type optim.lr=3",
    "experiment=overfti": "; did you mean experiment=overfit?",
    "kl=fixed,none": "kl: several values need the flag -m\n",
    "optim.betas=0.9,0.99": "optim.betas: several values need the flag -m; a list is written key=[a,b]",
    "reward=[graduated,continuous]": "reward=[graduated,continuous]: allowed: one option; of several the last",
    "reward=rookworld reward@reward.rewards.P=[linear,policy]": "=[linear,policy]: allowed: one option",
    "kl=[": "kl=[: allowed: key=value or group=option",
    "kl": "kl: allowed: key=value or group=option",
    "--multirn": "--multirn: no such flag; allowed: key=value, group=option, ",
    "--config-dir nowhere": "--config-dir nowhere: no such folder; allowed: one that is laid out like conf/",
    "--config-name=confg": "--config-name confg: no such file; allowed: bench, config, data, evaluate, export, "
    "pretrain, uci; did you mean config?",
    "--config-path nowhere": "--config-path nowhere: no such folder; allowed: one in place of conf/",
    "--experiment=overfit": ", --version; did you mean experiment=overfit?",
    "hydra.mode=MULTIRUN seed=0,1": "hydra.mode=MULTIRUN: type the flag -m in its place",
    "sweep.storage=postgresql://me:hush@host/name": "sweep.storage=***: others can read what is typed; "
    "put it into .env: WANDB_API_KEY=... for W&B; a database's password is then typed as ${oc.env:NAME}",
    "+hydra.job.env_set={A:1,'WANDB_API_KEY':x}": "+hydra.job.env_set=***: others can read what is typed",
    "-m hydra.sweeper.n_trials=3 seed=0,1": "sweep.n_trials=3: which sweep? add a recipe",
    "-m hydra.launcher.n_jobs=2 seed=0,1": "n_jobs=2: hydra/launcher=basic has no keys; choose another option of ",
    "-m kl=glob(*x)": "kl=glob(*x): no option matches; allowed: adaptive, anneal, ",
    "-m seed=range(3,3)": "seed=range(3,3): no value; allowed: at least one",
    "-m seed=0,1,0": "seed=0,1,0: 0 is there twice; allowed: each value once",
    "-m baseline=rloo,rloo": "baseline=rloo,rloo: rloo is there twice; allowed: each value once",
    "sampler.seed=1": "; did you mean sweep.sampler.seed?",
    "grpo.lr=1": "; did you mean optim.lr?",
    "optim.betas=(0.9,0.99)": "; a list is written optim.betas=[0.9,0.99]",
    "optim.betas='[0.9,0.99]'": "; this is text; a list has no quotes around its brackets",
}


@pytest.mark.hydra
@pytest.mark.parametrize("argument", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(argument: str, enter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        enter(*argument.split(" "))
    assert exit_status.value.code == 2
    captured = capfd.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("error: ")
    assert MISTAKES[argument] in captured.err


def test_a_full_disk_is_one_line(enter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        enter(error=OSError(errno.ENOSPC, "No space left on device", "run/summary.json"))
    assert exit_status.value.code == 1
    said = capfd.readouterr().err
    assert said.startswith("error: run/summary.json: No space left on device; free some space and type the same again")
    assert said.count("\n") == 1


def test_a_run_on_a_read_only_disk_is_resumed_in_a_copy(enter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        enter(error=OSError(errno.EROFS, "Read-only file system", "run/metrics.jsonl"))
    said = capfd.readouterr().err
    assert said.startswith("error: run/metrics.jsonl: Read-only file system; a run must be able to write: type hydra.")
    assert said.endswith("or resume=A COPY of the run\n")  # hydra.run.dir=FOLDER is refused beside resume


LATE = "from rookexp.config import door; door.enter(lambda config, folder: print('not written before the end'), 'uci')"


@pytest.mark.parametrize("words", [["-m", "rookexp.train", "--cfg", "job"], ["-c", LATE]])
def test_who_stops_reading_is_no_error(words: list[str], tmp_path: Path, root: Path) -> None:
    words = [sys.executable, *words]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, **pipe) as door_process:
        assert door_process.stdout is not None
        door_process.stdout.close()
        assert door_process.stderr is not None
        assert door_process.stderr.read() == b""
    assert door_process.returncode == 141


def test_what_is_refused_or_only_looked_at_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_logging: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in ("optim.lr=-1", "dry_run=true", "grpo.max_new_tokens=999 debug=fast"):
        monkeypatch.setattr(sys, "argv", ["train", *line.split()])
        with suppress(SystemExit):
            train.main()
        assert not list(tmp_path.iterdir()), line
    monkeypatch.setattr(sys, "argv", ["doctor", "debug=fast"])
    with suppress(SystemExit):
        doctor.main()
    assert not list(tmp_path.iterdir()), "of a self-check"
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(sys, "argv", ["train", "optim.lr=-1", f"hydra.run.dir={tmp_path}/kept/run"])
    monkeypatch.chdir(tmp_path / "kept")
    with suppress(SystemExit):
        train.main()
    assert not list((tmp_path / "kept").iterdir()), "and the folder where it was typed stays"
    (tmp_path / "empty").mkdir()
    door.leave_no_empty(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    door.leave_no_empty(tmp_path / "here")
    assert (tmp_path / "here").is_dir(), "where a chess program has started the engine"


def test_a_folder_that_is_gone_has_no_log_file_any_more(enter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        enter(error=ConfigError("key=1: allowed: 2"))
    logging.root.info("what PyTorch says at exit")  # without the folder this would be a FileNotFoundError
    assert "what PyTorch says at exit" in capfd.readouterr().out


def test_an_output_that_is_closed_keeps_nothing(tmp_path: Path, root: Path) -> None:
    for words in ("debug=fast track=local hydra.run.dir=run", "--help"):
        line = f"{shlex.quote(sys.executable)} -m rookexp.train {words} >&-"
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_a_file_that_may_not_be_read_is_one_line(enter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        enter(error=PermissionError(errno.EACCES, "Permission denied", "model/config.json"))
    assert exit_status.value.code == 1
    assert capfd.readouterr().err.startswith("error: model/config.json: Permission denied; it needs the right")


def test_an_output_that_does_not_know_a_character_shows_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict"))
    environment.print_any_text()
    print("0.1 \u2192 0.2", flush=True)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert sys.stdout.buffer.getvalue() == b"0.1 ? 0.2\n"  # type: ignore[attr-defined]


def test_one_mistake_among_many_words_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"{key}={value}" for value in (1, 2) for key in ("steps", "seed", "save_every", "keep_checkpoints")]
    composed, compose = 0, hydra.compose

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal composed
        composed += 1
        return compose(*given, **more)

    monkeypatch.setattr(hydra, "compose", counted)
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        loader = GlobalHydra.instance().config_loader()
        assert mistakes.refused("config", [], words, loader) is None
        assert composed == 1
        for place in (0, 3, 8):
            composed = 0
            said = mistakes.refused("config", [], [*words[:place], "sede=3", *words[place:]], loader)
            assert said is not None
            assert said.startswith("sede=3: no such key; ")
            assert composed <= 6, "all nine, four of halves, and the configuration without it"


@pytest.mark.hydra
def test_a_mistake_in_a_sweep_names_the_value(enter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        enter("-m", "kl=none,fixde")
    assert exit_status.value.code == 2
    assert "kl=fixde: allowed: adaptive, anneal, fixed, " in (error := capfd.readouterr().err)
    assert "did you mean kl=fixed?" in error
    assert not capfd.readouterr().err


@pytest.mark.hydra
def test_each_failing_job_of_a_sweep_has_one_line_and_the_others_run(
    enter: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_status:
        enter("-m", "optim.lr=-1,0.5,nan", "seed=7")
    assert exit_status.value.code == 2
    captured = capfd.readouterr()
    assert captured.err.splitlines() == [
        "error: job 0 (optim.lr=-1 seed=7): optim.lr=-1: allowed: a number > 0",
        "error: job 2 (optim.lr=nan seed=7): optim.lr=nan: allowed: a number > 0",
    ]
    assert "#2" in captured.out


TINY = (
    "model=fresh_nano model.seed=0 model.n_layer=1 model.n_head=1 model.n_embd=8 hardware=cpu hardware.precision=fp32"
)


def test_a_divergence_that_is_typed_and_never_computed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_logging: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = "note: grpo.kl_type=k2 changes nothing: the KL coefficient stays 0; kl=fixed has one"
    late = "note: {} changes no gradient: the KL coefficient stays 0 for kl.warmup=20 steps, and the run has 2"
    cases = (
        ("kl=none", [told]),
        ("kl.coef=0", [told.replace("kl=fixed has one", "give kl.coef more"), late.format("kl.coef=0")]),
        ("kl.coef=0.1", [late.format("grpo.kl_type=k2, kl.coef=0.1")]),
        ("kl=fixed", []),
        ("kl=fixed grpo.top_k=5000", ["note: grpo.top_k=5000 changes nothing: the model has 3998 tokens"]),
    )
    for number, (penalty, notes) in enumerate(cases):
        words = f"debug=fast {TINY} track=local doctor=off hydra.run.dir=run{number} grpo.kl_type=k2 {penalty}"
        monkeypatch.setattr(sys, "argv", ["train", *words.split()])
        train.main()
        assert [line for line in capfd.readouterr().out.splitlines() if line.startswith("note:")] == notes, penalty


DOOR_MISTAKES = [
    ("config", f"{TINY} task.positions=nowhere.jsonl", "nowhere.jsonl"),
    ("config", f"{TINY} eval.positions=nowhere.jsonl", "nowhere.jsonl"),
    ("config", f"{TINY} ~track.jsonl", "track.jsonl: missing"),
    ("config", f"{TINY} eval.every=0", "eval.every=0: allowed: an integer >= 1"),
    ("config", f"{TINY} loss=gspo baseline=gae", "loss=Gspo with baseline=Gae: the loss has one ratio a completion"),
    ("config", f"{TINY} grpo.group_size=1", "grpo.group_size=1: a lone completion has no others"),
    (
        "config",
        f"{TINY} grpo.overlong_buffer=81",
        "grpo.overlong_buffer=81: allowed: null, or at most grpo.max_new_tokens=80",
    ),
    ("config", f"{TINY} loss=two_sided loss.delta=1.1", "loss.delta=1.1: allowed: a number > 1.2"),
    ("config", f"{TINY} kl=adaptive kl.coef=0.9", "kl.coef=0.9: allowed: from kl.min_coef=0.0005 to kl.max_coef=0.05"),
    ("config", "model.path=nowhere", "nowhere: no such folder"),
    ("config", f"{TINY} model.n_head=3", "model.n_head=3: allowed: a divisor of model.n_embd=8"),
    ("pretrain", "stesp=3", "stesp=3: no such key; allowed at the top: "),
    ("pretrain", "steps=many", "steps=many: allowed: an integer >= 1"),
    ("pretrain", "corpus=nowhere", "nowhere/train.txt"),
    ("pretrain", "model=fresh_nno", "did you mean model=fresh_nano?"),
    ("data", "quotas.openning=0.1", "did you mean quotas.opening?"),
    ("data", "+quotas.openning=0.1", "quotas.openning=0.1: no such key"),
    ("data", "quotas.opening=half", "quotas.opening=half: allowed: a number"),
    ("data", "a_shares.mate=0.5", "a_shares="),
    ("data", "multipv=9", "multipv=9: allowed: an integer >= 1 and <= 5"),
    ("data", "black_best=corected", "did you mean corrected?"),
    ("data", "+nodez=3", "nodez=3: no such key or group; allowed at the top: mix, transitions, folder, seed"),
    ("data", "folder=made engine_path=nowhere/stockfish", "nowhere/stockfish"),
    ("data", "resume=made", "resume=made: no such key"),
    ("pretrain", "experiment=mini", "experiment=mini: not a group of this command, which has hardware, model, optim, "),
    ("data", "optim=adamw", "optim=adamw: not a group of this command, which has none"),
    ("evaluate", "p_stile=bare", "did you mean p_style?"),
    ("evaluate", "run=x", "temperature, top_k\n"),  # not: did you mean hydra.run?
    ("evaluate", "p_style=padded", "p_style=padded: allowed: bare, padded_prefill"),
    ("evaluate", "limit=0", "limit=0: allowed: an integer >= 1, or null"),
    ("evaluate", "+folder=here", "folder=here: no such key"),
    ("evaluate", "documents={a:b}", "documents={a:b}: allowed: a list, which stands in square brackets\n"),
    ("evaluate", f"{TINY} documents=[nowhere.txt]", "nowhere.txt"),
    ("export", "rum=x", "did you mean run?"),
    ("export", "run=x", "out=null: allowed: a folder; type run=RUN out=FOLDER"),
    ("export", "run=nowhere out=made", "nowhere: no such folder, and not a Hub id"),
    ("export", "dtype=bf16", "dtype=bf16: allowed: float32, bfloat16"),
    ("uci", "reading=writen", "reading=writen: allowed: written, argmax; did you mean written?"),
    ("uci", "multipv=6", "multipv=6: allowed: an integer >= 1 and <= 5"),
    ("uci", "+nodes=3", "nodes=3: no such key or group; allowed at the top: "),
]


@pytest.mark.parametrize(("name", "typed", "words"), DOOR_MISTAKES, ids=lambda text: str(text)[:40])
def test_every_door_says_it_in_one_line(
    name: str,
    typed: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    quiet_logging: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.FULL_ERROR, raising=False)
    monkeypatch.setattr(sys, "argv", ["rookexp", *typed.split()])
    with pytest.raises(SystemExit) as exit_status:
        door.enter(DOORS[name], name)
    assert exit_status.value.code == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1, error
    assert error.startswith("error: ")
    assert words in error


def test_a_failed_run_has_status_1_and_a_bug_its_traceback(enter: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        enter(error=TrainingDiverged("step 3: loss is nan"))
    assert exit_status.value.code == 1
    assert capfd.readouterr().err == "error: step 3: loss is nan\n"
    with pytest.raises(ZeroDivisionError):
        enter(error=ZeroDivisionError())


@pytest.mark.hydra
def test_hydra_full_error_shows_the_traceback(enter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(door.FULL_ERROR, "1")
    with pytest.raises(ConfigError):
        enter("optim.lr=-1")


# ---- the door -------------------------------------------------------------------------------------------------------


@pytest.mark.hydra
@pytest.mark.parametrize("option", ["disabled", "none", "stdout"])
def test_hydras_other_ways_to_log_are_taken(option: str, enter: Any) -> None:
    assert len(enter(f"hydra/job_logging={option}", "hydra/hydra_logging=disabled").calls) == 1


@pytest.mark.hydra
def test_each_run_has_a_folder_of_its_own(enter: Any, tmp_path: Path) -> None:
    folders = [enter(f"task_name={name}").calls[0][1] for name in ("a", "a", "b")]
    assert len(set(folders)) == 3
    assert [folder.parent for folder in folders] == [tmp_path / "outputs" / name for name in ("a", "a", "b")]
    assert not any((folder / ".hydra").exists() for folder in folders), "it is the training's to write"


@pytest.mark.hydra
def test_a_sweep_runs_each_job_in_one_folder(enter: Any) -> None:
    calls = enter("-m", "kl=glob(*,exclude=*a*)", "+experiment=overfit").calls
    names = ["FixedKL", "NoKL", "PpoRuleKL"]
    assert [config["kl"]["_target_"].split(".")[-1] for config, _ in calls] == names
    assert [folder.name for _, folder in calls] == ["0", "1", "2"]
    assert len({folder.parent for _, folder in calls}) == 1


@pytest.mark.hydra
@pytest.mark.parametrize("plus", ["", "+"])
def test_presets_with_and_without_plus(plus: str, enter: Any) -> None:
    config, _ = enter(f"{plus}experiment=overfit", f"{plus}debug=fast").calls[0]
    assert config["steps"] == 2


@pytest.mark.hydra
def test_flags_may_stand_anywhere(enter: Any) -> None:
    assert [config["seed"] for config, _ in enter("steps=2", "-m", "seed=1,2").calls] == [1, 2]


AWKWARD = ("x", "é", "it's", 'q"q', "a b (copy)", "x=1", "a[1]", "a#b~{c}", "$z,;", "a\\'b")


@pytest.mark.parametrize(
    ("way", "name"), [*(("hydra.searchpath", name) for name in AWKWARD), *(("--config-dir", n) for n in AWKWARD[-3:])]
)
def test_a_recipe_of_ones_own_gives_way_to_an_option_whatever_its_folder_is_called(
    way: str, name: str, enter: Any, tmp_path: Path
) -> None:
    own = tmp_path / name / "options"
    (own / "experiment").mkdir(parents=True)
    (own / "experiment" / "own.yaml").write_text(
        "# @package _global_\ndefaults: [{override /loss: clip}]\nloss: {clip_low: 0.111, clip_high: 0.222}\n"
    )
    place = f"hydra.searchpath=[{composing.quoted(f'file://{own}')}]"
    where = ["--config-dir", str(own)] if way == "--config-dir" else [place]
    found, _ = enter(*where, "experiment=own", "loss=gspo").calls[0]
    assert (found["loss"]["clip_low"], found["loss"]["clip_high"]) == (3e-4, 4e-4), "as the option's file has it"
    recipe, _ = enter(*where, "experiment=own").calls[0]
    assert recipe["loss"]["clip_low"] == 0.111


def test_a_recipes_null_gives_way_to_an_option_without_that_key(enter: Any, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    own = "# @package _global_\ntrack: {wandb: null}\nloss: {clip_low: null}\n"
    (tmp_path / "experiment" / "own.yaml").write_text(own, encoding="utf-8")
    where = ["--config-dir", str(tmp_path), "experiment=own"]
    plain, _ = enter("track=local", "loss=reinforce").calls[0]
    found, _ = enter(*where, "track=local", "loss=reinforce").calls[0]
    assert (found["track"], found["loss"]) == (plain["track"], plain["loss"])


@pytest.mark.hydra
@pytest.mark.parametrize("way", ["--config-dir", "hydra.searchpath"])
def test_a_file_of_ones_own_that_would_never_be_read_is_refused(
    enter: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    own = tmp_path / "my"
    where = ["--config-dir", str(own)] if way == "--config-dir" else [f"hydra.searchpath=['file://{own}']"]
    for name, option in (("loss/gspo.yaml", "loss=gspo"), ("pretrain.yaml", "--config-name pretrain")):
        path = own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((composing.conf_dir() / name).read_bytes())
        assert len(enter(*where, "loss=gspo").calls) == 1, "a copy says the same"
        path.write_text("clip_low: 0.5\n", encoding="utf-8")
        with pytest.raises(SystemExit):
            enter(*where, "loss=gspo")
        said = capsys.readouterr().err
        assert said == f"error: {path}: never read, for {option} is one of rookexp's; give it another name\n"
        path.rename(path.with_stem("own"))
        assert len(enter(*where).calls) == 1


@pytest.mark.hydra
@pytest.mark.parametrize("text", ["", "steps: 3\n", "# mine\n# @package _global_\nsteps: 3\n", "# @package loss\n"])
def test_a_recipe_whose_values_would_go_elsewhere_is_refused(
    text: str, enter: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "experiment" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    assert len(enter("--config-dir", str(tmp_path)).calls) == 1, "a file that is not asked for"
    for argv in (["experiment=mine"], ["-m", "experiment=dapo,'mine'"]):
        with pytest.raises(SystemExit):
            enter("--config-dir", str(tmp_path), *argv)
        assert capsys.readouterr().err == (
            f"error: {path}: without `# @package _global_` its values would go under experiment, not to the keys that "
            "they name; make it the first line, above any comment\n"
        )
    path.write_text("\n#  @package _global_\n# mine\nsteps: 3\n", encoding="utf-8")
    (call,) = enter("--config-dir", str(tmp_path), "experiment=mine").calls
    assert call[0]["steps"] == 3


@pytest.mark.hydra
def test_a_folder_in_place_of_conf_is_one_of_the_working_folder(enter: Any, tmp_path: Path) -> None:
    own = tmp_path / "mine"
    shutil.copytree(composing.conf_dir(), own)
    file = own / "kl" / "warmup.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("coef: 0.005", "coef: 0.25"), encoding="utf-8")
    assert enter("-cp", "mine").calls[0][0]["kl"]["coef"] == 0.25


def test_a_typo_among_options_of_ones_own_names_them(
    enter: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "é" / "kl").mkdir(parents=True)
    (tmp_path / "é" / "kl" / "gentle.yaml").write_text("_target_: rookexp.coefficients.FixedKL\ncoef: 0.001\n")
    with pytest.raises(SystemExit):
        enter("--config-dir", "é", "kl=gentel")
    said = capsys.readouterr().err
    assert said.startswith("error: kl=gentel: allowed: adaptive, anneal, fixed, gentle, none, ")
    assert said.endswith("; did you mean kl=gentle?\n")


@pytest.mark.hydra
def test_a_value_with_odd_characters_says_how_it_is_typed(
    enter: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        enter("model.path=/é (1)/it's")
    said = capsys.readouterr().err
    typed = """model.path='/é (1)/it\\'s'"""
    assert said.endswith(f'; a value with such characters stands in quotes of its own: "{typed}"\n')
    assert enter(typed).calls[0][0]["model"]["path"] == "/é (1)/it's"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate")]
)
def test_memory_that_is_full_is_one_line(error: Exception, enter: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        enter(error=error)
    assert exit_status.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: out of memory: ")
    assert "hardware.micro_batch" in said


@pytest.mark.hydra
def test_the_doctors_help_is_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["doctor", "--help"])
    with suppress(SystemExit):
        doctor.main()
    assert capsys.readouterr().out.startswith(doctor.HEADER)


@pytest.mark.hydra
def test_users_options_are_found(enter: Any, tmp_path: Path) -> None:
    (tmp_path / "mine" / "kl").mkdir(parents=True)
    (tmp_path / "mine" / "kl" / "gentle.yaml").write_text("_target_: rookexp.coefficients.FixedKL\ncoef: 0.001\n")
    assert enter("--config-dir", "mine", "kl=gentle").calls[0][0]["kl"]["coef"] == 0.001


def test_the_configuration_of_a_wheel_is_inside_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rookexp").mkdir()
    (tmp_path / "conf").mkdir()
    monkeypatch.setattr(composing, "PACKAGE", tmp_path / "rookexp")
    assert composing.conf_dir() == tmp_path / "conf"
    (tmp_path / "rookexp" / "conf").mkdir()
    assert composing.conf_dir() == tmp_path / "rookexp" / "conf"


PROBE = """
import sys
from rookexp.{door} import main
try:
    main()
finally:
    heavy = {{"torch", "numpy", "wandb", "optuna", "chess", "rookexp.build"}} & set(sys.modules)
    assert not heavy, heavy
"""
ASKED = [
    (name, flags)
    for name in ("train", "pretrain", "data", "evaluate", "export", "uci", "bench")
    for flags in ("--cfg job", "--help")
]
ASKED += [("train", "--cfg job kl=none experiment=overfit")]


@pytest.mark.hydra
@pytest.mark.parametrize(("door_name", "typed"), ASKED)
def test_help_and_cfg_are_quick_and_import_nothing_heavy(
    door_name: str, typed: str, root: Path, tmp_path: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(door=door_name), *typed.split()],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # of a core, however busy it is
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "task_name: " in done.stdout
    assert not list(tmp_path.iterdir()), "asking writes nothing"
    assert seconds < 3, "well under one second on an idle machine"


def test_the_module_runs_from_anywhere(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rookexp.train", "--cfg", "job", "--package", "kl", "kl=fixed"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
    )
    assert OmegaConf.create(done.stdout)["_target_"] == "rookexp.coefficients.FixedKL"
