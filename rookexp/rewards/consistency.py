"""A reward for P answers that play the move that their own evaluations call best."""

from __future__ import annotations

from rookexp.chess_text import MAX_LINES, PolicyAnswer
from rookexp.rewards.chess import Asked, PJudged
from rookexp.rewards.rows import Row


class SelfConsistency(PJudged):
    """best x candidates, in [0, 1]: the best move by the answer's own evaluations, out of a full list of legal moves.

    best: 1 - (listed evaluations above that of B) / listed moves; 0 unless B is legal and listed with an evaluation
    in a well-formed answer without a repeated move. candidates: distinct legal moves listed / the most that could be,
    five or all there are, or / listed moves where these are more. Neither engine nor annotation is used, only the rules
    of chess: the quality of the evaluations is not judged, and equal ones would do.
    """

    def worth(self, answer: PolicyAnswer, asked: Asked) -> Row:
        """`reward`, and its factors `best` and `candidates`."""
        clear = answer.well_formed and not answer.duplicates and answer.best in asked.legal
        rank = answer.best_rank() if clear else None
        best = 0.0 if rank is None else 1.0 - rank / len(answer.moves)
        possible = max(min(MAX_LINES, len(asked.legal)), len(answer.moves), 1)
        candidates = len(set(answer.moves) & asked.legal) / possible
        return {"reward": best * candidates, "best": best, "candidates": candidates}
