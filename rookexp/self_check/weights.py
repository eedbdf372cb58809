"""Checks that the trained model can learn: no noise in it, enough precision, and an update that moves it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from rookexp.self_check.rehearsal import Finding, Rehearsal, Skipped, altered, gap

SAME = 1e-5  # two forwards of the same tokens differ by less
SMALL_STEP = 1e-3  # norm of a step that is small beside any weights
ROUNDED = 1e-6  # nats; a change below it says nothing
SAME_GRADIENT = 1e-3  # relative; rounding in fp32 is below
SURE_OF_ALL = "the policy is sure of every token that it said, which leaves next to no gradient to look at"
FELT_GRADIENT, MOVED_SHARE = 1e-6, 0.99  # the share of weights above that gradient that must move

NAMED = 3  # tensors without a gradient


def dropout(case: Rehearsal) -> str | Finding:
    """No module drops activations, and two forwards of the same tokens are equal."""
    models: tuple[object, ...] = (case.policy, case.own.reference)
    active = [
        f"{name} (p={module.p:g})"
        for model in models
        if isinstance(model, nn.Module)
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 and module.training
    ]
    tokens = torch.tensor([case.prompts[-1].ids], device=case.device)
    with torch.no_grad():
        plain = float((case.policy.hidden(tokens) - case.policy.hidden(tokens)).abs().max())
    error = max(plain, gap(case.trained_on, case.trained(case.objective(), case.sampled)))
    if active or error > SAME:
        seen = f"{len(active)} active dropout modules {active[:2]}, two forwards of the same rows differ by {error:.2g}"
        return Finding(seen, "dropout left on in the policy", "set its p to 0 or call model.eval() when it is loaded.")
    return f"no active dropout module; two forwards of the same rows differ by {error:.0g}"


def master_weights(case: Rehearsal) -> str | Finding:
    """The tensors that the optimizer moves have at least the precision of fp32, and they are the whole policy."""
    held = case.subject.trainer.parameters
    low = [p for p in held if p.element_size() < 4]
    if low:
        seen = f"{len(low)} of {len(held)} trained tensors are {str(low[0].dtype).removeprefix('torch.')}"
        cause = "a model loaded in half precision: bf16 master weights round small updates away"
        fix = "load the model in fp32; hardware.precision=bf16 lowers the products alone."
        return Finding(seen, cause, fix)
    known = set(map(id, held))
    left_out = [p for p in case.policy.parameters() if id(p) not in known or not p.requires_grad]
    frozen = sum(not p.requires_grad for p in left_out)
    if frozen:
        seen = f"{frozen} of the policy's tensors have requires_grad=False"
        return Finding(seen, "a part of the model frozen by mistake", "call requires_grad_(True) on the policy.")
    if left_out:
        seen = f"{len(left_out)} of the policy's tensors can be trained and are not in the optimizer"
        return Finding(seen, "an optimizer made from another copy of the model", "make it from the model in use.")
    return f"{len(held)} tensors of {held[0].dtype} and {sum(p.numel() for p in held)} weights, all in the optimizer"


def policy_loss(case: Rehearsal) -> str | Finding | Skipped:
    """A small step of a copy down the policy loss makes a row with advantage 1 likelier, one with -1 less likely.

    Of four known rows, two of either kind, no token is pushed against its own row's advantage.
    """
    if wrong := _pushed_wrongly(case):
        return wrong
    changes = {}
    first = case.sampled.rows(torch.tensor([0], device=case.device), len(case.hidden[0]))
    for sign, which in ((1.0, "better"), (-1.0, "worse")):
        twin = copy.deepcopy(case.policy)
        objective = altered(case.objective(), policy=twin)
        rows = replace(first, advantages=sign * (first.weights != 0))
        weights = rows.weights[rows.weights != 0]
        before = case.trained(objective, rows)
        loss = objective.loss(rows).terms["policy"]
        parameters = [p for p in twin.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else [None]
        norm = math.hypot(*(float(g.norm()) for g in found if g is not None))
        if not norm and case.sure:
            return Skipped(SURE_OF_ALL)
        if not norm:
            seen = f"the policy loss has no gradient where a completion was {which} than expected"
            return Finding(seen, "a loss cut off from the policy", "look for detach(), no_grad() and clamps in it.")
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter.sub_(0.0 if gradient is None else gradient * (SMALL_STEP / norm))
        changes[which] = float(((case.trained(objective, rows) - before) * weights).sum())
        if changes[which] * sign < -ROUNDED:
            seen = (
                f"a step down the policy loss changes the log-probs of what was {which} by {changes[which]:+.2g} nats"
            )
            return Finding(seen, "a policy loss of the wrong sign", "minimise -ratio * advantage.")
    told = ", ".join(f"{change:+.0e} nats where it was {which}" for which, change in changes.items())
    return f"a small step down the policy loss changes what was said by {told}"


def _pushed_wrongly(case: Rehearsal) -> Finding | None:
    """The finding for a token of a ragged batch that the loss pushes against its row's advantage."""
    row = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 3, 3], device=case.device)
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0], device=case.device)[row]
    old = -torch.linspace(0.1, 3.0, len(row), device=case.device)
    logprobs = old.clone().requires_grad_()
    loss = case.own.policy_loss.per_token(logprobs, old, advantages, row).sum()
    (gradient,) = torch.autograd.grad(loss, logprobs, allow_unused=True) if loss.requires_grad else (None,)
    if gradient is None:
        return None  # that, and a wrong sign everywhere, the step of `policy_loss` finds
    wrong = gradient * advantages > 0
    if wrong.all() or not wrong.any():
        return None
    cause = "advantages that reach other tokens than their own: flipped, shifted or averaged over rows"
    seen = f"{int(wrong.sum())} of {len(row)} tokens of known rows are pushed against their row's advantage"
    return Finding(seen, cause, "multiply each token's ratio by the advantage at the same place.")


def update(case: Rehearsal) -> str | Finding | Skipped:
    """One optimizer step at the largest rate of the run moves 99 % of the weights with a gradient above 1e-6.

    That gradient is the same whatever the micro-batch. Tensors without any are named: those of a dead layer, or of one
    that begins at 0, as an added block may. All on copies, in fp32, with an advantage of 1 for every
    completion whatever its reward.
    """
    trainer, source = case.subject.trainer, case.own.source
    shared = [source.reward, source.task, source.tokenizer, case.own.reference]
    kept = {id(part): part for part in shared if part is not None}  # what is not copied
    objective, optimizer = copy.deepcopy((case.objective(), trainer.optimizer), kept)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    whole: list[Tensor] = []  # the gradient of all rows together, as it was clipped
    factor = max(map(trainer.schedule, range(trainer.steps)))
    twin = altered(
        trainer, policy=objective.policy, objective=objective, optimizer=optimizer, parameters=parameters,
        schedule=lambda step: factor, inner_epochs=1, minibatches=1, diagnose_every=None,
    )  # fmt: skip
    better = replace(case.sampled, advantages=(case.sampled.weights != 0).float())
    watched = optimizer.register_step_pre_hook(lambda *_: whole.extend(map(_gradient, parameters)))
    norm = altered(twin, micro_batch=len(better.tokens)).update(case.subject.step, better)["grad_norm"]
    watched.remove()
    felt = [gradient.abs() > FELT_GRADIENT for gradient in whole]
    moved = sum(int(((p != old) & own).sum()) for p, old, own in zip(parameters, before, felt, strict=True))
    count = sum(int(own.sum()) for own in felt)
    if not count and case.sure:
        return Skipped(SURE_OF_ALL)
    if not count:
        seen = f"no weight has a gradient above {FELT_GRADIENT:g}"
        return Finding(seen, "a loss cut off from the policy", "look for detach() and no_grad in the training forward.")
    rate = trainer.base_lrs[0] * factor
    total = sum(p.numel() for p in parameters)
    share = f"{100 * moved / count:.1f} % of the {count} weights of {total} that have a gradient"
    seen = f"an update at the largest rate {rate:g} moves {share}"
    if moved < MOVED_SHARE * count:
        cause = "a learning rate too small for the weights' precision"
        return Finding(seen, cause, "raise optim.lr, or shorten its warm-up.")
    with torch.no_grad():
        for parameter, old in zip(parameters, before, strict=True):
            parameter.copy_(old)
    turned: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: turned.append(_turn(whole, parameters)))
    half = (len(better.tokens) + 1) // 2
    in_two = altered(twin, micro_batch=half).update(case.subject.step, better)["grad_norm"]  # before it is clipped
    error = max(abs(in_two / norm - 1), *turned)
    if not error <= SAME_GRADIENT:
        seen = f"the gradient of two micro-batches is {error:.1%} off that of one"
        cause = "a loss that is averaged anew in each micro-batch"
        return Finding(seen, cause, "give each token its weight in the whole step, and add the micro-batches up.")
    names = {id(p): name for name, p in cast("nn.Module", objective.policy).named_parameters()}
    still = [names.get(id(p), "the value head") for p, own in zip(parameters, felt, strict=True) if not own.any()]
    more = f" and {len(still) - NAMED} more" if len(still) > NAMED else ""
    without = f"; none has one in {', '.join(still[:NAMED])}{more}" if still else ""
    return f"{seen}, the same in two micro-batches{without}"


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()


def _turn(gradient: Sequence[Tensor], parameters: Sequence[Tensor]) -> float:
    """How far the direction of the parameters' gradient is from that of `gradient`: their distance, each at norm 1."""
    other = [parameter.grad for parameter in parameters]
    one, two = (_norm([g for g in each if g is not None]) for each in (gradient, other))
    pairs = zip(gradient, other, strict=True)
    return math.hypot(*(float((g / one - (0 if h is None else h / two)).norm()) for g, h in pairs))


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(float(tensor.norm()) for tensor in tensors))
