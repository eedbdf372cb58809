"""Files of documents: the documents in them, their tokens, and the prompts that are asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookexp import chess_text
from rookexp.errors import ConfigError, DataError, why
from rookexp.objectives.likelihood import Documents
from rookexp.policies import Pretrained
from rookexp.tasks import shards
from rookexp.tasks.environment import Unobservable, document_of
from rookexp.tasks.reading import Reading
from rookexp.tasks.released import row_of, single_document

EXAMPLE = Path(__file__).resolve().parents[1] / "assets" / "positions" / "transitions-eval.txt"
QUOTED = 60  # characters of a document


def read_documents(file: Path) -> list[str]:
    """The documents of a file, as `rows_of` yields them.

    Raises: DataError where the file cannot be read, or a row has no document.
    """
    found = []
    for place, text in rows_of(file):
        if isinstance(text, shards.NoText):
            raise DataError(f"{file}, {place}: {text.why}; mend or remove it")
        found.append(text)
    return found


def rows_of(file: Path) -> Iterator[tuple[str, str | shards.NoText]]:
    """Yields place and document of each row that is not blank, or why it has none.

    A row is a line of a text file; what is under `text` in JSON lines or parquet; or one of a JSON list of A prompts
    with their `expected_fen`. A documents without their prefix get it; ends of text are left out.
    Raises: DataError where the file is missing or is none of these.
    """
    if not file.is_file():
        what = "a folder" if file.is_dir() else "no such file"
        raise DataError(
            f"{file}: no documents can be read ({what}); name a file of P or A documents, one a line, as "
            f"{EXAMPLE}, or make a corpus with `python -m rookexp.data`"
        )
    document: Callable[[Any], str | shards.NoText]
    if file.suffix == ".json":
        document, rows = whole_document, _listed(file)
        places = [f"row {number}" for number in range(1, len(rows) + 1)]
    else:
        shard = shards.opened(file, "text")
        document, rows = _stated, shard.read(range(len(shard)))
        places = [shard.place(number) for number in range(len(shard))]
    for place, row in zip(places, rows, strict=True):
        try:
            text = document(row)
        except ValueError as error:
            text = shards.NoText(str(error), row if isinstance(row, str) else json.dumps(row))
        if text:
            yield place, text


def token_documents(policy: Pretrained, file: Path, texts: Sequence[str]) -> Documents:
    """The texts of a file as tokens, each followed by end-of-text, with the number of its prompt tokens.

    Raises: DataError if there are no texts; ConfigError if one is longer than the model's positions allow.
    """
    if not texts:
        raise DataError(f"{file}: empty; make it with `python -m rookexp.data`")
    cuts = [len(chess_text.prompt_of(text)) for text in texts]
    eot_id, n_positions = policy.tokenizer.eot_id, policy.model.config.n_positions
    found = Documents(([*ids, eot_id], prompt) for ids, prompt in policy.tokenizer.encode_cut(texts, cuts))
    longest = int(found.lengths.max())
    if longest > n_positions + 1:  # the last token is only predicted, never an input
        said = f"{file}: a document takes {longest - 1} positions, and the model has {n_positions}"
        raise ConfigError(f"{said}; leave such out, or take a model with more, by model.n_positions if it is a new one")
    return found


def _listed(file: Path) -> Sequence[Any]:
    """The rows of a JSON list. Raises: DataError where the file is none."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: no documents can be read ({why(error)}); mend the file") from error
    if not isinstance(rows, list):
        raise DataError(f"{file}: no documents can be read (not a list); mend the file")
    return rows


def _stated(text: str | shards.NoText) -> str | shards.NoText:
    """The document of a row, "" where it is blank. Raises: ValueError for several."""
    return text if isinstance(text, shards.NoText) else single_document(text)


def whole_document(row: Any) -> str:
    """The A document of a JSON row with `prompt` and `expected_fen`.

    Raises: ValueError where these are missing or do not fit together.
    """
    if not isinstance(row, dict) or not {"prompt", "expected_fen"} <= row.keys():
        raise ValueError("not an object with prompt and expected_fen")
    return document_of(row, "strict")


@dataclass(slots=True)
class HeldOut:
    """The documents of one task in a file."""

    usable: list[str] = field(default_factory=list)  # of different questions; as many as are needed
    questions: set[str] = field(default_factory=set)  # of these documents and of those after them
    repeated: int = 0  # documents left out, because a repeated question tells nothing new


def held_out(file: Path, needed: Mapping[str, int | None]) -> tuple[dict[str, HeldOut], Reading]:
    """The documents of a file by task, without tasks that it has none of, and what became of its rows.

    Malformed rows are left out. Documents are checked as those that are trained on, until there are as many of their
    task as `needed` (None: all), in the order of the file.
    Raises: DataError where the file cannot be read or has no document that can be used.
    """
    parts, reading = {task: HeldOut() for task in needed}, Reading()
    for place, text in rows_of(file):
        try:
            reading.counts[_put(text, parts, needed)] += 1
        except ValueError as error:
            reading.refuse(f"{file.name}, {place}", str(error), text if isinstance(text, str) else text.text)
    if not reading.counts:
        raise DataError(f"{file}: no documents in it; make them with `python -m rookexp.data`")
    reading.refuse_in_vain(str(file))
    return {task: part for task, part in parts.items() if part.usable}, reading


def _put(text: str | shards.NoText, parts: Mapping[str, HeldOut], needed: Mapping[str, int | None]) -> str:
    """Puts a row's document into the part of its task; returns what became of it, in words.

    Raises: ValueError saying what is wrong with it.
    """
    if isinstance(text, shards.NoText):
        raise ValueError(text.why)
    if not text.startswith(("P: ", "A: ")):
        raise ValueError(f"starts with neither `P: ` nor `A: `: {text[:QUOTED]!r}")
    task = text[0]
    part, most = parts[task], needed[task]
    enough = most is not None and len(part.usable) >= most
    if not enough:
        refuse_malformed(text)
    question = " ".join(chess_text.prompt_of(text).split()) or text
    if question in part.questions:
        part.repeated += 1
        return "repeated"
    part.questions.add(question)
    if enough:
        return "not needed"
    part.usable.append(text)
    return f"usable {task}"


def refuse_malformed(document: str) -> None:
    """Raises: ValueError saying why training would refuse a document, by the strict oracle and the published one."""
    with suppress(Unobservable):  # a draw by earlier moves that the document does not show
        row_of(document, "strict")


def prompt_of(document: str, p_style: str) -> str:
    """The prompt of a document that is not malformed; of P in one of the styles of `chess_text.P_PROMPTS`."""
    answer = chess_text.parse_p(document)
    return chess_text.prompt_of(document) if answer is None else chess_text.P_PROMPTS[p_style](answer.fen)
