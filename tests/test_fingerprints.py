"""What a run finds beside its configuration, hardware and data, is noted, and known again when it goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import chess
import pytest
from made_runs import make
from test_annotate import Alphabet
from test_session import TINY, Shell, make_corpus, shell  # noqa: F401 - a fixture

from rookexp import hardware
from rookexp.comparison import points
from rookexp.rewards import engine_pool
from rookexp.rewards.engine import Line
from rookexp.run_folder import fingerprints, run_info

LINE = f"debug=fast {TINY} hardware.precision=auto hardware.threads=1 steps=1"
POSITIONS = Path(fingerprints.__file__).parents[1] / "assets" / "positions" / "train.jsonl"


def precision(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(hardware, "fastest_precision", lambda device: found)


def test_a_file_is_known_by_its_size_and_bytes_and_a_large_one_by_some_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"ab")
    assert fingerprints.of_file(path) == "2 bytes, sha256 fb8e20fc2e4c3f24"
    path.write_bytes(b"ba")
    assert fingerprints.of_file(path) != "2 bytes, sha256 fb8e20fc2e4c3f24"
    monkeypatch.setattr(fingerprints, "WHOLE", 10)
    monkeypatch.setattr(fingerprints, "BLOCK", 2)
    monkeypatch.setattr(fingerprints, "BLOCKS", 3)
    seen = set()
    for content in (b"0123456789x", b"0123456789y", b"x123456789y", b"x1234x6789y", b"x1x34x6789y"):
        path.write_bytes(content)
        seen.add(fingerprints.of_file(path))
    assert len(seen) == 4, "begin, middle and end are looked at, and not what lies between"


def test_the_files_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    unread = ("other.jsonl", "train.md", ".train.jsonl")
    names = [f"shards/{name}" for name in ("train.jsonl", "test.jsonl", *unread)]
    for name in (*names, "bare", "p.jsonl"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    task = {"data": "shards", "files": "*train*", "evaluate": "*test*", "p_style": "bare", "seed": 0}
    found = fingerprints.of_data(
        {"task": task, "eval": {"positions": {"P": "p.jsonl"}}, "reward": {"cache": "p.jsonl"}}
    )
    assert {key: list(files) for key, files in found.items()} == {
        "task.data": ["test.jsonl", "train.jsonl"],
        "eval.positions.P": ["p.jsonl"],
    }
    assert fingerprints.of_data({"task": {"data": "owner/name"}}) == {}


def test_a_run_notes_what_auto_came_to_and_says_where_that_changes(
    shell: Shell,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    precision(monkeypatch, "bf16")
    assert shell(LINE, "hydra.run.dir=run") == 0
    noted = run_info.read_info(tmp_path / "run")
    told = noted["hardware"]
    assert (told["precision"], told["device"], told["threads"], told["micro_batch"]) == ("bf16", "cpu", 1, 24)
    assert list(noted["data"]) == ["task.positions"]
    capfd.readouterr()
    assert shell("resume=run steps=2") == 0
    assert "note: from here on" not in capfd.readouterr().out
    precision(monkeypatch, "fp32")
    assert shell("resume=run steps=3") == 0
    assert (
        "note: from here on computed otherwise: precision was bf16, now fp32; numbers differ by rounding\n"
        in capfd.readouterr().out
    )
    starts = run_info.read_info(tmp_path / "run")["earlier_starts"]
    assert [start["hardware"]["precision"] for start in starts] == ["bf16", "bf16"]


class Judge(Alphabet):
    """An engine that also judges single moves."""

    limit = "depth 1"

    def identity(self) -> str:
        return self.name

    def lines(self, board: chess.Board, only: chess.Move | None = None) -> list[Line]:
        return super().lines(board) if only is None else [Line(only, 0)]


def test_a_run_notes_the_engines_that_judge_and_says_where_others_do(
    shell: Shell,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(engine_pool, "Stockfish", Judge)
    by_task = "reward=rookworld reward@reward.rewards.P=engine reward.rewards.P.engine.cache=null"
    assert shell(f"{LINE} {by_task} hydra.run.dir=run") == 0
    assert run_info.read_info(tmp_path / "run")["engines"] == ["Alphabet"]
    capfd.readouterr()
    assert shell("resume=run steps=2") == 0
    assert "note: from here on" not in capfd.readouterr().out
    monkeypatch.setattr(Judge, "name", "Alphabet 2")
    assert shell("resume=run steps=3") == 0
    said = "note: from here on judged by Alphabet 2, so far by Alphabet: rewards may differ\n"
    assert said in capfd.readouterr().out
    now = run_info.read_info(tmp_path / "run")
    judges = [start["engines"] for start in (*now["earlier_starts"], now)]
    assert judges == [["Alphabet"], ["Alphabet"], ["Alphabet 2"]]


def test_a_sweep_does_not_mix_what_auto_comes_to(
    shell: Shell,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    precision(monkeypatch, "bf16")
    line = f"-m sweep=grid {LINE} hydra.sweep.dir=s sweep.max_failure_rate=1"
    assert shell(f"{line} optim.lr=0.01,0.02") == 0
    precision(monkeypatch, "fp32")
    capfd.readouterr()
    assert shell(f"{line} optim.lr=0.01,0.02,0.03") == 0
    said = capfd.readouterr()
    assert (
        f"hardware.precision=auto: fp32 on this machine, and {tmp_path}/s/0 of the same sweep was in bf16; allowed: "
        "hardware.precision=bf16; hardware.precision=fp32 mixes them"
    ) in said.out + said.err
    assert not (tmp_path / "s" / "2" / "run.json").exists()
    assert not any("came to bf16 in some" in note for note in points.compare([tmp_path / "s"]).notes)
    assert shell(f"{line} optim.lr=0.01,0.02,0.03 hardware.precision=bf16") == 0
    assert run_info.read_info(tmp_path / "s" / "2")["hardware"]["precision"] == "bf16"


def test_runs_of_two_precisions_are_compared_with_a_note(tmp_path: Path) -> None:
    for seed, (name, found) in enumerate((("a", "bf16"), ("b", "fp32"))):
        make(tmp_path / name, seed=seed)
        (tmp_path / name / "run.json").write_text(json.dumps({"hardware": {"precision": found}}), encoding="utf-8")
    note = "hardware.precision=auto came to bf16 in some runs and to fp32 in others: results differ by it"
    assert note in points.compare([tmp_path]).notes
    assert note not in points.compare([tmp_path / "a"]).notes


def test_a_run_goes_on_with_data_that_moved_and_not_with_others(
    shell: Shell,  # noqa: F811
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    own = tmp_path / "own.jsonl"
    lines = POSITIONS.read_text(encoding="utf-8").splitlines(keepends=True)
    own.write_text("".join(lines), encoding="utf-8")
    assert shell(f"{LINE} hydra.run.dir=run task.positions=own.jsonl") == 0
    (tmp_path / "there").mkdir()
    os.replace(own, tmp_path / "there" / "own.jsonl")
    assert shell("resume=run steps=2 task.positions=there/own.jsonl") == 0
    (tmp_path / "there" / "own.jsonl").write_text("".join(lines[1:]), encoding="utf-8")
    capfd.readouterr()
    assert shell("resume=run steps=3") == 2
    said = capfd.readouterr().err
    assert f"{tmp_path}/run: task.positions: own.jsonl was {len(''.join(lines))} bytes, sha256 " in said
    assert "a run that goes on keeps its data; put the file back as it was, or begin a new run" in said


def test_pretraining_knows_its_corpus_again(
    shell: Shell,  # noqa: F811
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_corpus(tmp_path)
    line = f"{TINY} corpus=corpus steps=1 batch_documents=3 hydra.run.dir=run"
    assert shell(line, name="pretrain") == 0
    with (tmp_path / "corpus" / "train.txt").open("a", encoding="utf-8") as file:
        file.write("\n")
    capfd.readouterr()
    assert shell("resume=run steps=2", name="pretrain") == 2
    assert "run: corpus: train.txt was " in capfd.readouterr().err
