"""RLVR full's rewards: sums of what is right in an answer, and a ladder of five rungs."""

from __future__ import annotations

import math
from difflib import SequenceMatcher
from typing import Annotated

from annotated_types import Le

from rookexp.chess_text import MOVE, PolicyAnswer, Transition
from rookexp.rewards.chess import Asked, PJudged, known_evals
from rookexp.rewards.environment import AJudged, Given
from rookexp.rewards.judges import listed_share, mean_over_lines
from rookexp.rewards.rows import Row
from rookexp.rewards.weighted import DIGITS, flags_right, value_error

Penalty = Annotated[float, Le(0)]
FORMED, COMPLETE, CANDIDATES, EVALS, BEST = 0.2, 0.1, 0.5, 0.2, 1.0
STATE_FORMED, FEN, FEN_SIMILAR, VALUE, FLAGS = 0.1, 1.0, 0.5, 0.3, 0.1
LEAST_SIMILAR, VALUE_ERROR = 0.5, 0.01
NOTHING = -0.1
MOST_MOVES, LEAST_MOVES = 6, 2
CONTENT = (0.3, 0.7)  # what the content must exceed for the two highest rungs


class AdditivePolicy(PJudged):
    """0.2 form + 0.1 completeness + 0.5 candidates + 0.2 evals + 1.0 best move, at most 2; `malformed` without form.

    Form is 1 to 5 moves, as many evaluations and a best move, all spelled as such; where only the number of moves or
    evaluations is wrong, the reward is `miscounted`. Completeness: as many moves as there are annotated
    lines. Candidates: share of the listed moves that are lines, a repeated one counted once. Evaluations: mean of
    max(0, 1 - error in pawns). Best: whether B is as good as the first line. Every Prompt's answer is an Annotation.
    Source: RLVR full's additive reward. Repaired: evaluations are matched by move, not by place, and are worth 0 from
    an error of one pawn, not of a hundred as in the original; the best move is the best one for Black too.
    """

    def __init__(self, *, malformed: Penalty, miscounted: Penalty) -> None:
        self.malformed = malformed
        self.miscounted = miscounted

    def worth(self, answer: PolicyAnswer, asked: Asked) -> Row:
        """`reward`, and the components `best`, `candidates`, `evals`, each in [0, 1]."""
        best = float(is_best(answer, asked))
        candidates = listed_share(answer, asked.truth.moves)
        evals = mean_over_lines(answer, asked, lambda given, true: max(0.0, 1.0 - abs(given - true)))
        complete = len(answer.moves) == len(asked.truth.moves)
        if answer.well_formed:
            reward = math.fsum((FORMED, COMPLETE * complete, CANDIDATES * candidates, EVALS * evals, BEST * best))
        else:
            spelled = (
                all(MOVE.fullmatch(word) for word in (*answer.moves, answer.best or "")) and None not in answer.evals
            )
            whole = answer.moves and answer.evals and spelled
            reward = self.miscounted if whole else self.malformed
        return {"reward": reward, "best": best, "candidates": candidates, "evals": evals}


class GraduatedPolicy(PJudged):
    """0.2 for each rung below the first that is missed, -0.1 for none: -0.1, 0.2, 0.4, 0.6, 0.8 or 1.0.

    The rungs: a move after `M:` or `B:`; moves and evaluations; two to six of each, fewer where fewer lines are
    annotated; content above 0.3; content above 0.7. Content is the mean of the share of listed moves that are lines, a
    repeated one counted once, of whether B is as good as the first line, and of the share of listed lines whose
    evaluation is within a pawn. Every Prompt's answer is an Annotation.
    Source: RLVR full's graduated reward. Repaired: evaluations are matched by move, not by place; all listed moves
    count and not the first five; the best move is the best one for Black too.
    """

    def worth(self, answer: PolicyAnswer, asked: Asked) -> Row:
        """`reward`, and the three components of the content: `best`, `candidates`, `evals`."""
        best = float(is_best(answer, asked))
        candidates = listed_share(answer, asked.truth.moves)
        evals = mean_over_lines(answer, asked, lambda given, true: float(abs(given - true) <= 1.0))
        content = round(math.fsum((best, candidates, evals)) / 3, DIGITS)
        moves = [word for word in answer.moves if MOVE.fullmatch(word)]
        numbers = [value for value in answer.evals if value is not None]
        least = min(LEAST_MOVES, len(asked.truth.moves))
        rungs = (
            bool(moves) or (answer.best is not None and MOVE.fullmatch(answer.best) is not None),
            bool(moves and numbers),
            all(least <= len(found) <= MOST_MOVES for found in (moves, numbers)),
            *(content > least_content for least_content in CONTENT),
        )
        climbed = [*rungs, False].index(False)
        reward = climbed / len(rungs) if climbed else NOTHING
        return {"reward": reward, "best": best, "candidates": candidates, "evals": evals}


class AdditiveEnvironment(AJudged):
    """0.1 form + position + 0.3 reward value + 0.1 flags, at most 1.5; `malformed` without form.

    Position: 1.0 where it is right, else 0.5 times difflib's ratio where that is at least 0.5. Value: whether its
    error is below 0.01. Flags: the share that is right. Every Prompt's answer is a Transition.
    Source: RLVR full's A reward. Repaired: the end of a game has the value and the flags of the data.
    """

    def __init__(self, *, malformed: Penalty) -> None:
        self.malformed = malformed

    def worth(self, given: Given, truth: Transition) -> Row:
        """`reward`, and the components `fen`, `value`, `flags`, each in [0, 1]."""
        ratio = SequenceMatcher(None, given.answer.new_fen, truth.new_fen, autojunk=False).ratio()
        fen = 1.0 if given.fen.strict else FEN_SIMILAR * ratio * (ratio >= LEAST_SIMILAR)
        value, flags = float(value_error(given, truth) < VALUE_ERROR), flags_right(given, truth)
        total = math.fsum((STATE_FORMED, FEN * fen, VALUE * value, FLAGS * flags))
        return {"reward": total if given.formed else self.malformed, "fen": fen, "value": value, "flags": flags}


def is_best(answer: PolicyAnswer, asked: Asked) -> bool:
    """Whether B is an annotated line as good as the first."""
    known = known_evals(asked.truth)
    return answer.best in known and known[answer.best] == max(known.values())
