"""What holds for every reward: gold is the maximum, order is nothing, corruption costs, any text has a value."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rewarded import (
    A_OPTIONS,
    P_OPTIONS,
    ROWS,
    SHARES,
    a_corrupted,
    a_prompts,
    correlation,
    flat,
    node,
    option,
    p_corrupted,
    p_gold,
    p_of,
    p_text,
    worth,
)

from rookexp.chess_text import Annotation, board_of, is_mate, legal_ucis
from rookexp.config import nodes
from rookexp.config.door import conf_dir
from rookexp.errors import ConfigError, DataError

P_VARIANTS = [(name,) for name in P_OPTIONS] + [
    ("linear", f"reward.rewards.P.judge._target_=rookexp.rewards.judges.{judge}", *more)
    for judge, more in (("Rules", ()), ("Label", ("+reward.rewards.P.judge.black_best=corrected",)))
]
APART = {"combined", "engine"}


def test_every_option_is_here() -> None:
    assert {path.stem for path in (conf_dir() / "reward").glob("*.yaml")} == {*P_OPTIONS, *A_OPTIONS, *APART}


@pytest.mark.parametrize(("name", "most"), P_OPTIONS.items())
def test_the_gold_p_answer_earns_the_maximum(name: str, most: float) -> None:
    scores = option(name).score([p_of(row) for row in ROWS], [text for row in ROWS for text in (p_gold(row), "")])
    gold, empty = scores.rewards.view(-1, 2).T
    assert gold.tolist() == pytest.approx([most] * len(ROWS))
    assert (empty < gold).all()


@pytest.mark.parametrize(("name", "most"), A_OPTIONS.items())
def test_the_gold_a_answer_earns_the_maximum(name: str, most: float) -> None:
    prompts = a_prompts()
    scores = option(name).score(prompts, [text for prompt in prompts for text in (prompt.answer.text(), "")])
    gold, empty = scores.rewards.view(-1, 2).T
    assert gold.tolist() == pytest.approx([most] * len(prompts))
    assert (empty < gold).all()
    assert scores.parts["exact"].view(-1, 2).T.tolist() == [[1.0] * len(prompts), [0.0] * len(prompts)]


@st.composite
def p_answers(draw: st.DrawFn) -> tuple[Annotation, list[tuple[str, int]], str]:
    row = draw(st.sampled_from(ROWS))
    board = board_of(row.fen)
    assert board is not None
    pool = st.sampled_from([*row.moves, *row.moves, *sorted(legal_ucis(board))[:4], "e2e5", "x"])
    values = st.integers(-1500, 1500) | st.sampled_from([*row.evals_cp, 99_990, -99_990])
    return row, draw(st.lists(st.tuples(pool, values), min_size=1, max_size=7)), draw(pool)


@settings(max_examples=60)
@given(p_answers(), st.randoms(use_true_random=False))
def test_permuting_the_pairs_changes_no_reward_and_no_part(
    answer: tuple[Annotation, list[tuple[str, int]], str], rng: object
) -> None:
    row, pairs, best = answer
    texts = []
    for order in (pairs, rng.sample(pairs, len(pairs)), pairs[::-1]):  # type: ignore[attr-defined]
        moves, evals = zip(*order, strict=True)
        texts.append(p_text(row, moves, evals, best))
    for overrides in P_VARIANTS:
        first, *others = (flat(option(*overrides).score([p_of(row)], [text])) for text in texts)
        assert all(other == first for other in others), overrides


@settings(max_examples=60)
@given(p_answers(), st.integers(1, 900), st.booleans())
def test_all_mates_of_a_side_are_one_evaluation(
    answer: tuple[Annotation, list[tuple[str, int]], str], distance: int, given_mate: bool
) -> None:
    """What pays the answer's evaluations against others; its own order, which asks for the nearer mate, apart."""
    row, pairs, best = answer
    side = 1 if given_mate else -1
    texts = []
    for mate in (side * 99_999, side * (100_000 - distance)):
        moves, evals = zip(*((move, mate if is_mate(value) else value) for move, value in pairs), strict=True)
        texts.append(p_text(row, moves, evals, best))
    for overrides in P_VARIANTS:
        assert len({worth(option(*overrides), p_of(row), text) for text in texts}) == 1, overrides


@settings(max_examples=60)
@given(p_answers())
def test_no_p_answer_beats_gold(answer: tuple[Annotation, list[tuple[str, int]], str]) -> None:
    row, pairs, best = answer
    moves, evals = zip(*pairs, strict=True)
    for overrides in P_VARIANTS:
        reward = option(*overrides)
        found, gold = reward.score([p_of(row)], [p_text(row, moves, evals, best), p_gold(row)]).rewards.tolist()
        assert found <= gold + 1e-6, overrides


@pytest.mark.parametrize("before", [" 1", "1", " 8/8/8/8/8/8/8/K6k w - - 0 1", " B: e2e4 E: 0.1", " M"])
def test_an_answer_that_does_not_begin_with_the_list_is_none(before: str) -> None:
    """It is about another position, or about nothing."""
    for overrides in P_VARIANTS:
        reward = option(*overrides)
        prompts, texts = [p_of(row) for row in ROWS], [text for row in ROWS for text in (before + p_gold(row), "")]
        found, empty = reward.score(prompts, texts).rewards.view(-1, 2).T
        assert torch.equal(found, empty), overrides


@pytest.mark.parametrize("task", ["P", "A"])
def test_corruption_costs_the_more_the_more_it_is(task: str) -> None:
    prompts, texts = (p_corrupted if task == "P" else a_corrupted)(60, seed=1)
    for name in P_OPTIONS if task == "P" else A_OPTIONS:
        means = option(name).score(prompts, texts).rewards.view(-1, len(SHARES)).mean(0).tolist()
        assert correlation(SHARES, means) <= -0.8, (name, means)
        assert all(after <= before + 0.01 for before, after in itertools.pairwise(means)), (name, means)
        assert means[-1] < means[0] - 0.15, (name, means)


PIECES = [
    "M:",
    "E:",
    "B:",
    " ",
    "e2e4",
    "9" * 400,
    "-0.3",
    "nan",
    "٣",
    "P:",
    "+",
    "1.0",
    "0",
    "/",
    "8/8",
    "w KQkq - 0 1",
]


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*PIECES, "<|endoftext|>"]) | st.text(max_size=6), max_size=16).map("".join))
def test_no_text_raises(text: str) -> None:
    for names, prompts in ((P_OPTIONS, [p_of(row) for row in ROWS[:2]]), (A_OPTIONS, a_prompts()[::2])):
        for name, most in names.items():
            scores = option(name).score(prompts, [text] * len(prompts))
            assert (scores.rewards <= most).all()
            assert (scores.rewards >= -1).all()
            assert not any(values.isinf().any() for values in scores.parts.values())


def test_a_batch_is_scored_as_its_rows_are() -> None:
    for names, (prompts, texts) in ((P_OPTIONS, p_corrupted(3, seed=2)), (A_OPTIONS, a_corrupted(3, seed=2))):
        for name in names:
            whole = option(name).score(prompts, texts)
            for i, text in enumerate(texts):
                alone = option(name).score([prompts[i // len(SHARES)]], [text])
                assert torch.equal(alone.rewards[0], whole.rewards[i])
                assert [values[0] for values in flat(alone)] == [values[i] for values in flat(whole)]


@pytest.mark.parametrize("name", sorted({*P_OPTIONS, *A_OPTIONS} - {"rookworld"}))
def test_a_prompt_of_another_kind_is_refused(name: str) -> None:
    asked = a_prompts()[0] if name in P_OPTIONS else p_of(ROWS[0])
    wrong = type(asked)(asked.text, asked.ids, asked.answer, "P" if name in P_OPTIONS else "A")
    with pytest.raises(DataError, match="prompt"):
        option(name).score([wrong], ["x"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("graduated", "+reward.rewards.P.shaping.fen=1"), "reward.rewards.P.shaping.fen=1: no such key"),
        (
            ("continuous", "reward.rewards.P.shaping.fen.rate=0"),
            "reward.rewards.P.shaping.fen.rate=0: allowed: a number",
        ),
        (
            ("continuous", "reward.rewards.P.shaping.fen.rate=1000"),
            "reward.rewards.P.shaping.fen.rate=1000: allowed: a number > 0 and <= 700",
        ),
        (("dataset", "reward.judge.black_best=inverted"), "allowed: corrected, legacy"),
        (("full_additive", "reward.rewards.A.malformed=1"), "reward.rewards.A.malformed=1: allowed: a number <= 0"),
        (("linear", "reward.rewards.P.best=-1"), "reward.rewards.P.best=-1: allowed: a number >= 0"),
    ],
)
def test_what_contradicts_is_refused_by_name(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        node(*overrides)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("policy", "reward.best=1"),
            "reward.best, candidates, evals=1, 0.3, 0.2: allowed: a sum above 0 and at most 1, where",
        ),
        (
            ("policy", "reward.best=0", "reward.candidates=0", "reward.evals=0"),
            "reward.best, candidates, evals=0, 0, 0: ",
        ),
        (
            ("combined", "reward.rewards.move.best=1.1"),
            "reward.rewards.move.best, candidates, evals=1.1, 0, 0: allowed",
        ),
        (
            ("linear", *(f"reward.rewards.A.{x}=0" for x in ("format", "fen", "flags", "value"))),
            "reward.rewards.A.format, ",
        ),
        (("combined", "reward.weights.move=0", "reward.weights.analysis=0"), "reward.weights={"),
        (("engine", "reward.engine.nodes=100"), "reward.engine.depth=10, nodes=100: allowed: one of the two"),
    ],
)
def test_what_a_part_refuses_is_named_with_its_path(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        nodes.make(node(*overrides), "reward")
    assert str(caught.value).startswith(words)
