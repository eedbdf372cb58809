"""The P task: prompts about annotated positions, in a fixed batch or in seeded passes over all of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import chess
from annotated_types import Ge, Gt, Le

from rookexp.chess_text import (
    MATE_CP,
    MAX_LINES,
    P_PROMPTS,
    Annotation,
    ListOrder,
    board_of,
    legal_ucis,
    listing,
    p_completion,
    p_prompt_analysed,
    parse_p,
    pawns_to_cp,
)
from rookexp.errors import ConfigError, DataError, why
from rookexp.tasks.passes import Passes
from rookexp.types import Prompt, Tokenizer

PAWNS = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}
CLEAR, FEW = 5, 8  # for `data_warnings`: pawns up or down, and the fewest such positions to judge by
LOOKED_AT = 1000  # rows that `data_warnings` checks


class PolicyTask:
    """P prompts whose answers are the engine's lines; the prompts of a step depend only on the seed and the step.

    `fixed` repeats the same `prompts` positions in every step. `epochs` passes over all positions, in a new order each
    time, so that the counts of two positions never differ by more than one. `balanced` alternates between White and
    Black to move, with as many positions of each (one more of White in a fixed batch of odd size). `positions` is a
    file for `load_annotations`, or such rows. `analysed` is the share of a step's prompts that extend to `B:`, with the
    annotated moves in `list_order` and their evaluations, so that only the choice is left; the method `prompts` always
    asks for whole answers.
    """

    kinds = ("P",)

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        positions: str | Sequence[Annotation],
        prompts: Annotated[int, Gt(0)],
        order: Literal["fixed", "epochs"],
        colours: Literal["balanced", "as_found"],
        p_style: Literal["bare", "padded_prefill"],
        analysed: Annotated[float, Ge(0), Le(1)],
        list_order: ListOrder,
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.prompts_per_step = prompts
        self.build = P_PROMPTS[p_style]
        self.analysed = Fraction(str(analysed))
        self.list_order: ListOrder = list_order
        self.seed = seed
        source = positions if isinstance(positions, str) else "the data"
        found = load_annotations(Path(positions).expanduser()) if isinstance(positions, str) else positions
        rows = [replace(row, moves=row.moves[:MAX_LINES], evals_cp=row.evals_cp[:MAX_LINES]) for row in found]
        counts = {
            f"have more than {MAX_LINES} moves, of which the first {MAX_LINES} are used": sum(
                len(row.moves) > MAX_LINES for row in found
            ),
            "repeat an earlier one, and are asked all the same": len(rows) - len({row.fen for row in rows}),
        }
        self.said = [f"{source}: {count} of {len(rows)} positions {what}" for what, count in counts.items() if count]
        self.said += data_warnings(rows[:LOOKED_AT], source)
        without = next((row for row in rows if not row.moves), None)
        if analysed and without:
            raise DataError(
                f"{source}: {without.fen}: no analysis of it (moves, evals_cp), which analysed={analysed:g} shows; "
                "allowed: 0, or positions with one"
            )
        random.Random(f"{seed}/rows").shuffle(rows)
        strands = [rows]
        if colours == "balanced":
            white = [row for row in rows if _turn(row) == chess.WHITE]
            black = [row for row in rows if _turn(row) == chess.BLACK]
            strands = [white, black]
            if order == "epochs":
                shorter = min(len(white), len(black))
                strands = [white[:shorter], black[:shorter]]
                longer, count = "White" if len(white) > shorter else "Black", len(rows) - 2 * shorter
                if count:
                    left_out = f"{source}: colours=balanced leaves out {count} of {len(rows)} positions, "
                    self.said.insert(0, f"{left_out}with {longer} to move; colours=as_found asks all")
        if order == "fixed":
            strands = [strand[: (prompts + len(strands) - 1 - i) // len(strands)] for i, strand in enumerate(strands)]
            if sum(map(len, strands)) < prompts:
                white = sum(_turn(row) == chess.WHITE for row in rows)
                needed = f"{prompts} prompts{', half of each' if colours == 'balanced' else ''}"
                enough = ", or use colours=as_found" if len(rows) >= prompts else ""
                raise DataError(
                    f"{source}: {white} positions with White to move and {len(rows) - white} with Black are too few "
                    f"for {needed}; give more, ask fewer (grpo.prompts_per_step){enough}"
                )
        elif not all(strands):
            raise DataError(f"{source}: one of the colours never is to move; use colours=as_found")
        self.passes = Passes(strands, order=order, seed=seed)
        if analysed and order == "fixed" and not any(map(self._shows, range(len(self.passes)))):
            raise ConfigError(
                f"task.analysed={analysed:g}: leaves none of {len(self.passes)} positions analysed, the same for both "
                "colours; allowed: 0, a larger share, or more positions"
            )

    def prompts(self) -> tuple[Prompt, ...]:
        """The prompt of every position that this task uses, once each, in the order of a fixed batch."""
        return tuple(map(self._prompt, self.passes.rows()))

    def notes(self) -> list[str]:
        """Lines on positions that are left out, repeated or shortened, and on evaluations that seem to be reversed."""
        return self.said

    def gold(self, prompt: Prompt) -> str:
        """The completion of one of these prompts that earns the most: the engine's lines, best first, and its move.

        For a position without an analysis: up to five legal moves, all valued equally.
        """
        row: Annotation = prompt.answer
        if not row.moves:
            legal = sorted(legal_ucis(_board(row)))[:MAX_LINES]
            row = Annotation(row.fen, tuple(legal), (0,) * len(legal))
        return p_completion(prompt.text, row, row.moves[0])

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of a step, `prompts` of them."""
        return self.take(step * self.prompts_per_step, self.prompts_per_step)

    def take(self, start: int, count: int) -> tuple[Prompt, ...]:
        """The prompts at indices start, ..., start + count - 1 of the endless sequence that the steps read."""
        rows = enumerate(self.passes.take(start, count), start)
        return tuple(self._analysed(row) if self._shows(place) else self._prompt(row) for place, row in rows)

    def _shows(self, place: int) -> bool:
        """Whether the prompt at index `place` includes the analysis: by quota, the same for both colours.

        In passes the quota runs on from one to the next; a fixed batch is the same in every step.
        """
        if self.passes.order == "fixed":
            place %= len(self.passes)
        turn = place // len(self.passes.strands)
        return (turn + 1) * self.analysed // 1 > turn * self.analysed // 1

    def _analysed(self, row: Annotation) -> Prompt:
        order = listing(row.moves, self.list_order, random.Random(f"{self.seed}/{row.fen}"))
        moves, evals_cp = [row.moves[i] for i in order], [row.evals_cp[i] for i in order]
        return self._of(row, p_prompt_analysed(row.fen, moves, evals_cp))

    def _prompt(self, row: Annotation) -> Prompt:
        return self._of(row, self.build(row.fen))

    def _of(self, row: Annotation, text: str) -> Prompt:
        return Prompt(text=text, ids=tuple(self.tokenizer.encode(text)), answer=row, task="P")


def data_warnings(rows: Sequence[Annotation], source: str) -> list[str]:
    """A line for each colour whose best evaluations contradict the material, as if not given for the side to move.

    Judged by positions with the side to move CLEAR pawns up or down; in the package's own the two always agree.
    """
    found = []
    for colour, name in ((chess.WHITE, "White"), (chess.BLACK, "Black")):
        asked = [(material(row), row.evals_cp[0]) for row in rows if row.moves and _turn(row) == colour]
        agree = [(pawns > 0) == (best > 0) for pawns, best in asked if abs(pawns) >= CLEAR]
        if len(agree) >= FEW and 4 * sum(agree) < len(agree):
            found.append(
                f"{source}: with {name} to move, and {CLEAR} pawns or more up or down, {len(agree) - sum(agree)} of "
                f"{len(agree)} evaluations say the opposite; evals_cp is for the side to move, its best move first"
            )
    return found


def material(row: Annotation) -> int:
    """The material of the side to move minus the other side's, in pawns."""
    board = _board(row)
    sides = (sum(worth * len(board.pieces(kind, side)) for kind, worth in PAWNS.items()) for side in (True, False))
    white, black = sides
    return white - black if board.turn == chess.WHITE else black - white


def load_annotations(path: Path) -> tuple[Annotation, ...]:
    """The rows of a JSON-lines file with `fen`, `moves` (best first) and `evals_cp`.

    A row may lack both `moves` and `evals_cp`: a position for rewards that need no analysis.
    Raises: DataError naming file and row where the file is missing, empty, or a row is not such an analysis.
    """
    wanted = "wanted: an object with fen, moves and evals_cp, or with fen alone, on each line"
    try:
        text = path.read_text(encoding="utf-8-sig").rstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: annotated positions cannot be read ({why(error)})") from error
    if not text:
        raise DataError(f"{path}: no annotated positions in it; {wanted}")
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):  # JSON may hold other ends of lines
        try:
            rows.append(_annotation(json.loads(line)))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, row {number}: no JSON ({error}); {wanted}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, row {number}: {error}") from error
    return tuple(rows)


def _annotation(row: Any) -> Annotation:
    """A JSON row as an Annotation. Raises: ValueError saying what is wrong with the row."""
    if not isinstance(row, dict) or "fen" not in row or ("moves" in row) != ("evals_cp" in row):
        raise ValueError("not an object with fen, moves and evals_cp, or with fen alone")
    fen = row["fen"]
    fields = fen.split(" ") if isinstance(fen, str) else []
    if len(fields) != 6 or fields != fen.split() or (board := board_of(fen)) is None:
        raise ValueError(f"fen is not a position in six fields: {fen!r}")
    if not chess.Board(board.fen()).is_valid():  # an engine would refuse it; fen() drops void castling rights
        raise ValueError(f"fen is not a position that a game can have: {fen!r}")
    legal = legal_ucis(board)
    if "moves" not in row:
        if not legal:
            raise ValueError(f"fen is a position without a move: {fen!r}")
        return Annotation(fen=fen, moves=(), evals_cp=())
    moves, evals_cp = row["moves"], row["evals_cp"]
    if not isinstance(moves, list) or not all(isinstance(move, str) for move in moves):
        raise ValueError(f"moves is not a list of moves: {moves!r}")
    if not moves or len(set(moves)) < len(moves) or not set(moves) <= legal:
        raise ValueError(f"moves are not distinct legal moves of {fen!r}: {moves}")
    if not isinstance(evals_cp, list) or not all(type(value) is int for value in evals_cp):
        raise ValueError(f"evals_cp is not a list of whole centipawns: {evals_cp!r}")
    if len(evals_cp) != len(moves) or evals_cp != sorted(evals_cp, reverse=True):
        raise ValueError(f"evals_cp is not one value per move, best first: {evals_cp}")
    return Annotation(fen=fen, moves=tuple(moves), evals_cp=tuple(evals_cp))


def annotation_of(document: str) -> tuple[Annotation, str]:
    """The annotation in a P document of the published data, best move first for the side to move, and its label B.

    Of equally good moves the label comes first. The FEN stays as it is written.
    Raises: ValueError saying what is wrong with the document.
    """
    said = parse_p(document)
    if said is None or not said.well_formed or said.best is None or (pairs := said.pairs()) is None:
        raise ValueError("not one P document with 1 to 5 moves, as many evaluations and a best move")
    if said.trailing_garbage:
        raise ValueError(f"text after the best move: {said.trailing_garbage[:40]!r}")
    if not said.best_in_moves:
        raise ValueError(f"the best move {said.best} is not one of {list(said.moves)}")
    if beyond := [pawns for _, pawns in pairs if abs(pawns) > MATE_CP / 100]:
        raise ValueError(f"no evaluation: {beyond[0]:.10g}, as mate in n is {MATE_CP // 100} - n/100 pawns")
    ranked = sorted(((pawns_to_cp(pawns), move) for move, pawns in pairs), key=lambda x: (-x[0], x[1] != said.best))
    row = {"fen": said.fen, "moves": [move for _, move in ranked], "evals_cp": [value for value, _ in ranked]}
    return _annotation(row), said.best


def _board(row: Annotation) -> chess.Board:
    board = board_of(row.fen)
    assert board is not None  # such a row would have been refused
    return board


def _turn(row: Annotation) -> chess.Color:
    return chess.BLACK if row.fen.split(" ")[1] == "b" else chess.WHITE
