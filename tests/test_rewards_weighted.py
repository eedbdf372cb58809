"""The seed's weighted reward and its shapings, the sums and the ladder of full, and self-consistency, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewarded import BLACK_ROW, FORCED, MATES, WHITE_ROW, a_of, option, p_gold, p_of, p_text, worth

from rookexp.chess_text import Annotation, PolicyAnswer, Transition, board_of, legal_ucis, p_prompt, parse_p
from rookexp.errors import ConfigError
from rookexp.rewards import judges, shapings
from rookexp.rewards.chess import Asked

EVALS = WHITE_ROW.evals_cp
LEGAL = ("a2a3", "a2a4", "b2b3", "b2b4", "h2h3")
RULES = "reward.rewards.P.judge._target_=rookexp.rewards.judges.Rules"
LABEL = ("reward.rewards.P.judge._target_=rookexp.rewards.judges.Label", "+reward.rewards.P.judge.black_best=corrected")


def white(moves: tuple[str, ...], evals_cp: tuple[int, ...], best: str) -> str:
    return p_text(WHITE_ROW, moves, evals_cp, best)


# ---- the seed's golden values ---------------------------------------------------------------------------------------


def test_worked_values_of_p() -> None:
    legal_only = white(LEGAL, (900, -900, 1, 2, 3), "h2h3")
    assert worth(option("linear", RULES), p_of(WHITE_ROW), legal_only) == pytest.approx(0.2124, abs=5e-5)
    best_wrong = white((*WHITE_ROW.moves[:4], "a2a3"), EVALS, "g1f3")
    assert worth(option("linear", *LABEL), p_of(WHITE_ROW), best_wrong) == pytest.approx(0.3424, abs=5e-5)
    for name in ("linear", "graduated", "binary", "continuous"):
        assert worth(option(name), p_of(WHITE_ROW), p_gold(WHITE_ROW)) == 1.0
        assert worth(option(name), p_of(WHITE_ROW), "no idea") == pytest.approx(-0.3)


@pytest.mark.parametrize(("similarity", "value"), [(98, 0.976), (95, 0.943), (90, 0.894), (80, 0.815), (50, 0.681)])
def test_worked_values_of_a(similarity: int, value: float) -> None:
    truth = Transition("r/" + 98 * "p", 0.001, terminated=False, truncated=False)
    prompt = a_of(WHITE_ROW.fen, "e2e4", truth)
    said = replace(truth, new_fen=truth.new_fen[:similarity] + "q" * (100 - similarity)).text()
    assert worth(option("continuous"), prompt, said) == pytest.approx(value, abs=5e-4)
    assert worth(option("continuous"), prompt, truth.text()) == 1.0
    assert worth(option("continuous"), prompt, "A: what?") == pytest.approx(-0.3)


def test_parts_are_what_is_in_the_mean() -> None:
    prompt = a_of(WHITE_ROW.fen, "e2e4")
    text = prompt.answer.text().replace("0.001+0+0", "0.2+0+1")
    parts = option("linear").score([prompt], [text]).parts
    found = {name: parts[name].item() for name in ("state_valid", "fen", "flags", "value", "raw")}
    assert found == pytest.approx(
        {"state_valid": 1, "fen": 1, "flags": 0.5, "value": 0.4, "raw": (4 + 3 + 1 + 0.4) / 10}
    )
    malformed = option("linear").score([prompt], [text + "+1"]).parts
    assert [malformed[name].item() for name in ("state_valid", "fen", "flags", "value", "raw")] == [0] * 5


@pytest.mark.parametrize(
    ("said", "value"),
    [(0.5, 1.0), (0.509, 1.0), (0.511, 0.7), (0.401, 0.7), (0.399, 0.4), (0.79, 0.4), (0.81, 0.1), (-9.0, 0.1)],
)
def test_the_value_of_a_transition_is_worth_less_the_further_it_is_off(said: float, value: float) -> None:
    truth = Transition(WHITE_ROW.fen, 0.5, terminated=False, truncated=False)
    scores = option("linear").score([a_of(WHITE_ROW.fen, "e2e4", truth)], [replace(truth, reward=said).text()])
    assert scores.parts["value"].item() == pytest.approx(value)
    other = option("full_additive").score([a_of(WHITE_ROW.fen, "e2e4", truth)], [replace(truth, reward=said).text()])
    assert other.parts["value"].item() == (value == 1.0)


@pytest.mark.parametrize(("fen", "value"), [("abcd", 1.0), ("abcx", 0.375), ("abxy", 0.25), ("axyz", 0.0)])
def test_sum_of_full_pays_a_similar_position_up_to_half(fen: str, value: float) -> None:
    truth = Transition("abcd", 0.5, terminated=False, truncated=False)
    scores = option("full_additive").score([a_of(WHITE_ROW.fen, "e2e4", truth)], [replace(truth, new_fen=fen).text()])
    assert scores.parts["fen"].item() == value


def test_judges() -> None:
    worths = {
        move: judges.Lines().best(*read(white(WHITE_ROW.moves, EVALS, move)))
        for move in (*WHITE_ROW.moves, "a2a3", "e2e5")
    }
    assert list(worths.values()) == [1.0, 0.7, 0.7, 0.5, 0.5, 0.2, 0.0]
    near = read(white(("e2e4", "g1f3"), (86, 34), "e2e4"))
    assert judges.Lines().evals(*near) == pytest.approx((1 - 0.3 / 1.56 + 1) / 2)
    for judge, of_two_pawns in ((judges.Lines(), 1 - 2 / 1.56), (judges.Label(black_best="corrected"), 0.96)):
        one_off = read(white(("e2e4", "a2a3"), (256, 0), "e2e4"))
        assert judge.evals(*one_off) == pytest.approx(max(0.0, of_two_pawns))
        assert judge.candidates(*one_off) == 0.5
        assert judge.candidates(*read(white(("e2e4",) * 5, EVALS, "e2e4"))) == 0.2  # repeating pays nothing
        assert judge.evals(*read(white(("a2a3",), (56,), "e2e4"))) == 0.0
        assert judge.evals(*read(p_text(MATES, ("a4b4",), (9_990,), "a4b4"), MATES)) == 1.0  # another scale of mates


def read(text: str, row: Annotation = WHITE_ROW) -> tuple[PolicyAnswer, Asked]:
    """What a judge is asked."""
    answer, board = parse_p(p_prompt(row.fen) + text), board_of(row.fen)
    assert answer is not None
    assert board is not None
    return answer, Asked(row, legal_ucis(board), board.turn)


def test_the_label_of_black_is_the_best_move_unless_it_is_asked_for_as_published() -> None:
    corrected, legacy = option("dataset"), option("dataset", "reward.judge.black_best=legacy")
    for row, label_of_legacy in ((BLACK_ROW, BLACK_ROW.moves[-1]), (WHITE_ROW, WHITE_ROW.moves[0])):
        for reward, label in ((corrected, row.moves[0]), (legacy, label_of_legacy)):
            found = {move: worth(reward, p_of(row), p_text(row, row.moves, row.evals_cp, move)) for move in row.moves}
            assert found == pytest.approx({move: 1.0 if move == label else 0.5 for move in row.moves})
    tied = replace(WHITE_ROW, evals_cp=(56, 56, 31, 24, 10))
    assert worth(corrected, p_of(tied), p_text(tied, tied.moves, tied.evals_cp, "g1f3")) == pytest.approx(1.0)


# ---- shapings -------------------------------------------------------------------------------------------------------


def test_all_rungs_are_reached_by_answers() -> None:
    answers = [
        p_gold(WHITE_ROW),
        white(WHITE_ROW.moves, EVALS, "g1f3"),
        white(WHITE_ROW.moves, EVALS, "d2d4"),
        white(("e2e4", "g1f3", *LEGAL[:3]), (-900, -900, 0, 0, 0), "d2d4"),
        white(LEGAL, EVALS, "a2a3"),
        "B: e2e4",
    ]
    found = option("graduated").score([p_of(WHITE_ROW)], answers)
    assert found.rewards.tolist() == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, -0.3])
    assert found.parts["raw"].tolist() == pytest.approx(
        [1.0, 7.3 / 8.5, 6.5 / 8.5, (2 + 2 + 0.4 * 1.5) / 8.5, 2.8 / 8.5, 0.0]
    )


def test_shapings_at_their_edges() -> None:
    graduated, linear, binary = shapings.Graduated(), shapings.Linear(), shapings.Binary(threshold=0.5)
    assert [graduated.shaped(raw, True) for raw in (0, 0.2, 0.39, 0.4, 0.6, 0.8, 0.94, 0.95, 1)] == [
        0.2, 0.2, 0.2, 0.4, 0.6, 0.8, 0.8, 1.0, 1.0,
    ]  # fmt: skip
    assert graduated.shaped(0.19, False) == -0.3
    assert [linear.shaped(raw, False) for raw in (0, 0.5, 1)] == pytest.approx([-0.3, 0.35, 1.0])
    assert linear.shaped(0.1, True) == pytest.approx(-0.3 + 0.13 + 0.1)
    assert [binary.shaped(0.5, False), binary.shaped(0.5, True), binary.shaped(0.51, True)] == pytest.approx(
        [-0.3, -0.2, 1]
    )
    assert shapings.Unshaped().shaped(0.37, True) == 0.37


@pytest.mark.parametrize(
    ("scaling", "at_half", "at_nine_tenths"),
    [
        (shapings.Identity(), 0.5, 0.9),
        (shapings.Exponential(rate=3.0), 0.182426, 0.727238),
        (shapings.Sigmoid(slope=10.0), 0.5, 0.982014),
        (shapings.Quadratic(), 0.25, 0.81),
    ],
)
def test_scalings(scaling: shapings.Scaling, at_half: float, at_nine_tenths: float) -> None:
    assert [scaling(0.5), scaling(0.9)] == pytest.approx([at_half, at_nine_tenths], abs=1e-6)
    assert [scaling(0.0), scaling(1.0)] == pytest.approx([0.0, 1.0], abs=0.007)
    values = [scaling(i / 20) for i in range(21)]
    assert values == sorted(set(values))
    shaping = shapings.Continuous(fen=scaling, evals=shapings.Identity())
    assert (shaping.scaled("fen", 0.9), shaping.scaled("evals", 0.9)) == (scaling(0.9), 0.9)


def test_a_mean_that_is_exactly_on_a_rung_is_there() -> None:
    text = white(("e2e4", "g1f3", "a2a3"), (56, 34, 0), "g1f3")  # 6.8 / 8.5, whose float is below 0.8
    assert worth(option("graduated"), p_of(WHITE_ROW), text) == pytest.approx(0.8)


@given(st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_a_higher_mean_never_earns_less(a: float, b: float, formed: bool) -> None:
    low, high = sorted((a, b))
    for shaping in (shapings.Graduated(), shapings.Binary(threshold=0.5), shapings.Unshaped()):
        assert shaping.shaped(low, formed) <= shaping.shaped(high, formed)
    bonus = 0.1 if formed else 0.0  # which a mean that is just too high for it does not get
    assert shapings.Linear().shaped(low, formed) <= shapings.Linear().shaped(high, formed) + bonus


def test_some_weight_is_needed() -> None:
    with pytest.raises(ConfigError, match="at least one > 0"):
        option("dataset", "reward.best=0", "reward.candidates=0", "reward.evals=0")


# ---- full -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (p_gold(WHITE_ROW), 2.0),
        (white(WHITE_ROW.moves, EVALS, "g1f3"), 1.0),
        (white(WHITE_ROW.moves[:4], EVALS[:4], "e2e4"), 1.9),
        (white(WHITE_ROW.moves, tuple(value + 50 for value in EVALS), "e2e4"), 1.9),
        (white(WHITE_ROW.moves, tuple(value + 150 for value in EVALS), "e2e4"), 1.8),  # paid by RLVR all the same
        (white(("g1f3", "a2a3", "a2a4"), (34, 0, 0), "a2a3"), 0.2 + 0.5 / 3 + 0.2),
        (white(WHITE_ROW.moves, EVALS[:4], "e2e4"), -0.5),
        (white((*WHITE_ROW.moves, "a2a3"), (*EVALS, 0), "e2e4"), -0.5),
        (white((*WHITE_ROW.moves[:4], "a2z3"), EVALS, "e2e4"), -1.0),
        (white((*WHITE_ROW.moves[:4], "a2z3"), EVALS[:4], "e2e4"), -1.0),  # fewer numbers mend no spelling
        (white(WHITE_ROW.moves, EVALS[:4], "e2z4"), -1.0),
        ("M: x E: y z B: w", -1.0),
        ("M: e2e4 B: e2e4", -1.0),
        ("", -1.0),
    ],
)
def test_sum_of_full(text: str, value: float) -> None:
    assert worth(option("full_additive"), p_of(WHITE_ROW), text) == pytest.approx(value)


def test_sum_of_full_for_black_pays_the_best_move() -> None:
    worst = p_text(BLACK_ROW, BLACK_ROW.moves, BLACK_ROW.evals_cp, BLACK_ROW.moves[-1])
    assert worth(option("full_additive"), p_of(BLACK_ROW), worst) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", -0.1),
        ("I resign", -0.1),
        ("M: e2e4", 0.2),
        ("B: e2e4", 0.2),
        ("M: e2e4 E: 0.56 B: e2e4", 0.4),
        (white(LEGAL, EVALS, "a2a3"), 0.6),
        (white(WHITE_ROW.moves, (900,) * 5, "g1f3"), 0.8),
        (white((*WHITE_ROW.moves, "a2a3"), (*EVALS, 0), "e2e4"), 1.0),
        (white((*WHITE_ROW.moves, *LEGAL), (*EVALS, *EVALS), "e2e4"), 0.4),  # a rung above one that is missed
        (white(("e2e4", "e2e4", "g1f3", "g2g3", "a2a3"), (56, 956, 34, 931, 0), "e2e4"), 0.8),  # 0.7 is not above it
        (p_gold(WHITE_ROW), 1.0),
    ],
)
def test_ladder_of_full(text: str, value: float) -> None:
    assert worth(option("full_graduated"), p_of(WHITE_ROW), text) == pytest.approx(value)


def test_ladder_of_full_where_there_is_one_move() -> None:
    assert worth(option("full_graduated"), p_of(FORCED), p_gold(FORCED)) == 1.0


# ---- self-consistency -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (p_gold(WHITE_ROW), 1.0),
        (white(LEGAL, (-500, 100, 0, 0, 0), "a2a4"), 1.0),  # what the engine says is not asked
        (white(WHITE_ROW.moves, EVALS, "d2d4"), 0.2),
        (white(WHITE_ROW.moves, EVALS, "g1f3"), 0.8),
        (white(WHITE_ROW.moves[:2], EVALS[:2], "e2e4"), 0.4),
        (white(("e2e4",) * 5, EVALS, "e2e4"), 0.0),
        (white(("e2e4", "d2d4", "d2d4"), (56, 10, 10), "d2d4"), 0.0),  # which would be nearer to the top of three
        (white((*WHITE_ROW.moves[:4], "e2e5"), EVALS, "e2e4"), 0.8),
        (white((*WHITE_ROW.moves[:4], "e2e5"), (0, 0, 0, 0, 9), "e2e5"), 0.0),
        (white(WHITE_ROW.moves, EVALS, "a2a3"), 0.0),
        (white(WHITE_ROW.moves, EVALS[:4], "e2e4"), 0.0),
    ],
)
def test_self_consistency(text: str, value: float) -> None:
    assert worth(option("self_consistency"), p_of(WHITE_ROW), text) == pytest.approx(value)
