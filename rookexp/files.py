"""Atomic and durable file writes: a reader sees all of the old content or all of the new; JSON objects; CSV text."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rookexp.errors import DataError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to; the file written there then replaces `path` atomically.

    After an error, as on a full disk, nothing is left of it.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # other processes may write the same file
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Replaces the file's text atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_new(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Writes the lines of each file, by name, unless one of the files exists with other content: then none is touched.

    Raises: DataError in that case, or if a file cannot be written.
    """
    for name, lines in files.items():
        path = folder / name
        if path.exists() and path.read_bytes() != text_of(lines).encode():
            raise DataError(f"{path}: is there already and would be lost; give another folder, or remove it")
    for name, lines in files.items():
        write_lines(folder / name, lines)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replaces the file's lines atomically; creates its folder if necessary.

    Raises: DataError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text_of(lines))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error


def text_of(lines: Iterable[str]) -> str:
    """The lines as one text, each followed by a newline."""
    return "".join(f"{line}\n" for line in lines)


def sync_tree(folder: Path) -> None:
    """Waits until all that is in the folder is on the disk, so that a rename of the folder cannot overtake it."""
    inside = sorted(folder.rglob("*"))
    for path in filter(Path.is_file, inside):
        with path.open("r+b") as file:  # Windows cannot sync a file that is open for reading only
            os.fsync(file.fileno())
    for path in [folder, *filter(Path.is_dir, inside)]:
        sync_folder(path)


def sync_folder(folder: Path) -> None:
    """Waits until the names in the folder are on the disk."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file; {} if the file does not exist.

    Raises: DataError, whose message ends with `remedy`, if it holds no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise DataError(f"{path}: no JSON ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: no JSON object; {remedy}")
    return found


def csv_of(rows: Sequence[Mapping[str, Any]], *, nan: str) -> str:
    """The rows as CSV with a column for every key; a missing value is empty, a NaN is written as `nan`."""
    made = io.StringIO()
    writer = csv.DictWriter(made, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: nan if value != value else value for key, value in row.items()} for row in rows)
    return made.getvalue()
