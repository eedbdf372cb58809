"""The self-check: quiet where all is well, names each planted bug and no other, and leaves the run as it was."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from tiny import LONGEST, PROMPTS, Ask, Letters, Vowels, bf16, flat, grpo, nudged, policy, trainer
from torch import Tensor, nn

from rookexp import baselines, build, coefficients, doctor, generate, losses, ops, returns, train
from rookexp.config import composing, door
from rookexp.core_wait import CoreWait
from rookexp.draw import Sampling, filtered
from rookexp.errors import ConfigError
from rookexp.evaluation import Greedy
from rookexp.models.gpt2 import GPT2
from rookexp.models.kv_cache import KVCache
from rookexp.objectives.grpo import GRPO
from rookexp.objectives.rollouts import RolloutSource
from rookexp.self_check import checkup
from rookexp.self_check.rehearsal import Finding, Rehearsal, Skipped, Subject
from rookexp.types import Prompt, Rollouts, Scores

Patch = pytest.MonkeyPatch


class AskVowels(Ask):
    """Asks for vowels."""

    def __init__(self, texts: Sequence[str] = PROMPTS, gold: str = "aeio") -> None:
        super().__init__(texts)
        self.answer = gold

    def gold(self, prompt: Prompt) -> str:
        return self.answer


class AskInTurn(AskVowels):
    """Asks prompts of the kinds P and A in turn."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        return tuple(replace(prompt, task="PA"[i % 2]) for i, prompt in enumerate(super().select(step)))


@dataclass
class World:
    """What a run of the tiny world is made of; a bug is planted into some part of it."""

    model: Any = field(default_factory=policy)
    task: Any = field(default_factory=AskVowels)
    reward: Any = field(default_factory=Vowels)
    tokenizer: Any = field(default_factory=Letters)
    evaluated_by: Any = None  # the reward of the evaluation; None: the same
    optimized: Any = None  # the model of the optimizer; None: the same
    lr: float = 1e-3
    step: int = 0
    objective: dict[str, Any] = field(default_factory=dict)
    own_lengths: dict[str, int] = field(default_factory=dict)

    def subject(self) -> Subject:
        parts = {"task": self.task, "reward": self.reward, "tokenizer": self.tokenizer}
        objective = grpo(self.model, **parts, **self.objective)
        parameters = [
            *(self.optimized or self.model).parameters(),
            *(p for h in objective.heads for p in h.parameters()),
        ]
        made = trainer(self.model, objective, torch.optim.AdamW(parameters), lr=self.lr, micro_batch=5)
        greedy = Greedy(
            policy=self.model,
            tokenizer=self.tokenizer,
            prompts=self.task.select(0),
            reward=self.evaluated_by or self.reward,
            max_new_tokens=LONGEST,
            own_lengths=self.own_lengths,
            autocast=nullcontext,
        )
        return Subject(objective, made, greedy, self.tokenizer, self.step)

    def examined(self) -> tuple[dict[str, Finding], dict[str, str]]:
        """The findings, and why what was skipped was skipped."""
        lines = list(checkup.examine(self.subject(), checkup.QUICK))
        assert [line.name for line in lines] == [checkup.name_of(check) for check in checkup.CHECKS]
        assert all("\n" not in str(line) for line in lines)
        return (
            {line.name: line.result for line in lines if isinstance(line.result, Finding)},
            {line.name: line.result.why for line in lines if isinstance(line.result, Skipped)},
        )


# ---- nothing is wrong -----------------------------------------------------------------------------------------------

HEALTHY: dict[str, dict[str, Any]] = {
    "default": {},
    "cold": {"temperature": 0.7},
    "hot": {"temperature": 1.3},
    "very hot": {"temperature": 100.0},
    "very cold": {"temperature": 0.01},
    "top_k": {"sampling": Sampling(temperature=0.8, top_k=5, top_p=0.9, max_new_tokens=LONGEST)},
    "lookup": {"sampling": Sampling(1.0, None, None, LONGEST, lookup=2)},
    "bf16": {"autocast": bf16, "exact_sampler": False},
    "bf16, several updates": {"autocast": bf16, "exact_sampler": False, "single_update": False},
    "several updates": {"single_update": False},
    "dropped": {"dead_groups": "dropped", "truncated": "masked", "overlong_buffer": 5},
    "resampled": {"dead_groups": "resampled"},
    "kl in reward": {"kl_placement": "reward"},
    "no kl": {"coefficient": coefficients.NoKL(), "entropy_coef": 0.0},
    "alone": {"group_size": 1, "baseline": baselines.Ema(alpha=0.1, per="task")},
    "gae": {
        "baseline": returns.Gae(
            gamma=1.0,
            lam=0.95,
            whiten=True,
            bootstrap="zero",
            value_lr=1e-3,
            value_coef=0.5,
            value_clip=None,
            detach=False,
        )
    },
    "a high bar": {"baseline": baselines.MaxRL(min_mean=0.5)},
    "gspo": {"policy_loss": losses.Gspo(clip_low=3e-4, clip_high=4e-4)},
    "reinforce": {"policy_loss": losses.Reinforce()},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_finding(name: str) -> None:
    findings, skipped = World(objective=HEALTHY[name]).examined()
    assert not findings
    expected = {} if "bf16" in name else {"rounding": "the run computes in fp32"}
    expected |= {"reference": "the coefficient is always 0"} if name == "no kl" else {}
    lonely = dict.fromkeys(("advantages", "baseline"), "the baseline does not compare the rows of a group")
    expected |= lonely if name in ("alone", "gae") else {}
    assert skipped == expected


def test_a_bar_that_no_group_reaches_is_named() -> None:
    findings, _ = World(objective={"baseline": baselines.MaxRL(min_mean=0.95)}).examined()
    assert "baseline.min_mean above what such groups earn" in findings["baseline"].cause


OWN = Sampling(temperature=0.7, top_k=None, top_p=0.9, max_new_tokens=5)


@pytest.mark.parametrize("autocast", [{}, {"autocast": bf16, "exact_sampler": False}])
def test_kinds_that_are_sampled_in_their_own_way_are_healthy(autocast: dict[str, Any]) -> None:
    objective = {"temperature": 1.3, "own_sampling": {"A": OWN}, **autocast}
    assert not World(task=AskInTurn(), objective=objective, own_lengths={"A": 5}).examined()[0]


def test_a_gold_answer_that_its_own_kind_cuts_off_is_named() -> None:
    short = {"own_sampling": {"A": replace(OWN, max_new_tokens=4)}}
    findings, _ = World(task=AskInTurn(), objective=short, own_lengths={"A": 4}).examined()
    assert list(findings) == ["max new tokens"]
    assert findings["max new tokens"].cause == "a right answer cut off by task.sampling.A.max_new_tokens=4"
    assert findings["max new tokens"].fix == "set task.sampling.A.max_new_tokens to 5 or more."


def test_a_kind_that_comes_late_has_gold_answers_among_the_few_that_are_tried() -> None:
    texts = [first + second for first in "abcdef" for second in "abcdef"]

    class Late(AskVowels):
        def select(self, step: int) -> tuple[Prompt, ...]:
            return tuple(replace(prompt, task="PA"[i == 35]) for i, prompt in enumerate(super().select(step)))

    golds = Rehearsal(World(task=Late(texts)).subject(), checkup.QUICK).golds
    assert [prompt.task for prompt, _ in golds] == ["P", "A", *"P" * 14]
    assert len({prompt.text for prompt, _ in golds}) == 16


def test_a_gold_answer_that_is_no_text_is_told() -> None:
    with pytest.raises(ConfigError, match=r"^AskVowels\.gold gave int; wanted: a text, or None$"):
        World(task=AskVowels(gold=3)).examined()  # type: ignore[arg-type]


class FirstLetter:
    """Pays 1 for the letter that a prompt begins with, of every other prompt 0.5: what it says is right, there."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        size = len(texts) // len(prompts)
        asked = [prompts[i // size].text for i in range(len(texts))]
        paid = [0.5 + 0.5 * (len(prompt) % 2) for prompt in asked]
        right = [text == prompt[0] for text, prompt in zip(texts, asked, strict=True)]
        return Scores(torch.tensor([each * ok for each, ok in zip(paid, right, strict=True)]), {})


class Knowing(FirstLetter):
    """The same, and says so."""

    def gold(self, prompt: Prompt) -> str:
        return prompt.text[0]


class AskFirst(Ask):
    """Knows the right answer by itself."""

    def gold(self, prompt: Prompt) -> str:
        return prompt.text[0]


def test_a_reward_that_knows_right_answers_may_pay_some_of_them_less() -> None:
    texts = ("abc", "bcd", "cdef", "defg")
    findings, _ = World(task=AskFirst(texts), reward=FirstLetter()).examined()
    assert "labels that are not the reward's best" in findings["gold answers"].cause
    assert "gold answers" not in World(task=Ask(texts), reward=Knowing()).examined()[0]


def test_a_single_token_is_too_short_and_nothing_else() -> None:
    short = {"sampling": Sampling(1.0, None, None, 1)}
    assert list(World(objective=short).examined()[0]) == ["max new tokens"]


def test_a_policy_that_is_sure_of_all_has_no_gradient_and_no_fault() -> None:
    findings, skipped = World(objective={"temperature": 1e-4}).examined()
    assert not findings
    assert "the policy is sure of every token that it said" in skipped["update"]


def test_tensors_without_a_gradient_are_named() -> None:
    def said(model: GPT2) -> str:
        lines = checkup.examine(World(model=model).subject(), checkup.QUICK)
        return next(str(line) for line in lines if line.name == "update")

    model = policy()
    assert said(model).endswith("the same in two micro-batches")
    with torch.no_grad():
        for parameter in model.blocks[0].parameters():
            parameter.zero_()
    assert re.search(r"; none has one in blocks\.0\.\S+, blocks\.0\.\S+, blocks\.0\.\S+ and \d+ more$", said(model))


@pytest.mark.parametrize("clip", [0.01, 2.0])
def test_a_tight_clip_of_advantages_is_the_runs_own_choice(clip: float) -> None:
    subject = World(reward=Graded(), objective={"advantage_clip": clip}).subject()
    lines = list(checkup.examine(subject, replace(checkup.WHOLE, prompts=3)))
    assert not [str(line) for line in lines if isinstance(line.result, Finding)]


class Graded(Vowels):
    """Pays for vowels, and a little for each text of its own."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        scores = super().score(prompts, texts)
        return replace(scores, rewards=scores.rewards + torch.tensor([len(set(text)) / 100 for text in texts]))


def test_a_reward_that_is_right_in_its_own_way_is_healthy() -> None:
    assert not World(task=AskHalf(PROMPTS), reward=Halves()).examined()[0]

    class Weighted(Vowels):
        """Worth more for longer prompts, and as its own group compares."""

        def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
            found = super().score(prompts, texts)
            groups = found.rewards.view(len(prompts), -1)
            worth = torch.tensor([[len(prompt.text)] for prompt in prompts])
            compared = groups - groups.mean(1, keepdim=True) if groups.shape[1] > 1 else groups
            return replace(found, rewards=(worth * compared).flatten())

    assert not World(reward=Weighted()).examined()[0]


def test_a_noisy_reward_is_said_to_be_one() -> None:
    class Noisy(Vowels):
        def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
            found = super().score(prompts, texts)
            return replace(found, rewards=found.rewards + 1e-3 * torch.rand(len(texts)))

    findings, skipped = World(reward=Noisy()).examined()
    assert not findings
    said = "the reward gives the same text other rewards each time"
    assert [skipped[name] for name in ("gold answers", "reward rows", "evaluation")] == [said] * 3


def test_what_cannot_be_asked_is_skipped_with_the_reason() -> None:
    findings, skipped = World(task=Ask(PROMPTS), step=3).examined()
    assert not findings
    assert skipped["gold answers"] == skipped["max new tokens"] == "the task offers no gold(prompt)"
    assert skipped["reference"] == "the run has moved on from its reference"


def test_a_run_that_was_examined_is_as_it_was() -> None:
    subject = World(objective={"baseline": baselines.Ema(alpha=0.1, per="task")}).subject()

    def state() -> list[Any]:
        objective, optimizer = subject.objective, subject.trainer.optimizer
        tensors = [*objective.policy.state_dict().values(), *objective.baseline.state_dict().values()]
        tensors += [value for part in optimizer.state.values() for value in part.values()]
        return [torch.get_rng_state(), *(t.clone() for t in tensors), *(p.grad for p in objective.policy.parameters())]

    subject.trainer.update(0, subject.objective.collect(0)[0])  # so that all parts have a state
    before, rates = state(), [group["lr"] for group in subject.trainer.optimizer.param_groups]
    list(checkup.examine(subject, checkup.QUICK))
    after = state()
    assert len(before) == len(after)
    assert all(a is b if a is None else torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert rates == [group["lr"] for group in subject.trainer.optimizer.param_groups]


# ---- planted bugs ---------------------------------------------------------------------------------------------------


def sampled(patch: Patch, change: Callable[[RolloutSource, Rollouts], Rollouts]) -> None:
    """Plants a change of what was sampled on its way to the objective."""
    sample = RolloutSource.sample
    patch.setattr(RolloutSource, "sample", lambda self, *asked: change(self, sample(self, *asked)))


def dropout_on(patch: Patch) -> World:
    model = policy()
    model.ln_f = nn.Sequential(model.ln_f, nn.Dropout(0.1))  # type: ignore[assignment]
    return World(model)


def dropout_without_a_module(patch: Patch) -> World:
    hidden = GPT2.hidden
    patch.setattr(GPT2, "hidden", lambda self, tokens: nn.functional.dropout(hidden(self, tokens), 0.1))
    return World()


def bf16_weights(patch: Patch) -> World:
    return World(policy().bfloat16())


def another_models_optimizer(patch: Patch) -> World:
    return World(optimized=policy())


def sampled_at_one(patch: Patch) -> World:
    sample = generate.sample
    patch.setattr(
        generate, "sample", lambda m, p, s, sampling, e: sample(m, p, s, replace(sampling, temperature=1.0), e)
    )
    return World(objective={"temperature": 0.7})


def scored_at_one(patch: Patch) -> World:
    sampled(patch, lambda self, rollouts: replace(rollouts, temperature=torch.ones_like(rollouts.temperature)))
    return World(objective={"temperature": 1.3})


def left_padded_positions(patch: Patch) -> World:
    patch.setattr(KVCache, "positions", property(lambda self: self.lengths.amax() + self.added + 0 * self.owner))
    return World()


def attended_padding(patch: Patch) -> World:
    hidden_after = GPT2.hidden_after
    patch.setattr(
        GPT2, "hidden_after", lambda s, p, lengths, *more: hidden_after(s, p, 0 * lengths + p.shape[1], *more)
    )
    return World()


def tokens_one_late(patch: Patch) -> World:
    stats = ops.token_stats
    patch.setattr(ops, "token_stats", lambda h, w, targets, *more, **k: stats(h, w, targets.roll(1), *more, **k))
    return World()


def positions_one_late(patch: Patch) -> World:
    hidden_after = GPT2.hidden_after
    patch.setattr(GPT2, "hidden_after", lambda self, *asked: hidden_after(self, *asked).roll(-1, 1))
    return World()


def mask_one_early(patch: Patch) -> World:
    sampled(patch, lambda self, r: replace(r, mask=r.mask.roll(-1, 1), logprobs=r.logprobs.roll(-1, 1)))
    return World()


def filtered_log_probs(patch: Patch) -> World:
    draw = generate.draw

    def drawn(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
        tokens, logprobs = draw(logits, uniforms, sampling)
        if not sampling.temperature:
            return tokens, logprobs
        kept = filtered(logits / sampling.temperature, sampling.top_k, sampling.top_p)
        return tokens, kept.log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    patch.setattr(generate, "draw", drawn)
    return World(objective=HEALTHY["top_k"])


class TwoWays(Letters):
    """Every letter has two ids, of which the encoder knows the lower."""

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([(i - 1) % 8 + 1 if i else 0 for i in ids])


def tokenised_again(patch: Patch) -> World:
    def again(self: RolloutSource, rollouts: Rollouts) -> Rollouts:
        tokens = rollouts.tokens.clone()
        for row, kept, text in zip(tokens, rollouts.mask, rollouts.texts, strict=True):
            start = int(kept.nonzero()[0])
            row[start : start + len(text)] = torch.tensor(TwoWays().encode(text))
        return replace(rollouts, tokens=tokens)

    sampled(patch, again)
    return World(task=AskVowels(("abc", "h", "fedcbd"), "aeea"), tokenizer=TwoWays())


def end_masked_out(patch: Patch) -> World:
    sampled(patch, lambda self, r: replace(r, mask=r.mask & (r.tokens != self.tokenizer.eot_id)))
    return World()


def rows_out_of_order(patch: Patch) -> World:
    def reversed_rows(self: RolloutSource, r: Rollouts) -> Rollouts:
        names = ("tokens", "mask", "logprobs", "truncated")
        order = torch.arange(len(r.texts)).view(len(r.prompts), -1).T.flatten()  # completion by completion
        return replace(r, texts=tuple(r.texts[i] for i in order), **{name: getattr(r, name)[order] for name in names})

    sampled(patch, reversed_rows)
    return World()


class Marked(AskVowels):
    """Prompts with one id more than their text has."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        return tuple(replace(prompt, ids=(16, *prompt.ids)) for prompt in super().select(step))


def another_prompt(patch: Patch) -> World:
    return World(task=Marked())


class Merging(Letters):
    """Knows a token for the end of a prompt and the start of its answer."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("ka", "p"))


def merged_tokens(patch: Patch) -> World:
    return World(tokenizer=Merging())


def stripped_before_the_reward(patch: Patch) -> World:
    score = RolloutSource.score

    def cut(self: RolloutSource, rollouts: Rollouts) -> Scores:
        texts = [text[len(rollouts.prompts[i // self.group_size].text) :] for i, text in enumerate(rollouts.texts)]
        return score(self, replace(rollouts, texts=tuple(texts)))

    patch.setattr(RolloutSource, "score", cut)
    return World()


class Stripping(Vowels):
    """Takes the prompt off a completion that never had it."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        group = len(texts) // len(prompts)
        return super().score(prompts, [text[len(prompts[i // group].text) :] for i, text in enumerate(texts)])


def stripped_in_the_reward(patch: Patch) -> World:
    return World(reward=Stripping())


class Consonants(Vowels):
    """Pays what nobody was asked for."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        scores = super().score(prompts, texts)
        return replace(scores, rewards=-scores.rewards)


def wrong_labels(patch: Patch) -> World:
    return World(reward=Consonants())


def another_parser(patch: Patch) -> World:
    return World(evaluated_by=Vowels(shift=0.1))


def gold_cut(patch: Patch) -> World:
    return World(task=AskVowels(gold="aeioaeio"))


def frozen(patch: Patch) -> World:
    model = policy()
    model.blocks[0].requires_grad_(False)  # type: ignore[operator]
    return World(model)


def dropout_in_the_training_forward(patch: Patch) -> World:
    hidden_after = GPT2.hidden_after
    patch.setattr(GPT2, "hidden_after", lambda self, *asked: nn.functional.dropout(hidden_after(self, *asked), 0.1))
    return World()


def other_rows_kept(patch: Patch) -> World:
    keep = KVCache.keep
    patch.setattr(KVCache, "keep", lambda self, rows: keep(self, torch.arange(len(rows))))
    return World()


class Upwards(losses.Reinforce):
    """Climbs what it should descend."""

    def __call__(self, logprobs: Tensor, old: Tensor, advantages: Tensor, row: Tensor) -> Tensor:
        return -super().__call__(logprobs, old, advantages, row)


def wrong_sign(patch: Patch) -> World:
    return World(objective={"policy_loss": Upwards()})


class ClippedLogRatio(losses.Clip):
    """Clips the logarithm as if it were the ratio."""

    def ratio(self, logprobs: Tensor, old: Tensor, row: Tensor) -> Tensor:
        return (logprobs - old).clamp(0.8, 1.2).exp()


def clipped_log_ratio(patch: Patch) -> World:
    return World(objective={"policy_loss": ClippedLogRatio(clip_low=0.2, clip_high=0.2)})


def advantages_upside_down(patch: Patch) -> World:
    compare = baselines.GroupMean.forward
    patch.setattr(baselines.GroupMean, "forward", lambda self, *asked: -compare(self, *asked))
    return World()


def no_eps(patch: Patch) -> World:
    patch.setattr(
        baselines.GroupMean,
        "forward",
        lambda self, rewards, tasks: (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True),
    )
    return World()


def advantages_of_the_next_group(patch: Patch) -> World:
    compare = baselines.GroupMean.forward
    patch.setattr(baselines.GroupMean, "forward", lambda self, *asked: compare(self, *asked).roll(1, 0))
    return World()


class Flipped(losses.Reinforce):
    """Gives each token the advantage of another row."""

    def __call__(self, logprobs: Tensor, old: Tensor, advantages: Tensor, row: Tensor) -> Tensor:
        return super().__call__(logprobs, old, advantages.flip(0), row)


class OneLate(losses.Reinforce):
    """Gives each token the advantage of the one before it."""

    def __call__(self, logprobs: Tensor, old: Tensor, advantages: Tensor, row: Tensor) -> Tensor:
        return super().__call__(logprobs, old, advantages.roll(1), row)


def flipped_loss(patch: Patch) -> World:
    return World(objective={"policy_loss": Flipped()})


def loss_one_late(patch: Patch) -> World:
    return World(objective={"policy_loss": OneLate()})


class VowelShare(Vowels):
    """The share of vowels, without a thought for an empty text."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        counts = torch.tensor([float(sum(letter in "aeiou" for letter in text)) for text in texts])
        return Scores(counts / torch.tensor([float(len(text)) for text in texts]), {})


def nothing_over_nothing(patch: Patch) -> World:
    return World(reward=VowelShare())


class Labelled(Ask):
    """Asks for the first letter of the prompt, with the label of the next one at every step but the first."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        asked = super().select(0)
        right = [prompt.text[0] for prompt in asked]
        labels = [*right[1:], right[0]] if step else right
        return tuple(replace(prompt, answer=label) for prompt, label in zip(asked, labels, strict=True))

    def gold(self, prompt: Prompt) -> str:
        return prompt.text[0]


class SaysLabel:
    """Pays for the prompt's own label."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        size = len(texts) // len(prompts)
        return Scores(torch.tensor([float(text == prompts[i // size].answer) for i, text in enumerate(texts)]), {})


def labels_of_others_in_training_alone(patch: Patch) -> World:
    return World(task=Labelled(PROMPTS), reward=SaysLabel(), step=1)


def rewards_by_completion(patch: Patch) -> World:
    compare = baselines.GroupMean.forward

    def mixed_up(self: baselines.GroupMean, rewards: Tensor, tasks: Sequence[str]) -> Tensor:
        return compare(self, rewards.flatten().view(rewards.shape[1], -1).T, tasks)

    patch.setattr(baselines.GroupMean, "forward", mixed_up)
    return World()


def mean_over_the_batch(patch: Patch) -> World:
    patch.setattr(baselines.GroupMean, "forward", lambda self, rewards, tasks: rewards - rewards.mean())
    return World()


def advantages_of_other_rows(patch: Patch) -> World:
    compare = GRPO._advantages

    def mixed_up(self: GRPO, *asked: Any) -> returns.Advantages:
        found = compare(self, *asked)
        return replace(found, advantages=found.advantages.flip(0))

    patch.setattr(GRPO, "_advantages", mixed_up)
    return World()


class AskHalf(Ask):
    """Asks for half as many letters as the prompt has, and one."""

    def gold(self, prompt: Prompt) -> str:
        return "e" * (len(prompt.text) // 2 + 1)


class Halves:
    """Pays for each letter too many or too few, with the wrong sign -1; `owner` says whose completion row i is."""

    def __init__(self, sign: int = 1, owner: Callable[[int, int], int] = lambda i, size: i // size) -> None:
        self.sign = sign
        self.owner = owner

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        size = len(texts) // len(prompts)
        wanted = [len(prompts[self.owner(i, size) % len(prompts)].text) // 2 + 1 for i in range(len(texts))]
        off = [abs(len(text) - length) / 9 for text, length in zip(texts, wanted, strict=True)]
        rewards = [1 - self.sign * x if text else -9.0 for x, text in zip(off, texts, strict=True)]
        return Scores(torch.tensor(rewards), {})


def errors_are_paid(patch: Patch) -> World:
    return World(task=AskHalf(PROMPTS), reward=Halves(sign=-1))


def rows_of_the_wrong_prompt(patch: Patch) -> World:
    return World(task=AskHalf(PROMPTS), reward=Halves(owner=lambda i, size: i))


class AskNext(AskVowels):
    """Asks what comes next, whatever the step."""

    asked = 0

    def select(self, step: int) -> tuple[Prompt, ...]:
        self.asked += 1
        prompts = super().select(step)
        return tuple(prompts[(i + self.asked) % len(prompts)] for i in range(len(prompts)))


def prompts_from_a_state(patch: Patch) -> World:
    return World(task=AskNext())


def other_ids_in_the_evaluation(patch: Patch) -> World:
    world = World()
    subject = world.subject()
    subject.greedy.prompts = [replace(prompt, ids=prompt.ids[::-1]) for prompt in subject.greedy.prompts]
    patch.setattr(world, "subject", lambda: subject, raising=False)
    return world


def texts_rolled_in_a_group(patch: Patch) -> World:
    def rolled(self: RolloutSource, r: Rollouts) -> Rollouts:
        groups = [r.texts[i : i + self.group_size] for i in range(0, len(r.texts), self.group_size)]
        return replace(r, texts=tuple(text for group in groups for text in (*group[1:], group[0])))

    sampled(patch, rolled)
    return World()


def the_policy_as_reference(patch: Patch) -> World:
    world = World()
    subject = world.subject()
    subject.objective.reference = subject.objective.policy
    patch.setattr(world, "subject", lambda: subject, raising=False)
    return world


def averaged_in_each_micro_batch(patch: Patch) -> World:
    loss = GRPO.loss
    patch.setattr(GRPO, "loss", lambda self, rows: loss(self, replace(rows, weights=rows.weights / rows.weights.sum())))
    return World()


def rate_too_small(patch: Patch) -> World:
    return World(lr=1e-12)


def nothing_to_learn(patch: Patch) -> World:
    return World(objective={"policy_loss": Detached()})


class Detached(losses.Reinforce):
    """A loss without a gradient."""

    def __call__(self, logprobs: Tensor, old: Tensor, advantages: Tensor, row: Tensor) -> Tensor:
        return super().__call__(logprobs.detach(), old, advantages, row) + 0 * logprobs


def another_reference(patch: Patch) -> World:
    world = World()
    subject = world.subject()
    nudged(subject.objective.reference)  # type: ignore[arg-type]
    patch.setattr(world, "subject", lambda: subject, raising=False)
    return world


def stale_log_probs(patch: Patch) -> World:
    """For several updates in bf16 the old log-probs are computed anew, here by a colder policy."""
    look = GRPO._training_forward

    def stale(self: GRPO, *asked: Any) -> dict[str, Tensor]:
        found = look(self, *asked)
        return found | {"logprobs": found["logprobs"] * 1.5}

    patch.setattr(GRPO, "_training_forward", stale)
    return World(objective=HEALTHY["bf16, several updates"])


PLANTED: dict[Callable[[Patch], World], tuple[str, str]] = {
    dropout_on: ("dropout", "dropout left on"),
    dropout_without_a_module: ("dropout", "dropout left on"),
    bf16_weights: ("master weights", "half precision: bf16 master weights"),
    another_models_optimizer: ("master weights", "another copy of the model"),
    sampled_at_one: ("log probs", "temperature 1 in the sampler where grpo.temperature is 0.7"),
    scored_at_one: ("log probs", "temperature 1 in the training forward where grpo.temperature is 1.3"),
    left_padded_positions: ("log probs", "left padding"),
    attended_padding: ("log probs", "left padding"),
    tokens_one_late: ("log probs", "off-by-one in the training forward: position +0 and token -1"),
    positions_one_late: ("log probs", "off-by-one in the training forward: position +1 and token +0"),
    mask_one_early: ("trained ids", "off-by-one in the completion mask"),
    filtered_log_probs: ("log probs", "renormalised over top_k or top_p"),
    tokenised_again: ("trained ids", "re-tokenised text"),
    end_masked_out: ("end of text", "end-of-text masked out"),
    rows_out_of_order: ("shared prompt", "not ordered prompt by prompt"),
    another_prompt: ("selection", "changes text or ids after encoding"),
    other_ids_in_the_evaluation: ("selection", "changes text or ids after encoding"),
    prompts_from_a_state: ("selection", "draws from a state of its own"),
    merged_tokens: ("prompt prefix", "spans the end of the prompt"),
    stripped_before_the_reward: ("scored text", "prompt stripped from a completion"),
    stripped_in_the_reward: ("gold answers", "the prompt stripped before scoring"),
    wrong_labels: ("gold answers", "labels that are not the reward's best"),
    another_parser: ("evaluation", "a parser of its own"),
    gold_cut: ("max new tokens", "cut off by grpo.max_new_tokens=6"),
    rate_too_small: ("update", "learning rate too small"),
    frozen: ("master weights", "frozen by mistake"),
    dropout_in_the_training_forward: ("dropout", "dropout left on"),
    other_rows_kept: ("padding", "cache that drops the wrong rows"),
    wrong_sign: ("policy loss", "wrong sign"),
    clipped_log_ratio: ("policy loss", "cut off"),
    advantages_upside_down: ("baseline", "a wrong sign"),
    no_eps: ("baseline", "a division by the standard deviation"),
    advantages_of_the_next_group: ("baseline", "rewards of other rows"),
    flipped_loss: ("policy loss", "reach other tokens than their own"),
    loss_one_late: ("policy loss", "reach other tokens than their own"),
    nothing_over_nothing: ("gold answers", "a division by 0 in the reward"),
    labels_of_others_in_training_alone: ("gold answers", "labels"),
    rewards_by_completion: ("baseline", "rewards of other rows"),
    mean_over_the_batch: ("baseline", "a mean over something else"),
    advantages_of_other_rows: ("advantages", "rewards of other rows"),
    errors_are_paid: ("gold answers", "a reward that pays errors"),
    rows_of_the_wrong_prompt: ("reward rows", "scored with another prompt"),
    texts_rolled_in_a_group: ("scored text", "the text of another row"),
    the_policy_as_reference: ("reference", "shallow copy"),
    averaged_in_each_micro_batch: ("update", "averaged anew in each micro-batch"),
    nothing_to_learn: ("policy loss", "cut off from the policy"),
    another_reference: ("reference", "no copy of the policy"),
    stale_log_probs: ("ratio", "old log-probs of another policy"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_named_and_nothing_else_is(plant: Callable[[Patch], World], monkeypatch: Patch) -> None:
    findings, _ = plant(monkeypatch).examined()
    check, cause = PLANTED[plant]
    assert list(findings) == [check], findings
    assert cause in findings[check].cause
    assert findings[check].fix.endswith(".")
    assert findings[check].fix.count(". ") == 0


# ---- the doors ------------------------------------------------------------------------------------------------------

SMALL = (
    "model=fresh_nano model.n_layer=1 model.n_head=2 model.n_embd=16 hardware=cpu hardware.threads=1 "
    "hardware.precision=fp32 track=local verdict=off steps=2 grpo.prompts_per_step=2 grpo.group_size=2 "
    "grpo.max_new_tokens=30 eval.every=1"
)
Shell = Callable[..., int]


@pytest.fixture
def shell(monkeypatch: Patch, tmp_path: Path, quiet_logging: None) -> Shell:
    """Types a command line in an empty folder; the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.FULL_ERROR, raising=False)

    def call(name: str, line: str) -> int:
        monkeypatch.setattr(sys, "argv", [f"rookexp-{name}", *line.split()])
        try:
            door.enter({"train": train.train, "doctor": doctor.doctor}[name], "config")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0
        return 0

    return call


def test_a_training_is_the_same_with_and_without_the_check(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("quick", "off"):
        assert shell("train", f"{SMALL} kl.warmup=1 optim.lr=0.01 doctor={word} hydra.run.dir={word}") == 0
        out = capsys.readouterr().out
        assert out.count("self-check: nothing found by 20 checks, 1 skipped, in ") == (word == "quick")
        assert "OK" not in out
    rows = [
        [json.loads(line) for line in (tmp_path / word / "metrics.jsonl").read_text().splitlines()]
        for word in ("quick", "off")
    ]
    for row in (*rows[0], *rows[1]):
        row.pop("step_s", None), row.pop("tokens_per_s", None)
    assert len(rows[0]) == 3
    assert rows[0] == rows[1]
    for name in ("model/model.safetensors", "optimizer.safetensors", "modules.safetensors"):
        one, other = (tmp_path / word / "checkpoints" / "step-000002" / name for word in ("quick", "off"))
        assert one.read_bytes() == other.read_bytes()
    assert shell("train", "resume=quick steps=3") == 0
    assert capsys.readouterr().out.count("self-check: nothing found") == 1, "a run that goes on is checked as well"


def test_a_finding_ends_a_training_before_its_first_step(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("train", f"{SMALL} grpo.max_new_tokens=9 optim.lr=1e-30 hydra.run.dir=run") == 1
    captured = capsys.readouterr()
    names = "max new tokens, update"
    assert (
        captured.err == f"error: the self-check found something: {names}; mend it, or train unchecked with doctor=off\n"
    )
    about, first, second = captured.out.splitlines()
    assert re.fullmatch(r"0\.07 M parameters in fp32 on cpu \(.+, \d+ threads?\)", about)
    assert first == (
        "FINDING max new tokens: a gold answer that it limits has 27 tokens with its end; likely a right answer cut "
        "off by grpo.max_new_tokens=9; set grpo.max_new_tokens to 27 or more."
    )
    assert re.match(r"FINDING update: an update at the largest rate 1e-30 moves 0\.\d % of the \d+ weights", second)
    cause = "a learning rate too small for the weights' precision"
    assert second.endswith(f"; likely {cause}; raise optim.lr, or shorten its warm-up.")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert shell("train", f"{SMALL} grpo.max_new_tokens=9 optim.lr=1e-30 doctor=off") == 0
    assert shell("train", f"{SMALL} doctor=quik") == 2
    assert "doctor=quik: allowed: quick, off; did you mean quick?" in capsys.readouterr().err


def test_the_door_prints_a_line_for_every_check(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("doctor", f"{SMALL} grpo.temperature=0.7 doctor=off") == 0
    _, *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(checkup.CHECKS)
    assert all(line.startswith("OK  ") or line == "SKIP rounding: the run computes in fp32" for line in lines)
    assert last.startswith("self-check: nothing found by 20 checks, 1 skipped, in ")
    assert shell("doctor", f"{SMALL} optim.lr=1e-30") == 1
    captured = capsys.readouterr()
    assert captured.out.count("FINDING") == 1
    assert captured.out.count("OK  ") == 19
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(("share", "told"), [(0.62, 1), (0.2, 0), (None, 0)])
def test_the_check_says_when_other_work_has_the_cores(
    share: float | None, told: int, shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(CoreWait, "share", lambda self: share)
    assert shell("doctor", SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    busy = [line for line in lines if line.startswith("self-check: 62 % of the time") and "hardware.threads=1" in line]
    assert len(busy) == sum("core" in line for line in lines if line.startswith("self-check")) == told
    assert lines[-1].startswith("self-check: nothing found")


@pytest.mark.parametrize("more", ["", "task.p_style=bare grpo.temperature=1.3 baseline=gae"])
def test_the_embedded_model_is_healthy(more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    door.register_resolvers()
    words = ["hardware=cpu", "hardware.threads=1", "track=local", "hardware.precision=fp32", *more.split()]
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        config = door.plain(hydra.compose("config", words))
    subject = build.build_training(config, tmp_path).subject
    before = flat(subject.objective.policy)  # type: ignore[union-attr, arg-type]
    lines = list(checkup.examine(subject, checkup.QUICK))  # type: ignore[arg-type]
    assert not [str(line) for line in lines if isinstance(line.result, Finding)]
    assert torch.equal(flat(subject.objective.policy), before)  # type: ignore[union-attr, arg-type]
