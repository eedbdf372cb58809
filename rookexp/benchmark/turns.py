"""A side's half of the conversation with the bench, and the watch that cuts its turn into phases."""

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
    """Lines of JSON: a side says that it is ready, waits to be told to go, and answers with its figures.

    What else a library prints goes to standard error, which is a file.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._about: dict[str, Any] = {}

    def about(self, **facts: Any) -> None:
        """What the side says of itself when it is first ready."""
        self._about |= facts

    def wait(self) -> dict[str, Any]:
        """What the next turn shall be; ends the process where none comes any more."""
        self._say({"ready": self._about})
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        asked: dict[str, Any] = json.loads(line)
        return asked

    def answer(self, **figures: Any) -> None:
        """The figures of the turn."""
        self._say({"figures": figures})

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


class Stopwatch:
    """Seconds of a turn and of each of its phases; a phase inside another one is taken off that."""

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
        """Counts what runs inside."""
        self._lap()
        self._open.append(name)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        """Puts a method or a function of `owner` into a phase, for this process."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return inner(*args, **kwargs)

        setattr(owner, name, timed)

    def wrap_learning(self) -> None:
        """Puts what every trainer calls in PyTorch into its phase: backward, clipping and the optimizer's step."""
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
    """Seconds of a clock, after what the device still had to do."""
    if device_type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_bytes(device_type: str) -> int:
    """The most memory that this process has had: of the GPU what PyTorch's allocator held, else resident."""
    if device_type == "cuda":
        return torch.cuda.max_memory_reserved()
    if STATUS.is_file():  # getrusage would count what the process before exec had
        return kib(str(STATUS), "VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
