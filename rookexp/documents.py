"""The corpus: annotated shards and seeded games become P, A and L documents, split by position, one document a line."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import chess

from rookexp import a_documents, chess_text
from rookexp.annotate import shard_path, values_path
from rookexp.errors import DataError
from rookexp.files import write_atomic
from rookexp.tasks import positions

PROMPT_SETS = {"train": 256, "eval": 128}  # rows of the prompt sets that ship with the package
L_FORMS = ("moves", "losses", "lists")
L_TOKENS = 160  # of an L document's answer at most, so that it fits into rook_nano's 256 positions
LISTED = chess_text.MAX_LINES  # moves of a list in an L document
LIST_TOKENS = 4 * LISTED + 2  # two a move, two a loss, and `E:`
LOSSES = ((30, 0), (100, 1), (200, 2), (350, 3), (600, 5))  # a move that is fewer centipawns worse than the best loses
MOST_LOST = 9  # so many pawns, in an L document's words, and any other one so many
FAR_CP = 2500  # an evaluation counts as at most this far from even
# Of a P document's pairs: by the moves' names; by name, but begun with the best and going round; or any.
ListOrder = Literal["sorted", "best_first", "shuffled"]


@dataclass(frozen=True, slots=True)
class Row:
    """An annotated position."""

    board: chess.Board
    kind: str  # opening, self_play, middlegame or endgame
    moves: tuple[str, ...]  # best first
    evals_cp: tuple[int, ...]  # for the side to move
    values_cp: Mapping[str, int] = field(default_factory=dict)  # of every legal move, where these were asked for

    def record(self) -> dict[str, Any]:
        """What a file of positions says of it."""
        fen = self.board.fen(en_passant="fen")
        return {"fen": fen, "kind": self.kind, "moves": self.moves, "evals_cp": self.evals_cp}


def load_rows(folder: Path, shards: int, valued: bool) -> tuple[list[Row], list[list[chess.Move]], int]:
    """Distinct annotated positions of the first `shards` files, their self-play games, and the number of duplicates.

    `valued` rows have a value for every legal move.
    Raises: DataError naming the file and line that cannot be read.
    """
    rows: dict[str, Row] = {}
    games: list[list[chess.Move]] = []
    duplicates = 0
    for index in range(shards):
        file, beside = shard_path(folder, index), values_path(folder, index)
        lines = _shard_lines(file)
        values = _shard_lines(beside) if valued else [""] * len(lines)
        if len(values) != len(lines):
            raise DataError(f"{beside}: {len(values)} rows beside the {len(lines)} of {file.name}; delete the file")
        for number, (line, value) in enumerate(zip(lines, values, strict=True), start=1):
            try:
                raw = json.loads(line)
                board = chess.Board(raw["fen"])
                row = Row(board, raw["kind"], tuple(raw["moves"]), tuple(raw["evals_cp"]))
                game = [chess.Move.from_uci(uci) for uci in raw.get("game", "").split()]
                if not 0 < len(row.moves) == len(row.evals_cp):
                    raise ValueError("not one evaluation for each move")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{file}, line {number}: not an annotated position ({error}); delete the file"
                ) from error
            if valued:
                row = replace(row, values_cp=_values(value, board, f"{beside}, line {number}"))
            if "game" in raw:
                if games and game[: len(games[-1])] == games[-1]:
                    games[-1] = game
                else:
                    games.append(game)
            key = positions.position_key(board)
            duplicates += key in rows
            rows.setdefault(key, row)
    return list(rows.values()), games, duplicates


def _shard_lines(file: Path) -> list[str]:
    """Raises: DataError where the file is missing."""
    if not file.exists():
        raise DataError(f"{file}: missing; make the shards with `python -m rookexp.data`")
    return file.read_text(encoding="utf-8-sig").splitlines()


def _values(text: str, board: chess.Board, place: str) -> dict[str, int]:
    """Raises: DataError naming the `place` where the text is not a value for every legal move."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or set(found) != chess_text.legal_ucis(board):
        raise DataError(f"{place}: not a value for each legal move at {board.fen()!r}; delete the file")
    return found


# ---- P documents ------------------------------------------------------------------------------------------------


def symmetric(row: Row, rng: random.Random) -> Row:
    """The row, or its colour flip, or (without castling rights) its left-right mirror, with equal chances.

    Evaluations are for the side to move, so a symmetric position has the same ones.
    """
    board, squares = row.board, list(range(64))
    flip_files = not board.clean_castling_rights() and rng.random() < 0.5
    flip_colours = rng.random() < 0.5
    if flip_files:
        board = board.transform(chess.flip_horizontal)
        board.ep_square = None if row.board.ep_square is None else row.board.ep_square ^ 7
        board.halfmove_clock, board.fullmove_number = row.board.halfmove_clock, row.board.fullmove_number
        squares = [s ^ 7 for s in squares]
    if flip_colours:
        board = board.mirror()
        squares = [s ^ 56 for s in squares]
    values = {_moved(move, squares): value for move, value in row.values_cp.items()}
    return Row(board, row.kind, tuple(_moved(m, squares) for m in row.moves), row.evals_cp, values)


def _moved(uci: str, squares: Sequence[int]) -> str:
    move = chess.Move.from_uci(uci)
    return chess.Move(squares[move.from_square], squares[move.to_square], move.promotion).uci()


def p_document(
    row: Row,
    rng: random.Random,
    black_best: Literal["legacy", "corrected"],
    list_order: ListOrder,
) -> str:
    """The row's P document; its (move, evaluation) pairs are in the given order, for which `rng` is used as much."""
    order = list(range(len(row.moves)))
    rng.shuffle(order)
    if list_order != "shuffled":
        order.sort(key=row.moves.__getitem__)
    if list_order == "best_first":
        first = order.index(0)
        order = order[first:] + order[:first]
    best = chess_text.best_label(row.moves, row.evals_cp, row.board.turn, black_best)
    return chess_text.build_p(
        row.board.fen(en_passant="fen"), [row.moves[i] for i in order], [row.evals_cp[i] for i in order], best
    )


def l_document(row: Row, form: str, rng: random.Random) -> str | None:
    """A P document's question under another name, `L:`, and an answer without a choice, in one of L_FORMS.

    `moves`: all legal moves, sorted by name. `losses`: each of them followed by the pawns that it loses beside the
    best. `lists`: legal moves in random lists of five, each sorted, with an `E:` and what its five lose behind it. The
    last two need the row's values. None where the answer has more than L_TOKENS tokens, or too few moves for a list.
    Published data has no such documents.
    """
    moves, lost = sorted(chess_text.legal_ucis(row.board)), pawns_lost(row.values_cp)
    if form == "moves":
        answer, size = moves, 2 * len(moves)
    elif form == "losses":
        answer, size = [f"{move} {lost[move]}" for move in moves], 3 * len(moves)
    else:
        rng.shuffle(moves)
        starts = range(0, len(moves) - LISTED + 1, LISTED)[: L_TOKENS // LIST_TOKENS]
        lists = [sorted(moves[start : start + LISTED]) for start in starts]
        answer = [f"{' '.join(each)} E: {' '.join(f'{lost[move]}.0' for move in each)}" for each in lists]
        size = LIST_TOKENS * len(lists)
    question = chess_text.p_prompt_padded(row.board.fen(en_passant="fen")).removeprefix("P")
    return f"L{question} {' '.join(answer)}" if 0 < size <= L_TOKENS else None


def valued(l_forms: Mapping[str, float]) -> bool:
    """Whether a form of L documents that is wanted needs the values of all moves."""
    return any(share > 0 for form, share in l_forms.items() if form != "moves")


def pawns_lost(values_cp: Mapping[str, int]) -> dict[str, int]:
    """The class of each move by how far its value is below the best."""
    near = {move: max(-FAR_CP, min(FAR_CP, value)) for move, value in values_cp.items()}
    best = max(near.values(), default=0)
    return {move: next((lost for limit, lost in LOSSES if best - cp < limit), MOST_LOST) for move, cp in near.items()}


# ---- prompt sets ------------------------------------------------------------------------------------------------


def prompt_rows(rows: Sequence[dict[str, Any]], seed: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of each prompt set, White and Black to move in turn, drawn from `rows` with a full list of moves.

    Rows are the objects of positions-test.jsonl; none is drawn twice. Sets are smaller where rows run out.
    """
    shuffled = list(rows)
    random.Random(f"{seed}/prompts").shuffle(shuffled)
    full = [row for row in shuffled if len(row["moves"]) == chess_text.MAX_LINES]
    pools = {colour: [row for row in full if row["fen"].split(" ")[1] == colour] for colour in "wb"}
    return {
        name: [pools[colour].pop() for _ in range(min(count // 2, *map(len, pools.values()))) for colour in "wb"]
        for name, count in PROMPT_SETS.items()
    }


# ---- the corpus -------------------------------------------------------------------------------------------------


def build_corpus(
    folder: Path,
    *,
    shards: int,
    seed: int,
    copies: int,
    black_best: Literal["legacy", "corrected"],
    list_order: ListOrder,
    l_share: float,
    l_forms: dict[str, float],
    p_share: float,
    a_shares: dict[str, float],
) -> dict[str, Any]:
    """Writes train.txt, validation.txt, test.txt, positions-test.jsonl and the sets of prompts into `folder`.

    A training position appears `copies` times, each time in a symmetric form drawn anew and, if shuffled, with its
    moves in a new order; a share `l_share` of these forms makes an L document, too, in one of `l_forms` by their
    shares. A held-out position appears once, as it is. The prompts are test positions: pretraining never sees them.
    Shipping them means copying prompts-{train,eval}.jsonl to rookexp/assets/positions/{train,eval}.jsonl. Returns the
    report.
    """
    rows, games, duplicates = load_rows(folder, shards, valued(l_forms))
    rng, draws, kinds = (random.Random(f"{seed}/{use}") for use in ("documents", "legal", "forms"))
    legal: list[str] = []
    texts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    counts: dict[str, Counter[str]] = {split: Counter() for split in texts}
    held_out = []
    for row in rows:
        split = positions.split_of(positions.position_key(row.board))
        forms = [symmetric(row, rng) for _ in range(copies)] if split == "train" else [row]
        texts[split] += [p_document(form, rng, black_best, list_order) for form in forms]
        counts[split][f"P {row.kind}"] += len(forms)
        if split == "train":
            again = [form for form in forms if draws.random() < l_share]
            asked = kinds.choices(list(l_forms), list(l_forms.values()), k=len(again))
            drawn = [l_document(form, kind, kinds) for form, kind in zip(again, asked, strict=True)]
            legal += [text for text in drawn if text is not None]
        elif split == "test":
            held_out.append(row.record())
    prompts = prompt_rows(held_out, seed)
    _write_lines(folder / "positions-test.jsonl", map(json.dumps, held_out))
    for name, chosen in prompts.items():
        _write_lines(folder / f"prompts-{name}.jsonl", map(json.dumps, chosen))
    total = round(sum(map(len, texts.values())) * (1 - p_share) / p_share)
    wanted = {kind: round(share * total) for kind, share in a_shares.items()}
    for text, kind, key in a_documents.a_documents(games, wanted, seed):
        split = positions.split_of(key)
        texts[split].append(text)
        counts[split][f"A {kind}"] += 1
    texts["train"] += legal
    counts["train"]["L"] = len(legal)
    for split, documents in texts.items():
        rng.shuffle(documents)
        _write_lines(folder / f"{split}.txt", documents)
    report = {
        "duplicates dropped": duplicates,
        "documents": {split: dict(sorted(count.items())) for split, count in counts.items()},
        "prompts": {name: len(chosen) for name, chosen in prompts.items()},
    }
    _write_lines(folder / "report.json", [json.dumps(report, indent=2)])
    return report


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """Raises: DataError where the file cannot be written."""
    try:
        write_atomic(path, "".join(line + "\n" for line in lines))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
