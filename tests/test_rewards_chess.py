"""The P reward: the engine's answer is the maximum, order is nothing, corruption never pays, any text has a value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import chess
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rewarded import BLACK_ROW, MATED, MATES, TWO_MOVES, WHITE_ROW, p_of

from rookexp.chess_text import (
    Annotation,
    PolicyAnswer,
    board_of,
    build_p,
    legal_ucis,
    parse_p,
)
from rookexp.errors import DataError, PartError
from rookexp.rewards import chess as rewards
from rookexp.types import Prompt

REWARD = rewards.PolicyReward(best=0.5, candidates=0.3, evals=0.2)
ROWS = [WHITE_ROW, BLACK_ROW, TWO_MOVES, MATES, MATED]


def completion(row: Annotation, moves: Sequence[str], evals_cp: Sequence[int], best: str, padded: bool = False) -> str:
    return build_p(row.fen, moves, evals_cp, best)[len(p_of(row, padded).text) :]


def gold(row: Annotation, padded: bool = False) -> str:
    return completion(row, row.moves, row.evals_cp, row.moves[0], padded)


def one(row: Annotation, text: str) -> dict[str, float]:
    scores = REWARD.score([p_of(row)], [text])
    return {"reward": scores.rewards.item()} | {name: value.item() for name, value in scores.parts.items()}


def parsed(text: str) -> PolicyAnswer:
    answer = parse_p(text)
    assert answer is not None
    return answer


def black_rows_of(path: Path) -> list[Annotation]:
    """Rows of a file of P documents with Black to move and distinct evaluations, best first."""
    found = []
    for line in path.read_text().splitlines():
        answer = parsed(line)
        pairs = sorted(answer.pairs() or [], key=lambda pair: -pair[1])
        if " b " in answer.fen and len({value for _, value in pairs}) == 5:
            moves, values = zip(*pairs, strict=True)
            found.append(Annotation(answer.fen, moves, tuple(round(value * 100) for value in values)))
    return found


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("padded", [False, True])
def test_gold_is_exactly_one(row: Annotation, padded: bool) -> None:
    scores = REWARD.score([p_of(row, padded)], [gold(row, padded)])
    assert scores.rewards.tolist() == [1.0]
    for name in ("best", "candidates", "evals", "format_valid", "best_legal", "moves_legal", "best_is_engine"):
        assert scores.parts[name].tolist() == [1.0], name
    mine, other = ("white", "black") if " w " in row.fen else ("black", "white")
    assert scores.parts[f"best_is_engine_{mine}"].tolist() == [1.0]
    assert scores.parts[f"best_is_engine_{other}"].isnan().all()
    assert scores.parts[f"argmax_is_engine_{other}"].isnan().all()


@pytest.mark.parametrize("row", ROWS)
def test_joint_order_of_moves_and_evals_is_nothing(row: Annotation) -> None:
    evals_cp = [value + 37 * i for i, value in enumerate(row.evals_cp)]
    seen = set()
    for order in itertools.permutations(range(len(row.moves))):
        text = completion(row, [row.moves[i] for i in order], [evals_cp[i] for i in order], row.moves[-1])
        seen.add(tuple(str(value) for value in one(row, text).values()))
    assert len(seen) == 1


def test_black_is_paid_for_the_best_move_from_its_own_view(shared_dir: Path) -> None:
    rows = black_rows_of(shared_dir / "data/rook_val_sample.txt")
    assert len(rows) >= 10
    for row in rows:
        values = []
        for move in row.moves:
            parts = one(row, completion(row, row.moves, row.evals_cp, move))
            values.append(parts["best"])
            assert parts["best_is_engine_black"] == float(row.evals_cp[row.moves.index(move)] == max(row.evals_cp))
            assert parts["argmax_is_engine_black"] == 1.0
        assert values == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])  # the published label for Black earns the last


def test_best_component() -> None:
    legal = legal_ucis(chess.Board())
    for word, value in (("e2e4", 1.0), ("g2g3", 0.6), ("d2d4", 0.2), ("a2a3", 0.1), ("e2e5", -1.0), ("hm", -1.0)):
        answer = parsed(f"P: x B: {word}")
        assert rewards.best_component(answer, WHITE_ROW, legal) == pytest.approx(value)
    assert rewards.best_component(parsed("P: x B:"), WHITE_ROW, legal) == -0.5
    tied = Annotation(WHITE_ROW.fen, WHITE_ROW.moves, (10, 10, 5, 5, 0))
    ranks = [rewards.best_component(parsed(f"P: x B: {move}"), tied, legal) for move in tied.moves]
    assert ranks == pytest.approx([1.0, 1.0, 0.6, 0.6, 0.2])


@pytest.mark.parametrize(
    ("moves", "value"),
    [
        ("", -0.3),
        ("e2e4 g1f3 g2g3 c2c4 d2d4", 1.0),
        ("e2e4 g1f3 g2g3 c2c4 a2a3", 4 / 6),
        ("e2e4 e2e4 e2e4 e2e4 e2e4", 1 / 5),
        ("a2a3", 0.0),
        ("e2e4 g1f3 g2g3 c2c4 e2e5", 4 / 5 - 0.3),
        ("e2e5", -0.3),
        ("e2e5 x y z", -1.0),
    ],
)
def test_candidates_component(moves: str, value: float) -> None:
    answer = parsed(f"P: x M: {moves} E: 1 B: e2e4")
    assert rewards.candidates_component(answer, WHITE_ROW, legal_ucis(chess.Board())) == pytest.approx(value)


@pytest.mark.parametrize(
    ("moves", "evals", "value"),
    [
        ("e2e4", "", -0.2),
        ("", "1.0", -0.4),
        ("e2e4 g1f3", "0.56", -0.4),
        ("e2e4 g1f3", "0.56 good", -0.4),
        ("e2e4 e2e5", "0.56 0.3", -0.5),
        ("e2e4", "0.56", 1.0),
        ("a2a3", "0.56", 0.0),  # the engine's value is not known
        ("e2e4 a2a3", "0.56 9.0", 1.0),  # nor is it here, which leaves one
        ("g1f3 e2e4", "0.34 0.56", 1.0),  # by move
        ("e2e4", "999.99", 0.0),
        ("e2e4", "-999.99", -0.4),
        ("d2d4", "-0.1", 1 - 10 * 0.01841),  # 0.1 pawns are no side's: a wrong sign costs only its distance
        ("d2d4", "-0.9", 0.08699),  # however sure the answer is: what the engine says counts
        ("e2e4", "-0.1", -0.00571),
        ("e2e4 g1f3", "0.56 9.0", 0.5),  # the mean over the moves
        ("e2e4", "0", 0.48633),  # 0 is no side's
        ("e2e4 g1f3 g2g3 c2c4", "-9 -9 -9 -9", -1.0),
    ],
)
def test_evals_component(moves: str, evals: str, value: float) -> None:
    answer = parsed(f"P: x M: {moves} E: {evals} B: e2e4")
    assert rewards.evals_component(answer, WHITE_ROW, legal_ucis(chess.Board())) == pytest.approx(value, abs=1e-4)


def test_a_wrong_sign_costs_the_same_for_either_side() -> None:
    """The same evaluations, all with the other sign, are as far off."""
    truth = replace(WHITE_ROW, evals_cp=tuple(-value for value in WHITE_ROW.evals_cp))
    legal = legal_ucis(chess.Board())
    for evals in ("-0.56", "0.56", "-0.1", "0.1", "9", "-9"):
        mirrored = evals[1:] if evals[0] == "-" else f"-{evals}"
        here, there = (parsed(f"P: x M: e2e4 E: {value} B: e2e4") for value in (evals, mirrored))
        worth_here = rewards.evals_component(here, WHITE_ROW, legal)
        assert rewards.evals_component(there, truth, legal) == pytest.approx(worth_here)


@pytest.mark.parametrize(("engine_cp", "wrong"), [(20, False), (21, True), (-20, False), (-21, True)])
def test_a_wrong_sign_counts_where_the_engine_sees_more_than_a_fifth_of_a_pawn(engine_cp: int, wrong: bool) -> None:
    truth = replace(WHITE_ROW, moves=("e2e4",), evals_cp=(engine_cp,))
    said = -1 if engine_cp > 0 else 1
    answer = parsed(f"P: x M: e2e4 E: {said / 100} B: e2e4")
    found = rewards.evals_component(answer, truth, legal_ucis(chess.Board()))
    assert found == pytest.approx(1 - rewards.eval_distance(said, engine_cp) - 0.4 * wrong)


@pytest.mark.parametrize(("moves", "share"), [("e2e4", 1.0), ("e2e4 e2e5", 0.5), ("e2e5 x e2e4", 1 / 3), ("x", 0.0)])
def test_share_of_legal_moves(moves: str, share: float) -> None:
    assert one(WHITE_ROW, f" M: {moves} E: B:")["moves_legal"] == pytest.approx(share)


@settings(deadline=None)
@given(st.integers(-100_000, 100_000), st.integers(-100_000, 100_000), st.integers(-100_000, 100_000))
def test_eval_distance_is_bounded_symmetric_and_monotone(a: int, b: int, c: int) -> None:
    low, middle, high = sorted((a, b, c))
    assert rewards.eval_distance(a, a) == 0
    assert rewards.eval_distance(a, b) == rewards.eval_distance(b, a)
    assert 0 <= rewards.eval_distance(low, middle) <= rewards.eval_distance(low, high) <= 1


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ROWS), st.integers(0, 4), st.lists(st.integers(0, 3000), min_size=2, max_size=6), st.booleans())
def test_moving_an_evaluation_away_never_pays(row: Annotation, i: int, steps: list[int], up: bool) -> None:
    i %= len(row.moves)
    rewards_seen = []
    for shift in [0, *sorted(steps)]:
        evals_cp = list(row.evals_cp)
        evals_cp[i] += shift if up else -shift
        rewards_seen.append(one(row, completion(row, row.moves, evals_cp, row.moves[0]))["reward"])
    assert rewards_seen[0] == 1.0
    assert rewards_seen == sorted(rewards_seen, reverse=True)


@pytest.mark.parametrize("row", [WHITE_ROW, BLACK_ROW])
@pytest.mark.parametrize("wrong", ["legal", "illegal"])
def test_replacing_more_moves_never_pays(row: Annotation, wrong: str) -> None:
    board = board_of(row.fen)
    assert board is not None
    others = sorted(legal_ucis(board) - set(row.moves)) if wrong == "legal" else ["a1a8"] * 5
    seen = [
        one(row, completion(row, [*row.moves[: 5 - n], *others[:n]], row.evals_cp, row.moves[0]))["reward"]
        for n in range(6)
    ]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) >= 5


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ROWS), st.data())
def test_no_answer_beats_gold(row: Annotation, data: st.DataObject) -> None:
    board = board_of(row.fen)
    assert board is not None
    pool = st.sampled_from([*row.moves, *sorted(legal_ucis(board))[:6], "e2e5", "x"])
    moves = data.draw(st.lists(pool, max_size=6))
    evals_cp = data.draw(st.lists(st.integers(-99_999, 99_999), max_size=6))
    parts = one(row, completion(row, moves, evals_cp, data.draw(pool)))
    assert -1.0 <= parts["reward"] <= 1.0
    gold_parts = one(row, gold(row))
    assert all(parts[name] <= gold_parts[name] for name in ("reward", "best", "candidates", "evals"))


def test_empty_completion_is_defined() -> None:
    parts = one(WHITE_ROW, "")
    assert parts["reward"] == pytest.approx(0.5 * -0.5 + 0.3 * -0.3 + 0.2 * -0.2)
    names = ("format_valid", "best_legal", "moves_legal", "best_is_engine", "argmax_is_engine")
    assert all(parts[name] == 0.0 for name in names)
    assert math.isnan(parts["best_is_engine_black"])


def test_format_is_invalid_when_the_prompt_goes_on_before_the_moves() -> None:
    assert one(WHITE_ROW, gold(WHITE_ROW))["format_valid"] == 1.0
    assert one(WHITE_ROW, "0 w" + gold(WHITE_ROW))["format_valid"] == 0.0


def test_argmax_is_shared_among_equals() -> None:
    parts = one(WHITE_ROW, completion(WHITE_ROW, WHITE_ROW.moves, (56, 56, 31, 24, 10), "g1f3"))
    assert (parts["argmax_is_engine"], parts["argmax_is_engine_white"], parts["best_is_engine"]) == (0.5, 0.5, 0.0)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(ROWS),
    st.lists(
        st.one_of(
            st.sampled_from(["M:", "E:", "B:", " ", "e2e4", "9" * 400, "-0.3", "nan", "٣", "P:", "<|endoftext|>"]),
            st.text(max_size=6),
        ),
        max_size=16,
    ).map("".join),
)
def test_no_text_raises(row: Annotation, text: str) -> None:
    parts = one(row, text)
    assert -1.0 <= parts["reward"] <= 1.0
    assert all(math.isnan(value) or -1.0 <= value <= 1.0 for value in parts.values())
    found = earned_of(row, text)
    assert "".join(piece for piece, _ in found) == text
    assert sum(value for _, value in found) == pytest.approx(parts["reward"])


def earned_of(row: Annotation, text: str, padded: bool = False) -> list[tuple[str, float]]:
    """The text of each stage of a completion, and what it earns."""
    stages = REWARD.score([p_of(row, padded)], [text]).stages
    assert stages is not None
    ends = [0, *stages.ends[0].tolist()]
    return [(text[a:b], value) for a, b, value in zip(ends, ends[1:], stages.rewards[0].tolist(), strict=False)]


@pytest.mark.parametrize("padded", [False, True])
def test_each_field_earns_its_own_component(padded: bool) -> None:
    text = completion(BLACK_ROW, BLACK_ROW.moves, BLACK_ROW.evals_cp, BLACK_ROW.moves[-1], padded)
    found = earned_of(BLACK_ROW, text, padded)
    listed, values, best = (piece for piece, _ in found)
    assert listed.removeprefix(" M:" if listed.strip().startswith("M:") else "").split()[-5:] == list(BLACK_ROW.moves)
    assert values.startswith("E:")
    assert best == f"B: {BLACK_ROW.moves[-1]}"
    assert [value for _, value in found] == pytest.approx([0.3, 0.2, 0.5 * 0.2])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", ["", "", ""]),
        (" e2e4 d2d4", [" e2e4 d2d4", "", ""]),
        (" e2e4 E: 0.3", [" e2e4 ", "E: 0.3", ""]),
        (" e2e4 B: e2e4", [" e2e4 ", "", "B: e2e4"]),
        (" E: 0.3 B: e2e4 B: d2d4", [" ", "E: 0.3 ", "B: e2e4 B: d2d4"]),
        (" B: e2e4 E: 0.3", [" B: e2e4 ", "E: 0.3", ""]),
    ],
)
def test_a_field_that_is_missing_has_no_text(text: str, pieces: list[str]) -> None:
    found = earned_of(WHITE_ROW, text, padded=True)
    assert [piece for piece, _ in found] == pieces
    scores = REWARD.score([p_of(WHITE_ROW, padded=True)], [text])
    names = {"candidates": 0.3, "evals": 0.2, "best": 0.5}
    expected = [weight * scores.parts[name].item() for name, weight in names.items()]
    assert [value for _, value in found] == pytest.approx(expected)


def test_a_row_depends_on_itself_alone() -> None:
    prompts = [p_of(row, padded=i % 2 == 1) for i, row in enumerate(ROWS)]
    texts = []
    for i, row in enumerate(ROWS):
        texts += [gold(row, i % 2 == 1), "", completion(row, row.moves, row.evals_cp, row.moves[-1], i % 2 == 1)]
    whole = REWARD.score(prompts, texts)
    assert whole.rewards.shape == (15,)
    for i, prompt in enumerate(prompts):
        for g in (2, 0, 1):
            alone = REWARD.score([prompt], [texts[3 * i + g]])
            assert torch.equal(alone.rewards[0], whole.rewards[3 * i + g])
            for name, values in alone.parts.items():
                assert torch.equal(values.nan_to_num(9)[0], whole.parts[name].nan_to_num(9)[3 * i + g])


def test_the_reward_stands_under_the_colour_to_move() -> None:
    scores = REWARD.score([p_of(WHITE_ROW), p_of(BLACK_ROW)], [gold(WHITE_ROW), "", gold(BLACK_ROW), ""])
    rewards_seen = scores.rewards.tolist()
    assert scores.parts["reward_white"].nan_to_num(9).tolist() == [*rewards_seen[:2], 9, 9]
    assert scores.parts["reward_black"].nan_to_num(9).tolist() == [9, 9, *rewards_seen[2:]]
    assert "reward" not in scores.parts


def test_weights() -> None:
    only_best = rewards.PolicyReward(best=1.0, candidates=0.0, evals=0.0)
    text = completion(BLACK_ROW, BLACK_ROW.moves, BLACK_ROW.evals_cp, BLACK_ROW.moves[-1])
    assert only_best.score([p_of(BLACK_ROW)], [text]).rewards.item() == pytest.approx(0.2)


def test_weights_add_up_to_1_at_most() -> None:
    for weights in ((0.4, 0.3, 0.31), (0.0, 0.0, 0.0)):
        with pytest.raises(PartError, match="a sum above 0 and at most 1"):
            rewards.PolicyReward(**dict(zip(("best", "candidates", "evals"), weights, strict=True)))
    assert rewards.PolicyReward(best=0.1, candidates=0.2, evals=0.7).staged


def test_a_position_without_an_analysis_is_refused_whatever_is_said() -> None:
    bare = replace(WHITE_ROW, moves=(), evals_cp=())
    for text in ("", "e2e5"):
        with pytest.raises(DataError, match="no analysis of it"):
            REWARD.score([p_of(bare)], [text])


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="3 texts"):
        REWARD.score([p_of(WHITE_ROW), p_of(BLACK_ROW)], ["", "", ""])
    with pytest.raises(DataError, match="Q: x"):
        REWARD.score([Prompt(text="Q: x", ids=(), answer=WHITE_ROW, task="P")], [""])
