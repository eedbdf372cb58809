"""The end of a sweep by Hydra's own sweeper, `-m seed=0,1,2`: a table of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.table import Table

BASIC = "hydra._internal."
FIGURES = ("gain", "reward", "kl", "entropy", "seconds")


class Summary(Callback):
    """Shows the runs of a basic sweep; nothing where there are none, or where our sweeper has shown them."""

    def on_multirun_end(self, config: DictConfig, **more: Any) -> None:
        """Called by Hydra when all jobs have ended."""
        if not str(config.hydra.sweeper._target_).startswith(BASIC):
            return
        from rookexp import runs

        folder = Path(str(config.hydra.sweep.dir))
        if found := [runs.read(run) for run in runs.find(folder)]:
            from rich.console import Console

            Console().print(table(found), highlight=False)
            Console().print(f"compare: python -m rookexp.compare {folder}", soft_wrap=True, highlight=False)


def table(found: list[Any]) -> Table:
    """A line for each run: its number, what was varied, how it ended, and its figures."""
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
        told.add_row(*cells, f"{run.status} {ended}".strip())
    return told
