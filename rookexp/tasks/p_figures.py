"""Figures of P answers: by side to move, and under both readings of an answer, B and the highest-valued listed move."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence

import chess

from rookexp import chess_text
from rookexp.errors import DataError
from rookexp.tasks.figures import Figures, Tally, by_side

SIDES = {chess.WHITE: "White", chess.BLACK: "Black"}


def policy_figures(
    documents: Sequence[str],
    completions: Iterable[str],
    prompts: Sequence[str],
    values: Sequence[Mapping[str, int]] | None,
) -> Figures:
    """Figures of P answers against gold documents: over all, then with White to move, then with Black.

    A document's lines are the engine's; its best move is any of them with the highest evaluation, and the move after
    `B:` is only the label. Rates are over all documents unless the name says otherwise: an unreadable answer is a
    miss, and so is one to another position. Nothing follows B in a valid format. A word in the list that is not a move
    counts as an illegal one. Where an answer gives several listed moves the same highest value, the first of them is
    taken: the order carries no information, so that is a fair draw.
    `highest-valued` and `lowest-valued` of B count every well-formed answer whose values are not all equal; any one of
    equals is right, and B listed twice with different values is neither.

    A win-probability loss is the best move's win probability minus the chosen one's, in [0, 1], lower is better; the
    best listed move is what a reader who knows the truth would choose from the list. The error of listed values is an
    answer's mean distance from the truth in win probability, mates included, and its median distance in centipawns,
    where a mate is near 100 000. Among pairs in the true order, two equal values count half. All this is computed for
    moves `if among the engine's`, whose rate is given too, and with `values`, the evaluation of every legal move in
    centipawns, also for all legal moves, `by Stockfish`, together with how often a move is its best one or among its
    best five, equals included: the lines of a document may come from a shorter search.
    Raises: DataError for a document that is no P document.
    """
    whole, sides = Tally(), {name: Tally() for name in SIDES.values()}
    known = [None] * len(documents) if values is None else values
    for document, completion, prompt, value in zip(documents, completions, prompts, known, strict=True):
        gold, lines, board = _read(document)
        answer = chess_text.p_answer(prompt, completion)
        truths = {"if among the engine's": {move: chess_text.pawns_to_cp(pawns) for move, pawns in lines.items()}}
        if value is not None:
            truths["by Stockfish"] = dict(value)
        for tally in (whole, sides[SIDES[board.turn]]):
            _add_policy(tally, gold, lines, answer, chess_text.legal_ucis(board))
            if value:
                _add_ranks(tally, answer, value)
            for where, truth in truths.items():
                _add_values(tally, answer, truth, where)
    return whole.figures() | by_side(sides)


def best_moves(document: str) -> list[str]:
    """The engine's moves with the highest evaluation in a P document.

    Raises: DataError where it is not a P document.
    """
    _, lines, _ = _read(document)
    return [move for move, value in lines.items() if value == max(lines.values())]


def highest_valued(answer: chess_text.PolicyAnswer) -> str | None:
    """The listed move that an answer values highest, the first of equals; None unless it is well formed."""
    pairs = answer.pairs() if answer.well_formed else None
    return max(pairs, key=lambda pair: pair[1])[0] if pairs else None


def _read(document: str) -> tuple[chess_text.PolicyAnswer, dict[str, float], chess.Board]:
    """A parsed P document, the engine's moves in it with their evaluations in pawns, and the position."""
    gold = chess_text.parse_p(document)
    whole = gold is not None and len(gold.fen.split()) == chess_text.FEN_FIELDS
    board = chess_text.board_of(gold.fen) if gold is not None and whole else None
    lines = None if gold is None or not gold.well_formed else gold.pairs()
    if gold is None or board is None or lines is None:
        raise DataError(f"not a P document: {document!r}")
    if not chess.Board(board.fen()).is_valid():  # fen() drops void castling rights
        raise DataError(f"not a P document, as no game has its position: {document!r}")
    if not all(gold.legality(chess_text.legal_ucis(board))):
        raise DataError(f"not a P document, as not all its moves are legal: {document!r}")
    return gold, dict(lines), board


def _add_policy(
    tally: Tally,
    gold: chess_text.PolicyAnswer,
    lines: dict[str, float],
    answer: chess_text.PolicyAnswer,
    legal: frozenset[str],
) -> None:
    """Adds one answer to the tally; `lines` are the engine's moves with their evaluations in pawns."""
    best = {move for move, value in lines.items() if value == max(lines.values())}
    pairs = answer.pairs() if answer.well_formed else None
    highest = highest_valued(answer)
    tally.add("format valid", answer.well_formed and not answer.trailing_garbage)
    tally.add("B legal", answer.best in legal)
    tally.add("the highest-valued listed move legal", highest in legal)
    tally.add_bunch("listed moves legal", sum(answer.legality(legal)), len(answer.moves))
    tally.add("listed moves all different", 0 < len(answer.moves) == len(set(answer.moves)))
    tally.add_bunch("the engine's moves listed", len(lines.keys() & set(answer.moves)), len(lines))
    tally.add("the engine's best move listed", bool(best & set(answer.moves)))
    tally.add("B is the label", answer.best == gold.best)
    tally.add("B is the engine's move", answer.best in best)
    tally.add("the highest-valued listed move is the engine's", highest in best)
    tally.measure("a random legal move is the engine's", len(best) / len(legal))
    if pairs and len(values := [value for _, value in pairs]) > 1 and min(values) < max(values):
        own = {value for move, value in pairs if move == answer.best}
        tally.add("B is the highest-valued listed move", own == {max(values)})
        tally.add("B is the lowest-valued listed move", own == {min(values)})
    tally.add("B is among the engine's", answer.best in lines)
    tally.add("the highest-valued listed move is among the engine's", highest in lines)


def _add_ranks(tally: Tally, answer: chess_text.PolicyAnswer, value: Mapping[str, int]) -> None:
    """Adds where an answer's moves stand among all legal moves, by their values in centipawns."""
    best, fifth = max(value.values()), sorted(value.values(), reverse=True)[: chess_text.MAX_LINES][-1]
    for name, move in (("B", answer.best), ("the highest-valued listed move", highest_valued(answer))):
        own = None if move is None else value.get(move)
        tally.add(f"{name} is the best move, by Stockfish", own is not None and own == best)
        tally.add(f"{name} is among the best {chess_text.MAX_LINES}, by Stockfish", own is not None and own >= fifth)


def _add_values(tally: Tally, answer: chess_text.PolicyAnswer, truth: Mapping[str, int], where: str) -> None:
    """Adds one answer's moves and values to the tally, for moves with a true evaluation, in centipawns, in `truth`."""
    win = {move: chess_text.win_probability(value) for move, value in truth.items()}
    best_listed = max((move for move in answer.moves if move in win), key=win.__getitem__, default=None)
    for name, move in (
        ("B", answer.best),
        ("the highest-valued listed move", highest_valued(answer)),
        ("the best listed move", best_listed),
    ):
        if move is not None and move in win:
            tally.measure(f"win-probability loss of {name}, {where}", max(win.values()) - win[move])
    pairs = [(move, chess_text.pawns_to_cp(value)) for move, value in answer.pairs() or () if move in truth]
    if not pairs:
        return
    errors = [abs(chess_text.win_probability(said) - win[move]) for move, said in pairs]
    tally.measure(f"win-probability error of listed values, {where}", sum(errors) / len(errors))
    distances = [abs(said - truth[move]) for move, said in pairs]
    tally.rank(f"centipawn error of listed values, {where}", statistics.median(distances))
    ordered = [
        0.5 if said == other else float((said > other) == (truth[move] > truth[beside]))
        for (move, said), (beside, other) in itertools.combinations(pairs, 2)
        if truth[move] != truth[beside]
    ]
    if ordered:
        tally.measure(f"pairs of listed values in the true order, {where}", sum(ordered) / len(ordered))
