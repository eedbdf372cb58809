"""A documents: moves from games of several sources, in classes, of which the rare ones are over-sampled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import chess

from rookexp import chess_text
from rookexp.tasks import positions

A_KINDS = ("ongoing", "opening", "castling", "en_passant", "promotion", "mate", "draw", "failed")
Candidate = tuple[chess.Board, chess.Move]  # a board whose stack is the game so far, and a move on it


def class_of(board: chess.Board, move: chess.Move) -> str:
    """The rare class of a transition, `ongoing` if none."""
    if board.piece_at(move.from_square) is None:
        return "failed"
    board.push(move)
    outcome = board.outcome(claim_draw=False)
    board.pop()
    if outcome is not None:
        return "mate" if outcome.termination == chess.Termination.CHECKMATE else "draw"
    if move.promotion:
        return "promotion"
    if board.is_castling(move):
        return "castling"
    return "en_passant" if board.is_en_passant(move) else "ongoing"


def a_document(board: chess.Board, move: chess.Move) -> str:
    """The A document of a move on a board whose stack is the game so far."""
    history = [m.uci() for m in board.move_stack[-chess_text.HISTORY_PLIES :]] + [move.uci()]
    repeats = board.halfmove_clock >= 15  # a fifth repetition needs that many quiet plies and this one
    outcome = chess_text.transition(board.fen(), move.uci(), legality="legacy", game_board=board if repeats else None)
    return chess_text.build_a(board.fen(), move.uci(), history, outcome)


def opening_moves(rng: random.Random, plies: int) -> Iterator[Candidate]:
    """The first plies of a uniformly random game, in which every other move is a pawn's."""
    board = chess.Board()
    for _ in range(plies):
        moves = list(board.legal_moves)
        pawns = [m for m in moves if board.piece_type_at(m.from_square) == chess.PAWN]
        move = rng.choice(pawns if pawns and rng.random() < 0.5 else moves)
        yield board, move
        board.push(move)
        if board.is_game_over():
            return


def game_moves(game: Sequence[chess.Move], rng: random.Random, share: float) -> Iterator[Candidate]:
    """A share of a game's moves, all promotions, and some castlings, en-passant captures and failed moves it allows."""
    board = chess.Board()
    for move in game:
        if move.promotion or rng.random() < share:
            yield board, move
        if rng.random() < 0.3:
            yield from ((board, m) for m in [*board.generate_castling_moves(), *board.generate_legal_ep()])
        if rng.random() < 0.02:
            yield board, failed_move(board, rng)
        board.push(move)


def failed_move(board: chess.Board, rng: random.Random) -> chess.Move:
    """A move from an empty square, as it happens in the published data."""
    start = rng.choice([s for s in chess.SQUARES if board.piece_at(s) is None])
    return chess.Move(start, rng.choice([s for s in chess.SQUARES if s != start]))


def endgame_moves(rng: random.Random) -> Iterator[Candidate]:
    """Moves of a short random walk from a constructed endgame, chosen to hold its promotions and game-ending moves."""
    board = positions.endgame(rng)
    if rng.random() < 0.1:
        board.halfmove_clock = rng.choice((147, 148, 149))
    for _ in range(rng.randint(1, 12)):
        if board.is_game_over():
            return
        moves = list(board.legal_moves)
        for move in moves:
            if move.promotion or board.gives_check(move) or board.halfmove_clock > 140 or len(moves) < 12:
                yield board, move
        board.push(positions.weighted_move(board, rng))


def a_documents(games: Sequence[Sequence[chess.Move]], counts: dict[str, int], seed: int) -> list[tuple[str, str, str]]:
    """Distinct A documents with their class and position key, up to `counts` a class.

    The class `opening` counts the first ten plies of random games.
    """
    rng = random.Random(f"{seed}/environment")
    left = Counter(counts)
    seen: set[str] = set()
    documents = []

    def take(candidates: Iterator[Candidate], common: str) -> None:
        for board, move in candidates:
            kind = class_of(board, move)
            kind = common if kind == "ongoing" else kind
            if left[kind] > 0:
                text = a_document(board, move)
                if text not in seen:
                    seen.add(text)
                    left[kind] -= 1
                    documents.append((text, kind, positions.position_key(board)))

    while left["opening"] > 0:
        take(opening_moves(rng, 10), "opening")
    share = 0.7 * counts["ongoing"] / max(1, sum(map(len, games)))
    for game in games:
        take(game_moves(game, rng, share), "ongoing")
    while any(left[kind] > 0 for kind in ("mate", "draw", "promotion")):
        take(endgame_moves(rng), "endgame")
    while any(left[kind] > 0 for kind in ("ongoing", "castling", "en_passant", "failed")):
        take(game_moves(positions.random_game(rng, rng.randint(10, 120)).move_stack, rng, 0.3), "ongoing")
    return documents
