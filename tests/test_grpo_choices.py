"""What GRPO can be: where the divergence is paid, which reference, what is left out, and what cannot be combined."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
from plain import LOSSES
from tiny import LONGEST, PROMPTS, Ask, InTwo, Record, Vowels, flat, gae, gradient, grpo, nudged, policy, trainer
from torch import nn

from rookexp import baselines, coefficients, kl
from rookexp.aggregation import BY_NAME
from rookexp.baselines import GroupMean, Rloo
from rookexp.draw import Sampling
from rookexp.errors import ConfigError
from rookexp.objectives.grpo import GRPO
from rookexp.reference import EmaSync, HardSync, Interpolate, Never
from rookexp.returns import ReinforcePP, TokenRewards
from rookexp.types import Experience, Prompt, Scores


class Same(Vowels):
    """The same for everything."""

    def score(self, prompts: Any, texts: Any) -> Scores:
        return Scores(torch.full((len(texts),), 0.1), {})


# ---- baselines ------------------------------------------------------------------------------------------------------

EVERY_BASELINE: dict[str, Callable[[], nn.Module]] = {
    "group_mean": lambda: GroupMean(std="sample", std_eps=0.0, std_floor=0.0),
    "dr_grpo": lambda: GroupMean(std="none", std_eps=0.0, std_floor=0.0),
    "batch_std": lambda: GroupMean(std="batch", std_eps=0.0, std_floor=0.0),
    "rloo": Rloo,
    "leave_one_out": lambda: baselines.LeaveOneOut(std_eps=0.0),
    "adaptive": lambda: baselines.Adaptive(threshold=0.1),
    "maxrl": lambda: baselines.MaxRL(min_mean=0.0),
    "reinforce_pp": lambda: ReinforcePP(gamma=1.0),
    "none": baselines.NoBaseline,
    "ema": lambda: baselines.Ema(alpha=0.5, per="global"),
    "gae": gae,
}
WITHOUT_GROUPS = ("reinforce_pp", "none", "ema", "gae")


def process() -> baselines.Process:
    """The one that needs a reward with stages."""
    return baselines.Process(std="sample", std_eps=0.0, std_floor=0.0, credit="own")


@pytest.mark.parametrize("name", [name for name in EVERY_BASELINE if name not in ("none", "ema", "gae")])
def test_equal_rewards_pull_nowhere(name: str) -> None:
    model = policy()
    free = {"baseline": EVERY_BASELINE[name](), "reward": Same(), "coefficient": coefficients.NoKL()}
    objective = grpo(model, **free, entropy_coef=0.0)
    experience, metrics = objective.collect(0)
    assert metrics.get("frac_reward_zero_std", 1) == 1
    assert ("frac_reward_zero_std" in metrics) == objective.baseline.needs_groups, "else equal rewards may teach"
    assert not gradient(model, objective.loss(experience).total).any()
    assert gradient(model, grpo(model, **free, entropy_coef=0.1).loss(experience).total).any()


@pytest.mark.parametrize("name", EVERY_BASELINE)
@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_one_token_completions_and_lone_completions_are_finite(name: str, group_size: int) -> None:
    if group_size == 1 and name not in WITHOUT_GROUPS:
        return
    model = policy()
    sampling = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=1)
    for reward in (Vowels(), Same()):
        objective = grpo(
            model, baseline=EVERY_BASELINE[name](), reward=reward, sampling=sampling, group_size=group_size
        )
        experience, metrics = objective.collect(0)
        assert (experience.weights != 0).sum(1).tolist() == [1] * (3 * group_size)
        total = objective.loss(experience).total
        assert torch.isfinite(total)
        assert torch.isfinite(gradient(model, total)).all()
        metrics.pop("reward/first", None)  # NaN where every completion is empty
        assert all(math.isfinite(value) for value in metrics.values()), metrics


def test_an_average_for_each_task_goes_by_the_tasks_name_and_not_by_its_kind() -> None:
    class Sources(Ask):
        def select(self, step: int) -> tuple[Prompt, ...]:
            sources = ("first", "", "other")
            return tuple(replace(p, source=s) for p, s in zip(super().select(step), sources, strict=True))

    ema = baselines.Ema(alpha=0.5, per="task")
    objective = grpo(policy(), task=Sources(PROMPTS), baseline=ema)
    rewards = objective.source.collect(0)[1].rewards.view(3, 4)
    objective.collect(0)
    torch.testing.assert_close(ema.means[:3].float(), rewards.mean(1) / 2)


# ---- beta and the reference ----------------------------------------------------------------------------------------

SEEN = {"kl": 0.2, "advantage/abs_mean": 0.3, "completions/mean_length": 7.5}  # what a step may end with


def spied(objective: GRPO) -> list[TokenRewards]:
    """What the baseline will have been given, a collect at a time."""
    seen: list[TokenRewards] = []
    advantages = objective.baseline.advantages

    def remember(given: TokenRewards) -> Any:
        seen.append(given)
        return advantages(given)

    objective.baseline.advantages = remember  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("divergence", kl.TYPES)
def test_in_the_reward_each_token_pays_its_own_divergence(divergence: str) -> None:
    model = policy().double()
    table: list[dict[str, Any]] = []
    objective = grpo(
        model,
        divergence=kl.TYPES[divergence],
        kl_placement="reward",
        temperature=1.3,
        on_completions=lambda step, rows: table.extend(rows),
    )
    nudged(model, 0.1)
    seen = spied(objective)
    experience, metrics = objective.collect(0)
    (given,) = seen
    for i, row in enumerate(plain.rows_of(objective, experience)):
        paid = -0.1 * row.divergence(divergence, old=row.new)  # the policy that sampled is the policy
        paid[-1] += table[i]["reward"]
        assert torch.allclose(given.rewards[i][given.mask[i]], paid, atol=1e-6)
        assert not given.rewards[i][~given.mask[i]].any()
    groups = given.rewards.sum(1).view(3, 4)
    expected = (groups - groups.mean(1, keepdim=True)).flatten()[:, None] * given.mask
    assert torch.allclose(experience.advantages, expected, atol=1e-9)
    rewards = [row["reward"] for row in table]
    assert rewards == pytest.approx(Vowels().score((), [row["completion"] for row in table]).rewards.tolist())
    assert metrics["reward/mean"] == pytest.approx(sum(rewards) / 12)  # what the task paid
    terms = objective.loss(experience)
    assert terms.terms.keys() == {"policy", "entropy"}
    assert float(terms.per_token["kl"].mean()) > 1e-3


def test_k1_in_the_reward_with_rewards_to_go_is_reinforce_pp() -> None:
    model = policy().double()
    arguments = {"divergence": kl.TYPES["k1"], "baseline": ReinforcePP(gamma=1.0)}
    objective = grpo(model, kl_placement="reward", **arguments)
    nudged(model, 0.1)
    seen = spied(objective)
    experience, _ = objective.collect(0)
    to_go = [
        float(row[t:].sum())
        for row, mask in zip(seen[0].rewards, seen[0].mask, strict=True)
        for t in mask.nonzero()[:, 0].tolist()
    ]
    found = experience.advantages[seen[0].mask]
    values = torch.tensor(to_go, dtype=torch.double)
    assert torch.allclose(found, (values - values.mean()) / values.std(), atol=1e-6)
    assert len({round(value, 6) for value in found.tolist()}) > 24  # no two tokens of a row alike


@pytest.mark.parametrize("std", ["none", "sample"])
def test_a_divergence_in_the_reward_is_compared_with_the_outcomes_whatever_divides_both(std: Any) -> None:
    model, table = policy(), list[dict[str, Any]]()
    objective = grpo(
        model,
        kl_placement="reward",
        baseline=GroupMean(std=std, std_eps=1e-6, std_floor=0.0),
        coefficient=coefficients.WarmupKL(coef=0.01, warmup=1, unit="steps", shape="switch"),
        on_completions=lambda step, rows: table.extend(rows),
    )
    nudged(model, 0.1)
    assert objective.collect(0)[1]["kl_share"] == 0  # beta is 0
    assert "kl_share" not in objective.observe(0, SEEN)
    table.clear()
    seen = spied(objective)
    _, metrics = objective.collect(1)
    outcomes = torch.tensor([row["reward"] for row in table]).view(3, 4)
    penalties = outcomes - seen[0].rewards.sum(1).view(3, 4)
    a, b = (float((x - x.mean(1, keepdim=True)).abs().mean()) for x in (penalties, outcomes))
    assert metrics["kl_share"] == pytest.approx(a / (a + b), rel=1e-3)
    assert 0 < metrics["kl_share"] < 0.5
    same = grpo(model, kl_placement="reward", reward=Same(), baseline=GroupMean(std=std, std_eps=1e-6, std_floor=0.0))
    same.reference = objective.reference
    assert same.collect(1)[1]["kl_share"] == 1, "where outcomes are equal the divergence alone pulls"


COURSES: list[tuple[Callable[[], coefficients.Coefficient], list[float]]] = [
    (lambda: coefficients.FixedKL(coef=0.3), [0.3, 0.3, 0.3, 0.3]),
    (lambda: coefficients.WarmupKL(coef=0.3, warmup=2, unit="steps", shape="switch"), [0, 0, 0.3, 0.3]),
    (lambda: coefficients.WarmupKL(coef=0.3, warmup=60, unit="tokens", shape="linear"), [0, 0.15, 0.3, 0.3]),
    (lambda: coefficients.AnnealKL(start_coef=0.4, end_coef=0.1, anneal_steps=3), [0.4, 0.3, 0.2, 0.1]),
    # The divergence is twice the target: the coefficient rises until it may not.
    (lambda: coefficients.PpoRuleKL(coef=0.1, target_nats=0.1, min_coef=0.01, max_coef=0.3), [0.1, 0.2, 0.3, 0.3]),
    (
        lambda: coefficients.AdaptiveKL(
            coef=0.1, target_nats=0.1, band_low=0.8, band_high=1.25, up=1.5, down=0.5, min_coef=0.01, max_coef=0.2
        ),
        [0.1, 0.15, 0.2, 0.2],
    ),
    (
        lambda: coefficients.ProportionalKL(
            coef=0.1, target_nats=0.1, error_clip=0.2, horizon=4, min_coef=0.01, max_coef=0.14
        ),
        [0.1, 0.12, 0.14, 0.14],
    ),
]


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize(("coefficient", "course"), COURSES)
def test_beta_can_be_read_back_from_what_is_optimised(
    coefficient: Callable[[], coefficients.Coefficient], course: list[float], placement: str
) -> None:
    model = policy().double()
    task = Ask(PROMPTS[:1])
    objective = grpo(model, coefficient=coefficient(), kl_placement=placement, entropy_coef=0.0, task=task)
    nudged(model, 0.1)
    seen = spied(objective)
    for step, expected in enumerate(course):
        experience, metrics = objective.collect(step)
        terms = objective.loss(experience)
        kl_nats = terms.per_token["kl"].mean()
        if placement == "loss":
            effective = terms.terms.get("kl", torch.zeros(())) / kl_nats
        else:
            assert "kl" not in terms.terms
            outcomes, paid = metrics["reward/mean"] * 4, seen[-1].rewards.sum()
            effective = (outcomes - paid) / (kl_nats * len(terms.per_token["kl"]))
        assert effective.item() == pytest.approx(expected, abs=1e-5)
        assert objective.observe(step, SEEN)["kl_coef"] == pytest.approx(expected)


def test_the_reference_runs_before_the_update_only_where_the_reward_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for placement, beta, calls in (("loss", 0.1, 0), ("reward", 0.1, 3), ("reward", 0.0, 0)):
        coefficient = coefficients.AnnealKL(start_coef=beta, end_coef=0.1, anneal_steps=9)
        objective = grpo(policy(), coefficient=coefficient, kl_placement=placement)
        ran: list[int] = []
        assert objective.reference is not None
        hidden_after = objective.reference.hidden_after
        spy = lambda *rows, run=hidden_after, ran=ran: ran.append(1) or run(*rows)  # noqa: E731
        monkeypatch.setattr(objective.reference, "hidden_after", spy)
        experience, _ = objective.collect(0)
        assert len(ran) == calls
        objective.loss(experience)
        assert len(ran) == calls + 1


def test_while_beta_is_zero_the_divergence_is_measured_and_does_not_pull() -> None:
    model = policy()
    waiting = grpo(model, coefficient=coefficients.WarmupKL(coef=0.5, warmup=2, unit="steps", shape="switch"))
    free = grpo(model, coefficient=coefficients.NoKL())
    assert free.reference is None
    experience, _ = free.collect(0)
    nudged(model)
    ours, theirs = waiting.loss(experience), free.loss(experience)
    assert torch.equal(gradient(model, ours.total), gradient(model, theirs.total))
    assert float(ours.per_token["kl"].mean()) > 1e-3
    assert "kl" not in theirs.per_token
    for expected in (0.0, 0.0, 0.5):
        said = waiting.observe(0, SEEN)
        assert said["kl_coef"] == expected
        assert said["kl_share"] == pytest.approx(expected * 0.2 / (expected * 0.2 + 0.3))
    assert not torch.equal(gradient(model, waiting.loss(experience).total), gradient(model, theirs.total))
    assert free.observe(0, {"reward/mean": 0.0}) == {}
    assert grpo(model).observe(0, SEEN | {"kl": 0.0, "advantage/abs_mean": 0.0})["kl_share"] == 0


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


@pytest.mark.parametrize(
    ("sync", "moves", "kept"),
    [(Never(), [], 1.0), (HardSync(every=4), [4], 0.0), (EmaSync(decay=0.75, every=1), [1, 2, 3, 4], 0.75)],
    ids=["never", "hard", "ema"],
)
def test_the_reference_follows_the_policy_when_it_should_and_nothing_else_moves(
    sync: Any, moves: list[int], kept: float
) -> None:
    model = policy()
    objective = grpo(model, reference_sync=sync)
    reference: Any = objective.reference
    assert ("reference" in objective.modules) == sync.moves  # a checkpoint carries it only if it moves
    experience, _ = objective.collect(0)
    for step in range(4):
        nudged(model)
        ours, theirs = flat(model), flat(reference)
        objective.observe(step, SEEN)
        assert torch.equal(flat(model), ours)
        if step + 1 in moves:
            assert torch.allclose(flat(reference), kept * theirs + (1 - kept) * ours, atol=1e-6)
        else:
            assert torch.equal(flat(reference), theirs)
    assert not any(p.requires_grad for p in reference.parameters())
    divergence = float(objective.loss(experience).per_token["kl"].mean())
    assert divergence < 1e-6 if kept == 0 else divergence > 1e-3


def test_without_a_coefficient_there_is_no_reference_to_move() -> None:
    objective = grpo(policy(), coefficient=coefficients.NoKL(), reference_sync=HardSync(every=1))
    assert objective.reference is None
    assert objective.modules.keys() == {"baseline", "coefficient"}
    assert objective.observe(0, {"reward/mean": 0.0}) == {}
    with pytest.raises(ConfigError, match="reference=Interpolate with kl=NoKL: there is no reference to go back to"):
        grpo(policy(), coefficient=coefficients.NoKL(), reference_sync=Interpolate(share=0.5, at=1))


# ---- groups and rows that are left out -------------------------------------------------------------------------------


class Dead(Vowels):
    """The same for all completions of `ponmlk`, the last of the prompts."""

    def score(self, prompts: Any, texts: Any) -> Scores:
        scores = super().score(prompts, texts)
        for i, prompt in enumerate(prompts):
            if prompt.text.startswith("ponmlk"):
                group = len(texts) // len(prompts)
                rows = slice(group * i, group * i + group)
                scores.rewards[rows] = 0.9
                if scores.stages is not None:
                    scores.stages.rewards[rows] = torch.tensor([0.5, 0.4])
        return scores


class DeadInTwo(Dead, InTwo):
    """The same in two stages."""


def assert_dropped_is_never_sampled(steps: int = 1, **changes: Any) -> None:
    """Loss, gradient and metrics of all groups without the dead one are those of the other groups alone."""
    model = policy().double()
    arguments = {"reward": Dead(), "dead_groups": "dropped", "single_update": False}
    found: dict[str, tuple[GRPO, Experience]] = {}
    for name, other in {"all": {}, "alone": {"task": Ask(PROMPTS[:2])}, "kept": {"dead_groups": "kept"}}.items():
        made = {key: value() if key == "baseline" else value for key, value in changes.items()}
        objective = grpo(model, **arguments | made | other)
        for step in range(steps):
            experience, _ = objective.collect(step)
        found[name] = objective, experience
    assert int((found["all"][1].weights != 0).sum()) == int((found["alone"][1].weights != 0).sum())
    nudged(model)
    (ours, alone, kept) = (objective.loss(experience) for objective, experience in found.values())
    assert ours.total.item() == pytest.approx(alone.total.item(), rel=1e-6)
    wanted = gradient(model, alone.total)
    assert torch.allclose(gradient(model, ours.total), wanted, atol=1e-6 * float(wanted.abs().max()))
    assert {k: v.tolist() for k, v in ours.per_token.items()} == {
        k: pytest.approx(v.tolist(), rel=1e-5, abs=1e-6) for k, v in alone.per_token.items()
    }
    assert not torch.allclose(gradient(model, kept.total), wanted, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("aggregation", BY_NAME)
@pytest.mark.parametrize("truncated", ["kept", "masked"])
def test_dropped_groups_are_as_if_they_had_never_been_sampled(aggregation: str, truncated: str) -> None:
    assert_dropped_is_never_sampled(aggregation=BY_NAME[aggregation], truncated=truncated)


@pytest.mark.parametrize("name", [*(name for name in EVERY_BASELINE if name not in WITHOUT_GROUPS), "process"])
def test_a_dropped_group_has_no_say_in_the_advantages_of_others(name: str) -> None:
    if name == "process":
        assert_dropped_is_never_sampled(steps=2, baseline=process, reward=DeadInTwo())
    else:
        assert_dropped_is_never_sampled(steps=2, baseline=EVERY_BASELINE[name])


@pytest.mark.parametrize("dead_groups", ["dropped", "resampled"])
def test_where_all_groups_are_dead_nothing_moves(dead_groups: str) -> None:
    model = policy()
    objective = grpo(model, reward=Same(), dead_groups=dead_groups)
    before, record = flat(model), Record()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
    trainer(model, objective, optimizer, lr=0.1, steps=3, diagnose_every=1, tracker=record).fit()
    assert torch.equal(flat(model), before)
    assert len(record.rows) == 3
    for row in record.rows:
        assert all(math.isfinite(value) for value in row.values()), row
        assert row["frac_reward_zero_std"] == 1
        assert row["tokens_per_s"] == row["grad_norm"] == 0
        assert row["completions/sampled"] == (12 if dead_groups == "dropped" else 36)


def test_a_step_in_which_nothing_is_learned_is_a_step_all_the_same() -> None:
    """Else a warm-up would wait, and a reference that follows every second step would follow every fourth."""

    class Late(Vowels):
        def score(self, prompts: Any, texts: Any) -> Scores:
            calls.append(1)
            scores = super().score(prompts, texts)
            return Scores(scores.rewards * (len(calls) == 1), scores.parts)

    calls: list[int] = []
    model, record = policy(), Record()
    coefficient = coefficients.WarmupKL(coef=0.5, warmup=2, unit="steps", shape="linear")
    objective = grpo(
        model, reward=Late(), dead_groups="dropped", coefficient=coefficient, reference_sync=HardSync(every=2)
    )
    trainer(model, objective, lr=1e-3, steps=2, tracker=record).fit()
    assert [row["frac_reward_zero_std"] for row in record.rows] == [pytest.approx(0, abs=0.5), 1]
    assert coefficient.coefficient() == 0.5
    assert torch.equal(flat(objective.reference), flat(model))  # type: ignore[arg-type]


@pytest.mark.parametrize("aggregation", BY_NAME)
def test_masked_completions_have_no_weight_and_count_as_rows(aggregation: str) -> None:
    objective = grpo(policy(), truncated="masked", aggregation=BY_NAME[aggregation])
    rollouts = objective.source.collect(0)[0]
    experience, _ = objective.collect(0)
    kept, lengths = ~rollouts.truncated, rollouts.mask.sum(1).float()
    assert 0 < kept.sum() < 12
    expected = {
        "token_mean": torch.ones(12) / lengths[kept].sum(),
        "sequence_mean": 1 / (12 * lengths),
        "constant_length": torch.ones(12) / (12 * LONGEST),
        "sequence_sum": torch.ones(12) / 12,
    }[aggregation]
    assert torch.allclose(experience.weights, (expected * kept)[:, None] * rollouts.mask)
    whole, _ = grpo(policy(), aggregation=BY_NAME[aggregation]).collect(0)
    assert torch.equal(experience.advantages, whole.advantages)  # they are still compared with
    assert torch.equal(experience.tokens, whole.tokens)


def test_where_all_completions_are_cut_off_and_masked_nothing_moves() -> None:
    model = policy()
    sampling = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=1)
    objective = grpo(model, truncated="masked", sampling=sampling)
    step = next(step for step in range(20) if objective.source.collect(step)[0].truncated.all())
    experience, metrics = objective.collect(step)
    assert metrics["completions/truncated_frac"] == 1
    before = flat(model)
    metrics = trainer(model, objective).update(step, experience)
    assert metrics == {"grad_norm": 0.0, "lr": 1.0, "tokens": 0.0}
    assert torch.equal(flat(model), before)
    learned = grpo(model, truncated="kept", sampling=sampling)
    trainer(model, learned).update(step, learned.collect(step)[0])
    assert not torch.equal(flat(model), before)


# ---- choices that contradict each other -----------------------------------------------------------------------------


WHOLE_ROWS = ("gspo", "luspo", "gmpo", "vespo")


@pytest.mark.parametrize("name", ["gae", "reinforce_pp", "process"])
@pytest.mark.parametrize("loss", WHOLE_ROWS)
def test_a_ratio_of_whole_rows_needs_one_advantage_a_row(loss: str, name: str) -> None:
    advice = "choose loss=gspo_token or clip, or a baseline other than gae, process and reinforce_pp"
    with pytest.raises(ConfigError, match=rf"loss=\w+ with baseline=\w+: .* one advantage .* {advice}"):
        grpo(policy(), policy_loss=LOSSES[loss], baseline=(EVERY_BASELINE | {"process": process})[name]())


@pytest.mark.parametrize("name", ["gae", "rloo"])
@pytest.mark.parametrize("loss", LOSSES)
def test_everything_else_goes_together(loss: str, name: str) -> None:
    if name == "gae" and loss in WHOLE_ROWS:
        return
    model = policy()
    objective = grpo(model, policy_loss=LOSSES[loss], baseline=EVERY_BASELINE[name]())
    total = objective.loss(objective.collect(0)[0]).total
    assert torch.isfinite(gradient(model, total)).all()
    assert gradient(model, total).any()


@pytest.mark.parametrize("name", EVERY_BASELINE)
def test_a_lone_completion_needs_a_baseline_that_does_not_compare(name: str) -> None:
    if name in WITHOUT_GROUPS:
        grpo(policy(), group_size=1, baseline=EVERY_BASELINE[name]())
        return
    with pytest.raises(ConfigError, match=r"grpo\.group_size=1: .*ema, none, reinforce_pp or gae"):
        grpo(policy(), group_size=1, baseline=EVERY_BASELINE[name]())


@pytest.mark.parametrize("name", EVERY_BASELINE)
@pytest.mark.parametrize("dead_groups", ["dropped", "resampled"])
def test_groups_are_dead_only_to_a_baseline_that_compares(name: str, dead_groups: str) -> None:
    baseline = EVERY_BASELINE[name]()
    if name not in WITHOUT_GROUPS:
        grpo(policy(), dead_groups=dead_groups, baseline=baseline)
        return
    for group_size in (1, 4):
        with pytest.raises(ConfigError, match=rf"grpo\.dead_groups={dead_groups} with .*allowed: kept, or a baseline"):
            grpo(policy(), group_size=group_size, dead_groups=dead_groups, baseline=baseline)
