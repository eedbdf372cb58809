"""The texts of a data set's files (parquet, JSON lines, plain text), here or on the Hub, in a seeded order."""

from __future__ import annotations

import json
import random
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Protocol

from rookexp.errors import DataError

SUFFIXES = (".parquet", ".jsonl", ".txt")
WINDOW = 4096  # rows fetched together, so that a file's block is decoded once for all of its rows among them


@dataclass(frozen=True, slots=True)
class NoText:
    """Stands in place of a row's text, or of the one document in it: why there is none."""

    why: str
    text: str | None = None  # in which there is not one document: the column's, or a whole line of JSON lines


class Shard(Protocol):
    """A file of rows that can be read in any order."""

    path: Path

    def __len__(self) -> int:
        """How many rows it has."""

    def read(self, rows: Sequence[int]) -> list[str | NoText]:
        """The text of each of `rows`, indices in ascending order."""

    def place(self, row: int) -> str:
        """Where a person finds the row in the file, counted from 1."""


class Lines:
    """A text file, one document per line, or JSON lines with a text under `column`; only line offsets are in memory."""

    def __init__(self, path: Path, column: str) -> None:
        self.path = path
        self.column = column
        self.places, self.numbers = array("Q"), array("Q")
        with path.open("rb") as file:
            place = 0
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self.places.append(place)
                    self.numbers.append(number)
                place += len(line)

    def __len__(self) -> int:
        return len(self.places)

    def read(self, rows: Sequence[int]) -> list[str | NoText]:
        """The text of each of `rows`."""
        texts = []
        with self.path.open("rb") as file:
            for row in rows:
                file.seek(self.places[row])
                texts.append(self._text(file.readline()))
        return texts

    def place(self, row: int) -> str:
        """The number of the row's line, blank lines counted."""
        return f"line {self.numbers[row]}"

    def _text(self, line: bytes) -> str | NoText:
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            return _not_utf8(error)
        text = text.rstrip("\r\n")
        if self.path.suffix != ".jsonl":
            return text
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            return NoText("not JSON", text)
        if not isinstance(row, dict):
            return NoText("not a JSON object", text)
        if self.column not in row:
            return NoText(_no_column(self.column, list(row)), text)
        return _text_of(row[self.column], self.column, text)


class Parquet:
    """The text column of a parquet file; a row group is decoded when one of its rows is read."""

    def __init__(self, path: Path, column: str) -> None:
        try:
            from pyarrow import parquet  # optional: other files do without
        except ImportError as error:
            raise DataError(f"{path}: parquet files need pyarrow; type: pip install 'rookexp[data]'") from error
        self.path = path
        self.column = column
        self.file: Any = parquet.ParquetFile(path)
        if column not in self.file.schema_arrow.names:
            raise DataError(f"{path}: {_no_column(column, self.file.schema_arrow.names)}")
        about = self.file.metadata
        self.starts = [0, *accumulate(about.row_group(i).num_rows for i in range(about.num_row_groups))]

    def __len__(self) -> int:
        return self.starts[-1]

    def read(self, rows: Sequence[int]) -> list[str | NoText]:
        """The text of each of `rows`, indices in ascending order.

        Raises: DataError for a row whose row group is damaged.
        """
        texts: list[str | NoText] = []
        loaded, column = -1, None
        for row in rows:
            group = bisect_right(self.starts, row) - 1
            try:
                if group != loaded:
                    loaded, column = group, self.file.read_row_group(group, columns=[self.column]).column(0)
                assert column is not None
                text = column[row - self.starts[group]].as_py()
            except UnicodeDecodeError as error:  # of this row alone; the file's other rows are read
                texts.append(_not_utf8(error))
                continue
            except (OSError, ValueError) as error:
                raise DataError(f"{self.path}, row {row + 1}: {_damaged(error)}") from error
            texts.append(_text_of(text, self.column))
        return texts

    def place(self, row: int) -> str:
        """The row's number."""
        return f"row {row + 1}"


def _text_of(value: Any, column: str, line: str | None = None) -> str | NoText:
    return value if isinstance(value, str) else NoText(f"no text under {column!r}", line)


def _not_utf8(error: UnicodeDecodeError) -> NoText:
    return NoText(f"not UTF-8 ({error.reason} at byte {error.start + 1})")


def _no_column(column: str, names: Sequence[str]) -> str:
    return f"no column {column!r}; it has {', '.join(names) or 'none'}"


def find(
    data: str, revision: str | None, files: str, column: str, remedy: str = "task.files='*' takes all"
) -> tuple[list[Shard], list[str]]:
    """The files of a folder, or of a data set on the Hub, whose path in it matches `files` (or `data` itself, if a
    file), and the names of those that match and end in none of `SUFFIXES`.

    From the Hub only matching files are downloaded, once; with HF_HUB_OFFLINE=1 those that are there are used.
    `revision` is a branch, tag or commit there.
    Raises: DataError when there is none, ending with `remedy` unless a file matches or all would; when the Hub cannot
    be reached, or when local data is given a revision.
    """
    path = Path(data).expanduser()
    if path.exists():
        if revision is not None:
            raise DataError(f"{path} is local and has no revision {revision!r}; leave the revision empty")
    else:
        path = download(data, revision, files)
    match = matching(path, files) if path.is_dir() else [path]
    found = [p for p in match if p.suffix in SUFFIXES]
    if not found:
        if match or files == "*":
            remedy = f"it has {match[0].name}" if match else "it is empty"
        raise DataError(f"{data}: no file of it matches {files!r} and ends in {', '.join(SUFFIXES)}; {remedy}")
    return [opened(p, column) for p in found], [p.name for p in match if p.suffix not in SUFFIXES]


def matching(folder: Path, *patterns: str) -> list[Path]:
    """The files below a folder whose paths in it match one of the patterns, sorted.

    Hidden ones are none of the data: the Hub's client keeps notes on a folder's downloads there, named like the files.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not hidden and any(fnmatch(name.as_posix(), pattern) for pattern in patterns):
            found.append(path)
    return found


def opened(path: Path, column: str) -> Shard:
    """The rows of a file, by its suffix: parquet, JSON lines, or any other as plain text.

    Raises: DataError for a file that cannot be read.
    """
    try:
        return (Parquet if path.suffix == ".parquet" else Lines)(path, column)
    except (OSError, ValueError) as error:  # as pyarrow does for a file that is not parquet
        raise DataError(f"{path}: {_damaged(error)}") from error


def _damaged(error: Exception) -> str:
    """The words for a file that cannot be read, with the remedy."""
    return f"cannot be read ({str(error).splitlines()[0]}); copy or download the file again"


def download(repo: str, revision: str | None, files: str) -> Path:
    """The local snapshot of a data set on the Hugging Face Hub, with the files that match.

    Raises: DataError saying how to get the files without a connection.
    """
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo):
        raise DataError(f"{repo}: no such file or folder, and not a Hub id of the form owner/name")
    import huggingface_hub  # here, because local files do not need its import time

    remedy = f"on a connected machine type `hf download {repo} --repo-type dataset --local-dir FOLDER` and give FOLDER"
    try:
        folder = huggingface_hub.snapshot_download(repo, repo_type="dataset", revision=revision, allow_patterns=[files])
    except Exception as error:  # several libraries raise, for refusals, lost connections and odd names
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"{repo}: not here, and no download ({reason}); {remedy}") from error
    return Path(folder)


def shuffled(shards: Sequence[Shard], seed: str) -> Iterator[tuple[str, str | NoText]]:
    """Every row of all files once, as `file, place` and text, in an order drawn uniformly from all orders.

    Rows are fetched lazily; memory grows with the rows that were fetched, not with the files.
    """
    starts = [0, *accumulate(map(len, shards))]
    order = permuted(starts[-1], random.Random(seed))
    while window := list(islice(order, WINDOW)):
        texts: dict[int, str | NoText] = {}
        ascending = sorted(window)
        for shard, start, end in zip(shards, starts, starts[1:], strict=False):
            inside = [row for row in ascending if start <= row < end]
            texts.update(zip(inside, shard.read([row - start for row in inside]), strict=True))
        for row in window:
            at = bisect_right(starts, row) - 1
            yield f"{shards[at].path.name}, {shards[at].place(row - starts[at])}", texts[row]


def permuted(count: int, rng: random.Random) -> Iterator[int]:
    """0, ..., count - 1 in random order, every order equally likely; memory grows with the numbers drawn."""
    moved: dict[int, int] = {}
    for i in range(count):
        j = rng.randrange(i, count)
        drawn = moved.get(j, j)
        moved[j] = moved.pop(i, i)
        yield drawn
