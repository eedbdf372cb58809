"""A rewards by hand, the distance beneath them, and what is reported beside them."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rewarded import BLACK_ROW, MOVES, WHITE_ROW, a_of, a_prompts, flat, option, p_gold, p_of, worth

from rookexp.chess_text import END_OF_TEXT
from rookexp.errors import ConfigError
from rookexp.objectives.rollouts import with_groups
from rookexp.rewards.by_task import ByTask
from rookexp.rewards.environment import levenshtein, similarity
from rookexp.self_check import answers
from rookexp.self_check.rehearsal import Finding, Rehearsal
from rookexp.types import Rollouts

START = a_of(*MOVES["ongoing"])
RIGHT = START.answer.text()
FEN = START.answer.new_fen


def test_the_completions_of_the_data_are_exact() -> None:
    texts = {
        "mate": "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3+1.0+1+0",
        "draw": "7k/8/5KQ1/8/8/8/8/8 b - - 1 70+0.5+1+0",
        "failed": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 1 1+-1.0+0+1",
    }
    for name, text in texts.items():
        for reward in ("a_exact", "a_levenshtein"):
            assert worth(option(reward), a_of(*MOVES[name]), f" {text}\n{END_OF_TEXT} and more") == 1.0
    assert worth(option("a_exact"), a_of(*MOVES["mate"]), texts["mate"].replace("1.0", "1")) == 0.0
    assert worth(option("a_exact"), START, RIGHT + "+0") == 0.0


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_levenshtein_is_what_its_definition_says(a: str, b: str) -> None:
    @functools.cache
    def slow(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(slow(i - 1, j) + 1, slow(i, j - 1) + 1, slow(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    assert levenshtein(a, b) == slow(len(a), len(b))
    assert similarity(a, b) == similarity(b, a) == 1 - slow(len(a), len(b)) / max(1, len(a), len(b))


def test_levenshtein_of_known_words() -> None:
    assert levenshtein("kitten", "sitting") == 3
    assert similarity("kitten", "sitting") == pytest.approx(4 / 7)


def test_the_reward_by_edits() -> None:
    reward = option("a_levenshtein")
    suffix = "0.001+0+0"
    assert worth(reward, START, f"{FEN}+0.001+1+0") == pytest.approx(0.8 - 0.2 + 0.4 * 8 / 9)
    assert worth(reward, START, FEN) == pytest.approx(0.6)
    wrong = FEN[:-1] + "2"
    assert worth(reward, START, f"{wrong}+{suffix}") == pytest.approx(-0.8 + 0.6 * (1 - 1 / len(FEN)) + 0.2)
    assert worth(reward, START, "") == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (RIGHT, 0.54),
        (f"{FEN}+1.0+1+1", 0.54),  # never compared
        (f"{FEN[:-1]}2+0.001+0+0", 0.03 - 0.3 + 0.01),
        (f"{FEN.replace('0 1', '1 1')}+0.001+0+0", -0.66),
        (f"{FEN.replace('RNBQKBNR', 'RNBQKKNR')}+0.001+0+0", -0.87),
        (f"{FEN.replace('RNBQKBNR', 'RNBQKBN')}+0.001+0+0", -0.87),  # a short rank
        (f"{FEN.split()[0]}+0.001+0+0", 0.025 - 0.7 + 0.01),
        (f"{FEN.rpartition(' ')[0]}+0.001+0+0", 0.025 - 0.7 + 0.01),  # no move number is not a wrong one
        (f"{FEN}+0.001+0", 0.015 + 0.5 + 0.01),
        (f"{FEN}+x+0+0", 0.025 + 0.5 + 0.01),
        ("", -0.9),
    ],
)
def test_the_reward_of_the_schema(text: str, value: float) -> None:
    assert worth(option("a_schema"), START, text) == pytest.approx(value)


def test_what_is_reported_beside_every_a_reward() -> None:
    fens = {
        FEN: (1, 1, 1),
        FEN[:-1] + "2": (0, 1, 1),
        FEN.replace("KQkq", "KQ"): (0, 0, 1),
        FEN.replace("P3", "P2P"): (0, 0, 0),
    }
    scores = option("a_exact").score([START], [f"{fen}+0.001+0+0" for fen in fens])
    found = torch.stack([scores.parts[f"fen_{part}"] for part in ("strict", "lenient", "board")]).T.tolist()
    assert found == [list(map(float, expected)) for expected in fens.values()]
    assert scores.parts["exact"].tolist() == [1, 0, 0, 0]
    texts = [f"{FEN}+0.001+0+0", f"{FEN}+0.001+0", f"{FEN}+0.001+0+0+0", "e4+0.001+0+0", f"{FEN}+1.0+1+0"]
    parts = option("a_exact").score([START], texts).parts
    assert parts["state_valid"].tolist() == [1, 0, 0, 0, 1]
    assert parts["recall_ongoing"].tolist() == [1, 0, 0, 1, 0]


def test_recalls_are_of_their_own_class() -> None:
    prompts = a_prompts()
    kinds = ["ongoing", "ongoing", "mate", "draw", "failed"]
    always_ongoing = option("a_exact").score(prompts, [f"{p.answer.new_fen}+0.001+0+0" for p in prompts])
    for kind in set(kinds):
        values = always_ongoing.parts[f"recall_{kind}"].tolist()
        assert [not math.isnan(value) for value in values] == [kind == own for own in kinds]
        assert {value for value in values if not math.isnan(value)} == {float(kind == "ongoing")}


# ---- by task, and clipped -------------------------------------------------------------------------------------------


def test_each_task_has_its_reward_and_parts() -> None:
    prompts = [START, p_of(WHITE_ROW), a_of(*MOVES["mate"]), p_of(BLACK_ROW)]
    texts = [RIGHT, "", p_gold(WHITE_ROW), "B: e2e4", "", "x", p_gold(BLACK_ROW), ""]
    mixed = option("rookworld").score(prompts, texts)
    of_a = option("a_exact").score(prompts[::2], [*texts[:2], *texts[4:6]])
    of_p = option("policy").score(prompts[1::2], [*texts[2:4], *texts[6:]])
    a_rows, p_rows = [0, 1, 4, 5], [2, 3, 6, 7]
    assert mixed.parts.keys() == {*of_a.parts, *of_p.parts}
    for name, values in {"": mixed.rewards, **mixed.parts}.items():
        for scores, rows in ((of_a, a_rows), (of_p, p_rows)):
            own = scores.parts.get(name, torch.full((4,), math.nan)) if name else scores.rewards
            torch.testing.assert_close(values[rows], own, rtol=0, atol=0, equal_nan=True)


def test_tasks_with_stages_have_them_beside_tasks_without() -> None:
    prompts, texts = [START, p_of(WHITE_ROW)], [RIGHT, "xy", p_gold(WHITE_ROW), "B: e2e4"]
    scores, own = option("rookworld").score(prompts, texts), option("policy").score(prompts[1:], texts[2:]).stages
    assert scores.stages is not None
    assert own is not None
    assert scores.stages.ends.tolist() == [[len(RIGHT)] * 3, [2] * 3, *own.ends.tolist()]
    assert scores.stages.rewards.tolist() == [[1, 0, 0], [0, 0, 0], *own.rewards.tolist()]
    assert torch.allclose(scores.stages.rewards.sum(1), scores.rewards)
    assert option("rookworld").score(prompts[:1], texts[:2]).stages is None  # nothing with stages was asked


def test_a_task_without_a_reward_is_refused() -> None:
    reward = ByTask(rewards={"P": option("policy")})
    with pytest.raises(ConfigError, match=r"rewards\.A: missing; allowed: .* only for P"):
        reward.score([p_of(WHITE_ROW), START], ["", ""])
    with pytest.raises(ConfigError, match="a reward for each task"):
        ByTask(rewards={})


def test_one_reward_of_another_option_for_a_task() -> None:
    swapped = option("rookworld", "reward@reward.rewards.A=a_levenshtein")
    assert worth(swapped, START, FEN) == pytest.approx(0.6)
    assert worth(swapped, p_of(WHITE_ROW), p_gold(WHITE_ROW)) == 1.0


def test_a_part_of_a_task_that_is_not_asked_again_does_not_apply() -> None:
    """Dead groups that are asked again may all be of one task."""
    prompts = (START, p_of(WHITE_ROW))

    def rollouts(*asked: int) -> Rollouts:
        n = len(asked)
        zeros = torch.zeros(n, 2)
        return Rollouts(
            tokens=zeros.long(),
            mask=zeros.bool(),
            logprobs=zeros,
            temperature=torch.ones(n),
            truncated=torch.zeros(n).bool(),
            forwards=torch.ones(n).long(),
            prompts=tuple(prompts[i] for i in asked),
            texts=("",) * n,
            group_size=1,
        )

    reward = option("rookworld")
    first, again = reward.score(prompts, [RIGHT, ""]), reward.score(prompts[1:], [p_gold(WHITE_ROW)])
    _, merged = with_groups(rollouts(0, 1), first, [1], rollouts(1), again, eot_id=0)
    assert flat(merged) == flat(reward.score(prompts, [RIGHT, p_gold(WHITE_ROW)]))


def test_the_self_check_compares_gold_answers_within_their_task() -> None:
    """Those of P earn 2 and those of A 1.5."""
    other = a_of(START.answer.new_fen, "e7e5")
    golds = [(p_of(WHITE_ROW), p_gold(WHITE_ROW)), (START, RIGHT), (other, other.answer.text())]
    source = SimpleNamespace(reward=option("full_additive"))
    case = cast(Rehearsal, SimpleNamespace(golds=golds, own=SimpleNamespace(source=source)))
    assert isinstance(answers.gold_answers(case), str)
    golds.append((a_of(*MOVES["mate"]), RIGHT))
    found = answers.gold_answers(case)
    assert isinstance(found, Finding)
    assert "A: rnbqkbnr/pppp1ppp" in found.seen


def test_clipped() -> None:
    scores = option("clipped").score([p_of(WHITE_ROW)], [p_gold(WHITE_ROW), ""])
    assert scores.rewards.tolist() == pytest.approx([1.0, -0.3])
    assert scores.parts["unclipped"].tolist() == [2.0, -1.0]
    assert scores.parts["best"].tolist() == [1.0, 0.0]
    with pytest.raises(ConfigError, match=r"high=-0\.5: allowed: above low=-0\.3"):
        option("clipped", "reward.high=-0.5")
