"""Games that a model plays against itself, and for how many plies its own A answers follow them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import chess

from rookexp import chess_text, ops
from rookexp.tasks.figures import Figure, Figures, bounded, pooled

Ask = Callable[[Sequence[str], Sequence[int]], list[str]]  # (prompts, one seed each) -> completions
End = Literal["illegal", "unreadable", "rule", "limit"]
ENDS: dict[End, str] = {
    "illegal": "ended by an illegal move",
    "unreadable": "ended by an answer without a move",
    "rule": "ended by a rule of chess",
    "limit": "legal up to the limit",
}
FAILED = ("illegal", "unreadable")


@dataclass(frozen=True, slots=True)
class Game:
    """A game from the start position."""

    moves: tuple[str, ...]  # the legal ones, as UCI
    end: End
    said: str | None  # the answer that ended it, illegal or unreadable, and was not played; None: it ended otherwise


@dataclass(frozen=True, slots=True)
class Step:
    """The A prompt about a move that was played, and the true completion."""

    prompt: str
    text: str  # the true completion


def play(ask: Ask, prompt: Callable[[str], str], *, games: int, plies: int, seed: int) -> list[Game]:
    """Games of at most `plies` half-moves, in which B as written is played; one call of `ask` per ply for all games.

    A position is written as the environment writes it, with an en-passant square only where such a capture is legal.
    An answer's seed depends only on `seed`, the game's number and the ply. Draws that need a claim do not end a game.
    """
    boards = [chess.Board() for _ in range(games)]
    ends: dict[int, tuple[End, str | None]] = {}
    for ply in range(plies):
        live = [game for game in range(games) if game not in ends]
        if not live:
            break
        prompts = [prompt(boards[game].fen()) for game in live]
        completions = ask(prompts, [ops.seed_of(seed, "game", game, ply) for game in live])
        for game, asked, completion in zip(live, prompts, completions, strict=True):
            best, board = chess_text.p_answer(asked, completion).best or "", boards[game]
            if best in chess_text.legal_ucis(board):
                board.push_uci(best)
                if board.outcome(claim_draw=False) is not None:
                    ends[game] = ("rule", None)
            else:
                ends[game] = ("illegal" if chess_text.MOVE.fullmatch(best) else "unreadable", best)
    return [
        Game(tuple(move.uci() for move in board.move_stack), *ends.get(game, ("limit", None)))
        for game, board in enumerate(boards)
    ]


def steps_of(game: Game) -> list[Step]:
    """The A prompt of each move of a game, with the answer by the rules."""
    board, steps = chess.Board(), []
    for ply, move in enumerate(game.moves):
        truth = chess_text.transition(board.fen(), move, legality="strict", game_board=board)
        asked = chess_text.a_prompt(board.fen(), move, game.moves[: ply + 1])
        steps.append(Step(asked, truth.text()))
        board.push_uci(move)
    return steps


def followed(right: Sequence[bool]) -> int:
    """The number of plies before the first one that the environment does not answer exactly."""
    return next((ply for ply, exact in enumerate(right) if not exact), len(right))


def self_play_figures(games: Sequence[Game], plies: int) -> Figures:
    """How long games stay legal, and what ends them; a game that reaches the limit counts as that long."""
    lengths = [len(game.moves) for game in games]
    ended: Figures = {words: Figure(sum(g.end == end for g in games), len(games)) for end, words in ENDS.items()}
    moves: Figures = {"a move is legal": pooled([(len(g.moves), len(g.moves) + (g.end in FAILED)) for g in games])}
    return moves | ended | {f"legal plies, at most {plies}": bounded(lengths, plies)}


def closed_loop_figures(games: Sequence[Game], right: Sequence[Sequence[bool]], plies: int) -> Figures:
    """For how many plies a game in the model's own environment agrees with the rules.

    `right` says for each move of each game whether the environment answered exactly: state, reward and both flags.
    Until a game parts from the rules, the environment's text is the position that self-play asked about, so these are
    the same games and none needs to be played again.
    """
    pairs = list(zip(games, right, strict=True))
    lost = sum(not all(exact) for _, exact in pairs)
    left = sum(all(exact) and game.end in FAILED for game, exact in pairs)
    return {
        "the environment's answer is exact": pooled([(sum(exact), len(exact)) for exact in right]),
        "parted by the environment": Figure(lost, len(games)),
        "parted by a move that is not legal": Figure(left, len(games)),
        "never parted": Figure(len(games) - lost - left, len(games)),
        f"plies before parting, at most {plies}": bounded([followed(exact) for exact in right], plies),
    }
