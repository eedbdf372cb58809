"""`python -m rookexp.compare`: what differs between runs, and whether the difference is real.

Writes a table to the terminal, runs.csv, points.csv, and compare.html, a single page that needs no server or network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rookexp import stop
from rookexp.config import environment
from rookexp.errors import RookexpError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rookexp.comparison.points import Comparison, Point

PAGE, RUNS, POINTS = "compare.html", "runs.csv", "points.csv"
PLAIN_WIDTH = 200  # columns of the table if the output is not a terminal
ENDLESS = 10_000  # columns; more than any table needs
SHOWN_ROWS = 40  # points in the terminal; all are in the files
SHOWN_KEYS = 4  # most settings that get a column each; more share one column
SHOWN_FIGURES = ("reward", "kl", "entropy")  # besides the main one


def main() -> None:
    """Entry point: runs the command line."""
    environment.print_any_text()
    try:
        compare(sys.argv[1:])
        sys.stdout.flush()  # here, as a failure while Python exits could not set the exit status
    except BrokenPipeError:
        sys.exit(stop.unread())
    except KeyboardInterrupt:
        sys.exit(130)


def compare(argv: Sequence[str]) -> None:
    """Reads the folders, writes the files, prints; exits with status 2 if they cannot be compared or written."""
    parser = argparse.ArgumentParser(
        prog="python -m rookexp.compare", description="Compare runs and sweeps.", allow_abbrev=False
    )
    parser.add_argument("folders", metavar="RUN_OR_SWEEP", nargs="+", type=Path, help="run folders, or folders of runs")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("outputs/compare"), help="default: %(default)s")
    parser.add_argument("--baseline", metavar="X", help="point that the others are set beside: trial number or run")
    asked = parser.parse_args(argv)
    from rookexp.comparison import page, points

    try:
        found = points.compare(asked.folders, baseline=asked.baseline)
        try:
            page.write(found, asked.out / PAGE)
            write_tables(found, asked.out)
        finally:  # last, as a reader such as `head` may go away; and even if nothing can be written
            show(found)
    except RookexpError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        raise
    except OSError as error:  # such as a full disk
        print(f"error: {error.filename or asked.out}: {error.strerror}; type --out and another folder", file=sys.stderr)
        sys.exit(2)
    print(f"page: {asked.out / PAGE}  tables: {asked.out / POINTS}, {asked.out / RUNS}")


def write_tables(comparison: Comparison, folder: Path) -> None:
    """points.csv, a row per point with means, 95 % intervals and paired differences; runs.csv, a row per run."""
    from rookexp.files import csv_of, write_atomic

    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / POINTS, csv_of([point_row(comparison, point) for point in comparison.points], nan=""))
    write_atomic(folder / RUNS, csv_of([row for point in comparison.points for row in run_rows(point)], nan=""))


def point_row(comparison: Comparison, point: Point) -> dict[str, Any]:
    """The point's settings, each figure's mean and interval, and its difference from the baseline."""
    from rookexp.comparison.measures import FIGURES
    from rookexp.statistics import Difference

    row: dict[str, Any] = {"point": point.name, **point.settings}
    row |= {"runs": len(point.runs), "finished": len(point.finished)}
    for name in FIGURES:
        values, found = point.by_seed(name), point.interval(name)
        if values:
            row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high, f"{name}_n": len(values)}
        beside = comparison.beside.get(point.name, {}).get(name)
        if isinstance(beside, Difference):
            span = beside.interval
            row |= {f"{name}_minus_baseline": span.value, f"{name}_minus_baseline_low": span.low}
            row |= {f"{name}_minus_baseline_high": span.high, f"{name}_minus_baseline_n": beside.n}
            row |= {f"{name}_sign_flip_p": beside.p, f"{name}_said": beside.said}
        elif beside is not None:
            row[f"{name}_said"] = beside
    return row


def run_rows(point: Point) -> list[dict[str, Any]]:
    """For each run of the point: its folder's name, how it ended, the settings, its figures and its folder's path."""
    rows = []
    for run, figures in zip(point.runs, point.figures, strict=True):
        judged = run.summary.get("verdict") or {}
        ended = {"status": run.status, "reason": run.reason, "verdict": judged.get("passed")}
        rows.append(
            {"run": run.folder.name, "point": point.name, "seed": run.seed, **ended, **point.settings, **figures}
            | {"folder": str(run.folder)}
        )
    return rows


def show(comparison: Comparison, file: IO[str] | None = None) -> None:
    """Prints what differs and whether it is real, then the table; plain text if the output is not a terminal."""
    from rookexp.comparison import wording
    from rookexp.trackers.console import reader

    console = reader(file, PLAIN_WIDTH)
    for line in (*wording.said(comparison), *(f"note: {note}" for note in comparison.notes)):
        console.print(line, soft_wrap=not console.file.isatty(), highlight=False, markup=False)
    tables = [table(comparison), table(comparison, short=True), table(comparison, short=True, wraps=True)]
    shown = next((made for made in tables if _fits(made, console)), tables[-1])
    console.print(shown)
    if hidden := len(tables[0].columns) - len(shown.columns):
        console.print(f"{hidden} more columns are in the files, and in a wider terminal", highlight=False)
    left = len(comparison.points) - SHOWN_ROWS
    if left > 0:
        console.print(f"and {left} more points; all are in the files", highlight=False)


def table(comparison: Comparison, *, short: bool = False, wraps: bool = False) -> Table:
    """A row per point, the baseline, then best first: settings, main figure with interval, difference, verdict word.

    For narrow terminals, `short` leaves out the columns after these, and `wraps` breaks long cells.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from rookexp.comparison import wording
    from rookexp.comparison.points import text
    from rookexp.statistics import Difference
    from rookexp.trackers.console import duration

    made = Table(box=box.SIMPLE, caption="[ ]: 95 % interval over seeds; n: seeds in common", caption_justify="left")
    others = [name for name in SHOWN_FIGURES if name != comparison.main]
    figures = [name for name in others if any(point.by_seed(name) for point in comparison.points)]
    keys = list(comparison.baseline.settings)
    own = keys if len(keys) <= SHOWN_KEYS else ["settings"]
    several = len(comparison.points) > 1
    for heading in ("point", *own):
        made.add_column(escape(heading), overflow="fold", min_width=8)
    for heading in ("seeds", comparison.main, *(("beside baseline", "") if several else ())):
        over: Any = {"no_wrap": not wraps, "overflow": "fold" if wraps else "ellipsis"}
        made.add_column(heading, justify="right" if heading else "left", **over)
    for heading in () if short else (*figures, "verdict", "time"):
        made.add_column(heading, justify="right")
    for point in comparison.ranked[:SHOWN_ROWS]:
        base = point is comparison.baseline
        beside = None if base else comparison.beside[point.name].get(comparison.main)
        amount, word = ("", "baseline") if base else ("-", "not compared" if beside else "")
        if isinstance(beside, Difference):
            amount, word = f"{wording.change(beside.interval)} n {beside.n}", beside.said
        done, total, seconds = len(point.finished), point.total, point.interval("seconds").value
        behind = [wording.number(point.interval(name).value) for name in figures]
        judged = point.verdicts
        behind += [f"{sum(judged)}/{len(judged)}" if judged else "-", duration(seconds) if seconds >= 0 else "-"]
        made.add_row(
            escape(point.name),
            *([escape(text(point.settings[key])) for key in own] if own == keys else [escape(wording.settings(point))]),
            str(done) if done == total else f"{done} of {total}",
            escape(wording.interval(point.interval(comparison.main))),
            *((escape(amount), word) if several else ()),
            *(() if short else behind),
        )
    return made


def _fits(made: Table, console: Console) -> bool:
    """Whether no cell of a table is cut off and no column left out at the console's width."""
    from rich.measure import Measurement

    if Measurement.get(console, console.options.update(width=ENDLESS), made).minimum > console.width:
        return False  # rich would cut off the columns that may not wrap, without a sign
    with console.capture() as seen:
        console.print(made)
    return "…" not in seen.get()


if __name__ == "__main__":
    main()
