"""What the move, the list and the evaluations of a P answer are held against, each worth something in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Literal, Protocol

import chess

from rookexp.chess_text import PolicyAnswer, pawns_to_cp
from rookexp.rewards.chess import Asked, known_evals

WITHIN_LINES = (1.0, 0.7, 0.7, 0.5, 0.5)  # worth of B by the number of better lines
LEGAL, LEGAL_LISTED, ANY_EVALS = 0.2, 0.3, 0.1  # what mere rules pay
PAWN_LIMIT = 10.0  # a mate, and whatever is clearer than this, counts as so many pawns
SQUARED_UNIT = 100.0  # a mean squared error of so many pawns^2 is worth nothing


class Judge(Protocol):
    """Says what the parts of a well-formed P answer are worth; 1 where nothing better is known."""

    def best(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Worth of the best move."""

    def candidates(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Worth of the listed moves."""

    def evals(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Worth of the evaluations."""


class Lines:
    """The annotated lines, by rank: B 1.0 first, 0.7 among three, 0.5 among five, 0.2 another legal move, else 0.

    Candidates: share of the listed moves that are lines, a repeated one counted once. Evals: mean of
    max(0, 1 - |given - true| / (|true| + 1)) in pawns.
    Source: the engine branch of RLVR's mini scorer. Repaired: it raised and paid 0, and compared evaluations by place.
    """

    def best(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Equally good lines are worth the same."""
        known = known_evals(asked.truth)
        if answer.best not in known:
            return LEGAL if answer.best in asked.legal else 0.0
        return WITHIN_LINES[sum(value > known[answer.best] for value in known.values())]

    def candidates(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Order is nothing."""
        return listed_share(answer, asked.truth.moves)

    def evals(self, answer: PolicyAnswer, asked: Asked) -> float:
        """0 where no listed move is a line."""
        return mean_over_lines(answer, asked, lambda given, true: max(0.0, 1.0 - abs(given - true) / (abs(true) + 1.0)))


class Label:
    """The row of a data set: B 1 for the move that is labelled best, else 0.

    The label is the annotated move with the highest evaluation, of equals any; under `legacy` Black's is the lowest,
    as the published data have it, which teaches Black to play its worst line. Candidates: share of the listed moves
    that the row lists, a repeated one counted once. Evals: 1 - mean squared error in pawns^2 / 100, at least 0.
    Source: the data set branch of RLVR's mini scorer. Repaired: it compared evaluations by place.
    """

    def __init__(self, *, black_best: Literal["corrected", "legacy"]) -> None:
        self.of_black = {"corrected": max, "legacy": min}[black_best]

    def best(self, answer: PolicyAnswer, asked: Asked) -> float:
        """1 or 0."""
        known = known_evals(asked.truth)
        label = (self.of_black if asked.turn == chess.BLACK else max)(known.values())
        return float(answer.best in known and known[answer.best] == label)

    def candidates(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Order is nothing."""
        return listed_share(answer, asked.truth.moves)

    def evals(self, answer: PolicyAnswer, asked: Asked) -> float:
        """0 where no listed move is in the row."""
        return max(0.0, mean_over_lines(answer, asked, lambda given, true: 1.0 - (given - true) ** 2 / SQUARED_UNIT))


class Rules:
    """The rules of chess alone: B 0.2 if legal, candidates 0.3 times their legal share, any evaluations 0.1.

    Whatever is legal and well formed earns the same, so this teaches the form and no chess.
    Source: RLVR's mini scorer without engine and labels, as it ran.
    """

    def best(self, answer: PolicyAnswer, asked: Asked) -> float:
        """0.2 or 0."""
        return LEGAL * (answer.best in asked.legal)

    def candidates(self, answer: PolicyAnswer, asked: Asked) -> float:
        """At most 0.3."""
        return LEGAL_LISTED * listed_share(answer, asked.legal)

    def evals(self, answer: PolicyAnswer, asked: Asked) -> float:
        """0.1, as a well-formed answer has evaluations."""
        return ANY_EVALS


def listed_share(answer: PolicyAnswer, among: Collection[str]) -> float:
    """Distinct listed moves that are in `among` / listed moves; 0 where nothing is listed."""
    return len(set(answer.moves) & set(among)) / max(1, len(answer.moves))


def mean_over_lines(answer: PolicyAnswer, asked: Asked, worth: Callable[[float, float], float]) -> float:
    """Mean of worth(given, true) over the listed moves that are lines, in pawns; 0 without any.

    An evaluation is matched by its move, never by its place. The true one of other moves is not known: they are left
    out. Both are held within +-10 pawns, so that all mates of one side are the same.
    """
    known = known_evals(asked.truth)
    values = [worth(pawns(pawns_to_cp(given)), pawns(known[m])) for m, given in answer.pairs() or [] if m in known]
    return math.fsum(values) / max(1, len(values))


def pawns(eval_cp: int) -> float:
    """Centipawns as pawns within +-10."""
    return max(-PAWN_LIMIT, min(PAWN_LIMIT, eval_cp / 100))
