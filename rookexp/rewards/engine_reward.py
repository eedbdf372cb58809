"""The reward of P completions judged by a running engine: any legal position, any listed move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import chess
import torch
from annotated_types import Ge

from rookexp.chess_text import MAX_LINES, Annotation, PolicyAnswer, board_of, legal_ucis, p_answer, p_completion
from rookexp.rewards.chess import PolicyReward, evals_component, not_p
from rookexp.rewards.engine_cache import position_of
from rookexp.rewards.engine_pool import EnginePool, Question
from rookexp.types import Prompt, Scores


class EngineReward:
    """`PolicyReward` with the lines of a running engine, which also knows the value of listed moves outside them.

    Of a Prompt's answer, an Annotation, only the position is read. The value of a listed move outside the lines comes
    from a search with the same limit that allows no other first move: one search per move, so that no value depends
    on what else is listed; from the same position, so that it is measured as the lines are, mates and draws included.
    Of more than five different listed moves the alphabetically first five are judged: order does not matter.
    Source: the engine reward of the RookWorld TRL project, without its order bonus and with bounded mates.
    """

    staged = True

    def __init__(
        self,
        *,
        best: Annotated[float, Ge(0)],
        candidates: Annotated[float, Ge(0)],
        evals: Annotated[float, Ge(0)],
        engine: EnginePool,
    ) -> None:
        self.policy = PolicyReward(best=best, candidates=candidates, evals=evals)
        self.engine = engine

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Starts to analyse a step's positions, in the background while completions are sampled; returns at once.

        Raises: DataError for a prompt without a legal position.
        """
        self.engine.begin([Question.lines_of(_board(prompt)) for prompt in prompts])

    def metrics(self) -> dict[str, float]:
        """What the engines did since `prepare`: see `EnginePool.metrics`."""
        return self.engine.metrics()

    def gold(self, prompt: Prompt) -> str:
        """A completion that earns the sum of the weights: the engine's lines, best first, and its move."""
        (truth,) = self._truths([prompt])
        return p_completion(prompt.text, truth, truth.moves[0])

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Rewards (N,) in [-1, 1] of N = P x G completions, row p*G+g for prompt p, with the parts of `PolicyReward`.

        Raises: DataError for a prompt that is not a P prompt of a legal position; EngineError.
        """
        truths = self._truths(prompts)
        known = [replace(prompt, answer=truth) for prompt, truth in zip(prompts, truths, strict=True)]
        scores = self.policy.score(known, texts)
        parts = dict(scores.parts) | {"evals": torch.tensor(self._evals(known, texts))}
        rewards = self.policy.total(parts["best"], parts["candidates"], parts["evals"]).clamp(-1.0, 1.0)
        for name in ("reward_white", "reward_black"):
            parts[name] = torch.where(parts[name].isnan(), parts[name], rewards)
        return Scores(rewards, parts, self.policy.stages(prompts, texts, parts))

    def _truths(self, prompts: Sequence[Prompt]) -> list[Annotation]:
        """The engine's lines of each prompt's position."""
        found = self.engine.analyse([Question.lines_of(_board(prompt)) for prompt in prompts])
        return [
            Annotation(prompt.answer.fen, tuple(str(line.move) for line in lines), tuple(x.eval_cp for x in lines))
            for prompt, lines in zip(prompts, found, strict=True)
        ]

    def _evals(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """The component `evals` of each completion; all moves whose value is unknown are searched as one batch."""
        group = len(texts) // len(prompts)
        rows: list[tuple[PolicyAnswer, frozenset[str], list[Question]]] = []
        values: dict[Question, int] = {}
        for p, prompt in enumerate(prompts):
            board = _board(prompt)
            legal, position = legal_ucis(board), position_of(board)
            known = zip(prompt.answer.moves, prompt.answer.evals_cp, strict=True)
            values |= {Question(position, move): value for move, value in known}
            for text in texts[p * group : (p + 1) * group]:
                answer = p_answer(prompt.text, text)
                rows.append((answer, legal, [Question(position, move) for move in _judged(answer, legal)]))
        new = list(dict.fromkeys(question for _, _, listed in rows for question in listed if question not in values))
        values |= {question: lines[0].eval_cp for question, lines in zip(new, self.engine.analyse(new), strict=True)}
        found = []
        for answer, legal, listed in rows:
            ranked = sorted(listed, key=lambda question: -values[question])
            truth = Annotation(answer.fen, tuple(x.move for x in ranked), tuple(values[x] for x in ranked))
            found.append(evals_component(answer, truth, legal))
        return found


def _board(prompt: Prompt) -> chess.Board:
    """The position that a P prompt asks about. Raises: DataError for any other prompt."""
    board = board_of(prompt.answer.fen) if isinstance(prompt.answer, Annotation) else None
    if board is None:
        raise not_p(prompt)
    return board


def _judged(answer: PolicyAnswer, legal: frozenset[str]) -> list[str]:
    """The listed moves to find values for, at most five; none where a move is illegal or lacks its evaluation."""
    if answer.pairs() is None or not all(answer.legality(legal)):
        return []
    return sorted(set(answer.moves))[:MAX_LINES]
