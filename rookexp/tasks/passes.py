"""The rows of each step: a fixed batch, or seeded passes over all rows, in which each is used equally often."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

Row = TypeVar("Row")


class Passes(Generic[Row]):
    """An endless sequence of rows; the row at an index depends only on the rows, the seed and the index.

    `fixed` repeats the rows in their order; `epochs` passes over them, in a new order each time. Several strands, of
    equal length or earlier ones longer by one, alternate. In any prefix the counts of two rows differ by at most one. A
    row may come near the end of one pass and again at the start of the next, so twice in a step at their border.
    """

    def __init__(self, strands: Sequence[Sequence[Row]], *, order: Literal["fixed", "epochs"], seed: int) -> None:
        self.strands = strands
        self.order = order
        self.seed = seed
        self._shuffled: dict[int, list[list[Row]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.strands))

    def rows(self) -> list[Row]:
        """Every row once, in the order of a fixed batch."""
        return [_woven(self.strands, i) for i in range(len(self))]

    def take(self, start: int, count: int) -> list[Row]:
        """The rows at indices start, ..., start + count - 1."""
        places = [divmod(start + i, len(self)) for i in range(count)]
        if self.order == "fixed":
            return [_woven(self.strands, i) for _, i in places]
        self._shuffled = {epoch: self._shuffled.get(epoch) or self._shuffle(epoch) for epoch in {e for e, _ in places}}
        return [_woven(self._shuffled[epoch], i) for epoch, i in places]

    def _shuffle(self, epoch: int) -> list[list[Row]]:
        rng = random.Random(f"{self.seed}/epoch/{epoch}")
        return [rng.sample(strand, len(strand)) for strand in self.strands]


def _woven(strands: Sequence[Sequence[Row]], i: int) -> Row:
    """Row i when the strands take turns."""
    place, strand = divmod(i, len(strands))
    return strands[strand][place]
