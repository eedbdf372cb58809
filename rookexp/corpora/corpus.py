"""Making the corpus: shards of annotated positions by a pool of processes, then documents."""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from rookexp.chess_text import ListOrder
from rookexp.corpora import a_documents, annotate, documents
from rookexp.errors import DataError, EngineError
from rookexp.files import read_object, write_lines
from rookexp.rewards.engine import Lasting, Stockfish
from rookexp.shares import row_counts, shares_of
from rookexp.tasks import positions


@dataclass(kw_only=True)
class Corpus:
    """A folder with annotated shards and the documents made of them; what is there already is kept."""

    folder: str
    seed: Annotated[int, Ge(0)]
    positions: Annotated[int, Gt(0)]
    shard_positions: Annotated[int, Gt(0)]
    quotas: Mapping[str, float]
    engine_path: str | None
    nodes: Annotated[int, Gt(0)]
    multipv: Annotated[int, Ge(1), Le(5)]
    timeout_s: Annotated[float, Gt(0)]
    retries: Annotated[int, Ge(0)]
    processes: Annotated[int, Ge(1)]
    copies: Annotated[int, Ge(1)]
    black_best: Literal["legacy", "corrected"]
    list_order: ListOrder
    l_share: Annotated[float, Ge(0), Le(1)]
    p_share: Annotated[float, Gt(0), Lt(1)]
    a_shares: Mapping[str, float]

    def __post_init__(self) -> None:
        self.quotas = shares_of("quotas", self.quotas, annotate.KINDS)
        self.a_shares = shares_of("a_shares", self.a_shares, a_documents.A_KINDS)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder).expanduser()

    @property
    def shards(self) -> range:
        """The numbers of all shards."""
        return range(-(-self.positions // self.shard_positions))

    @property
    def counts(self) -> dict[str, int]:
        """How many positions of each kind a shard has."""
        return row_counts(self.shard_positions, self.quotas)

    def engine(self) -> Stockfish:
        """A new engine process. Raises: EngineError when it is missing or does not start."""
        path, timeout_s = self.engine_path, self.timeout_s
        return Stockfish(path=path, nodes=self.nodes, depth=None, multipv=self.multipv, timeout_s=timeout_s)

    def annotate(self) -> None:
        """Runs the shards that are missing, with a progress bar; safe to kill and start again.

        The first failure stops the work; shards that are done stay.
        Raises: EngineError when the engine is missing or fails; DataError when the folder was made with other settings.
        """
        missing = [index for index in self.shards if not annotate.shard_path(self.path, index).exists()]
        # What a shard's rows depend on besides its number.
        settings = {"seed": self.seed, "rows": self.shard_positions, "quotas": self.quotas}
        settings |= {"nodes": self.nodes, "multipv": self.multipv}
        if missing:  # an engine that does not start is one error here instead of one a process
            engine = self.engine()
            settings["engine"] = engine.name
            engine.close()
        self._check_settings(settings)
        if not missing:
            return
        from rich.progress import Progress

        workers = min(self.processes, len(missing))
        with Progress() as progress, ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
            bar = progress.add_task("shards", total=len(self.shards), completed=len(self.shards) - len(missing))
            try:
                for done in as_completed([pool.submit(make_shard, self, index) for index in missing]):
                    done.result()
                    progress.advance(bar)
            except BrokenProcessPool as error:
                raise EngineError(
                    f"a process that ran {settings['engine']} for {self.folder} was killed; finished shards are kept: "
                    "run the command again, with a smaller `processes` if memory is short"
                ) from error
            except KeyboardInterrupt:
                for process in active_children():  # they would go on with the shards that they were given
                    process.terminate()
                raise
            finally:
                pool.shutdown(cancel_futures=True)

    def build(self) -> str:
        """Writes train.txt, validation.txt, test.txt, positions-test.jsonl and the sets of prompts; returns the report.

        A training position appears `copies` times, each time in a symmetric form drawn anew and, if shuffled, with its
        moves in a new order; a share `l_share` of these forms makes an L document, too. A held-out position appears
        once, as it is. The prompts are test positions: pretraining never sees them. Shipping them means copying
        prompts-{train,eval}.jsonl to rookexp/assets/positions/{train,eval}.jsonl.
        Raises: DataError when a shard is missing or broken.
        """
        folder = self.path
        rows, games, duplicates = documents.load_rows(folder, len(self.shards), self.counts)
        rng, draws = random.Random(f"{self.seed}/documents"), random.Random(f"{self.seed}/legal")
        legal: list[str] = []
        texts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
        counts: dict[str, Counter[str]] = {split: Counter() for split in texts}
        held_out = []
        for row in rows:
            split = positions.split_of(positions.position_key(row.board))
            forms = [documents.symmetric(row, rng) for _ in range(self.copies)] if split == "train" else [row]
            texts[split] += [documents.p_document(form, rng, self.black_best, self.list_order) for form in forms]
            counts[split][f"P {row.kind}"] += len(forms)
            if split == "train":
                drawn = [documents.l_document(form.board) for form in forms if draws.random() < self.l_share]
                legal += [text for text in drawn if text is not None]
            elif split == "test":
                held_out.append(row.record())
        prompts = documents.prompt_rows(held_out, self.seed)
        write_lines(folder / "positions-test.jsonl", map(json.dumps, held_out))
        for name, chosen in prompts.items():
            write_lines(folder / f"prompts-{name}.jsonl", map(json.dumps, chosen))
        total = round(sum(map(len, texts.values())) * (1 - self.p_share) / self.p_share)
        wanted = {kind: round(share * total) for kind, share in self.a_shares.items()}
        for document, kind, key in a_documents.a_documents(games, wanted, self.seed):
            split = positions.split_of(key)
            texts[split].append(document)
            counts[split][f"A {kind}"] += 1
        texts["train"] += legal
        counts["train"]["L"] = len(legal)
        for split, lines in texts.items():
            rng.shuffle(lines)
            write_lines(folder / f"{split}.txt", lines)
        report = {
            "duplicates dropped": duplicates,
            "documents": {split: dict(sorted(count.items())) for split, count in counts.items()},
            "prompts": {name: len(chosen) for name, chosen in prompts.items()},
        }
        text = json.dumps(report, indent=2)
        write_lines(folder / "report.json", [text])
        return text

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuses to mix new shards with shards of other settings; makes the folder and records the settings.

        Settings under which no shard was finished bind nobody.
        Raises: DataError.
        """
        path = self.path / "annotations.json"
        known = read_object(path, "it says how the shards were made: delete the folder or choose another one")
        known = known if any(annotate.finished_shards(self.path)) else {}
        for key, value in settings.items():
            if known.get(key, value) != value:
                raise DataError(
                    f"{path}: its shards were made with {key}={known[key]}, not {value}; "
                    "choose another folder or delete this one"
                )
        write_lines(path, [json.dumps(known | dict(settings), indent=2)])


def make_shard(corpus: Corpus, index: int) -> None:
    """Writes one shard, unless its file exists; a file that exists is complete, however its process ended.

    Raises: EngineError when the engine is missing or fails; DataError when the file cannot be written.
    """
    path = annotate.shard_path(corpus.path, index)
    if path.exists():
        return
    engine = Lasting(corpus.engine, retries=corpus.retries)
    try:
        rows = list(annotate.annotated_rows(random.Random(f"{corpus.seed}/{index}"), corpus.counts, engine))
    finally:
        engine.close()
    write_lines(path, [json.dumps(row, separators=(",", ":")) for row in rows])


def end_with_parent() -> None:
    """Makes this pool process, and so its engine, end at once when the process that started it is killed."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
