"""Whether the model that is trained can learn: no noise in it, enough precision, and an update that moves it."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from rookexp.rehearsal import Finding, Rehearsal, altered

SAME = 1e-5  # two forwards of the same tokens differ by less
FELT_GRADIENT, MOVED_SHARE = 1e-6, 0.99  # of the weights with such a gradient so many must move


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
        error = float((case.policy.hidden(tokens) - case.policy.hidden(tokens)).abs().max())
    if active or error > SAME:
        seen = f"{len(active)} active dropout modules {active[:2]}, two forwards of one prompt differ by {error:.2g}"
        return Finding(seen, "dropout left on in the policy", "set its p to 0 or call model.eval() when it is loaded.")
    return f"no active dropout module; two forwards of one prompt differ by {error:.0g}"


def master_weights(case: Rehearsal) -> str | Finding:
    """What the optimizer moves has at least the precision of fp32, and it is all that can be trained."""
    held = case.subject.trainer.parameters
    low = [p for p in held if p.element_size() < 4]
    if low:
        seen = f"{len(low)} of {len(held)} trained tensors are {str(low[0].dtype).removeprefix('torch.')}"
        cause = "a model loaded in half precision: bf16 master weights round small updates away"
        fix = "load the model in fp32; hardware.precision=bf16 lowers the products alone."
        return Finding(seen, cause, fix)
    known = set(map(id, held))
    left_out = [p for p in case.policy.parameters() if p.requires_grad and id(p) not in known]
    if left_out:
        seen = f"{len(left_out)} of the policy's tensors can be trained and are not in the optimizer"
        return Finding(seen, "an optimizer made from another copy of the model", "make it from the model in use.")
    return f"{len(held)} tensors of {held[0].dtype} and {sum(p.numel() for p in held)} weights, all in the optimizer"


def update(case: Rehearsal) -> str | Finding:
    """One optimizer step at the largest rate of the run moves 99 % of the weights with a gradient above 1e-6.

    Of copies: every completion counts as better than expected, whatever its reward.
    """
    trainer, source = case.subject.trainer, case.own.source
    shared = [source.reward, source.task, source.tokenizer, case.own.reference]
    kept = {id(part): part for part in shared if part is not None}  # what is not copied
    objective, optimizer = copy.deepcopy((case.objective(case.own.autocast), trainer.optimizer), kept)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before: list[tuple[Tensor, Tensor]] = []  # the weights, and which of them feel a gradient
    optimizer.register_step_pre_hook(
        lambda *_: before.extend((p.detach().clone(), _felt(p)) for p in parameters)  # after clipping, before moving
    )
    factor = max(map(trainer.schedule, range(trainer.steps)))
    twin = altered(
        trainer, policy=objective.policy, objective=objective, optimizer=optimizer, parameters=parameters,
        schedule=lambda step: factor, inner_epochs=1, minibatches=1, diagnose_every=None,
    )  # fmt: skip
    weighted = (case.sampled.weights != 0).float()
    twin.update(case.subject.step, replace(case.sampled, advantages=weighted))
    moved = sum(int(((p != old) & felt).sum()) for p, (old, felt) in zip(parameters, before, strict=True))
    count = sum(int(felt.sum()) for _, felt in before)
    if not count:
        seen = f"no weight has a gradient above {FELT_GRADIENT:g}"
        return Finding(seen, "a loss cut off from the policy", "look for detach() and no_grad in the training forward.")
    rate = trainer.base_lrs[0] * factor
    seen = f"an update at the largest rate {rate:g} moves {moved / count:.1%} of the {count} weights with a gradient"
    if moved < MOVED_SHARE * count:
        return Finding(seen, "a learning rate too small for the weights' precision", "raise optim.lr.")
    return seen


def _felt(parameter: Tensor) -> Tensor:
    """Where the gradient is large enough to have to move the weight."""
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return gradient.abs() > FELT_GRADIENT
