"""The loop: nothing depends on how a batch is cut, on what is logged, or on whether the process was killed."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import PROMPTS, Ask, Letters, Record, Vowels, flat, gae, gradient, grpo, nudged, policy, shuffled, trainer
from torch import Tensor, nn

from rookexp import aggregation, checkpoint, coefficients, kl, losses
from rookexp.baselines import GroupMean
from rookexp.errors import ConfigError, TrainingDiverged
from rookexp.evaluation import Greedy
from rookexp.models.gpt2 import GPT2
from rookexp.reference import EmaSync
from rookexp.schedule import Cosine
from rookexp.track import Tracker
from rookexp.trainer import _add_gradients
from rookexp.types import Experience, LossTerms

AGGREGATIONS = list(aggregation.BY_NAME.values())


# Of each: what is summed over rows, over tokens, and over what a row's tokens share.
VARIANTS: list[dict[str, Any]] = [
    {},
    {"policy_loss": losses.Luspo(clip_low=0.05, clip_high=0.04), "divergence": kl.TYPES["ratio_k3"]},
    {"policy_loss": losses.GspoToken(clip_low=0.05, clip_high=0.04), "baseline": gae()},
    {"policy_loss": losses.Vespo(k_positive=2.0, lambda_positive=3.0, k_negative=3.0, lambda_negative=2.0),
     "divergence": kl.TYPES["k3"], "truncated": "masked"},
]  # fmt: skip


def collected(model: GPT2, **changes: Any) -> tuple[Any, Experience]:
    """An objective with all terms on, and experience from a policy that has moved since."""
    objective = grpo(model, single_update=False, **changes)
    if objective.value_head is not None:
        objective.value_head.to(model.wte.weight.dtype)
        nudged(objective.value_head, 0.5)
    experience, _ = objective.collect(0)
    nudged(model, 0.05)
    return objective, experience


def updated(aggregation: Any, *, shuffle: bool = False, variant: int = 0, **changes: Any) -> Any:
    """How far one update moves the parameters, and its metrics, in double precision."""
    model = policy().double()
    objective, experience = collected(model, aggregation=aggregation, **VARIANTS[variant])
    before = flat(model)
    metrics = trainer(model, objective, **changes).update(0, shuffled(experience) if shuffle else experience)
    return flat(model) - before, metrics


# ---- the cut --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("aggregation", "variant"), list(zip(AGGREGATIONS, range(4), strict=True)))
def test_neither_micro_batches_nor_the_order_of_rows_change_anything(aggregation: Any, variant: int) -> None:
    whole, metrics = updated(aggregation, variant=variant)
    model = policy().double()
    objective, experience = collected(model, aggregation=aggregation, **VARIANTS[variant])
    terms = objective.loss(experience)
    expected = -gradient(model, terms.total)
    assert metrics["loss"] == pytest.approx(terms.total.item(), rel=1e-6)
    names = {"policy", "kl", "entropy"} | ({"value"} if objective.value_head else set())
    assert {name for name in metrics if name.startswith("loss/")} == {f"loss/{name}" for name in names}
    for name, term in terms.terms.items():
        assert metrics[f"loss/{name}"] == pytest.approx(term.item(), rel=1e-6)
    for name, values in terms.per_token.items():
        expected_value = values.max() if name == "ratio/max" else values.mean()
        assert metrics[name] == pytest.approx(expected_value.item(), rel=1e-6, abs=1e-9)
    assert torch.allclose(whole, expected, atol=1e-12 * float(expected.abs().max()), rtol=1e-9)
    for micro_batch, shuffle in ((1, False), (2, True), (5, True), (11, False)):
        moved, others = updated(aggregation, micro_batch=micro_batch, shuffle=shuffle, variant=variant)
        assert torch.allclose(moved, whole, atol=1e-12 * float(whole.abs().max()), rtol=1e-9)
        assert others == pytest.approx(metrics, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("passes", [{"minibatches": 5}, {"inner_epochs": 3}, {"minibatches": 3, "inner_epochs": 2}])
def test_metrics_of_several_updates_are_those_of_the_whole_batch(aggregation: Any, passes: dict[str, int]) -> None:
    still = {"lr": 1e-30, "micro_batch": 2}  # the policy stays where it is
    _, expected = updated(aggregation, **still)
    _, metrics = updated(aggregation, **still, **passes)
    del expected["grad_norm"], metrics["grad_norm"]  # of other batches
    assert metrics == pytest.approx(expected, rel=1e-6, abs=1e-9)


class Linear:
    """A loss whose gradient is the same wherever the policy is; remembers the rows of each optimizer step."""

    def __init__(self, model: GPT2) -> None:
        self.table = model.wte.weight
        self.modules: dict[str, nn.Module] = {}
        self.steps: list[list[int]] = [[]]

    def collect(self, step: int) -> Any: ...

    def loss(self, micro: Experience) -> LossTerms:
        self.steps[-1] += micro.tokens[:, 0].tolist()
        return LossTerms({"linear": (self.table[micro.tokens[:, 0]].sum(1) * micro.weights[:, 1]).sum()}, {})

    def observe(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        return {}


def linear_update(step: int = 0, **changes: Any) -> tuple[list[list[int]], Tensor]:
    """The rows (of ten, with weights 1 to 10) in each optimizer step, and how far the parameters went."""
    model = policy()
    objective = Linear(model)

    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            objective.steps.append([])

    weights = torch.zeros(10, 2)
    weights[:, 1] = torch.arange(1, 11)
    experience = Experience(
        torch.arange(10)[:, None].expand(10, 2), *[weights] * 5, torch.ones(10), *torch.zeros(2, 10).long()
    )
    before = flat(model)
    optimizer = Counting(model.parameters(), lr=1.0)
    trainer(model, objective, optimizer, micro_batch=2, **changes).update(step, experience)
    return objective.steps[:-1], flat(model) - before


def test_minibatches_are_all_rows_once_an_epoch_in_a_new_order() -> None:
    found, _ = linear_update(minibatches=4, inner_epochs=2)
    assert [len(rows) for rows in found] == [3, 3, 2, 2] * 2
    epochs = [[row for rows in half for row in rows] for half in (found[:4], found[4:])]
    assert [sorted(rows) for rows in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert linear_update(minibatches=4, inner_epochs=2)[0] == found
    assert linear_update(1, minibatches=4, inner_epochs=2)[0] != found
    assert linear_update(minibatches=4, inner_epochs=2, seed=1)[0] != found


@pytest.mark.parametrize("minibatches", [2, 3, 10])
def test_minibatch_steps_are_on_average_as_long_as_a_whole_batchs(minibatches: int) -> None:
    _, whole = linear_update()
    _, moved = linear_update(minibatches=minibatches)
    assert torch.allclose(moved / minibatches, whole, atol=1e-5)


def test_micro_batches_keep_a_prompts_rows_together_and_have_no_column_beyond_the_longest() -> None:
    model = policy()
    objective, experience = collected(model)
    shapes: list[tuple[int, ...]] = []
    prompts: list[int] = []
    loss = objective.loss

    def spied(micro: Experience) -> LossTerms:
        assert (micro.weights[:, -1] != 0).any()
        shapes.append(tuple(micro.tokens.shape))
        prompts.extend(micro.prompt.tolist())
        return loss(micro)  # type: ignore[no-any-return]

    objective.loss = spied
    trainer(model, objective, micro_batch=5).update(0, experience)
    assert [rows for rows, _ in shapes] == [4, 4, 4]
    assert prompts == sorted(prompts)
    assert len(set(prompts)) == len(PROMPTS)


def test_rows_without_a_weight_cost_nothing_and_an_empty_batch_moves_nothing() -> None:
    model = policy()
    objective, experience = collected(model)
    half = experience.weights.clone()
    half[::2] = 0
    before = flat(model)
    kept = replace(experience, weights=half)
    metrics = trainer(model, objective, micro_batch=1).update(0, kept)
    assert math.isfinite(metrics["ratio/max"])
    assert metrics["tokens"] == int((half != 0).sum())
    assert not torch.equal(flat(model), before)
    before = flat(model)
    nothing = replace(experience, weights=half * 0)
    metrics = trainer(model, objective, micro_batch=1).update(0, nothing)
    assert metrics == {"grad_norm": 0.0, "lr": 1.0, "tokens": 0.0}
    assert torch.equal(flat(model), before)


def test_more_minibatches_than_rows_are_refused() -> None:
    model = policy()
    objective, experience = collected(model)
    with pytest.raises(ConfigError, match=r"minibatches=13: allowed: at most the 12 rows"):
        trainer(model, objective, minibatches=13).update(0, experience)


# ---- one optimizer step ---------------------------------------------------------------------------------------------


def test_long_gradients_are_scaled_down_and_logged_as_they_were() -> None:
    free, metrics = updated(aggregation.token_mean)
    assert metrics["grad_norm"] == pytest.approx(float(free.norm()), rel=1e-6)
    clipped, others = updated(aggregation.token_mean, grad_clip=1e-3)
    assert others["grad_norm"] == metrics["grad_norm"]
    assert float(clipped.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert torch.allclose(clipped / clipped.norm(), free / free.norm(), atol=1e-9)


def test_the_rate_of_step_s_is_that_of_the_schedule_at_s() -> None:
    schedule = Cosine(total_steps=6, warmup_steps=2, floor_ratio=0.1)
    model = policy()
    groups = [{"params": [p for p in model.parameters() if p.dim() == d]} for d in (1, 2)]
    used: list[list[float]] = []

    class Spied(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            used.append([group["lr"] for group in self.param_groups])

    record = Record()
    objective = grpo(model, single_update=False)
    trainer(
        model,
        objective,
        Spied(groups, lr=9.0),
        lr=0.5,
        schedule=schedule.factor,
        steps=7,
        minibatches=2,
        tracker=record,
    ).fit()
    expected = [0.5 * schedule.factor(step) for step in range(7)]
    assert used == [[rate, rate] for rate in expected for _ in range(2)]
    assert [row["lr"] for row in record.rows] == expected


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_ends_the_run_before_the_weights_move(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = policy()
    objective = grpo(model)
    collect, calls = objective.collect, []

    def late(step: int) -> Any:
        experience, metrics = collect(step)
        calls.append(step)
        if len(calls) == 3:
            experience.advantages[1] = value
        return experience, metrics

    monkeypatch.setattr(objective, "collect", late)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    record = Record()
    seen: list[Tensor] = []
    made = trainer(
        model, objective, optimizer, lr=1e-3, steps=5, tracker=record, micro_batch=4,
        after_step=lambda step: seen.append(flat(model)),
    )  # fmt: skip
    with pytest.raises(TrainingDiverged, match=r"step 3: .*not finite.*lower optim.lr.*\(loss -?(nan|inf), "):
        made.fit()
    assert len(record.rows) == len(seen) == 2
    assert torch.equal(flat(model), seen[-1])
    assert not torch.equal(seen[0], seen[1])
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


# ---- diagnostics ----------------------------------------------------------------------------------------------------


def both(objective: Any, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **changes: Any) -> Any:
    """A trainer of policy and value head."""
    groups: list[dict[str, Any]] = [{"params": list(objective.policy.parameters())}]
    groups += [{"params": list(head.parameters()), "lr": rate} for head, rate in objective.heads.items()]
    return trainer(objective.policy, objective, optimizer(groups, lr=0.1), lr=None, **changes)


@pytest.mark.parametrize("micro_batch", [100, 5])
def test_shares_of_the_gradient_are_those_of_the_terms_norms(micro_batch: int) -> None:
    model = policy().double()
    objective, experience = collected(model, baseline=gae())
    modules = (model, objective.value_head)
    terms = objective.loss(experience).terms
    norms = {name: float(torch.cat([gradient(m, term) for m in modules]).norm()) for name, term in terms.items()}
    before = torch.cat([flat(m) for m in modules])
    metrics = both(objective, micro_batch=micro_batch, diagnose_every=1).update(0, experience)
    after = torch.cat([flat(m) for m in modules])
    shares = {name.removeprefix("grad_share/"): v for name, v in metrics.items() if name.startswith("grad_share/")}
    assert shares == pytest.approx({name: norm / sum(norms.values()) for name, norm in norms.items()}, rel=1e-5)
    assert shares.keys() == {"policy", "kl", "entropy", "value"}
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) > 1e-3
    assert metrics["update_ratio"] == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-5)


def test_the_update_ratio_is_that_of_all_optimizer_steps_and_the_shares_are_of_the_first() -> None:
    model = policy().double()
    objective, experience = collected(model)
    first = both(objective, diagnose_every=1, inner_epochs=1, minibatches=1)
    before = flat(model)
    shares = {k: v for k, v in first.update(0, experience).items() if k.startswith("grad_share/")}
    model.load_state_dict(policy().state_dict())
    nudged(model, 0.05)
    metrics = both(objective, diagnose_every=1, inner_epochs=3).update(0, experience)
    assert {name: metrics[name] for name in shares} == pytest.approx(shares, rel=1e-6)
    assert metrics["update_ratio"] == pytest.approx(float((flat(model) - before).norm() / before.norm()), rel=1e-5)


def test_diagnoses_come_every_so_many_steps_and_change_nothing() -> None:
    found = []
    for every in (None, 3):
        run = Run(7, actor_critic=True)
        run.trainer.diagnose_every = every
        run.trainer.fit()
        found.append(run)
    never, sometimes = found
    assert torch.equal(flat(never.model), flat(sometimes.model))
    assert torch.equal(flat(never.objective.value_head), flat(sometimes.objective.value_head))
    told = [{k for k in row if k.startswith("grad_share/") or k == "update_ratio"} for row in sometimes.record.rows]
    shares = {"grad_share/policy", "grad_share/entropy", "grad_share/value", "update_ratio"}
    assert [row["step"] for row, names in zip(sometimes.record.rows, told, strict=True) if names == shares] == [3, 6]
    assert [step for step, names in enumerate(told) if names] == [3, 6]
    for row, names in zip(sometimes.record.rows, told, strict=True):
        for name in names:
            del row[name]
    assert repr(never.record.timeless()) == repr(sometimes.record.timeless())


# ---- the run --------------------------------------------------------------------------------------------------------


def test_what_happens_at_which_step() -> None:
    model, record = policy(), Record()
    evaluated: list[int] = []
    done: list[tuple[int, int]] = []

    def evaluate(step: int) -> dict[str, float]:
        evaluated.append(step)
        return {"eval/reward": float(step)}

    trainer(
        model, grpo(model), lr=1e-3, steps=5, tracker=record, evaluate=evaluate, eval_every=2,
        after_step=lambda step: done.append((step, len(record.rows))),
    ).fit()  # fmt: skip
    assert evaluated == [0, 2, 4, 5]
    assert done == [(step, step + 1) for step in range(1, 6)]  # each is logged before
    assert [row["step"] for row in record.rows] == list(range(6))
    assert record.rows[0] == {"step": 0, "eval/reward": 0.0}
    assert [row["step"] for row in record.rows if "eval/reward" in row] == evaluated
    names = {"reward/mean", "reward/first", "frac_reward_zero_std", "completions/mean_length", "kl", "kl_coef"}
    names |= {"kl_share", "entropy", "loss", "loss/policy", "grad_norm", "ratio/max", "lr", "tokens_per_s", "step_s"}
    assert all(names <= row.keys() for row in record.rows[1:])
    assert all(isinstance(value, (int, float)) for row in record.rows for value in row.values())


def test_the_gradients_norm_is_the_mean_of_all_optimizer_steps() -> None:
    """At rate 0 each pass has the same."""
    model = policy()
    objective = grpo(model)
    experience, _ = objective.collect(0)
    once, thrice = (trainer(model, objective, lr=0.0, inner_epochs=n).update(0, experience) for n in (1, 3))
    assert thrice["grad_norm"] == pytest.approx(once["grad_norm"])


def test_a_step_is_timed_from_collecting_to_observing() -> None:
    model, record = policy(), Record()
    tokens = int((grpo(model).collect(0)[0].weights != 0).sum())
    began = time.perf_counter()
    trainer(model, grpo(model), tracker=record, steps=1).fit()
    assert 0 < record.rows[0]["step_s"] < time.perf_counter() - began
    assert record.rows[0]["tokens_per_s"] * record.rows[0]["step_s"] == pytest.approx(tokens)


def test_the_wait_for_a_core_is_logged_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.25, None, 0.0])
    monkeypatch.setattr("rookexp.trainer.CoreWait", lambda: SimpleNamespace(share=lambda: next(shares)))
    model, record = policy(), Record()
    trainer(model, grpo(model), tracker=record, steps=3).fit()
    assert [row.get("core_wait") for row in record.rows] == [0.25, None, 0.0]


# What has a state besides: a value head with its moments, a reference that follows, a coefficient that is steered.
ACTOR_CRITIC: dict[str, Any] = {
    "baseline": gae(whiten=True, value_lr=0.02),
    "divergence": kl.TYPES["k1"],
    "kl_placement": "reward",
    "reference_sync": EmaSync(decay=0.5, every=2),
    "overlong_buffer": 3,
}


class Run:
    """A run with everything that has a state: AdamW, a coefficient, a moving task, several updates a step."""

    def __init__(self, steps: int, *, loud: bool = True, actor_critic: bool = False) -> None:
        self.model = policy()
        self.record = Record()
        self.completions: list[Sequence[Any]] = []
        changes: dict[str, Any] = {
            "coefficient": coefficients.WarmupKL(coef=0.3, warmup=3, unit="steps", shape="linear"),
            "baseline": GroupMean(std="sample", std_eps=1e-4, std_floor=0.05),
            "divergence": kl.TYPES["symmetric"],
        }
        if actor_critic:
            bounds = {"error_clip": 0.5, "horizon": 12, "min_coef": 0.1, "max_coef": 0.9}
            changes = ACTOR_CRITIC | {"coefficient": coefficients.ProportionalKL(coef=0.3, target_nats=0.01, **bounds)}
        self.objective = grpo(
            self.model,
            task=Ask(PROMPTS, moving=True),
            single_update=False,
            on_completions=lambda step, rows: self.completions.append(list(rows)) if loud else None,
            **changes,
        )
        groups: list[dict[str, Any]] = [{"params": list(self.model.parameters())}]
        groups += [{"params": list(head.parameters()), "lr": rate} for head, rate in self.objective.heads.items()]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.1)
        prompts = Ask(PROMPTS).select(0)
        parts: dict[str, Any] = {"tokenizer": Letters(), "prompts": prompts, "reward": Vowels(), "max_new_tokens": 4}
        greedy = Greedy(policy=self.model, autocast=torch.no_grad, own_lengths={}, **parts)
        self.trainer = trainer(
            self.model,
            self.objective,
            self.optimizer,
            lr=None,
            schedule=Cosine(total_steps=5, warmup_steps=1, floor_ratio=0.0).factor,
            steps=steps,
            inner_epochs=2,
            minibatches=2,
            micro_batch=4,
            grad_clip=0.5,
            tracker=self.record if loud else Tracker(),
            evaluate=greedy if loud else None,
            eval_every=2,
        )


def test_logging_changes_nothing() -> None:
    loud, silent = Run(4), Run(4, loud=False)
    start = flat(loud.model)
    loud.trainer.fit()
    silent.trainer.fit()
    assert len(loud.record.rows) == 5
    assert len(loud.completions) == 4
    assert torch.equal(flat(loud.model), flat(silent.model))
    assert not torch.equal(flat(loud.model), start)


@pytest.mark.parametrize(("killed", "actor_critic"), [(1, False), (4, False), (1, True), (3, True)])
def test_killed_and_resumed_equals_straight_bitwise(tmp_path: Path, killed: int, actor_critic: bool) -> None:
    straight, first, second = (Run(steps, actor_critic=actor_critic) for steps in (5, killed, 5))
    straight.trainer.fit()
    first.trainer.schedule = straight.trainer.schedule
    first.trainer.fit()
    folder = checkpoint.snapshot(
        tmp_path,
        step=killed,
        model=first.model,
        tokenizer_file=None,
        optimizer=first.optimizer,
        modules=first.objective.modules,
        keep=1,
    )()
    checkpoint.restore(folder, model=second.model, optimizer=second.optimizer, modules=second.objective.modules)
    second.trainer.fit(killed)
    assert torch.equal(flat(second.model), flat(straight.model))
    for name, module in straight.objective.modules.items():
        ours, theirs = second.objective.modules[name].state_dict(), module.state_dict()
        assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    assert second.record.timeless() == straight.record.timeless()[killed + 1 :]
    assert repr(second.completions) == repr(straight.completions[killed:])  # NaN is not equal to itself
    coefs = [row["kl_coef"] for row in straight.record.rows[1:]]
    if not actor_critic:
        assert coefs == pytest.approx([0, 0.1, 0.2, 0.3, 0.3])
        return
    assert straight.objective.modules.keys() == {"baseline", "coefficient", "reference", "value_head"}
    assert len(set(coefs)) > 2, "else the coefficient has no state worth saving"
    reference: Any = straight.objective.reference
    assert not torch.equal(flat(reference), flat(policy())), "else the reference has none"
    assert flat(straight.objective.value_head).any()
    rates = [group["lr"] for group in straight.optimizer.param_groups]
    assert rates[1] / rates[0] == pytest.approx(0.02 / 3e-3)  # the schedule moves both


def test_two_runs_are_equal_and_another_seed_is_not() -> None:
    first, second, other = Run(2), Run(2), Run(2)
    other.objective.source.seed = 1
    for run in (first, second, other):
        run.trainer.fit()
    assert first.record.timeless() == second.record.timeless()
    assert torch.equal(flat(first.model), flat(second.model))
    assert not torch.equal(flat(first.model), flat(other.model))


def test_a_diagnosed_step_keeps_one_gradient_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    made: list[weakref.ref[Tensor]] = []
    alive, of_torch = [], torch.autograd.grad

    def grad(*args: Any, **options: Any) -> tuple[Tensor, ...]:
        alive.append(sum(ref() is not None for ref in made))
        found = of_torch(*args, **options)
        made.extend(map(weakref.ref, found))
        return found

    monkeypatch.setattr(torch.autograd, "grad", grad)
    sums: dict[str, list[Tensor]] = {}
    for _ in range(2):
        terms = {name: scale * sum((p**2).sum() for p in parameters) for name, scale in (("a", 1), ("b", 2), ("c", 3))}
        _add_gradients(sums, LossTerms(terms, {}), parameters)
    # The first sums are the gradients themselves; a later gradient lives no longer than its addition.
    assert alive == [0, 2, 4, 6, 4, 2]
    assert [float(of[0][0]) for of in sums.values()] == [4, 8, 12]
