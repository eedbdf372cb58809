"""Greedy evaluation: one answer a prompt, the same every time, and means over the prompts to which they apply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import EOT, PROMPTS, Ask, Letters, Vowels, bf16, flat, policy

from rookexp import generate
from rookexp.evaluation import Greedy
from rookexp.types import Prompt, Scores

ASKED = Ask([*PROMPTS, "ba", "gfe"]).select(0)


class Parity(Vowels):
    """Parts that apply to some prompts only."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        scores = super().score(prompts, texts)
        even = [0.25 * i if i % 2 == 0 else math.nan for i in range(len(texts))]
        never = [math.nan] * len(texts)
        return Scores(scores.rewards, {**scores.parts, "even": torch.tensor(even), "never": torch.tensor(never)})


def greedy(
    model: Any, prompts: tuple[Prompt, ...] = ASKED, max_new_tokens: int = 5, own_lengths: dict[str, int] | None = None
) -> Greedy:
    return Greedy(
        policy=model,
        tokenizer=Letters(),
        prompts=prompts,
        reward=Parity(),
        max_new_tokens=max_new_tokens,
        own_lengths=own_lengths or {},
        autocast=nullcontext,
    )


def answer(model: Any, prompt: Prompt) -> tuple[str, bool]:
    """The likeliest token again and again, without a cache, and whether there was no end."""
    ids = list(prompt.ids)
    for _ in range(5):
        ids.append(int(model.logits(model.hidden(torch.tensor([ids])))[0, -1].argmax()))
        if ids[-1] == EOT:
            break
    return Letters().decode(ids[len(prompt.ids) :]), ids[-1] != EOT


def test_answers_are_the_likeliest_tokens_and_scored_by_the_reward() -> None:
    model = policy(5)
    evaluate = greedy(model)
    metrics = evaluate(40)
    expected = [answer(model, prompt) for prompt in ASKED]
    assert [row["completion"] for row in evaluate.completions] == [text for text, _ in expected]
    assert [row["prompt"] for row in evaluate.completions] == [prompt.text for prompt in ASKED]
    rewards = Vowels().score(ASKED, [text for text, _ in expected]).rewards.double()
    assert [row["reward"] for row in evaluate.completions] == pytest.approx(rewards.tolist())
    assert metrics["eval/reward"] == pytest.approx(rewards.mean().item())
    assert metrics["eval/reward_std"] == pytest.approx(rewards.std(correction=0).item())
    assert {cut for _, cut in expected} == {True, False}
    assert metrics["eval/truncated_frac"] == pytest.approx(sum(cut for _, cut in expected) / len(ASKED))


def test_a_kind_of_prompt_may_have_longer_answers() -> None:
    kinds = tuple(replace(prompt, task="PA"[i % 2]) for i, prompt in enumerate(ASKED))
    both, short, long = (greedy(policy(5), kinds, n, own) for n, own in ((2, {"A": 5}), (2, None), (5, None)))
    metrics = [each(0) for each in (both, short, long)]
    answers = [[row["completion"] for row in each.completions] for each in (both, short, long)]
    assert answers[0] == [answers[1 + i % 2][i] for i in range(len(kinds))]
    assert answers[1] != answers[0] != answers[2]
    assert metrics[0]["eval/truncated_frac"] <= metrics[1]["eval/truncated_frac"]
    assert [row["prompt"] for row in both.completions] == [prompt.text for prompt in kinds]


def test_a_part_is_averaged_over_the_prompts_to_which_it_applies() -> None:
    evaluate = greedy(policy())
    metrics = evaluate(0)
    assert metrics["eval/even"] == pytest.approx((0 + 0.5 + 1) / 3)
    assert math.isnan(metrics["eval/never"])
    assert [row["even"] for row in evaluate.completions][::2] == [0, 0.5, 1]
    assert {row["step"] for row in evaluate.completions} == {0}


def test_the_same_every_time_and_without_a_trace() -> None:
    model = policy()
    evaluate = greedy(model)
    before, state = flat(model), torch.get_rng_state()
    first = evaluate(0)
    rows = [{k: v for k, v in row.items() if k != "step"} for row in evaluate.completions]
    again = evaluate(1)
    assert repr(again) == repr(first)
    assert repr([{k: v for k, v in row.items() if k != "step"} for row in evaluate.completions]) == repr(rows)
    assert torch.equal(flat(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_batches_change_no_answer() -> None:
    evaluate = greedy(policy())
    whole, rows = evaluate(0), evaluate.completions
    evaluate.batch = 2
    assert repr(evaluate(0)) == repr(whole)
    assert repr(evaluate.completions) == repr(rows)


def test_all_is_decoded_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[bool] = []
    decode, evaluate = generate.greedy, greedy(policy())
    seen = lambda *given: inside.append(torch.is_autocast_enabled("cpu")) or decode(*given)  # noqa: E731
    monkeypatch.setattr(generate, "greedy", seen)
    evaluate.batch, evaluate.autocast = 2, bf16
    evaluate(0)
    assert inside == [True] * 3


def test_one_prompt_is_enough() -> None:
    metrics = greedy(policy(), ASKED[:1])(0)
    assert metrics["eval/reward_std"] == 0


def test_each_tasks_reward_is_told_where_there_are_several() -> None:
    model = policy(5)
    assert not [name for name in greedy(model)(0) if name.startswith("eval/mean_")]
    prompts = tuple(replace(prompt, source="ab"[i % 2]) for i, prompt in enumerate(ASKED))
    evaluate = greedy(model, prompts)
    metrics, rewards = evaluate(0), [row["reward"] for row in evaluate.completions]
    assert metrics["eval/mean_a"] == pytest.approx(sum(rewards[::2]) / 3)
    assert metrics["eval/mean_b"] == pytest.approx(sum(rewards[1::2]) / 2)
    assert metrics["eval/mean_a"] != metrics["eval/mean_b"]
