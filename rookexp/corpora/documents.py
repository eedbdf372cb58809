"""The corpus: annotated shards and seeded games become P, A and L documents, split by position, one document a line."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import chess

from rookexp import chess_text
from rookexp.corpora.annotate import shard_path
from rookexp.errors import DataError
from rookexp.tasks import positions

PROMPT_SETS = {"train": 256, "eval": 128}  # rows of the prompt sets that ship with the package
L_MOVES = 80  # an L document has at most so many, two tokens each, and so fits into rook_nano's 256 positions


@dataclass(frozen=True, slots=True)
class Row:
    """An annotated position."""

    board: chess.Board
    kind: str  # opening, self_play, middlegame or endgame
    moves: tuple[str, ...]  # best first
    evals_cp: tuple[int, ...]  # for the side to move

    def record(self) -> dict[str, Any]:
        """The position as a row of a file of positions."""
        fen = self.board.fen(en_passant="fen")
        return {"fen": fen, "kind": self.kind, "moves": self.moves, "evals_cp": self.evals_cp}


def load_rows(folder: Path, shards: int, kinds: Mapping[str, int]) -> tuple[list[Row], list[list[chess.Move]], int]:
    """Distinct annotated positions of the first `shards` files, their self-play games, and the number of duplicates.

    `kinds`: how many of each kind a whole shard has; of openings it may have fewer, as they repeat themselves.
    Raises: DataError naming the file and line that cannot be read, or the file that is not whole.
    """
    rows: dict[str, Row] = {}
    games: list[list[chess.Move]] = []
    duplicates = 0
    for index in range(shards):
        file = shard_path(folder, index)
        if not file.exists():
            raise DataError(f"{file}: missing; make the shards with `python -m rookexp.data`")
        missing = Counter({kind: count for kind, count in kinds.items() if kind != "opening"})
        for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1):
            try:
                raw = json.loads(line)
                board = chess.Board(raw["fen"])
                row = Row(board, raw["kind"], tuple(raw["moves"]), tuple(raw["evals_cp"]))
                game = [chess.Move.from_uci(uci) for uci in raw.get("game", "").split()]
                if not 0 < len(row.moves) == len(row.evals_cp):
                    raise ValueError("not one evaluation for each move")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{file}, line {number}: not an annotated position ({error}); delete the file"
                ) from error
            if "game" in raw:
                if games and game[: len(games[-1])] == games[-1]:
                    games[-1] = game
                else:
                    games.append(game)
            key = positions.position_key(board)
            duplicates += key in rows
            rows.setdefault(key, row)
            missing[row.kind] -= 1
        if lacks := sum((+missing).values()):
            raise DataError(f"{file}: {lacks} rows fewer than a whole shard has; delete the file, and it is made again")
    return list(rows.values()), games, duplicates


# ---- P documents ------------------------------------------------------------------------------------------------


def symmetric(row: Row, rng: random.Random) -> Row:
    """The row, or its colour flip, or (without castling rights) its left-right mirror, with equal chances.

    Evaluations are for the side to move, so a symmetric position has the same ones.
    """
    board, squares = row.board, list(range(64))
    flip_files = not board.clean_castling_rights() and rng.random() < 0.5
    flip_colours = rng.random() < 0.5
    if flip_files:
        board = board.transform(chess.flip_horizontal)
        board.ep_square = None if row.board.ep_square is None else row.board.ep_square ^ 7
        board.halfmove_clock, board.fullmove_number = row.board.halfmove_clock, row.board.fullmove_number
        squares = [s ^ 7 for s in squares]
    if flip_colours:
        board = board.mirror()
        squares = [s ^ 56 for s in squares]
    return Row(board, row.kind, tuple(_moved(m, squares) for m in row.moves), row.evals_cp)


def _moved(uci: str, squares: Sequence[int]) -> str:
    move = chess.Move.from_uci(uci)
    return chess.Move(squares[move.from_square], squares[move.to_square], move.promotion).uci()


def p_document(
    row: Row,
    rng: random.Random,
    black_best: Literal["legacy", "corrected"],
    list_order: chess_text.ListOrder,
) -> str:
    """The row's P document; its (move, evaluation) pairs are in the given order; all orders use `rng` alike."""
    order = chess_text.listing(row.moves, list_order, rng)
    best = chess_text.best_label(row.moves, row.evals_cp, row.board.turn, black_best)
    return chess_text.build_p(
        row.board.fen(en_passant="fen"), [row.moves[i] for i in order], [row.evals_cp[i] for i in order], best
    )


def l_document(board: chess.Board) -> str | None:
    """A P document's question under another name, `L:`, and its answer: all legal moves, sorted by name.

    None where these are more than L_MOVES. Published data has no such documents. They say where each piece can go, move
    by move, without a choice.
    """
    moves = sorted(chess_text.legal_ucis(board))
    question = chess_text.p_prompt_padded(board.fen(en_passant="fen")).removeprefix("P")
    return f"L{question} {' '.join(moves)}" if len(moves) <= L_MOVES else None


# ---- prompt sets ------------------------------------------------------------------------------------------------


def prompt_rows(rows: Sequence[dict[str, Any]], seed: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of each prompt set, White and Black to move in turn, drawn from `rows` with a full list of moves.

    Rows are the objects of positions-test.jsonl; none is drawn twice. Sets are smaller where rows run out.
    """
    shuffled = list(rows)
    random.Random(f"{seed}/prompts").shuffle(shuffled)
    full = [row for row in shuffled if len(row["moves"]) == chess_text.MAX_LINES]
    pools = {colour: [row for row in full if row["fen"].split(" ")[1] == colour] for colour in "wb"}
    return {
        name: [pools[colour].pop() for _ in range(min(count // 2, *map(len, pools.values()))) for colour in "wb"]
        for name, count in PROMPT_SETS.items()
    }
