"""Figures of A answers: by ply, move type and class, and for illegal moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import chess
import numpy as np

from rookexp import chess_text
from rookexp.chess_text import FEN_FIELDS, OUTCOMES, EnvironmentAnswer, EnvironmentPrompt
from rookexp.errors import DataError
from rookexp.statistics import RESAMPLES
from rookexp.tasks.figures import Estimate, Figure, Figures, Tally

PLY_BUCKETS = (
    (1, "ply 1"),
    (2, "ply 2"),
    (5, "plies 3-5"),
    (10, "plies 6-10"),
    (30, "plies 11-30"),
    (math.inf, "plies 31+"),
)
Array = np.ndarray[Any, Any]
ILLEGAL = "illegal"
LEGALITIES: tuple[Literal["legacy", "strict"], ...] = ("legacy", "strict")
SLICES = (
    *(name for _, name in PLY_BUCKETS),
    "moves 1-5",
    "castling",
    "en passant",
    "promotion",
    "capture",
    "check",
    ILLEGAL,
)
STATES = ("next state exact", "next state, first four fields", "next state, board")
CLASSES = ("ongoing", "mate", "mate made by the move", "draw", "draw made by the move", "failed")


def environment_figures(documents: Sequence[str], completions: Iterable[str]) -> Figures:
    """Figures of A answers against gold documents: validity, next state, fields, and recall of every class.

    `exact` requires all six fields of the FEN. The ply is that of the prompt's move, counted from the start of the game
    by the FEN; a legal move belongs to every type that applies to it. The class is reward and both flags together;
    `made by the move` leaves out positions in which the game was over before. Beside accuracies stands the baseline of
    always answering the commonest value; the macro figures are unweighted means over the classes that occur. Their
    intervals draw the answers to each class from a Dirichlet distribution, which gives each recall Jeffreys' interval:
    resampling the documents would treat the recall of a rare class, whose few answers are all right, as certain.
    Source: Brown, Cai and DasGupta 2001.

    To illegal moves, the published data and the rules of chess answer differently (see `chess_text.transition`), so
    these answers are compared with each oracle: in total, and by what is wrong with the move.
    Raises: DataError for a document that is no A document.
    """
    fields, slices, classes, illegal = Tally(), Tally(), Tally(), Tally()
    golds: dict[str, Counter[float]] = {field: Counter() for field in ("reward", "terminated", "truncated")}
    confusion: Counter[tuple[str, str | None]] = Counter()
    for document, completion in zip(documents, completions, strict=True):
        prompt, board, gold, kind = read_gold(document)
        answer = chess_text.parse_a_completion(completion)
        match = chess_text.match(answer.new_fen, gold.new_fen)
        fields.add("valid", answer.valid)
        for what, holds in zip(STATES, (match.strict, match.lenient, match.board), strict=True):
            fields.add(what, holds)
        fields.add("answer exact", same(answer, gold))
        for field, seen in golds.items():
            value = getattr(gold, field)
            fields.add(f"{field} right", getattr(answer, field) == value)
            seen[value] += 1
        names = _slices(board, prompt.move)
        for name in names:
            for what, holds in zip(STATES, (match.strict, match.lenient, match.board), strict=True):
                slices.add(f"{what}, {name}", holds)
        if ILLEGAL in names:
            _add_illegal(illegal, prompt, board, answer)
        given = _outcome(answer)
        confusion[kind, given] += 1
        classes.add(f"outcome right, {kind}", given == kind)
        if kind in ("mate", "draw") and not board.is_game_over():
            classes.add(f"outcome right, {kind} made by the move", given == kind)
    for field, seen in golds.items():
        for value, count in seen.most_common(1):
            shown = value if field == "reward" else int(value)
            fields.add(f"{field} right, were it always {shown}", count, seen.total())
    figures = fields.figures() | _summary(confusion)
    for what, tally, order in (("outcome right", classes, CLASSES), *((state, slices, SLICES) for state in STATES)):
        found = tally.figures()
        figures |= {key: found[key] for name in order if (key := f"{what}, {name}") in found}
    return figures | illegal.figures()


def read_gold(document: str) -> tuple[EnvironmentPrompt, chess.Board, EnvironmentAnswer, str]:
    """The prompt of an A document, its board, its answer, and the outcome class of that answer.

    Raises: DataError for a document that is no A document.
    """
    prompt = chess_text.parse_a_prompt(document)
    board = None if prompt is None else chess_text.board_of(prompt.fen)
    gold = chess_text.parse_a_completion(document.split("+", 3)[-1])
    kind = _outcome(gold)
    known = kind is not None and gold.valid and chess_text.board_of(gold.new_fen) is not None
    if prompt is None or board is None or len(prompt.fen.split()) != FEN_FIELDS or kind is None or not known:
        raise DataError(f"not an A document: {document!r}")
    return prompt, board, gold, kind


def same(answer: EnvironmentAnswer, gold: EnvironmentAnswer) -> bool:
    """Whether the answer has the gold FEN as it is written, its reward and both flags, and nothing else."""
    return answer == gold


def _add_illegal(tally: Tally, prompt: EnvironmentPrompt, board: chess.Board, answer: EnvironmentAnswer) -> None:
    """Adds an answer to an illegal move to the tally, compared with both oracles."""
    words = chess_text.MOVE.fullmatch(prompt.move) and prompt.move[:2] != prompt.move[2:4]
    occupied = words and board.piece_at(chess.parse_square(prompt.move[:2])) is not None
    kind = "from an occupied square" if occupied else "from an empty square" if words else "no move at all"
    for legality in LEGALITIES:
        expected = chess_text.transition(prompt.fen, prompt.move, legality=legality)
        right = same(answer, chess_text.parse_a_completion(expected.text()))
        tally.add(f"answer exact by the {legality} oracle, illegal", right)
        tally.add(f"answer exact by the {legality} oracle, illegal, {kind}", right)


def _outcome(answer: EnvironmentAnswer) -> str | None:
    """The outcome class of an answer; None where it is of none, or has more than four fields."""
    return OUTCOMES.get((answer.reward, answer.terminated, answer.truncated)) if answer.valid else None


def _slices(board: chess.Board, uci: str) -> list[str]:
    """The ply bucket and the move types of a transition."""
    ply = board.ply() + 1
    names = [next(name for last, name in PLY_BUCKETS if ply <= last)]
    if board.fullmove_number <= 5:
        names.append("moves 1-5")
    if uci not in chess_text.legal_ucis(board):
        return [*names, ILLEGAL]
    move = chess.Move.from_uci(uci)
    types = {
        "castling": board.is_castling(move),
        "en passant": board.is_en_passant(move),
        "promotion": move.promotion is not None,
        "capture": board.is_capture(move),
        "check": board.gives_check(move),
    }
    return names + [name for name, holds in types.items() if holds]


def _summary(confusion: Counter[tuple[str, str | None]]) -> Figures:
    """The figures over all classes; `confusion` counts (gold, given) pairs of classes."""
    if not confusion:
        return {}
    kinds = list(dict.fromkeys(gold for gold, _ in confusion))
    table = np.zeros((len(kinds), len(kinds) + 1))  # last column: answers of another class or of none
    for (gold, given), count in confusion.items():
        table[kinds.index(gold), kinds.index(given) if given in kinds else -1] += count
    sizes, right, total = table.sum(1), int(table.trace()), confusion.total()
    rng = np.random.default_rng(0)
    prior = np.where(np.eye(*table.shape), 0.5, 0.5 / len(kinds))
    drawn = np.stack([rng.dirichlet(row, RESAMPLES) for row in table + prior], 1) * sizes[:, None]  # (R, K, K + 1)
    return {
        "outcome right": Figure(right, total),
        f"outcome right, were it always {kinds[int(sizes.argmax())]}": Figure(int(sizes.max()), total),
        "outcome, macro recall": _estimate(_recall(table), _recall(drawn), total),
        "outcome, macro F1": _estimate(_f1(table), _f1(drawn), total),
    }


def _recall(tables: Array) -> Array:
    """Mean over the classes of right / gold, for tables (..., K, K + 1)."""
    return (np.einsum("...kk->...k", tables[..., :-1]) / tables.sum(-1)).mean(-1)


def _f1(tables: Array) -> Array:
    """Mean over the classes of 2 right / (gold + given)."""
    square = tables[..., :-1]
    return (2 * np.einsum("...kk->...k", square) / (tables.sum(-1) + square.sum(-2))).mean(-1)


def _estimate(value: Array, drawn: Array, total: int) -> Estimate:
    """`value` with the central 95 % interval of `drawn`, widened to contain it, as is needed where all is right."""
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(float(value), (float(min(low, value)), float(max(high, value))), total)
