"""Files for the flagships: annotated positions of a corpus, asked and trained on, and the second plies of games."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import chess

from rookexp import boards, chess_text
from rookexp.corpora import a_documents, documents
from rookexp.errors import DataError
from rookexp.files import write_atomic
from rookexp.tasks.positions import position_key, split_of
from rookexp.tasks.rookworld import load_annotations

SIDES = ("Black", "White")  # at the index that a board's `turn` is
OTHERS = 20_000  # positions to train on


def keys_of(file: Path) -> set[str]:
    """What the annotated positions of a file are known by, the same for their mirror images."""
    found = (chess_text.board_of(row.fen) for row in load_annotations(file))
    return {position_key(board) for board in found if board is not None}


def held_out(corpora: Sequence[Path], path: Path) -> dict[str, int]:
    """Writes the annotated positions of corpora that neither pretraining nor black_repair trains on; how many, by side.

    A position that several have is the first one's. Raises: DataError where there is no corpus.
    """
    known, counts, lines = keys_of(boards.ASSETS / "train.jsonl"), dict.fromkeys(SIDES, 0), []
    for corpus in corpora:
        files = len(list(corpus.glob("annotations-*.jsonl")))
        if not files:
            raise DataError(f"{corpus}: no annotated positions; make them with `python -m rookexp.data`")
        for row in documents.load_rows(corpus, files, {})[0]:
            key = position_key(row.board)
            if split_of(key) != "train" and key not in known:
                known.add(key)
                lines.append(json.dumps(row.record()))
                counts[SIDES[row.board.turn]] += 1
    if not lines:
        given = ", ".join(map(str, corpora))
        raise DataError(f"{given}: no annotated positions held out; make them with `python -m rookexp.data`")
    write_atomic(path, "".join(line + "\n" for line in lines))
    return counts


def others(corpus: Path, held_out_file: Path, path: Path) -> int:
    """Writes OTHERS of a corpus's annotated positions, none of them in that file, drawn with seed 0; how many.

    Mirror images of held-out ones may be among them: those are what the page leaves out.
    """

    def placement(line: str) -> str:
        return str(json.loads(line)["fen"]).split()[0]

    held = {placement(line) for line in held_out_file.read_text(encoding="utf-8").splitlines()}
    files = sorted(corpus.glob("annotations-*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines(keepends=True)]
    left = [line for line in lines if placement(line) not in held]
    if not left:
        raise DataError(f"{corpus}: no other annotated positions; make them with `python -m rookexp.data`")
    random.Random(0).shuffle(left)
    write_atomic(path, "".join(left[:OTHERS]))
    return len(left[:OTHERS])


def replies(path: Path) -> int:
    """Writes the A documents of all replies to all first moves, in the order of their names; how many (400)."""
    found = []
    for first in sorted(chess_text.legal_ucis(chess.Board())):
        board = chess.Board()
        board.push_uci(first)
        found += [a_documents.a_document(board, chess.Move.from_uci(r)) for r in sorted(chess_text.legal_ucis(board))]
    write_atomic(path, "".join(text + "\n" for text in found))
    return len(found)
