"""Rollouts: what is sampled depends on seed and step alone, what it is worth, and which groups are asked again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import CONFIG, EOT, LETTERS, LONGEST, PROMPTS, Ask, InTwo, Letters, Vowels, grpo, policy
from torch import Tensor

from rookexp import aggregation, generate
from rookexp.baselines import Ema, GroupMean, Process
from rookexp.draw import Sampling
from rookexp.errors import ConfigError
from rookexp.objectives.rollout_metrics import rollout_metrics
from rookexp.objectives.rollouts import overlong_penalty, with_groups
from rookexp.types import Prompt, Rollouts, Scores, Stages

FOUR = ("abc", "k", "ponmlk", "b")


class AnyVowel:
    """1 where a completion has a vowel, else 0, so that some groups are dead; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[str]]] = []

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        self.asked.append(([prompt.text for prompt in prompts], list(texts)))
        return Scores(worth(texts), {"letters": torch.tensor([float(len(text)) for text in texts])})


class Same(Vowels):
    """The same for everything."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        return Scores(torch.full((len(texts),), 0.1), {})


def worth(texts: Sequence[str]) -> Tensor:
    return torch.tensor([float(any(c in "aeio" for c in text)) for text in texts])


def sampled(**changes: Any) -> Rollouts:
    return grpo(policy(), **changes).source.collect(0)[0]


def pairs(**changes: Any) -> Any:
    """Four prompts, two completions each, of which about half are dead."""
    return grpo(policy(), **{"task": Ask(FOUR), "reward": AnyVowel(), "group_size": 2} | changes)


# ---- sampling -------------------------------------------------------------------------------------------------------


def test_rollouts_depend_on_seed_and_step_alone() -> None:
    source = grpo(policy()).source
    first = source.collect(5)[0]
    source.collect(6)
    assert source.collect(5)[0].texts == grpo(policy()).source.collect(5)[0].texts == first.texts
    assert source.collect(6)[0].texts != first.texts
    assert grpo(policy(), seed=1).source.collect(5)[0].texts != first.texts
    assert len(set(sampled(task=Ask(["abc", "abc"])).texts)) > 4  # no two rows share their draws


def test_texts_tokens_and_ends_are_of_one_completion() -> None:
    rollouts = sampled()
    assert rollouts.tokens.shape == rollouts.mask.shape == rollouts.logprobs.shape
    for row, prompt in enumerate(rollouts.prompts[p] for p in range(3) for _ in range(4)):
        length = len(prompt.ids)
        assert tuple(rollouts.tokens[row, :length].tolist()) == prompt.ids
        completion = rollouts.tokens[row][rollouts.mask[row]].tolist()
        assert rollouts.mask[row, length : length + len(completion)].all()
        assert rollouts.texts[row] == Letters().decode(completion)
        assert (completion[-1] == EOT) != bool(rollouts.truncated[row])
        assert not rollouts.logprobs[row][~rollouts.mask[row]].any()
    assert rollouts.temperature.tolist() == [1.0] * 12


# ---- each kind in its own way ---------------------------------------------------------------------------------------


class Kinds(Ask):
    """Prompts of the kinds P and A in turn."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        return tuple(replace(prompt, task="PA"[i % 2]) for i, prompt in enumerate(super().select(step)))


COLD = Sampling(temperature=0.7, top_k=5, top_p=0.9, max_new_tokens=3)


def kinds(**changes: Any) -> Any:
    """Four prompts, P and A in turn, four completions each; A is sampled in its own way, P at temperature 1.3."""
    return grpo(policy(), **{"task": Kinds(FOUR), "temperature": 1.3, "own_sampling": {"A": COLD}} | changes)


def test_each_kind_is_sampled_as_in_a_run_of_its_own() -> None:
    rollouts = kinds().source.collect(3)[0]
    hot, cold = (kinds(own_sampling={}, **way).source.collect(3)[0] for way in ({}, {"sampling": COLD}))
    width = rollouts.tokens.shape[1]
    assert [prompt.text for prompt in rollouts.prompts] == list(FOUR)
    for row in range(16):
        alone = (hot, cold)[row // 4 % 2]
        assert rollouts.texts[row] == alone.texts[row]
        for name in ("tokens", "mask", "logprobs"):
            one, other = getattr(rollouts, name)[row], getattr(alone, name)[row]
            both = min(width, len(other))
            assert torch.allclose(one[:both], other[:both], atol=1e-5), "but for rounding, as others share the batch"
            assert not one[both:].any()
            assert not other[both:].any()
        assert rollouts.truncated[row] == alone.truncated[row]
    lengths = rollouts.mask.sum(1).view(4, 4)
    assert lengths[1::2].max() == 3
    assert lengths[::2].max() == LONGEST
    assert rollouts.temperature.view(4, 4)[:, 0].tolist() == pytest.approx([1.3, 0.7, 1.3, 0.7])


@pytest.mark.parametrize("changes", [{}, {"dead_groups": "resampled", "reward": AnyVowel()}, {"single_update": False}])
def test_every_ratio_is_one_whatever_the_temperatures(changes: dict[str, Any]) -> None:
    objective = kinds(**changes)
    experience, metrics = objective.collect(3)
    found = objective.loss(experience).per_token
    assert float((found["ratio/max"] - 1).abs().max()) < 1e-5
    if not changes:
        assert float(found["sampler/abs_logprob_error"].max()) < 1e-5
    assert metrics["completions/sampled"] >= 16
    assert experience.temperature.view(4, 4)[:, 0].tolist() == pytest.approx([1.3, 0.7, 1.3, 0.7])


def test_a_kind_that_is_not_asked_and_one_that_is_sampled_as_all_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    sample = generate.sample
    monkeypatch.setattr(generate, "sample", lambda *given: (calls.append(len(given[1])), sample(*given))[1])
    plain = sampled()
    same = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=LONGEST)
    for own in ({"P": COLD}, {"letters": same}):
        other = sampled(own_sampling=own)
        assert other.texts == plain.texts
        assert torch.equal(other.logprobs, plain.logprobs)
    assert calls == [3, 3, 3], "prompts that are sampled in one way are completed together"
    alone = sampled(own_sampling={"letters": COLD})
    assert calls[3:] == [3]
    assert torch.equal(alone.logprobs, sampled(sampling=COLD).logprobs)


def test_a_long_completion_is_one_near_the_end_of_its_own_kind() -> None:
    objective = kinds(overlong_buffer=2, group_size=16)
    rollouts, scores, _ = objective.source.collect(0)
    lengths = rollouts.mask.sum(1).tolist()
    limits = [(LONGEST, 3)[row // 16 % 2] for row in range(64)]
    expected = [max(-1.0, min(0.0, (limit - 2 - n) / 2)) for n, limit in zip(lengths, limits, strict=True)]
    assert scores.parts["overlong"].tolist() == pytest.approx(expected)
    assert len({(limit, penalty) for limit, penalty in zip(limits, expected, strict=True)}) > 3
    with pytest.raises(ConfigError, match=r"overlong_buffer=4: .*at most task\.sampling\.A\.max_new_tokens=3"):
        kinds(overlong_buffer=4)


def test_the_constant_length_is_the_longest_of_all_kinds() -> None:
    experience, _ = kinds(aggregation=aggregation.constant_length).collect(3)
    weights = experience.weights[experience.weights > 0]
    assert weights.tolist() == pytest.approx([1 / (16 * LONGEST)] * len(weights))


# ---- rewards --------------------------------------------------------------------------------------------------------


def test_rewards_of_another_count_are_refused() -> None:
    class Half(Vowels):
        def score(self, prompts: Any, texts: Any) -> Scores:
            return super().score(prompts, texts[:4])

    with pytest.raises(ConfigError, match=r"^reward=Half: score gave 4 for 12 completions; wanted: .*Scores"):
        grpo(policy(), reward=Half()).collect(0)


def test_rewards_may_be_counts_or_truth_values() -> None:
    class Whole(Vowels):
        def score(self, prompts: Any, texts: Any) -> Scores:
            return Scores(worth(texts).to(self.dtype), {"letters": torch.tensor([len(text) for text in texts])})

    found = []
    for Whole.dtype in (torch.float32, torch.int64, torch.bool, torch.float16):
        experience, metrics = grpo(policy(), reward=Whole()).collect(0)
        found.append((experience.advantages.dtype, experience.advantages.tolist(), metrics))
    assert found == [found[0]] * 4
    assert found[0][2]["reward/std"] > 0


@pytest.mark.parametrize(
    ("value", "said"),
    [(math.nan, "a finite number; NaN is where no part applies: every"), (math.inf, "a finite number$")],
)
def test_a_reward_that_is_no_finite_number_is_refused_with_the_prompt(value: float, said: str) -> None:
    class NotForK(Vowels):
        def score(self, prompts: Any, texts: Any) -> Scores:
            scores = super().score(prompts, texts)
            scores.rewards[5] = value
            return scores

    with pytest.raises(ConfigError, match=f"^reward: {value} for a completion of 'k'; wanted: {said}"):
        grpo(policy(), reward=NotForK()).collect(0)


def test_a_long_completion_loses_reward_before_the_limit() -> None:
    rollouts, scores, _ = grpo(policy()).source.collect(0)
    table: list[dict[str, Any]] = []
    objective = grpo(policy(), overlong_buffer=3, on_completions=lambda step, rows: table.extend(rows))
    _, penalised, _ = objective.source.collect(0)
    lengths = rollouts.mask.sum(1).tolist()
    assert min(lengths) <= 3 < LONGEST - 1 < max(lengths)  # some lose nothing, some all
    expected = [{4: -1 / 3, 5: -2 / 3, 6: -1.0}.get(length, 0.0) for length in lengths]
    assert penalised.parts["overlong"].tolist() == pytest.approx(expected)
    assert (penalised.rewards - scores.rewards).tolist() == pytest.approx(expected, abs=1e-6)
    assert penalised.parts.keys() == {"first", "overlong"}
    experience, metrics = objective.collect(0)
    assert metrics["reward/overlong"] == pytest.approx(sum(expected) / 12)
    assert metrics["reward/mean"] == pytest.approx(float(scores.rewards.mean()) + sum(expected) / 12)
    assert [row["overlong"] for row in table] == pytest.approx(expected)
    groups = penalised.rewards.view(3, 4)
    advantages = (groups - groups.mean(1, keepdim=True)).flatten()[:, None] * rollouts.mask
    assert torch.allclose(experience.advantages, advantages, atol=1e-6)


def test_a_completion_that_the_model_has_no_more_places_for_is_overlong_too() -> None:
    """The limit is the one that was in force: here four tokens after the last prompt, and six after the others."""
    model = policy(config=replace(CONFIG, n_positions=len(PROMPTS[2]) + 4))
    rollouts, scores, _ = grpo(model, overlong_buffer=2).source.collect(0)
    lengths, limits = rollouts.mask.sum(1).tolist(), [6] * 8 + [4] * 4
    assert 4 in lengths[8:]
    expected = [max(-1.0, min(0.0, (limit - 2 - length) / 2)) for length, limit in zip(lengths, limits, strict=True)]
    assert scores.parts["overlong"].tolist() == pytest.approx(expected)


def test_a_buffer_longer_than_a_completion_is_refused_at_build() -> None:
    grpo(policy(), overlong_buffer=LONGEST)
    with pytest.raises(
        ConfigError, match=rf"grpo\.overlong_buffer={LONGEST + 1}: allowed: .*grpo\.max_new_tokens={LONGEST}"
    ):
        grpo(policy(), overlong_buffer=LONGEST + 1)


# ---- stages ---------------------------------------------------------------------------------------------------------


def test_a_token_is_of_the_stage_in_which_its_text_ends() -> None:
    objective = grpo(policy(), reward=InTwo())
    rollouts, scores, _ = objective.source.collect(0)
    assert scores.stages is not None
    stage = objective.source.stages(rollouts, scores.stages)
    assert not stage[~rollouts.mask].any()
    sizes = set()
    for row, text in enumerate(rollouts.texts):
        found = stage[row][rollouts.mask[row]].tolist()
        whole = len(text) > 2  # else the second stage has no text, and the end of text is the first one's
        assert found == [0] * min(2, len(text)) + [1] * (len(found) - 2) if whole else [0] * len(found)
        sizes.add(whole)
    assert sizes == {True, False}


def test_a_token_that_spans_an_end_is_of_the_later_stage() -> None:
    class Pairs(Letters):
        """Two letters a token."""

        def decode(self, ids: Sequence[int]) -> str:
            return "".join(LETTERS[i] * 2 for i in ids if i != EOT)

    objective = grpo(policy(), reward=InTwo(), tokenizer=Pairs())
    rollouts = objective.source.collect(0)[0]
    row = max(range(12), key=lambda row: int(rollouts.mask[row].sum()))
    places = rollouts.mask[row].nonzero()[:, 0]
    for ends, expected in (((0, 1, 12), [2, 2]), ((2, 3, 12), [0, 2]), ((2, 4, 12), [0, 1]), ((12, 12, 12), [0, 0])):
        stages = Stages(torch.tensor([ends] * 12), torch.zeros(12, 3))
        assert objective.source.stages(rollouts, stages)[row, places[:2]].tolist() == expected


@pytest.mark.parametrize("credit", ["own", "to_go"])
def test_each_token_has_the_advantage_of_its_stages(credit: str) -> None:
    table: list[dict[str, Any]] = []
    baseline = Process(std="none", std_eps=0.0, std_floor=0.0, credit=credit)
    objective = grpo(
        policy(), reward=InTwo(), baseline=baseline, on_completions=lambda step, rows: table.extend(rows), group_size=16
    )
    rollouts = objective.source.collect(0)[0]
    experience, _ = objective.collect(0)
    counts = [[float(sum(c in "aeio" for c in piece)) for piece in (t[:2], t[2:])] for t in rollouts.texts]
    for group in range(3):
        rows = range(16 * group, 16 * group + 16)
        there = [row for row in rows if len(rollouts.texts[row]) > 2]
        means = [sum(counts[row][0] for row in rows) / 16, sum(counts[row][1] for row in there) / max(1, len(there))]
        for row in rows:
            first, second = (count - mean for count, mean in zip(counts[row], means, strict=True))
            second = second if row in there else 0.0
            mine = [first + second * (credit == "to_go"), second]
            ids = rollouts.mask[row].sum()
            expected = [mine[int(k >= 2 and row in there)] for k in range(ids)]
            assert experience.advantages[row][rollouts.mask[row]].tolist() == pytest.approx(expected, abs=1e-5)
    assert len(table) == 48


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (Stages(torch.tensor([[2, 3]] * 2), torch.tensor([[0.5, 0.5], [1.0, 1.0]])), r"completion 1 earn 2, .* 1;"),
        (Stages(torch.tensor([[2, 3]]), torch.tensor([[0.5, 0.5]])), r"\[1, 2\] and \[1, 2\]; wanted: \(2, K\)"),
    ],
)
def test_stages_are_shares_of_the_rewards(stages: Stages, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Scores(torch.ones(2), {}, stages)


def test_the_price_of_length_is_paid_in_the_last_stage() -> None:
    plain, long = (grpo(policy(), reward=InTwo(), overlong_buffer=x).source.collect(0)[1] for x in (None, 3))
    assert plain.stages is not None
    assert long.stages is not None
    assert (long.parts["overlong"] < 0).any()
    assert torch.allclose(long.stages.rewards[:, 1], plain.stages.rewards[:, 1] + long.parts["overlong"])
    assert torch.equal(long.stages.rewards[:, 0], plain.stages.rewards[:, 0])
    assert torch.allclose(long.stages.rewards.sum(1), long.rewards)


def test_a_baseline_by_stages_needs_a_reward_that_has_some() -> None:
    baseline = Process(std="none", std_eps=0.0, std_floor=0.0, credit="own")
    with pytest.raises(
        ConfigError, match=r"^baseline=Process with reward=Vowels: .*reward=policy.*baseline=group_mean"
    ):
        grpo(policy(), baseline=baseline).collect(0)


class FirstOrRest(InTwo):
    """1 for a vowel at the beginning or for none there: the same in all, in one stage or in the other."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        first = torch.tensor([float(text[:1] in tuple("aeio")) for text in texts])
        ends = torch.tensor([(1, len(text)) for text in texts])
        return Scores(torch.ones(len(texts)), {}, Stages(ends, torch.stack([first, 1 - first], 1)))


@pytest.mark.parametrize("dead_groups", ["dropped", "resampled"])
def test_equal_rewards_of_unlike_stages_are_alive_where_stages_are_compared(dead_groups: str) -> None:
    process = Process(std="none", std_eps=0.0, std_floor=0.1, credit="own")
    mean = GroupMean(std="none", std_eps=0.0, std_floor=0.0)
    shares, counts, weights = {}, {}, {}
    for baseline in (process, mean):
        objective = pairs(reward=FirstOrRest(), baseline=baseline, dead_groups=dead_groups, max_resamples=2)
        experience, metrics = objective.collect(0)
        shares[baseline], counts[baseline] = metrics["frac_reward_zero_std"], metrics["completions/sampled"]
        weights[baseline] = experience.weights
        assert bool(experience.advantages.any()) is (baseline is process)
    assert shares[process] < shares[mean] == 1
    assert weights[process].any()
    assert not weights[mean].any()
    assert counts[mean] == (8 if dead_groups == "dropped" else 24) >= counts[process]


# ---- groups that are asked again ------------------------------------------------------------------------------------


def test_groups_that_are_asked_again_bring_their_stages() -> None:
    objective = pairs(reward=InTwo(), dead_groups="resampled", max_resamples=3)
    rollouts, scores, count = objective.source.collect(0)
    assert count > 8
    fresh = InTwo().score((), rollouts.texts).stages
    assert scores.stages is not None
    assert fresh is not None
    assert torch.equal(scores.stages.ends, fresh.ends)
    assert torch.equal(scores.stages.rewards, fresh.rewards)


def is_dead(texts: Sequence[str]) -> bool:
    return len(set(worth(texts).tolist())) == 1


@pytest.mark.parametrize("step", range(3))
def test_only_dead_groups_are_asked_again(step: int) -> None:
    reward = AnyVowel()
    objective = pairs(reward=reward, dead_groups="resampled", max_resamples=3)
    rollouts, scores, count = objective.source.collect(step)
    first = pairs().source.collect(step)[0]
    texts = list(reward.asked[0][1])
    assert (reward.asked[0][0], texts) == (list(FOUR), list(first.texts))
    assert 2 <= len(reward.asked) <= 4
    untouched = set(range(4))
    for names, new in reward.asked[1:]:
        dead = [p for p in range(4) if is_dead(texts[2 * p : 2 * p + 2])]
        assert names == [FOUR[p] for p in dead]
        for i, p in enumerate(dead):
            texts[2 * p : 2 * p + 2] = new[2 * i : 2 * i + 2]
        untouched -= set(dead)
    if len(reward.asked) < 4:
        assert not any(is_dead(texts[2 * p : 2 * p + 2]) for p in range(4)), "it goes on until none is dead"
    assert 0 < len(untouched) < 4
    assert rollouts.texts == tuple(texts)
    assert scores.rewards.tolist() == worth(texts).tolist()
    assert scores.parts["letters"].tolist() == [len(text) for text in texts]
    assert count == sum(len(new) for _, new in reward.asked)
    last = [int(tokens[mask][-1]) for tokens, mask in zip(rollouts.tokens, rollouts.mask, strict=True)]
    assert rollouts.truncated.tolist() == [token != EOT for token in last]
    assert objective.collect(step)[1]["completions/sampled"] == count
    for p in untouched:
        rows, width = slice(2 * p, 2 * p + 2), min(first.tokens.shape[1], rollouts.tokens.shape[1])
        for name in ("tokens", "mask", "logprobs"):
            assert torch.equal(getattr(rollouts, name)[rows, :width], getattr(first, name)[rows, :width])
        assert torch.equal(rollouts.truncated[rows], first.truncated[rows])


def test_groups_that_are_asked_again_have_draws_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    sample = generate.sample

    def spied(model: Any, prompts: Any, own: Sequence[int], *rest: Any) -> Any:
        seeds.extend(own)
        return sample(model, prompts, own, *rest)

    monkeypatch.setattr(generate, "sample", spied)
    objective = grpo(policy(), reward=Same(), dead_groups="resampled", max_resamples=3)
    assert objective.source.collect(0)[2] == len(seeds) == 12 * 4
    objective.source.collect(1)
    assert len(set(seeds)) == len(seeds) == 96


@pytest.mark.parametrize(("first", "second"), [(1, LONGEST), (LONGEST, 1)])
def test_groups_may_be_longer_or_shorter_than_those_they_replace(first: int, second: int) -> None:
    """Nothing is cut off, and what is padded is as padding is elsewhere."""
    prompts = Ask(PROMPTS).select(0)
    way = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=LONGEST)
    old, new = (
        grpo(policy(), sampling=replace(way, max_new_tokens=most)).source.sample(0, prompts[i:])
        for i, most in ((0, first), (2, second))
    )
    assert old.tokens.shape[1] != new.tokens.shape[1]
    scores = [Scores(torch.arange(float(len(rows.texts))), {}) for rows in (old, new)]
    merged, _ = with_groups(old, scores[0], [2], new, scores[1], EOT)
    for i in range(12):
        source, row = (old, i) if i < 8 else (new, i - 8)
        for name, padding in (("tokens", EOT), ("mask", False), ("logprobs", 0.0)):
            given, found = (getattr(rollouts, name)[at] for rollouts, at in ((source, row), (merged, i)))
            both = min(len(given), len(found))
            assert found[:both].equal(given[:both])
            assert (found[both:] == padding).all()
            assert (given[both:] == padding).all()
        assert merged.texts[i] == source.texts[row]


@pytest.mark.parametrize("max_resamples", [1, 4])
def test_what_stays_dead_is_asked_so_often_and_no_more(max_resamples: int) -> None:
    objective = grpo(policy(), reward=Same(), dead_groups="resampled", max_resamples=max_resamples)
    rollouts, _, count = objective.source.collect(0)
    assert count == 12 * (1 + max_resamples)
    assert len(rollouts.texts) == 12
    for mode in ("kept", "dropped"):
        assert grpo(policy(), reward=Same(), dead_groups=mode).source.collect(0)[2] == 12


@pytest.mark.parametrize("step", range(3))
def test_what_was_asked_again_is_scored_by_the_policy_as_it_was_sampled(step: int) -> None:
    objective = pairs(dead_groups="resampled", max_resamples=3, temperature=1.3)
    experience, _ = objective.collect(step)
    found = objective.loss(experience).per_token
    assert float(found["sampler/abs_logprob_error"].max()) < 1e-5
    assert float(found["ratio/max"].max()) == pytest.approx(1, abs=1e-5)
    prompts = [Letters().encode(text) for text in FOUR for _ in range(2)]
    assert experience.prompt_lengths.tolist() == [len(ids) for ids in prompts]
    assert [row[: len(ids)] for row, ids in zip(experience.tokens.tolist(), prompts, strict=True)] == prompts


def test_asking_again_is_reproducible() -> None:
    (one, first), (other, second) = (pairs(dead_groups="resampled").collect(2) for _ in range(2))
    assert first == second
    assert first["completions/sampled"] > 8
    for name in ("tokens", "weights", "logprobs", "advantages"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert pairs(dead_groups="resampled", seed=1).collect(2)[1] != first


# ---- metrics --------------------------------------------------------------------------------------------------------


def metrics_of(
    rollouts: Rollouts, rewards: Tensor, parts: Mapping[str, Tensor] = {}, before: Tensor | None = None
) -> dict[str, float]:
    scores = Scores(rewards.flatten(), parts, unnormalised=before)
    return rollout_metrics(rollouts, scores, scores.dead(rewards.shape[1], by_stage=True))


def test_metrics_of_the_rollouts() -> None:
    texts = ("a", "a", "b", "", "c", "d", "e", "f", "g", "g", "g", "g")
    rollouts = replace(sampled(), texts=texts)
    rewards = torch.tensor([[1.0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]])
    parts = {"white": torch.tensor([1.0, math.nan, 0.0, 0.5] + [math.nan] * 8)}
    metrics = metrics_of(rollouts, rewards, parts)
    assert metrics == pytest.approx(
        {
            "reward/mean": 0.5,
            "reward/std": math.sqrt(12 * 0.25 / 11),
            "reward/white": 0.5,
            "frac_reward_zero_std": 2 / 3,
            "frac_groups_all_best": 1 / 3,
            "frac_groups_all_worst": 1 / 3,
            "completions/identical_frac": 6 / 12,  # two a and four g; no two completions are compared across groups
            "completions/tokens_per_forward": 1.0,
            "completions/mean_length": float(rollouts.mask.sum()) / 12,
            "completions/truncated_frac": float(rollouts.truncated.sum()) / 12,
        }
    )
    most, none = [[1.0] * 4, [1] * 4, [0] * 4], [[0.0] * 4, [0.5] * 4, [0, 0, 0, 1]]
    for rewards, best, worst in ((torch.tensor(most), 2 / 3, 1 / 3), (torch.tensor(none), 0, 1 / 3)):
        metrics = metrics_of(rollouts, rewards)
        assert metrics["frac_groups_all_best"] == pytest.approx(best)
        assert metrics["frac_groups_all_worst"] == pytest.approx(worst)
    equal = torch.full((3, 4), 0.3)
    metrics = metrics_of(rollouts, equal)
    assert metrics["frac_reward_zero_std"] == 1
    assert metrics["frac_groups_all_best"] == metrics["frac_groups_all_worst"] == 0  # none is better than another


def test_rewards_that_were_normalised_within_groups_are_told_as_they_were() -> None:
    rewards = torch.tensor([[-0.5, -0.5, 1.5, -0.5], [0.0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4]])
    before = torch.tensor([0.0, 0, 1, 0, 0.7, 0.7, 0.7, 0.7, 0.1, 0.2, 0.3, 0.4])
    metrics = metrics_of(sampled(), rewards, {"overlong": torch.full((12,), -0.3)}, before)  # a reward's own name
    assert metrics["reward/mean"] == pytest.approx((1 + 4 * 0.7 + 1) / 12)
    assert "reward/unnormalised" not in metrics


def test_a_lone_completions_rewards_do_not_vary() -> None:
    changes = {"task": Ask(("abc",)), "group_size": 1, "baseline": Ema(alpha=0.1, per="global")}
    assert grpo(policy(), **changes).collect(0)[1]["reward/std"] == 0


def test_each_tasks_reward_is_told_where_there_are_several() -> None:
    rollouts = sampled()
    assert not [name for name in metrics_of(rollouts, torch.zeros(3, 4)) if "_P" in name]
    prompts = tuple(replace(prompt, task=task) for prompt, task in zip(rollouts.prompts, "PAP", strict=True))
    rewards = torch.arange(12.0).view(3, 4) ** 2
    metrics = metrics_of(replace(rollouts, prompts=prompts), rewards)
    assert metrics["reward/mean_P"] == pytest.approx((14 + 366) / 8)
    assert metrics["reward/mean_A"] == pytest.approx(126 / 4)
    first = tuple(replace(prompt, source="first") for prompt in rollouts.prompts)  # a step of a phase asks one alone
    assert metrics_of(replace(rollouts, prompts=first), rewards)["reward/mean_first"] == pytest.approx(506 / 12)
    assert len(PROMPTS) == len(prompts)


def test_golden_penalties_with_a_limit_of_100_and_a_buffer_of_20():
    lengths = torch.tensor([0, 1, 79, 80, 81, 90, 99, 100, 101, 1000])
    penalties = overlong_penalty(lengths, max_new_tokens=100, buffer=20)
    assert penalties.tolist() == pytest.approx([0, 0, 0, 0, -0.05, -0.5, -0.95, -1, -1, -1])


@pytest.mark.parametrize(("buffer", "expected"), [(100, [0, -0.5, -1]), (1, [0, 0, -1])])
def test_the_longest_and_the_shortest_buffer(buffer, expected):
    lengths = torch.tensor([0, 50, 100])
    assert overlong_penalty(lengths, max_new_tokens=100, buffer=buffer).tolist() == pytest.approx(expected)
