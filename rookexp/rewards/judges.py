"""Judges score the best move, the listed moves and the evaluations of a P answer, each in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Literal, Protocol

import chess

from rookexp.chess_text import PolicyAnswer, pawns_to_cp
from rookexp.rewards.chess import Asked, known_evals

WITHIN_LINES = (1.0, 0.7, 0.7, 0.5, 0.5)  # worth of B by the number of better lines
LEGAL, LEGAL_LISTED, ANY_EVALS = 0.2, 0.3, 0.1  # worth by the rules of chess alone
PAWN_LIMIT = 10.0  # mates and larger evaluations count as this many pawns
SQUARED_UNIT = 100.0  # a mean squared error of this many pawns^2 is worth nothing


class Judge(Protocol):
    """Scores the parts of a well-formed P answer; 1 is the best that the judge knows of."""

    def best(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Worth of the best move."""

    def candidates(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Worth of the listed moves."""

    def evals(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Worth of the evaluations."""


class Lines:
    """Judges by the annotated lines: B is worth 1.0 if first, 0.7 in three, 0.5 in five, 0.2 if only legal, else 0.

    Candidates: share of the listed moves that are lines, a repeated one counted once. Evals: mean of
    max(0, 1 - |given - true| / (|true| + 1)) in pawns.
    Source: the engine branch of RLVR's mini scorer. Repaired: the original raised and paid 0, and compared
    evaluations by place.
    """

    def best(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Equally good lines are worth the same."""
        known = known_evals(asked.truth)
        if answer.best not in known:
            return LEGAL if answer.best in asked.legal else 0.0
        return WITHIN_LINES[sum(value > known[answer.best] for value in known.values())]

    def candidates(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Order does not matter."""
        return listed_share(answer, asked.truth.moves)

    def evals(self, answer: PolicyAnswer, asked: Asked) -> float:
        """0 where no listed move is an annotated line."""
        return mean_over_lines(answer, asked, lambda given, true: max(0.0, 1.0 - abs(given - true) / (abs(true) + 1.0)))


class Label:
    """Judges by the row of a data set: B is worth 1 for the move labelled best, else 0.

    The label is the annotated move with the highest evaluation, any one of equals; under `legacy` Black's is the
    lowest, as in the published data, which teaches Black to play its worst line. Candidates: share of the listed moves
    that the row lists, a repeated one counted once. Evals: 1 - mean squared error in pawns^2 / 100, at least 0.
    Source: the data set branch of RLVR's mini scorer. Repaired: the original compared evaluations by place.
    """

    def __init__(self, *, black_best: Literal["corrected", "legacy"]) -> None:
        self.of_black = {"corrected": max, "legacy": min}[black_best]

    def best(self, answer: PolicyAnswer, asked: Asked) -> float:
        """1 or 0."""
        known = known_evals(asked.truth)
        label = (self.of_black if asked.turn == chess.BLACK else max)(known.values())
        return float(answer.best in known and known[answer.best] == label)

    def candidates(self, answer: PolicyAnswer, asked: Asked) -> float:
        """Order does not matter."""
        return listed_share(answer, asked.truth.moves)

    def evals(self, answer: PolicyAnswer, asked: Asked) -> float:
        """0 where no listed move is in the row."""
        return max(0.0, mean_over_lines(answer, asked, lambda given, true: 1.0 - (given - true) ** 2 / SQUARED_UNIT))


class Rules:
    """Judges by the rules of chess: B is worth 0.2 if legal, candidates 0.3 times their legal share, any evals 0.1.

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
    """Mean of worth(given, true), in pawns, over the listed moves that are annotated lines; 0 without any.

    An evaluation is matched by its move, never by its place. The true evaluation of other moves is unknown: they are
    left out. Both values are clamped to +-10 pawns, so that all mates of one side are equal.
    """
    known = known_evals(asked.truth)
    values = [worth(pawns(pawns_to_cp(given)), pawns(known[m])) for m, given in answer.pairs() or [] if m in known]
    return math.fsum(values) / max(1, len(values))


def pawns(eval_cp: int) -> float:
    """Centipawns as pawns, clamped to +-10."""
    return max(-PAWN_LIMIT, min(PAWN_LIMIT, eval_cp / 100))
