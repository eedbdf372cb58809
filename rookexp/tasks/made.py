"""Generated A documents: the twenty first moves of a game, and illegal moves in given positions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import chess

from rookexp import chess_text


def first_move_documents() -> list[str]:
    """The A document of every first move of a game."""
    return [_document(chess.STARTING_FEN, move, ()) for move in sorted(chess_text.legal_ucis(chess.Board()))]


def illegal_moves(documents: Sequence[str], count: int, seed: int) -> list[str]:
    """A documents with an illegal move in the positions of the first `count` documents, answered like published data.

    The illegal moves are in turn from an empty square, with a piece of the side to move, and with one of the other.
    """
    rng, made = random.Random(seed), []
    for number, text in enumerate(documents[:count]):
        asked = chess_text.parse_a_prompt(text)
        board = None if asked is None else chess_text.board_of(asked.fen)
        if asked is None or board is None:
            continue
        own = board.occupied_co[board.turn]
        sources = (chess.SquareSet(~board.occupied), chess.SquareSet(own), chess.SquareSet(board.occupied & ~own))
        squares = list(sources[number % len(sources)])
        if not squares:
            continue
        source = rng.choice(squares)
        legal = chess_text.legal_ucis(board)
        moves = [chess.Move(source, square).uci() for square in chess.SQUARES if square != source]
        move = rng.choice([move for move in moves if move not in legal])
        made.append(_document(asked.fen, move, asked.history[:-1]))
    return made


def _document(fen: str, move: str, before: Sequence[str]) -> str:
    outcome = chess_text.transition(fen, move, legality="legacy")
    return chess_text.build_a(fen, move, [*before, move], outcome)
