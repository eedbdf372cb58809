"""Analyses are found again by the key that they were kept under, by any process; a bad file is one clear error."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import chess
import pytest

from rookexp.errors import DataError
from rookexp.rewards.engine import Line
from rookexp.rewards.engine_cache import EngineCache, Key, position_of

KEY = Key("Pretender 1", "depth 9", 2, position_of(chess.Board()), "")
LINES = [Line(chess.Move.from_uci("e7e8q"), 99_998), Line(chess.Move.from_uci("e2e4"), -30)]
WRITER = """
import sys
from rookexp.rewards.engine_cache import EngineCache
from test_engine_cache import KEY, LINES
cache = EngineCache(sys.argv[1], 30.0)
for i in range(300):
    cache.put(KEY._replace(multipv=i), LINES)
    cache.put(KEY._replace(move=f"{sys.argv[2]}{i}"), LINES)
    assert cache.get(KEY._replace(multipv=i)) == LINES
cache.close()
"""


def test_what_was_kept_is_found_again_under_its_whole_key(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "cache.sqlite")
    cache = EngineCache(path, 1.0)
    assert cache.get(KEY) is None
    cache.put(KEY, LINES)
    cache.close()
    again = EngineCache(path, 1.0)
    assert again.get(KEY) == LINES
    others = {"engine": "Pretender 2", "limit": "9 nodes", "multipv": 3, "position": "8/8", "move": "e2e4"}
    assert others.keys() == set(Key._fields)
    for name, value in others.items():
        assert again.get(KEY._replace(**{name: value})) is None, name
    again.close()


def test_a_cache_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    EngineCache("~/new/cache.sqlite", 1.0).close()
    assert (tmp_path / "home" / "new" / "cache.sqlite").is_file()
    assert not (tmp_path / "~").exists()


def test_a_position_is_what_an_engine_sees_of_it() -> None:
    board = chess.Board()
    board.push_uci("e2e4")
    told = board.fen(en_passant="fen")
    assert " e3 " in told
    assert position_of(chess.Board(told)) == position_of(chess.Board(told.replace(" e3 0 1", " - 0 9")))
    assert position_of(chess.Board(told)) != position_of(chess.Board(told.replace(" 0 1", " 7 1")))
    taken = "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 3"  # and here it can be taken
    assert position_of(chess.Board(taken)) != position_of(chess.Board(taken.replace("e3", "-")))


def test_processes_share_a_file(tmp_path: Path) -> None:
    """They open it at the same moment, before it is there."""
    path, root = str(tmp_path / "cache.sqlite"), Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root.parent), str(root)])}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name], env=environment, stderr=subprocess.PIPE)
        for name in "ab"
    ]
    for writer in writers:
        assert writer.communicate(timeout=60)[1] == b""
        assert writer.returncode == 0
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM analyses").fetchone() == (900,)
    file.close()


def test_a_lock_is_waited_for_and_then_named(tmp_path: Path) -> None:
    path = str(tmp_path / "cache.sqlite")
    cache, hasty = EngineCache(path, 20.0), EngineCache(path, 0.1)
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(DataError, match=r"cache.sqlite: .*locked\); another process has not let go of it for 0.1 s"):
        hasty.put(KEY, LINES)
    assert hasty.get(KEY) is None  # readers do not wait
    release = threading.Timer(0.3, holder.execute, ["COMMIT"])
    release.start()
    cache.put(KEY, LINES)
    release.join()
    assert hasty.get(KEY) == LINES
    for opened in (cache, hasty, holder):
        opened.close()


@pytest.mark.parametrize("name", ["folder", "file/cache.sqlite", "file", "foreign.sqlite", "damaged.sqlite"])
def test_a_file_that_is_no_cache_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("no database, but as long as the header of one would be, and some more" * 9)
    foreign = sqlite3.connect(tmp_path / "foreign.sqlite")
    foreign.execute("CREATE TABLE analyses (id INTEGER)")
    foreign.close()
    damaged = EngineCache(str(tmp_path / "damaged.sqlite"), 1.0)
    damaged.put(KEY, LINES)
    damaged._file.execute("UPDATE analyses SET lines = 'e2e4 12 e7'")
    damaged.close()
    with (
        pytest.raises(DataError, match=rf"{name}: no usable cache .*; delete it if it is damaged, or name another"),
        closing(EngineCache(str(tmp_path / name), 1.0)) as cache,
    ):
        cache.get(KEY)
    assert (tmp_path / name).exists() == (name != "file/cache.sqlite")  # and it is left as it is
