"""What black_repair's page shows: the curve over steps, and boards with the move before and the move after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from before_after import Row
from flagship_positions import SIDES
from flagship_rates import NAMES, Answers

from rookexp import boards, chess_text, statistics

SCALE, COLUMNS, MARGIN, CAPTION = 0.5, 4, 12, 30  # of the sheet; lengths in pixels
BEFORE, AFTER = "#cc2936dd", "#15873bdd"
COLOURS = {"best_is_engine": "#1f6fd6", "argmax_is_engine": "#c98a1b"}


def draw_curve(steps: Mapping[int, Mapping[int, Answers]], path: Path) -> None:
    """A panel a colour: the mean over seeds of both readings at each evaluation, with the 95 % band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(SIDES), sharey=True)
    x = sorted(set.intersection(*(set(by_step) for by_step in steps.values())))
    for axis, side in zip(axes, SIDES, strict=True):
        for part, colour in COLOURS.items():
            y = [[np.mean([row[part] for row in each[step][side]]) for each in steps.values()] for step in x]
            found = [statistics.mean(values) for values in y]
            axis.plot(x, [100 * each.value for each in found], color=colour, marker=".", label=NAMES[part])
            low, high = ([100 * min(max(getattr(each, end), 0), 1) for each in found] for end in ("low", "high"))
            if len(steps) > 1:
                axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(f"{side} to move", fontsize=10, loc="left")
        axis.set_xlabel("steps done")
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("% of held-out positions")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"Greedy answers, {len(steps)} seeds: mean and 95 % band over seeds", fontsize=11)
    figure.savefig(path, metadata={"Software": None})


def sheet(before: Sequence[Row], after: Sequence[Row]) -> str:
    """An SVG of boards: what was answered after `B:` before in red, after in green."""
    side = boards.SIZE * SCALE
    wide, high = side + MARGIN, side + MARGIN + CAPTION
    width, height = COLUMNS * wide + MARGIN, -(-len(before) // COLUMNS) * high + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}">',
        f'<defs>{boards.pieces()}</defs><rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        x, y = MARGIN + i % COLUMNS * wide, MARGIN + i // COLUMNS * high
        board = boards.board_of(old["prompt"])
        assert board is not None, "the run has asked it"
        moves = [best_of(row) for row in (old, new)]
        colours = {m: c for m, c in zip(moves, (BEFORE, AFTER), strict=True) if chess_text.MOVE.fullmatch(m)}
        drawn = f"{boards.position(old['prompt'])}{boards.arrows_of(colours, board.turn)}"
        parts.append(f'<g transform="translate({x:g} {y:g}) scale({SCALE})"><use href="#squares"/>{drawn}</g>')
        for line, (word, row, move) in enumerate(zip(("before", "after"), (old, new), moves, strict=True), start=1):
            said = f"{word} {move or 'no move'}" + ", the engine's best" * bool(row["best_is_engine"])
            said += ", illegal" * (not row["best_legal"])
            style = 'font-family="sans-serif" font-size="10"'
            parts.append(f'<text x="{x:g}" y="{y + side + 12 * line:g}" {style}>{escape(said)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def best_of(row: Row) -> str:
    """What an answer says after `B:`; "" for nothing."""
    answer = chess_text.parse_p(row["prompt"] + row["completion"])
    return (answer.best or "") if answer is not None else ""
