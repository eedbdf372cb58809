"""Held-out documents answered greedily, and the figures of the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from rookexp import chess_text, generate
from rookexp.errors import DataError
from rookexp.models.gpt2 import GPT2
from rookexp.tasks.figures import Figure, Mean, environment_figures, policy_figures
from rookexp.tokenizers import Tokenizer


class HeldOut:
    """A model's greedy answers to the prompts of documents that it has not seen."""

    def __init__(
        self,
        *,
        model: GPT2,
        tokenizer: Tokenizer,
        documents: Annotated[Sequence[str], MinLen(1)],
        limit: Annotated[int, Ge(1)] | None,
        style: Literal["bare", "padded_prefill"],
        max_new_tokens: Annotated[int, Ge(1)],
        batch: Annotated[int, Ge(1)],
        autocast: Callable[[], AbstractContextManager[None]],
        folder: Path,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.files = [Path(name) for name in documents]
        self.limit = limit
        self.p_prompt = {"bare": chess_text.p_prompt, "padded_prefill": chess_text.p_prompt_padded}[style]
        self.max_new_tokens = max_new_tokens
        self.batch = batch
        self.autocast = autocast
        self.folder = folder

    def run(self, tell: Callable[[str], object]) -> dict[str, dict[str, Figure | Mean]]:
        """Figures by file and task; writes figures.json and completions.jsonl into the folder.

        `tell` gets each part's figures as text as soon as they are known.

        Raises: DataError before any answer where a file cannot be read or holds anything but P and A documents.
        """
        if len({file.name for file in self.files}) < len(self.files):
            names = ", ".join(map(str, self.files))
            raise DataError(f"{names}: files of one name cannot be told apart in the figures; evaluate one at a time")
        parts = {}
        for file in self.files:
            for task, texts in tasks_of(file, read_documents(file)).items():
                chosen = texts[: self.limit]
                parts[f"{file.name}, {task}"] = (task, chosen, [self.prompt(text) for text in chosen])
        results = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "completions.jsonl", "w", encoding="utf-8") as answers:
            for part, (task, golds, prompts) in parts.items():
                completions = self.answer(prompts)
                if task == "P":
                    results[part] = policy_figures(golds, completions, prompts)
                else:
                    results[part] = environment_figures(golds, completions)
                width = max(map(len, results[part]))
                lines = [f"  {name:<{width}} {figure}" for name, figure in results[part].items()]
                tell("\n".join([f"\n{part}: {len(golds)} documents (95 % intervals)", *lines]))
                for prompt, completion, gold in zip(prompts, completions, golds, strict=True):
                    answers.write(json.dumps({"prompt": prompt, "completion": completion, "gold": gold}) + "\n")
        plain = {part: {name: f.record() for name, f in figures.items()} for part, figures in results.items()}
        (self.folder / "figures.json").write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
        return results

    def prompt(self, document: str) -> str:
        """The prompt of a document.

        Raises: DataError where it is none.
        """
        if chess_text.parse_a_prompt(document) is not None:
            return chess_text.prompt_of(document)
        answer = chess_text.parse_p(document)
        if answer is None or not answer.well_formed:
            raise DataError(f"neither a P nor an A document: {document!r}")
        return self.p_prompt(answer.fen)

    def answer(self, prompts: Sequence[str]) -> list[str]:
        """The greedy completion of each prompt."""
        texts: list[str] = []
        for start in range(0, len(prompts), self.batch):
            ids = [self.tokenizer.encode(prompt) for prompt in prompts[start : start + self.batch]]
            with self.autocast():
                samples = generate.greedy(self.model, ids, self.max_new_tokens, self.tokenizer.eot_id)
            for row, kept in zip(samples.tokens, samples.mask, strict=True):
                texts.append(self.tokenizer.decode(row[kept].tolist()))
        return texts


def read_documents(file: Path) -> list[str]:
    """The documents of a text file, one a line; or those of a JSON list of A prompts with their `expected_fen`.

    Raises: DataError where the file is missing or is neither, or a prompt's expected FEN is not what follows its move.
    """
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".json":
            return [line for line in text.splitlines() if line.strip()]
        return [whole_document(row) for row in json.loads(text)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: no documents can be read ({error}); make them with `python -m rookexp.data`"
        ) from error


def whole_document(row: dict[str, Any]) -> str:
    """The A document of a JSON row with `prompt` and `expected_fen`.

    Raises: ValueError where these do not fit together.
    """
    asked = chess_text.parse_a_prompt(row["prompt"])
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
