"""GRPO: what enters the loss, the loss and its gradient against plain formulas, and what must not change them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import EOT, LONGEST, PROMPTS, VOCAB, Ask, Letters, Vowels, bf16, gradient, grpo, nudged, policy
from torch import Tensor, nn

from rookexp import check, kl, losses
from rookexp.baselines import GroupMean, Rloo
from rookexp.generate import Sampling
from rookexp.objectives.grpo import GRPO, rollout_metrics
from rookexp.types import Experience, Scores

DIVERGENCES = [kl.forward, kl.reverse, kl.symmetric]
AGGREGATIONS = [losses.token_mean, losses.sequence_mean, losses.constant_length]


def means(objective: GRPO, experience: Experience) -> dict[str, float]:
    """The metrics of a loss on the whole experience, and the largest of those so named."""
    per_token = objective.loss(experience).per_token
    return {k: float(v.max() if k.endswith("/max") else v.mean()) for k, v in per_token.items()}


# ---- what is collected ----------------------------------------------------------------------------------------------


def test_the_loss_gets_what_was_sampled_and_nothing_else() -> None:
    objective = grpo(policy())
    rollouts = objective.rollouts(0)
    experience, _ = objective.collect(0)
    ended = 0
    for row, (tokens, weights) in enumerate(zip(experience.tokens.tolist(), experience.weights.tolist(), strict=True)):
        prompt = Letters().encode(PROMPTS[row // 4])
        assert tokens[: len(prompt)] == prompt
        completion = [t for t, w in zip(tokens, weights, strict=True) if w]
        weighted = [column for column, w in enumerate(weights) if w]
        assert weighted == list(range(len(prompt), len(prompt) + len(completion)))
        assert completion == rollouts.tokens[row][rollouts.mask[row]].tolist()
        assert EOT not in completion[:-1]
        assert (completion[-1] == EOT) != bool(rollouts.truncated[row])
        assert len(completion) <= LONGEST
        assert rollouts.texts[row] == Letters().decode(completion)
        ended += completion[-1] == EOT
    assert 0 < ended < 12  # both kinds occur, so the above has looked at both


def test_a_group_is_one_prompts_completions_and_the_table_shows_them_in_order() -> None:
    seen: list[tuple[int, list[dict[str, Any]]]] = []
    objective = grpo(policy(), on_completions=lambda step, rows: seen.append((step, list(rows))))
    experience, _ = objective.collect(3)
    ((step, rows),) = seen
    assert step == 4  # as it is logged
    assert [row["prompt"] for row in rows] == [text for text in PROMPTS for _ in range(4)]
    for i, row in enumerate(rows):
        reward = float(Vowels().score((), [row["completion"]]).rewards)
        group = [other["reward"] for other in rows[i // 4 * 4 : i // 4 * 4 + 4]]
        assert row["reward"] == pytest.approx(reward)
        assert row["advantage"] == pytest.approx(reward - sum(group) / 4, abs=1e-6)
        at = experience.weights[i] != 0
        assert experience.advantages[i][at].tolist() == pytest.approx([row["advantage"]] * int(at.sum()))
        assert not experience.advantages[i][~at].any()


def test_rollouts_depend_on_seed_and_step_alone() -> None:
    objective = grpo(policy())
    first = objective.rollouts(5)
    objective.rollouts(6)
    assert objective.rollouts(5).texts == grpo(policy()).rollouts(5).texts == first.texts
    assert objective.rollouts(6).texts != first.texts
    assert grpo(policy(), seed=1).rollouts(5).texts != first.texts
    same_prompt = grpo(policy(), task=Ask(["abc", "abc"])).rollouts(5).texts
    assert len(set(same_prompt)) > 4  # no two rows share their draws


def test_advantages_are_clipped() -> None:
    assert grpo(policy()).collect(0)[0].advantages.abs().max() > 0.1
    assert grpo(policy(), advantage_clip=0.1).collect(0)[0].advantages.abs().max() == pytest.approx(0.1)


def test_rewards_of_another_count_are_refused() -> None:
    class Half(Vowels):
        def score(self, prompts: Any, texts: Any) -> Scores:
            return super().score(prompts, texts[:4])

    with pytest.raises(RuntimeError, match="shape"):
        grpo(policy(), reward=Half()).collect(0)


def test_metrics_of_the_rollouts() -> None:
    rollouts = grpo(policy()).rollouts(0)
    rewards = torch.tensor([[1.0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]])
    parts = {"white": torch.tensor([1.0, math.nan, 0.0, 0.5] + [math.nan] * 8)}
    metrics = rollout_metrics(rollouts, Scores(rewards.flatten(), parts), rewards)
    assert metrics["reward/mean"] == pytest.approx(0.5)
    assert metrics["reward/std"] == pytest.approx(math.sqrt(12 * 0.25 / 11))
    assert metrics["frac_reward_zero_std"] == pytest.approx(2 / 3)
    assert metrics["reward/white"] == pytest.approx(0.5)
    assert metrics["completions/mean_length"] == pytest.approx(float(rollouts.mask.sum()) / 12)
    assert metrics["completions/truncated_frac"] == pytest.approx(float(rollouts.truncated.sum()) / 12)


# ---- the first update -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
@pytest.mark.parametrize(
    ("autocast", "single", "exact", "tolerance"),
    [
        pytest.param(nullcontext, True, True, 1e-4, id="fp32"),
        pytest.param(nullcontext, False, True, 1e-4, id="fp32-several"),
        pytest.param(nullcontext, False, False, 1e-4, id="fp32-rescored"),
        pytest.param(bf16, True, False, 0.0, id="bf16"),
        pytest.param(bf16, False, False, 0.02, id="bf16-rescored"),
    ],
)
def test_the_first_ratio_is_one_and_nothing_is_clipped(
    temperature: float, autocast: Callable[[], Any], single: bool, exact: bool, tolerance: float
) -> None:
    objective = grpo(policy(), temperature=temperature, autocast=autocast, single_update=single, exact_sampler=exact)
    experience, _ = objective.collect(0)
    metrics = means(objective, experience)
    assert metrics["ratio/max"] == pytest.approx(1, abs=tolerance)
    assert 0 <= metrics["approx_kl"] <= tolerance**2 + 1e-7
    assert {name: value for name, value in metrics.items() if name.startswith("clip_frac") and value} == {}
    assert len([name for name in metrics if name.startswith("clip_frac")]) == 4


def test_a_sampler_at_another_temperature_would_be_seen() -> None:
    objective = grpo(policy(), temperature=1.3)
    experience, _ = objective.collect(0)
    colder = means(objective, replace(experience, temperature=torch.ones(12)))
    assert colder["ratio/max"] > 1.2
    assert colder["clip_frac/any"] > 0.2
    assert colder["sampler/abs_logprob_error"] > 0.1


def test_the_samplers_error_is_reported_where_it_can_be_told() -> None:
    name = "sampler/abs_logprob_error"
    for exact, autocast in ((True, nullcontext), (False, bf16)):
        objective = grpo(policy(), autocast=autocast, exact_sampler=exact)
        experience, metrics = objective.collect(0)
        assert name not in metrics
        assert means(objective, experience)[name] < 1e-5
        wrong = replace(experience, logprobs=experience.logprobs - 0.1)
        assert means(objective, wrong)[name] == pytest.approx(0.1, abs=1e-5)
    rescored = grpo(policy(), autocast=bf16, exact_sampler=False, single_update=False)
    experience, metrics = rescored.collect(0)
    assert metrics[name] < 1e-5
    assert name not in means(rescored, experience)  # later passes have moved on


def test_several_updates_in_bf16_start_from_the_training_forwards_logprobs() -> None:
    model = policy()
    objective = grpo(model, temperature=1.3, autocast=bf16, exact_sampler=False, single_update=False)
    experience, _ = objective.collect(0)
    for row in range(12):
        with torch.no_grad(), bf16():
            logits = model.logits(model.hidden(experience.tokens[row : row + 1, :-1])).float()[0] / 1.3
        logprobs = logits.log_softmax(-1).gather(1, experience.tokens[row, 1:, None])[:, 0]
        at = experience.weights[row, 1:] != 0
        assert torch.allclose(experience.logprobs[row, 1:][at], logprobs[at], atol=0.02)
        assert not experience.logprobs[row, 1:][~at].any()
        assert experience.logprobs[row, 0] == 0


@pytest.mark.parametrize("autocast", [nullcontext, bf16])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_policy_and_reference_are_equal_at_the_start(divergence: Any, autocast: Callable[[], Any]) -> None:
    objective = grpo(policy(), divergence=divergence, temperature=1.3, autocast=autocast)
    experience, _ = objective.collect(0)
    assert objective.loss(experience).per_token["kl"].abs().max() < 1e-6
    assert objective.reference is not None
    with torch.no_grad(), autocast():
        ours, theirs = (m.logits(m.hidden(experience.tokens)) for m in (objective.policy, objective.reference))
    assert (ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max() < 1e-5


# ---- the loss -------------------------------------------------------------------------------------------------------


def naive(objective: GRPO, experience: Experience, reference: nn.Module, divergence: str, aggregation: str) -> Tensor:
    """The loss from whole logits, a row and a token at a time, as the papers write it."""
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    rows = []
    for tokens, weights, old, advantages, temperature in zip(
        experience.tokens, experience.weights, experience.logprobs, experience.advantages, experience.temperature,
        strict=True,
    ):  # fmt: skip
        logp, logq = (
            (m.hidden(tokens[None]) @ m.head_weight.T / temperature).log_softmax(-1)[0]
            for m in (objective.policy, reference)
        )
        p, q, terms = logp.exp(), logq.exp(), []
        for t in weights.nonzero()[:, 0].tolist():
            ratio = (logp[t - 1, tokens[t]] - old[t]).exp()
            clip = -torch.min(ratio * advantages[t], ratio.clamp(low, high) * advantages[t])
            to_reference = (p[t - 1] * (logp[t - 1] - logq[t - 1])).sum()
            to_policy = (q[t - 1] * (logq[t - 1] - logp[t - 1])).sum()
            between = {"forward": to_reference, "reverse": to_policy, "symmetric": (to_reference + to_policy) / 2}
            entropy = -(p[t - 1] * logp[t - 1]).sum()
            terms.append(clip + 0.1 * between[divergence] - 0.05 * entropy)
        rows.append(torch.stack(terms))
    if aggregation == "token_mean":
        return torch.cat(rows).mean()
    if aggregation == "sequence_mean":
        return torch.stack([row.mean() for row in rows]).mean()
    return torch.cat(rows).sum() / (len(rows) * LONGEST)


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda f: f.__name__)
def test_value_and_gradient_are_those_of_the_plain_formula(divergence: Any, aggregation: Any) -> None:
    model = policy().double()
    objective = grpo(model, divergence=divergence, aggregation=aggregation, temperature=1.3, single_update=False)
    experience, _ = objective.collect(0)
    nudged(model, 0.1)
    assert objective.reference is not None
    terms = objective.loss(experience)
    expected = naive(objective, experience, objective.reference, divergence.__name__, aggregation.__name__)
    assert terms.total.item() == pytest.approx(expected.item(), rel=1e-6)  # weights are fp32
    ours, theirs = gradient(model, terms.total), gradient(model, expected)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))
    assert 0 < float(terms.per_token["clip_frac/region"].mean()) < 1  # clipping had a say in it
    assert float(terms.per_token["kl"].mean()) > 1e-3


def test_padding_may_hold_anything() -> None:
    model = policy()
    objective = grpo(model, single_update=False)
    experience, _ = objective.collect(0)
    nudged(model)
    padding = ((experience.weights != 0).flip(1).cumsum(1) == 0).flip(1)  # after each row's last weighted token
    assert padding.any()
    junk = torch.randint(VOCAB, padding.shape, generator=torch.Generator().manual_seed(2))
    dirty = replace(
        experience,
        tokens=experience.tokens.where(~padding, junk),
        logprobs=experience.logprobs.masked_fill(padding, math.nan),
        advantages=experience.advantages.masked_fill(padding, math.inf),
    )
    clean, other = objective.loss(experience), objective.loss(dirty)
    assert torch.equal(clean.total, other.total)
    assert torch.equal(gradient(model, clean.total), gradient(model, other.total))
    assert all(torch.equal(clean.per_token[name], other.per_token[name]) for name in clean.per_token)


def test_prompt_tokens_are_read_but_never_learned() -> None:
    experience, _ = grpo(policy()).collect(0)
    objective = grpo(policy())
    before = objective.loss(experience)
    prompt = (experience.weights != 0).cumsum(1) == 0
    rescored = replace(experience, logprobs=experience.logprobs.masked_fill(prompt, -50.0))
    assert torch.equal(objective.loss(rescored).total, before.total)
    tokens = experience.tokens.clone()
    tokens[:, 0] = 16
    assert not torch.equal(objective.loss(replace(experience, tokens=tokens)).total, before.total)


@pytest.mark.parametrize("baseline", [GroupMean(std="sample", std_eps=1e-4, std_floor=0.0), Rloo()])
def test_a_constant_added_to_all_rewards_changes_no_gradient(baseline: nn.Module) -> None:
    model = policy().double()
    found = []
    for shift in (0.0, 8.0):
        objective = grpo(model, baseline=baseline, reward=Vowels(shift))
        experience, metrics = objective.collect(0)
        found.append(gradient(model, objective.loss(experience).total))
        assert metrics["reward/mean"] >= shift
    assert torch.allclose(*found, atol=1e-5 * float(found[0].abs().max()))


@pytest.mark.parametrize("baseline", [GroupMean(std="sample", std_eps=0.0, std_floor=0.0), Rloo()])
def test_groups_of_equal_rewards_pull_nowhere(baseline: nn.Module) -> None:
    class Same(Vowels):
        def score(self, prompts: Any, texts: Any) -> Scores:
            return Scores(torch.full((len(texts),), 0.1), {})

    model = policy()
    objective = grpo(model, baseline=baseline, reward=Same(), coefficient=kl.NoKL(), entropy_coef=0.0)
    experience, metrics = objective.collect(0)
    assert metrics["frac_reward_zero_std"] == 1
    assert not gradient(model, objective.loss(experience).total).any()
    with_entropy = grpo(model, baseline=baseline, reward=Same(), coefficient=kl.NoKL(), entropy_coef=0.1)
    assert gradient(model, with_entropy.loss(experience).total).any()


def test_while_beta_is_zero_the_divergence_is_measured_and_does_not_pull() -> None:
    model = policy()
    waiting = grpo(model, coefficient=kl.WarmupKL(coef=0.5, warmup_steps=2, shape="switch"))
    free = grpo(model, coefficient=kl.NoKL())
    assert free.reference is None
    experience, _ = free.collect(0)
    nudged(model)
    ours, theirs = waiting.loss(experience), free.loss(experience)
    assert torch.equal(gradient(model, ours.total), gradient(model, theirs.total))
    assert float(ours.per_token["kl"].mean()) > 1e-3
    assert "kl" not in theirs.per_token
    for expected in (0.0, 0.0, 0.5):
        said = waiting.observe({"kl": 0.2, "advantage/abs_mean": 0.3})
        assert said["kl_coef"] == expected
        assert said["kl_share"] == pytest.approx(expected * 0.2 / (expected * 0.2 + 0.3))
    assert not torch.equal(gradient(model, waiting.loss(experience).total), gradient(model, theirs.total))
    assert free.observe({"reward/mean": 0.0}) == {}
    assert grpo(model).observe({"kl": 0.0, "advantage/abs_mean": 0.0})["kl_share"] == 0


def test_the_reference_stays_where_it_was_and_takes_no_gradient() -> None:
    model = policy()
    objective = grpo(model)
    assert objective.reference is not None
    experience, _ = objective.collect(0)
    nudged(model)
    objective.loss(experience).total.backward()
    before = dict(policy().named_parameters())
    assert isinstance(objective.reference, nn.Module)
    for name, parameter in objective.reference.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


# ---- values that are known ------------------------------------------------------------------------------------------

LENGTHS = [3, 2, 4, 1]
OLD = [[-0.5, -1, -1.5], [-0.2, -0.4], [-2, -1, -0.5, -0.25], [-0.7]]
LOG_RATIO = [[0.1, -0.2, 0.3], [0.4, -0.5], [0.05, 0, -0.05, 0.25], [-0.3]]
ADVANTAGE = [0.625, -0.375, 0.125, -0.375]


class Told(nn.Module):
    """A policy of two tokens whose second has, after each token, the log-prob that it was told."""

    def __init__(self, logprobs: Tensor) -> None:
        super().__init__()
        self.hidden_states = nn.Parameter((logprobs - torch.log1p(-logprobs.exp()))[..., None])
        self.config: Any = None
        self.head_weight = torch.tensor([[0.0], [1.0]], dtype=torch.double)

    def prefill(self) -> None: ...

    def decode(self) -> None: ...

    def logits(self) -> None: ...

    def hidden(self, tokens: Tensor) -> Tensor:
        rows = tokens[:, 0]  # says which row it is
        return self.hidden_states[rows][:, : tokens.shape[1]]

    def hidden_after(self, prompts: Tensor, lengths: Tensor, owner: Tensor, completions: Tensor) -> Tensor:
        return self.hidden(torch.cat((prompts[owner], completions[:, :-1]), 1))  # prompts of one token


def fixture(log_ratio: float, **changes: Any) -> tuple[GRPO, Experience]:
    """The four sequences of the known values; log-probs are all 1 lower, which no ratio sees."""
    old = torch.zeros(4, 5, dtype=torch.double)
    new = torch.full((4, 4), -1.0, dtype=torch.double)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        mask[row, 1 : 1 + length] = True
        old[row, 1 : 1 + length] = torch.tensor(OLD[row]) - 1
        new[row, :length] = torch.tensor(OLD[row]) - 1 + log_ratio * torch.tensor(LOG_RATIO[row])
    tokens = mask.long()
    tokens[:, 0] = torch.arange(4)
    sampling = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=8)
    arguments = {"coefficient": kl.NoKL(), "entropy_coef": 0.0, "clip_high": 0.2, "sampling": sampling} | changes
    objective = grpo(Told(new), single_update=False, **arguments)
    weights = objective.aggregation(mask, max_new_tokens=8)
    advantages = torch.tensor(ADVANTAGE)[:, None] * mask
    return objective, Experience(
        tokens, weights, old, advantages, torch.ones(4), torch.arange(4), torch.ones(4, dtype=torch.int64)
    )


@pytest.mark.parametrize(
    ("aggregation", "clip_high", "log_ratio", "expected"),
    [
        (losses.sequence_mean, 0.2, 1, -0.0131059646567),
        (losses.token_mean, 0.2, 1, -0.1318316847965),
        (losses.token_mean, 0.28, 1, -0.1378316847965),
        (losses.constant_length, 0.2, 1, -0.0411974014989),
        (losses.sequence_mean, 0.2, 0, 0.0),
        (losses.token_mean, 0.2, 0, -0.125),
        (losses.constant_length, 0.2, 0, -0.0390625),
    ],
)
@pytest.mark.parametrize("split", [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[3], [2], [1], [0]]])
def test_known_losses_however_the_batch_is_cut(
    aggregation: Any, clip_high: float, log_ratio: float, expected: float, split: list[list[int]]
) -> None:
    objective, experience = fixture(log_ratio, aggregation=aggregation, clip_high=clip_high)
    total = sum(objective.loss(experience.rows(torch.tensor(rows), 5)).total.item() for rows in split)
    assert total == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda f: f.__name__)
def test_known_metrics_are_token_means_whatever_the_aggregation(aggregation: Any) -> None:
    objective, experience = fixture(1, aggregation=aggregation)
    metrics = means(objective, experience)
    expected = {
        "clip_frac/any": 0.5,
        "clip_frac/low": 0.2,
        "clip_frac/high": 0.2,
        "clip_frac/region": 0.4,
        "approx_kl": 0.0349459994330,
        "ratio/max": math.exp(0.4),
        "advantage/abs_mean": (3 * 0.625 + 2 * 0.375 + 4 * 0.125 + 0.375) / 10,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-7)


# ---- the constructor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("group_size", [2, 64], [1, 0, 2.5]),
        ("clip_low", [0.2, 0.999], [0, 1, 1.5]),
        ("clip_high", [0.2, 5], [0, -0.1]),
        ("entropy_coef", [0, 0.01], [-0.01]),
        ("advantage_clip", [None, 2], [0, -1]),
        ("head_chunk", [1], [0]),
    ],
)
def test_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    hint = check.type_hints(GRPO)[name]
    assert [check.fits(value, hint) for value in good + bad] == [True] * len(good) + [False] * len(bad)
