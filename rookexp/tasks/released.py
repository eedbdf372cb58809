"""The released data sets' documents as P and A prompts: read in a seeded order, checked, split by position, mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import chess
from annotated_types import Ge, Gt, Le

from rookexp.chess_text import END_OF_TEXT, Annotation, EnvironmentPrompt, ListOrder, p_completion
from rookexp.errors import DataError
from rookexp.tasks import shards
from rookexp.tasks.environment import EnvironmentTask, Legality, Unobservable, is_legal, question_of
from rookexp.tasks.mixed import Mixed, SamplingOverrides, Sequenced
from rookexp.tasks.positions import position_key, split_of
from rookexp.tasks.reading import Reading
from rookexp.tasks.rookworld import PolicyTask, annotation_of
from rookexp.types import Prompt, Tokenizer

HASHED = ("validation", "test")
Taken = dict[str, list[Any]]  # the rows of a part by kind: Annotations for P, EnvironmentPrompts for A


class RookWorld:
    """P and A prompts of a data set whose rows have a text column, mixed by quota; the split is by position.

    `data`: a file, a folder, or a data set on the Hub. The rows of its files that match `files` are read in a uniformly
    random order until there are `rows` (null: all) training and `eval_rows` evaluation prompts, `p_share` of them P.
    A position, up to its symmetries, is in one split only. Training prompts come from the training split, evaluation
    prompts from `evaluate`: validation, test, or the files that match another pattern (the data set's own test split),
    which are not trained on, less the positions used in training. A row that is no document, whose answer the oracle
    contradicts, or whose move is illegal is never used; `notes` counts these and lists malformed ones. `black_best`:
    the best move of a gold answer is the one with the highest evaluation, or, with `legacy`, the published label, for
    Black nearly always the lowest.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        data: str,
        revision: str | None,
        files: str,
        column: str,
        rows: Annotated[int, Gt(0)] | None,
        evaluate: str,
        eval_rows: Annotated[int, Gt(0)],
        p_share: Annotated[float, Ge(0), Le(1)],
        prompts: Annotated[int, Gt(0)],
        order: Literal["fixed", "epochs"],
        colours: Literal["balanced", "as_found"],
        p_style: Literal["bare", "padded_prefill"],
        analysed: Annotated[float, Ge(0), Le(1)],
        list_order: ListOrder,
        black_best: Literal["corrected", "legacy"],
        sampling: SamplingOverrides,
        seed: Annotated[int, Ge(0)],
    ) -> None:
        self.data = data
        self.black_best = black_best
        self.reading = Reading()
        self.shares = {kind: share for kind, share in (("P", p_share), ("A", round(1 - p_share, 9))) if share > 0}
        wanted = {"train": self._quotas(rows), "evaluation": self._quotas(eval_rows)}
        own = evaluate not in HASHED
        parts = {"train": "train"} if own else {"train": "train", evaluate: "evaluation"}
        found, unread = shards.find(data, revision, files, column)
        theirs: list[shards.Shard] = []  # the data set's own files for evaluation
        if own:
            if Path(data).expanduser().is_file():
                raise DataError(
                    f"task.evaluate={evaluate}: files of a folder, and task.data={data} is one file; allowed: "
                    f"{', '.join(HASHED)}, which take a share of its positions, or a folder"
                )
            remedy = f"allowed in task.evaluate: {', '.join(HASHED)}, or a pattern that files match"
            theirs, _ = shards.find(data, revision, evaluate, column, remedy)
            kept_out = {shard.path for shard in theirs}
            found = [shard for shard in found if shard.path not in kept_out]
            if not found:
                raise DataError(
                    f"{data}: task.evaluate={evaluate} matches every file that task.files={files} does, so that none "
                    f"is left to train on; allowed: patterns that differ, or {', '.join(HASHED)} in task.evaluate"
                )
        self.kept: dict[str, str] = {}  # position key -> the part, train or evaluation, that it is in
        self.labels: dict[Annotation, str] = {}  # the published label of a P row
        texts = shards.shuffled(found, f"{seed}/rows")
        taken = self._take(texts, {name: wanted[name] for name in parts.values()}, lambda key: parts.get(split_of(key)))
        if own:
            texts, asked = shards.shuffled(theirs, f"{seed}/evaluation"), set(self.kept)
            ask = {"evaluation": wanted["evaluation"]}
            taken |= self._take(texts, ask, lambda key: None if key in asked else "evaluation")
        self._refuse_too_few(taken, evaluate)
        self.missed = list(missed(taken, wanted))
        if unread:
            kinds = ", ".join(shards.SUFFIXES)
            self.missed.append(f"files that task.files matches, not read: {len(unread)}, as {unread[0]}: not {kinds}")
        tasks: dict[str, dict[str, Sequenced]] = {}
        for part, of_kind in taken.items():
            tasks[part] = {}
            if "P" in self.shares:
                tasks[part]["P"] = PolicyTask(
                    tokenizer,
                    positions=of_kind["P"],
                    prompts=len(of_kind["P"]),
                    order="epochs",
                    colours=colours if part == "train" else "as_found",
                    p_style=p_style,
                    analysed=analysed if part == "train" else 0.0,
                    list_order=list_order,
                    seed=seed,
                )
            if "A" in self.shares:
                tasks[part]["A"] = EnvironmentTask(
                    tokenizer,
                    positions=of_kind["A"],
                    prompts=len(of_kind["A"]),
                    order="epochs",
                    moves="legal",
                    legality="legacy",
                    seed=seed,
                )
        # With p_share=0 or 1 one of the kinds in the configuration never occurs; its sampling settings are dropped.
        self.sampling = {kind: keys for kind, keys in sampling.items() if kind not in "PA" or kind in self.shares}
        self.training = Mixed(tasks=tasks["train"], shares=self.shares, prompts=prompts, order=order, sampling={})
        self.evaluation = tasks["evaluation"]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The values that `Prompt.task` may have."""
        return tuple(self.shares)

    @property
    def held_out(self) -> bool:
        """Whether evaluation uses no position that is trained on."""
        return self.training.order == "epochs"

    def notes(self) -> list[str]:
        """What was read, as lines for the user."""
        return [f"{self.data}: {line}" for line in (*self.missed, *self.training.notes(), *self.reading.notes())]

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of a step, from the training split."""
        return self.training.select(step)

    def prompts(self) -> tuple[Prompt, ...]:
        """The held-out prompts, once each; with a fixed batch just that batch, which is then all that is measured."""
        if not self.held_out:
            return self.training.prompts()
        return tuple(prompt for task in self.evaluation.values() for prompt in task.prompts())

    def gold(self, prompt: Prompt) -> str:
        """The completion of a prompt as the data set has it, moves best first."""
        row = prompt.answer
        if not isinstance(row, Annotation):
            return self.training.gold(prompt)
        published = self.labels.get(row, row.moves[0])  # the prompt may be another task's
        best = published if self.black_best == "legacy" else row.moves[0]
        return p_completion(prompt.text, row, best)

    def _quotas(self, rows: int | None) -> dict[str, int | None]:
        """How many rows to take of each kind, None for all; at least one of each kind that is used."""
        return {kind: None if rows is None else max(1, round(rows * share)) for kind, share in self.shares.items()}

    def _take(
        self,
        texts: Iterator[tuple[str, str | shards.NoText]],
        wanted: Mapping[str, Mapping[str, int | None]],
        part_of: Callable[[str], str | None],
    ) -> dict[str, Taken]:
        """Reads rows until each part has as many of each kind as wanted; counts what became of every row read."""
        taken: dict[str, Taken] = {part: {"P": [], "A": []} for part in wanted}
        seen: set[Annotation | EnvironmentPrompt] = set()

        def full(part: str, kind: str) -> bool:
            limit = wanted[part].get(kind, 0)
            return limit is not None and len(taken[part][kind]) >= limit

        for place, text in texts:
            if all(full(part, kind) for part in wanted for kind in "PA"):
                break
            if isinstance(text, shards.NoText):
                self.reading.refuse(place, text.why, text.text)
                continue
            kind = "P" if text.replace(END_OF_TEXT, "").lstrip().startswith("P: ") else "A"
            if all(full(part, kind) for part in wanted):
                self.reading.counts["not needed"] += 1
                continue
            try:
                row, label = row_of(text)
            except Unobservable:
                self.reading.counts["with a draw that the prompt does not show"] += 1
                continue
            except ValueError as error:
                self.reading.refuse(place, str(error), text)
                continue
            key = position_key(chess.Board(row.fen))
            part = part_of(key)
            if row in seen:
                self.reading.counts["repeated"] += 1
            elif isinstance(row, EnvironmentPrompt) and not is_legal(row):
                self.reading.counts["with an illegal move"] += 1
            elif part is None or full(part, kind):
                self.reading.counts["of another split or not needed"] += 1
            else:
                seen.add(row)
                self.kept[key] = part
                self.reading.counts[f"{kind} for {part}"] += 1
                taken[part][kind].append(row)
                if isinstance(row, Annotation):
                    self.labels[row] = label
        return taken

    def _refuse_too_few(self, taken: Mapping[str, Taken], evaluate: str) -> None:
        """Raises: DataError where a part has no row of a kind that is asked, with what became of the rows."""
        self.reading.refuse_in_vain(self.data)
        for part, rows in taken.items():
            for kind in self.shares:
                if not rows[kind]:
                    said = (
                        f"{self.data}: no {kind} rows for {part}; give more rows, or files of their own (task.evaluate)"
                    )
                    if any(rows.values()):  # of the other kind there are
                        said += f", or do without {kind} (task.p_share={int(kind == 'A')})"
                    split = "a hash of a row's position names its split: of 100 train 97, validation 1, test 2"
                    if part == "evaluation" and evaluate not in HASHED:
                        split = f"rows of {evaluate} at positions that are trained on do not count"
                    raise DataError("; ".join([said, split, *self.reading.notes()]))


def missed(taken: Mapping[str, Taken], wanted: Mapping[str, Mapping[str, int | None]]) -> Iterator[str]:
    """A line for each part that has fewer rows of a kind than were asked for."""
    for part, rows in taken.items():
        asked = {kind: count for kind, count in wanted[part].items() if count is not None}
        found = {kind: len(rows[kind]) for kind in asked}
        if found != asked:
            few, many = (" and ".join(f"{count} {kind}" for kind, count in each.items()) for each in (found, asked))
            key = "task.rows" if part == "train" else "task.eval_rows"
            yield f"{part} has {few} rows where {many} were asked for; give more rows, or lower {key}"


def row_of(text: str, legality: Legality = "legacy") -> tuple[Annotation | EnvironmentPrompt, str]:
    """The row of a document, and its label: the move after `B:` of a P document, the move of an A document.

    Raises: ValueError saying what is wrong with it; Unobservable for a draw that the prompt does not show.
    """
    text = single_document(text)
    if text.startswith("P: "):
        return annotation_of(text)
    if text.count("+") != 6:
        raise ValueError(f"neither a P nor an A document: {text.removeprefix('A: ')[:60]!r}")
    question = question_of(text, legality)
    return question, question.move


def single_document(text: str) -> str:
    """The one document in the text of a data set's row, without ends of text and outer spaces.

    Seven fields without `A: ` in front get it: some data sets have their A documents so.
    Raises: ValueError for several documents.
    """
    documents = [part.strip() for part in text.split(END_OF_TEXT) if part.strip()]
    if len(documents) > 1:
        raise ValueError(f"{len(documents)} documents in a row, with {END_OF_TEXT} between; give each a row of its own")
    text = "".join(documents)
    return f"A: {text}" if text.count("+") == 6 and not text.startswith(("P: ", "A: ")) else text
