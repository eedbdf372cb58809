"""Files that appear whole: a reader sees what was there before, or all of what is new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
