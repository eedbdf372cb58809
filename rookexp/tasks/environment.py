"""The A task: prompts of a position and a move, from documents or made here, and the oracle's answers to them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import chess
from annotated_types import Ge, Gt

from rookexp.chess_text import (
    DRAWN,
    END_OF_TEXT,
    HISTORY_PLIES,
    MOVE,
    ONGOING,
    EnvironmentPrompt,
    Transition,
    a_prompt,
    board_of,
    legal_ucis,
    parse_a_prompt,
    prompt_of,
    transition,
)
from rookexp.errors import DataError, why
from rookexp.tasks.passes import Passes
from rookexp.tasks.positions import random_game
from rookexp.types import Prompt, Tokenizer

Moves = Literal["legal", "illegal", "any"]
Legality = Literal["legacy", "strict"]
FIFTH = 16  # half-moves without capture or pawn move after which a position can occur for the fifth time


class EnvironmentTask:
    """A prompts whose answers are the oracle's transitions; the prompts of a step depend only on the seed and the step.

    `positions` is a file for `load_questions`, or such questions. `moves` says which of them are used; the answer to
    an illegal move depends on `legality`, see `chess_text.transition`. `fixed` repeats the same `prompts` of them in
    every step, `epochs` passes over all, in a new order each time, so that their counts never differ by more than one.
    """

    kinds = ("A",)

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        positions: str | Sequence[EnvironmentPrompt],
        prompts: Annotated[int, Gt(0)],
        order: Literal["fixed", "epochs"],
        moves: Moves,
        legality: Legality,
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.prompts_per_step = prompts
        self.legality: Legality = legality
        if isinstance(positions, str):
            source, (found, counts) = positions, load_questions(Path(positions).expanduser(), legality)
        else:
            source, found, counts = "the questions", list(positions), Counter()
        rows = [row for row in found if moves == "any" or is_legal(row) == (moves == "legal")]
        if not rows:
            raise DataError(f"{source}: none of its {len(found)} questions has a move that is {moves}")
        counts[f"questions are left out, whose moves are not {moves} (task.moves)"] = len(found) - len(rows)
        again = f"of {len(rows)} questions repeat an earlier one, and are asked all the same"
        counts[again] = len(rows) - len(set(rows))
        self.said = [f"{source}: {count} {what}" for what, count in counts.items() if count]
        random.Random(f"{seed}/rows").shuffle(rows)
        if order == "fixed":
            if len(rows) < prompts:
                raise DataError(f"{source}: too few for {prompts} prompts: {len(rows)} questions, moves={moves}")
            rows = rows[:prompts]
        self.passes = Passes([rows], order=order, seed=seed)

    def notes(self) -> list[str]:
        """Lines on questions that are left out or repeated."""
        return self.said

    def prompts(self) -> tuple[Prompt, ...]:
        """The prompt of every question that this task uses, once each, in the order of a fixed batch."""
        return tuple(map(self._prompt, self.passes.rows()))

    def gold(self, prompt: Prompt) -> str:
        """The right completion of one of these prompts."""
        answer: Transition = prompt.answer
        return answer.text()

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of a step, `prompts` of them."""
        return self.take(step * self.prompts_per_step, self.prompts_per_step)

    def take(self, start: int, count: int) -> tuple[Prompt, ...]:
        """The prompts at indices start, ..., start + count - 1 of the endless sequence that the steps read."""
        return tuple(map(self._prompt, self.passes.take(start, count)))

    def _prompt(self, row: EnvironmentPrompt) -> Prompt:
        text = a_prompt(row.fen, row.move, row.history)
        answer = transition(row.fen, row.move, legality=self.legality)
        return Prompt(text=text, ids=tuple(self.tokenizer.encode(text)), answer=answer, task="A")


# ---- questions that are made ------------------------------------------------------------------------------------


def first_moves() -> tuple[EnvironmentPrompt, ...]:
    """The questions of the 20 legal moves in the start position, in alphabetical order."""
    return tuple(EnvironmentPrompt(chess.STARTING_FEN, uci, (uci,)) for uci in sorted(legal_ucis(chess.Board())))


def games(
    *, games: Annotated[int, Gt(0)], max_plies: Annotated[int, Gt(0)], moves: Moves, seed: Annotated[int, Ge(0)]
) -> tuple[EnvironmentPrompt, ...]:
    """The distinct questions of seeded weighted-random games of 1 to `max_plies` plies.

    `legal` takes the moves that were played; `illegal` instead an illegal one between two random squares; `any` both.
    """
    rng = random.Random(f"{seed}/games")
    found: dict[EnvironmentPrompt, None] = {}
    for _ in range(games):
        game = random_game(rng, rng.randint(1, max_plies)).move_stack
        board = chess.Board()
        for move in game:
            history = [played.uci() for played in board.move_stack[1 - HISTORY_PLIES :]]
            asked = [] if moves == "illegal" else [move.uci()]
            asked += [] if moves == "legal" else [illegal_move(board, rng)]
            for uci in asked:
                found.setdefault(EnvironmentPrompt(board.fen(), uci, (*history, uci)))
            board.push(move)
    return tuple(found)


def illegal_move(board: chess.Board, rng: random.Random) -> str:
    """A random move between two squares that the rules do not allow, as UCI."""
    legal = legal_ucis(board)
    while True:
        uci = chess.Move(*rng.sample(chess.SQUARES, 2)).uci()
        if not any(move.startswith(uci) for move in legal):
            return uci


def is_legal(row: EnvironmentPrompt) -> bool:
    """Whether the rules allow the move."""
    board = board_of(row.fen)
    return board is not None and row.move in legal_ucis(board)


# ---- questions that are read ------------------------------------------------------------------------------------


class Unobservable(ValueError):
    """A document whose outcome does not follow from its prompt: fivefold repetition in a longer game."""


def load_questions(path: Path, legality: Legality) -> tuple[list[EnvironmentPrompt], Counter[str]]:
    """The questions of a text file of A prompts or documents, one per line, or of a JSON list of `document_of` rows.

    P documents among the lines are left out, and so are documents whose draw depends on a part of the game that the
    prompt does not show; the counter says how many of each.
    Raises: DataError naming file and row where the file is missing, has no A line, or a line is not such a document.
    """
    whole = path.suffix == ".json"
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = json.loads(text) if whole else text.splitlines()
        if not isinstance(rows, list):
            raise TypeError("no list")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: A prompts cannot be read ({why(error)})") from error
    questions, left_out = [], Counter[str]()
    for number, row in enumerate(rows, start=1):
        try:
            line = document_of(row, legality) if whole else row
            if line.startswith("P: "):
                left_out["P documents are left out"] += 1
            elif line.strip():
                questions.append(question_of(line, legality))
        except Unobservable as error:
            left_out[f"documents are left out, with {error}"] += 1
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
    if not questions:
        raise DataError(f"{path}: no A prompts in it")
    return questions, left_out


def document_of(row: Any, legality: Legality) -> str:
    """The `prompt` of a JSON row, an A prompt, with the answer to it where the row has an `expected_fen`.

    Raises: ValueError for a row without a prompt, and for an `expected_fen` that does not follow from it.
    """
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise ValueError("not an object with a text `prompt`")
    prompt: str = row["prompt"]
    if "expected_fen" not in row:
        return prompt
    asked = parse_a_prompt(prompt)
    if asked is None or board_of(asked.fen) is None:
        raise ValueError(f"not an A prompt: {prompt!r}")
    for answer in answers(asked, legality):
        if answer.new_fen == row["expected_fen"]:
            return prompt + answer.text()
    raise ValueError(f"expected_fen {row['expected_fen']!r} does not follow {prompt!r}")


def answers(asked: EnvironmentPrompt, legality: Legality) -> list[Transition]:
    """The answers that a document may give: by the rules of `legality`, or by those of the published data."""
    known: tuple[Legality, ...] = (legality, "legacy")
    return [transition(asked.fen, asked.move, legality=each) for each in known]


def question_of(document: str, legality: Legality) -> EnvironmentPrompt:
    """The question of an A prompt or document whose answer, if it has one, is one of its `answers`.

    Raises: ValueError saying what is wrong with it; Unobservable for a draw that the prompt does not show.
    """
    text = document.split(END_OF_TEXT, 1)[0].strip()
    asked = parse_a_prompt(text)
    if asked is None:
        raise ValueError(f"not an A document: {text[:60]!r}")
    board = board_of(asked.fen)
    if board is None or len(asked.fen.split(" ")) != 6:
        raise ValueError(f"fen is not a position in six fields: {asked.fen!r}")
    if not asked.history or asked.history[-1] != asked.move or len(asked.history) > HISTORY_PLIES:
        raise ValueError(f"history is not 1 to {HISTORY_PLIES} moves of which {asked.move!r} is the last")
    if not all(MOVE.fullmatch(move) or move == "0000" for move in asked.history[:-1]):
        raise ValueError(f"history has a word that is no move: {' '.join(asked.history)!r}")
    before, plies = len(asked.history) - 1, board.ply()
    counted = plies > 1 or board.board_fen() == chess.STARTING_BOARD_FEN  # else `0 1` may stand for unknown counters
    if counted and before > plies:  # a move that fails would not be counted by the FEN, but it ends a game
        raise ValueError(f"history has {before} half-moves before {asked.move!r}, but the fen's counters allow {plies}")
    prompt = prompt_of(text)
    if prompt != a_prompt(asked.fen, asked.move, asked.history):
        raise ValueError(f"spaces where the data has none: {prompt!r}")
    said = text.removeprefix(prompt)
    if said:
        known = answers(asked, legality)
        answer = known[0]
        drawn = Transition(answer.new_fen, DRAWN, terminated=True, truncated=False)
        quiet = int(answer.new_fen.split()[4])
        if said == drawn.text() and answer.reward == ONGOING and quiet >= FIFTH:
            raise Unobservable("a draw that the prompt does not show, as by fivefold repetition")
        if said not in [each.text() for each in known]:
            raise ValueError(f"the oracle answers {answer.text()!r}, not {said!r}")
    return asked
