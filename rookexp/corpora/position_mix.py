"""Positions by exact quotas, without an engine: a file of them, a report of the mix, and a sheet of sampled boards."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import chess
from annotated_types import Ge, Gt

from rookexp import boards, chess_text
from rookexp.config.check import spell
from rookexp.errors import DataError, PartError
from rookexp.files import write_new
from rookexp.shares import in_turns, shares_of
from rookexp.tasks import positions

KINDS = ("opening", "middlegame", "endgame")
COLOURS = {chess.WHITE: "white", chess.BLACK: "black"}
ATTEMPTS = 20_000  # draws in a row that give nothing new: there are no more such positions
SHEET_COLUMNS, SCALE, MARGIN, CAPTION, HEADING = 6, 0.5, 12, 16, 24  # of the sheet; lengths in its own pixels


@dataclass(frozen=True, slots=True)
class Found:
    """A position of the mix."""

    board: chess.Board
    kind: str
    plies: int | None  # half-moves from the start; None where it was constructed

    @property
    def pieces(self) -> int:
        """The number of pieces, kings included."""
        return chess.popcount(self.board.occupied)


@dataclass(kw_only=True)
class PositionMix:
    """Distinct positions of unfinished games, White and Black to move equally often in each kind.

    opening: after 0 to `opening_plies` weighted random plies; middlegame: after `middlegame_plies` (least and most) of
    them, with at least `endgame_pieces` pieces; endgame: constructed, with fewer pieces than that. Distinct is by
    `positions.position_key`, which a symmetry does not change. Everything depends on the arguments alone.
    """

    files = ("positions.jsonl", "positions.json", "positions.svg")  # the positions, the report and the sheet

    positions: Annotated[int, Gt(0)] | None
    shares: Mapping[str, float]
    opening_plies: Annotated[int, Ge(0)]
    middlegame_plies: tuple[Annotated[int, Ge(0)], Annotated[int, Ge(0)]]
    endgame_pieces: Annotated[int, Ge(4)]
    sheet: Annotated[int, Ge(1)]
    seed: Annotated[int, Ge(0)]

    def __post_init__(self) -> None:
        self.shares = shares_of("mix.shares", self.shares, KINDS)
        plies = list(self.middlegame_plies)
        if plies != sorted(plies):
            raise PartError(f"middlegame_plies={spell(plies)}: allowed: the smallest number first, then the largest")

    def make(self, count: int) -> list[Found]:
        """`count` positions, kind by kind and the colours in turn.

        Raises: DataError where not enough positions of a kind are found.
        """
        rng = random.Random(f"{self.seed}/mix")
        seen: set[str] = set()
        return [self._new(kind, turn, rng, seen) for kind, turn in in_turns(count, self.shares)]

    def write(self, folder: Path) -> str:
        """Writes `files`; returns the report.

        Raises: DataError where a file cannot be written or exists with other lines, or not enough positions are found.
        """
        found = self.make(self.positions or 0)
        text = json.dumps(report(found), indent=2)
        rows = [{"fen": each.board.fen(en_passant="fen"), "kind": each.kind, "plies": each.plies} for each in found]
        contents = [json.dumps(row) for row in rows], [text], contact_sheet(self.sampled(found)).splitlines()
        write_new(folder, dict(zip(self.files, contents, strict=True)))
        return text

    def sampled(self, found: Sequence[Found]) -> list[Found]:
        """The positions of the sheet: `sheet` of them, evenly spaced over all kinds."""
        count = min(self.sheet, len(found))
        return [found[i * len(found) // count] for i in range(count)]

    def _new(self, kind: str, turn: chess.Color, rng: random.Random, seen: set[str]) -> Found:
        for _ in range(ATTEMPTS):
            one = self._draw(kind, rng)
            board = one.board
            wrong = kind != "opening" and (one.pieces < self.endgame_pieces) != (kind == "endgame")
            if wrong or board.turn != turn or board.is_game_over() or (key := positions.position_key(board)) in seen:
                continue
            seen.add(key)
            return one
        raise DataError(
            f"mix: no further {kind} with {COLOURS[turn]} to move in {ATTEMPTS} draws; "
            f"ask fewer positions, a smaller mix.shares.{kind}, or a wider range"
        )

    def _draw(self, kind: str, rng: random.Random) -> Found:
        if kind == "endgame":
            return Found(positions.endgame(rng), kind, None)
        plies = (0, self.opening_plies) if kind == "opening" else self.middlegame_plies
        board = positions.random_game(rng, rng.randint(min(plies), max(plies)))
        return Found(board, kind, board.ply())


def report(found: Sequence[Found]) -> dict[str, Any]:
    """The mix in numbers: positions, and by kind their share, colours to move, pieces and plies from the start."""
    kinds = {}
    for kind in dict.fromkeys(each.kind for each in found):
        some = [each for each in found if each.kind == kind]
        plies = [each.plies for each in some if each.plies is not None]
        kinds[kind] = {
            "positions": len(some),
            "share": round(len(some) / len(found), 4),
            **_colours(some),
            "pieces": _spread([each.pieces for each in some]),
            "plies": _spread(plies) if plies else "constructed",
        }
    return {"positions": len(found), **_colours(found), "kinds": kinds}


def _colours(found: Sequence[Found]) -> dict[str, int]:
    counts = Counter(each.board.turn for each in found)
    return {f"{name} to move": counts[turn] for turn, name in COLOURS.items()}


def _spread(values: Sequence[int]) -> dict[str, float]:
    return {"least": min(values), "mean": round(mean(values), 1), "most": max(values)}


def contact_sheet(found: Sequence[Found]) -> str:
    """An SVG of the boards in rows of six, the side to move below, each with its kind, ply and number of pieces."""
    title = f"{len(found)} positions, the side to move below"
    side = boards.SIZE * SCALE
    wide, high = side + MARGIN, side + MARGIN + CAPTION
    rows = -(-len(found) // SHEET_COLUMNS)
    width, height = SHEET_COLUMNS * wide + MARGIN, rows * high + MARGIN + HEADING
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}">',
        f"<defs>{boards.pieces()}</defs>",
        f'<title>{title}</title><rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{HEADING - 4}" font-family="sans-serif" font-size="14">{title}</text>',
    ]
    for i, each in enumerate(found):
        x, y = MARGIN + i % SHEET_COLUMNS * wide, HEADING + MARGIN + i // SHEET_COLUMNS * high
        drawn = boards.position(chess_text.p_prompt(each.board.fen())) or ""
        at = "" if each.plies is None else f", ply {each.plies}"
        said = f"{each.kind}{at}, {each.pieces} pieces, {COLOURS[each.board.turn]}"
        parts.append(f'<g transform="translate({x:g} {y:g}) scale({SCALE})"><use href="#squares"/>{drawn}</g>')
        parts.append(
            f'<text x="{x:g}" y="{y + side + CAPTION - 3:g}" font-family="sans-serif" font-size="9">{said}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])
