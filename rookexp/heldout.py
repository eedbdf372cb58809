"""Files of held-out documents: what is in them, and what is asked of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rookexp import chess_text
from rookexp.errors import DataError
from rookexp.tasks import shards
from rookexp.tasks.released import whole


def read_documents(file: Path) -> list[str]:
    """The documents of a text file, one a line; those under `text` in JSON lines or parquet; or of a JSON list of A
    prompts with their `expected_fen`. A documents without their prefix get it, ends of text are left out.

    Raises: DataError where the file is missing or is none of these, a row has no text, or a prompt's expected FEN is
    not what follows its move.
    """
    if file.suffix in (".jsonl", ".parquet") and file.is_file():
        (shard,) = shards.find(str(file), None, "*", "text")
        rows = range(len(shard))
        return _each(file, map(shard.place, rows), shard.read(rows))
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix != ".json":
            lines = text.splitlines()
            places = [f"line {number + 1}" for number in range(len(lines))]
            return [document for document in _each(file, places, lines) if document]
        return [whole_document(row) for row in json.loads(text)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: no documents can be read ({error}); make them with `python -m rookexp.data`"
        ) from error


def _each(file: Path, places: Iterable[str], texts: Sequence[str | None]) -> list[str]:
    """The document of each text, "" where it is blank. Raises: DataError for none or several, with the text's place."""
    found = []
    for place, text in zip(places, texts, strict=True):
        try:
            if text is None:
                raise ValueError("no `text` in it")
            found.append(whole(text))
        except ValueError as error:
            raise DataError(f"{file}, {place}: {error}") from error
    return found


def whole_document(row: dict[str, Any]) -> str:
    """The A document of a JSON row with `prompt` and `expected_fen`.

    Raises: ValueError where these do not fit together.
    """
    asked = chess_text.parse_a_prompt(row["prompt"]) if isinstance(row["prompt"], str) else None
    if asked is None or chess_text.board_of(asked.fen) is None:
        raise ValueError(f"not an A prompt: {row['prompt']!r}")
    outcome = chess_text.transition(asked.fen, asked.move, legality="legacy")
    if outcome.new_fen != row["expected_fen"]:
        raise ValueError(f"expected_fen {row['expected_fen']!r} does not follow {row['prompt']!r}")
    return row["prompt"] + outcome.text()


def tasks_of(file: Path, documents: Sequence[str]) -> dict[str, list[str]]:
    """The documents of each task that a file has.

    Raises: DataError for a file without documents.
    """
    by_task = {task: [text for text in documents if text.startswith(f"{task}: ")] for task in "PA"}
    if not documents:
        raise DataError(f"{file}: no documents in it; make them with `python -m rookexp.data`")
    others = [number for number, text in enumerate(documents, start=1) if not text.startswith(("P: ", "A: "))]
    if others:
        raise DataError(f"{file}, document {others[0]}: starts with neither `P: ` nor `A: `")
    return {task: texts for task, texts in by_task.items() if texts}


def prompt_of(document: str, style: str) -> str:
    """The prompt of a document; that of a P document in one of the styles of `chess_text.P_PROMPTS`.

    Raises: DataError where it is none.
    """
    if chess_text.parse_a_prompt(document) is not None:
        return chess_text.prompt_of(document)
    answer = chess_text.parse_p(document)
    if answer is None or not answer.well_formed:
        raise DataError(f"neither a P nor an A document: {document!r}")
    return chess_text.P_PROMPTS[style](answer.fen)
