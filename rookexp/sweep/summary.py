"""The end of a sweep by Hydra's own sweeper, `-m seed=0,1,2`: a table of its runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rookexp.runs import Run

FIGURES = ("gain", "reward", "kl", "entropy", "seconds")


def show(folder: Path) -> None:
    """Shows the runs in a sweep's folder; nothing where there are none, as with a door that trains nothing."""
    from rookexp import runs
    from rookexp.console import reader
    from rookexp.report import PLAIN_WIDTH

    if found := [runs.read(run) for run in runs.find(folder)]:
        console = reader(None, PLAIN_WIDTH)
        console.print(table(found), highlight=False)
        console.print(f"compare: python -m rookexp.compare {shlex.quote(str(folder))}", soft_wrap=True, highlight=False)


def table(found: list[Run]) -> Table:
    """A line for each run: its number, what was varied, how it ended, and its figures."""
    from rich.markup import escape
    from rich.table import Table

    from rookexp import check, runs

    seeds = [run.seed for run in found]
    varied = {key: v for key, v in runs.differing([run.config for run in found]).items() if list(v) != seeds}
    told = Table(box=None, pad_edge=False)
    for name in ("job", *varied, *(["seed"] if len(set(seeds)) > 1 else []), *FIGURES, "ended"):
        told.add_column(name, overflow="fold")
    for number, run in enumerate(found):
        own = runs.figures(run.rows)
        cells = [run.folder.name, *(check.spell(values[number]) for values in varied.values())]
        cells += [check.spell(run.seed)] if len(set(seeds)) > 1 else []
        cells += [f"{own[name]:.4g}" if name in own else "-" for name in FIGURES]
        judged = run.summary.get("verdict")
        ended = run.reason or (("PASS" if judged["passed"] else "FAIL") if judged else "")
        told.add_row(*map(escape, [*cells, f"{run.status} {ended}".strip()]))
    return told
