"""Stockfish as a deterministic function: the same position and limit give the same lines."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import chess
import chess.engine

from rookexp.chess_text import MATE_CP
from rookexp.errors import EngineError

INSTALL_HINT = "install it with `apt-get install stockfish` (or `brew install stockfish`)"
TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # two classes before Python 3.11
FAILURES = (chess.engine.EngineError, OSError, *TIMEOUTS)


def find_stockfish(path: str | None) -> str:
    """The engine's absolute path: `path` itself, or `stockfish` on PATH or in /usr/games.

    Raises: EngineError when nothing executable is there.
    """
    if path is not None:
        found = shutil.which(path)
    else:
        found = shutil.which("stockfish") or shutil.which("stockfish", path="/usr/games")
    if found is None:
        raise EngineError(f"no Stockfish at {path or 'PATH'!r}: {INSTALL_HINT}, or name its path in the config")
    return str(Path(found).resolve())


@dataclass(frozen=True, slots=True)
class Line:
    """One MultiPV line: its first move and its value."""

    move: chess.Move  # the first move of the line
    eval_cp: int  # centipawns for the side to move; mate in n is MATE_CP - n, being mated the negative


class Stockfish:
    """One engine process with one thread, an empty hash for every position, and a limit in nodes.

    `timeout_s` bounds the start and every analysis; it never changes a line. After a failure the process is gone.
    Raises: EngineError when the engine is missing or does not start.
    """

    def __init__(self, *, path: str | None, nodes: int, multipv: int, timeout_s: float) -> None:
        self.path = find_stockfish(path)
        self.nodes = nodes
        self.multipv = multipv
        self.timeout_s = timeout_s
        try:
            self._engine = chess.engine.SimpleEngine.popen_uci(self.path, timeout=timeout_s)
        except FAILURES as error:
            raise self._failure("did not start as a UCI engine", error) from error
        try:
            self._engine.configure({"Threads": 1, "Hash": 1})
        except FAILURES as error:
            self._engine.close()
            raise self._failure("did not take its options", error) from error
        self.name: str = self._engine.id.get("name", "unknown")

    def lines(self, board: chess.Board) -> list[Line]:
        """The engine's best moves, highest value first: `multipv` of them, fewer only where fewer are legal.

        A node limit can end an iteration half way, so the lines are sorted by value here.
        Raises: EngineError when the engine crashes, takes longer than the timeout, or gives too few lines.
        """
        wanted = min(self.multipv, board.legal_moves.count())
        if wanted == 0:
            return []
        asked = f"on {board.fen()!r} with {self.nodes} nodes"
        hung = threading.Event()
        watchdog = threading.Timer(self.timeout_s, self._kill, [hung])
        watchdog.start()
        try:
            infos = self._engine.analyse(
                board,
                chess.engine.Limit(nodes=self.nodes),
                multipv=self.multipv,
                game=object(),  # a new game for each position: the hash is cleared, so order does not matter
            )
        except FAILURES as error:
            raise self._failure(f"failed {asked}", TimeoutError() if hung.is_set() else error) from error
        finally:
            watchdog.cancel()
        lines = [
            Line(move=info["pv"][0], eval_cp=info["score"].pov(board.turn).score(mate_score=MATE_CP))
            for info in infos
            if info.get("pv") and "score" in info
        ]
        if len(lines) != wanted:
            raise EngineError(f"{self.path} gave {len(lines)} of {wanted} lines {asked}: allow it more nodes")
        return sorted(lines, key=lambda line: -line.eval_cp)

    def close(self) -> None:
        """Ends the engine process, however it fares."""
        with contextlib.suppress(*FAILURES):  # dead or hung already: the next line ends what is left of it
            self._engine.quit()
        self._engine.close()

    def _kill(self, hung: threading.Event) -> None:
        """Ends a search that takes too long; python-chess bounds only those limited in time, and cancels them badly."""
        hung.set()
        with contextlib.suppress(RuntimeError):  # the loop ended with the process, just now
            self._engine.protocol.loop.call_soon_threadsafe(self._engine.transport.kill)

    def _failure(self, what: str, error: Exception) -> EngineError:
        reason = f"no answer in {self.timeout_s} s" if isinstance(error, TIMEOUTS) else f"{error}"
        return EngineError(f"{self.path} {what} (timeout {self.timeout_s} s): {reason or type(error).__name__}")
