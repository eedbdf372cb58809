"""Draws answers on a board, as SVG: a P answer's moves as arrows, chosen and best ones marked; an A answer's state."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import chess
import chess.svg

from rookexp import chess_text
from rookexp.tasks.mixed import subtasks

ASSETS = Path(__file__).resolve().parent / "assets" / "positions"
SIZE = 8 * chess.svg.SQUARE_SIZE  # side of a drawing
LISTED, CHOSEN, ENGINE, ILLEGAL = "#5b6b8099", "#1f6fd6dd", "#15873bdd", "#cc2936dd"

FEN_FIELDS = ("placement", "turn", "castling", "en passant", "halfmove clock", "move number")


@dataclass(frozen=True, slots=True)
class Drawing:
    """An answer's arrows, to be drawn over `position`, and the same in words."""

    arrows: str  # SVG elements
    words: str


def pieces() -> str:
    """SVG shapes that drawings refer to, and an empty board with the id `squares`; a page needs them once."""
    drawn = chess.svg.board(chess.Board(), coordinates=False)
    squares = "".join(re.findall(r"<rect [^>]*/>", drawn))
    squares = re.sub(r' class="[^"]*"| stroke="none"', "", squares)
    shapes = drawn.partition("<defs>")[2].partition("</defs>")[0]
    return f'{shapes}<g id="squares">{squares}</g>'


def position(prompt: str) -> str | None:
    """SVG of the pieces of a P prompt's position, the side to move at the bottom; None if it has no valid position."""
    board = board_of(prompt)
    if board is None:
        return None
    return _pieces_of(board, board.turn)


def white_below(fen: str) -> str | None:
    """SVG of the pieces of a FEN, White at the bottom; None if its first field is no valid placement."""
    placed = _placement(fen)
    return None if placed is None else _pieces_of(placed, chess.WHITE)


def answer(
    prompt: str, completion: str, engine_best: str | None, best_is: tuple[str, str] = ("the engine's", "engine")
) -> Drawing | None:
    """The moves of a P answer as arrows; None if the prompt has no valid position.

    Grey: listed; blue: chosen; green: the engine's best, also if it is the chosen one; red: chosen and illegal.
    `best_is`: the name of the engine's best in the words if it was chosen, and if it was not.
    """
    board, parsed = board_of(prompt), chess_text.p_answer(prompt, completion)
    if board is None:
        return None
    legal = chess_text.legal_ucis(board)
    colours = {move: LISTED for move in parsed.moves if move in legal}
    if engine_best is not None:
        colours[engine_best] = ENGINE
    best = parsed.best or ""
    if best != engine_best and chess_text.MOVE.fullmatch(best):
        colours[best] = CHOSEN if best in legal else ILLEGAL
    on_top = dict(sorted(colours.items(), key=lambda item: item[1] != LISTED))  # marked moves on top of listed ones
    return Drawing(arrows_of(on_top, board.turn), _words(parsed, legal, engine_best, best_is))


def arrows_of(colours: Mapping[str, str], below: chess.Color) -> str:
    """Moves as arrows, each in its colour, later ones on top; `below` is the side at the bottom of the board."""
    arrows = [
        chess.svg.Arrow(chess.parse_square(move[:2]), chess.parse_square(move[2:4]), color=colour)
        for move, colour in colours.items()
    ]
    return _marks(arrows, below)


def next_state(prompt: str, completion: str, gold: str) -> tuple[str, Drawing] | None:
    """The pieces of an A answer's position, White at the bottom, and its errors; None if it has no valid board.

    Blue: the prompt's move; red rings: squares that differ from `gold`, the correct completion.
    """
    said, true = (chess_text.parse_a_completion(text) for text in (completion, gold))
    placed, right, asked = _placement(said.new_fen), _placement(true.new_fen), chess_text.parse_a_prompt(prompt)
    if placed is None or right is None or asked is None:
        return None
    differing = [square for square in chess.SQUARES if placed.piece_at(square) != right.piece_at(square)]
    arrows = [chess.svg.Arrow(square, square, color=ILLEGAL) for square in differing]
    if chess_text.MOVE.fullmatch(asked.move):
        tail, head = chess.parse_square(asked.move[:2]), chess.parse_square(asked.move[2:4])
        arrows.append(chess.svg.Arrow(tail, head, color=CHOSEN))
    given, wanted = said.new_fen.split(), true.new_fen.split()
    wrong = [name for name, i in zip(FEN_FIELDS, range(6), strict=True) if given[i : i + 1] != wanted[i : i + 1]]
    wrong += [name for name in ("reward", "terminated", "truncated") if getattr(said, name) != getattr(true, name)]
    if len(given) > len(FEN_FIELDS) or said.extra:
        wrong.append("too many fields")
    if not wrong and said != true:
        wrong.append("spaces")
    words = f"{asked.move}: " + (f"wrong {', '.join(wrong)}" if wrong else "exact")
    return _pieces_of(placed, chess.WHITE), Drawing(_marks(arrows, chess.WHITE), words)


def _placement(fen: str) -> chess.BaseBoard | None:
    """The pieces of a FEN's first field, whatever the other fields say; None if that field is no valid placement."""
    first = fen.split(" ", 1)[0]
    try:
        return chess.BaseBoard(first) if first.isascii() else None
    except ValueError:
        return None


def _pieces_of(board: chess.BaseBoard, below: chess.Color) -> str:
    drawn = chess.svg.board(board, orientation=below, coordinates=False)
    uses = re.findall(r'<use href="#([\w-]+)"[^>]*transform="([^"]*)"', drawn)
    return "".join(f'<use href="#{piece}" transform="{place}"/>' for piece, place in uses)


def _marks(arrows: list[chess.svg.Arrow], below: chess.Color) -> str:
    drawn = chess.svg.board(None, orientation=below, coordinates=False, arrows=arrows)
    marks = re.findall(r'<(?:line|polygon|circle) [^>]*class="(?:arrow|circle)"[^>]*/>', drawn)
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.4g}", "".join(marks))


def board_of(prompt: str) -> chess.Board | None:
    """The position of a P prompt, None if it has no valid one."""
    parsed = chess_text.parse_p(prompt)
    return None if parsed is None else chess_text.board_of(parsed.fen)


def engine_moves(config: dict[str, Any]) -> dict[str, str]:
    """The engine's best move by FEN, for the positions that a run's evaluation may use; {} if no file is found.

    A missing file is looked up in the package's assets, where a file of the same name has the same content.
    """
    found: dict[str, str] = {}
    for name in asked_files(config):
        path = next((path for path in (Path(name), ASSETS / Path(name).name) if path.is_file()), None)
        found |= {} if path is None else dict(_engine_moves(path))
    return found


def asked_files(config: Mapping[str, Any]) -> list[str]:
    """The position files of a run's evaluation: those of `eval.positions`, else the task's own."""
    task, other = config.get("task") or {}, (config.get("eval") or {}).get("positions")
    own = {name: node.get("positions") for name, node in {"": task, **subtasks(task)}.items()}
    asked = {**own, **other} if isinstance(other, Mapping) else own if other is None else {"": other}
    return [name for name in asked.values() if isinstance(name, str)]


@lru_cache(maxsize=4)
def _engine_moves(path: Path) -> tuple[tuple[str, str], ...]:
    found = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        try:
            row = json.loads(line)
            found.append((str(row["fen"]), str(row["moves"][0])))
        except (ValueError, KeyError, IndexError, TypeError):
            continue  # a file of another kind says nothing about positions
    return tuple(found)


def _words(
    parsed: chess_text.PolicyAnswer, legal: frozenset[str], engine_best: str | None, best_is: tuple[str, str]
) -> str:
    if parsed.best is None:
        said = "no best move"
    else:
        said = f"best {parsed.best}" + ("" if parsed.best in legal else ", illegal")
    if engine_best is not None:
        said += f", {best_is[0]}" if parsed.best == engine_best else f"; {best_is[1]} {engine_best}"
    count, listed = len(parsed.moves), set(parsed.moves)
    different = "" if len(listed) == count else f", {len(listed)} different"
    return f"{said}; lists {count} move{'' if count == 1 else 's'}{different}, {len(listed & legal)} legal"
