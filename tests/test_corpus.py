"""Making the corpus: wrong shares and mixed settings are named, work goes on after a stop, failures are one error."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import chess
import pytest
from pretenders import uci
from test_annotate import QUOTAS, Alphabet, Broken, rows_of
from test_engine_pool import gone

from rookexp.corpora import a_documents
from rookexp.corpora import corpus as corpus_module
from rookexp.corpora.annotate import shard_path
from rookexp.corpora.corpus import Corpus, make_shard
from rookexp.errors import ConfigError, DataError, EngineError
from rookexp.rewards.engine import find_stockfish
from rookexp.tasks import positions

A_SHARES = dict(zip(a_documents.A_KINDS, (0.3, 0.2, 0.1, 0.05, 0.1, 0.1, 0.1, 0.05), strict=True))
CRASHES_ON_GO = f"""#!{sys.executable}
import sys
for command in sys.stdin:
    word = command.split()[0]
    if word == "uci":
        print("id name Crash 1")
        for option in ("Threads", "Hash", "MultiPV"):
            print("option name", option, "type spin default 1 min 1 max 500")
        print("uciok", flush=True)
    elif word == "isready":
        print("readyok", flush=True)
    elif word in ("go", "quit"):
        break
"""


def corpus(folder: Path, **other: Any) -> Corpus:
    settings: dict[str, Any] = {
        "seed": 5,
        "positions": 12,
        "shard_positions": 6,
        "quotas": QUOTAS,
        "engine_path": None,
        "nodes": 1000,
        "multipv": 5,
        "timeout_s": 30.0,
        "retries": 2,
        "processes": 1,
        "copies": 2,
        "black_best": "legacy",
        "list_order": "sorted",
        "l_share": 0.5,
        "p_share": 0.5,
        "a_shares": A_SHARES,
    }
    return Corpus(folder=str(folder), **(settings | other))


def crashing(folder: Path) -> str:
    path = folder / "crashing"
    path.write_text(CRASHES_ON_GO)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def die(corpus: Corpus, index: int) -> None:
    """A process that is killed in the middle of its work."""
    os._exit(9)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        (
            "quotas",
            {"openning": 1.0},
            "quotas.openning=1.0: no such key; allowed in quotas: opening, middlegame, endgame, self_play; "
            "did you mean quotas.opening?",
        ),
        ("quotas", {"opening": 1.5}, "quotas.opening=1.5: allowed: a number >= 0 and <= 1"),
        ("a_shares", {"mate": -0.5, "draw": 1.5}, "a_shares.mate=-0.5: allowed: a number >= 0 and <= 1"),
        ("a_shares", {"mate": 0.5}, "a_shares={mate: 0.5}: sums to 0.5; allowed: shares that sum to 1"),
    ],
)
def test_wrong_shares_name_key_value_and_what_is_allowed(tmp_path, key, given, message) -> None:
    with pytest.raises(ConfigError) as caught:
        corpus(tmp_path, **{key: given})
    assert str(caught.value) == message


def test_absent_shares_are_zero(tmp_path: Path) -> None:
    assert corpus(tmp_path, quotas={"endgame": 1}).quotas == {
        "opening": 0.0,
        "middlegame": 0.0,
        "endgame": 1.0,
        "self_play": 0.0,
    }


def test_a_missing_engine_stops_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="apt-get install stockfish"):
        corpus(tmp_path / "new", engine_path="/nowhere/stockfish").annotate()
    assert not (tmp_path / "new").exists()


def finished(folder: Path) -> dict[Path, bytes]:
    """Both shards, which need not be right to be left alone."""
    paths = [shard_path(folder, index) for index in range(2)]
    for path in paths:
        path.write_text(f"{path.name}\n")
    return {path: path.read_bytes() for path in paths}


def test_finished_shards_need_no_engine_and_stay(tmp_path: Path) -> None:
    before = finished(tmp_path)
    corpus(tmp_path, engine_path="/nowhere/stockfish").annotate()
    assert {path: path.read_bytes() for path in before} == before


def test_shards_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    finished(tmp_path)
    corpus(tmp_path).annotate()
    corpus(tmp_path, copies=1, processes=2).annotate()
    with pytest.raises(DataError, match=r"annotations.json: its shards were made with nodes=1000, not 300"):
        corpus(tmp_path, nodes=300).annotate()
    shard_path(tmp_path, 1).unlink()
    notes = tmp_path / "annotations.json"
    notes.write_text(json.dumps(json.loads(notes.read_text()) | {"engine": "Stockfish 1"}))
    with pytest.raises(DataError, match="engine=Stockfish 1, not Crash 1"):
        corpus(tmp_path, engine_path=crashing(tmp_path)).annotate()
    for text in ("{", "[1]"):
        notes.write_text(text)
        with pytest.raises(DataError, match=r"annotations.json: no JSON.*; it says how the shards were made"):
            corpus(tmp_path, engine_path=crashing(tmp_path)).annotate()


def test_a_folder_without_a_finished_shard_takes_other_settings(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="crashing failed on .* with 1000 nodes"):
        corpus(tmp_path, engine_path=crashing(tmp_path)).annotate()
    with pytest.raises(EngineError, match="crashing failed on .* with 300 nodes"):
        corpus(tmp_path, engine_path=crashing(tmp_path), nodes=300).annotate()
    assert json.loads((tmp_path / "annotations.json").read_text())["nodes"] == 300


def test_a_failing_engine_is_one_error_and_finished_shards_stay(tmp_path: Path) -> None:
    before = finished(tmp_path)
    shard_path(tmp_path, 1).unlink()
    with pytest.raises(EngineError, match=r"crashing failed on .* with 1000 nodes"):
        corpus(tmp_path, engine_path=crashing(tmp_path)).annotate()
    assert shard_path(tmp_path, 0).read_bytes() == before[shard_path(tmp_path, 0)]
    assert not shard_path(tmp_path, 1).exists()


def test_a_killed_process_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "make_shard", die)
    with pytest.raises(EngineError, match="was killed; finished shards are kept"):
        corpus(tmp_path, engine_path=crashing(tmp_path)).annotate()


def test_a_shard_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "Stockfish", Alphabet)
    small = corpus(tmp_path)
    partial = tmp_path / "annotations-00000.123.part"
    partial.write_text("half a row")
    make_shard(small, 0)
    path = shard_path(tmp_path, 0)
    first, stamp = path.read_bytes(), path.stat().st_mtime_ns
    assert [json.loads(line) for line in first.splitlines()] == rows_of(rows=6, seed=5)
    make_shard(small, 0)
    assert path.stat().st_mtime_ns == stamp
    path.unlink()
    make_shard(small, 0)
    assert path.read_bytes() == first
    assert sorted(tmp_path.iterdir()) == [partial, path]


def test_a_failed_shard_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "Stockfish", Broken)
    with pytest.raises(EngineError, match="broken"):
        make_shard(corpus(tmp_path, retries=0), 0)
    assert not list(tmp_path.iterdir())
    assert Broken.made[-1].closed
    monkeypatch.setattr(corpus_module, "Stockfish", Alphabet)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataError, match="cannot be written"):
        make_shard(corpus(file), 0)
    with pytest.raises(DataError, match="cannot be written"):
        corpus(file).annotate()


def test_an_engine_that_is_lost_is_replaced_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "Stockfish", Broken)
    Broken.made.clear()
    make_shard(corpus(tmp_path, retries=1), 0)
    assert [json.loads(line) for line in shard_path(tmp_path, 0).read_text().splitlines()] == rows_of(rows=6, seed=5)
    assert len(Broken.made) > 2
    assert all(engine.closed for engine in Broken.made)


@pytest.mark.engine
def test_stockfish_shards_are_the_same_bytes_again(tmp_path: Path) -> None:
    try:
        find_stockfish(None)
    except EngineError:
        pytest.skip("no Stockfish here")
    texts = []
    for name in ("one", "two"):
        make_shard(corpus(tmp_path / name), 3)
        texts.append(shard_path(tmp_path / name, 3).read_bytes())
    assert texts[0] == texts[1]
    rows = [json.loads(line) for line in texts[0].splitlines()]
    assert sum(row["kind"] == "self_play" for row in rows) == 3
    for row in rows:
        assert set(row["moves"]) <= {move.uci() for move in chess.Board(row["fen"]).legal_moves}


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_began_them(tmp_path: Path, end: signal.Signals) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    asleep = uci(tmp_path, f"open({str(seen)!r} + f'/{{os.getpid()}}', 'w').close(); time.sleep(60)")
    script = "import sys; sys.path[:0] = sys.argv[1:3]; from pathlib import Path; import test_corpus as t\n"
    script += "t.signal.signal(t.signal.SIGINT, t.signal.default_int_handler)\n"  # a shell's background has it ignored
    script += "if __name__ == '__main__': t.corpus(Path(sys.argv[3]), engine_path=sys.argv[4], processes=2).annotate()"
    file, root = tmp_path / "made.py", Path(__file__).parent
    file.write_text(script)
    command = [sys.executable, str(file), str(root), str(root.parent), str(tmp_path / "made"), asleep]
    engines: list[int] = []
    workers: list[int] = []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            while len(engines) < 2:
                assert process.poll() is None
                engines = [int(path.name) for path in seen.iterdir()]
                time.sleep(0.02)
            workers = [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in engines]
            begun = time.monotonic()
            process.send_signal(end)
        while not all(gone(pid) for pid in workers):
            assert time.monotonic() - begun < 10
            time.sleep(0.02)
        assert time.monotonic() - begun < 10
    finally:
        for pid in engines:  # these are asleep; a real one ends with its input
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert len(set(workers)) == 2


def test_documents_of_a_missing_shard_say_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"annotations-00000.jsonl: missing.*rookexp\.data"):
        corpus(tmp_path).build()


@pytest.mark.engine
def test_from_nothing_to_documents_and_on_after_a_stop(tmp_path: Path) -> None:
    try:
        find_stockfish(None)
    except EngineError:
        pytest.skip("no Stockfish here")
    made = corpus(tmp_path)
    made.annotate()
    report = json.loads(made.build())
    shards = {path: path.read_bytes() for path in (shard_path(tmp_path, 0), shard_path(tmp_path, 1))}
    rows = [json.loads(line) for text in shards.values() for line in text.splitlines()]
    assert sum(row["kind"] == "self_play" for row in rows) == 6
    files = ("train.txt", "validation.txt", "test.txt", "positions-test.jsonl", "prompts-train.jsonl", "report.json")
    texts = {name: (tmp_path / name).read_bytes() for name in files}
    assert json.loads(texts["report.json"]) == report
    count = sum(sum(split.values()) for split in report["documents"].values())
    assert count == sum(len(texts[name].splitlines()) for name in files[:3])
    assert {positions.split_of(positions.position_key(chess.Board(row["fen"]))) for row in rows} & {"train"}

    second = shard_path(tmp_path, 1)
    second.unlink()
    (tmp_path / "annotations-00001.77.part").write_text("half")
    stamp = shard_path(tmp_path, 0).stat().st_mtime_ns
    made.annotate()
    assert shard_path(tmp_path, 0).stat().st_mtime_ns == stamp
    assert second.read_bytes() == shards[second]
    made.build()
    assert {name: (tmp_path / name).read_bytes() for name in files} == texts
    assert json.loads((tmp_path / "annotations.json").read_text())["engine"].startswith("Stockfish")
