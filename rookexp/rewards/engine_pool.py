"""Several engines at once behind one cache: positions in, lines out, in order; a lost engine is replaced."""

from __future__ import annotations

import atexit
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import chess
from annotated_types import Ge, Gt, Le

from rookexp.chess_text import MAX_LINES
from rookexp.errors import DataError
from rookexp.rewards.engine import Lasting, Line, Stockfish
from rookexp.rewards.engine_cache import EngineCache, Key, position_of


@dataclass(frozen=True, slots=True)
class Question:
    """What to analyse in a legal position of an unfinished game: its best lines, or the value of one move."""

    position: str  # as `position_of` writes it
    move: str = ""  # UCI, legal; "" asks for the lines

    @classmethod
    def lines_of(cls, board: chess.Board) -> Question:
        """The question for a position's best lines.

        Raises: DataError for a position that engines do not accept, or that has no legal move.
        """
        position = position_of(board)
        if not chess.Board(position).is_valid() or not any(board.legal_moves):
            raise DataError(
                f"{board.fen()!r}: no legal position with a legal move, nothing that an engine could analyse"
            )
        return cls(position)


@dataclass(slots=True)
class StepCounters:
    """Counters since a step began."""

    asked: int = 0  # different questions of each batch
    known: int = 0  # of these, answered from the cache
    analysed: int = 0  # by an engine
    waited_s: float = 0.0  # by callers of `analyse`
    worked_s: float = 0.0  # while at least one engine was at work


class EnginePool:
    """Lines of positions, from the cache or from `processes` Stockfish processes that start when they are needed.

    The lines depend only on the position, the engine, its limit and `multipv`. An engine that crashes or hangs is
    replaced and the search repeated, at most `retries` times. One engine starts at once, so that a missing binary is
    noticed before anything else happens.
    Raises: ConfigError unless exactly one of `depth` and `nodes` is given; EngineError when the engine is missing or
    does not start; DataError when the cache cannot be used.
    """

    def __init__(
        self,
        *,
        path: str | None,
        depth: Annotated[int, Ge(1)] | None,
        nodes: Annotated[int, Ge(1)] | None,
        multipv: Annotated[int, Ge(1), Le(MAX_LINES)],
        timeout_s: Annotated[float, Gt(0)],
        retries: Annotated[int, Ge(0)],
        processes: Annotated[int, Ge(1)],
        cache: str | None,
    ) -> None:
        start = functools.partial(Stockfish, path=path, nodes=nodes, depth=depth, multipv=multipv, timeout_s=timeout_s)
        self.multipv = multipv
        self._engines = [Lasting(start, retries=retries) for _ in range(processes)]
        self._jobs: queue.SimpleQueue[tuple[Callable[[int], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._begun: dict[Question, Future[list[Line]]] = {}
        self._tally = StepCounters()
        self._lock = threading.Lock()
        self._working = 0
        self._since = 0.0
        self._closed = False
        for slot in range(processes):
            # Daemons, and so are the threads that an engine starts in them: none keeps the interpreter from ending.
            threading.Thread(target=self._work, args=[slot], daemon=True).start()
        atexit.register(self.close)
        try:
            first: Stockfish = self._submit(lambda slot: self._engines[slot].started()).result()
            self.engine, self.limit = first.identity(), first.limit
            self._cache = EngineCache(cache, timeout_s)
        except BaseException:
            self.close()
            raise

    def begin(self, questions: Sequence[Question]) -> None:
        """Begins a step: resets the counters and starts to analyse what will be asked for; returns at once."""
        self._tally = StepCounters()
        self._begun = self._asked(questions)

    def analyse(self, questions: Sequence[Question]) -> list[list[Line]]:
        """The lines of each question, best first; equal questions are asked once.

        Raises: EngineError naming binary, position and limit, when no engine answers; DataError for a failing cache.
        """
        began = time.perf_counter()
        asked = self._asked(questions)
        try:
            found = {question: future.result() for question, future in asked.items()}
        finally:
            for future in asked.values():
                future.cancel()  # those still open after a failure or an interruption
            self._tally.waited_s += time.perf_counter() - began
        return [list(found[question]) for question in questions]

    def metrics(self) -> dict[str, float]:
        """Times and rates of the step so far; a rate is left out where there is nothing to divide by.

        Restarts are counted since the pool was made: those of an evaluation, between two steps, would be lost else.
        """
        tally = self._tally
        restarts = sum(engine.lost for engine in self._engines)
        found = {"engine/wait_s": tally.waited_s, "engine/restarts": float(restarts)}
        if tally.asked:
            found["engine/hit_rate"] = tally.known / tally.asked
        if tally.worked_s:
            found["engine/positions_per_s"] = tally.analysed / tally.worked_s
        return found

    def close(self) -> None:
        """Ends the engines at once, whatever they are doing; called automatically when the interpreter ends."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        for _ in self._engines:
            self._jobs.put(None)
        for engine in self._engines:
            engine.close()
        if hasattr(self, "_cache"):
            self._cache.close()

    # ---- in the caller's thread ----------------------------------------------------------------------------------

    def _key(self, question: Question) -> Key:
        return Key(self.engine, self.limit, 1 if question.move else self.multipv, question.position, question.move)

    def _asked(self, questions: Sequence[Question]) -> dict[Question, Future[list[Line]]]:
        """A future with the answer to each different question; `begin` may have started it already."""
        different = dict.fromkeys(questions)
        return {one: self._begun.pop(one) if one in self._begun else self._ask(one) for one in different}

    def _ask(self, question: Question) -> Future[list[Line]]:
        self._tally.asked += 1
        known = self._cache.get(self._key(question))
        if known is None:
            return self._submit(functools.partial(self._answer, question))
        self._tally.known += 1
        future: Future[list[Line]] = Future()
        future.set_result(known)
        return future

    def _submit(self, job: Callable[[int], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    # ---- in the engines' threads ---------------------------------------------------------------------------------

    def _work(self, slot: int) -> None:
        """Does one job after the other with the engine of a slot; exceptions go to the job's future."""
        while (item := self._jobs.get()) is not None:
            job, future = item
            if self._closed or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            try:
                future.set_result(job(slot))
            except Exception as error:
                future.set_exception(error)

    def _answer(self, question: Question, slot: int) -> list[Line]:
        """Analyses a question and caches the lines. Raises: EngineError after the last attempt."""
        board = chess.Board(question.position)
        only = chess.Move.from_uci(question.move) if question.move else None
        with self._at_work():
            lines = self._engines[slot].lines(board, only)
        self._cache.put(self._key(question), lines)
        with self._lock:
            self._tally.analysed += 1
        return lines

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Adds up the seconds in which at least one engine is at work."""
        with self._lock:
            self._since = self._since if self._working else time.perf_counter()
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self._tally.worked_s += time.perf_counter() - self._since
