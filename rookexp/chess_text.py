"""The grammar of `P:` (analyse a position) and `A:` (give the next state) documents, and the oracle for `A:` answers.

Parsers accept any string and never raise: what is missing or malformed is None or empty. Builders write the exact
text of the training data. Moves are lower-case UCI, printed evaluations are pawns for the side to move.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import chess

from rookexp.errors import DataError

END_OF_TEXT = "<|endoftext|>"
MATE_CP = 100_000  # mate in n is MATE_CP - n, being mated in n the negative
MAX_MATE_MOVES = 1_000  # |eval| within this many centipawns of MATE_CP is a mate
MAX_LINES = 5  # engine lines in a P document
FEN_WIDTH, MOVES_WIDTH, EVALS_WIDTH = 90, 30, 40
HISTORY_PLIES = 10
MAX_FEN_CHARS = 128  # longer strings are not positions
FEN_FIELDS = 6  # in a complete FEN
ONGOING, WON, DRAWN, FAILED = 0.001, 1.0, 0.5, -1.0  # rewards of A documents, for the side that moved
OUTCOMES: dict[tuple[float | None, bool | None, bool | None], str] = {  # by reward, terminated and truncated
    (ONGOING, False, False): "ongoing",
    (WON, True, False): "mate",
    (DRAWN, True, False): "draw",
    (FAILED, False, True): "failed",
}
WIN_LOGIT_PER_CP = 0.00368208
ListOrder = Literal["sorted", "best_first", "shuffled"]  # see `listing`

MOVE = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?")
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


# ---- values -----------------------------------------------------------------------------------------------------


def eval_text(eval_cp: int) -> str:
    """The evaluation as P documents print it: pawns, one or two decimals, no plus sign; mate in 1 is `999.99`."""
    return str(eval_cp / 100)


def decimal(text: str) -> float | None:
    """The finite number that `text` spells in ASCII digits without an exponent, else None."""
    value = float(text) if DECIMAL.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def pawns_to_cp(pawns: float) -> int:
    """Whole centipawns, clamped to +-MATE_CP; the inverse of `eval_text` on every evaluation that it prints."""
    return round(max(-MATE_CP, min(MATE_CP, pawns * 100)))


def is_mate(eval_cp: int) -> bool:
    """True if the evaluation stands for a forced mate, for or against the side to move."""
    return abs(eval_cp) >= MATE_CP - MAX_MATE_MOVES


def win_probability(eval_cp: int) -> float:
    """Expected score in [0, 1] of the side whose evaluation this is: 1 / (1 + exp(-0.00368208 cp)); mates give 0 or 1.

    Source: lichess's fit of game results to centipawns, lichess.org/page/accuracy.
    """
    if is_mate(eval_cp):
        return float(eval_cp > 0)
    return 0.5 + 0.5 * math.tanh(0.5 * WIN_LOGIT_PER_CP * eval_cp)


# ---- positions and moves ----------------------------------------------------------------------------------------


def board_of(fen: str) -> chess.Board | None:
    """The board of a FEN, None if `fen` is not a valid one."""
    if len(fen) > MAX_FEN_CHARS or not fen.isascii():
        return None
    try:
        return chess.Board(fen)
    except ValueError:
        return None


def legal_ucis(board: chess.Board) -> frozenset[str]:
    """The legal moves as UCI; castling appears only as the king's two-square move."""
    return frozenset(move.uci() for move in board.legal_moves)


@dataclass(frozen=True, slots=True)
class Annotation:
    """An analysed position: what the answer to its P prompt is compared with."""

    fen: str  # exactly as in the prompt
    moves: tuple[str, ...]  # 1 to 5 legal moves, best first
    evals_cp: tuple[int, ...]  # centipawns of each move for the side to move, never increasing


def best_label(
    moves: Sequence[str], evals_cp: Sequence[int], turn: chess.Color, black_best: Literal["legacy", "corrected"]
) -> str:
    """The move after `B:`: the one with the highest evaluation, but for Black under `legacy` the lowest.

    Evaluations are for the side to move; among equals the first counts as highest and the last as lowest. The published
    data labels Black's rows with the lowest.
    """
    order = range(len(moves))
    if turn == chess.BLACK and black_best == "legacy":
        return moves[min(order, key=lambda i: (evals_cp[i], -i))]
    return moves[max(order, key=lambda i: (evals_cp[i], -i))]


# ---- P: documents -----------------------------------------------------------------------------------------------


def p_prompt(fen: str) -> str:
    """The bare prompt; a completion begins with the padding of the FEN field."""
    return f"P: {fen}"


def p_prompt_padded(fen: str) -> str:
    """The prompt up to and including `M:`; a completion begins with the first move."""
    return f"P: {fen:<{FEN_WIDTH}}M:"


P_PROMPTS = {"bare": p_prompt, "padded_prefill": p_prompt_padded}  # styles of a prompt


def p_prompt_analysed(fen: str, moves: Sequence[str], evals_cp: Sequence[int]) -> str:
    """The prompt up to and including `B:`; a completion is just the best move."""
    return build_p(fen, moves, evals_cp, "").rstrip()


def listing(moves: Sequence[str], order: ListOrder, rng: random.Random) -> list[int]:
    """The indices of `moves`, whose first is the best, in the order in which a document lists the moves.

    shuffled: random, drawn from `rng`, which advances equally for the other orders; sorted: by name; best_first: the
    order by name, rotated so that the best comes first.
    """
    places = list(range(len(moves)))
    rng.shuffle(places)
    if order != "shuffled":
        places.sort(key=moves.__getitem__)
    if order == "best_first":
        first = places.index(0)
        places = places[first:] + places[:first]
    return places


def build_p(fen: str, moves: Sequence[str], evals_cp: Sequence[int], best: str) -> str:
    """A whole P document in the data's fixed widths; the caller chooses the order of the (move, evaluation) pairs."""
    evals = " ".join(map(eval_text, evals_cp))
    return f"{p_prompt_padded(fen)} {' '.join(moves):<{MOVES_WIDTH}}E: {evals:<{EVALS_WIDTH}}B: {best}"


def p_completion(prompt: str, row: Annotation, best: str) -> str:
    """The rest of a position's P document after `prompt`; moves are best first unless the prompt already lists them."""
    return f" {best}" if prompt.endswith("B:") else build_p(row.fen, row.moves, row.evals_cp, best).removeprefix(prompt)


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The parsed answer of a P document, well formed or not."""

    fen: str  # the text between `P:` and `M:`, outer spaces removed
    moves: tuple[str, ...]  # the words between `M:` and `E:`, moves or not
    evals: tuple[float | None, ...]  # the words between `E:` and `B:` in pawns; None for a word that is not a number
    best: str | None  # the first word after `B:`, a move or not
    trailing_garbage: str  # what follows `best` before the end of text

    @property
    def well_formed(self) -> bool:
        """True for 1 to 5 moves, as many evaluations and a best move, all well spelled; legality is not checked."""
        return (
            1 <= len(self.moves) <= MAX_LINES
            and self.pairs() is not None
            and self.best is not None
            and all(MOVE.fullmatch(move) for move in (*self.moves, self.best))
        )

    @property
    def duplicates(self) -> int:
        """How many listed moves repeat an earlier one."""
        return len(self.moves) - len(set(self.moves))

    @property
    def best_in_moves(self) -> bool:
        """True if the best move is one of the listed moves."""
        return self.best in self.moves

    def pairs(self) -> list[tuple[str, float]] | None:
        """Each listed move with its evaluation in pawns; None unless all evaluations are numbers, one for each move."""
        values = [value for value in self.evals if value is not None]
        if len(values) < len(self.evals) or len(values) != len(self.moves):
            return None
        return list(zip(self.moves, values, strict=True))

    def best_rank(self) -> int | None:
        """How many listed evaluations exceed the best move's (0 = top); None if it is unlisted or without pairs."""
        pairs = self.pairs()
        if pairs is None or not self.best_in_moves:
            return None
        own = max(value for move, value in pairs if move == self.best)
        return sum(value > own for _, value in pairs)

    def legality(self, legal: frozenset[str]) -> tuple[bool, ...]:
        """For each listed move whether it is in `legal`."""
        return tuple(move in legal for move in self.moves)


def p_fields(text: str) -> dict[str, int]:
    """Character offsets of the markers in a text that starts with `P:`; of M, E and B only those found in order."""
    starts = {"P": 0}
    for marker in "MEB":
        found = text.find(f"{marker}:", [*starts.values()][-1] + 2)
        if found >= 0:
            starts[marker] = found
    return starts


def parse_p(text: str) -> PolicyAnswer | None:
    """The answer in a P document (a prompt of any style and its completion), None if it does not start with `P:`.

    Reads up to the first end of text. `M:`, `E:` and `B:` are looked for in that order; a missing one is skipped.
    """
    text = text.split(END_OF_TEXT, 1)[0].lstrip()
    if not text.startswith("P:"):
        return None
    starts = p_fields(text)
    ends = [*starts.values(), len(text)][1:]
    sections = {name: text[start + 2 : end] for (name, start), end in zip(starts.items(), ends, strict=True)}
    after_best = sections.get("B", "").split(maxsplit=1)
    return PolicyAnswer(
        fen=sections["P"].strip(),
        moves=tuple(sections.get("M", "").split()),
        evals=tuple(decimal(word) for word in sections.get("E", "").split()),
        best=after_best[0] if after_best else None,
        trailing_garbage=after_best[1].strip() if len(after_best) > 1 else "",
    )


def p_answer(prompt: str, completion: str) -> PolicyAnswer:
    """The answer to a P prompt; empty where the completion adds to the position, or other words, before `M:`."""
    asked, answer = parse_p(prompt), parse_p(prompt + completion)
    if asked is None or answer is None or answer.fen != asked.fen:
        return PolicyAnswer("", (), (), None, "")
    return answer


# ---- A: documents -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvironmentPrompt:
    """The question of an A prompt."""

    fen: str  # the position before the move
    move: str  # UCI, legal or not
    history: tuple[str, ...]  # at most 10 half-moves, oldest first, ending with `move`


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """The parsed answer of an A completion, well formed or not."""

    new_fen: str  # the first field, "" where the text is empty
    reward: float | None  # for the side that moved; None if missing or not a number
    terminated: bool | None  # None if missing or neither 0 nor 1
    truncated: bool | None  # likewise
    extra: tuple[str, ...]  # fields after the fourth

    @property
    def valid(self) -> bool:
        """True for exactly four fields, with a number and two flags after the first, which is not checked."""
        return not self.extra and None not in (self.reward, self.terminated, self.truncated)


@dataclass(frozen=True, slots=True)
class Transition:
    """The environment's response to a move."""

    new_fen: str  # six fields; an en-passant square only where such a capture is legal
    reward: float  # for the side that moved: 0.001 ongoing, 1.0 mate, 0.5 draw, -1.0 failed
    terminated: bool  # True at mate and at draws that need no claim
    truncated: bool  # True where the move could not be applied

    def text(self) -> str:
        """The completion of the A prompt."""
        return f"{self.new_fen}+{self.reward}+{int(self.terminated)}+{int(self.truncated)}"


@dataclass(frozen=True, slots=True)
class FenMatch:
    """How much of the expected position an answer has right."""

    strict: bool  # all six fields
    lenient: bool  # placement, turn, castling, en passant
    board: bool  # placement alone


def a_prompt(fen: str, move: str, history: Sequence[str]) -> str:
    """The A prompt; `history` is the game so far, ending with `move`; its last ten half-moves are written.

    Raises: DataError if the history does not end with the move.
    """
    if not history or history[-1] != move:
        raise DataError(f"the history of an A prompt ends with its move {move!r}, not with {list(history[-1:])}")
    return f"A: {fen}+{move}+{' '.join(history[-HISTORY_PLIES:])}+"


def build_a(fen: str, move: str, history: Sequence[str], outcome: Transition) -> str:
    """A whole A document."""
    return a_prompt(fen, move, history) + outcome.text()


def prompt_of(document: str) -> str:
    """The prompt part of a document: P and L up to and including `M:`, A up to the third `+`; "" if there is none."""
    if document.startswith(("P: ", "L: ")):
        return "".join(document.partition("M:")[:2]) if "M:" in document else ""
    return document[: len(document) - len(document.split("+", 3)[-1])] if parse_a_prompt(document) else ""


def parse_a_prompt(text: str) -> EnvironmentPrompt | None:
    """The question of an A prompt or document, None unless it has three fields with a `+` after each."""
    fields = text.split("+", 3)
    if not text.startswith("A: ") or len(fields) < 4:
        return None
    return EnvironmentPrompt(fen=fields[0][3:].strip(), move=fields[1].strip(), history=tuple(fields[2].split()))


def parse_a_completion(text: str) -> EnvironmentAnswer:
    """The answer in an A completion; reads up to the first end of text."""
    fields = [field.strip() for field in text.split(END_OF_TEXT, 1)[0].split("+")]
    new_fen, reward, terminated, truncated = (fields + [""] * 3)[:4]
    flags = {"0": False, "1": True}
    return EnvironmentAnswer(
        new_fen=new_fen,
        reward=decimal(reward),
        terminated=flags.get(terminated),
        truncated=flags.get(truncated),
        extra=tuple(fields[4:]),
    )


def match(new_fen: str, expected_fen: str) -> FenMatch:
    """Which fields `new_fen` shares with the expected FEN; strict implies lenient, and lenient implies board."""
    given, expected = new_fen.split(), expected_fen.split()
    return FenMatch(strict=given == expected, lenient=given[:4] == expected[:4], board=given[:1] == expected[:1])


def transition(
    fen: str, move: str, *, legality: Literal["legacy", "strict"], game_board: chess.Board | None = None
) -> Transition:
    """The environment's response to `move` in the position `fen`.

    `strict`: an illegal move fails and leaves the position unchanged. `legacy` reproduces the published data, whose
    generator never checked legality: any move from an occupied square is carried out, a null move passes the turn, a
    move from an empty square fails but advances the clocks, and only malformed UCI fails and changes nothing.
    Stalemate, insufficient material, 75 moves and fivefold repetition end the game; draws that need a claim do not.
    Fivefold repetition is detected only with `game_board`, the whole game before the move, which is not modified.
    Raises: DataError if `fen` is no valid position or not that of `game_board`.
    """
    board = board_of(fen)
    if board is None or (game_board is not None and game_board.fen() != board.fen()):
        raise DataError(f"not the position before the move {move!r}: {fen!r}")
    if game_board is not None:
        board = game_board.copy()
    try:
        parsed = chess.Move.from_uci(move)
    except ValueError:
        return Transition(board.fen(), FAILED, terminated=False, truncated=True)
    if legality == "strict" and move not in legal_ucis(board):
        return Transition(board.fen(), FAILED, terminated=False, truncated=True)
    if parsed and parsed.drop is None and board.piece_at(parsed.from_square) is None:
        _tick(board, parsed)
        return Transition(board.fen(), FAILED, terminated=False, truncated=True)
    board.push(parsed)
    outcome = board.outcome(claim_draw=False)
    if outcome is None:
        return Transition(board.fen(), ONGOING, terminated=False, truncated=False)
    reward = WON if outcome.termination == chess.Termination.CHECKMATE else DRAWN
    return Transition(board.fen(), reward, terminated=True, truncated=False)


def _tick(board: chess.Board, move: chess.Move) -> None:
    """Leaves the board as python-chess does when it gives up on a move from an empty square."""
    board.ep_square = None
    board.halfmove_clock = 0 if board.is_zeroing(move) else board.halfmove_clock + 1
    board.fullmove_number += board.turn == chess.BLACK
