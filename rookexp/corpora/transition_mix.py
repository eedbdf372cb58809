"""A prompts by exact quotas, without an engine: distinct positions that pretraining never sees, in two sets."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from rookexp.corpora import a_documents
from rookexp.errors import DataError
from rookexp.files import write_new
from rookexp.shares import in_turns, shares_of
from rookexp.tasks import positions

RARE = ("mate", "draw", "promotion")  # found in constructed endgames
SPECIAL = ("castling", "en_passant")  # found in games of many pawn moves
SPECIAL_PLIES = 40
ATTEMPTS = 20_000  # games in a row that give nothing new: there are no more such prompts


@dataclass(kw_only=True)
class TransitionMix:
    """A documents with exact shares of each class, White and Black to move equally often in each.

    Their positions are of the test split and all distinct, up to symmetry, so that no two sets share a question.
    Classes are those of `a_documents.a_documents`. Everything depends on the arguments alone.
    """

    files = ("transitions-train.txt", "transitions-eval.txt")

    rows: Annotated[int, Gt(0)] | None
    eval_rows: Annotated[int, Gt(0)]
    shares: Mapping[str, float]
    seed: Annotated[int, Ge(0)]

    def __post_init__(self) -> None:
        self.shares = shares_of("transitions.shares", self.shares, a_documents.A_KINDS)

    def make(self) -> dict[str, list[str]]:
        """The documents of the sets `train` and `eval`, in random order.

        Raises: DataError where not enough documents of a class are found.
        """
        rng = random.Random(f"{self.seed}/transitions")
        quotas = {name: self._quotas(count) for name, count in (("train", self.rows or 0), ("eval", self.eval_rows))}
        left = sum(quotas.values(), Counter[tuple[str, bool]]())
        found = self._found(left, rng)
        sets: dict[str, list[str]] = {}
        for name, quota in quotas.items():
            sets[name] = [found[key].pop() for key, count in quota.items() for _ in range(count)]
            rng.shuffle(sets[name])
        return sets

    def write(self, folder: Path) -> str:
        """Writes transitions-train.txt and transitions-eval.txt; returns the counts by class and colour, as JSON text.

        Raises: DataError where a file cannot be written or exists with other lines, or a class has not enough
        documents.
        """
        sets = self.make()
        write_new(folder, dict(zip(self.files, sets.values(), strict=True)))
        counts = {name: self._quotas(len(texts)) for name, texts in sets.items()}
        return json.dumps(
            {
                name: {
                    kind: {"white": count[kind, True], "black": count[kind, False]}
                    for kind in dict.fromkeys(kind for kind, _ in count)
                }
                for name, count in counts.items()
            },
            indent=2,
        )

    def _quotas(self, rows: int) -> Counter[tuple[str, bool]]:
        """(class, White to move) -> number of documents; in each class and in all, the colours differ by at most 1."""
        return Counter(in_turns(rows, self.shares))

    def _found(self, left: Counter[tuple[str, bool]], rng: random.Random) -> dict[tuple[str, bool], list[str]]:
        """As many documents of each class and colour as `left` says, which is counted down to 0."""
        found: dict[tuple[str, bool], list[str]] = {key: [] for key in left}
        seen: set[str] = set()
        idle = 0
        while left.total():
            before = left.total()
            for common, candidates in self._games({kind for (kind, _), count in left.items() if count}, rng):
                for board, move in candidates:
                    kind = a_documents.class_of(board, move)
                    place = (common if kind == "ongoing" else kind, board.turn)
                    if not left[place]:
                        continue
                    key = positions.position_key(board)
                    if key not in seen and positions.split_of(key) == "test":
                        seen.add(key)
                        left[place] -= 1
                        found[place].append(a_documents.a_document(board, move))
            idle = 0 if left.total() < before else idle + 1
            if idle == ATTEMPTS:
                kinds = ", ".join(sorted({kind for (kind, _), count in left.items() if count}))
                remedy = "ask fewer rows, other shares or another seed"
                raise DataError(f"transitions: no further {kinds} in {ATTEMPTS} games; {remedy}")
        return found

    def _games(self, kinds: set[str], rng: random.Random) -> Iterator[tuple[str, Iterator[a_documents.Candidate]]]:
        """Yields a game of each sort that can have one of these classes, after the class of its `ongoing` moves."""
        if "opening" in kinds:
            yield "opening", a_documents.opening_moves(rng, 10)
        if not kinds.isdisjoint(SPECIAL):
            yield "none", special_moves(rng)
        if not kinds.isdisjoint(RARE):
            yield "none", a_documents.endgame_moves(rng)
        if not kinds.isdisjoint(("ongoing", "failed")):
            game = positions.random_game(rng, rng.randint(10, 120)).move_stack
            # The first ten plies are the openings'.
            moves = a_documents.game_moves(game, rng, 0.3)
            yield "ongoing", ((board, move) for board, move in moves if board.ply() >= 10)


def special_moves(rng: random.Random) -> Iterator[a_documents.Candidate]:
    """The castlings and en-passant captures of a uniformly random game in which every other move is a pawn's."""
    for board, _ in a_documents.opening_moves(rng, SPECIAL_PLIES):
        yield from ((board, move) for move in [*board.generate_castling_moves(), *board.generate_legal_ep()])
