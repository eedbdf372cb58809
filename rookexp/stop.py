"""What ends a run at the end of a step instead of in its middle: signals, and output that nobody reads any more."""

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
PIPE = getattr(signal, "SIGPIPE", signal.SIGTERM)  # by its name what was written to a pipe that nobody reads any more
HANGUP = getattr(signal, "SIGHUP", None)  # the terminal is gone; Windows has no such thing, and nohup ignores it


class Stop:
    """Which signal has asked for the end, if one has, and a second one does not wait; or why a sweep has."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.pruned: RunPruned | None = None
        self._terminals: list[int] = []

    def prune(self, error: RunPruned) -> None:
        """Asks for the end after this step, for a sweep that has seen enough."""
        self.pruned = error

    def unread(self) -> None:
        """Asks for the end after this step, as the reader of an output has gone; what is printed until then is lost."""
        self.signal = self.signal or PIPE
        for output in (1, 2):
            if has_no_reader(output):
                silence(output)

    def ending(self, step: int) -> RunStopped | RunPruned | None:
        """What ends the run after this step, if anything does."""
        if self.signal is not None:
            return RunStopped(f"{self.signal.name} after step {step}", exit_status(self.signal))
        return self.pruned

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the first signal is only noted. Elsewhere, and outside the main thread, signals do what they did."""
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
            for output in self._terminals:  # what is written to one that is gone is an error
                silence(output)
        with suppress(OSError):  # a pipe to a `tee` that the same Ctrl-C has ended
            # Not print: it fails when the signal comes while a line is being printed.
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, said(self.signal))


def has_no_reader(output: int) -> bool:
    """Whether what is written to a standard output would be a broken pipe; True where the system cannot tell."""
    if not hasattr(select, "poll"):
        return True
    asked = select.poll()
    asked.register(output, 0)
    return bool(asked.poll(0))


def silence(output: int) -> None:
    """Lets what is written to a standard output, 1 or 2, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)


def unread() -> int:
    """The exit status of one whose output nobody reads any more, as behind `head`; Python writes nothing at its end."""
    silence(1)
    return 141


def said(number: signal.Signals) -> bytes:
    """What the first signal is answered."""
    return f"\n{number.name}: this step is finished and saved first; a second signal stops at once\n".encode()


def exit_status(number: int) -> int:
    """What a shell reports of a process that a signal has ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number
