"""TRL's own GRPO loss and this package's on the same log-probs: value and gradient, where the formulas agree and not.

TRL's method runs on a trainer that has only what the method reads; no model, no data. Where the two differ, a test
says in what, so that a change on either side is seen.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixture_t import ADVANTAGES, MAX_NEW_TOKENS, Batch, fixture_t
from torch import Tensor

from rookexp import kl, losses, ops
from rookexp.aggregation import constant_length, sequence_mean, sequence_sum, token_mean

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

EVEN, WIDE = {"clip_low": 0.2, "clip_high": 0.2}, {"clip_low": 0.2, "clip_high": 0.28}
ENTROPY = 0.05  # coefficient
BETA = 0.1


@pytest.fixture(scope="module")
def trl() -> Any:
    """TRL's trainer class."""
    pytest.importorskip("trl", reason="trl comes with the extra `test`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        from trl import GRPOTrainer
    return GRPOTrainer


def ragged() -> Batch:
    """Nine rows of 1 to 6 tokens in float64; ratios up to 1.5 either way, advantages of both signs and 0."""
    draw = torch.Generator().manual_seed(7)
    mask = torch.arange(6) < torch.tensor([1, 6, 3, 2, 5, 4, 1, 6, 2])[:, None]
    old = -3 * torch.rand(9, 6, generator=draw, dtype=torch.float64)
    logprobs = old + 0.8 * (torch.rand(9, 6, generator=draw, dtype=torch.float64) - 0.5)
    advantages = torch.randn(9, generator=draw, dtype=torch.float64)
    advantages[4] = 0.0
    return Batch(logprobs * mask, old * mask, advantages[:, None] * mask, mask)


BATCHES = {"fixture T": fixture_t(), "ragged": ragged()}


def entropies(batch: Batch) -> Tensor:
    """Some entropy of each token, a function of its log-prob, so that it has a gradient."""
    return -batch.logprobs * batch.logprobs.exp()


def references(batch: Batch) -> Tensor:
    """Log-probs of a reference model."""
    return batch.old - 0.3 * torch.cos(7 * batch.old)


def theirs(trainer: Any, batch: Batch, loss_type: str, **settings: Any) -> Tensor:
    """TRL's loss of a batch that is one optimizer step and one micro-batch."""
    args = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
    args |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    args |= {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
    args = {name: settings.pop(name, value) for name, value in args.items()}
    own = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, "entropy_coef": 0.0}
    own |= {"importance_sampling_level": "token"} | settings
    given = SimpleNamespace(
        **own,
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(**args),
        loss_type=loss_type,
        max_completion_length=MAX_NEW_TOKENS,
        _entropy_bonus_enabled=own["entropy_coef"] > 0,
        use_adaptive_entropy=False,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        get_gamma_weights=trainer.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *_, **__: (batch.logprobs, entropies(batch), None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        accelerator=SimpleNamespace(
            num_processes=1, sync_gradients=True, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
    )
    mask = batch.mask.int()
    inputs = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": batch.advantages.sum(1) / batch.mask.sum(1).clamp(min=1),
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": references(batch),
        "num_items_in_batch": batch.mask.sum(),
    }
    loss: Tensor = trainer._compute_loss(given, SimpleNamespace(training=True), inputs)
    return loss


def ours(
    batch: Batch,
    loss: losses.PolicyLoss,
    aggregation: Any,
    *,
    divergence: kl.Sampled | None = None,
    entropy: bool = False,
) -> Tensor:
    """The loss as the objective adds it up."""
    weights = aggregation(batch.mask, max_new_tokens=MAX_NEW_TOKENS)[batch.mask]
    logprobs, old, *_ = batch.flat()
    total = ops.weighted_sum(loss(*batch.flat()), weights)
    if divergence is not None:
        penalty = divergence.formula(logprobs, references(batch)[batch.mask], old)
        total = total + BETA * ops.weighted_sum(penalty, weights)
    if entropy:
        total = total - ENTROPY * ops.weighted_sum(entropies(batch)[batch.mask], weights)
    return total


def of(name: str) -> Batch:
    """A batch whose log-probs want a gradient."""
    batch = BATCHES[name]
    return Batch(batch.logprobs.clone().requires_grad_(), batch.old, batch.advantages, batch.mask)


def value_and_gradient(loss: Tensor, batch: Batch) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    return torch.cat([loss.detach()[None], gradient[batch.mask]])


GSPO = {"importance_sampling_level": "sequence"}
AGREE: dict[str, tuple[dict[str, Any], losses.PolicyLoss, Any]] = {
    "grpo": ({"loss_type": "grpo"}, losses.Clip(**EVEN), sequence_mean),
    "grpo, clip-higher": ({"loss_type": "grpo", "epsilon_high": 0.28}, losses.Clip(**WIDE), sequence_mean),
    "grpo, two-sided": ({"loss_type": "grpo", "delta": 1.3}, losses.TwoSided(**EVEN, delta=1.3), sequence_mean),
    "dr_grpo": ({"loss_type": "dr_grpo"}, losses.Clip(**EVEN), constant_length),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, losses.Clip(**WIDE), token_mean),
    "gspo": ({"loss_type": "grpo", **GSPO}, losses.Gspo(**EVEN), sequence_mean),
    "luspo": ({"loss_type": "luspo", **GSPO}, losses.Luspo(**EVEN), sequence_mean),
    "luspo, as weights": ({"loss_type": "luspo", **GSPO}, losses.Gspo(**EVEN), sequence_sum),
    # TRL's epsilon_high is the bound itself, this package's clip_high what it is above 1.
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.2}, losses.Cispo(clip_low=None, clip_high=0.2), token_mean),
    "sapo": ({"loss_type": "sapo"}, losses.Sapo(tau_positive=1.0, tau_negative=1.05), sequence_mean),
    "vespo": (
        {"loss_type": "vespo"},
        losses.Vespo(k_positive=2.0, lambda_positive=3.0, k_negative=3.0, lambda_negative=2.0),
        token_mean,
    ),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("case", AGREE)
def test_where_the_formulas_agree_so_do_value_and_gradient(trl: Any, case: str, name: str) -> None:
    settings, loss, aggregation = AGREE[case]
    batch = of(name)
    mine = value_and_gradient(ours(batch, loss, aggregation), batch)
    trls = value_and_gradient(theirs(trl, batch, **settings), batch)
    assert torch.allclose(mine, trls, rtol=0, atol=1e-12)
    assert mine[1:].abs().max() > 1e-3


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(("corrected", "word"), [(False, "k3"), (True, "ratio_k3")])
@pytest.mark.parametrize("case", ["grpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo"])
def test_the_penalty_agrees_with_and_without_the_ratio(
    trl: Any, case: str, corrected: bool, word: str, name: str
) -> None:
    settings, loss, aggregation = AGREE[case]
    batch, divergence = of(name), kl.TYPES[word]
    assert isinstance(divergence, kl.Sampled)
    mine = value_and_gradient(ours(batch, loss, aggregation, divergence=divergence), batch)
    trls = value_and_gradient(theirs(trl, batch, **settings, beta=BETA, use_bias_correction_kl=corrected), batch)
    assert torch.allclose(mine, trls, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BATCHES)
def test_the_entropy_bonus_agrees_under_token_mean_alone(trl: Any, name: str) -> None:
    """TRL's is a mean over tokens whatever the loss; here every term has the weights of the aggregation."""
    for case, same in (("dapo", True), ("grpo", False), ("dr_grpo", False)):
        settings, loss, aggregation = AGREE[case]
        batch = of(name)
        mine = value_and_gradient(ours(batch, loss, aggregation, entropy=True), batch)
        trls = value_and_gradient(theirs(trl, batch, **settings, entropy_coef=ENTROPY), batch)
        assert torch.allclose(mine, trls, rtol=0, atol=1e-12) is same, case


@pytest.mark.parametrize("name", BATCHES)
def test_luspos_penalty_differs(trl: Any, name: str) -> None:
    """TRL sums a row's penalty like its loss; the factor n of this package's Luspo is in the policy loss alone."""
    batch = of(name)
    settings = {"loss_type": "luspo", **GSPO, "beta": BETA}
    divergence = kl.TYPES["k3"]
    assert isinstance(divergence, kl.Sampled)
    trls = value_and_gradient(theirs(trl, batch, **settings), batch)
    factor = value_and_gradient(ours(batch, losses.Luspo(**EVEN), sequence_mean, divergence=divergence), batch)
    weights = value_and_gradient(ours(batch, losses.Gspo(**EVEN), sequence_sum, divergence=divergence), batch)
    assert not torch.allclose(factor, trls, rtol=0, atol=1e-3)
    assert torch.allclose(weights, trls, rtol=0, atol=1e-12)  # type this for TRL's


@pytest.mark.parametrize("name", BATCHES)
def test_the_ratio_that_weights_gspos_penalty_differs(trl: Any, name: str) -> None:
    """TRL weights k3 by the row's ratio there, this package by the token's own, which is the unbiased one."""
    batch, divergence = of(name), kl.TYPES["ratio_k3"]
    assert isinstance(divergence, kl.Sampled)
    mine = value_and_gradient(ours(batch, losses.Gspo(**EVEN), sequence_mean, divergence=divergence), batch)
    settings = {"loss_type": "grpo", **GSPO, "beta": BETA, "use_bias_correction_kl": True}
    assert not torch.allclose(mine, value_and_gradient(theirs(trl, batch, **settings), batch), rtol=0, atol=1e-4)


def test_bnpo_is_token_mean_in_one_micro_batch_and_something_else_in_two(trl: Any) -> None:
    batch = of("fixture T")
    whole = value_and_gradient(theirs(trl, batch, "bnpo"), batch)
    mine = value_and_gradient(ours(batch, losses.Clip(**EVEN), token_mean), batch)
    assert torch.allclose(whole, mine, rtol=0, atol=1e-12)
    parts = [theirs(trl, batch.rows(torch.tensor(rows)), "bnpo") / 2 for rows in ([0, 2], [1, 3])]
    cut = value_and_gradient(parts[0] + parts[1], batch)
    assert not torch.allclose(cut, mine, rtol=0, atol=1e-3)


def test_a_row_without_tokens_counts_in_both_denominators(trl: Any) -> None:
    """A truncated row that is masked: TRL's mean over rows and its constant length still have it."""
    batch = of("fixture T")
    mask = batch.mask.clone()
    mask[1] = False
    masked = Batch(batch.logprobs, batch.old, torch.tensor(ADVANTAGES)[:, None] * mask, mask)
    settings = {"grpo": sequence_mean, "dr_grpo": constant_length, "dapo": token_mean}
    for loss_type, aggregation in settings.items():
        mine = value_and_gradient(ours(masked, losses.Clip(**EVEN), aggregation), masked)
        trls = value_and_gradient(theirs(trl, masked, loss_type), masked)
        assert torch.allclose(mine, trls, rtol=0, atol=1e-12), loss_type
