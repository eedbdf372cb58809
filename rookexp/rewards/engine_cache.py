"""A cache of analyses that outlives the run: a SQLite file that several runs read and write at the same time."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import chess

from rookexp.errors import DataError
from rookexp.rewards.engine import Line

CREATE = """CREATE TABLE IF NOT EXISTS analyses (
    engine TEXT, work TEXT, multipv INTEGER, position TEXT, move TEXT, lines TEXT NOT NULL,
    PRIMARY KEY (engine, work, multipv, position, move)) WITHOUT ROWID"""
GET = "SELECT lines FROM analyses WHERE engine = ? AND work = ? AND multipv = ? AND position = ? AND move = ?"
PUT = "INSERT OR IGNORE INTO analyses VALUES (?, ?, ?, ?, ?, ?)"


class Key(NamedTuple):
    """Everything that the lines of an analysis depend on."""

    engine: str  # see `Stockfish.identity`
    limit: str  # in nodes or depth
    multipv: int
    position: str  # as `position_of` writes it
    move: str  # the only first move that the search allows; "" for any


def position_of(board: chess.Board) -> str:
    """The five FEN fields that an engine's answer depends on.

    The halfmove clock is one of them: an engine sees the 50-move draw coming, and trusts an advantage less the higher
    the clock. The move number is not. An en-passant square counts only where such a capture is legal.
    """
    return str(board.fen(en_passant="legal").rpartition(" ")[0])


class EngineCache:
    """Lines by key, safe between threads, processes and runs; `path=None` keeps them in memory.

    Waits at most `wait_s` seconds for another process's lock.
    Raises: DataError, in every method, when the file cannot be read or written, is no such cache, or stays locked.
    """

    def __init__(self, path: str | None, wait_s: float) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self.wait_s = wait_s
        self._lock = threading.Lock()
        with self._clearly():
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                self.path or ":memory:", timeout=wait_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._share()
                self._file.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows
                self._file.execute(CREATE)
                self._file.execute(GET, ("", "", 0, "", "")).fetchall()  # refuses another table of that name
            except sqlite3.Error:
                self._file.close()
                raise

    def _share(self) -> None:
        """Lets readers not wait for a writer. Retries: of two processes that ask so of a new file, one is refused."""
        until = time.monotonic() + self.wait_s
        while True:
            try:
                self._file.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(0.01)

    def get(self, key: Key) -> list[Line] | None:
        """The lines stored for a key; None where there are none."""
        with self._clearly():
            row = self._file.execute(GET, key).fetchone()
            return None if row is None else _decoded(row[0])

    def put(self, key: Key, lines: list[Line]) -> None:
        """Stores the lines of a key at once; where another process was faster, its lines are the same."""
        with self._clearly():
            self._file.execute(PUT, (*key, " ".join(f"{line.move} {line.eval_cp}" for line in lines)))

    def close(self) -> None:
        """Closes the file; nothing is left to be written."""
        with self._clearly():
            self._file.close()

    @contextlib.contextmanager
    def _clearly(self) -> Iterator[None]:
        """Admits one thread at a time, and turns whatever can go wrong with a file into one clear DataError."""
        try:
            with self._lock:
                yield
        except (sqlite3.Error, OSError, ValueError) as error:
            if "locked" in str(error):
                remedy = f"another process has not let go of it for {self.wait_s:g} s: end that process"
            else:
                remedy = "delete it if it is damaged"
            raise DataError(
                f"{self.path}: no usable cache of engine analyses ({error}); {remedy}, or name another file, "
                "or null to keep none"
            ) from error


def _decoded(text: str) -> list[Line]:
    """The lines of a stored text. Raises: ValueError for anything but moves and values in turns."""
    words = text.split()
    return [Line(chess.Move.from_uci(move), int(value)) for move, value in zip(words[::2], words[1::2], strict=True)]
