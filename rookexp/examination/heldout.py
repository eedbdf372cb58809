"""Files of documents: the documents in them, their tokens, and the prompts that are asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rookexp import chess_text
from rookexp.errors import ConfigError, DataError, why
from rookexp.objectives.likelihood import Documents
from rookexp.policies import Pretrained
from rookexp.tasks import shards
from rookexp.tasks.environment import Unobservable, document_of, question_of
from rookexp.tasks.released import single_document

EXAMPLE = Path(__file__).resolve().parents[1] / "assets" / "positions" / "transitions-eval.txt"
QUOTED = 60  # characters of a document


def read_documents(file: Path) -> list[str]:
    """The documents of a file.

    One per line of a text file; those under `text` in JSON lines or parquet; or of a JSON list of A prompts with their
    `expected_fen`. A documents without their prefix get it; ends of text are left out.
    Raises: DataError where the file is missing or is none of these, a row has no text, or a prompt's expected FEN is
    not what follows its move.
    """
    if not file.is_file():
        what = "a folder" if file.is_dir() else "no such file"
        raise DataError(
            f"{file}: no documents can be read ({what}); name a file of P or A documents, one a line, as "
            f"{EXAMPLE}, or make a corpus with `python -m rookexp.data`"
        )
    document: Callable[[Any], str]
    if file.suffix == ".json":
        document, rows = whole_document, _listed(file)
        places = [f"row {number}" for number in range(1, len(rows) + 1)]
    else:
        shard = shards.opened(file, "text")
        document, rows = _stated, shard.read(range(len(shard)))
        places = [shard.place(number) for number in range(len(shard))]
    found = []
    for place, row in zip(places, rows, strict=True):
        try:
            found.append(document(row))
        except ValueError as error:
            raise DataError(f"{file}, {place}: {error}; mend or remove it") from error
    return [text for text in found if text]


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


def _stated(text: str | shards.NoText) -> str:
    """The document of a row, "" where it is blank. Raises: ValueError for none or several."""
    if isinstance(text, shards.NoText):
        raise ValueError(text.why)
    return single_document(text)


def whole_document(row: Any) -> str:
    """The A document of a JSON row with `prompt` and `expected_fen`.

    Raises: ValueError where these are missing or do not fit together.
    """
    if not isinstance(row, dict) or not {"prompt", "expected_fen"} <= row.keys():
        raise ValueError("not an object with prompt and expected_fen")
    return document_of(row, "strict")


def tasks_of(file: Path, documents: Sequence[str]) -> dict[str, list[str]]:
    """The documents of a file, by task; without tasks that it has none of.

    Raises: DataError for a file without documents, and for a document that is neither P nor A.
    """
    by_task = {task: [text for text in documents if text.startswith(f"{task}: ")] for task in "PA"}
    if not documents:
        raise DataError(f"{file}: no documents in it; make them with `python -m rookexp.data`")
    others = [number for number, text in enumerate(documents, start=1) if not text.startswith(("P: ", "A: "))]
    if others:
        raise DataError(f"{file}, document {others[0]}: starts with neither `P: ` nor `A: `; name a file of such alone")
    return {task: texts for task, texts in by_task.items() if texts}


def prompt_of(document: str, style: str) -> str:
    """The prompt of a document; that of a P document in one of the styles of `chess_text.P_PROMPTS`.

    Raises: DataError where it is neither a P nor an A document.
    """
    if chess_text.parse_a_prompt(document) is not None:
        return chess_text.prompt_of(document)
    answer = chess_text.parse_p(document)
    if answer is None or not answer.well_formed:
        why = "its moves, values or best move cannot be read" if document.startswith("P: ") else "no whole A document"
        raise DataError(f"{document[:QUOTED]!r}: {why}; mend or remove it")
    return chess_text.P_PROMPTS[style](answer.fen)


def distinct(documents: Sequence[str]) -> list[str]:
    """The first document of each question, because a repeated question tells nothing new."""
    questions: dict[str, str] = {}
    for text in documents:
        questions.setdefault(" ".join(chess_text.prompt_of(text).split()) or text, text)
    return list(questions.values())


def refuse_wrong(gold: str) -> None:
    """Raises: DataError for an A document that contradicts the oracle, which training refuses, too."""
    try:
        question_of(gold, "strict")
    except Unobservable:
        pass  # a draw by earlier moves that the document does not show
    except ValueError as error:
        raise DataError(f"{gold[:QUOTED]!r}: {error}; mend or remove it") from error
