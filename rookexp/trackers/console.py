"""A run in the terminal: a live bar, or plain lines where the output is no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt

from rookexp.track import Tracker

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress
    from rich.table import Table

PACE_STEPS = 20  # the time left is the median time of that many steps, times the steps left

# What the terminal shows of a step, if it is there: metric, label, format.
SHOWN = (
    ("reward/mean", "reward", ".3f"),
    ("eval/reward", "eval", ".3f"),
    ("eval/loss", "eval", ".4f"),
    ("kl", "kl", ".4f"),
    ("entropy", "entropy", ".3f"),
    ("grad_norm", "grad", ".3g"),
    ("tokens_per_s", "tok/s", ".0f"),
)


class ConsoleTracker(Tracker):
    """A live bar in a terminal; elsewhere a plain line every `every` steps, without escape codes."""

    def __init__(self, *, every: Annotated[int, Gt(0)], total_steps: Annotated[int, Ge(0)]) -> None:
        self.every = every
        self.total_steps = total_steps
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._step: int | None = None
        self._began: float | None = None
        self._at = 0.0
        self._paces: deque[float] = deque(maxlen=PACE_STEPS)
        self._latest: dict[str, float] = {}
        self._said: dict[str, int] = {}  # metric -> step of its latest value

    def start(self, config: Mapping[str, Any]) -> None:
        self._began = self._at = time.monotonic()
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            self._start_live()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        new = step != self._step
        if new and self._step is not None:
            self._paces.append((now - self._at) / (step - self._step))
        self._step, self._at = step, now
        self._latest |= metrics
        self._said |= dict.fromkeys(metrics, step)
        if self._live is not None:
            self._show(step)
        elif new and (step % self.every == 0 or step == self.total_steps):
            eta = self.eta_s(step)
            left = "" if eta is None else f"  eta {duration(eta)}"
            print(f"step {step}/{self.total_steps}  {self._line(step, metrics)}{left}", flush=True)

    def finish(self, status: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._began is not None:
            print(f"{status} after {duration(time.monotonic() - self._began)}", flush=True)
            self._began = None

    def eta_s(self, step: int) -> float | None:
        """Seconds to the last step at the median pace of the latest steps; None before two steps were seen."""
        paces = sorted(self._paces)
        return paces[len(paces) // 2] * (self.total_steps - step) if paces else None

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        shown = SHOWN if "reward/mean" in metrics or "loss" not in metrics else (("loss", "loss", ".4f"), *SHOWN)
        return "  ".join(
            f"{label}{'' if self._said[name] == step else f'@{self._said[name]}'} {metrics[name]:{form}}"
            for name, label, form in shown
            if name in metrics
        )

    def _start_live(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        left = TextColumn("{task.description}")
        self._progress = Progress(TextColumn("step"), BarColumn(bar_width=40), MofNCompleteColumn(), left)
        self._progress.add_task("", total=self.total_steps)
        # What others print goes above the bar: standard output always, standard error where it is this terminal too.
        shared = sys.stderr.isatty()
        self._live = Live(self._progress, console=Console(), refresh_per_second=2, redirect_stderr=shared)
        self._live.start()

    def _show(self, step: int) -> None:
        from rich.console import Group
        from rich.text import Text

        assert self._live is not None
        assert self._progress is not None
        eta = self.eta_s(step)
        left = "" if eta is None else f"eta {duration(eta)}"
        self._progress.update(self._progress.task_ids[0], completed=step, description=left)
        self._live.update(Group(self._progress, Text(self._line(step, self._latest))))


def reader(file: IO[str] | None, width: int) -> Console:
    """A console for a person to read, on standard output or `file`.

    With colours in a terminal, else plain text of `width` columns, whatever FORCE_COLOR says. Where nobody reads any
    more it raises BrokenPipeError, as elsewhere.
    """
    from rich.console import Console

    class Read(Console):
        def on_broken_pipe(self) -> None:  # rich's own ends the process with status 1
            raise BrokenPipeError

    out = sys.stdout if file is None else file
    if out.isatty():
        return Read(file=out)
    return Read(file=out, force_terminal=False, no_color=True, color_system=None, width=width)


def plain_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table without lines, which folds long cells and does not read any word as markup."""
    from rich.markup import escape
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for heading in headings:
        made.add_column(escape(heading), overflow="fold")
    for row in rows:
        made.add_row(*map(escape, row))
    return made


def duration(seconds: float) -> str:
    """Seconds as `42s`, `3m07s` or `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"
