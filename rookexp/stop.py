"""Ends a run after a complete step instead of in its middle: on signals, on output without a reader, by a sweep."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rookexp.errors import RunPruned, RunStopped

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C, and what schedulers send
PIPE = getattr(signal, "SIGPIPE", signal.SIGTERM)  # stands for output to a pipe that has no reader
HANGUP = getattr(signal, "SIGHUP", None)  # the terminal is gone; Windows has no such signal, and nohup ignores it


class Stop:
    """The request to end a run, if there is one: a signal, or a sweep's pruning; a second signal ends it at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.pruned: RunPruned | None = None
        self._terminals: list[int] = []

    def prune(self, error: RunPruned) -> None:
        """Requests the end after this step, because the run's sweep has pruned it."""
        self.pruned = error

    def unread(self) -> None:
        """Requests the end after this step, as the reader of an output has gone; what is printed to it is lost."""
        self.signal = self.signal or PIPE
        for output in (1, 2):
            if has_no_reader(output):
                silence(output)

    def ending(self, step: int) -> RunStopped | RunPruned | None:
        """The exception that ends the run after this step, None if it goes on."""
        if self.signal is not None:
            return RunStopped(f"{self.signal.name} after step {step}", exit_status(self.signal))
        return self.pruned

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the first signal is only recorded. Outside, and off the main thread, signals act as before."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python lets no other thread handle signals
            return
        heard = [*SIGNALS]
        if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:
            heard.append(HANGUP)
        self._terminals = [output for output in (1, 2) if os.isatty(output)]
        before = {number: signal.signal(number, self._note) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal not in (None, PIPE):
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(exit_status(number))
        self.signal = signal.Signals(number)
        if number == HANGUP:
            for output in self._terminals:  # writing to one that is gone is an error
                silence(output)
        with suppress(OSError):  # a pipe to a `tee` that the same Ctrl-C has ended
            # Not print: it fails when the signal comes while a line is being printed.
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, said(self.signal))


def has_no_reader(output: int) -> bool:
    """Whether writing to a standard output, 1 or 2, would break the pipe; True if the system cannot tell."""
    if not hasattr(select, "poll"):
        return True
    asked = select.poll()
    asked.register(output, 0)
    return bool(asked.poll(0))


def silence(output: int) -> None:
    """Redirects a standard output, 1 or 2, to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)


def unread() -> int:
    """Silences standard output, also during Python's exit; returns the status of a broken pipe, as with `head`."""
    silence(1)
    return 141


def said(number: signal.Signals) -> bytes:
    """The message in answer to the first signal."""
    return f"\n{number.name}: this step is finished and saved first; a second signal stops at once\n".encode()


def exit_status(number: int) -> int:
    """What a shell reports of a process that a signal has ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number
