"""Seeded chess positions: openings, self-play and random middlegames, endgames; and when two count as the same."""

from __future__ import annotations

import hashlib
import random

import chess

CENTRE = frozenset((chess.D4, chess.E4, chess.D5, chess.E5))
ENDGAME_PIECES = 14
ENDGAME_MATERIAL = "QRBNPPP"


def weighted_move(board: chess.Board, rng: random.Random) -> chess.Move:
    """A random legal move; captures, centre squares, castling and leaving the back rank weigh more."""
    moves = list(board.legal_moves)
    home = chess.BB_RANK_1 if board.turn == chess.WHITE else chess.BB_RANK_8
    weights = []
    for move in moves:
        weight = 1.0
        if move.to_square in CENTRE:
            weight *= 2.0
        if board.is_capture(move):
            weight *= 2.5
        if board.is_castling(move):
            weight *= 5.0
        piece = board.piece_type_at(move.from_square)
        if piece in (chess.KNIGHT, chess.BISHOP) and chess.BB_SQUARES[move.from_square] & home:
            weight *= 1.5
        if piece == chess.KING and not board.is_castling(move) and chess.popcount(board.occupied) > ENDGAME_PIECES:
            weight *= 0.3
        weights.append(weight)
    return rng.choices(moves, weights)[0]


def random_game(rng: random.Random, max_plies: int) -> chess.Board:
    """A board after at most `max_plies` weighted random plies from the start; its move stack is the game."""
    board = chess.Board()
    for _ in range(max_plies):
        if board.is_game_over():
            break
        board.push(weighted_move(board, rng))
    return board


def opening(rng: random.Random) -> chess.Board:
    """A position 0 to 10 plies from the start."""
    return random_game(rng, rng.randint(0, 10))


def middlegame(rng: random.Random) -> chess.Board:
    """A position after 8 to 40 weighted random plies."""
    return random_game(rng, rng.randint(8, 40))


def endgame(rng: random.Random) -> chess.Board:
    """A constructed legal position with two kings and 1 to 8 further pieces, some of them balanced pairs."""
    while True:
        board = chess.Board(None)
        squares = rng.sample(range(64), 10)
        board.set_piece_at(squares.pop(), chess.Piece(chess.KING, chess.WHITE))
        board.set_piece_at(squares.pop(), chess.Piece(chess.KING, chess.BLACK))
        for _ in range(rng.randint(1, 4)):
            kind = chess.Piece.from_symbol(rng.choice(ENDGAME_MATERIAL)).piece_type
            colour = rng.random() < 0.5
            board.set_piece_at(squares.pop(), chess.Piece(kind, colour))
            if rng.random() < 0.7:
                answer = kind if rng.random() < 0.6 else rng.choice((chess.PAWN, chess.KNIGHT, chess.ROOK))
                board.set_piece_at(squares.pop(), chess.Piece(answer, not colour))
        board.turn = rng.random() < 0.5
        board.fullmove_number = rng.randint(30, 80)
        board.halfmove_clock = rng.randint(0, 12)
        if board.is_valid() and not board.is_game_over():
            return board


def position_key(board: chess.Board) -> str:
    """The key of a position for deduplication and splits: placement, turn, castling and legal en passant.

    A colour flip (and, without castling rights, a left-right mirror) counts as the same position, because the
    corpus builder makes one from the other.
    """
    boards = [board, board.mirror()]
    if not board.clean_castling_rights():
        boards += [b.transform(chess.flip_horizontal) for b in boards]
    return min(b.epd(en_passant="legal") for b in boards)


def split_of(key: str) -> str:
    """`train`, `validation` (1 %) or `test` (2 %), decided by the hash of the position's key alone."""
    bucket = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") % 100
    if bucket < 2:
        return "test"
    return "validation" if bucket < 3 else "train"
