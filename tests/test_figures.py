"""Figures: intervals from tables, gold answers score everything, each definition counts what its name says."""

from __future__ import annotations

import math
import random

import chess
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rookexp import boards, chess_text, statistics
from rookexp.corpora import documents
from rookexp.errors import DataError
from rookexp.rewards.chess import PolicyReward
from rookexp.rewards.environment import Exact
from rookexp.tasks import positions
from rookexp.tasks.a_figures import environment_figures
from rookexp.tasks.figures import Estimate, Figure, Tally, bounded, mean_of, median_of, pooled, ratio_of
from rookexp.tasks.p_figures import best_moves, policy_figures
from rookexp.types import Prompt

WHITE = "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 20"
BLACK = "r5k1/5ppp/8/8/8/8/5PPP/6K1 b - - 0 20"


def p_gold(fen: str, moves: list[str], evals_cp: list[int]) -> str:
    turn = chess.Board(fen).turn
    return chess_text.build_p(fen, moves, evals_cp, chess_text.best_label(moves, evals_cp, turn, "legacy"))


def answer(fen: str, moves: str, evals: str, best: str) -> tuple[str, str]:
    """Prompt and completion."""
    return chess_text.p_prompt(fen), f"  M: {moves}  E: {evals}  B: {best}"


def of(fen: str, gold: tuple[list[str], list[int]], given: tuple[str, str, str]) -> dict[str, Figure | Estimate]:
    prompt, completion = answer(fen, *given)
    return policy_figures([p_gold(fen, *gold)], [completion], [prompt], None)


def share(figure: Figure | Estimate) -> float:
    assert isinstance(figure, Figure)
    return figure.share


# ---- intervals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [  # R: prop.test(hits, total, correct = FALSE)
        (8, 10, 0.4901625, 0.9433178),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (50, 100, 0.4038315, 0.5961685),
        (1, 3, 0.0614919, 0.7923404),
    ],
)
def test_wilson_intervals(hits: int, total: int, low: float, high: float) -> None:
    assert Figure(hits, total).interval == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 5000), st.floats(0, 1))
def test_an_interval_holds_its_share(total: int, part: float) -> None:
    figure = Figure(round(part * total), total)
    low, high = figure.interval
    assert 0 <= low <= figure.share + 1e-12
    assert figure.share - 1e-12 <= high <= 1
    twice = Figure(2 * figure.hits, 2 * total).interval
    assert twice[1] - twice[0] < high - low


def test_no_observation_is_no_share() -> None:
    none = Figure(0, 0)
    assert math.isnan(none.share)
    assert str(none) == "nothing to count"
    assert none.record() == {"share": None, "interval": (0.0, 1.0), "hits": 0, "total": 0}


def test_bunches_are_independent_and_not_what_is_in_them() -> None:
    whole = pooled([(5, 5)] * 30 + [(0, 5)] * 70)  # each answer is all right or all wrong: it says no more than one
    assert whole == Figure(150, 500)
    assert whole.interval == pytest.approx(Figure(30, 100).interval, abs=0.003)
    even = pooled([(1, 5), (2, 5), (1, 5)] * 30).interval
    assert even == pytest.approx(Figure(120, 450).interval, abs=0.001)  # never narrower than that
    assert even[0] < Figure(120, 450).interval[0]
    assert pooled([(5, 5)] * 20).interval == Figure(20, 20).interval
    assert pooled([(4, 9)]).sized == 1
    assert pooled([(0, 0)]) == pooled([]) == Figure(0, 0)
    tally = Tally()
    tally.add_bunch("legal", 5, 5)
    tally.add_bunch("legal", 0, 5)
    assert tally.figures()["legal"].interval == pooled([(5, 5), (0, 5)]).interval


def test_a_mean_has_the_interval_of_its_standard_error() -> None:
    mean = mean_of([1.0, 2.0, 3.0, 4.0])
    error = math.sqrt(5 / 3 / 4)
    assert (mean.value, mean.total) == (2.5, 4)
    assert mean.interval == pytest.approx((2.5 - 3.182446 * error, 2.5 + 3.182446 * error))
    assert str(mean) == "2.500 [0.446, 4.554] (n = 4)"
    assert mean_of([0.25]).record() == {"mean": 0.25, "interval": None, "total": 1}


def test_a_ratio_takes_observations_and_not_units_as_independent() -> None:
    sizes = [1, 2, 3, 6]
    assert ratio_of([2.0, 4.0, 6.0, 12.0], sizes) == Estimate(2.0, None, 4)
    spread = ratio_of([0.0, 6.0, 6.0, 12.0], sizes)
    error = math.sqrt((2**2 + 2**2 + 0 + 0) / 3 / 4) / 3  # residuals of 2 a unit, over the mean size
    assert spread.interval == pytest.approx((2 - 3.182446 * error, 2 + 3.182446 * error))
    uneven = mean_of([0.0, 0.0, 3.0])
    assert uneven.interval == (0.0, pytest.approx(1 + 4.302653))


@pytest.mark.parametrize(("bunches", "share"), [(3, 0.5), (5, 0.9), (20, 0.98)])
def test_few_bunches_have_an_interval_that_holds_the_truth(bunches: int, share: float) -> None:
    """Beta-binomial answers of 10 moves, whose shares vary from answer to answer."""
    rng = np.random.default_rng(bunches)
    found = []
    for _ in range(600):
        shares = rng.beta(share * 7 / 3, (1 - share) * 7 / 3, bunches)  # a correlation of 0.3 within an answer
        low, high = pooled([(int(hits), 10) for hits in rng.binomial(10, shares)]).interval
        found.append(low <= share <= high)
    assert np.mean(found) > 0.84


@pytest.mark.parametrize(
    ("n", "cut"),  # P(fewer than `cut` heads of n) <= 1/40 < P(at most `cut`); Conover 1999, table A3
    [(1, None), (5, None), (6, 0), (8, 0), (9, 1), (20, 5), (100, 39)],
)
def test_a_median_lies_between_two_of_its_values(n: int, cut: int | None) -> None:
    found = median_of([float(value) for value in range(n)][::-1])
    assert (found.value, found.total, found.kind) == ((n - 1) / 2, n, "median")
    assert found.interval == (None if cut is None else (cut, n - 1 - cut))
    assert found.record().keys() == {"median", "interval", "total"}


def test_a_bounded_mean_has_students_interval_for_few_values_and_the_bootstraps_for_many() -> None:
    few, many = [0.1, 0.2, 0.3, 0.9], [0.1, 0.2, 0.3, 0.9] * 20
    assert bounded(few) == bounded(few)
    found = statistics.mean(few)
    assert found.low < 0, "so it ends at the bound"
    assert bounded(few) == Estimate(0.375, (0.0, pytest.approx(found.high)), 4)
    assert bounded([0.0, 1.0]).interval == (0, 1), "two values say next to nothing"
    assert bounded([30.0, 40.0, 40.0], 40).interval[1] == 40
    drawn = statistics.bootstrap(many)
    assert bounded(many).interval == (drawn.low, drawn.high)
    assert bounded([0.3]) == Estimate(0.3, None, 1)
    assert bounded([0.5] * 5) == Estimate(0.5, None, 5)


def test_a_tally_counts_names_in_their_order() -> None:
    tally = Tally()
    tally.add("b", hits=2, total=3)
    tally.measure("c", 0.5)
    tally.add("a", hits=True)
    tally.add("b", hits=False)
    tally.add("nothing", hits=0, total=0)
    assert list(tally.figures().items()) == [("b", Figure(2, 4)), ("a", Figure(1, 1)), ("c", Estimate(0.5, None, 1))]


# ---- P ----------------------------------------------------------------------------------------------------------

MOVES, EVALS = ["a1a8", "h2h3", "g1f1"], [99_999, 400, 380]
GOLD = ("a1a8 h2h3 g1f1", "999.99 4.0 3.8", "a1a8")
PROMPTS = [f"P: {WHITE}", f"P: {BLACK}"]


def test_the_documents_themselves_score_everything() -> None:
    rng = random.Random(1)
    gold = []
    for _ in range(30):
        board = positions.middlegame(rng)
        moves = [move.uci() for move in board.legal_moves][:5]
        if len(moves) == 5:
            row = documents.Row(board, "middlegame", tuple(moves), (90, 40, 10, -20, -700))
            gold.append(documents.p_document(row, rng, "legacy", "sorted"))
    prompts = [chess_text.p_prompt(chess_text.parse_p(text).fen) for text in gold]
    figures = policy_figures(gold, [g.removeprefix(p) for g, p in zip(gold, prompts, strict=True)], prompts, None)
    misses = {
        "B is the engine's move, Black": 0.0,  # the label of the published data
        "B is the highest-valued listed move, Black": 0.0,
        "B is the lowest-valued listed move, White": 0.0,
    }
    for name, figure in figures.items():
        if name.endswith(("White", "Black")) and isinstance(figure, Figure):
            assert figure.share == misses.get(name, 1.0), name
    assert share(figures["format valid"]) == share(figures["B is the label"]) == 1
    loss = "win-probability loss of B, if among the engine's"
    assert figures[f"{loss}, White"].value == 0
    expected = chess_text.win_probability(90) - chess_text.win_probability(-700)
    assert figures[f"{loss}, Black"].value == pytest.approx(expected)
    assert figures["win-probability loss of the highest-valued listed move, if among the engine's"].value == 0


def test_sides_to_move_add_up() -> None:
    gold = [p_gold(WHITE, MOVES, EVALS), p_gold(BLACK, ["a8a1", "h7h6"], [99_999, 400])]
    figures = policy_figures(gold, [answer(WHITE, *GOLD)[1], " M: a1a8 E: 1.0 B: a1a8"], PROMPTS, None)
    for name, figure in figures.items():
        if not name.endswith(("White", "Black")) and isinstance(figure, Figure):
            sides = [figures.get(f"{name}, {side}", Figure(0, 0)) for side in ("White", "Black")]
            assert figure == Figure(sum(side.hits for side in sides), sum(side.total for side in sides))
    assert figures["format valid, Black"] == Figure(1, 1)
    assert figures["B legal, Black"] == Figure(0, 1)


def test_what_is_no_move_is_illegal_and_what_is_missing_is_a_miss() -> None:
    figures = of(WHITE, (MOVES, EVALS), ("a1a8 a1a9 a1 g1h3", "1 2 3 4", "a1a9"))
    assert figures["listed moves legal"] == Figure(1, 4)
    assert figures["the engine's moves listed"] == Figure(1, 3)
    assert figures["the engine's best move listed"] == Figure(1, 1)
    assert figures["B legal"] == figures["format valid"] == Figure(0, 1)
    empty = policy_figures([p_gold(WHITE, MOVES, EVALS)], [""], PROMPTS[:1], None)
    assert empty.pop("a random legal move is the engine's").value == 1 / len(list(chess.Board(WHITE).legal_moves))
    empty.pop("a random legal move is the engine's, White")
    assert set(empty.values()) <= {Figure(0, 1), Figure(0, 3)}
    assert "listed moves legal" not in empty


@pytest.mark.parametrize(
    "completion",
    [
        "5  M: a1a8  E: 1.0  B: a1a8",  # goes on with the FEN
        "  M: a1a8  E: 1.0  B: a1a8 and more",
        "  M: a1a8 h2h3  E: 1.0  B: a1a8",
        "  M: a1a8  E: one  B: a1a8",
        "  M: a1a8  E: 1.0  B:",
    ],
)
def test_formats_that_are_not_valid(completion: str) -> None:
    gold = [p_gold(WHITE, MOVES, EVALS)]
    assert policy_figures(gold, [completion], PROMPTS[:1], None)["format valid"] == Figure(0, 1)
    assert policy_figures(gold, ["  M: a1a8  E: 1.0  B: a1a8"], PROMPTS[:1], None)["format valid"] == Figure(1, 1)


def test_the_engines_move_is_any_of_equals() -> None:
    tied = (["a1a8", "h2h3", "g1f1"], [400, 400, 380])
    for best in ("a1a8", "h2h3"):
        assert of(WHITE, tied, ("a1a8", "1.0", best))["B is the engine's move"] == Figure(1, 1)
    assert of(WHITE, tied, ("a1a8", "1.0", "g1f1"))["B is the engine's move"] == Figure(0, 1)


def test_of_equal_listed_values_the_first_speaks_and_b_may_be_either() -> None:
    gold = (MOVES, EVALS)
    name = "the highest-valued listed move is the engine's"
    assert of(WHITE, gold, ("a1a8 h2h3 g1f1", "5.0 5.0 1.0", "h2h3"))[name] == Figure(1, 1)
    figures = of(WHITE, gold, ("h2h3 a1a8 g1f1", "5.0 5.0 1.0", "a1a8"))
    assert figures[name] == Figure(0, 1)
    assert figures["B is the highest-valued listed move"] == Figure(1, 1)
    assert figures["B is the lowest-valued listed move"] == Figure(0, 1)
    twice = of(WHITE, gold, ("a1a8 a1a8", "5.0 1.0", "a1a8"))
    assert twice["B is the highest-valued listed move"] == twice["B is the lowest-valued listed move"] == Figure(0, 1)
    alike = of(WHITE, gold, ("h2h3 a1a8", "5.0 5.0", "a1a8"))
    assert not [name for name in alike if name.startswith(("B is the highest", "B is the lowest"))]


def test_loss_is_known_for_the_engines_moves_only() -> None:
    figures = of(WHITE, (MOVES, EVALS), ("h2h3 f2f4", "1.0 2.0", "h2h3"))
    loss = figures["win-probability loss of B, if among the engine's"]
    assert isinstance(loss, Estimate)
    assert loss.value == pytest.approx(1 - 1 / (1 + math.exp(-0.00368208 * 400)))
    assert figures["B is among the engine's"] == Figure(1, 1)
    assert figures["the highest-valued listed move is among the engine's"] == Figure(0, 1)
    assert not [name for name in figures if name.startswith("win-probability loss of the highest")]


def test_values_are_compared_by_move_in_win_probability_and_centipawns() -> None:
    given = ("g1f1 a1a8 h2h3 f2f3", "4.8 999.99 -1.0 9.0", "g1f1")  # f2f3 is no line of the engine's
    figures = of(WHITE, (MOVES, EVALS), given)
    where = "if among the engine's"
    win = chess_text.win_probability
    error = (abs(win(480) - win(380)) + 0 + abs(win(-100) - win(400))) / 3
    assert figures[f"win-probability error of listed values, {where}"].value == pytest.approx(error)
    assert figures[f"centipawn error of listed values, {where}"] == Estimate(100, None, 1, "median")
    assert figures[f"pairs of listed values in the true order, {where}"].value == pytest.approx(2 / 3)
    assert figures[f"win-probability loss of the best listed move, {where}"].value == 0
    alike = of(WHITE, (MOVES, EVALS), ("g1f1 a1a8", "1.0 1.0", "g1f1"))
    assert alike[f"pairs of listed values in the true order, {where}"].value == 0.5
    assert figures[f"win-probability loss of B, {where}"].value == pytest.approx(1 - win(380))


def test_an_engine_at_hand_knows_the_loss_of_every_legal_move() -> None:
    truth = {"a1a8": 99_999, "h2h3": 400, "g1f1": 380, "f2f4": 100, "g1h1": -50}
    prompt, completion = answer(WHITE, "f2f4 g1h1 a1a9", "1.0 2.0 3.0", "f2f4")
    figures = policy_figures([p_gold(WHITE, MOVES, EVALS)], [completion], [prompt], [truth])
    win = chess_text.win_probability
    losses = {name: f.value for name, f in figures.items() if " loss of " in name and name.endswith("by Stockfish")}
    assert losses == pytest.approx(
        {
            "win-probability loss of B, by Stockfish": 1 - win(100),
            "win-probability loss of the best listed move, by Stockfish": 1 - win(100),
        }  # the highest-valued listed move is no move
    )
    assert figures["pairs of listed values in the true order, by Stockfish"].value == 0
    assert not [name for name in figures if " loss of " in name and name.endswith("the engine's")]


@pytest.mark.parametrize(
    ("best", "evals", "of_b", "of_highest"),
    [
        ("g1f1", "2.0 1.0", (1, 1), (1, 1)),  # equal to the best one, though the document has another
        ("g1h1", "1.0 2.0", (0, 0), (0, 0)),
        ("h2h3", "1.0 2.0", (0, 1), (0, 0)),
        ("a1a9", "1.0 2.0", (0, 0), (0, 0)),
    ],
)
def test_an_engine_at_hand_ranks_the_move_among_all_legal_ones(
    best: str, evals: str, of_b: tuple[int, int], of_highest: tuple[int, int]
) -> None:
    truth = {"a1a8": 400, "g1f1": 400, "h2h3": 380, "f2f3": 90, "f2f4": 80, "g2g3": 80, "g1h1": -50}
    prompt, completion = answer(WHITE, "g1f1 g1h1", evals, best)
    figures = policy_figures([p_gold(WHITE, MOVES, EVALS)], [completion], [prompt], [truth])
    for move, (first, five) in {"B": of_b, "the highest-valued listed move": of_highest}.items():
        for side in ("", ", White"):
            assert figures[f"{move} is the best move, by Stockfish{side}"] == Figure(first, 1)
            assert figures[f"{move} is among the best 5, by Stockfish{side}"] == Figure(five, 1)
    without = policy_figures([p_gold(WHITE, MOVES, EVALS)], [completion], [prompt], None)
    assert not [name for name in without if "by Stockfish" in name]


def test_the_best_moves_of_a_document_are_the_highest_lines() -> None:
    assert best_moves(p_gold(BLACK, ["a8a1", "h7h6"], [99_999, 400])) == ["a8a1"]
    assert best_moves(p_gold(WHITE, ["a1a8", "h2h3", "g1f1"], [30, 30, 20])) == ["a1a8", "h2h3"]


def test_a_wrong_document_is_named() -> None:
    for text in ("P: nonsense", chess_text.p_prompt_padded(WHITE), "A: x+y+z+"):
        with pytest.raises(DataError, match="not a P document"):
            policy_figures([text], [""], [text], None)
        with pytest.raises(DataError, match="not an A document"):
            environment_figures([text], [""])
    for fen in (
        "8/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 20",
        "6k1/8/8/8/8/8/8/K5R1 w - - 0 20",
    ):  # a king missing, or taken next
        with pytest.raises(DataError, match="not a P document, as no game has its position: 'P: "):
            best_moves(chess_text.build_p(fen, ["g1f1"], [30], "g1f1"))


@given(st.text(alphabet="PMEB: a1h8q.-0/\n<|", max_size=60))
def test_no_completion_raises(text: str) -> None:
    policy_figures([p_gold(WHITE, MOVES, EVALS)], [text], [f"P: {WHITE}"], None)
    environment_figures([a_gold(chess.STARTING_FEN, "e2e4")], [text])


# ---- A ----------------------------------------------------------------------------------------------------------

MATE = ("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 20", "a1a8")
STALEMATE = ("7k/8/5K2/6Q1/8/8/8/8 w - - 0 70", "g5g6")
ENDED = ("8/8/4k3/8/8/4K3/8/8 w - - 0 70", "e3e4")
CASTLING = ("r1bqk1nr/pppp1ppp/2n5/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 4 4", "e1g1")
FAILED = (chess.STARTING_FEN, "e4e5")
FIRST = (chess.STARTING_FEN, "e2e4")


def a_gold(fen: str, move: str) -> str:
    return chess_text.build_a(fen, move, [move], chess_text.transition(fen, move, legality="legacy"))


def completion(document: str) -> str:
    return document.split("+", 3)[3]


def test_gold_answers_are_right_in_every_slice() -> None:
    promotion = ("8/P6k/8/8/8/8/8/K7 w - - 0 60", "a7a8q")
    first = (chess.STARTING_FEN, "e2e4")
    gold = [a_gold(*case) for case in (MATE, STALEMATE, ENDED, CASTLING, FAILED, promotion, first)]
    figures = environment_figures(gold, map(completion, gold))
    for name, figure in figures.items():
        if isinstance(figure, Figure) and "were it always" not in name:
            assert figure.share == (0 if "strict oracle" in name else 1), name
    assert figures["outcome, macro recall"].value == figures["outcome, macro F1"].value == 1
    assert figures["outcome right, were it always ongoing"] == Figure(3, 7)
    assert figures["outcome right, draw"] == Figure(2, 2)
    assert figures["outcome right, draw made by the move"] == Figure(1, 1)
    assert [name for name in figures if name.startswith("next state exact, ")] == [
        f"next state exact, {name}"
        for name in ("ply 1", "plies 6-10", "plies 31+", "moves 1-5", "castling", "promotion", "check", "illegal")
    ]
    assert {f"next state exact, {name}" for name in ("castling", "promotion", "check", "illegal")} <= set(figures)


@pytest.mark.parametrize(
    ("fen", "move", "slices"),
    [
        (chess.STARTING_FEN, "e2e4", {"ply 1", "moves 1-5"}),
        ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1", "e7e5", {"ply 2", "moves 1-5"}),
        ("rnbqkbnr/ppp1pppp/8/3p4/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2", "e4d5", {"plies 3-5", "moves 1-5", "capture"}),
        ("8/8/8/8/8/8/8/K6k w - - 0 3", "a1a2", {"plies 3-5", "moves 1-5"}),
        ("8/8/8/8/8/8/8/K6k b - - 0 3", "h1h2", {"plies 6-10", "moves 1-5"}),
        ("8/8/8/8/8/8/8/K6k b - - 0 5", "h1h2", {"plies 6-10", "moves 1-5"}),
        ("8/8/8/8/8/8/8/K6k w - - 0 6", "a1a2", {"plies 11-30"}),
        ("8/8/8/8/8/8/8/K6k b - - 0 15", "h1h2", {"plies 11-30"}),
        ("8/8/8/8/8/8/8/K6k w - - 0 16", "a1a2", {"plies 31+"}),
        ("8/8/8/8/3pP3/8/8/K6k b - e3 0 40", "d4e3", {"plies 31+", "en passant", "capture"}),
        ("r3k2r/8/8/8/8/8/8/4K3 b kq - 0 40", "e8c8", {"plies 31+", "castling"}),
        ("8/8/8/8/8/8/6p1/K6k b - - 0 40", "g2g1q", {"plies 31+", "promotion", "check"}),
        ("8/8/8/8/8/8/8/K6k w - - 0 40", "b1b2", {"plies 31+", "illegal"}),
        ("8/8/8/8/8/8/8/K6k w - - 0 40", "a9b2", {"plies 31+", "illegal"}),
    ],
)
def test_a_move_belongs_to_its_ply_and_its_types(fen: str, move: str, slices: set[str]) -> None:
    figures = environment_figures([a_gold(fen, move)], ["wrong"])
    found = {name.removeprefix("next state exact, ") for name in figures if name.startswith("next state exact, ")}
    assert found == slices


@pytest.mark.parametrize(
    ("move", "kind"),
    [("e2e5", "from an occupied square"), ("e7e5", "from an occupied square"), ("e4e5", "from an empty square"),
     ("e2e9", "no move at all"), ("e2e2", "no move at all")],
)  # fmt: skip
def test_an_illegal_move_has_an_answer_by_each_oracle(move: str, kind: str) -> None:
    gold = a_gold(chess.STARTING_FEN, move)
    truths = {
        legality: chess_text.transition(chess.STARTING_FEN, move, legality=legality).text()
        for legality in ("legacy", "strict")
    }
    for said, text in truths.items():
        figures = environment_figures([gold], [text])
        for legality, truth in truths.items():
            name = f"answer exact by the {legality} oracle, illegal"
            assert figures[name] == figures[f"{name}, {kind}"] == Figure(int(truth == text), 1), (said, legality)
    assert (truths["legacy"] == truths["strict"]) == (kind == "no move at all")
    legal = environment_figures([a_gold(*FIRST)], ["x"])
    assert not [name for name in legal if "oracle" in name]


def test_parts_of_an_answer_count_by_themselves() -> None:
    gold = a_gold(chess.STARTING_FEN, "e2e4")
    clocks = completion(gold).replace(" 0 1+", " 1 2+")
    figures = environment_figures([gold], [clocks])
    assert (share(figures["next state, board"]), share(figures["next state, first four fields"])) == (1, 1)
    assert (share(figures["next state exact"]), share(figures["answer exact"])) == (0, 0)
    figures = environment_figures([gold], [completion(gold).replace("0.001+0+0", "1.0+1+0")])
    assert (share(figures["next state exact"]), share(figures["answer exact"])) == (1, 0)
    assert (share(figures["reward right"]), share(figures["terminated right"])) == (0, 0)
    assert (share(figures["truncated right"]), share(figures["outcome right, ongoing"])) == (1, 0)
    figures = environment_figures([gold], [completion(gold) + "+0"])
    assert (share(figures["valid"]), share(figures["answer exact"])) == (0, 0)
    assert share(figures["outcome right, ongoing"]) == 0, "as in the rewards, an answer of five fields has no outcome"


BITS = [
    " ",
    "M:",
    "E:",
    "B:",
    "e2e4",
    "a1a8",
    "h7h6",
    "0.5",
    "-3.1",
    "nan",
    "x",
    "+",
    "+0",
    "1",
    "0.001",
    "<|endoftext|>",
]
CHANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 4), st.sampled_from(["", *BITS])), max_size=4)


def changed(text: str, changes: list[tuple[int, int, str]]) -> str:
    """The text with some of its characters replaced by others."""
    for place, length, instead in changes:
        at = place % (len(text) + 1)
        text = text[:at] + instead + text[at + length :]
    return text


@given(fen=st.sampled_from([WHITE, BLACK]), padded=st.booleans(), changes=CHANGES)
@settings(max_examples=300)
def test_rewards_and_figures_read_a_p_answer_alike(fen: str, padded: bool, changes: list[tuple[int, int, str]]) -> None:
    moves = ["a1a8", "h2h3", "g2g4"] if fen == WHITE else ["a8a1", "h7h6", "g7g5"]
    gold, truth = p_gold(fen, moves, [900, 20, -310]), chess_text.Annotation(fen, tuple(moves), (900, 20, -310))
    prompt = chess_text.p_prompt_padded(fen) if padded else chess_text.p_prompt(fen)
    text = changed(gold.removeprefix(prompt), changes)
    asked = [Prompt(prompt, (1,), truth, "P")]
    parts = PolicyReward(best=0.5, candidates=0.3, evals=0.2).score(asked, [text]).parts
    figures = policy_figures([gold], [text], [prompt], None)
    answer = chess_text.p_answer(prompt, text)
    assert share(figures["B legal"]) == parts["best_legal"]
    assert share(figures["B is the engine's move"]) == parts["best_is_engine"]
    assert share(figures["format valid"]) == (parts["format_valid"] and not answer.trailing_garbage)
    if answer.moves:
        assert share(figures["listed moves legal"]) == pytest.approx(float(parts["moves_legal"]))
    if parts["argmax_is_engine"] in (0, 1):  # else it is split among equals, and the first counts
        assert share(figures["the highest-valued listed move is the engine's"]) == parts["argmax_is_engine"]
    drawn = boards.answer(prompt, text, moves[0])
    assert drawn is not None
    assert (f"best {moves[0]}," in drawn.words) == bool(parts["best_is_engine"])


@given(changes=CHANGES)
@example(changes=[(190, 0, " ")])
@settings(max_examples=300)
def test_rewards_and_figures_read_an_a_answer_alike(changes: list[tuple[int, int, str]]) -> None:
    gold = a_gold(*FIRST)
    text = changed(completion(gold), changes)
    truth = chess_text.transition(*FIRST, legality="strict")
    parts = Exact().score([Prompt(gold.removesuffix(completion(gold)), (1,), truth, "A")], [text]).parts
    figures = environment_figures([gold], [text])
    assert share(figures["next state exact"]) == parts["fen_strict"]
    assert share(figures["next state, first four fields"]) == parts["fen_lenient"]
    assert share(figures["next state, board"]) == parts["fen_board"]
    assert share(figures["outcome right, ongoing"]) == parts["recall_ongoing"]
    assert share(figures["valid"]) >= parts["state_valid"]
    assert share(figures["answer exact"]) >= parts["exact"]
    drawn = boards.next_state(gold, text, completion(gold))
    if drawn is not None:
        assert drawn[1].words.endswith(": exact") == bool(share(figures["answer exact"]))


def test_always_the_commonest_class_is_the_baseline_and_macro_figures_see_it() -> None:
    gold = [a_gold(chess.STARTING_FEN, "e2e4")] * 8 + [a_gold(*MATE), a_gold(*STALEMATE)]
    figures = environment_figures(gold, ["x+0.001+0+0"] * 10)
    assert figures["outcome right"] == figures["outcome right, were it always ongoing"] == Figure(8, 10)
    assert figures["outcome right, mate"] == figures["outcome right, draw made by the move"] == Figure(0, 1)
    assert figures["outcome, macro recall"].value == pytest.approx(1 / 3)
    assert figures["outcome, macro F1"].value == pytest.approx((2 * 8 / (8 + 10)) / 3)
    assert environment_figures([], []) == {}


def test_macro_figures_have_an_interval_that_knows_how_few_a_rare_class_has() -> None:
    gold = [a_gold(*FIRST)] * 30 + [a_gold(*MATE)] * 10
    said = [completion(text) for text in gold]
    said[30:34] = ["x+0.001+0+0"] * 4  # 6 of 10 mates are seen, and nothing else is called one
    names = ("outcome, macro recall", "outcome, macro F1")
    recall, f1 = (environment_figures(gold, said)[name] for name in names)
    assert (recall.value, recall.total) == (pytest.approx((1 + 0.6) / 2), 40)
    assert f1.value == pytest.approx((60 / 64 + 12 / 16) / 2)
    # About half the Wilson interval of the mates' recall, [0.31, 0.83]: the other class's is near 1.
    assert recall.interval == pytest.approx(((1 + 0.31) / 2, (1 + 0.83) / 2), abs=0.04)
    of_recall = [(60 / (60 + 10 * (1 - mates)) + 20 * mates / (10 + 10 * mates)) / 2 for mates in (0.31, 0.83)]
    assert f1.interval == pytest.approx(of_recall, abs=0.04)
    assert environment_figures(gold, said)["outcome, macro F1"] == f1, "the same at every call"
    doubled = environment_figures(gold * 4, said * 4)["outcome, macro recall"].interval
    assert doubled[1] - doubled[0] == pytest.approx((recall.interval[1] - recall.interval[0]) / 2, rel=0.2)
    certain = environment_figures(gold, map(completion, gold))["outcome, macro recall"]
    assert certain.value == certain.interval[1] == 1
    assert certain.interval[0] == pytest.approx((1 + Figure(10, 10).interval[0]) / 2, abs=0.08)
    alone = environment_figures(gold[:31], map(completion, gold[:31]))["outcome, macro recall"]
    assert alone.interval[0] < 0.65, "one mate says little"


def test_a_list_that_repeats_itself_and_a_value_for_an_illegal_move_are_counted() -> None:
    figures = of(WHITE, (MOVES, EVALS), ("a1a8 a1a8 h2h3", "1 1 2", "a1a8"))
    assert figures["listed moves all different"] == Figure(0, 1)
    assert figures["the highest-valued listed move legal"] == Figure(1, 1)
    figures = of(WHITE, (MOVES, EVALS), ("a1a9 h2h3", "3 2", "h2h3"))
    assert figures["listed moves all different"] == Figure(1, 1)
    assert figures["the highest-valued listed move legal"] == Figure(0, 1)


def test_states_are_compared_in_three_ways_in_every_slice() -> None:
    gold = a_gold(chess.STARTING_FEN, "e2e4")
    state = completion(gold).split("+")[0]
    figures = environment_figures([gold], [state.replace(" 0 1", " 7 9") + "+0.001+0+0"])
    for name in ("", ", ply 1"):
        assert figures[f"next state exact{name}"] == Figure(0, 1)
        assert figures[f"next state, first four fields{name}"] == figures[f"next state, board{name}"] == Figure(1, 1)


def test_a_fen_of_four_fields_makes_no_document() -> None:
    with pytest.raises(DataError, match="not a P document"):
        best_moves(p_gold(WHITE, MOVES, EVALS).replace(" 0 20", "     ", 1))
    with pytest.raises(DataError, match="not an A document"):
        environment_figures([a_gold(chess.STARTING_FEN, "e2e4").replace(" 0 1+", "+", 1)], [""])
