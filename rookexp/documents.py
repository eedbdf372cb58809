"""The corpus: annotated shards and seeded games become P and A documents, split by position, one document a line."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import chess

from rookexp import chess_text
from rookexp.annotate import shard_path
from rookexp.errors import DataError
from rookexp.tasks import positions

PROMPT_SETS = {"train": 256, "eval": 128}  # rows of the prompt sets that ship with the package
A_KINDS = ("ongoing", "opening", "castling", "en_passant", "promotion", "mate", "draw", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """An annotated position."""

    board: chess.Board
    kind: str  # opening, self_play, middlegame or endgame
    moves: tuple[str, ...]  # best first
    evals_cp: tuple[int, ...]  # for the side to move

    def record(self) -> dict[str, Any]:
        """What a file of positions says of it."""
        fen = self.board.fen(en_passant="fen")
        return {"fen": fen, "kind": self.kind, "moves": self.moves, "evals_cp": self.evals_cp}


def load_rows(folder: Path, shards: int) -> tuple[list[Row], list[list[chess.Move]], int]:
    """Distinct annotated positions of the first `shards` files, their self-play games, and the number of duplicates.

    Raises: DataError naming the file and line that cannot be read.
    """
    files = [shard_path(folder, index) for index in range(shards)]
    rows: dict[str, Row] = {}
    games: list[list[chess.Move]] = []
    duplicates = 0
    for file in files:
        if not file.exists():
            raise DataError(f"{file}: missing; make the shards with `python -m rookexp.data`")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
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
            if "game" in raw:
                if games and game[: len(games[-1])] == games[-1]:
                    games[-1] = game
                else:
                    games.append(game)
            key = positions.position_key(board)
            duplicates += key in rows
            rows.setdefault(key, row)
    return list(rows.values()), games, duplicates


# ---- P documents ------------------------------------------------------------------------------------------------


def symmetric(row: Row, rng: random.Random) -> Row:
    """The row, or its colour flip, or (without castling rights) its left-right mirror, with equal chances.

    Evaluations are for the side to move, so a symmetric position has the same ones.
    """
    board, squares = row.board, list(range(64))
    flip_files = not board.castling_rights and rng.random() < 0.5
    flip_colours = rng.random() < 0.5
    if flip_files:
        board = board.transform(chess.flip_horizontal)
        board.ep_square = None if row.board.ep_square is None else row.board.ep_square ^ 7
        board.halfmove_clock, board.fullmove_number = row.board.halfmove_clock, row.board.fullmove_number
        squares = [s ^ 7 for s in squares]
    if flip_colours:
        board = board.mirror()
        squares = [s ^ 56 for s in squares]
    return Row(board, row.kind, tuple(_moved(m, squares) for m in row.moves), row.evals_cp)


def _moved(uci: str, squares: Sequence[int]) -> str:
    move = chess.Move.from_uci(uci)
    return chess.Move(squares[move.from_square], squares[move.to_square], move.promotion).uci()


def p_document(row: Row, rng: random.Random, black_best: Literal["legacy", "corrected"]) -> str:
    """The row's P document; its (move, evaluation) pairs are shuffled jointly."""
    order = list(range(len(row.moves)))
    rng.shuffle(order)
    best = chess_text.best_label(row.moves, row.evals_cp, row.board.turn, black_best)
    return chess_text.build_p(
        row.board.fen(en_passant="fen"), [row.moves[i] for i in order], [row.evals_cp[i] for i in order], best
    )


# ---- A documents ------------------------------------------------------------------------------------------------


Candidate = tuple[chess.Board, chess.Move]  # a board whose stack is the game so far, and a move on it


def class_of(board: chess.Board, move: chess.Move) -> str:
    """The rare class of a transition, `ongoing` if none."""
    if board.piece_at(move.from_square) is None:
        return "failed"
    board.push(move)
    outcome = board.outcome(claim_draw=False)
    board.pop()
    if outcome is not None:
        return "mate" if outcome.termination == chess.Termination.CHECKMATE else "draw"
    if move.promotion:
        return "promotion"
    if board.is_castling(move):
        return "castling"
    return "en_passant" if board.is_en_passant(move) else "ongoing"


def a_document(board: chess.Board, move: chess.Move) -> str:
    """The A document of a move on a board whose stack is the game so far."""
    history = [m.uci() for m in board.move_stack[-chess_text.HISTORY_PLIES :]] + [move.uci()]
    repeats = board.halfmove_clock >= 15  # a fifth repetition needs that many quiet plies and this one
    outcome = chess_text.transition(board.fen(), move.uci(), legality="legacy", game_board=board if repeats else None)
    return chess_text.build_a(board.fen(), move.uci(), history, outcome)


def opening_moves(rng: random.Random, plies: int) -> Iterator[Candidate]:
    """The first plies of a uniformly random game, in which every other move is a pawn's."""
    board = chess.Board()
    for _ in range(plies):
        moves = list(board.legal_moves)
        pawns = [m for m in moves if board.piece_type_at(m.from_square) == chess.PAWN]
        move = rng.choice(pawns if pawns and rng.random() < 0.5 else moves)
        yield board, move
        board.push(move)
        if board.is_game_over():
            return


def game_moves(game: Sequence[chess.Move], rng: random.Random, share: float) -> Iterator[Candidate]:
    """A share of a game's moves, and some of the castlings, en-passant captures and failed moves that it allowed."""
    board = chess.Board()
    for move in game:
        if move.promotion or rng.random() < share:
            yield board, move
        if rng.random() < 0.3:
            yield from ((board, m) for m in [*board.generate_castling_moves(), *board.generate_legal_ep()])
        if rng.random() < 0.02:
            yield board, failed_move(board, rng)
        board.push(move)


def failed_move(board: chess.Board, rng: random.Random) -> chess.Move:
    """A move from an empty square, as it happens in the published data."""
    start = rng.choice([s for s in chess.SQUARES if board.piece_at(s) is None])
    return chess.Move(start, rng.choice([s for s in chess.SQUARES if s != start]))


def endgame_moves(rng: random.Random) -> Iterator[Candidate]:
    """Every promotion and game-ending move of a short random walk from a constructed endgame."""
    board = positions.endgame(rng)
    if rng.random() < 0.1:
        board.halfmove_clock = rng.choice((147, 148, 149))
    for _ in range(rng.randint(1, 12)):
        if board.is_game_over():
            return
        moves = list(board.legal_moves)
        for move in moves:
            if move.promotion or board.gives_check(move) or board.halfmove_clock > 140 or len(moves) < 12:
                yield board, move
        board.push(positions.weighted_move(board, rng))


def a_documents(games: Sequence[Sequence[chess.Move]], counts: dict[str, int], seed: int) -> list[tuple[str, str, str]]:
    """Distinct A documents with their class and position key, up to `counts` a class.

    The class `opening` counts the first ten plies of random games.
    """
    rng = random.Random(f"{seed}/environment")
    left = Counter(counts)
    seen: set[str] = set()
    documents = []

    def take(candidates: Iterator[Candidate], common: str) -> None:
        for board, move in candidates:
            kind = class_of(board, move)
            kind = common if kind == "ongoing" else kind
            if left[kind] > 0:
                text = a_document(board, move)
                if text not in seen:
                    seen.add(text)
                    left[kind] -= 1
                    documents.append((text, kind, positions.position_key(board)))

    while left["opening"] > 0:
        take(opening_moves(rng, 10), "opening")
    share = 0.7 * counts["ongoing"] / max(1, sum(map(len, games)))
    for game in games:
        take(game_moves(game, rng, share), "ongoing")
    while any(left[kind] > 0 for kind in ("mate", "draw", "promotion")):
        take(endgame_moves(rng), "endgame")
    while any(left[kind] > 0 for kind in ("ongoing", "castling", "en_passant", "failed")):
        take(game_moves(positions.random_game(rng, rng.randint(10, 120)).move_stack, rng, 0.3), "ongoing")
    return documents


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
    p_share: float,
    a_shares: dict[str, float],
) -> dict[str, Any]:
    """Writes train.txt, validation.txt, test.txt, positions-test.jsonl and the sets of prompts into `folder`.

    A training position appears `copies` times, each time in a symmetric form and an order of moves drawn anew;
    a held-out one appears once, as it is. The prompts are test positions: pretraining never sees them. Shipping
    them means copying prompts-{train,eval}.jsonl to rookexp/assets/positions/{train,eval}.jsonl. Returns the report.
    """
    rows, games, duplicates = load_rows(folder, shards)
    rng = random.Random(f"{seed}/documents")
    texts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    counts: dict[str, Counter[str]] = {split: Counter() for split in texts}
    held_out = []
    for row in rows:
        split = positions.split_of(positions.position_key(row.board))
        forms = [symmetric(row, rng) for _ in range(copies)] if split == "train" else [row]
        texts[split] += [p_document(form, rng, black_best) for form in forms]
        counts[split][f"P {row.kind}"] += len(forms)
        if split == "test":
            held_out.append(row.record())
    prompts = prompt_rows(held_out, seed)
    _write_lines(folder / "positions-test.jsonl", map(json.dumps, held_out))
    for name, chosen in prompts.items():
        _write_lines(folder / f"prompts-{name}.jsonl", map(json.dumps, chosen))
    total = round(sum(map(len, texts.values())) * (1 - p_share) / p_share)
    for text, kind, key in a_documents(games, {kind: round(share * total) for kind, share in a_shares.items()}, seed):
        split = positions.split_of(key)
        texts[split].append(text)
        counts[split][f"A {kind}"] += 1
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
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
