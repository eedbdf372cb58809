"""The game that an engine plays, kept in a PGN file as far as the engine knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import chess
import chess.pgn

from rookexp.errors import why
from rookexp.files import replacing


class GameRecord:
    """The moves of the game of an engine called `name`; `pgn`: the file, if there is one, to which its games go.

    A file that cannot be written is told by `tell`, and the game goes on.
    """

    def __init__(self, *, name: str, pgn: str | None, tell: Callable[[str], None]) -> None:
        self.name = name
        self.pgn = pgn
        self.tell = tell
        self.game: chess.Board | None = None  # the moves so far of a game with an answer of this engine
        self.colour = chess.WHITE  # this engine's in that game
        self.began = ""  # its date, as PGN writes it
        self.kept = b""  # what the PGN file has of it

    def asked(self, board: chess.Board) -> None:
        """Takes the moves that a position adds to the game; ends the game if the position is not of it."""
        if self.game is not None and not is_of(board, self.game, self.colour):
            self.end()
        if self.game is not None and len(board.move_stack) > len(self.game.move_stack):
            self._keep(board)

    def answered(self, board: chess.Board, move: str) -> None:
        """Takes the engine's move in a position."""
        if self.game is None:
            self.began = f"{date.today():%Y.%m.%d}"
        self.colour = board.turn
        game = board.copy()
        game.push_uci(move)
        self._keep(game)

    def end(self) -> None:
        """Ends the game: what follows is another one."""
        self.game, self.kept = None, b""

    def _keep(self, board: chess.Board) -> None:
        """Records the game's moves so far and, if there is a PGN file, replaces the game's earlier version in it."""
        self.game = board.copy()
        if self.pgn is None:
            return
        game = chess.pgn.Game.from_board(self.game)
        ours, theirs = ("White", "Black") if self.colour == chess.WHITE else ("Black", "White")
        game.headers.update({"Event": "rookexp.uci", "Date": self.began, ours: self.name, theirs: "?"})
        text = f"{game}\n\n".encode()
        try:
            put(Path(self.pgn).expanduser(), self.kept, text)
        except OSError as error:
            self.tell(f"pgn={self.pgn}: the game cannot be written ({why(error)})")
        else:
            self.kept = text


def put(path: Path, before: bytes, text: bytes) -> None:
    """Replaces the last `before` in a file by `text`, or appends `text` if that is not found; atomically.

    Other games in the file stay as they are, another engine's too, unless both write at the very same time.
    Raises: OSError if the file cannot be written, or is not a regular file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError("not a regular file")
    known = path.read_bytes() if path.exists() else b""
    head, found, tail = known.rpartition(before) if before else (known, b"", b"")
    with replacing(path) as partial:
        partial.write_bytes(head + text + tail if found else known + text)


def is_of(board: chess.Board, game: chess.Board, colour: chess.Color) -> bool:
    """Whether the board's moves begin with the game's, from the same position.

    If `colour`, the engine's own, is to move, the last two may be others or missing: it is asked again, or after a
    take-back. More would be another game with the same opening, which a GUI need not announce.
    """
    moves: Sequence[chess.Move] = game.move_stack
    kept = max(len(moves) - 2, 0) if board.turn == colour else len(moves)
    return board.root() == game.root() and board.move_stack[:kept] == moves[:kept]
