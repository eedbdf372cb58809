"""The reward with an engine that runs: `PolicyReward` on its lines, and every listed move has its own value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import pytest
import tiny
import torch
from rewarded import p_of
from test_doctor import World
from test_rewards_chess import BLACK_ROW, MATED, MATES, ROWS, TWO_MOVES, WHITE_ROW, completion, gold

from rookexp.chess_text import Annotation, Transition, pawns_to_cp, win_probability
from rookexp.errors import DataError, EngineError
from rookexp.rewards.chess import PolicyReward
from rookexp.rewards.engine import Line, find_stockfish
from rookexp.rewards.engine_cache import position_of
from rookexp.rewards.engine_pool import EnginePool, Question
from rookexp.rewards.engine_reward import EngineReward
from rookexp.self_check import checkup
from rookexp.self_check.rehearsal import Rehearsal
from rookexp.types import LongReward, Prompt, Scores

WEIGHTS = {"best": 0.5, "candidates": 0.3, "evals": 0.2}
POLICY = PolicyReward(**WEIGHTS)
OUTSIDE_CP = {"a2a3": -15, "b1a3": -40, "h2h4": 0, "f2f3": -90, "g2g4": -99_996}  # of moves outside the lines


class Told:
    """A pool that knows the lines of ROWS and the values of other moves; remembers each batch of questions."""

    def __init__(self) -> None:
        self.rows = {position_of(chess.Board(row.fen)): row for row in ROWS}
        self.batches: list[list[Question]] = []
        self.begun: list[Question] = []

    def begin(self, questions: Sequence[Question]) -> None:
        self.begun = list(questions)

    def analyse(self, questions: Sequence[Question]) -> list[list[Line]]:
        self.batches.append(list(questions))
        return [self.lines(question) for question in questions]

    def metrics(self) -> dict[str, float]:
        return {"engine/wait_s": 0.0}

    def lines(self, question: Question) -> list[Line]:
        row, move = self.rows[question.position], chess.Move.from_uci
        if question.move:
            return [Line(move(question.move), OUTSIDE_CP[question.move])]
        return [Line(move(name), value) for name, value in zip(row.moves, row.evals_cp, strict=True)]


def reward(pool: Any = None) -> EngineReward:
    return EngineReward(**WEIGHTS, engine=pool or Told())


def parts(scores: Scores) -> dict[str, list[str]]:
    """Rewards and parts, to seven digits; NaN equals NaN."""
    rows = {"": scores.rewards} | dict(scores.parts)
    return {name: [f"{value:.6f}" for value in column.tolist()] for name, column in rows.items()}


def one(row: Annotation, text: str) -> dict[str, float]:
    scores = reward().score([p_of(row)], [text])
    return {"reward": scores.rewards.item()} | {name: part.item() for name, part in scores.parts.items()}


def listing(moves: Sequence[str], evals_cp: Sequence[int], best: str = "e2e4") -> str:
    return completion(WHITE_ROW, moves, evals_cp, best)


def test_an_a_prompt_is_named_with_the_reward_that_takes_it() -> None:
    asked = Prompt("A: x+e2e4+e2e4+", (), Transition("x", 0.001, terminated=False, truncated=False), "A")
    for ask in (lambda: reward().prepare([asked]), lambda: reward().score([asked], [""]), lambda: reward().gold(asked)):
        with pytest.raises(DataError, match="not a P prompt .*; reward=rookworld"):
            ask()


# ---- values ---------------------------------------------------------------------------------------------------------


def test_words_before_the_list_leave_no_answer() -> None:
    for before in (" 1", " x"):
        assert parts(reward().score([p_of(WHITE_ROW)], [before + gold(WHITE_ROW)])) == parts(
            reward().score([p_of(WHITE_ROW)], [""])
        )


def test_with_lines_alone_it_is_the_reward_of_the_annotation() -> None:
    rows = [WHITE_ROW, BLACK_ROW, TWO_MOVES, MATES, MATED]
    prompts = [p_of(row) for row in rows]
    texts = [
        text
        for row in rows
        for text in (
            gold(row),
            "",
            "B: e2e4",
            completion(row, row.moves[::-1], [-value for value in row.evals_cp], row.moves[-1]),
            completion(row, row.moves[:2], [7], "a1a1"),
            completion(row, ["e2e5", *row.moves[:1]], [7, 8], row.moves[0]),
        )
    ]
    assert parts(reward().score(prompts, texts)) == parts(POLICY.score(prompts, texts))
    assert reward().score(prompts, texts).rewards[::6].tolist() == [1.0] * 5
    found, known = (each.score(prompts, texts).stages for each in (reward(), POLICY))
    assert found is not None
    assert known is not None
    assert torch.equal(found.ends, known.ends)
    assert torch.allclose(found.rewards, known.rewards)


@pytest.mark.parametrize(
    ("moves", "given_cp", "true_cp", "wrong_signs"),
    [
        (["a2a3"], [-15], [-15], 0),
        (["a2a3", "e2e4"], [5, 56], [-15, 56], 0),  # the engine sees less than 0.2 pawns: no sign is wrong
        (["b1a3", "e2e4"], [10, 26], [-40, 56], 1),
        (["f2f3", "b1a3", "h2h4", "g1f3", "c2c4"], [-100, -30, 10, 34, 24], [-90, -40, 0, 34, 24], 0),
        (["g2g4", "e2e4"], [-99_999, 56], [-99_996, 56], 0),  # being mated is one thing, whenever
        (["g2g4", "e2e4"], [-300, 56], [-99_996, 56], 0),
    ],
)
def test_a_listed_move_outside_the_lines_has_its_own_value(
    moves: list[str], given_cp: list[int], true_cp: list[int], wrong_signs: int
) -> None:
    distances = [
        min(1.0, abs(win_probability(a) - win_probability(b)) / 0.1) for a, b in zip(given_cp, true_cp, strict=True)
    ]
    expected = max(-1.0, 1 - math.fsum(distances) / len(moves) - 0.4 * wrong_signs)
    found = one(WHITE_ROW, listing(moves, given_cp))
    assert found["evals"] == pytest.approx(expected, abs=1e-6)
    jaccard = len(set(moves) & set(WHITE_ROW.moves)) / len(set(moves) | set(WHITE_ROW.moves))
    assert found["reward"] == pytest.approx(0.5 + 0.3 * jaccard + 0.2 * expected, abs=1e-6)
    assert found["reward_white"] == found["reward"]
    assert math.isnan(found["reward_black"])


def test_golden_values_of_components() -> None:
    found = one(WHITE_ROW, listing(["b1a3", "e2e4"], [10, 26], "a2a3"))
    assert found["best"] == pytest.approx(0.1)
    assert found["candidates"] == pytest.approx(1 / 6)
    assert found["evals"] == pytest.approx(0.232947, abs=1e-6)  # 1 - (0.45958 + 0.27452) / 2 - 0.4
    assert found["reward"] == pytest.approx(0.05 + 0.05 + 0.2 * 0.232947, abs=1e-6)


@pytest.mark.parametrize("count", [4, 6])
def test_joint_order_of_moves_and_evals_is_nothing(count: int) -> None:
    """Also of more moves than a list should have, of which five are judged."""
    pairs = [("a2a3", 3), ("e2e4", 40), ("b1a3", -7), ("f2f3", -300), ("h2h4", 12), ("c2c4", 99)][:count]
    orders = list(itertools.permutations(pairs))[:: 1 if count == 4 else 29]
    texts = [listing(*zip(*order, strict=True)) for order in orders]
    columns = parts(reward().score([p_of(WHITE_ROW)], texts))
    assert {name: len(set(column)) for name, column in columns.items()} == dict.fromkeys(columns, 1)


def test_a_batch_is_worth_what_its_completions_are_worth_alone() -> None:
    texts = [listing(["a2a3", "e2e4"], [5, 6]), listing(["h2h4"], [9]), gold(WHITE_ROW), listing(["b1a3"], [1])]
    rows = [WHITE_ROW, BLACK_ROW]
    both = parts(reward().score([p_of(row) for row in rows], texts[:3] + [gold(BLACK_ROW)] * 3))
    alone = [parts(reward().score([p_of(WHITE_ROW)], [text])) for text in texts[:3]]
    alone += [parts(reward().score([p_of(BLACK_ROW)], [gold(BLACK_ROW)]))] * 3
    assert both == {name: [each[name][0] for each in alone] for name in both}


# ---- questions ------------------------------------------------------------------------------------------------------


def test_a_step_asks_for_positions_and_then_once_for_all_moves_that_are_new() -> None:
    pool, prompts = Told(), [p_of(WHITE_ROW), p_of(TWO_MOVES)]
    judged = reward(pool)
    judged.prepare(prompts)
    start, other = (position_of(chess.Board(row.fen)) for row in (WHITE_ROW, TWO_MOVES))
    assert pool.begun == [Question(start), Question(other)]
    texts = [
        listing(["a2a3", "e2e4", "h2h4"], [1, 2, 3]),
        listing(["h2h4", "a2a3"], [1, 2]),
        listing(["b1a3", "b1b3"], [1, 2]),  # one is illegal
        listing(["f2f3", "b1a3"], [1]),  # which value is whose?
        *[gold(TWO_MOVES)] * 4,
    ]
    judged.score(prompts, texts)
    assert pool.batches[0] == [Question(start), Question(other)]
    assert pool.batches[1:] == [[Question(start, "a2a3"), Question(start, "h2h4")]]


def test_lines_of_the_annotation_are_not_read() -> None:
    text = listing(["a2a3", "e2e4"], [-15, 56])
    asked = p_of(WHITE_ROW)
    nothing = replace(asked, answer=Annotation(WHITE_ROW.fen, (), ()))
    assert parts(reward().score([asked], [text])) == parts(reward().score([nothing], [text]))
    assert reward().gold(nothing) == gold(WHITE_ROW)
    assert reward().gold(p_of(BLACK_ROW, padded=True)) == gold(BLACK_ROW, padded=True)


@pytest.mark.parametrize("fen", ["no position", "8/8/8/8/8/8/8/8 w - - 0 1", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"])
def test_what_has_no_move_to_judge_is_refused(fen: str) -> None:
    prompt = Prompt(f"P: {fen}", (), Annotation(fen, (), ()), "P")
    for call in (reward().prepare, lambda prompts: reward().score(prompts, [""])):
        with pytest.raises(DataError, match="position"):
            call([prompt])


# ---- in a step ------------------------------------------------------------------------------------------------------


def test_a_step_is_told_before_it_samples_and_logs_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Slow(tiny.Vowels):
        def prepare(self, prompts: Sequence[Prompt]) -> None:
            events.append("".join(prompt.text for prompt in prompts))

        def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
            events.append("score")
            return super().score(prompts, texts)

        def metrics(self) -> dict[str, float]:
            return {"engine/wait_s": 0.25}

    objective = tiny.grpo(tiny.policy(), reward=Slow())
    sample = objective.source.sample
    monkeypatch.setattr(objective.source, "sample", lambda *args: events.append("sample") or sample(*args))
    metrics = objective.collect(0)[1]
    assert events == ["".join(tiny.PROMPTS), "sample", "score"]
    assert metrics["engine/wait_s"] == 0.25
    assert isinstance(reward(), LongReward)
    assert not isinstance(POLICY, LongReward)


@pytest.mark.parametrize("known", ["eeee", None])
def test_the_self_check_asks_a_reward_first_what_is_right(known: str | None) -> None:
    class Own(tiny.Vowels):
        def gold(self, prompt: Prompt) -> str | None:
            return known if prompt.text == tiny.PROMPTS[0] else None

    golds = dict(Rehearsal(World(reward=Own()).subject(), checkup.QUICK).golds)
    found = {prompt.text: answer for prompt, answer in golds.items()}
    assert found == dict.fromkeys(tiny.PROMPTS, "aeio") | {tiny.PROMPTS[0]: known or "aeio"}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[EnginePool]:
    try:
        path = find_stockfish(None)
    except EngineError:
        pytest.skip("no Stockfish here")
    settings: dict[str, Any] = {"depth": None, "nodes": 500, "multipv": 5, "timeout_s": 30.0, "retries": 1}
    found = EnginePool(path=path, **settings, processes=1, cache=str(tmp_path / "cache.sqlite"))
    yield found
    found.close()


@pytest.mark.engine
def test_with_stockfish_gold_is_one_and_every_move_has_a_value(pool: EnginePool) -> None:
    judged = reward(pool)
    prompts = [p_of(replace(row, moves=(), evals_cp=())) for row in ROWS]
    golds = [judged.gold(prompt) for prompt in prompts]
    assert judged.score(prompts, golds).rewards.tolist() == [1.0] * len(ROWS)
    (value,) = pool.analyse([Question(position_of(chess.Board()), "f2f3")])[0]
    assert value.eval_cp < -20
    right, wrong = (listing(["f2f3"], [cp]) for cp in (pawns_to_cp(value.eval_cp / 100), 100))
    evals = judged.score([p_of(WHITE_ROW)], [right, wrong]).parts["evals"]
    assert evals[0] == 1.0
    assert evals[1] < 0
    assert torch.equal(judged.score([p_of(WHITE_ROW)], [right, wrong]).parts["evals"], evals)
