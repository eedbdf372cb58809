"""Whether this process gets the cores that it wants."""

from __future__ import annotations

from pathlib import Path

import torch

OWN = Path("/proc/self/schedstat")  # Linux; for the main thread, nanoseconds that it ran, and that it waited to run


class CoreWait:
    """How long the main thread, in which all is computed and its helpers are waited for, waits for a core."""

    def __init__(self) -> None:
        self.before = _seconds()

    def share(self) -> float | None:
        """Of the time since the last look in which it could have run, the share in which other work had the core.

        None where nothing tells, and with one thread of PyTorch, which waits for no other that may be waiting, too.
        """
        now = _seconds()
        ran, waited = (new - old for new, old in zip(now, self.before, strict=True))
        self.before = now
        return waited / (ran + waited) if ran + waited > 0 and torch.get_num_threads() > 1 else None


def _seconds() -> tuple[float, float]:
    """For how long the main thread has run, and has waited to; (0, 0) where nothing tells."""
    if not OWN.is_file():
        return 0.0, 0.0
    ran, waited, _ = OWN.read_text(encoding="ascii").split()
    return int(ran) / 1e9, int(waited) / 1e9
