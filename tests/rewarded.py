"""Prompts with their right answers, worse answers, and the options of conf/reward to score them by."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import Any

import chess
import hydra

from rookexp.chess_text import (
    Annotation,
    Transition,
    a_prompt,
    board_of,
    build_p,
    legal_ucis,
    p_prompt,
    p_prompt_padded,
    transition,
)
from rookexp.config import check, composing, door, nodes
from rookexp.tasks.rookworld import load_annotations
from rookexp.types import Prompt, Reward, Scores

P_OPTIONS = {  # the most that an answer can earn
    "policy": 1.0,
    "self_consistency": 1.0,
    "dataset": 1.0,
    "rookworld": 1.0,
    "linear": 1.0,
    "graduated": 1.0,
    "binary": 1.0,
    "continuous": 1.0,
    "full_additive": 2.0,
    "full_graduated": 1.0,
    "clipped": 1.0,
}
A_OPTIONS = {
    "a_exact": 1.0,
    "a_levenshtein": 1.0,
    "a_schema": 0.54,
    "rookworld": 1.0,
    "linear": 1.0,
    "graduated": 1.0,
    "binary": 1.0,
    "continuous": 1.0,
    "full_additive": 1.5,
    "full_graduated": 1.5,
    "clipped": 1.0,
}

WHITE_ROW = Annotation(chess.STARTING_FEN, ("e2e4", "g1f3", "g2g3", "c2c4", "d2d4"), (56, 34, 31, 24, 10))
BLACK_ROW = Annotation(
    "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1",
    ("e7e5", "c7c5", "e7e6", "c7c6", "b8c6"),
    (-30, -41, -44, -60, -77),
)
TWO_MOVES = Annotation("8/7p/2p5/p2pBpb1/P2P3k/2PK3P/1n4B1/8 w - - 1 49", ("d3e2", "d3c2"), (-493, -528))
MATES = Annotation(
    "8/8/5b2/p7/k7/8/K7/8 b - - 1 73", ("a4b4", "a4b5", "f6c3", "f6g7", "f6h8"), (99_989, 99_988, 99_988, 99_988, 900)
)
MATED = Annotation("4k3/R7/8/8/8/8/8/1R2K3 b - - 0 1", ("e8d8", "e8f8"), (-99_999, -99_999))
FORCED = Annotation("k7/8/1K6/8/8/8/8/7R b - - 0 1", ("a8b8",), (-99_999,))
ROWS = [WHITE_ROW, BLACK_ROW, TWO_MOVES, MATES, MATED, FORCED]

MOVES = {  # what the environment is asked: a position and a move
    "ongoing": (chess.STARTING_FEN, "e2e4"),
    "capture": (BLACK_ROW.fen, "g8f6"),
    "mate": ("rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2", "d8h4"),
    "draw": ("7k/8/5K2/6Q1/8/8/8/8 w - - 0 70", "g5g6"),
    "failed": (chess.STARTING_FEN, "e4e5"),
}


@functools.cache
def option(*overrides: str) -> Reward:
    """The reward of conf/reward/<first>.yaml with the other overrides, checked and built."""
    made: Reward = nodes.make(node(*overrides))
    return made


def node(*overrides: str) -> dict[str, Any]:
    """Its node, checked.

    Raises: ConfigError.
    """
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        found = door.plain(hydra.compose(f"reward/{overrides[0]}", list(overrides[1:])))["reward"]
    check.check_node(found, "reward")
    return found


def p_of(row: Annotation, padded: bool = False) -> Prompt:
    text = p_prompt_padded(row.fen) if padded else p_prompt(row.fen)
    return Prompt(text=text, ids=(), answer=row, task="P")


def p_text(row: Annotation, moves: Sequence[str], evals_cp: Sequence[int], best: str) -> str:
    return build_p(row.fen, moves, evals_cp, best)[len(p_prompt(row.fen)) :]


def p_gold(row: Annotation) -> str:
    return p_text(row, row.moves, row.evals_cp, row.moves[0])


def a_of(fen: str, move: str, truth: Transition | None = None) -> Prompt:
    truth = truth or transition(fen, move, legality="legacy")
    return Prompt(text=a_prompt(fen, move, [move]), ids=(), answer=truth, task="A")


def a_prompts() -> list[Prompt]:
    return [a_of(*asked) for asked in MOVES.values()]


def worth(reward: Reward, prompt: Prompt, text: str) -> float:
    return reward.score([prompt], [text]).rewards.item()


def flat(scores: Scores) -> list[list[str]]:
    """Everything that was scored, comparable although NaN is in it."""
    return [[str(x) for x in values.tolist()] for values in (scores.rewards, *scores.parts.values())]


# ---- worse answers ------------------------------------------------------------------------------------------------

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def p_corrupted(count: int, seed: int) -> tuple[list[Prompt], list[str]]:
    """Positions that ship, and of each a completion a share: so much of the right one is wrong.

    Moves become others, legal or not, evaluations are off by 1 to 6 pawns, the best move is another: what is wrong at
    a share is wrong at the next one too.
    """
    rng = random.Random(seed)
    rows = [
        row
        for row in load_annotations(composing.PACKAGE / "assets" / "positions" / "eval.jsonl")
        if len(row.moves) == 5
    ]
    prompts, texts = [], []
    for row in rows[:count]:
        board = board_of(row.fen)
        assert board is not None
        others = [*sorted(legal_ucis(board) - set(row.moves)), "a1a1", "h8a2"]
        draws = [rng.random() for _ in range(11)]
        wrong_moves = [rng.choice(others) for _ in range(5)]
        wrong_evals = [value + rng.choice((-1, 1)) * rng.randint(100, 600) for value in row.evals_cp]
        wrong_best = rng.choice([*row.moves[1:], *others])
        prompts.append(p_of(row))
        for share in SHARES:
            moves = [w if u < share else m for u, w, m in zip(draws, wrong_moves, row.moves, strict=False)]
            evals = [w if u < share else e for u, w, e in zip(draws[5:], wrong_evals, row.evals_cp, strict=False)]
            texts.append(p_text(row, moves, evals, wrong_best if draws[10] < share else row.moves[0]))
    return prompts, texts


def a_corrupted(count: int, seed: int) -> tuple[list[Prompt], list[str]]:
    """Random games, and of each a completion a share: so many of its fields are wrong, or the last one is missing."""
    rng = random.Random(seed)
    prompts, texts = [], []
    for _ in range(count):
        board = chess.Board()
        for _ in range(rng.randint(0, 12)):
            board.push(rng.choice(list(board.legal_moves)))
        prompt = a_of(board.fen(), rng.choice(sorted(legal_ucis(board))))
        words = prompt.answer.new_fen.split()
        place = rng.randrange(len(words[0]))
        wrong = [
            words[0][:place] + rng.choice("QnPb1") * rng.randint(1, 4) + words[0][place + 1 :],
            {"w": "b", "b": "w"}[words[1]],
            rng.choice(["K", "q", "Kq"]),
            rng.choice(["a3", "h6"]),
            str(int(words[4]) + 1),
            str(int(words[5]) + 1),
            rng.choice(["0.5", "1.0", "-1.0"]),
            "1",
            "1",
        ]
        right = [*words, *prompt.answer.text().split("+")[1:]]
        draws = [rng.random() for _ in range(10)]
        prompts.append(prompt)
        for share in SHARES:
            said = [w if u < share else r for u, w, r in zip(draws, wrong, right, strict=False)]
            fields = [" ".join(said[:6]), *said[6:]]
            texts.append("+".join(fields[:-1] if draws[9] < share else fields))
    return prompts, texts


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Pearson's."""
    mx, my = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    sxy = math.fsum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True))
    return sxy / math.sqrt(math.fsum((x - mx) ** 2 for x in xs) * math.fsum((y - my) ** 2 for y in ys))
