"""GRPO: what enters the loss, the loss and its gradient against plain formulas, and what must not change them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
import torch.nn.functional as F
from fixture_t import fixture_t
from plain import LOSSES
from tiny import EOT, LONGEST, PROMPTS, VOCAB, Letters, Vowels, bf16, gradient, grpo, nudged, policy
from torch import Tensor, nn

from rookexp import coefficients, kl, losses
from rookexp.aggregation import BY_NAME
from rookexp.baselines import GroupMean, Rloo
from rookexp.config import hints
from rookexp.draw import Sampling
from rookexp.objectives.grpo import GRPO
from rookexp.types import Experience, Rollouts, Scores

EXACT = ["forward", "reverse", "symmetric"]


def means(objective: GRPO, experience: Experience) -> dict[str, float]:
    """The metrics of a loss on the whole experience, and the largest of those so named."""
    per_token = objective.loss(experience).per_token
    return {k: float(v.max() if k.endswith("/max") else v.mean()) for k, v in per_token.items()}


# ---- what is collected ----------------------------------------------------------------------------------------------


def test_the_loss_gets_what_was_sampled_and_nothing_else() -> None:
    objective = grpo(policy())
    rollouts = objective.source.collect(0)[0]
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


def test_a_lone_token_has_its_whole_advantage_in_the_table_and_without_a_critic_nothing_is_expected() -> None:
    table: list[dict[str, Any]] = []
    short = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=1)
    objective = grpo(policy(), sampling=short, on_completions=lambda step, rows: table.extend(rows))
    experience, _ = objective.collect(0)
    assert experience.advantages.any()
    assert [row["advantage"] for row in table] == pytest.approx(experience.advantages.sum(1).tolist())
    assert not experience.values.any()
    assert not experience.returns.any()


def test_an_exact_sampler_is_asked_once() -> None:
    objective = grpo(policy(), single_update=False, exact_sampler=True)
    experience, metrics = objective.collect(0)
    assert "sampler/abs_logprob_error" not in metrics
    assert torch.equal(experience.logprobs, objective.source.collect(0)[0].logprobs)


def test_advantages_are_clipped() -> None:
    whole, clipped = (grpo(policy(), advantage_clip=clip).collect(0)[0].advantages for clip in (None, 0.1))
    assert whole.max() > 0.1
    assert whole.min() < -0.1
    assert torch.equal(clipped, whole.clamp(-0.1, 0.1))


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
    assert 0 <= metrics["approx_kl/k3"] <= tolerance**2 + 1e-7
    assert abs(metrics["approx_kl/k1"]) <= tolerance
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


def test_several_updates_start_from_the_training_forward_where_the_sampler_is_off_and_say_by_how_much() -> None:
    objective = grpo(policy(), exact_sampler=False, single_update=False)
    collect = objective.source.collect

    def off(step: int) -> tuple[Rollouts, Scores, int]:
        rollouts, scores, sampled = collect(step)
        signs = 1 - 2 * (torch.arange(rollouts.mask.shape[1]) % 2)
        return replace(rollouts, logprobs=rollouts.logprobs + 0.1 * signs * rollouts.mask), scores, sampled

    objective.source.collect = off  # type: ignore[method-assign]
    experience, metrics = objective.collect(0)
    assert metrics["sampler/abs_logprob_error"] == pytest.approx(0.1, abs=1e-5)
    assert torch.allclose(experience.logprobs, grpo(policy()).collect(0)[0].logprobs, atol=1e-5)


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


def test_the_ratio_of_a_later_update_is_to_the_policy_that_sampled() -> None:
    """Else no clip would ever act, where the log-probs are rescored as in bf16."""
    model = policy()
    objective = grpo(model, exact_sampler=False, single_update=False)
    experience, _ = objective.collect(0)
    assert torch.allclose(objective.loss(experience).per_token["ratio/max"], torch.ones(()), atol=1e-5)
    nudged(model, 0.1)
    now = grpo(model, exact_sampler=True).loss(experience).per_token["ratio/max"]
    found = objective.loss(experience).per_token["ratio/max"]
    assert (found - 1).abs().max() > 0.01
    assert torch.equal(found, now)


@pytest.mark.parametrize("autocast", [nullcontext, bf16])
@pytest.mark.parametrize("divergence", EXACT)
def test_policy_and_reference_are_equal_at_the_start(divergence: str, autocast: Callable[[], Any]) -> None:
    objective = grpo(policy(), divergence=kl.TYPES[divergence], temperature=1.3, autocast=autocast)
    experience, _ = objective.collect(0)
    assert objective.loss(experience).per_token["kl"].abs().max() < 1e-6
    assert objective.reference is not None
    with torch.no_grad(), autocast():
        ours, theirs = (m.logits(m.hidden(experience.tokens)) for m in (objective.policy, objective.reference))
    assert (ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max() < 1e-5


# ---- the loss -------------------------------------------------------------------------------------------------------

# Numbers without a common factor: all pairs of a loss and an aggregation, and of a divergence and an aggregation.
COMBINED = [
    (list(LOSSES)[i % 11], list(kl.TYPES)[i % 9], list(BY_NAME)[i % 4], "reward" if i % 5 == 0 else "loss")
    for i in range(45)
]


@pytest.mark.parametrize(("loss", "divergence", "aggregation", "placement"), COMBINED)
def test_value_and_gradient_are_those_of_the_plain_formula(
    loss: str, divergence: str, aggregation: str, placement: str
) -> None:
    model = policy().double()
    objective = grpo(
        model,
        policy_loss=LOSSES[loss],
        divergence=kl.TYPES[divergence],
        aggregation=BY_NAME[aggregation],
        kl_placement=placement,
        temperature=1.3,
        single_update=False,
    )
    experience, _ = objective.collect(0)
    nudged(model, 0.1)
    terms = objective.loss(experience)
    assert terms.terms.keys() == {"policy", "entropy"} | ({"kl"} if placement == "loss" else set())
    expected = plain.loss(objective, experience, loss, divergence, aggregation)
    assert terms.total.item() == pytest.approx(expected.item(), rel=1e-6)  # weights are fp32
    ours, theirs = gradient(model, terms.total), gradient(model, expected)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))
    flags = {name: float(flag.mean()) for name, flag in terms.per_token.items() if name.startswith("clip_frac/")}
    assert len(flags) == (0 if loss in ("sapo", "vespo", "reinforce") else 4)
    assert all(0 < flag < 1 for flag in flags.values()), "else clipping had no say in it"


def test_all_pairs_that_matter_are_combined() -> None:
    assert {(loss, a) for loss, _, a, _ in COMBINED} == {(loss, a) for loss in LOSSES for a in BY_NAME}
    assert {(d, a) for _, d, a, _ in COMBINED} == {(d, a) for d in kl.TYPES for a in BY_NAME}
    assert {(d, p) for _, d, _, p in COMBINED} == {(d, p) for d in kl.TYPES for p in ("loss", "reward")}
    known = [x for x in vars(losses).values() if inspect.isclass(x) and hasattr(x, "whole_rows")]
    assert {type(loss) for loss in LOSSES.values()} == {*known} - {losses.PolicyLoss}


ESTIMATES = {"kl/forward": "forward", "kl/k1": "k1", "kl/k2": "k2", "kl/k3": "k3"}


@pytest.mark.parametrize("divergence", kl.TYPES)
def test_the_divergence_is_logged_exactly_and_its_estimates_beside_it(divergence: str) -> None:
    model = policy().double()
    objective = grpo(model, divergence=kl.TYPES[divergence], temperature=1.3, single_update=False)
    experience, _ = objective.collect(0)
    nudged(model, 0.1)
    metrics, rows = means(objective, experience), plain.rows_of(objective, experience)
    exact = divergence if divergence in EXACT else "forward"
    expected = {
        name: torch.cat([row.divergence(word) for row in rows]).mean().item()
        for name, word in ESTIMATES.items() | {("kl", exact)}
    }
    log_ratio = torch.cat([row.new - row.old for row in rows]).detach()
    expected["approx_kl/k1"] = -float(log_ratio.mean())
    expected["approx_kl/k3"] = float((log_ratio.exp() - 1 - log_ratio).mean())
    expected["ratio/max"] = float(log_ratio.exp().max())
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-7)
    assert metrics["kl"] > 1e-3


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


# ---- values that are known ------------------------------------------------------------------------------------------


class Told(nn.Module):
    """A policy of two tokens whose second has, after each token, the log-prob that it was told."""

    def __init__(self, logprobs: Tensor) -> None:
        super().__init__()
        self.hidden_states = nn.Parameter((logprobs - torch.log1p(-logprobs.exp()))[..., None])
        self.config: Any = None
        self.replays = None
        self.head_weight = torch.tensor([[0.0], [1.0]], dtype=torch.double)

    def packed(self) -> None: ...

    def prefill(self) -> None: ...

    def decode(self) -> None: ...

    def decode_ahead(self) -> None: ...

    def logits(self) -> None: ...

    def hidden(self, tokens: Tensor) -> Tensor:
        rows = tokens[:, 0]  # says which row it is
        return self.hidden_states[rows][:, : tokens.shape[1]]

    def hidden_after(self, prompts: Tensor, lengths: Tensor, owner: Tensor, completions: Tensor, *rest: Any) -> Tensor:
        return self.hidden(torch.cat((prompts[owner], completions[:, :-1]), 1))  # prompts of one token


EVEN = {"clip_low": 0.2, "clip_high": 0.2}
X = [[0.2, -0.1, 0, 0], [0.05, 0.3, 0, 0], [-0.2, 0.1, 0.15, -0.05], [0.4, 0, 0, 0]]  # to the reference
KNOWN = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=8)


def known(log_ratio: float = 1.0, **changes: Any) -> tuple[GRPO, Experience]:
    """Fixture T, after a prompt of one token; its log-probs are 1 lower, which no ratio sees."""
    batch = fixture_t()
    new = batch.old - 1 + log_ratio * (batch.logprobs - batch.old)
    arguments = {"coefficient": coefficients.NoKL(), "entropy_coef": 0.0, "policy_loss": losses.Clip(**EVEN)} | changes
    objective = grpo(Told(new), single_update=False, sampling=KNOWN, **arguments)
    if objective.reference is not None:
        told: Any = Told(new - torch.tensor(X, dtype=torch.double))
        objective.reference.load_state_dict(told.state_dict())  # type: ignore[attr-defined]
    old, advantages, mask = (F.pad(x, (1, 0)) for x in (batch.old - 1, batch.advantages, batch.mask))
    tokens = mask.long()
    tokens[:, 0] = torch.arange(4)
    return objective, Experience(
        tokens=tokens,
        weights=objective.aggregation(mask, max_new_tokens=8),
        logprobs=old * mask,
        advantages=advantages,
        values=torch.zeros(4, 5),
        returns=torch.zeros(4, 5),
        temperature=torch.ones(4),
        prompt=torch.arange(4),
        prompt_lengths=torch.ones(4, dtype=torch.int64),
    )


SPLITS = [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[3], [2], [1], [0]], [[3, 1], [2], [0]]]


@pytest.mark.parametrize(
    ("loss", "aggregation", "log_ratio", "expected"),
    [
        (losses.Clip(**EVEN), "sequence_mean", 1, -0.0131059646567),
        (losses.Clip(**EVEN), "token_mean", 1, -0.1318316847965),
        (losses.Clip(clip_low=0.2, clip_high=0.28), "token_mean", 1, -0.1378316847965),
        (losses.Clip(**EVEN), "constant_length", 1, -0.0411974014989),
        (losses.Clip(**EVEN), "sequence_sum", 1, -0.3295792119913),
        (losses.Clip(**EVEN), "sequence_mean", 0, 0.0),
        (losses.Clip(**EVEN), "token_mean", 0, -0.125),
        (losses.Clip(**EVEN), "constant_length", 0, -0.0390625),
        (losses.DualClip(**EVEN, dual_clip=3.0), "token_mean", 1, -0.1318316847965),
        (losses.Gspo(**EVEN), "sequence_mean", 1, -0.0361094285672),
        (losses.GspoToken(clip_low=3e-4, clip_high=4e-4), "sequence_mean", 1, -0.00013125),
        (losses.Luspo(**EVEN), "sequence_mean", 1, -0.3807714960899),
        (losses.Sapo(tau_positive=1.0, tau_negative=1.05), "sequence_mean", 1, -0.0539564127255),
        (losses.Gmpo(log_clip=0.4), "sequence_mean", 1, -0.0370854789253),
    ],
)
@pytest.mark.parametrize("split", SPLITS)
def test_known_losses_however_the_batch_is_cut(
    loss: Any, aggregation: str, log_ratio: float, expected: float, split: list[list[int]]
) -> None:
    objective, experience = known(log_ratio, policy_loss=loss, aggregation=BY_NAME[aggregation])
    total = sum(objective.loss(experience.rows(torch.tensor(rows), 5)).total.item() for rows in split)
    assert total == pytest.approx(expected, abs=4e-8)  # weights are fp32


@pytest.mark.parametrize(
    ("divergence", "mean", "loss"),
    [
        ("k1", 0.085, None),
        ("k2", 0.018875, None),
        ("k3", 0.0174488611369, -0.0120173056107),
        ("abs", 0.155, None),
        ("ratio_k3", 0.0142775614139, -0.0122710603046),
    ],
)
@pytest.mark.parametrize("split", SPLITS)
def test_known_penalties_however_the_batch_is_cut(
    divergence: str, mean: float, loss: float | None, split: list[list[int]]
) -> None:
    arguments = {"divergence": kl.TYPES[divergence], "coefficient": coefficients.FixedKL(coef=0.04)}
    for aggregation, expected in (("token_mean", 0.04 * mean), ("sequence_mean", loss)):
        objective, experience = known(**arguments, aggregation=BY_NAME[aggregation])
        parts = [objective.loss(experience.rows(torch.tensor(rows), 5)) for rows in split]
        found = sum((part.terms["kl"] if aggregation == "token_mean" else part.total).item() for part in parts)
        assert expected is None or found == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize("aggregation", BY_NAME)
def test_known_metrics_are_token_means_whatever_the_aggregation(aggregation: str) -> None:
    objective, experience = known(aggregation=BY_NAME[aggregation], coefficient=coefficients.FixedKL(coef=0.04))
    metrics = means(objective, experience)
    expected = {
        "clip_frac/any": 0.5,
        "clip_frac/low": 0.2,
        "clip_frac/high": 0.2,
        "clip_frac/region": 0.4,
        "approx_kl/k1": -0.005,
        "approx_kl/k3": 0.0349459994330,
        "kl/k1": 0.085,
        "kl/k2": 0.018875,
        "kl/k3": 0.0174488611369,
        "ratio/max": math.exp(0.4),
        "advantage/abs_mean": (3 * 0.625 + 2 * 0.375 + 4 * 0.125 + 0.375) / 10,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-7)


# ---- the constructor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("group_size", [1, 2, 64], [0, 2.5]),
        ("kl_placement", ["loss", "reward"], ["both", None]),
        ("entropy_coef", [0, 0.01], [-0.01]),
        ("advantage_clip", [None, 2], [0, -1]),
        ("dead_groups", ["kept", "dropped", "resampled"], ["masked", None]),
        ("max_resamples", [1, 9], [0]),
        ("truncated", ["kept", "masked"], ["dropped", None]),
        ("overlong_buffer", [None, 1], [0, 1.5]),
        ("head_chunk", [1], [0]),
    ],
)
def test_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    hint = hints.type_hints(GRPO)[name]
    assert [hints.fits(value, hint) for value in good + bad] == [True] * len(good) + [False] * len(bad)
