"""An evaluation as one HTML file that needs nothing else: every figure with its interval, and some answers drawn."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rookexp import boards, chess_text
from rookexp.comparison import page
from rookexp.tasks.figures import Estimate, Figure, Figures

SIDES = {"w": "White", "b": "Black"}
DRAWN = 2  # answers of each kind
WIDE = 150  # pixels of 0 to 100 %
ARROWS = (
    '<p class="hint">P answers: <b class="engine">green</b> a right move, <b class="chosen">blue</b> the chosen one '
    'where it is another, <b class="illegal">red</b> where it is illegal, <b class="listed">grey</b> the other listed '
    'moves that are legal; the side to move is below. A answers: the board that the model wrote, <b class="chosen">blue'
    '</b> the move, <b class="illegal">red</b> rings where a square is not as it should be; White is below. Drawn are '
    f"the first {DRAWN} right and the first {DRAWN} wrong answers of each side to move, in the order in which they "
    "were asked.</p>"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer as it may be drawn."""

    prompt: str
    completion: str
    gold: str  # the whole document, or the moves that are right
    right: bool
    best: str | None  # a right move of a P prompt; None for an A prompt

    @property
    def answer(self) -> str:
        """What would be right: the document after its prompt, or the moves."""
        start = self.prompt.rstrip()
        return self.gold.removeprefix(start) if self.gold.startswith(start) else self.gold

    @property
    def side(self) -> str:
        """`White` or `Black`, whose move it is; "" where the prompt has no position."""
        asked = chess_text.parse_a_prompt(self.prompt) or chess_text.parse_p(self.prompt)
        return SIDES.get(" ".join(asked.fen.split()[1:2]), "") if asked is not None else ""


@dataclass(frozen=True, slots=True)
class Part:
    """One section: what was asked, and what came of it."""

    name: str
    about: str  # how much was asked
    figures: Figures
    shown: Sequence[Shown]  # every answer, in the order of asking
    best_is: tuple[str, str] = ("the engine's", "engine")  # what `best` is called where it was chosen, and where not


def html(title: str, parts: Sequence[Part]) -> str:
    """The page as HTML."""
    nav = [(part.name, place_of(part.name)) for part in parts]
    said = (
        '<section class="said"><p>Shares with their 95 % Wilson intervals, means and medians with theirs. What depends '
        "on each other, as the moves of a game, counts as fewer independent ones. The bars go from 0 to 100 %.</p>"
        f"{ARROWS}</section>"
    )
    return page.whole(title, "evaluate", nav, said + "".join(map(section, parts)), script="")


def place_of(name: str) -> str:
    """The HTML id of a section."""
    return "at-" + re.sub(r"\W+", "-", name)


def section(part: Part) -> str:
    """A part's table and drawings."""
    cards = "".join(
        f'<div class="card"><b>{"right" if shown.right else "wrong"}, {shown.side} to move</b>'
        f"{drawing(shown, part.best_is)}</div>"
        for shown in chosen(part.shown)
    )
    return (
        f'<section><h2 id="{place_of(part.name)}">{escape(part.name)}</h2><p class="hint">{escape(part.about)}</p>'
        f'{table(part.figures)}<div class="cards four">{cards}</div></section>\n'
    )


def chosen(answers: Sequence[Shown]) -> list[Shown]:
    """The answers that are drawn: the first few right and wrong ones of each side, as the page says."""
    found = []
    for side, right in itertools.product(SIDES.values(), (True, False)):
        alike = (shown for shown in answers if (shown.right, shown.side) == (right, side))
        found += list(itertools.islice(alike, DRAWN))
    return found


def table(figures: Figures) -> str:
    """One row for each figure; where figures are split by side, a column for all and one for each side."""
    rows: dict[str, dict[str, Figure | Estimate]] = {}
    for name, figure in figures.items():
        base, _, side = name.rpartition(", ")
        whole = side not in SIDES.values()
        rows.setdefault(name if whole else base, {})["all" if whole else side] = figure
    columns = [column for column in ("all", *SIDES.values()) if any(column in row for row in rows.values())]
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    head = f"<thead><tr><th></th>{head}</tr></thead>" if len(columns) > 1 else ""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{cell(row[column]) if column in row else ''}</td>" for column in columns)
        + "</tr>"
        for name, row in rows.items()
    )
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def cell(figure: Figure | Estimate) -> str:
    """A figure with its interval; for a share, the interval is also drawn."""
    if isinstance(figure, Estimate):
        ends = "" if figure.interval is None else " to ".join(f"{end:.3f}" for end in figure.interval) + " "
        kind = "" if figure.kind == "mean" else f"{figure.kind}, "
        return f"{figure.value:.3f}<small>{ends}({kind}n = {figure.total})</small>"
    if not figure.total:
        return "none"
    low, high = figure.interval
    bar = (
        f'<svg class="forest bar" viewBox="0 0 {WIDE} 14" aria-hidden="true"><path class="base" d="M0 7H{WIDE}"/>'
        f'<path class="span" d="M{WIDE * low:.1f} 7H{WIDE * high:.1f}"/>'
        f'<path class="mean" d="M{WIDE * figure.share:.1f} 2V12"/></svg>'
    )
    alone = (
        "" if figure.sized is None or figure.sized > figure.total - 1 else f", as {figure.sized:.3g} independent ones"
    )
    counts = f"{100 * low:.1f} to {100 * high:.1f} ({figure.hits} of {figure.total}{alone})"
    return f'<span class="share">{100 * figure.share:.1f} %</span>{bar}<small>{counts}</small>'


def drawing(shown: Shown, best_is: tuple[str, str]) -> str:
    """An answer on its board, in words, and as it was written."""
    if shown.best is None:
        found = boards.next_state(shown.prompt, shown.completion, shown.answer)
        pieces, drawn = (None, None) if found is None else found
    else:
        pieces, drawn = (
            boards.position(shown.prompt),
            boards.answer(shown.prompt, shown.completion, shown.best, best_is),
        )
    words = "no board in it; drawn is what was asked" if drawn is None else drawn.words
    if drawn is None and (parsed := chess_text.parse_a_prompt(shown.prompt)) is not None:
        pieces = boards.white_below(parsed.fen)
    board = "" if pieces is None else f'<use href="#squares"/>{pieces}{"" if drawn is None else drawn.arrows}'
    asked, said = (escape(" ".join(text.split())) for text in (shown.prompt, shown.completion))
    gold = "" if shown.right else f'<p class="text">right: {escape(" ".join(shown.answer.split()))}</p>'
    return (
        f'<svg viewBox="0 0 {boards.SIZE} {boards.SIZE}" role="img" aria-label="{escape(words)}">{board}</svg>'
        f'<p>{escape(words)}</p><p class="text">{asked}</p><p class="text">{said or "(empty)"}</p>{gold}'
    )
