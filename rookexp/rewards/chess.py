"""Rewards of P completions, judged by the engine lines that come with the position; no engine runs here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import chess
import torch
from annotated_types import Ge
from torch import Tensor

from rookexp.chess_text import (
    Annotation,
    PolicyAnswer,
    board_of,
    legal_ucis,
    p_answer,
    p_fields,
    parse_p,
    pawns_to_cp,
    win_probability,
)
from rookexp.errors import DataError, PartError
from rookexp.rewards.rows import Row, completions_each, scored
from rookexp.types import Prompt, Scores, Stages

BEST_MISSING, BEST_ILLEGAL, BEST_UNRANKED, RANK_STEP = -0.5, -1.0, 0.1, 0.2
NO_CANDIDATES, ILLEGAL_CANDIDATE = -0.3, 0.3
NO_EVALS, EVALS_COUNT, EVALS_ILLEGAL_MOVE, EVALS_FLOOR = -0.2, -0.4, -0.5, -1.0
SIGN_ERROR, SIGN_MATTERS_CP = 0.4, 20
WIN_PROBABILITY_UNIT = 0.1  # an evaluation this far off in win probability is worth nothing; 1.1 pawns at equality

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True, slots=True)
class Asked:
    """The position that a P prompt asks about, and what is known of it."""

    truth: Annotation
    legal: frozenset[str]  # the position's legal moves
    turn: chess.Color


class PJudged:
    """The base class of rewards of P completions; `worth` scores each completion by itself."""

    def worth(self, answer: PolicyAnswer, asked: Asked) -> Row:
        """The `reward` of a completion, and its components by name."""
        raise NotImplementedError

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Rewards (N,) of N = P x G completions of P prompts, row p*G+g for prompt p; each depends on its row alone.

        A completion is parsed by `chess_text.p_answer`. Parts (N,): the components; `format_valid` 1 where it is well
        formed; `best_legal` 1 where B is legal; `moves_legal` share of legal moves in the list, 0 for an empty one;
        `best_is_engine` 1 where B is the first move of the annotation; `argmax_is_engine` the same for the listed move
        with the highest evaluation, where it is well formed, split among equals; both NaN without an annotation. These
        two and `reward` come also with `_white` and `_black` behind, NaN where the other side is to move. What is
        missing counts as 0.
        Raises: DataError for a prompt that is not a P prompt of a legal position.
        """
        return scored(prompts, texts, self._reader)

    def _reader(self, prompt: Prompt) -> Callable[[str], Row]:
        truth = prompt.answer
        board = board_of(truth.fen) if isinstance(truth, Annotation) else None
        if board is None or parse_p(prompt.text) is None:
            raise not_p(prompt)
        asked = Asked(truth, legal_ucis(board), board.turn)

        def row(text: str) -> Row:
            answer = p_answer(prompt.text, text)
            return _with_diagnostics(self.worth(answer, asked), answer, asked)

        return row


class PolicyReward(PJudged):
    """clamp(best * b + candidates * c + evals * e, -1, 1) of the components b, c and e below; any text has a value.

    The engine's best move with the annotated moves and evaluations, in any order, earns the sum of the weights; an
    empty completion earns -0.5 best - 0.3 candidates - 0.2 evals. Every Prompt's answer is an Annotation. As stages,
    the text before `E:` earns the candidates, then that before `B:` the evaluations, and the rest the best move.
    Source: the engine reward of the RookWorld TRL project, without its order bonus and with bounded mates.
    """

    staged = True

    def __init__(
        self, *, best: Annotated[float, Ge(0)], candidates: Annotated[float, Ge(0)], evals: Annotated[float, Ge(0)]
    ) -> None:
        if not 0 < best + candidates + evals <= 1 + 1e-9:
            weights = f"best, candidates, evals={best:g}, {candidates:g}, {evals:g}"
            raise PartError(f"{weights}: allowed: a sum above 0 and at most 1, where the reward is cut off")
        self.best = best
        self.candidates = candidates
        self.evals = evals

    def worth(self, answer: PolicyAnswer, asked: Asked) -> Row:
        """`reward` in [-1, 1], and the components `best`, `candidates`, `evals`."""
        known_evals(asked.truth)  # raises without an analysis, even if there is nothing to compare
        best = best_component(answer, asked.truth, asked.legal)
        candidates = candidates_component(answer, asked.truth, asked.legal)
        evals = evals_component(answer, asked.truth, asked.legal)
        total = self.total(best, candidates, evals)
        return {"reward": max(-1.0, min(1.0, total)), "best": best, "candidates": candidates, "evals": evals}

    def total(self, best: Number, candidates: Number, evals: Number) -> Number:
        """The weighted sum of the components."""
        return self.best * best + self.candidates * candidates + self.evals * evals

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """As `PJudged.score`, with the stages of each completion."""
        scores = super().score(prompts, texts)
        return replace(scores, stages=self.stages(prompts, texts, scores.parts))

    def stages(self, prompts: Sequence[Prompt], texts: Sequence[str], parts: Mapping[str, Tensor]) -> Stages:
        """The stages in which completions of P prompts earn the components `parts`; a missing field has no text."""
        group = completions_each(prompts, texts)
        ends = [_ends(prompts[row // group].text, text) for row, text in enumerate(texts)]
        earned = (self.candidates * parts["candidates"], self.evals * parts["evals"], self.best * parts["best"])
        return Stages(torch.tensor(ends), torch.stack(earned, 1))


def _ends(prompt: str, text: str) -> tuple[int, ...]:
    """Where the listed moves, the evaluations and the best move end, in characters of `text`; 0: in the prompt."""
    starts, end = p_fields(prompt + text), len(prompt + text)
    best = starts.get("B", end)
    return tuple(max(0, mark - len(prompt)) for mark in (starts.get("E", best), best, end))


def not_p(prompt: Prompt) -> DataError:
    """The error for a prompt that is not a P prompt."""
    return DataError(f"not a P prompt of a position: {prompt.text!r}; reward=rookworld has a reward for each task")


def _with_diagnostics(judged: Row, answer: PolicyAnswer, asked: Asked) -> Row:
    row = {
        **judged,
        "format_valid": float(answer.well_formed),
        "best_legal": float(answer.best in asked.legal),
        "moves_legal": sum(answer.legality(asked.legal)) / max(1, len(answer.moves)),
        "best_is_engine": math.nan,  # where the position has no analysis
        "argmax_is_engine": math.nan,
    }
    if asked.truth.moves:
        row["best_is_engine"] = float(answer.best == asked.truth.moves[0])
        row["argmax_is_engine"] = _argmax_share(answer, asked.truth.moves[0])
    for name in ("reward", "best_is_engine", "argmax_is_engine"):
        row[f"{name}_white"] = row[name] if asked.turn == chess.WHITE else math.nan
        row[f"{name}_black"] = row[name] if asked.turn == chess.BLACK else math.nan
    return row


def best_component(answer: PolicyAnswer, truth: Annotation, legal: frozenset[str]) -> float:
    """The worth of B: 1.0 - 0.2 i for engine rank i, 0.1 for another legal move, -0.5 missing, -1.0 illegal or no move.

    The rank is the number of lines with a higher evaluation, so equally good moves are worth the same. The label of
    the published data for Black, the last of five different lines, is worth 0.2.
    """
    if answer.best is None:
        return BEST_MISSING
    if answer.best not in legal:
        return BEST_ILLEGAL
    known = known_evals(truth)
    if answer.best not in known:
        return BEST_UNRANKED
    return 1.0 - RANK_STEP * sum(value > known[answer.best] for value in known.values())


def candidates_component(answer: PolicyAnswer, truth: Annotation, legal: frozenset[str]) -> float:
    """Jaccard index of the legal listed moves and the engine's lines, minus 0.3 per illegal word, in [-1, 1].

    -0.3 where nothing is listed. A repeated move counts once; order carries no information and earns nothing.
    """
    if not answer.moves:
        return NO_CANDIDATES
    listed, engine = set(answer.moves) & legal, set(truth.moves)
    illegal = len(answer.moves) - sum(answer.legality(legal))
    return max(-1.0, len(listed & engine) / len(listed | engine) - ILLEGAL_CANDIDATE * illegal)


def evals_component(answer: PolicyAnswer, truth: Annotation, legal: frozenset[str]) -> float:
    """Closeness of the listed evaluations to the engine's, each matched by its move, in [-1, 1].

    1 - mean distance, minus 0.4 for each wrong sign where the engine sees more than 0.2 pawns. A distance is the
    difference in win probability over 0.1, at most 1: exact is 0, and a mate on either side stays bounded. The
    value of a legal move outside the engine's lines is unknown: such moves are left out, and without others the
    component is 0. -0.2 without evaluations, -0.4 where they are not one number per move, -0.5 with an illegal move.
    """
    if not answer.evals:
        return NO_EVALS
    listed = answer.pairs()
    if listed is None:
        return EVALS_COUNT
    if not all(answer.legality(legal)):
        return EVALS_ILLEGAL_MOVE
    known = known_evals(truth)
    values = [(pawns_to_cp(pawns), known[move]) for move, pawns in listed if move in known]
    if not values:
        return 0.0
    mean = math.fsum(eval_distance(given, true) for given, true in values) / len(values)
    wrong_signs = sum(given * true < 0 and abs(true) > SIGN_MATTERS_CP for given, true in values)
    return max(EVALS_FLOOR, 1.0 - mean - SIGN_ERROR * wrong_signs)


def eval_distance(given_cp: int, true_cp: int) -> float:
    """Distance in [0, 1] of two evaluations for the same side; 0 for equal ones and for mates of one side."""
    return min(1.0, abs(win_probability(given_cp) - win_probability(true_cp)) / WIN_PROBABILITY_UNIT)


def known_evals(truth: Annotation) -> dict[str, int]:
    """The evaluation in centipawns of each of the engine's lines, by its move.

    Raises: DataError for a position without an analysis.
    """
    if not truth.moves:
        raise DataError(
            f"{truth.fen}: no analysis of it (moves, evals_cp), which this reward compares with; reward=engine asks "
            "Stockfish for one, reward=self_consistency needs none"
        )
    return dict(zip(truth.moves, truth.evals_cp, strict=True))


def _argmax_share(answer: PolicyAnswer, engine_best: str) -> float:
    """Probability that a random one of the moves listed with the highest evaluation is the engine's; 0 without any."""
    pairs = answer.pairs() if answer.well_formed else None
    if not pairs:
        return 0.0
    highest = max(value for _, value in pairs)
    top = [move for move, value in pairs if value == highest]
    return top.count(engine_best) / len(top)
