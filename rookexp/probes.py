"""Measures what a batch size needs on a device, by trying it: in optimizer steps, in sampling and in evaluation."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rookexp import generate
from rookexp.draw import Sampling
from rookexp.errors import ConfigError, lacks_memory
from rookexp.hardware import GIB, Memory
from rookexp.trainer import Trainer
from rookexp.types import Autocast, Experience

NO_END = -1  # the id of no token, so that no row ends early
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # of micro-batches, in rows
TIE = 0.05  # relative; speeds that differ by less count as equal
SHARE = 0.85  # of the memory; the rest is for fragmentation and for other programs that grow


@dataclass(frozen=True, slots=True)
class Rung:
    """The result of trying one size of micro-batch, or of a batch that is decoded."""

    rows: int
    peak_gib: float | None  # None = out of memory
    utilisation: float | None  # peak over the memory's limit
    rows_per_s: float | None  # in the last optimizer step, without sampling; or in decoding
    what: Literal["update", "sampling", "evaluation"] = "update"

    @property
    def fits(self) -> bool:
        """Whether its peak stays within SHARE of the memory."""
        return self.utilisation is not None and self.utilisation <= SHARE


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The rows of an optimizer step, each as long as any row of the run can be."""

    rows: int
    prompt: int  # tokens of a prompt; 0 = none, nothing is shared
    completion: int  # tokens of a completion
    per_prompt: int  # rows that share a prompt
    temperature: float  # at which they were sampled

    def experience(self, rows: int, vocabulary: int, device: torch.device) -> Experience:
        """`rows` such rows, of meaningless tokens, with advantages 1 and -1 in turn."""
        width = self.prompt + self.completion
        tokens = (torch.arange(width, device=device) % vocabulary).repeat(rows, 1)
        zeros = torch.zeros(rows, width, device=device)  # also as log-probs: then no ratio exceeds 1
        weights = zeros.clone()
        weights[:, max(1, self.prompt) :] = 1 / (rows * self.completion)
        row = torch.arange(rows, device=device)
        return Experience(
            tokens=tokens,
            weights=weights,
            logprobs=zeros,
            advantages=(1.0 - 2.0 * (row % 2))[:, None].repeat(1, width),
            values=zeros,
            returns=zeros,
            temperature=torch.full_like(zeros[:, 0], self.temperature),
            prompt=row // self.per_prompt,
            prompt_lengths=torch.full_like(row, self.prompt),
        )


@dataclass(frozen=True, slots=True)
class Decoding:
    """The largest batch that is decoded at one time: equal prompts, each answered at full length."""

    what: Literal["sampling", "evaluation"]
    prompts: int
    group_size: int
    prompt: int  # tokens of each
    sampling: Sampling

    @property
    def work(self) -> int:
        """Tokens of all rows."""
        return self.prompts * self.group_size * (self.prompt + self.sampling.max_new_tokens)


def probe_all(
    trainer: Trainer,
    case: WorstCase,
    memory: Memory,
    decodings: Sequence[Decoding] = (),
    autocast: Autocast = nullcontext,
) -> list[Rung]:
    """The rungs of `probe_updates`, then, if the smallest size fits, those of `decodings`.

    Afterwards the trainer's weights, optimizer state and learning rates are what they were, bit for bit.
    """
    with unchanged(trainer):
        # The KV cache that recorded steps share stays allocated while weights are updated.
        if getattr(trainer.policy, "replays", None) is not None:
            for each in decodings:
                probe_decoding(trainer, each, memory, autocast)
        rungs = probe_updates(trainer, case, memory)
        if rungs[0].fits:
            rungs += [rung for each in decodings for rung in probe_decoding(trainer, each, memory, autocast)]
    memory.restart()
    return rungs


def probe_updates(trainer: Trainer, case: WorstCase, memory: Memory) -> list[Rung]:
    """Rungs of ascending micro-batch sizes; stops after one that does not fit, or before one forecast above the limit.

    Does not restore weights, optimizer and learning rates.
    """
    rungs: list[Rung] = []
    for rows in [*(size for size in SIZES if size < case.rows), *([case.rows] if case.rows <= SIZES[-1] else [])]:
        if forecast(rungs, rows) > 1:  # on a CPU the system would kill the process
            break
        rungs.append(probe_update(trainer, case, rows, memory))
        if not rungs[-1].fits:
            break
    return rungs


def probe_update(trainer: Trainer, case: WorstCase, rows: int, memory: Memory) -> Rung:
    """Runs optimizer steps of two micro-batches of `rows`, if a step has that many; gradients are held in between.

    The first creates the optimizer's state, one is diagnosed as in the run, if any is, and the last is timed.
    """
    probe = copy.copy(trainer)
    probe.micro_batch, probe.inner_epochs, probe.minibatches = rows, 1, 1
    probe.schedule = lambda step: 0.0  # rate 0: the weights stay sound, although the tokens are meaningless
    probe.diagnose_every = trainer.diagnose_every and 2
    head = trainer.policy.head_weight
    count, seconds = min(2 * rows, case.rows), 0.0
    memory.restart()
    try:
        experience = case.experience(count, len(head), head.device)
        for step in range(3 if probe.diagnose_every else 2):
            began = time.perf_counter()
            probe.update(step, experience)  # which waits for the device
            seconds = time.perf_counter() - began
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        peak = None
    else:
        peak = memory.peak()
    if peak is None:
        for parameter in trainer.parameters:
            parameter.grad = None
        gc.collect()
        return Rung(rows, None, None, None)
    return Rung(rows, peak / GIB, peak / memory.limit, count / seconds)


@contextmanager
def unchanged(trainer: Trainer) -> Iterator[None]:
    """Restores weights, optimizer state and learning rates bit for bit on exit; meanwhile they are kept on the CPU."""
    optimizer = trainer.optimizer
    state = {parameter: dict(entries) for parameter, entries in optimizer.state.items()}
    rates = [group["lr"] for group in optimizer.param_groups]
    tensors: list[Tensor] = [*trainer.parameters]
    tensors += [value for entries in state.values() for value in entries.values() if isinstance(value, Tensor)]
    kept = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def probe_decoding(trainer: Trainer, case: Decoding, memory: Memory, autocast: Autocast) -> list[Rung]:
    """Rungs of a quarter of the batch, half of it and all of it, decoded beside the optimizer state; no row ends early.

    The last rung is the whole batch; it counts as out of memory if a smaller one was or its forecast exceeds the limit.
    Of an evaluation, which may be split, ever smaller parts are tried if none of these fits; rungs are in ascending
    order.
    """
    policy: Any = trainer.policy  # it decodes, too
    ids, rungs = [i % len(policy.head_weight) for i in range(case.prompt)], list[Rung]()

    def tried(prompts: int) -> Rung:
        rows = prompts * case.group_size
        memory.restart()
        began = time.perf_counter()
        try:
            with autocast():
                generate.sample(policy, [ids] * prompts, range(rows), case.sampling, NO_END)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            return Rung(rows, None, None, None, case.what)
        peak, seconds = memory.peak(), time.perf_counter() - began
        return Rung(rows, peak / GIB, peak / memory.limit, rows / seconds, case.what)

    for prompts in sorted({max(1, case.prompts // 4), max(1, case.prompts // 2), case.prompts}):
        rows = prompts * case.group_size
        if (rungs and rungs[-1].peak_gib is None) or forecast(rungs, rows) > 1:
            rungs.append(Rung(case.prompts * case.group_size, None, None, None, case.what))
            break
        rungs.append(tried(prompts))
    while case.what == "evaluation" and rungs[0].rows > 1 and not any(rung.fits for rung in rungs):
        rungs.insert(0, tried(rungs[0].rows // 2))
    return rungs


def evaluation_batch(rungs: Sequence[Rung]) -> int | None:
    """How many prompts to evaluate at a time if the whole batch does not fit; None if it does or there is none.

    Of the evaluation's rungs, which are those of `probe_decoding`, at least one must fit.
    """
    tried = [rung for rung in rungs if rung.what == "evaluation"]
    return None if not tried or tried[-1].fits else max(rung.rows for rung in tried if rung.fits)


def best_size(rungs: Sequence[Rung], case: WorstCase, before: float) -> int:
    """The smallest of the sizes that fit and are within TIE of the fastest of these.

    `before`: GiB in use before sizes were tried, for the message. Raises: ConfigError if none fits.
    """
    rungs = [rung for rung in rungs if rung.what == "update"]
    fast = {rung.rows: rung.rows_per_s for rung in rungs if rung.fits and rung.rows_per_s is not None}
    if not fast:
        peak = rungs[0].peak_gib
        found = "more memory than there is" if peak is None else f"{peak:.2f} GiB"
        raise ConfigError(
            f"hardware.fit=true: a row of {case.prompt + case.completion} tokens takes {found}, {before:.2f} GiB of it "
            f"taken before; allowed: at most {SHARE:.0%} of the memory; lower grpo.max_new_tokens or "
            "hardware.head_chunk, take a smaller model, or raise hardware.memory_gib where it is set"
        )
    return min(rows for rows, speed in fast.items() if speed >= (1 - TIE) * max(fast.values()))


def forecast(rungs: Sequence[Rung], rows: int) -> float:
    """The utilisation at `rows`, extrapolated linearly from the last two rungs; 0 if there are fewer than two."""
    if len(rungs) < 2:
        return 0.0
    (x, y), (u, v) = ((rung.rows, rung.utilisation or 0.0) for rung in rungs[-2:])
    return v + (v - y) / (u - x) * (rows - u)


def table(rungs: Sequence[Rung], limit: int) -> str:
    """The rungs as a table to print; `limit` is in bytes."""
    lines = [f"hardware.fit: {limit / GIB:.2f} GiB", f"{'rows':>6} {'peak GiB':>10} {'utilisation':>12} {'rows/s':>8}"]
    for rung in rungs:
        what = "" if rung.what == "update" else f"  {rung.what}"
        if rung.peak_gib is None or rung.utilisation is None or rung.rows_per_s is None:
            lines.append(f"{rung.rows:>6} {'out of memory':>10}{what}")
        else:
            over = "" if rung.fits else f"  over {SHARE:.0%}"
            line = f"{rung.rows:>6} {rung.peak_gib:>10.2f} {rung.utilisation:>12.1%} {rung.rows_per_s:>8.1f}"
            lines.append(line + what + over)
    return "\n".join(lines)


def refuse_what_cannot_be_decoded(rungs: Sequence[Rung], cases: Sequence[Decoding]) -> None:
    """Raises: ConfigError if the whole batch that is sampled, or a single row that is evaluated, does not fit."""
    remedies = {
        "sampling": "lower grpo.prompts_per_step, grpo.group_size or grpo.max_new_tokens",
        "evaluation": "lower eval.max_new_tokens",
    }
    for case in cases:
        tried = [rung for rung in rungs if rung.what == case.what]
        rung = tried[-1] if case.what == "sampling" else tried[0]
        if not rung.fits:
            found = "more memory than there is" if rung.peak_gib is None else f"{rung.peak_gib:.2f} GiB"
            rows = f"{rung.rows} rows of {case.prompt + case.sampling.max_new_tokens} tokens"
            raise ConfigError(
                f"hardware.fit=true: {case.what} of {rows} takes {found}; allowed: at most {SHARE:.0%} of the "
                f"memory; {remedies[case.what]}, or raise hardware.memory_gib where it is set"
            )
