"""Short fingerprints of a run's data files, by which a resumed run recognises them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rookexp.tasks.shards import SUFFIXES, matching

WHOLE = 1 << 26  # bytes of a file that is read to its end: 64 MiB
BLOCKS, BLOCK = 64, 1 << 16  # a larger file is read in so many blocks, its beginning and end among them
CORPUS = ("train.txt", "validation.txt")  # what pretraining reads in its folder
GROUPS = ("task", "eval")  # groups whose values may name data; a reward's name a program and its cache


def of_data(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Dotted key -> file -> its size and digest, of each key that names a file, or a folder of data, on this machine.

    A file goes by its name, a file in a folder by its path there. Data from the Hub is left out; its commit identifies
    it.
    """
    found = {key: dict(files) for group in GROUPS for key, files in _named(config.get(group), group)}
    if "corpus" in config:
        corpus = Path(config["corpus"]).expanduser()
        found["corpus"] = {name: of_file(corpus / name) for name in CORPUS if (corpus / name).is_file()}
    return {key: files for key, files in found.items() if files}


def of_file(path: Path) -> str:
    """`BYTES bytes, sha256 DIGEST`; above 64 MiB the digest is of 64 blocks of 64 KiB, evenly spaced."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        if size <= WHOLE:
            while part := file.read(1 << 20):
                digest.update(part)
        else:
            for i in range(BLOCKS):
                file.seek((size - BLOCK) * i // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return f"{size} bytes, sha256 {digest.hexdigest()[:16]}"


def _named(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the dotted keys in a node that name data, each with its files and their digests."""
    for name, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(value, str):
            path = Path(value).expanduser()
            if path.is_file() and {"/", "."} & set(value):  # not a word such as `validation`
                yield f"{key}.{name}", {path.name: of_file(path)}
            elif name == "data" and path.is_dir():
                wanted = (str(node.get("files", "*")), str(node.get("evaluate", "")))
                yield f"{key}.{name}", dict(_inside(path, wanted))
        else:
            yield from _named(value, f"{key}.{name}")


def _inside(folder: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields name and digest of the data files whose paths in a folder match one of the patterns `wanted`."""
    for path in matching(folder, *wanted):
        if path.suffix in SUFFIXES:
            yield path.relative_to(folder).as_posix(), of_file(path)
