"""What a size needs on a device: the record of a try, and the tries of sampling and of greedy evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rookexp import generate
from rookexp.errors import ConfigError
from rookexp.generate import Sampling
from rookexp.hardware import GIB, Memory
from rookexp.trainer import Trainer

SHARE = 0.85  # of the memory; the rest is for fragments and for what other programs begin to take


@dataclass(frozen=True, slots=True)
class Rung:
    """What became of one size of micro-batch, or of a batch that is decoded."""

    rows: int
    peak_gib: float | None  # None = out of memory
    utilisation: float | None  # peak over the memory's limit
    rows_per_s: float | None  # of the last of its steps, without sampling; of decoding
    what: Literal["update", "sampling", "evaluation"] = "update"

    @property
    def fits(self) -> bool:
        """Whether it stays within the share."""
        return self.utilisation is not None and self.utilisation <= SHARE


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


def decoded(
    trainer: Trainer, case: Decoding, memory: Memory, autocast: Callable[[], AbstractContextManager[None]]
) -> list[Rung]:
    """A quarter of the batch, half of it and the whole, decoded beside the optimizer's state; no row ends early.

    The last rung is the whole batch; it is out of memory where the forecast exceeds the limit.
    """
    policy, rungs = Endless(trainer.policy), list[Rung]()
    vocabulary = len(trainer.policy.head_weight)
    ids = [1 + i % (vocabulary - 1) for i in range(case.prompt)]
    for prompts in sorted({max(1, case.prompts // 4), max(1, case.prompts // 2), case.prompts}):
        rows = prompts * case.group_size
        if (rungs and rungs[-1].peak_gib is None) or forecast(rungs, rows) > 1:
            rungs.append(Rung(case.prompts * case.group_size, None, None, None, case.what))
            break
        memory.restart()
        began = time.perf_counter()
        try:
            with autocast():
                generate.sample(policy, [ids] * prompts, range(rows), case.sampling, Endless.never)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            rungs.append(Rung(rows, None, None, None, case.what))
        else:
            peak, seconds = memory.peak(), time.perf_counter() - began
            rungs.append(Rung(rows, peak / GIB, peak / memory.limit, rows / seconds, case.what))
    return rungs


def forecast(rungs: Sequence[Rung], rows: int) -> float:
    """The utilisation on the straight line through the last two rungs; 0 while there are no two."""
    if len(rungs) < 2:
        return 0.0
    (x, y), (u, v) = ((rung.rows, rung.utilisation or 0.0) for rung in rungs[-2:])
    return v + (v - y) / (u - x) * (rows - u)


def refuse_what_cannot_be_decoded(rungs: Sequence[Rung], cases: Sequence[Decoding]) -> None:
    """Raises: ConfigError for a whole batch that does not fit, with what to lower."""
    remedies = {
        "sampling": "lower grpo.prompts_per_step, grpo.group_size or grpo.max_new_tokens",
        "evaluation": "ask fewer prompts in the evaluation or lower eval.max_new_tokens",
    }
    for case in cases:
        last = [rung for rung in rungs if rung.what == case.what][-1]
        if not last.fits:
            found = "more memory than there is" if last.peak_gib is None else f"{last.peak_gib:.2f} GiB"
            rows = f"{case.prompts * case.group_size} rows of {case.prompt + case.sampling.max_new_tokens} tokens"
            raise ConfigError(
                f"hardware.fit=true: {case.what} of {rows} takes {found}; allowed: at most {SHARE:.0%} of the "
                f"memory; {remedies[case.what]}, or raise hardware.memory_gib where it is set"
            )


class Endless:
    """A policy that never says one word, the one that ends a text."""

    never = 0

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def packed(self) -> Endless:
        """The policy's faster copy, which never says it either."""
        return Endless(self.policy.packed())

    def logits(self, hidden: Tensor) -> Tensor:
        """The policy's, without that word."""
        logits: Tensor = self.policy.logits(hidden)
        logits[..., self.never] = -torch.inf
        return logits


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the device had no more; on a CPU torch has no class for that, and names its allocator."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
