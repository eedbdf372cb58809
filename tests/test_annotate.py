"""Annotated positions: the same seed gives the same rows, distinct and of every kind."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import chess
import pytest

from rookexp.corpora import annotate
from rookexp.corpora.annotate import shard_path
from rookexp.errors import EngineError
from rookexp.rewards.engine import Line
from rookexp.shares import row_counts
from rookexp.tasks import positions

QUOTAS = {"opening": 0.12, "middlegame": 0.22, "endgame": 0.16, "self_play": 0.5}  # those of conf/data.yaml


class Alphabet:
    """An engine that likes moves in alphabetical order, a pawn's worth apart."""

    name = "Alphabet"

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.closed = False

    def lines(self, board: chess.Board, only: None = None) -> list[Line]:
        moves = sorted(board.legal_moves, key=lambda move: move.uci())[:5]
        return [Line(move, -100 * i) for i, move in enumerate(moves)]

    def close(self) -> None:
        self.closed = True


class Broken(Alphabet):
    """An engine that fails at its third position, and one that was not closed is noticed."""

    made: ClassVar[list[Broken]] = []

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.asked = 0
        self.made.append(self)

    def lines(self, board: chess.Board, only: None = None) -> list[Line]:
        self.asked += 1
        if self.asked == 3:
            raise EngineError("broken")
        return super().lines(board)


def rows_of(
    rows: int = 60, index: int = 0, seed: int = 2026, quotas: Mapping[str, float] = QUOTAS
) -> list[dict[str, Any]]:
    rng = random.Random(f"{seed}/{index}")
    return list(annotate.annotated_rows(rng, row_counts(rows, quotas), Alphabet()))  # type: ignore[arg-type]


def test_quotas_are_shared_out_exactly() -> None:
    assert row_counts(500, QUOTAS) == {"opening": 60, "middlegame": 110, "endgame": 80, "self_play": 250}
    assert row_counts(6, QUOTAS) == {"opening": 1, "middlegame": 1, "endgame": 1, "self_play": 3}
    assert row_counts(1, QUOTAS) == {"opening": 0, "middlegame": 0, "endgame": 0, "self_play": 1}
    rng = random.Random(0)
    for rows in range(1, 200):
        raw = [rng.random() for _ in QUOTAS]
        quotas = {kind: value / sum(raw) for kind, value in zip(QUOTAS, raw, strict=True)}
        counts = row_counts(rows, quotas)
        assert sum(counts.values()) == rows
        assert all(abs(counts[kind] - rows * share) < 1 for kind, share in quotas.items())


def test_rows_are_distinct_running_games_of_every_kind() -> None:
    rows = rows_of()
    counts = Counter(row["kind"] for row in rows)
    wanted = row_counts(60, QUOTAS)
    assert wanted["opening"] - 5 <= counts.pop("opening") <= wanted.pop("opening")
    assert counts == wanted
    boards = [chess.Board(row["fen"]) for row in rows]
    assert len({positions.position_key(board) for board in boards}) == len(rows)
    for row, board in zip(rows, boards, strict=True):
        assert board.is_valid()
        assert not board.is_game_over()
        assert row["evals_cp"] == sorted(row["evals_cp"], reverse=True)
        assert len(row["moves"]) == len(row["evals_cp"]) == min(5, board.legal_moves.count())
        assert ("game" in row) == (row["kind"] == "self_play")
        if "game" in row:
            game = chess.Board()
            for uci in row["game"].split():
                game.push(game.parse_uci(uci))
            assert game.fen(en_passant="fen") == row["fen"]


def test_rows_depend_on_seed_and_number_alone() -> None:
    rows = rows_of()
    assert rows_of() == rows
    assert rows_of(index=1) != rows
    assert rows_of(seed=2027) != rows


def test_positions_of_a_seed_stay_what_they_were() -> None:
    quotas = {"opening": 0.25, "middlegame": 0.25, "endgame": 0.5, "self_play": 0.0}
    assert [row["fen"] for row in rows_of(rows=4, quotas=quotas)] == PINNED


def test_positions_are_those_of_the_corpus(root: Path) -> None:
    shard = shard_path(root / "outputs" / "corpus", 0)
    if not shard.is_file():
        pytest.skip("no outputs/corpus in this checkout")
    found = [json.loads(line)["fen"] for line in shard.read_text(encoding="utf-8").splitlines()[:100]]
    rows = annotate.annotated_rows(random.Random("2026/0"), row_counts(500, QUOTAS), Alphabet())  # type: ignore
    assert [next(rows)["fen"] for _ in found] == found


def test_the_fen_names_the_en_passant_square_after_every_double_push() -> None:
    board = chess.Board()
    board.push_uci("e2e4")
    assert annotate.row_of(board, "opening", Alphabet().lines(board))["fen"].split()[3] == "e3"


def test_soft_choice_follows_the_softmax_of_the_values() -> None:
    moves = list(chess.Board().legal_moves)[:3]
    lines = [Line(moves[0], 30), Line(moves[1], -30), Line(moves[2], -99_990)]
    rng = random.Random(1)
    counts = Counter(annotate.soft_choice(rng, lines) for _ in range(4000))
    assert counts[moves[2]] == 0
    assert counts[moves[0]] / 4000 == pytest.approx(1 / (1 + 2.718281828**-1), abs=0.03)


PINNED = [
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "r2qkb1r/p1pbpppp/2n4n/1p6/4P3/N2PB1P1/PPP4P/1R1QK1NR b Kkq - 0 10",
    "8/3N4/8/5P2/8/1p3P2/6kp/3K4 w - - 8 56",
    "3R4/p1B1p3/2K5/8/8/3bk3/q1P1P3/8 b - - 1 70",
]
