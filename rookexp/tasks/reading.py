"""What became of the rows of a data set: how many are used, left out or malformed, and why the latter are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rookexp.errors import DataError
from rookexp.files import text_of, write_atomic

LISTED = 5  # most malformed rows that are shown
KEPT = 100_000  # most that are kept, for files of which no row is a document
MALFORMED = "malformed.jsonl"  # in the folder of a run or an evaluation


@dataclass(frozen=True, slots=True)
class Malformed:
    """A row that cannot be used."""

    place: str  # file and row, as `train.jsonl, line 7`
    why: str
    text: str | None  # None where the row has none, as where it is not JSON


@dataclass(slots=True)
class Reading:
    """What became of the rows that were read."""

    counts: Counter[str] = field(default_factory=Counter)  # rows, by what became of them
    malformed: list[Malformed] = field(default_factory=list)  # the first KEPT, in the order of reading

    def refuse(self, place: str, why: str, text: str | None) -> None:
        """Notes a malformed row."""
        self.counts["malformed"] += 1
        if len(self.malformed) < KEPT:
            self.malformed.append(Malformed(place, why, text))

    def refuse_in_vain(self, source: str) -> None:
        """Raises: DataError where rows of `source` were read and all were malformed."""
        count = self.counts.total()
        if 0 < count == self.counts["malformed"]:
            first = self.malformed[0]
            raise DataError(f"{source}: no row is a document, all {count} are malformed; {first.place}: {first.why}")

    def notes(self) -> Iterator[str]:
        """The counts, and the first malformed rows, as lines."""
        known = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        yield f"{known} of {self.counts.total()} rows" if known else "no rows in it"
        yield from (f"malformed: {row.place}: {row.why}" for row in self.malformed[:LISTED])


def note_of(malformed: Sequence[Malformed], folder: Path) -> list[str]:
    """The line that says where in `folder` malformed rows were written; none without any."""
    return [f"{len(malformed)} malformed rows with reasons and texts: {folder / MALFORMED}"] if malformed else []


def write(malformed: Sequence[Malformed], folder: Path) -> None:
    """Writes file, row, reason and text of each malformed row into `folder` as JSON lines.

    If none is, there is no such file afterwards: one that lies there is of earlier rows.
    """
    if malformed:
        write_atomic(folder / MALFORMED, text_of(map(_record, malformed)))
    else:
        (folder / MALFORMED).unlink(missing_ok=True)


def _record(malformed: Malformed) -> str:
    file, _, row = malformed.place.rpartition(", ")
    return json.dumps({"file": file, "row": row, "reason": malformed.why, "text": malformed.text})
