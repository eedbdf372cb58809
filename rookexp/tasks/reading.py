"""What became of the rows of a data set: how many are used, left out or malformed, and why the latter are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rookexp.errors import DataError

LISTED = 5  # most malformed rows that are shown


@dataclass(slots=True)
class Reading:
    """What became of the rows that were read."""

    counts: Counter[str] = field(default_factory=Counter)  # rows, by what became of them
    malformed: list[str] = field(default_factory=list)  # the first malformed rows: file, row and reason

    def refuse(self, place: str, why: str) -> None:
        """Notes a malformed row."""
        self.counts["malformed"] += 1
        if len(self.malformed) < LISTED:
            self.malformed.append(f"{place}: {why}")

    def refuse_in_vain(self, source: str) -> None:
        """Raises: DataError where rows of `source` were read and all were malformed."""
        count = self.counts.total()
        if 0 < count == self.counts["malformed"]:
            raise DataError(f"{source}: no row is a document, all {count} are malformed; {self.malformed[0]}")

    def notes(self) -> Iterator[str]:
        """The counts, and the first malformed rows, as lines."""
        known = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        yield f"{known} of {self.counts.total()} rows" if known else "no rows in it"
        yield from (f"malformed: {row}" for row in self.malformed)
