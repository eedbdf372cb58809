"""Files that appear whole: a reader sees what was there before, or all of what is new; and JSON objects read back."""

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
    """A path to write to; what is written there then takes the place of `path` in one move."""
    partial = path.with_name(path.name + ".partial")
    yield partial
    os.replace(partial, path)


def write_atomic(path: Path, text: str) -> None:
    """Replaces the file's text."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_new(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Writes files by name, line by line, unless one of them is there with other lines: then none is touched.

    Raises: DataError where one is, or where one cannot be written.
    """
    for name, lines in files.items():
        path = folder / name
        if path.exists() and path.read_bytes() != text_of(lines).encode():
            raise DataError(f"{path}: is there already and would be lost; give another folder, or remove it")
    for name, lines in files.items():
        write_lines(folder / name, lines)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replaces the file's lines, and makes its folder.

    Raises: DataError where it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text_of(lines))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error


def text_of(lines: Iterable[str]) -> str:
    """The lines as a file has them, each with its end."""
    return "".join(f"{line}\n" for line in lines)


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The object of a JSON file; {} where there is no such file.

    Raises: DataError, which ends with the remedy, for a damaged one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path}: no JSON ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: no JSON object; {remedy}")
    return found


def csv_of(rows: Sequence[Mapping[str, Any]], *, nan: str) -> str:
    """The rows as CSV under all their keys; what a row does not have is empty, what is no number `nan`."""
    made = io.StringIO()
    writer = csv.DictWriter(made, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: nan if value != value else value for key, value in row.items()} for row in rows)
    return made.getvalue()
