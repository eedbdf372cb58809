"""Finds the micro-batch size for this device by trying sizes before training, on the longest rows that can occur.

A size fits if the peak memory of a whole optimizer step stays within SHARE of the memory. The smallest size is taken
whose rows per second are within TIE of the fastest size that fits. Sampling and greedy evaluation are tried at their
configured size; an evaluation that does not fit answers fewer prompts at a time, which changes no answer. Nothing else
changes, unless `hardware.grow=batch`: then a step has as many prompts as fit into one micro-batch, if that is more than
it had.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rookexp.config import check
from rookexp.draw import Sampling
from rookexp.errors import ConfigError, Reconfigured
from rookexp.evaluation import Greedy
from rookexp.files import read_object, write_atomic
from rookexp.hardware import GIB, Hardware
from rookexp.objectives.likelihood import Documents
from rookexp.objectives.rollouts import RolloutSource
from rookexp.probes import (
    SHARE,
    SIZES,
    Decoding,
    Rung,
    WorstCase,
    best_size,
    evaluation_batch,
    probe_all,
    probe_decoding,
    probe_updates,
    refuse_what_cannot_be_decoded,
    table,
    unchanged,
)
from rookexp.trainer import Trainer

PROFILE = "memory_profile.json"
GROWTH = ("prompts_per_step", "prompts_given", "grown")  # its keys about a batch that has grown


@dataclass(frozen=True, slots=True)
class Batch:
    """The sizes of a step's batch of rollouts."""

    prompts: int
    group_size: int
    minibatches: int
    can_ask: Callable[[int], bool]  # whether the task has that many prompts for a step


@dataclass(eq=False)
class Finder:
    """Gives a trainer the micro-batch that suits the device and, with `hardware.grow=batch`, a run its batch size."""

    hardware: Hardware
    case: WorstCase
    decodings: Sequence[Decoding]
    batch: Batch | None  # None = there is none to grow
    greedy: Greedy | None  # its batches may be made smaller; None = no evaluation that decodes
    growth: dict[str, Any] = field(default_factory=dict, init=False)  # the GROWTH keys of the profile, once known

    def __post_init__(self) -> None:
        self.memory = self.hardware.memory()

    def grow(self, trainer: Trainer, folder: Path, *, resumed: bool) -> None:
        """With `hardware.grow=batch`, finds how many prompts a step should have; a resumed run keeps its number.

        Never fewer than configured, nor more than the task has.
        Raises: Reconfigured if that number differs from the configured one; DataError for a damaged profile.
        """
        if self.batch is None:
            return
        known, given = read_profile(folder), self.batch.prompts
        growth, settled = {key: known[key] for key in GROWTH if key in known}, "asked" in known
        if resumed and settled:
            self.growth = growth
        if self.hardware.grow != "batch":
            return
        if not settled and growth.get("prompts_per_step") == given:  # the restart after Reconfigured
            self.growth = growth
            return
        if not self.growth:
            self.growth = self._searched(trainer, self.batch)
            if self.growth["prompts_per_step"] != given:
                write_atomic(folder / PROFILE, json.dumps(self.growth, indent=2) + "\n")
        elif self.growth["prompts_per_step"] == given:
            print(f"hardware.grow: grpo.prompts_per_step={given}, as {folder / PROFILE} has it", flush=True)
        if self.growth["prompts_per_step"] != given:
            raise Reconfigured("grpo.prompts_per_step", self.growth["prompts_per_step"])

    def _searched(self, trainer: Trainer, batch: Batch) -> dict[str, Any]:
        """The GROWTH keys of the profile: how many prompts a step may have, how many were given, all rungs tried."""
        with unchanged(trainer):
            rungs = probe_updates(trainer, replace(self.case, rows=SIZES[-1]), self.memory)
            prompts, tried = self._largest(trainer, rungs, batch)
        self.memory.restart()
        print(table([*rungs, *tried], self.memory.limit), flush=True)
        print(f"hardware.grow: grpo.prompts_per_step={prompts}, of {batch.prompts} given", flush=True)
        return {
            "prompts_per_step": prompts,
            "prompts_given": batch.prompts,
            "grown": [asdict(rung) for rung in [*rungs, *tried]],
        }

    def _largest(self, trainer: Trainer, rungs: Sequence[Rung], batch: Batch) -> tuple[int, list[Rung]]:
        """The most prompts that the task has, whose rows fit one micro-batch and can be sampled; rungs of sampling."""
        fit = {rung.rows * batch.minibatches // batch.group_size for rung in rungs if rung.fits}
        tried: list[Rung] = []
        for prompts in sorted((count for count in fit if count > batch.prompts), reverse=True):
            if not batch.can_ask(prompts):
                continue
            sampling = next(case for case in self.decodings if case.what == "sampling")
            more = replace(sampling, prompts=-(-sampling.prompts * prompts // batch.prompts))
            tried += probe_decoding(trainer, more, self.memory, self.hardware.autocast)
            if tried[-1].fits:
                return prompts, tried
        return batch.prompts, tried

    def apply(self, trainer: Trainer, folder: Path) -> None:
        """Sets the trainer's micro-batch and the evaluation's batch and writes `memory_profile.json`.

        A run whose profile was measured under the same conditions, such as a resumed one, keeps what it found.
        Raises: ConfigError if not even the smallest size fits, or sampling or an evaluation of one row does not.
        """
        asked = {
            **self.hardware.describe(),
            "grow": self.hardware.grow,
            "head_chunk": self.hardware.head_chunk,
            "memory_gib": self.hardware.memory_gib,
            "case": asdict(self.case),
            "decoded": [asdict(case) for case in self.decodings],
        }
        path = folder / PROFILE
        known = read_profile(folder)
        if known.get("asked") == asked:  # a different speed measured today must not split the same run differently
            trainer.micro_batch = known["micro_batch"]
            self._cut(known.get("evaluation_batch"))
            print(f"hardware.fit: micro_batch={trainer.micro_batch}, as {path} has it", flush=True)
            return
        self.memory.restart()
        before = self.memory.peak() / GIB
        rungs = probe_all(trainer, self.case, self.memory, self.decodings, self.hardware.autocast)
        print(table(rungs, self.memory.limit), flush=True)
        trainer.micro_batch = best_size(rungs, self.case, before)
        refuse_what_cannot_be_decoded(rungs, self.decodings)
        print(f"hardware.fit: micro_batch={trainer.micro_batch}", flush=True)
        self._cut(evaluation_batch(rungs))
        profile = self.growth | {
            "asked": asked,
            "before_gib": before,
            "limit_gib": self.memory.limit / GIB,
            "share": SHARE,
            "rungs": [asdict(rung) for rung in rungs],
            "micro_batch": trainer.micro_batch,
            "evaluation_batch": evaluation_batch(rungs),
        }
        write_atomic(path, json.dumps(profile, indent=2) + "\n")

    def _cut(self, prompts: int | None) -> None:
        """Sets how many prompts are evaluated at a time; None leaves that as it is."""
        if self.greedy is not None and prompts is not None:
            self.greedy.batch = prompts
            print(f"hardware.fit: {prompts} prompts are evaluated at a time", flush=True)


def for_rollouts(
    hardware: Hardware, source: RolloutSource, greedy: Greedy, steps: range, n_positions: int, batch: Batch
) -> Finder | None:
    """A finder for groups of completions in a model with `n_positions`, for the prompts of all `steps`.

    The worst case is the longest prompt with a completion of full length; if the model has no room for both, the prompt
    is shortened, because rows share it. None if `hardware.fit` is false.
    """
    if not hardware.fit:
        return None
    asked = [source.task.select(step) for step in steps]
    lengths = [[len(prompt.ids) for prompt in prompts] for prompts in asked]
    samplings = {source.sampling_of(prompt) for prompts in asked for prompt in prompts}
    completion = min(max(sampling.max_new_tokens for sampling in samplings), n_positions - min(map(min, lengths)))
    case = WorstCase(
        rows=-(-max(map(len, asked)) * source.group_size // batch.minibatches),
        prompt=min(max(map(max, lengths)), n_positions - completion),
        completion=completion,
        per_prompt=max(1, source.group_size // batch.minibatches),
        temperature=source.sampling.temperature,
    )

    def decoding(
        what: Literal["sampling", "evaluation"], count: int, ids: Sequence[int], group: int, sampling: Sampling
    ) -> Decoding:
        room = min(sampling.max_new_tokens, n_positions - min(ids))
        return Decoding(what, count, group, min(max(ids), n_positions - room), replace(sampling, max_new_tokens=room))

    sampled = [
        decoding("sampling", len(some), [own[p] for p in some], source.group_size, sampling)
        for prompts, own in zip(asked, lengths, strict=True)
        for some, sampling in source.batches(prompts)
    ]
    decodings = [max(sampled, key=lambda case: case.work)]
    if batches := list(greedy.batches()):
        # A batch as large as the largest and as long as the longest: if a part of it fits, so does that of any batch.
        longest = Sampling(temperature=0.0, top_k=None, top_p=None, max_new_tokens=max(n for _, n in batches))
        ids = [len(prompt.ids) for prompt in greedy.prompts]
        decodings.append(decoding("evaluation", max(len(rows) for rows, _ in batches), ids, 1, longest))
    return Finder(hardware, case, decodings, batch, greedy)


def for_documents(hardware: Hardware, documents: Documents, rows: int) -> Finder | None:
    """A finder for `rows` documents, each as long as the longest; None if `hardware.fit` is false.

    Raises: ConfigError for `hardware.grow=batch`.
    """
    if not hardware.fit:
        return None
    if hardware.grow == "batch":
        raise ConfigError("hardware.grow=batch: of rollouts alone; allowed here: micro_batch; set batch_documents")
    longest = int(documents.lengths.max())
    case = WorstCase(rows=rows, prompt=0, completion=longest, per_prompt=rows, temperature=1.0)
    return Finder(hardware, case, (), None, None)


def read_profile(folder: Path) -> dict[str, Any]:
    """The contents of `memory_profile.json` in a run's folder; {} if there is none yet.

    Raises: DataError if it is damaged.
    """
    return read_object(folder / PROFILE, "restore it, or delete it to have all sizes tried again")


def refuse_another_batch(hardware: Hardware, prompts: int, folder: Path) -> None:
    """Checks the `prompts` per step of a resumed run whose batch has grown.

    Raises: ConfigError unless they are the number that it has grown to or, with `hardware.grow=batch`, the number that
    it was given; DataError for a damaged profile.
    """
    known = read_profile(folder)
    if not {"asked", *GROWTH} <= set(known):
        return
    given, grown = known["prompts_given"], known["prompts_per_step"]
    if prompts not in (given, grown):
        why = f"{folder} has grown to {grown}; leave it out, or begin a new run"
        raise check.refusal("grpo.prompts_per_step", prompts, why)
    if prompts != grown and hardware.grow != "batch":
        why = f"{folder} has grown to {grown} prompts a step"
        allowed = f"allowed: batch, or grpo.prompts_per_step={grown} beside it"
        raise check.refusal("hardware.grow", hardware.grow, f"{why}; {allowed}")
