"""Mate in one: reads problems, and computes the figures of P answers to them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess

from rookexp import chess_text
from rookexp.errors import DataError, why
from rookexp.tasks.figures import Figures, Tally, by_side
from rookexp.tasks.p_figures import SIDES, highest_valued

MOVE_NUMBER = re.compile(r"\d+\.+")


@dataclass(frozen=True, slots=True)
class Problem:
    """A position in which a move mates."""

    fen: str  # as in a P prompt: an en-passant square after every double push
    mates: tuple[str, ...]  # every move that mates, as UCI, in alphabetical order
    target: str | None  # the mating move that the source asks for; None where any will do


def mating_moves(board: chess.Board) -> tuple[str, ...]:
    """Every move that mates, as UCI, in alphabetical order."""
    return tuple(sorted(move.uci() for move in board.legal_moves if board.gives_check(move) and _mates(board, move)))


def read(file: Path) -> tuple[list[Problem], list[str]]:
    """The problems of a file, and a text with number and reason for each line or example that is not a problem.

    JSON lines have a `fen` and may have the list `mates` of all mating moves, which is checked. JSON in BIG-bench's
    layout has `examples`, each with the game so far as `input` and a mating move as `target`, in SAN.
    Raises: DataError where the file cannot be read or has no problem in it.
    """
    problems: dict[str, Problem] = {}
    skipped = []
    try:
        text = file.read_text(encoding="utf-8-sig")
        whole = json.loads(text) if file.suffix == ".json" else {"examples": text.splitlines()}
        rows = whole.get("examples") if isinstance(whole, dict) else None
        if not isinstance(rows, list):
            raise ValueError("no list of examples")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: no mate-in-one problems can be read ({why(error)}); give JSON lines with a `fen`, or a BIG-bench "
            "task.json with `examples`"
        ) from error
    for number, row in enumerate(rows, start=1):
        if file.suffix != ".json" and not row.strip():
            continue
        try:
            problem = _problem(row if file.suffix == ".json" else json.loads(row))
            if problem.fen in problems:
                raise ValueError("the position of an earlier one")
            problems[problem.fen] = problem
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            skipped.append(f"{number}: {f'no {error}' if isinstance(error, KeyError) else error}")
    if not problems:
        raise DataError(f"{file}: no mate-in-one problem in it" + (f"; example {skipped[0]}" if skipped else ""))
    return list(problems.values()), skipped


def mate_figures(problems: Sequence[Problem], completions: Sequence[str], prompts: Sequence[str]) -> Figures:
    """Figures of P answers to problems: over all, then with White to move, then with Black.

    Any mating move is right; `is the target` requires the source's own, where it has one. Beside them stands the
    chance that a random legal move mates.
    """
    whole, sides = Tally(), {name: Tally() for name in SIDES.values()}
    for problem, completion, prompt in zip(problems, completions, prompts, strict=True):
        answer, board = chess_text.p_answer(prompt, completion), chess.Board(problem.fen)
        highest, legal = highest_valued(answer), chess_text.legal_ucis(board)
        for tally in (whole, sides[SIDES[board.turn]]):
            tally.add("B mates", answer.best in problem.mates)
            tally.add("the highest-valued listed move mates", highest in problem.mates)
            tally.add("a mating move is listed", bool(set(problem.mates) & set(answer.moves)))
            tally.add("B legal", answer.best in legal)
            tally.add("the highest-valued listed move legal", highest in legal)
            if problem.target is not None:
                tally.add("B is the target", answer.best == problem.target)
                tally.add("the highest-valued listed move is the target", highest == problem.target)
            tally.measure("a random legal move mates", len(problem.mates) / len(legal))
    return whole.figures() | by_side(sides)


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def _problem(row: dict[str, Any]) -> Problem:
    """The problem of a row in either layout.

    Raises: ValueError saying what is wrong, KeyError for what is missing.
    """
    if "fen" in row:
        fen = row["fen"].strip() if isinstance(row["fen"], str) else ""
        board = chess_text.board_of(fen) if len(fen.split()) == chess_text.FEN_FIELDS else None
        if board is None or not board.is_valid():
            raise ValueError(f"not a position: {row['fen']!r}")
        mates = mating_moves(board)
        if sorted(row.get("mates", mates)) != list(mates):
            raise ValueError(f"mates {row['mates']} given, found {list(mates)}")
        target = None
    else:
        board = chess.Board()
        for word in MOVE_NUMBER.sub(" ", row["input"]).split():
            board.push_san(word)
        fen, mates, target = board.fen(en_passant="fen"), mating_moves(board), board.parse_san(row["target"]).uci()
        if target not in mates:
            raise ValueError(f"target {row['target']!r} does not mate")
    if not mates:
        raise ValueError(f"no move mates: {fen!r}")
    return Problem(fen, mates, target)
