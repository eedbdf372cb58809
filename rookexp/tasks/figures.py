"""What a model's answers show, with intervals: P answers by side to move, A answers by ply, move type and class."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import chess

from rookexp import chess_text
from rookexp.chess_text import DRAWN, FAILED, ONGOING, WON
from rookexp.errors import DataError

Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Figure:
    """`hits` of `total`, as a share with its 95 % Wilson score interval. Source: Wilson 1927."""

    hits: int
    total: int

    @property
    def share(self) -> float:
        """hits / total in [0, 1]; NaN for none."""
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end in [0, 1]."""
        if not self.total:
            return (0.0, 1.0)
        n, p = self.total, self.share
        centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
        return (max(0.0, centre - half), min(1.0, centre + half))

    def record(self) -> dict[str, Any]:
        """What a JSON file says of it."""
        share = self.share if self.total else None
        return {"share": share, "interval": self.interval, "hits": self.hits, "total": self.total}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.1f} % [{100 * low:.1f}, {100 * high:.1f}] ({self.hits}/{self.total})"


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of `total` observations, with its 95 % normal interval where a standard error is known."""

    value: float
    error: float | None  # standard error
    total: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper end."""
        return None if self.error is None else (self.value - Z95 * self.error, self.value + Z95 * self.error)

    def record(self) -> dict[str, Any]:
        """What a JSON file says of it."""
        return {"mean": self.value, "interval": self.interval, "total": self.total}

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"
        return f"{self.value:.3f}{interval} (n = {self.total})"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of at least one value; its error comes from the sample's standard deviation."""
    n, mean = len(values), math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else None
    return Mean(mean, None if variance is None else math.sqrt(variance / n), n)


class Tally:
    """Observations under names, in the order in which the names came up."""

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, hits: int, total: int = 1) -> None:
        """Counts `total` yes-or-no observations, `hits` of them yes."""
        if total:
            self._seen[name][0] += hits
            self._seen[name][1] += total

    def measure(self, name: str, value: float) -> None:
        """Notes one number, of which the mean is asked."""
        self._values[name].append(value)

    def figures(self) -> dict[str, Figure | Mean]:
        """The figure of each name, means last."""
        shares = {name: Figure(hits, total) for name, (hits, total) in self._seen.items()}
        return {**shares, **{name: mean_of(values) for name, values in self._values.items()}}


# ---- P ----------------------------------------------------------------------------------------------------------


def policy_figures(
    documents: Sequence[str], completions: Iterable[str], prompts: Sequence[str]
) -> dict[str, Figure | Mean]:
    """Figures of P answers against gold documents: of all, then of White's to move, then of Black's.

    A document's lines are the engine's; its best move is any of them with the highest evaluation, and what stands after
    `B:` is only the label. Rates are over all documents unless the name says otherwise: an unreadable answer is a
    miss. A word in the list that is no move is an illegal one. Where a model gives several listed moves the same
    highest value, the first of them speaks for its list: the order says nothing, so that is a fair draw.
    `highest-valued` and `lowest-valued` of B count every well-formed answer whose values are not all equal; any of
    equals is right, and B listed twice with different values is neither. A win-probability loss is the engine's best
    line less its line of that move, in [0, 1], lower is better; it is known only for moves among the lines, whose rate
    stands beside it.
    Raises: DataError for a document that is no P document.
    """
    whole, sides = Tally(), {chess.WHITE: Tally(), chess.BLACK: Tally()}
    for document, completion, prompt in zip(documents, completions, prompts, strict=True):
        gold = chess_text.parse_p(document)
        board = None if gold is None else chess_text.board_of(gold.fen)
        lines = None if gold is None or not gold.well_formed else gold.pairs()
        if gold is None or board is None or lines is None:
            raise DataError(f"not a P document: {document!r}")
        answer = chess_text.parse_p(prompt + completion) or chess_text.PolicyAnswer("", (), (), None, "")
        for tally in (whole, sides[board.turn]):
            _add_policy(tally, gold, dict(lines), answer, chess_text.legal_ucis(board))
    figures = whole.figures()
    for turn, name in ((chess.WHITE, "White"), (chess.BLACK, "Black")):
        figures |= {f"{key}, {name}": figure for key, figure in sides[turn].figures().items()}
    return figures


def _add_policy(
    tally: Tally,
    gold: chess_text.PolicyAnswer,
    lines: dict[str, float],
    answer: chess_text.PolicyAnswer,
    legal: frozenset[str],
) -> None:
    """One answer; `lines` are the engine's moves with their evaluations in pawns."""
    top = max(lines.values())
    best = {move for move, value in lines.items() if value == top}
    pairs = answer.pairs() if answer.well_formed else None
    highest = max(pairs, key=lambda pair: pair[1])[0] if pairs else None
    tally.add("format valid", answer.well_formed and answer.fen == gold.fen and not answer.trailing_garbage)
    tally.add("B legal", answer.best in legal)
    tally.add("listed moves legal", sum(answer.legality(legal)), len(answer.moves))
    tally.add("the engine's moves listed", len(lines.keys() & set(answer.moves)), len(lines))
    tally.add("the engine's best move listed", bool(best & set(answer.moves)))
    tally.add("B is the label", answer.best == gold.best)
    tally.add("B is the engine's move", answer.best in best)
    tally.add("the highest-valued listed move is the engine's", highest in best)
    if pairs and len(values := [value for _, value in pairs]) > 1 and min(values) < max(values):
        own = {value for move, value in pairs if move == answer.best}
        tally.add("B is the highest-valued listed move", own == {max(values)})
        tally.add("B is the lowest-valued listed move", own == {min(values)})
    for name, move in (("B", answer.best), ("the highest-valued listed move", highest)):
        tally.add(f"{name} is among the engine's", move in lines)
        if move in lines:
            tally.measure(f"win-probability loss of {name}, if among the engine's", _win(top) - _win(lines[move]))


def _win(pawns: float) -> float:
    return chess_text.win_probability(chess_text.pawns_to_cp(pawns))


# ---- A ----------------------------------------------------------------------------------------------------------

PLY_BUCKETS = (
    (1, "ply 1"),
    (2, "ply 2"),
    (5, "plies 3-5"),
    (10, "plies 6-10"),
    (30, "plies 11-30"),
    (math.inf, "plies 31+"),
)
SLICES = (
    *(name for _, name in PLY_BUCKETS),
    "moves 1-5",
    "castling",
    "en passant",
    "promotion",
    "capture",
    "check",
    "illegal",
)
OUTCOMES = {  # reward, terminated, truncated
    (ONGOING, False, False): "ongoing",
    (WON, True, False): "mate",
    (DRAWN, True, False): "draw",
    (FAILED, False, True): "failed",
}
CLASSES = ("ongoing", "mate", "mate made by the move", "draw", "draw made by the move", "failed")


def environment_figures(documents: Sequence[str], completions: Iterable[str]) -> dict[str, Figure | Mean]:
    """Figures of A answers against gold documents: validity, next state, fields, and recall of every class.

    `exact` asks all six fields of the FEN. A ply is that of the move asked, counted from the start of the game by the
    FEN; a move belongs to every type that it has, if it is legal. The class is reward and both flags together;
    `made by the move` leaves out positions that were over before it. Answering the commonest class always is the
    baseline of `outcome right`; the macro figures are unweighted means over the classes that occur.
    Raises: DataError for a document that is no A document.
    """
    fields, slices, classes = Tally(), Tally(), Tally()
    confusion: Counter[tuple[str, str | None]] = Counter()
    for document, completion in zip(documents, completions, strict=True):
        prompt = chess_text.parse_a_prompt(document)
        board = None if prompt is None else chess_text.board_of(prompt.fen)
        gold = chess_text.parse_a_completion(document.split("+", 3)[-1])
        kind = _outcome(gold)
        if prompt is None or board is None or kind is None or not gold.valid:
            raise DataError(f"not an A document: {document!r}")
        answer = chess_text.parse_a_completion(completion)
        match = chess_text.match(answer.new_fen, gold.new_fen)
        fields.add("valid", answer.valid)
        fields.add("next state exact", match.strict)
        fields.add("next state, first four fields", match.lenient)
        fields.add("next state, board", match.board)
        fields.add("answer exact", match.strict and answer == gold)
        fields.add("reward right", answer.reward == gold.reward)
        fields.add("terminated right", answer.terminated == gold.terminated)
        fields.add("truncated right", answer.truncated == gold.truncated)
        for name in _slices(board, prompt.move):
            slices.add(name, match.strict)
        given = _outcome(answer)
        confusion[kind, given] += 1
        classes.add(kind, given == kind)
        if kind in ("mate", "draw") and not board.is_game_over():
            classes.add(f"{kind} made by the move", given == kind)
    figures = fields.figures() | _summary(confusion)
    for what, tally, order in (("outcome right", classes, CLASSES), ("next state exact", slices, SLICES)):
        found = tally.figures()
        figures |= {f"{what}, {name}": found[name] for name in order if name in found}
    return figures


def _outcome(answer: chess_text.EnvironmentAnswer) -> str | None:
    """The class of an answer, None where it is none."""
    if answer.reward is None or answer.terminated is None or answer.truncated is None:
        return None
    return OUTCOMES.get((answer.reward, answer.terminated, answer.truncated))


def _slices(board: chess.Board, uci: str) -> list[str]:
    """The ply bucket and the move types of a transition."""
    ply = board.ply() + 1
    names = [next(name for last, name in PLY_BUCKETS if ply <= last)]
    if board.fullmove_number <= 5:
        names.append("moves 1-5")
    if uci not in chess_text.legal_ucis(board):
        return [*names, "illegal"]
    move = chess.Move.from_uci(uci)
    types = {
        "castling": board.is_castling(move),
        "en passant": board.is_en_passant(move),
        "promotion": move.promotion is not None,
        "capture": board.is_capture(move),
        "check": board.gives_check(move),
    }
    return names + [name for name, holds in types.items() if holds]


def _summary(confusion: Counter[tuple[str, str | None]]) -> dict[str, Figure | Mean]:
    """Over all classes; `confusion` counts (gold, given) pairs."""
    gold: Counter[str] = Counter()
    given: Counter[str | None] = Counter()
    for (true, said), count in confusion.items():
        gold[true] += count
        given[said] += count
    if not gold:
        return {}
    total = sum(gold.values())
    commonest, most = gold.most_common(1)[0]
    recalls = [confusion[kind, kind] / count for kind, count in gold.items()]
    f1 = [2 * confusion[kind, kind] / (count + given[kind]) for kind, count in gold.items()]
    return {
        "outcome right": Figure(sum(confusion[kind, kind] for kind in gold), total),
        f"outcome right, were it always {commonest}": Figure(most, total),
        "outcome, macro recall": Mean(math.fsum(recalls) / len(recalls), None, total),
        "outcome, macro F1": Mean(math.fsum(f1) / len(f1), None, total),
    }
