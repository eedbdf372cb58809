"""Several rewards as one: hand-computed sums, what does not apply, and names that must match."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rookexp.chess_text import Annotation, build_p, p_prompt
from rookexp.config import check, nodes
from rookexp.errors import ConfigError
from rookexp.rewards.by_task import ByTask
from rookexp.rewards.chess import PolicyReward
from rookexp.rewards.combine import Clipped, Combined, MadeOf
from rookexp.types import Prompt, Scores

NAN = math.nan
PROMPTS = [Prompt("p", (), None, "x"), Prompt("q", (), None, "x")]
TEXTS = ["a", "b", "c", "d"] * 2
ONE = [1, 0, 0, 0, 3, 3, 3, 3]  # sd 0.5 in the first group, 0 in the second
TWO = [0, 20, 10, 10, 10, 30, 30, 10]  # sds sqrt(200 / 3) and sqrt(400 / 3)


class Given:
    """A reward that knows the answer, with one part."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = torch.tensor(values, dtype=torch.float64)

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        return Scores(self.values[: len(texts)], {"half": self.values[: len(texts)] / 2})


def combined(normalise: str, weights: dict[str, float], **rewards: Sequence[float]) -> Combined:
    return Combined(
        rewards={name: Given(values) for name, values in rewards.items()},
        weights=weights,
        normalise=normalise,  # type: ignore[arg-type]
    )


def rewards_of(normalise: str, weights: dict[str, float], **rewards: Sequence[float]) -> torch.Tensor:
    return combined(normalise, weights, **rewards).score(PROMPTS, TEXTS).rewards


def close(given: torch.Tensor, expected: Sequence[float]) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-12, equal_nan=True)


def test_the_two_modes_by_hand():
    weights = {"one": 2.0, "two": 0.5}
    close(
        rewards_of("sum_then_normalise", weights, one=ONE, two=TWO),
        [2, 10, 5, 5, 11, 21, 21, 11],
    )
    # one: (1 - 1/4) / (1/2) = 3/2 and -1/2 three times; then all equal. two: -+10 / sqrt(200/3), -+10 / sqrt(400/3)
    a, b = 10 / math.sqrt(200 / 3), 10 / math.sqrt(400 / 3)
    close(
        rewards_of("normalise_then_sum", weights, one=ONE, two=TWO),
        [3 - a / 2, -1 + a / 2, -1, -1, -b / 2, b / 2, b / 2, -b / 2],
    )


def test_the_modes_differ_after_the_baseline_too():
    """GDPO tells (1, 0) from (0, 2), which a sum does not once its weights have made them equal."""
    weights = {"one": 2.0, "two": 1.0}
    values = {"one": [1, 0, 0, 0] * 2, "two": [0, 2, 2, 0] * 2}
    summed = rewards_of("sum_then_normalise", weights, **values)[:4]
    decoupled = rewards_of("normalise_then_sum", weights, **values)[:4]
    assert summed[0] == summed[1] == 2
    # (3/2 * 2 - s, -1 + s, -1 + s, -1 - s) with s = 1 / sqrt(4 / 3)
    s = math.sqrt(3) / 2
    close(decoupled, [3 - s, s - 1, s - 1, -1 - s])


def test_parts_are_the_rewards_as_they_are_and_their_parts():
    scores = combined("normalise_then_sum", {"one": 1.0, "two": 0.0}, one=ONE, two=TWO).score(PROMPTS, TEXTS)
    assert list(scores.parts) == ["one", "two", "one/half", "two/half"]
    assert scores.unnormalised is not None
    close(scores.unnormalised, ONE)
    assert combined("sum_then_normalise", {"one": 1.0}, one=ONE).score(PROMPTS, TEXTS).unnormalised is None
    close(scores.parts["two"], TWO)
    close(scores.parts["one/half"], [x / 2 for x in ONE])


def test_a_sum_of_normalised_sums_knows_the_plain_one() -> None:
    inner = combined("normalise_then_sum", {"one": 1.0}, one=ONE)
    for mode in ("sum_then_normalise", "normalise_then_sum"):
        scores = Combined(rewards={"in": inner}, weights={"in": 2.0}, normalise=mode).score(PROMPTS, TEXTS)
        assert scores.unnormalised is not None
        close(scores.unnormalised, [2 * x for x in ONE])


def test_a_clipped_reward_is_clipped_before_and_after_normalisation() -> None:
    inner = combined("normalise_then_sum", {"one": 1.0}, one=ONE)
    scores = Clipped(reward=inner, low=0.5, high=1.0).score(PROMPTS, TEXTS)
    assert scores.unnormalised is not None
    close(scores.unnormalised, [1, 0.5, 0.5, 0.5, 1, 1, 1, 1])
    close(scores.rewards, [1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    close(scores.parts["unclipped"], [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0])


def test_what_does_not_apply_is_not_zero():
    one, two = [NAN, 0, 1, NAN, *ONE[4:]], [4, 4, NAN, NAN, *TWO[4:]]
    close(
        rewards_of("sum_then_normalise", {"one": 1.0, "two": 3.0}, one=one, two=two),
        [4 * 4, 12, 4 * 1, NAN, 33, 93, 93, 33],  # a row's mean over what applies, times 1 + 3
    )
    # one: 0 and 1 have mean 1/2 and sd sqrt(1/2); two: equal
    z = 0.5 / math.sqrt(0.5)
    close(
        rewards_of("normalise_then_sum", {"one": 1.0, "two": 3.0}, one=one, two=two)[:4],
        [0, -z, 4 * z, NAN],
    )


def test_a_reward_without_weight_is_only_logged():
    for mode in ("sum_then_normalise", "normalise_then_sum"):
        alone = rewards_of(mode, {"one": 2.0}, one=ONE)
        beside = rewards_of(mode, {"one": 2.0, "two": 0.0}, one=ONE, two=[NAN, *TWO[1:]])
        close(beside, alone.tolist())
        assert rewards_of(mode, {"one": 0.0, "two": 1.0}, one=ONE, two=[NAN, *TWO[1:]])[0].isnan()


@pytest.mark.parametrize(
    "values",
    [[0.1] * 8, [0.1, 0.1, NAN, 0.1] * 2, [NAN, 0.7, NAN, NAN] * 2, [1e-9 / 3] * 8, [0.3, 0.1 + 0.2, NAN, 0.3] * 2],
)
def test_equal_rewards_and_lone_ones_are_exactly_zero(values):
    given = rewards_of("normalise_then_sum", {"one": 1.0}, one=values)
    close(given, [NAN if math.isnan(value) else 0 for value in values])
    assert not given[~given.isnan()].any()


def test_one_completion_a_prompt_is_not_normalised():
    for mode in ("sum_then_normalise", "normalise_then_sum"):
        scores = combined(mode, {"one": 2.0, "two": 0.5}, one=ONE, two=TWO).score(PROMPTS, TEXTS[:2])
        close(scores.rewards, [2, 10])


@given(
    values=st.lists(st.floats(-100, 100) | st.just(NAN), min_size=8, max_size=8),
    shift=st.floats(-10, 10),
    scale=st.floats(0.1, 10),
)
def test_normalised_rewards_know_neither_shift_nor_scale(values, shift, scale):
    """Rounded values, so that adding a shift cannot make different rewards equal."""
    values = [NAN if math.isnan(value) else round(value, 2) for value in values]
    given = rewards_of("normalise_then_sum", {"one": 1.0}, one=values)
    other = rewards_of("normalise_then_sum", {"one": 1.0}, one=[value * scale + shift for value in values])
    torch.testing.assert_close(given, other, rtol=0, atol=1e-8, equal_nan=True)
    assert given.isnan().tolist() == [math.isnan(value) for value in values]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"one": 1.0}, "weights.two: missing; allowed: a number >= 0 for each of one, two"),
        ({"one": 1.0, "two": 1.0, "tow": 2.0}, "weights.tow=2.0: no such reward; allowed: one, two"),
        ({"one": 0.0, "two": 0.0}, "allowed: at least one > 0"),
    ],
)
def test_names_must_match_and_something_must_be_paid(weights, words):
    with pytest.raises(ConfigError) as caught:
        combined("sum_then_normalise", weights, one=ONE, two=TWO)
    assert words in str(caught.value)


def test_no_reward_at_all_is_refused():
    with pytest.raises(ConfigError, match="at least one"):
        combined("sum_then_normalise", {})


# ---- the option ---------------------------------------------------------------------------------------------------

ROW = Annotation(
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    ("e2e4", "g1f3", "g2g3", "c2c4", "d2d4"),
    (56, 34, 31, 24, 10),
)


@pytest.fixture
def option(root) -> dict[str, Any]:
    """conf/reward/combined.yaml."""
    node: dict[str, Any] = yaml.safe_load((root / "conf" / "reward" / "combined.yaml").read_text(encoding="utf-8"))
    return node


def test_the_option_summed_is_the_policy_reward(option):
    check.check_node(option, "reward")
    parts = nodes.make(option | {"normalise": "sum_then_normalise"})
    whole = PolicyReward(best=0.5, candidates=0.3, evals=0.2)
    prompt = Prompt(p_prompt(ROW.fen), (), ROW, "P")
    gold = build_p(ROW.fen, ROW.moves, ROW.evals_cp, "e2e4")[len(prompt.text) :]
    texts = [gold, gold.replace("B: e2e4", "B: g2g3"), "", " M: e2e5", gold.replace("0.31", "0.11")]
    scores = parts.score([prompt], texts)
    torch.testing.assert_close(scores.rewards, whole.score([prompt], texts).rewards)
    assert scores.rewards[0] == pytest.approx(1)
    assert {"move", "analysis", "move/best_is_engine", "analysis/format_valid"} <= set(scores.parts)
    normalised = nodes.make(option).score([prompt], texts)
    assert normalised.rewards.sum() == pytest.approx(0, abs=1e-6)
    assert not torch.allclose(normalised.rewards, scores.rewards)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda node: node["weights"].update(move=-1), "reward.weights.move=-1: allowed: a number >= 0"),
        (lambda node: node["rewards"].update(move=3), "reward.rewards.move=3: allowed: a node whose _target_"),
        (lambda node: node["rewards"]["move"].update(bets=1), "did you mean reward.rewards.move.best?"),
        (lambda node: node["rewards"]["move"].update(best=-1), "reward.rewards.move.best=-1: allowed: a number >= 0"),
        (lambda node: node.update(normalise="sum"), "reward.normalise=sum: allowed: sum_then_normalise, "),
        (lambda node: node.update(rewards=[]), "reward.rewards=[]: allowed: a mapping"),
    ],
)
def test_a_wrong_key_is_named_however_deep_it_stands(option, change, words):
    change(option)
    with pytest.raises(ConfigError) as caught:
        check.check_node(option, "reward")
    assert words in str(caught.value)


def test_gold_is_asked_of_the_next_reward_where_one_has_none() -> None:
    class Knowing(Given):
        def gold(self, prompt: Prompt) -> str:
            return f"after {prompt.text}"

    prompt = Prompt("P: x", (), None, "P")
    nobody = ByTask(rewards={"P": Given([0])})
    assert nobody.gold(prompt) is None
    assert MadeOf({"none": nobody, "knowing": Knowing([0])}).gold(prompt) == "after P: x"


class Short:
    """A user's own, with one number for all completions."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        return Scores(torch.ones(1), {})


WHOLES = {
    "by task": ByTask(rewards={"P": Short()}),
    "combined": Combined(rewards={"one": Short()}, weights={"one": 1.0}, normalise="sum_then_normalise"),
    "clipped": Clipped(reward=Short(), low=0.0, high=0.5),
}


@pytest.mark.parametrize("whole", WHOLES.values(), ids=WHOLES)
def test_one_number_for_all_is_not_spread_over_the_rows_of_a_part(whole: Any) -> None:
    with pytest.raises(ConfigError, match="reward=Short: score gave 1 for 2 completions"):
        whole.score([Prompt(text="P: x", ids=(1,), answer=None, task="P")], ["a", "b"])


@pytest.mark.parametrize(
    "make",
    [
        lambda own: ByTask(rewards={"P": Given([0]), "A": own}),
        lambda own: Combined(
            rewards={"P": Given([0]), "A": own}, weights={"P": 1.0, "A": 1.0}, normalise="sum_then_normalise"
        ),
    ],
)
def test_an_own_reward_that_cannot_score_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="reward: A is a object, without method score; see docs/own.md"):
        make(object())


class Timed(Given):
    """A reward that says what it took."""

    def __init__(self, seconds: float) -> None:
        super().__init__(ONE)
        self.seconds = seconds

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.begun = list(prompts)

    def metrics(self) -> dict[str, float]:
        return {"engine/wait_s": self.seconds}


def test_each_reward_begins_with_the_prompts_that_it_scores() -> None:
    asked = [Prompt(text, (), None, task) for text, task in (("p", "x"), ("q", "y"), ("r", "x"))]
    x, y, all_of_them = Timed(1.0), Timed(2.0), Timed(3.0)
    MadeOf({"by task": ByTask(rewards={"x": x, "y": y}), "plain": Given(ONE), "whole": all_of_them}).prepare(asked)
    assert (x.begun, y.begun, all_of_them.begun) == ([asked[0], asked[2]], [asked[1]], asked)


def test_what_several_rewards_took_is_told_of_each() -> None:
    alone = ByTask(rewards={"x": Given(ONE), "y": Timed(2.0)})
    assert alone.metrics() == {"engine/wait_s": 2.0}
    both = ByTask(rewards={"x": Timed(1.0), "y": Timed(2.0)})
    assert both.metrics() == {"x/engine/wait_s": 1.0, "y/engine/wait_s": 2.0}
    assert MadeOf({"a": both, "b": alone}).metrics() == {
        "a/x/engine/wait_s": 1.0, "a/y/engine/wait_s": 2.0, "b/engine/wait_s": 2.0,
    }  # fmt: skip


def test_rewards_that_cancel_leave_no_trace_for_a_baseline_to_divide_by() -> None:
    one = torch.rand(8, generator=torch.Generator().manual_seed(0))
    two = 1 - one  # rounded
    given = rewards_of("normalise_then_sum", {"one": 1.0, "two": 1.0}, one=one.tolist(), two=two.tolist())
    assert not given.any()
