"""A side's half of the conversation with the bench, and the stopwatch that divides its turn into phases."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rookexp.hardware import kib

PHASES = ("generate", "score", "reference", "loss", "backward", "optimizer")
STATUS = Path("/proc/self/status")


class Turns:
    """The side's protocol, in lines of JSON: it reports that it is ready, waits for a turn, and answers with figures.

    Whatever else is printed to standard output goes to standard error, which is a file.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._about: dict[str, Any] = {}

    def about(self, **facts: Any) -> None:
        """Adds to what the side reports about itself when it is ready."""
        self._about |= facts

    def wait(self) -> dict[str, Any]:
        """Reports that the side is ready and returns the next turn's request; ends the process if there is none."""
        self._say({"ready": self._about})
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        asked: dict[str, Any] = json.loads(line)
        return asked

    def answer(self, **figures: Any) -> None:
        """Sends the figures of the turn."""
        self._say({"figures": figures})

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


class Stopwatch:
    """Seconds of a turn and of each of its phases; a nested phase does not count for the outer one."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._open: list[str] = []
        self._seconds: dict[str, float] = {}
        self._began = self._lapped = 0.0

    def start(self) -> None:
        """Begins a turn."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._began = self._lapped = self._now()

    def stop(self) -> dict[str, float]:
        """The turn's `seconds` and those of each phase."""
        return {"seconds": self._now() - self._began, **self._seconds}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time of what runs inside for the phase `name`."""
        self._lap()
        self._open.append(name)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        """Replaces a method or function of `owner`, in this process, by one that is timed as a phase."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return inner(*args, **kwargs)

        setattr(owner, name, timed)

    def wrap_learning(self) -> None:
        """Times what every trainer calls in PyTorch, by phase: backward; clipping and the optimizer's step."""
        self.wrap(torch.Tensor, "backward", "backward")
        self.wrap(torch.nn.utils, "clip_grad_norm_", "optimizer")
        opened: list[Any] = []

        def before(*_: Any) -> None:
            opened.append(self.phase("optimizer"))
            opened[-1].__enter__()

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(lambda *_: opened.pop().__exit__(None, None, None))

    def _lap(self) -> None:
        now = self._now()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._lapped
        self._lapped = now

    def _now(self) -> float:
        return now(self.device_type)


def now(device_type: str) -> float:
    """Seconds of a clock, after the device has finished its queued work."""
    if device_type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_bytes(device_type: str) -> int:
    """The peak memory of this process: on a GPU what PyTorch's allocator reserved, else resident memory."""
    if device_type == "cuda":
        return torch.cuda.max_memory_reserved()
    if STATUS.is_file():  # getrusage would count what the process before exec had
        return kib(str(STATUS), "VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
