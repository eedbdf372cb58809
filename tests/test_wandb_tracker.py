"""A W&B that has what its users look for, keeps secrets, and never stands in a training's way."""

from __future__ import annotations

import errno
import http.server
import io
import json
import logging
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rookexp import track
from rookexp.errors import ConfigError
from rookexp.trackers import console, wandb_tracker
from rookexp.trackers.wandb_tracker import COLUMNS, WandbTracker, key_at_hand

ROOT = Path(__file__).resolve().parent.parent
KEY = "plantedkey" * 4
# The smallest image that there is: one grey point.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6368"
    "00000082008177cd72b60000000049454e44ae426082"
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No key, no service, and W&B's own folders under tmp_path."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "set, so that it is as it was afterwards")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(wandb_tracker, "SILENT", set())
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    yield
    wandb = sys.modules.get("wandb")
    if hasattr(wandb, "teardown"):
        wandb.teardown()


def tracker(folder: Path, mode: Any, name: str = "run", **changes: Any) -> WandbTracker:
    about: dict[str, Any] = {"project": "test", "entity": None, "group": "g", "job_type": "train", "name": f"n-{name}"}
    about |= {"tags": ["kl=none"], "init_timeout_s": 1.0, "runs_folder": str(folder / "outputs")}
    return WandbTracker(mode=mode, folder=folder / "outputs" / name, **about | changes)


def feed(tracker: track.Tracker, start: int, stop: int) -> None:
    for step in range(start, stop):
        sampled = {"kind": "sampled", "prompt": "P: ä", "completion": "M:", "reward": step / 3, "advantage": -1.0}
        tracker.log_completions(step, [sampled | {"truncated": True, "format_valid": math.nan}])
        tracker.log(step, {"reward/mean": step / 3, "kl": 0.1 * step})
        tracker.log_completions(
            step, [{"step": step, "kind": "greedy", "prompt": "P: b", "completion": "x", "reward": 1}]
        )
        tracker.log(step, {"eval/reward": float(step)})


@pytest.mark.parametrize("mode", ["auto", "offline"])
def test_auto_in_the_environment_is_no_word_of_wandbs(
    mode: str, tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "auto")  # as the line of .env.example
    mine = tracker(tmp_path, mode)
    mine.start({})
    mine.finish("finished")
    (folder,) = offline_runs(tmp_path)
    assert capsys.readouterr().out == f"wandb: offline run in {folder}; to upload it: wandb sync {folder}\n"


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def offline_runs(folder: Path) -> list[Path]:
    return sorted((folder / "outputs" / "wandb").glob("offline-run-*"))


def records(run: Path) -> list[dict[str, Any]]:
    """The records of an offline run, as W&B's own reader prints them."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_kind(run: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in run if record["type"] == kind]


@pytest.mark.filterwarnings("default")
def test_an_offline_run_has_all_that_wandb_users_look_for(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_TAGS", "mine, kl=none")
    config = {"seed": 1, "optim": {"lr": 2e-6}, "hub": {"token": "hush-hush"}}
    mine = tracker(tmp_path, "auto")
    mine.start(config)
    feed(mine, 0, 3)
    mine.summary({"verdict": {"passed": True, "figures": {"slope": math.nan}}})
    (mine.folder / track.CURVES).write_bytes(PNG)
    mine.finish("finished")
    mine.log(3, {})  # after the end: nothing
    (folder,) = offline_runs(tmp_path)
    assert capsys.readouterr().out == f"wandb: offline run in {folder}; to upload it: wandb sync {folder}\n"

    run = records(folder)
    (about,) = of_kind(run, "run")
    assert about["run_id"] == (mine.folder / track.RUN_ID).read_text().strip()
    assert [about[key] for key in ("project", "run_group", "job_type", "display_name")] == [
        "test",
        "g",
        "train",
        "n-run",
    ]
    assert about["tags"] == ["kl=none", "mine"]
    assert about["config"]["update"].items() >= {"seed": 1, "optim": {"lr": 2e-6}, "hub": {"token": "***"}}.items()
    assert {"glob_name": "*", "step_metric": "step"}.items() <= of_kind(run, "metric")[1].items()

    rows = [record["item"] for record in of_kind(run, "history")]
    assert [row["step"] for row in rows] == [row["_step"] for row in rows] == [0, 1, 2]
    assert [row["eval/reward"] for row in rows] == [0, 1, 2]
    assert rows[2]["curves._type"] == "image-file"
    tables = [json.loads((folder / "files" / row["completions.path"]).read_text()) for row in rows]
    assert [table["columns"] for table in tables] == [[*COLUMNS, "format_valid"]] * 3
    assert tables[2]["data"] == [
        [2, "sampled", "P: ä", "M:", pytest.approx(2 / 3), -1.0, True, None],
        [2, "greedy", "P: b", "x", 1, None, None, None],
    ]

    summary: dict[str, Any] = {}
    for record in of_kind(run, "summary"):
        summary |= record["update"]
    assert summary["status"] == "finished"
    assert summary["verdict"] == {"passed": True, "figures": {"slope": None}}
    (end,) = of_kind(run, "exit")
    assert end.get("exit_code", 0) == 0


@pytest.mark.filterwarnings("default")
def test_jobs_of_one_process_are_runs_of_their_own_and_a_resumed_one_keeps_its_id(tmp_path: Path, alone: None) -> None:
    pytest.importorskip("wandb")
    first = tracker(tmp_path, "offline", "0")
    first.start({"seed": 0})
    feed(first, 0, 2)  # and is left open, as by an error between two trackers' starts
    second = tracker(tmp_path, "offline", "1")
    second.start({"seed": 1})
    feed(second, 0, 2)
    second.finish("interrupted")
    again = tracker(tmp_path, "offline", "1")
    again.start({"seed": 1})
    feed(again, 2, 4)
    again.finish("pruned")
    found = [records(run) for run in offline_runs(tmp_path)]
    steps = {}
    for run in found:
        (about,) = of_kind(run, "run")
        steps.setdefault(about["display_name"], []).append([r["item"]["step"] for r in of_kind(run, "history")])
    assert steps["n-1"] == [[0, 1], [2, 3]]
    assert [row[:1] for row in steps["n-0"]] == [[0]]
    ids = {of_kind(run, "run")[0]["run_id"] for run in found}
    assert ids == {(tmp_path / "outputs" / name / track.RUN_ID).read_text().strip() for name in "01"}
    ends = [end.get("exit_code", 0) for run in found for end in of_kind(run, "exit")]
    assert sorted(ends) == [0, 0, 1]


@pytest.mark.parametrize(("host", "found"), [("127.0.0.1:1", True), ("api.wandb.ai", True), ("example.org", False)])
def test_a_key_in_netrc_counts_if_it_is_for_the_service(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, host: str, found: bool
) -> None:
    path = tmp_path / "netrc"
    path.write_text(f"machine {host}\n  login user\n  password {'a' * 40}\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    assert key_at_hand("http://127.0.0.1:1") is found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_service_that_never_answers_costs_the_timeout_once_and_the_runs_are_kept(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        mine = tracker(tmp_path, "auto")
        began = time.monotonic()
        mine.start({})
        feed(mine, 0, 2)
        mine.finish("finished")
        assert time.monotonic() - began < 10
        next_job = tracker(tmp_path, "auto", "next")
        next_job.start({})
        next_job.finish("finished")
    out = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0].split(" in ")[0] for line in out] == [
        "wandb: offline, for there is no connection",
        "wandb: offline run",
        "wandb: offline run",  # the next job did not ask again
    ]
    (run,) = (found for found in offline_runs(tmp_path) if of_kind(records(found), "history"))
    assert [r["item"]["step"] for r in of_kind(records(run), "history")] == [0, 1]
    assert not holding(tmp_path, KEY)


def test_a_full_disk_under_the_log_of_wandb_prints_no_tracebacks(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setattr(logging, "raiseExceptions", True)
    full = logging.StreamHandler(FullDisk())
    logging.getLogger("wandb").addHandler(full)
    try:
        mine = tracker(tmp_path, "offline")
        mine.start({})
        logging.getLogger("wandb").error("what W&B writes there")
        mine.finish("finished")
    finally:
        logging.getLogger("wandb").removeHandler(full)
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("default")
def test_online_without_key_is_refused_and_disabled_does_nothing(tmp_path: Path, alone: None) -> None:
    pytest.importorskip("wandb")
    with pytest.raises(ConfigError, match="wandb login"):
        tracker(tmp_path, "online").start({})
    mine = tracker(tmp_path, "disabled")
    mine.start({})
    feed(mine, 0, 2)
    mine.finish("finished")
    assert not (tmp_path / "outputs").exists()


def test_a_missing_package_is_said_once(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    mine = tracker(tmp_path, "auto")
    mine.start({})
    feed(mine, 0, 2)
    mine.finish("finished")
    assert capsys.readouterr().out.count("not installed") == 1
    with pytest.raises(ConfigError, match="pip install wandb"):
        tracker(tmp_path, "offline").start({})


@pytest.mark.parametrize("mode", ["offline", "auto"])
def test_offline_nothing_goes_out(
    mode: str, tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W&B's own telemetry does not look at the run's mode; a service of ours sees every request."""
    seen: list[str] = []

    class Service(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.end_headers()

        do_GET = do_POST

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code = (
            "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
            "from pathlib import Path; from test_wandb_tracker import feed, tracker\n"
            "mine = tracker(Path(sys.argv[3]), sys.argv[4])\n"
            "mine.start({}); feed(mine, 0, 3); mine.finish('finished')\n"
        )
        words = [sys.executable, "-c", code, str(ROOT), str(ROOT / "tests"), str(tmp_path), mode]
        environment = {**os.environ, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        server.shutdown()
    assert "offline run in" in done.stdout
    assert seen == []


@pytest.mark.parametrize("text", [None, b"\xff\xfe", b"machine"])
def test_a_home_without_a_readable_netrc_has_no_key(
    text: bytes | None, alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NETRC")
    if text is not None:
        (tmp_path / ".netrc").write_bytes(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not key_at_hand("https://api.wandb.ai")

    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert not key_at_hand("https://api.wandb.ai")


def test_a_package_that_cannot_be_imported_is_said(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wandb.py").write_text("raise TypeError('Descriptors cannot be created directly.')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    tracker(tmp_path, "auto").start({})
    assert "wandb: not usable, TypeError: Descriptors cannot be created directly." in capsys.readouterr().out


@pytest.mark.parametrize("dies", ["init", "later"])
def test_a_failing_service_is_said_once_and_the_training_goes_on(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dies: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("service is gone")

    run = types.SimpleNamespace(log=fail, finish=fail, define_metric=lambda *a, **k: None, offline=True, dir="d/files")
    run.summary = types.SimpleNamespace(update=fail)
    fake = types.ModuleType("wandb")
    fake.init = fail if dies == "init" else lambda **_: run
    fake.Settings = lambda **_: types.SimpleNamespace(base_url="http://x")
    fake.Table = lambda *_, **__: None
    ended: list[str] = []
    fake.teardown = lambda: ended.append("the dead service, so that the next job starts another")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    mine = tracker(tmp_path, "auto")
    mine.start({})
    feed(mine, 0, 3)
    mine.finish("finished")
    assert len(ended) == 1
    assert capsys.readouterr().out.count("service is gone; the training goes on") == 1


def trained(mine: track.Tracker | None) -> torch.Tensor:
    """Weights after steps whose noise comes from the global generators."""
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    weight = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    if mine is not None:
        mine.start({"seed": 0})
    for step in range(4):
        noise = random.random() + np.random.rand()
        loss = ((weight - torch.randn(5) * noise) ** 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if mine is not None:
            mine.log(step, {"loss": loss.item()})
            mine.log_completions(step, [{"prompt": "p", "completion": "c", "reward": loss.detach()}])
    if mine is not None:
        mine.finish("finished")
    return weight.detach()


@pytest.mark.filterwarnings("default")
def test_logging_changes_no_bit_of_the_weights(tmp_path: Path, alone: None) -> None:
    pytest.importorskip("wandb")
    files = track.JsonlTracker(folder=tmp_path / "run", first_step=0)
    bar = console.ConsoleTracker(every=1, total_steps=4)
    everything = track.FanOut(trackers=[bar, files, tracker(tmp_path, "offline")])
    assert torch.equal(trained(everything), trained(None))


def holding(folder: Path, *secrets: str) -> list[Path]:
    """The files below a folder in which one of the secrets stands."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


def door(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m rookexp.train WORDS` typed in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "rookexp.train", *words]
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)


def test_the_config_can_be_looked_at_with_every_value_resolved(tmp_path: Path, alone: None) -> None:
    (tmp_path / ".env").write_text("WANDB_PROJECT=from-file\nWANDB_ENTITY=us\n")
    words = ("--cfg", "job", "--resolve", "--package", "track.wandb", "track.wandb.entity=me", "kl=fixed")
    shown = yaml.safe_load(door(tmp_path, *words).stdout)
    assert (shown["project"], shown["entity"], shown["mode"]) == ("from-file", "me", "auto")
    assert {"kl=fixed", "model=rook_nano"} <= set(shown["tags"])


def test_a_secret_that_is_typed_is_refused_before_anything_is_written(tmp_path: Path, alone: None) -> None:
    refused = door(tmp_path, "debug=fast", f"+track.wandb.api_key={KEY}")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: +track.wandb.api_key=***: ")
    assert KEY not in refused.stdout + refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_through_the_door_is_a_group_of_runs_and_keeps_every_secret(
    tmp_path: Path, alone: None, launcher: str
) -> None:
    pytest.importorskip("wandb")
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    work, other = tmp_path / "work", "plantedother"
    work.mkdir()

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@e", *words], cwd=work, check=True)

    # A key in .env; one pasted into a tracked file by mistake; one in the address that git pushes to.
    (work / "notes").write_text("")
    (work / ".gitignore").write_text(".env\noutputs\nmultirun\n")
    git("init", "-q"), git("add", "."), git("commit", "-qm", "one")
    git("remote", "add", "origin", f"https://{other}:x-oauth-basic@example.org/a.git")
    (work / "notes").write_text(f"{KEY}\n")
    (work / ".env").write_text(f"WANDB_API_KEY={KEY}\nWANDB_MODE=offline\nWANDB_PROJECT=mine\nHF_TOKEN={other}\n")

    words = ["debug=fast", "track=default", "seed=0,1", "optim.lr=2e-6"]
    done = door(work, "-m", *words, "hydra.sweep.dir=multirun/pair", f"hydra/launcher={launcher}")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (work / "multirun/pair").iterdir() if path.is_dir()) == ["0", "1"]
    planted = {work / ".env", work / "notes", work / ".git" / "config"}
    assert set(holding(tmp_path, KEY, other)) == planted
    assert not any(secret in text for secret in (KEY, other) for text in (done.stdout, done.stderr))

    runs = [records(run) for run in offline_runs(work)]
    runs.sort(key=lambda run: of_kind(run, "run")[0]["display_name"])
    abouts = [of_kind(run, "run")[0] for run in runs]
    assert [(a["project"], a["run_group"], a["config"]["update"]["seed"]) for a in abouts] == [
        ("mine", "pair", 0),
        ("mine", "pair", 1),
    ]
    assert [a["display_name"] for a in abouts] == [f"{n}-debug=fast,seed={n},lr=2e-06" for n in (0, 1)]
    assert {"kl=warmup", "model=gpt2_tiny"} <= set(abouts[0]["tags"])
    for run in runs:
        rows = [record["item"] for record in of_kind(run, "history")]
        assert [row["step"] for row in rows] == [0, 1, 2]
        assert rows[2]["curves._type"] == "image-file"
        assert any("before_after" in record["update"] for record in of_kind(run, "summary"))
