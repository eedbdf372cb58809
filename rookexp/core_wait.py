"""How much of its time a process waits for a CPU core."""

from __future__ import annotations

from pathlib import Path

import torch

BUSY = 0.3  # a share above this says that other work has the cores
OWN = Path("/proc/self/schedstat")  # Linux: nanoseconds that the main thread ran, and waited to run


class CoreWait:
    """How long the main thread, which computes and waits for its worker threads, waits for a core."""

    def __init__(self) -> None:
        self.before = seconds(OWN)

    def share(self) -> float | None:
        """The share, in [0, 1], of the thread's runnable time since the last call in which it waited for a core.

        None if the system does not tell, and with a single PyTorch thread, which waits for no other waiting thread.
        """
        now = seconds(OWN)
        share = waited_share(self.before, now)
        self.before = now
        return share if torch.get_num_threads() > 1 else None


def seconds(file: Path) -> tuple[float, float]:
    """Seconds that a process's main thread has run, and has waited to run; (0, 0) if the system does not tell.

    `file` is its /proc/PID/schedstat.
    """
    if not file.is_file():
        return 0.0, 0.0
    ran, waited, _ = file.read_text(encoding="ascii").split()
    return int(ran) / 1e9, int(waited) / 1e9


def waited_share(before: tuple[float, float], now: tuple[float, float]) -> float | None:
    """The share, in [0, 1], of what was waited between two readings of `seconds`; None if the system does not tell."""
    ran, waited = (new - old for new, old in zip(now, before, strict=True))
    return waited / (ran + waited) if ran + waited > 0 else None
