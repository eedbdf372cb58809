"""The engine's side of UCI: a GUI's commands in, answers out, line by line; malformed ones are reported and skipped.

Source: the UCI protocol, April 2006.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, get_args

import chess
from annotated_types import Ge, Le, MinLen

from rookexp import chess_text
from rookexp.config import check, hints
from rookexp.game_record import GameRecord

if TYPE_CHECKING:
    from rookexp.player import Player

Reading = Literal["written", "argmax"]
IllegalMove = Literal["best_listed", "any_legal"]
OF_MOVETIME, OF_CLOCK = 0.9, 0.25  # share of the move's time, or of that on the clock, that an answer may take
SETOPTION = re.compile(r"name\s+(\S.*?)(?:\s+value(?:\s+(.*))?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The keys of conf/uci.yaml that belong to no group; a GUI may change those of `OPTIONS`."""

    temperature: Annotated[float, Ge(0)]  # of sampling; 0 = greedy
    reading: Reading  # the move of an answer: the one after B:, or the listed one with the highest evaluation
    illegal_move: IllegalMove  # what is played if that move is illegal; any_legal also if no listed move is legal
    multipv: Annotated[int, Ge(1), Le(chess_text.MAX_LINES)]  # lines of an answer that are sent
    p_style: Literal["bare", "padded_prefill"] | None  # of the prompt; None = bare
    max_new_tokens: Annotated[int, Ge(1)]  # longest completion
    seed: Annotated[int, Ge(0)]  # every random choice derives from it and from how many answers came before
    pgn: Annotated[str, MinLen(1)] | None  # file that the games are written to, each as far as played


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer to a position."""

    move: str  # UCI, legal
    lines: tuple[tuple[str, int | None], ...]  # that move, then others by falling evaluation in centipawns
    instead: str | None  # why the move is not the model's own; None if it is


# UCI name -> key of Settings and what UCI says of its type.
OPTIONS = {
    "Temperature": ("temperature", "string"),
    "Reading": ("reading", "combo var " + " var ".join(get_args(Reading))),
    "IllegalMove": ("illegal_move", "combo var " + " var ".join(get_args(IllegalMove))),
    "MultiPV": ("multipv", f"spin min 1 max {chess_text.MAX_LINES}"),
}
AT_ONCE = ("isready", "stop", "ponderhit", "debug", "register")  # commands that do not wait for an answer


class Engine:
    """A player behind UCI. Every `go` is answered as soon as its move is found, `infinite` and `ponder` once they are
    ended; `stop`, or a time limit that comes near, cuts a search short.

    `load` returns the player; it is called at the first `go` or `isready`. A second thread finds the answers.
    """

    def __init__(self, *, name: str, settings: Settings, load: Callable[[], Player], out: IO[str]) -> None:
        self.name = name
        self.settings = settings
        self.load = load
        self.out = out
        self.player: Player | None = None
        self.board = chess.Board()
        self.fen = self.board.fen()  # the position as the GUI wrote it, or after its moves
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.search: Future[None] | None = None  # what that thread does
        self.stopped = threading.Event()  # cuts the search short; each search has its own
        self.seconds = 0.0  # that the search may take
        self.clock: threading.Timer | None = None  # sets `stopped` after these seconds
        self.turn_taking = threading.RLock()  # for what both threads change: the lines sent, and these two
        self.held: str | None = None  # the move that was found by a search that has not been ended yet
        self.ended = False  # whether the move is sent as soon as it is found
        self.record = GameRecord(name=name, pgn=settings.pgn, tell=self.tell)
        self.answers = 0
        self.fallbacks = 0  # answers whose move is not the model's own
        self.commands: dict[str, Callable[[list[str]], None]] = {
            "uci": self._uci,
            "isready": self._isready,
            "ucinewgame": self._ucinewgame,
            "setoption": self._setoption,
            "position": self._position,
            "go": self._go,
            "stop": self._stop,
            "ponderhit": self._ponderhit,
            **dict.fromkeys(("debug", "register"), lambda words: None),
        }

    def run(self, lines: Iterable[str]) -> None:
        """Obeys commands up to `quit` or the last one; a `go` without `infinite` or `ponder` is still answered in full.

        Raises: what `load` raises, at once; what the player raises, at the next command.
        """
        try:
            for line in lines:
                words = line.split()
                while words and words[0] not in self.commands and words[0] != "quit":  # UCI: unknown ones are skipped
                    words.pop(0)
                if words[:1] == ["quit"]:
                    break
                if words and (words[0] not in AT_ONCE or self.search is None or self.search.done()):
                    self._await_search()
                if words:
                    self.commands[words[0]](words[1:])
            if not self.ended:
                self.stopped.set()
            self._await_search()
        finally:
            self.stopped.set()

    def send(self, line: str) -> None:
        """Sends one line to the GUI, unbuffered."""
        text = " ".join(line.split()).encode("ascii", "replace").decode()
        with self.turn_taking:
            self.out.write(f"{text}\n")
            self.out.flush()

    def tell(self, text: str) -> None:
        """Sends a line for the GUI's log."""
        self.send(f"info string {text}")

    def _uci(self, words: list[str]) -> None:
        self.send(f"id name {self.name}")
        self.send("id author rookexp contributors")
        for name, (key, kind) in OPTIONS.items():
            word, _, limits = kind.partition(" ")
            self.send(f"option name {name} type {word} default {getattr(self.settings, key)} {limits}")
        self.send("uciok")

    def _isready(self, words: list[str]) -> None:
        self._player()
        self.send("readyok")

    def _ucinewgame(self, words: list[str]) -> None:
        self.record.end()
        self.board = chess.Board()
        self.fen = self.board.fen()

    def _setoption(self, words: list[str]) -> None:
        found = SETOPTION.fullmatch(" ".join(words))
        names = {name.lower(): name for name in OPTIONS}
        if found is None or found[1].lower() not in names:
            self.tell(f"no such option: {' '.join(words)}; there are {', '.join(OPTIONS)}")
            return
        name, text = names[found[1].lower()], (found[2] or "").strip().lower()
        key, kind = OPTIONS[name]
        value: Any = text
        if not kind.startswith("combo"):
            number = chess_text.decimal(text)
            value = int(number) if number is not None and kind.startswith("spin") and number.is_integer() else number
        hint = hints.type_hints(Settings)[key]
        if hints.fits(value, hint):
            self.settings = dataclasses.replace(self.settings, **{key: value})
        else:
            self.tell(f"{name}={text}: allowed: {check.allowed(hint)}; it stays {getattr(self.settings, key)}")

    def _position(self, words: list[str]) -> None:
        at = words.index("moves") if "moves" in words else len(words)
        fen = chess.STARTING_FEN if words[:1] == ["startpos"] else " ".join(words[1:at])
        board = chess_text.board_of(fen) if words[:1] in (["startpos"], ["fen"]) else None
        if board is None:
            self.tell(f"no position: {' '.join(words)}; the last one stays")
            return
        if words[:1] == ["startpos"] and words[1:at]:
            self.tell(f"left out: {' '.join(words[1:at])}; the moves of a position come after the word moves")
        for word in words[at + 1 :]:
            try:
                if not board.push_uci(word.lower()):
                    board.pop()
                    raise ValueError("a null move")
            except ValueError:
                self.tell(f"no legal move: {word}; it and what follows it is left out")
                break
        self.record.asked(board)
        self.board = board
        self.fen = as_asked(board, fen)

    def _go(self, words: list[str]) -> None:
        self._end_search([])
        legal = chess_text.legal_ucis(self.board)
        if "searchmoves" in words:
            asked = legal & {word.lower() for word in words}
            if not asked:
                self.tell(f"no legal move to search: {' '.join(words)}; all are")
            legal = asked or legal
        if not legal:
            self.tell("no legal move in this position")
            self.send("bestmove (none)")
            return
        player = self._player()
        self.ended = not {"infinite", "ponder"} & set(words)
        self.stopped = threading.Event()
        self.seconds = seconds(words, self.board.turn)
        if self.ended:
            self._start_clock()
        self.search = self.thread.submit(self._search, player, legal)

    def _await_search(self) -> None:
        """Waits for the answer that is being found, if one is."""
        (search, self.search), (clock, self.clock) = (self.search, None), (self.clock, None)
        if search is not None:
            search.result()
        if clock is not None:
            clock.cancel()

    def _search(self, player: Player, legal: frozenset[str]) -> None:
        """Finds a move of `legal` and sends its lines; sends `bestmove` if the search is ended, else holds it back."""
        try:
            answer = player.answer(self.fen, legal, self.settings, self.answers, self.stopped.is_set)
        except Exception:  # the next command raises it; the GUI should not wait until then
            self.send("bestmove (none)")
            raise
        self.answers += 1
        if answer.instead is not None:
            self.fallbacks += 1
            says = "was stopped and says" if self.stopped.is_set() else "says"
            self.tell(f"fallback {self.fallbacks} in {self.answers} answers: the model {says} {answer.instead}")
        told = list(enumerate(answer.lines[: self.settings.multipv], start=1))
        for number, (move, eval_cp) in reversed(told):  # the move itself last: some readers keep the last line
            self.send(f"info depth 1 multipv {number}{score(eval_cp)} pv {move}")
        self.record.answered(self.board, answer.move)
        with self.turn_taking:
            self.held = answer.move
            if self.ended:
                self._end_search([])

    def _start_clock(self) -> None:
        if self.clock is None and self.seconds < threading.TIMEOUT_MAX:
            self.clock = threading.Timer(self.seconds, self.stopped.set)
            self.clock.daemon = True
            self.clock.start()

    def _ponderhit(self, words: list[str]) -> None:
        self._start_clock()
        self._end_search([])

    def _stop(self, words: list[str]) -> None:
        self.stopped.set()
        self._end_search([])

    def _end_search(self, words: list[str]) -> None:
        """Sends the answer now, or as soon as it is found."""
        with self.turn_taking:
            self.ended = True
            if self.held is not None:
                self.send(f"bestmove {self.held}")
                self.held = None

    def _player(self) -> Player:
        if self.player is None:
            self.player = self.load()
        return self.player


def as_asked(board: chess.Board, fen: str) -> str:
    """The FEN in the model's prompt for a board set up from `fen`: `fen` itself or, after moves, as in the data.

    There a double push always sets the en-passant square. A FEN with fewer fields, or with castling rights in Chess960
    notation, is rewritten as a complete one in the usual notation.
    """
    written = board.fen(en_passant="fen")
    whole = len(fen.split()) == 6 and fen.split()[2] == written.split()[2]
    return fen if whole and not board.move_stack else written


def seconds(words: Sequence[str], colour: chess.Color) -> float:
    """Seconds that an answer to a `go` with these words may take; TIMEOUT_MAX without a limit of move time or clock."""
    after = {word: chess_text.decimal(value) for word, value in itertools.pairwise(words)}
    of_move, left = after.get("movetime"), after.get("wtime" if colour == chess.WHITE else "btime")
    if of_move is None and left is None:
        return threading.TIMEOUT_MAX
    found = OF_MOVETIME * of_move if of_move is not None else OF_CLOCK * (left or 0.0)
    return min(max(found / 1000, 0.0), threading.TIMEOUT_MAX)


def score(eval_cp: int | None) -> str:
    """` score cp N` or ` score mate N` for the side to move, "" if there is no evaluation."""
    if eval_cp is None:
        return ""
    if chess_text.is_mate(eval_cp):
        moves = max(chess_text.MATE_CP - abs(eval_cp), 1)
        return f" score mate {moves if eval_cp > 0 else -moves}"
    return f" score cp {eval_cp}"
