"""The end of a sweep by Hydra's own sweeper, `-m seed=0,1,2`: a table of its runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rookexp.config import check
from rookexp.run_folder import runs
from rookexp.run_folder.report import PLAIN_WIDTH
from rookexp.run_folder.runs import Run
from rookexp.trackers.console import plain_table, reader

FIGURES = ("gain", "reward", "kl", "entropy", "seconds")


def show(folder: Path) -> None:
    """Shows the runs in a sweep's folder; nothing where there are none, as for a command that trains nothing."""
    if found := [runs.read(run) for run in runs.find(folder)]:
        console = reader(None, PLAIN_WIDTH)
        console.print(plain_table(*table(found)), highlight=False)
        console.print(f"compare: python -m rookexp.compare {shlex.quote(str(folder))}", soft_wrap=True, highlight=False)


def table(found: list[Run]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each run: its number, what was varied, how it ended, and its figures."""
    varied = typed(found) or differing(found)
    rows = []
    for number, run in enumerate(found):
        own = runs.figures(run.rows)
        judged = run.summary.get("verdict")
        ended = run.reason or (("PASS" if judged["passed"] else "FAIL") if judged else "")
        rows.append(
            [
                run.folder.name,
                *(values[number] for values in varied.values()),
                *(f"{own[name]:.4g}" if name in own else "-" for name in FIGURES),
                f"{run.status} {ended}".strip(),
            ]
        )
    return ["job", *varied, *FIGURES, "ended"], rows


def typed(found: Sequence[Run]) -> dict[str, list[str]]:
    """What was typed differently for the runs, as Hydra notes it in their folders: key -> value for each run."""
    said = [dict(text.partition("=")[::2] for text in run.overrides) for run in found]
    columns = {key: [own.get(key, "-") for own in said] for own in said for key in own}
    return {key: values for key, values in columns.items() if len(set(values)) > 1}


def differing(found: Sequence[Run]) -> dict[str, list[str]]:
    """What differs in the runs' configurations; their seeds once, at the end."""
    seeds = [run.seed for run in found]
    varied = {key: v for key, v in runs.differing([run.config for run in found]).items() if list(v) != seeds}
    varied |= {runs.SEED: tuple(seeds)} if len(set(seeds)) > 1 else {}
    return {key: [check.spell(value) for value in values] for key, values in varied.items()}
