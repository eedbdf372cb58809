"""Annotated positions: what to analyse, the engine's lines, and the self-play between them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import chess

from rookexp.rewards.engine import Lasting, Line
from rookexp.tasks import positions

KINDS = ("opening", "middlegame", "endgame", "self_play")
SELF_PLAY_NOISE = 0.08  # share of self-play moves that are random, so that games part early
SELF_PLAY_TEMPERATURE_CP = 60.0
MAX_SELF_PLAY_PLIES = 160


def shard_path(folder: Path, index: int) -> Path:
    """The file of shard `index`; it exists only when the shard is complete."""
    return folder / f"annotations-{index:05d}.jsonl"


def finished_shards(folder: Path) -> Iterator[Path]:
    """The files of all shards in a folder."""
    return folder.glob("annotations-*.jsonl")


def annotated_rows(rng: random.Random, kinds: Mapping[str, int], engine: Lasting) -> Iterator[dict[str, Any]]:
    """Rows `{fen, kind, moves, evals_cp}`, best move first; self-play rows also carry `game`, the moves so far.

    `kinds`: how many of each kind; of openings fewer, less the repeated ones among their first plies.
    """
    makers = {"opening": positions.opening, "middlegame": positions.middlegame, "endgame": positions.endgame}
    counts = dict(kinds)
    seen: set[str] = set()
    for kind, maker in makers.items():
        while counts[kind] > 0:
            board = maker(rng)
            key = positions.position_key(board)
            if board.is_game_over() or key in seen:
                if kind == "opening" and board.ply() <= 2:
                    counts[kind] -= 1  # the first plies hold few distinct positions
                continue
            seen.add(key)
            counts[kind] -= 1
            yield row_of(board, kind, engine.lines(board))
    while counts["self_play"] > 0:
        for row in self_play_game(rng, engine, seen):
            counts["self_play"] -= 1
            yield row
            if counts["self_play"] <= 0:
                return


def self_play_game(rng: random.Random, engine: Lasting, seen: set[str]) -> Iterator[dict[str, Any]]:
    """One game in which the engine's lines choose the moves, softly, with some random moves between."""
    board = positions.random_game(rng, rng.randint(0, 6))
    while board.ply() < MAX_SELF_PLAY_PLIES and not board.is_game_over(claim_draw=False):
        key = positions.position_key(board)
        if rng.random() < SELF_PLAY_NOISE:
            board.push(positions.weighted_move(board, rng))
            continue
        lines = engine.lines(board)
        if key not in seen:
            seen.add(key)
            yield row_of(board, "self_play", lines) | {"game": " ".join(m.uci() for m in board.move_stack)}
        board.push(soft_choice(rng, lines))


def soft_choice(rng: random.Random, lines: list[Line]) -> chess.Move:
    """A move drawn by a softmax of the lines' evaluations."""
    best = lines[0].eval_cp
    weights = [2.718281828 ** (max(line.eval_cp - best, -2000) / SELF_PLAY_TEMPERATURE_CP) for line in lines]
    return rng.choices([line.move for line in lines], weights)[0]


def row_of(board: chess.Board, kind: str, lines: list[Line]) -> dict[str, Any]:
    """The JSON row of an analysed position; the FEN carries an en-passant square after every double push."""
    return {
        "fen": board.fen(en_passant="fen"),
        "kind": kind,
        "moves": [line.move.uci() for line in lines],
        "evals_cp": [line.eval_cp for line in lines],
    }
