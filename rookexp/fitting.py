"""How many rows a micro-batch should have on this device: tried before training, on the longest rows there can be.

A size fits where the peak of a whole optimizer step stays within SHARE of the memory. Of the sizes that fit the one
with the most rows a second is taken, and of those within TIE of it the smallest. Sampling and greedy evaluation are
tried at the size that they have. Nothing but the micro-batch changes, unless `hardware.grow=batch`: then a step has as
many prompts as fit into one micro-batch, if that is more than it had.
"""

from __future__ import annotations

import copy
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rookexp.errors import ConfigError, Reconfigured
from rookexp.evaluation import Greedy
from rookexp.generate import Sampling
from rookexp.hardware import GIB, Hardware, Memory
from rookexp.objectives.likelihood import Documents
from rookexp.objectives.rollouts import RolloutSource
from rookexp.probes import SHARE, Decoding, Rung, decoded, forecast, is_out_of_memory, refuse_what_cannot_be_decoded
from rookexp.run_info import write_atomic
from rookexp.trainer import Trainer
from rookexp.types import Experience

PROFILE = "memory_profile.json"
SIZES = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TIE = 0.05  # two speeds that are nearer than this are the same


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The rows of an optimizer step, each as long as any row of the run can be."""

    rows: int
    prompt: int  # tokens of a prompt; 0 = none, nothing is shared
    completion: int  # tokens of a completion
    per_prompt: int  # rows that share a prompt
    temperature: float  # at which they were sampled

    def experience(self, rows: int, vocabulary: int, device: torch.device) -> Experience:
        """So many of these rows, of meaningless tokens, half of which were better than the others."""
        width = self.prompt + self.completion
        tokens = (torch.arange(width, device=device) % vocabulary).repeat(rows, 1)
        zeros = torch.zeros(rows, width, device=device)  # log-probs, too: then no ratio exceeds 1
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
class Batch:
    """What a step of rollouts is made of."""

    prompts: int
    group_size: int
    minibatches: int


class Finder:
    """Gives a trainer the micro-batch that suits the device, and a run the batch, where that is asked."""

    def __init__(self, hardware: Hardware, case: WorstCase, decodings: Sequence[Decoding], batch: Batch | None) -> None:
        self.hardware = hardware
        self.case = case
        self.decodings = decodings
        self.batch = batch  # None = there is none to grow
        self.memory = hardware.memory()

    def grow(self, trainer: Trainer, folder: Path) -> None:
        """With `hardware.grow=batch` finds how many prompts a step has; a run that goes on keeps what it has.

        Never fewer than are configured. Raises: Reconfigured where there are others than this trainer has.
        """
        if self.hardware.grow != "batch" or self.batch is None:
            return
        profile = read_profile(folder)
        if "prompts_per_step" not in profile:
            with unchanged(trainer):
                whole = replace(self.case, rows=SIZES[-1])
                rungs = ascend(trainer, whole, self.memory)
                prompts, tried = self._largest(trainer, rungs, self.batch)
            self.memory.restart()
            print(table([*rungs, *tried], self.memory.limit), flush=True)
            profile = {"prompts_per_step": prompts, "grown": [asdict(rung) for rung in [*rungs, *tried]]}
            write_atomic(folder / PROFILE, json.dumps(profile, indent=2) + "\n")
            print(f"hardware.grow: grpo.prompts_per_step={prompts}, of {self.batch.prompts} given", flush=True)
        if profile["prompts_per_step"] != self.batch.prompts:
            raise Reconfigured("grpo.prompts_per_step", profile["prompts_per_step"])

    def _largest(self, trainer: Trainer, rungs: Sequence[Rung], batch: Batch) -> tuple[int, list[Rung]]:
        """The most prompts whose rows are one micro-batch that fits, and can be sampled; and what was sampled."""
        fit = {rung.rows * batch.minibatches // batch.group_size for rung in rungs if rung.fits}
        tried: list[Rung] = []
        for prompts in sorted((count for count in fit if count > batch.prompts), reverse=True):
            sampling = next(case for case in self.decodings if case.what == "sampling")
            more = replace(sampling, prompts=-(-sampling.prompts * prompts // batch.prompts))
            tried += decoded(trainer, more, self.memory, self.hardware.autocast)
            if tried[-1].fits:
                return prompts, tried
        return batch.prompts, tried

    def apply(self, trainer: Trainer, folder: Path) -> None:
        """Sets the trainer's micro-batch and writes `memory_profile.json`; a run that goes on keeps what it found.

        Raises: ConfigError where not even the smallest fits, or what is decoded does not.
        """
        given = {"head_chunk": self.hardware.head_chunk, "memory_gib": self.hardware.memory_gib}
        cases = {"case": asdict(self.case), "decoded": [asdict(case) for case in self.decodings]}
        asked = {**self.hardware.describe(), **given, **cases}
        path = folder / PROFILE
        known = read_profile(folder)
        if known.get("asked") == asked:  # another speed today must not cut the same run in another way
            trainer.micro_batch = known["micro_batch"]
            print(f"hardware.fit: micro_batch={trainer.micro_batch}, as {path} has it", flush=True)
            return
        rungs = climb(trainer, self.case, self.memory, self.decodings, self.hardware.autocast)
        print(table(rungs, self.memory.limit), flush=True)
        trainer.micro_batch = best(rungs, self.case)
        refuse_what_cannot_be_decoded(rungs, self.decodings)
        print(f"hardware.fit: micro_batch={trainer.micro_batch}", flush=True)
        profile = {key: known[key] for key in ("prompts_per_step", "grown") if key in known} | {
            "asked": asked,
            "limit_gib": self.memory.limit / GIB,
            "share": SHARE,
            "rungs": [asdict(rung) for rung in rungs],
            "micro_batch": trainer.micro_batch,
        }
        write_atomic(path, json.dumps(profile, indent=2) + "\n")


def for_rollouts(
    hardware: Hardware, source: RolloutSource, greedy: Greedy, steps: range, places: int, batch: Batch
) -> Finder | None:
    """A finder for groups of completions in a model of so many `places`, for the prompts of all `steps`.

    The longest prompt, answered at full length; where the model has no room for both, the prompt gives way, because
    rows share it. None where `hardware.fit` is false.
    """
    if not hardware.fit:
        return None
    asked = [source.task.select(step) for step in steps]
    lengths = [[len(prompt.ids) for prompt in prompts] for prompts in asked]
    ways = {source.sampling_of(prompt) for prompts in asked for prompt in prompts}
    completion = min(max(way.max_new_tokens for way in ways), places - min(map(min, lengths)))
    case = WorstCase(
        rows=-(-max(map(len, asked)) * source.group_size // batch.minibatches),
        prompt=min(max(map(max, lengths)), places - completion),
        completion=completion,
        per_prompt=max(1, source.group_size // batch.minibatches),
        temperature=source.sampling.temperature,
    )

    def decoding(what: Literal["sampling", "evaluation"], ids: Sequence[int], group: int, way: Sampling) -> Decoding:
        room = min(way.max_new_tokens, places - min(ids))
        return Decoding(what, len(ids), group, min(max(ids), places - room), replace(way, max_new_tokens=room))

    sampled = [
        decoding("sampling", [own[p] for p in some], source.group_size, way)
        for prompts, own in zip(asked, lengths, strict=True)
        for some, way in source.batches(prompts)
    ]
    greedily = Sampling(temperature=0.0, top_k=None, top_p=None, max_new_tokens=1)
    evaluated = [
        decoding("evaluation", [len(greedy.prompts[row].ids) for row in rows], 1, replace(greedily, max_new_tokens=n))
        for rows, n in greedy.batches()
    ]
    largest = [max(cases, key=lambda case: case.work) for cases in (sampled, evaluated) if cases]
    return Finder(hardware, case, largest, batch)


def for_documents(hardware: Hardware, documents: Documents, rows: int) -> Finder | None:
    """A finder for `rows` documents, each as long as the longest; None where `hardware.fit` is false.

    Raises: ConfigError for `hardware.grow=batch`.
    """
    if not hardware.fit:
        return None
    if hardware.grow == "batch":
        raise ConfigError("hardware.grow=batch: of rollouts alone; allowed here: micro_batch; set batch_documents")
    longest = int(documents.ends.diff(prepend=torch.zeros(1, dtype=torch.long)).max())
    case = WorstCase(rows=rows, prompt=0, completion=longest, per_prompt=rows, temperature=1.0)
    return Finder(hardware, case, (), None)


def read_profile(folder: Path) -> dict[str, Any]:
    """What `memory_profile.json` of a run's folder has; {} where there is none yet."""
    path = folder / PROFILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def climb(
    trainer: Trainer,
    case: WorstCase,
    memory: Memory,
    decodings: Sequence[Decoding] = (),
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Rung]:
    """The sizes in ascending order, up to the first that does not fit, or whose forecast exceeds the limit; decoding.

    The trainer's weights, optimizer and rates are afterwards what they were, bit by bit.
    """
    with unchanged(trainer):
        rungs = ascend(trainer, case, memory)
        if rungs[0].fits:
            rungs += [rung for each in decodings for rung in decoded(trainer, each, memory, autocast)]
    memory.restart()
    return rungs


def ascend(trainer: Trainer, case: WorstCase, memory: Memory) -> list[Rung]:
    """The sizes of `climb`; they move weights and optimizer."""
    rungs: list[Rung] = []
    for rows in [*(size for size in SIZES if size < case.rows), *([case.rows] if case.rows <= SIZES[-1] else [])]:
        if forecast(rungs, rows) > 1:  # on a CPU the system would end the process
            break
        rungs.append(measured(trainer, case, rows, memory))
        if not rungs[-1].fits:
            break
    return rungs


def measured(trainer: Trainer, case: WorstCase, rows: int, memory: Memory) -> Rung:
    """Some optimizer steps of two micro-batches, where a step has so many rows, so that gradients are held meanwhile.

    The first makes the optimizer's state, one is diagnosed as in the run, if any is, and the last is timed.
    """
    probe = copy.copy(trainer)
    probe.micro_batch, probe.inner_epochs, probe.minibatches = rows, 1, 1
    probe.schedule = lambda step: 0.0  # the weights stay sound, whatever the tokens mean
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
        if not is_out_of_memory(error):
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
    """Puts weights, optimizer state and rates back as they were, bit by bit; meanwhile they are kept on the CPU."""
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


def best(rungs: Sequence[Rung], case: WorstCase) -> int:
    """The smallest of the sizes that fit and are, but for TIE, as fast as the fastest of them.

    Raises: ConfigError where none fits.
    """
    rungs = [rung for rung in rungs if rung.what == "update"]
    fast = {rung.rows: rung.rows_per_s for rung in rungs if rung.fits and rung.rows_per_s is not None}
    if not fast:
        found = "more memory than there is" if rungs[0].peak_gib is None else f"{rungs[0].peak_gib:.2f} GiB"
        raise ConfigError(
            f"hardware.fit=true: {rungs[0].rows} rows of {case.prompt + case.completion} tokens take {found}; allowed: "
            f"at most {SHARE:.0%} of the memory; lower grpo.max_new_tokens or hardware.head_chunk, take a smaller "
            "model, or raise hardware.memory_gib where it is set"
        )
    return min(rows for rows, speed in fast.items() if speed >= (1 - TIE) * max(fast.values()))


def table(rungs: Sequence[Rung], limit: int) -> str:
    """The rungs for a person."""
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
