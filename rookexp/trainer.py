"""The loop: collect, update, observe, evaluate, log, save. The only place that calls backward and the optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rookexp import ops
from rookexp.core_wait import CoreWait
from rookexp.errors import ConfigError, TrainingDiverged
from rookexp.track import Tracker
from rookexp.types import Experience, LossTerms, Policy

LARGEST = "/max"  # ends the name of a metric that is the largest value, not the mean


@runtime_checkable
class Objective(Protocol):
    """What is trained: how experience is collected and what an update minimises."""

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Stateful parts (baseline, coefficient) that a checkpoint carries."""

    def collect(self, step: int) -> tuple[Experience, dict[str, float]]:
        """The step's experience and the metrics of collecting it."""

    def loss(self, micro: Experience) -> LossTerms:
        """The differentiable loss of some rows; adds up over micro-batches."""

    def observe(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Updates controllers, once a step; returns their metrics."""


@dataclass(kw_only=True, eq=False)
class Trainer:
    """Runs `steps` steps; every random choice derives from the seed and the step, so any step can be resumed."""

    policy: Policy
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]  # the factor of the base rates in a step
    steps: int
    inner_epochs: int
    minibatches: int
    micro_batch: int
    grad_clip: float
    seed: int
    tracker: Tracker
    evaluate: Callable[[int], dict[str, float]] | None
    eval_every: int
    diagnose_every: int | None
    after_step: Callable[[int], None] | None  # called when a step is logged

    def __post_init__(self) -> None:
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]

    def fit(self, start: int = 0) -> None:
        """Trains from step `start` to the end; metrics logged at s are of the state after s steps, so 0 is the start.

        Raises: TrainingDiverged at the first non-finite gradient, with the weights as they were before it.
        """
        if start == 0 and self.evaluate is not None:
            self.tracker.log(0, self.evaluate(0))
        wait = CoreWait()
        for step in range(start, self.steps):
            began = time.perf_counter()
            experience, metrics = self.objective.collect(step)
            metrics |= self.update(step, experience)
            metrics |= self.objective.observe(step, metrics)
            seconds = time.perf_counter() - began
            metrics |= {"step_s": seconds, "tokens_per_s": metrics.pop("tokens") / seconds}
            if (share := wait.share()) is not None:
                metrics["core_wait"] = share
            done = step + 1
            if self.evaluate is not None and (done == self.steps or done % self.eval_every == 0):
                metrics |= self.evaluate(done)
            self.tracker.log(done, metrics)
            if self.after_step is not None:
                self.after_step(done)

    def update(self, step: int, experience: Experience) -> dict[str, float]:
        """`inner_epochs` passes over the experience, `minibatches` optimizer steps each, all at the step's lr.

        Returns the loss, its terms and grad_norm (before clipping) averaged over those optimizer steps; of values per
        token the mean over all weighted tokens (the largest, if the name ends in /max), whatever their weights and the
        split into (micro-)batches; and `tokens`, the number of weighted tokens. In every `diagnose_every`-th step also
        each term's share of the gradient (see `_shares`), and update_ratio, the norm of the step's change of all
        weights over the norm of the weights.
        Raises: TrainingDiverged; ConfigError for more minibatches than rows.
        """
        factor = self.schedule(step)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * factor
        diagnosed = self.diagnose_every is not None and (step + 1) % self.diagnose_every == 0
        before = [p.detach().clone() for p in self.parameters] if diagnosed else None
        weighted = experience.weights != 0
        last = (weighted * torch.arange(1, weighted.shape[1] + 1, device=weighted.device)).amax(1)
        ends, counts, prompts = torch.stack([last, weighted.sum(1), experience.prompt]).tolist()  # of each row
        terms: list[LossTerms] = []
        norms: list[Tensor] = []
        gradients: dict[str, list[Tensor]] = {}  # of each term, in the first optimizer step
        for epoch in range(self.inner_epochs):
            for rows in self._minibatches(step, epoch, len(ends)):
                micros = self._micro_batches(experience, rows, ends, prompts)
                first = gradients if diagnosed and not norms else None
                norms.append(self._optimizer_step(step, micros, terms, first))
        metrics = _means(terms, norms, self.inner_epochs)
        if before is not None:
            moved = _norm([p.detach() - old for p, old in zip(self.parameters, before, strict=True)])
            metrics |= _shares(gradients) | {"update_ratio": float(moved / _norm(before))}
        return {**metrics, "lr": self.base_lrs[0] * factor, "tokens": float(sum(counts))}

    def _minibatches(self, step: int, epoch: int, n: int) -> list[list[int]]:
        """The n rows in `minibatches` shares of nearly equal size, drawn anew in every epoch."""
        if self.minibatches > n:
            raise ConfigError(f"minibatches={self.minibatches}: allowed: at most the {n} rows of a step")
        if self.minibatches == 1:
            return [list(range(n))]
        generator = torch.Generator().manual_seed(ops.seed_of(self.seed, "minibatches", step, epoch))
        return [rows.tolist() for rows in torch.randperm(n, generator=generator).tensor_split(self.minibatches)]

    def _micro_batches(
        self, experience: Experience, rows: Sequence[int], ends: Sequence[int], prompts: Sequence[int]
    ) -> Iterator[Experience]:
        """The rows with weighted tokens in parts of at most `micro_batch` rows, each as wide as its longest row.

        Rows are grouped by prompt first, then by similar length.
        """
        neighbours = sorted((row for row in rows if ends[row]), key=lambda row: (prompts[row], -ends[row]))
        # One copy to the device for all parts, as the host waits for each copy.
        index = torch.tensor(neighbours, dtype=torch.long, device=experience.tokens.device)
        for part in ops.parts(len(neighbours), self.micro_batch):
            yield experience.rows(index[part], max(ends[row] for row in neighbours[part]))

    def _optimizer_step(
        self,
        step: int,
        micros: Iterable[Experience],
        terms: list[LossTerms],
        gradients: dict[str, list[Tensor]] | None,
    ) -> Tensor:
        """Takes an optimizer step; returns the gradient's norm before clipping. Raises: TrainingDiverged.

        Appends each micro-batch's loss, detached, to `terms`; unless `gradients` is None, adds each term's gradient to
        it.
        """
        for micro in micros:
            loss = self.objective.loss(micro)
            if gradients is not None:
                _add_gradients(gradients, loss, self.parameters)
            # Every token keeps its weight in the whole experience, whichever minibatch it falls into; a minibatch has
            # only a part of those weights, and its optimizer step should be as long as one with all of them.
            (loss.total * self.minibatches).backward()
            terms.append(replace(loss, terms={name: term.detach() for name, term in loss.terms.items()}))
        norm = nn.utils.clip_grad_norm_(self.parameters, self.grad_clip)
        norm = norm.to(self.parameters[0].device)  # without any rows it is on the CPU
        if not torch.isfinite(norm):
            found = {name: value for name, value in _means(terms, [norm], 1).items() if name.startswith("loss")}
            values = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            raise TrainingDiverged(
                f"step {step + 1}: the gradient is not finite, and the weights were not changed by it; lower optim.lr, "
                f"or check what is learned from: the rewards or the documents ({values})"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def refuse_diverged(step: int, model: nn.Module) -> None:
    """Raises: TrainingDiverged for weights that are not finite: no checkpoint of them may replace an earlier one."""
    names, weights = zip(*model.named_parameters(), strict=True)
    # Extremes, of which NaN is one, take a tenth of the time of `isfinite` on every weight; one copy to the host.
    sound = torch.stack([torch.stack(each.detach().aminmax()) for each in weights]).isfinite().all(1).tolist()
    if not all(sound):
        said = f"step {step}: its update left {names[sound.index(False)]!r} with values that are not finite"
        raise TrainingDiverged(f"{said}, and no checkpoint was made of them; lower optim.lr")


def _means(terms: Sequence[LossTerms], norms: Sequence[Tensor], epochs: int) -> dict[str, float]:
    """The metrics of a step, read from the device all at once."""
    values = {"grad_norm": torch.stack(list(norms)).mean()}
    if terms:
        values["loss"] = torch.stack([t.total for t in terms]).sum() / epochs
        for name in terms[0].terms:
            values[f"loss/{name}"] = torch.stack([t.terms[name] for t in terms]).sum() / epochs
        for name in terms[0].per_token:
            tokens = torch.cat([t.per_token[name] for t in terms])
            values[name] = tokens.max() if name.endswith(LARGEST) else tokens.mean()
    return dict(zip(values, torch.stack([value.float() for value in values.values()]).tolist(), strict=True))


def _add_gradients(gradients: dict[str, list[Tensor]], loss: LossTerms, parameters: Sequence[nn.Parameter]) -> None:
    """Adds each term's gradient in a micro-batch to that in the earlier ones; keeps the graph for backward."""
    for name, term in loss.terms.items():
        _add_gradient(gradients.setdefault(name, []), term, parameters)


def _add_gradient(sums: list[Tensor], term: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Adds the gradient of `term` to `sums`, which is empty at first; when it returns, only the sums take memory."""
    found = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
    for i, (parameter, gradient) in enumerate(zip(parameters, found, strict=True)):
        new = torch.zeros_like(parameter) if gradient is None else gradient
        if i < len(sums):
            sums[i] = sums[i] + new
        else:
            sums.append(new)


def _shares(gradients: Mapping[str, Sequence[Tensor]]) -> dict[str, float]:
    """grad_share/<term> in [0, 1]: the norm of the term's gradient over the sum of all terms' norms; {} for none."""
    norms = {name: float(_norm(each)) for name, each in gradients.items()}
    total = sum(norms.values())
    return {f"grad_share/{name}": norm / total for name, norm in norms.items()} if total else {}


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm over the entries of all tensors."""
    return torch.stack([t.float().norm() for t in tensors]).norm()
