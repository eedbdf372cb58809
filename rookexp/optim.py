"""Optimizers: their settings, and how they are built from them; only the trainer calls one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import torch
from annotated_types import Ge, Gt, Len, Lt
from jaxtyping import Float
from torch import Tensor, nn

from rookexp.schedule import Schedule

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)  # coefficients of the quintic; Jordan et al. 2024
NEWTON_SCHULZ_STEPS = 5
WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")  # methods that torch wraps, besides step

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def uncompiled(optimizer: type[Kind]) -> type[Kind]:
    """A subclass of the same name, without torch's wrappers, for runs that compile nothing.

    The wrappers keep the methods out of compiled code, and for that their first call imports the compiler, sympy
    included: 2 s before the first step.
    """
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in WRAPPED}
    methods["step"] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return cast("type[Kind]", type(optimizer.__name__, (optimizer,), methods))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay. Source: Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2."""

    lr: Annotated[float, Gt(0)]  # base learning rate; the schedule multiplies it
    betas: Annotated[Sequence[Annotated[float, Ge(0), Lt(1)]], Len(2, 2)]  # decay of the two moments
    eps: Annotated[float, Gt(0)]  # added to the root of the second moment
    weight_decay: Annotated[float, Ge(0)]  # of matrices and embeddings; biases and norms never decay
    grad_clip: Annotated[float, Gt(0)]  # largest gradient norm; longer gradients are scaled down to it
    schedule: Schedule  # the factor of the base rate over the steps

    def optimizer(self, model: nn.Module, heads: Mapping[nn.Module, float]) -> torch.optim.Optimizer:
        """A new optimizer of the trainable parameters; fused if the device has such a kernel.

        `heads` are trained beside the model, each at its own base rate and without decay.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        groups += [{"params": list(head.parameters()), "weight_decay": 0.0, "lr": lr} for head, lr in heads.items()]
        fused = all(p.device.type in ("cuda", "cpu") for p in parameters)
        betas = (float(self.betas[0]), float(self.betas[1]))  # torch refuses a whole number
        return uncompiled(torch.optim.AdamW)(groups, lr=self.lr, betas=betas, eps=self.eps, fused=fused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Muon(AdamW):
    """Muon for the matrices inside the blocks, AdamW at the same rate for all else (embeddings, biases, norms, heads).

    Source: Jordan et al. 2024 (kellerjordan.github.io/posts/muon); scaled as in Liu et al. 2025 (arXiv 2502.16982), so
    that an update is as long as AdamW's usually is and one learning rate suits both.
    """

    momentum: Annotated[float, Ge(0), Lt(1)]  # decay of the gradients' running sum, used with Nesterov's lookahead

    def optimizer(self, model: nn.Module, heads: Mapping[nn.Module, float]) -> torch.optim.Optimizer:
        """A new optimizer of the trainable parameters; `heads` as in AdamW."""
        inside = {m.weight for m in model.modules() if isinstance(m, nn.Linear)}
        groups = AdamW.optimizer(self, model, heads).param_groups
        matrices = [p for p in groups[0]["params"] if p in inside]
        groups[0]["params"] = [p for p in groups[0]["params"] if p not in inside]
        muon = {"params": matrices, "lr": self.lr, "weight_decay": self.weight_decay, "momentum": self.momentum}
        return MuonAdamW([muon, *groups])


@uncompiled
class MuonAdamW(torch.optim.Optimizer):
    """Muon for the first group, AdamW for the others, with one state and one set of groups.

    torch.optim.Muon would do for the first, but iterates in bf16, which takes 30 times as long as float32 on a CPU
    that has no bf16 products.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        self._adamw = uncompiled(torch.optim.AdamW)([torch.empty(0)])  # only its step is used

    def __getstate__(self) -> dict[str, Any]:
        """The state that copies are made from; the base class lists only its own attributes."""
        return {**super().__getstate__(), "_adamw": self._adamw}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; a parameter whose gradient is None is skipped."""
        muon, *others = self.param_groups
        for parameter in muon["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            momentum = state.setdefault("momentum", torch.zeros_like(parameter))
            momentum.mul_(muon["momentum"]).add_(parameter.grad)
            update = orthogonalised(parameter.grad + muon["momentum"] * momentum)
            parameter.mul_(1 - muon["lr"] * muon["weight_decay"])
            parameter.sub_(update, alpha=muon["lr"] * 0.2 * max(update.shape) ** 0.5)
        self._adamw.state, self._adamw.param_groups = self.state, others  # again, as load_state_dict replaces them
        self._adamw.step()


def orthogonalised(matrix: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """The matrix with singular values near 1 (0.7 to 1.2; tiny ones less): Newton-Schulz steps of an odd quintic."""
    a, b, c = NEWTON_SCHULZ
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.T
