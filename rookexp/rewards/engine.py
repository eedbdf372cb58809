"""Stockfish as a deterministic function: the same position and limit give the same lines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import chess.engine

from rookexp.chess_text import MATE_CP
from rookexp.config.check import spell
from rookexp.errors import EngineError, PartError

PATH_HINT = "engine_path=FILE, in training reward.engine.path=FILE (of one task, reward.rewards.P.engine.path=FILE)"
OTHER = f"; name a UCI engine: {PATH_HINT}"
INSTALL_HINT = "install it with `apt-get install stockfish` (or `brew install stockfish`)"
TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # two classes before Python 3.11
FAILURES = (chess.engine.EngineError, OSError, concurrent.futures.CancelledError, *TIMEOUTS)
OPTIONS = {"Threads": 1, "Hash": 1}  # the hash in MiB
ALL_MOVES = 256  # a `multipv` that covers every legal move: no position has more than 218
GONE_S = 5.0  # how long to wait for a killed process to end
LOOK_S = 0.01  # between two looks whether it has
MORE_NODES = (1, 10, 100, 1000, 10_000)  # times the node limit: tried in turn until each line has a value


def find_stockfish(path: str | None) -> str:
    """The engine's absolute path: `path` itself, or `stockfish` on PATH or in /usr/games.

    Raises: EngineError when nothing executable is there.
    """
    if path is not None:
        found = shutil.which(os.path.expanduser(path))
    else:
        found = shutil.which("stockfish") or shutil.which("stockfish", path="/usr/games")
    if found is None:
        raise EngineError(f"no Stockfish at {path or 'PATH'!r}: {INSTALL_HINT}, or name its path: {PATH_HINT}")
    return str(Path(found).resolve())


@dataclass(frozen=True, slots=True)
class Line:
    """One MultiPV line: its first move and its value."""

    move: chess.Move  # the first move of the line
    eval_cp: int  # centipawns for the side to move; mate in n is MATE_CP - n, being mated the negative


class Stockfish:
    """One engine process with one thread, an empty hash for every position, and a limit in nodes or in depth.

    `timeout_s` bounds the start and every analysis; it never changes a line. After a failure the process is gone.
    It has its own process group, so that a Ctrl-C in the terminal does not reach it, and ends when its standard input
    does: with the Python process, however that ends.
    Raises: ConfigError unless exactly one of `nodes` and `depth` is given; EngineError when the engine is missing or
    does not start.
    """

    def __init__(
        self, *, path: str | None, nodes: int | None, depth: int | None, multipv: int, timeout_s: float
    ) -> None:
        if (nodes is None) == (depth is None):
            raise PartError(f"depth={spell(depth)}, nodes={spell(nodes)}: allowed: one of the two, the other null")
        self.path = find_stockfish(path)
        self.limit = f"{nodes} nodes" if depth is None else f"depth {depth}"
        self.multipv = multipv
        self.timeout_s = timeout_s
        searches = ((depth, None),) if nodes is None else ((None, nodes * times) for times in MORE_NODES)
        self._limits = [chess.engine.Limit(depth=plies, nodes=count) for plies, count in searches]
        try:
            self._engine = chess.engine.SimpleEngine.popen(_Uci, self.path, timeout=timeout_s, setpgrp=True)
        except FAILURES as error:
            raise self._failure("did not start as a UCI engine", error, OTHER) from error
        self._engine.protocol.loop.set_exception_handler(_unheard)
        try:
            self._engine.configure(OPTIONS)
        except FAILURES as error:
            self.close()
            raise self._failure("did not take its options", error, OTHER) from error
        self.name: str = self._engine.id.get("name", "unknown")

    def identity(self) -> str:
        """Name, options and a hash of the binary: engines with the same identity give the same lines."""
        digest = hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        options = ", ".join(f"{name} {value}" for name, value in OPTIONS.items())
        return f"{self.name}, {options}, sha256 {digest[:16]}"

    def lines(self, board: chess.Board, only: chess.Move | None = None) -> list[Line]:
        """The engine's best moves, highest value first: `multipv` of them, fewer only where fewer are legal.

        With `only`, just the line that begins with this legal move. A node limit can end an iteration half way, so the
        lines are sorted by value here. Where it ends the very first iteration, as among many captures, some moves have
        no value yet, and the position is searched again with more nodes.
        Raises: EngineError when the engine crashes, takes longer than the timeout, or gives lines of too few moves.
        """
        wanted = 1 if only else min(self.multipv, board.legal_moves.count())
        if wanted == 0:
            return []
        moves: set[chess.Move] = set()
        for limit in self._limits:
            lines = self._search(board, only, limit)
            moves = {line.move for line in lines}  # engines have been seen to repeat one, with another value
            if len(moves) == len(lines) == wanted and only in (None, *moves):
                return sorted(lines, key=lambda line: -line.eval_cp)
        raise EngineError(
            f"{self.path} gave {len(moves)} of {wanted} lines on {board.fen()!r}{f' after {only}' if only else ''} "
            f"with {self.limit}: raise the limit (nodes, depth; an evaluation has engine_nodes) or give another engine"
        )

    def close(self) -> None:
        """Kills the process, which has nothing to save, and waits until it is gone."""
        runs = self._engine.transport.get_returncode() is None
        self._engine.close()
        if runs:
            with contextlib.suppress(RuntimeError):  # the loop ended with the process
                # After asyncio has looked at the process.
                self._engine.protocol.loop.call_soon_threadsafe(_end, self._engine.transport)
        with contextlib.suppress(*FAILURES):
            self._engine.returncode.result(GONE_S)

    def _search(self, board: chess.Board, only: chess.Move | None, limit: chess.engine.Limit) -> list[Line]:
        """The lines of one search, in the engine's order."""
        asked = f"on {board.fen()!r}{f' after {only}' if only else ''} with {self.limit}"
        hung = threading.Event()
        watchdog = threading.Timer(self.timeout_s, self._kill, [hung])
        watchdog.daemon = True
        watchdog.start()
        try:
            infos = self._engine.analyse(
                board.copy(stack=False),  # earlier moves would count as repetitions, which no FEN shows
                limit,
                multipv=1 if only else self.multipv,
                root_moves=[only] if only else None,
                game=object(),  # a new game for each position: the hash is cleared, so order does not matter
            )
        except FAILURES as error:
            raise self._failure(f"failed {asked}", TimeoutError() if hung.is_set() else error) from error
        finally:
            watchdog.cancel()
        return [
            Line(move=info["pv"][0], eval_cp=info["score"].pov(board.turn).score(mate_score=MATE_CP))
            for info in infos
            if info.get("pv") and "score" in info
        ]

    def _kill(self, hung: threading.Event) -> None:
        """Kills a search that takes too long: python-chess bounds only time-limited ones, and cancels those badly."""
        hung.set()
        with contextlib.suppress(RuntimeError):  # the loop ended with the process, just now
            self._engine.protocol.loop.call_soon_threadsafe(_end, self._engine.transport)

    def _failure(self, what: str, error: Exception, remedy: str = "") -> EngineError:
        reason = f"no answer in {self.timeout_s} s" if isinstance(error, TIMEOUTS) else f"{error}"
        if isinstance(error, concurrent.futures.CancelledError):  # python-chess gave up together with the process
            reason = "its process ended before the search"
        reason = reason or type(error).__name__
        return EngineError(f"{self.path} {what} (timeout {self.timeout_s} s): {reason}{remedy}")


class Lasting:
    """An engine that outlives its processes: one that crashes or hangs is replaced, and the search is repeated.

    `start` starts a process when one is needed. A search is repeated at most `retries` times; its result does not
    depend on how often it was.
    """

    def __init__(self, start: Callable[[], Stockfish], *, retries: int) -> None:
        self.lost = 0  # processes that have failed so far
        self._start = start
        self._retries = retries
        self._engine: Stockfish | None = None
        self._closed = False

    def started(self) -> Stockfish:
        """The current engine process, started where there is none.

        Raises: EngineError when it does not start.
        """
        if self._engine is None:
            self._engine = self._start()
            if self._closed:  # by another thread, meanwhile
                self._engine.close()
        return self._engine

    def lines(self, board: chess.Board, only: chess.Move | None = None) -> list[Line]:
        """As `Stockfish.lines`.

        Raises: EngineError after the last attempt, or once this is closed.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return self.started().lines(board, only)
            except EngineError as error:
                self._discard()
                if self._closed or attempt > self._retries:
                    raise EngineError(
                        f"nobody could analyse {board.fen()!r} in {attempt} attempt{'s' * (attempt > 1)}: {error}"
                    ) from error

    def close(self) -> None:
        """Ends the engine at once and for good, even during a search by another thread."""
        self._closed = True
        if self._engine is not None:
            self._engine.close()

    def _discard(self) -> None:
        """Closes and counts an engine that failed."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self.lost += 1


class _Uci(chess.engine.UciProtocol):
    """A UCI engine of which nothing is left when it does not start."""

    async def initialize(self) -> None:
        """Asks for its name and options."""
        try:
            await super().initialize()
        except BaseException:  # cancelled after the timeout, too
            assert self.transport is not None
            process = self.transport.get_extra_info("subprocess")
            self.transport.close()  # asyncio looks at the process before it is gone
            _end(self.transport)
            for _ in range(round(GONE_S / LOOK_S)):
                if process.returncode is not None:
                    break
                await asyncio.sleep(LOOK_S)  # the loop notes how the process ended, and is closed after this
            raise


def _end(transport: asyncio.SubprocessTransport) -> None:
    """Kills a process and those that it started, as a script that runs an engine does: they hold its pipes.

    They may outlive it, and its number is no other's as long as they do.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        else:
            transport.kill()


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler that ignores a process that ended between two searches: the next search reports it."""
    if not isinstance(context.get("exception"), chess.engine.EngineError):
        loop.default_exception_handler(context)
