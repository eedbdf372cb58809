"""The report at the end of a run: before and after in a table, some completions, the verdict, and a page of curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rookexp.track import CURVES
from rookexp.trackers.console import duration, reader
from rookexp.verdict import WINDOW, Rows, Verdict, column, moving_average

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_WIDTH = 120
MAX_TEXT = 400  # characters of a completion that are shown
BY_COLOUR = (
    ("eval/best_is_engine_white", "white to move", "#c98a1b"),
    ("eval/best_is_engine_black", "black to move", "#1f2a44"),
)
BLUE, RED = "#2f6fb5", "#c0392b"
LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False}


def before_after(rows: Rows) -> list[tuple[str, float, float]]:
    """Name, first and last value of each metric under `eval/`, `eval/reward` first."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("eval/"))
    found = []
    for name in sorted(names, key=lambda name: name != "eval/reward"):
        values = column(rows, name)[1]
        if len(values):
            found.append((name.removeprefix("eval/"), float(values[0]), float(values[-1])))
    return found


def costs(rows: Rows) -> dict[str, float]:
    """`steps` done, total `seconds` and median `tokens_per_s`; the latter two only where they were logged."""
    seconds, speed = column(rows, "step_s")[1], column(rows, "tokens_per_s")[1]
    found = {"steps": float(rows[-1]["step"]) if rows else 0.0}
    if len(seconds):
        found["seconds"] = float(seconds.sum())
    if len(speed):
        found["tokens_per_s"] = float(np.median(speed))
    return found


def pairs(completions: Rows, count: int) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """For up to `count` prompts, a completion of the first logged step and one of the last, as logged."""
    if not completions:
        return []
    first, last = (pick(row["step"] for row in completions) for pick in (min, max))
    after = {row["prompt"]: row for row in reversed(completions) if row["step"] == last}
    before = {row["prompt"]: row for row in reversed(completions) if row["step"] == first and row["prompt"] in after}
    return [(before[prompt], after[prompt]) for prompt in list(reversed(before))[:count]]


def show(
    rows: Rows, completions: Rows, verdict: Verdict | None, folder: Path, *, samples: int, file: IO[str] | None = None
) -> None:
    """Writes the report to `file` (None: standard output): with colours to a terminal, as plain text elsewhere."""
    console = reader(file, PLAIN_WIDTH)
    for part in renderables(rows, completions, verdict, folder, samples=samples):
        console.print(part, soft_wrap=isinstance(part, str), highlight=False, markup=False)


def renderables(
    rows: Rows, completions: Rows, verdict: Verdict | None, folder: Path, *, samples: int
) -> list[RenderableType]:
    """The report as rich parts: table, completions before and after, verdict lines, cost and folder."""
    from rich.text import Text

    parts: list[RenderableType] = [_table(before_after(rows))] if before_after(rows) else []
    for before, after in pairs(completions, samples):
        parts.append(Text(str(before["prompt"]).strip(), style="bold"))
        for label, row, style in (("before", before, "dim"), ("after", after, "")):
            text = _shortened(str(row["completion"]))
            parts.append(Text(f"  {label:<6} {_score(row.get('reward'))}  {text}", style=style))
        parts.append("")
    if verdict is not None:
        parts += [
            Text(reason, style="green" if reason.startswith("PASS") else "bold red") for reason in verdict.reasons
        ]
        word, style = ("PASS", "bold green") if verdict.passed else ("FAIL", "bold red")
        parts += [Text(f"verdict: {word}", style=style), ""]
    cost = costs(rows)
    line = [f"{cost['steps']:.0f} steps" + (f" in {duration(cost['seconds'])}" if "seconds" in cost else "")]
    line += [f"{cost['tokens_per_s']:.0f} tokens/s"] if "tokens_per_s" in cost else []
    return [*parts, ", ".join(line), f"curves: {folder / CURVES}", f"run folder: {folder}"]


def plot(rows: Rows, path: Path, *, title: str) -> None:
    """Writes a PNG of reward, KL, entropy, gradient norm and accuracy by colour over steps, as far as logged."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    known = (
        (_reward, ("reward/mean", "eval/reward")),
        (_kl, ("kl",)),
        (_entropy, ("entropy",)),
        (_grad_norm, ("grad_norm",)),
        (_by_colour, [name for name, *_ in BY_COLOUR]),
    )
    panels = [draw for draw, names in known if any(len(column(rows, name)[1]) for name in names)] or [_reward]
    wide = len(panels) % 2  # of an odd number of panels the first takes the whole width
    lines = (len(panels) + 1) // 2
    columns = min(len(panels), 2)
    width, height = (12.4 if columns == 2 else 7.5), 3.3 * lines + 0.5
    figure = Figure(figsize=(width, height), dpi=110)
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title, y=1 - 0.1 / height, fontsize=12, fontweight="bold")
    # Margins and gaps in inches: matplotlib's own layouts draw everything twice to find them.
    left, right, top, bottom, across, below = 0.9, 0.12, 0.6, 0.48, 0.95, 0.78
    grid = figure.add_gridspec(
        lines,
        columns,
        left=left / width,
        right=1 - right / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=across / ((width - left - right - across) / 2),
        hspace=below / ((height - top - bottom - (lines - 1) * below) / lines),
    )
    for i, draw in enumerate(panels):
        cell = grid[0, :] if wide and i == 0 else grid[(i + wide) // 2, (i + wide) % 2]
        axes = figure.add_subplot(cell)
        draw(axes, rows)
        axes.set_xlabel("steps done")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
        if axes.get_legend() is None and axes.get_legend_handles_labels()[0]:
            axes.legend(**LEGEND)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(path)  # savefig draws twice


def _curve(axes: Any, rows: Rows, name: str, colour: str = BLUE, label: str = "") -> None:
    x, y = column(rows, name)
    axes.ticklabel_format(axis="y", scilimits=(-2, 5))  # short labels: the margins are fixed
    if len(y) < WINDOW:
        axes.plot(x, y, marker="o", markersize=3, linewidth=1.2, color=colour, label=label)
    else:
        said = f"{label}, " if label else ""
        axes.plot(x, y, linewidth=0.8, alpha=0.35, color=colour, label=f"{said}each time")
        axes.plot(x, moving_average(y), linewidth=1.8, color=colour, label=f"{said}mean of the last {WINDOW}")


def _reward(axes: Any, rows: Rows) -> None:
    for name, colour, label in (("reward/mean", BLUE, "sampled"), ("eval/reward", RED, "greedy")):
        if len(column(rows, name)[1]):
            _curve(axes, rows, name, colour, label)
    axes.set(title="Reward", ylabel="reward a completion")


def _kl(axes: Any, rows: Rows) -> None:
    _curve(axes, rows, "kl")
    axes.set(title="KL to the reference", ylabel="nats a token")
    axes.set_ylim(bottom=0)


def _entropy(axes: Any, rows: Rows) -> None:
    _curve(axes, rows, "entropy")
    axes.set(title="Entropy of the policy", ylabel="nats a token")


def _grad_norm(axes: Any, rows: Rows) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    _curve(axes, rows, "grad_norm")
    axes.set(title="Gradient norm before clipping", ylabel="L2 norm")
    norms = column(rows, "grad_norm")[1]
    if np.all(norms > 0):
        axes.set(yscale="log", ylabel="L2 norm (log scale)")
        narrow = norms.max() < 5 * norms.min()  # else a log axis might have one label, or none
        axes.yaxis.set_major_locator(MaxNLocator(5) if narrow else LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")


def _by_colour(axes: Any, rows: Rows) -> None:
    for (name, label, colour), (style, width) in zip(BY_COLOUR, (("-", 2.6), ("--", 1.3)), strict=True):
        x, y = column(rows, name)  # two line styles, so that both show where they coincide
        axes.plot(x, 100 * y, style, marker="o", markersize=2.5, linewidth=width, color=colour, label=label)
    axes.set(title="Greedy best move (B:) is the engine's", ylabel="% of positions", ylim=(-2, 118))
    axes.set_yticks(range(0, 101, 20))
    axes.legend(loc="upper left", ncols=2, **LEGEND)  # above 100 %


def _table(figures: Sequence[tuple[str, float, float]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(title="greedy evaluation", title_justify="left", box=box.SIMPLE)
    table.add_column("metric")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    for name, before, after in figures:
        table.add_row(name, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
    return table


def _score(reward: Any) -> str:
    return "     -" if reward is None else f"{reward:6.3f}"


def _shortened(text: str) -> str:
    line = " ".join(text.split()) or (f"({len(text)} characters, all of them space)" if text else "(empty)")
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
