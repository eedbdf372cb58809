"""Positions are legal, seeded and what they say; a position's key and split are blind to its symmetries."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import chess
import pytest

from rookexp.tasks import positions

MAKERS = (positions.opening, positions.middlegame, positions.endgame)


def some(count: int, seed: int) -> list[chess.Board]:
    rng = random.Random(seed)
    return [MAKERS[i % 3](rng) for i in range(count)]


def test_positions_are_legal_and_follow_from_the_seed() -> None:
    boards = some(60, seed=1)
    assert all(board.is_valid() for board in boards)
    assert [board.fen() for board in boards] == [board.fen() for board in some(60, seed=1)]
    assert [board.fen() for board in boards] != [board.fen() for board in some(60, seed=2)]


def test_kinds_have_their_lengths() -> None:
    rng = random.Random(3)
    assert {positions.opening(rng).ply() for _ in range(200)} == set(range(11))
    assert all(board.ply() >= 8 or board.is_game_over() for board in (positions.middlegame(rng) for _ in range(20)))
    assert positions.random_game(rng, 0).fen() == chess.STARTING_FEN


def test_endgames_are_running_games_with_few_pieces_and_both_colours_to_move() -> None:
    rng = random.Random(4)
    boards = [positions.endgame(rng) for _ in range(200)]
    assert all(3 <= chess.popcount(board.occupied) <= 10 for board in boards)
    assert not any(board.is_game_over() or board.castling_rights for board in boards)
    assert 60 < sum(board.turn for board in boards) < 140


def test_weighted_moves_are_legal_and_prefer_castling_to_other_king_moves() -> None:
    board = chess.Board("r3k2r/pppppppp/nnbbqq2/8/8/NNBBQQ2/PPPPPPPP/R3K2R w KQkq - 0 1")
    rng = random.Random(5)
    counts = Counter(positions.weighted_move(board, rng) for _ in range(3000))
    assert set(counts) <= set(board.legal_moves)
    castling = chess.Move.from_uci("e1g1")
    assert counts[castling] > 5 * counts[chess.Move.from_uci("e1f1")]
    assert counts[castling] > 2.5 * counts[chess.Move.from_uci("h1g1")]


class Recorder(random.Random):
    """Keeps the weights that it was last asked to choose by."""

    def choices(self, population: Any, weights: Any = None, **more: Any) -> list[Any]:
        self.seen = dict(zip(map(str, population), weights, strict=True))
        return super().choices(population, weights, **more)


PLAYED = "rn2k2r/pppp1ppp/8/4p3/3P4/5N2/PPP2PPP/RNBQK2R {} KQkq - 0 1"
ONE_MORE, FEW = "4k3/ppppppp1/8/8/8/8/PPPPPP2/4K3 w - - 0 1", "4k3/pppppp2/8/8/8/8/PPPPPP2/4K3 w - - 0 1"


@pytest.mark.parametrize(
    ("fen", "weights"),
    [
        (PLAYED.format("w"), {"a2a3": 1, "d4d5": 2, "d4e5": 5, "f3e5": 5, "f3g5": 1, "b1c3": 1.5, "c1g5": 1.5}),
        (PLAYED.format("w"), {"e1g1": 5, "e1e2": 0.3, "d1d3": 1, "h1g1": 1}),
        (PLAYED.format("b"), {"a7a6": 1, "d7d5": 2, "e5d4": 5, "b8c6": 1.5, "e8g8": 5, "e8e7": 0.3, "h8g8": 1}),
        (ONE_MORE, {"e1d1": 0.3, "a2a3": 1}),
        (FEW, {"e1d1": 1, "a2a3": 1}),  # the king of an endgame comes out
    ],
)
def test_weights_of_moves(fen: str, weights: dict[str, float]) -> None:
    rng = Recorder(0)
    positions.weighted_move(chess.Board(fen), rng)
    assert {move: rng.seen[move] for move in weights} == pytest.approx(weights)


@pytest.mark.parametrize(
    ("fen", "same"),
    [
        (chess.STARTING_FEN, "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR b KQkq - 5 9"),  # colour flip, other clocks
        ("4k3/8/8/8/8/8/P7/4K3 w - - 0 1", "3k4/8/8/8/8/8/7P/3K4 w - - 0 1"),  # left-right mirror
        ("4k3/8/8/8/8/8/P7/4K3 w - - 0 1", "3k4/7p/8/8/8/8/8/3K4 b - - 0 1"),  # both
        (  # no pawn can capture on e3
            "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1",
            "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1",
        ),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "3k4/8/8/3Pp3/8/8/8/3K4 w - e6 0 1"),
    ],
)
def test_equal_positions_have_one_key(fen: str, same: str) -> None:
    assert positions.position_key(chess.Board(fen)) == positions.position_key(chess.Board(same))


@pytest.mark.parametrize(
    ("fen", "other"),
    [
        ("4k3/8/8/8/8/8/P7/4K3 w - - 0 1", "4k3/8/8/8/8/8/P7/4K3 b - - 0 1"),  # turn
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "4k3/8/8/8/8/8/8/4K2R w - - 0 1"),  # castling
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "3k4/8/8/8/8/8/8/R2K4 w - - 0 1"),  # castling has no mirror
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1"),  # a legal en-passant capture
    ],
)
def test_different_positions_have_two_keys(fen: str, other: str) -> None:
    assert positions.position_key(chess.Board(fen)) != positions.position_key(chess.Board(other))


def test_splits_have_their_shares_and_stay_what_they_were() -> None:
    counts = Counter(positions.split_of(f"key {i}") for i in range(10_000))
    assert counts["test"] == pytest.approx(200, abs=45)
    assert counts["validation"] == pytest.approx(100, abs=32)
    pinned = {split: next(i for i in range(1000) if positions.split_of(f"key {i}") == split) for split in counts}
    assert pinned == PINNED
    assert positions.split_of(positions.position_key(chess.Board())) == "train"


PINNED = {"train": 0, "test": 9, "validation": 26}
