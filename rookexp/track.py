"""Where metrics go: what every tracker can do, and the files of the run folder. Nothing here uses a seeded RNG."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any

from annotated_types import Ge

from rookexp.errors import DataError
from rookexp.files import read_object, write_atomic
from rookexp.run_folder.run_info import HIDDEN, SECRET, plain

METRICS = "metrics.jsonl"
COMPLETIONS = "completions.jsonl"
SUMMARY = "summary.json"
CURVES = "curves.png"
RUN_ID = "run_id.txt"
ANSWERS = "evaluation_answers"  # summary key: a digest of the greedy evaluation's prompts and right answers
SHORTEST_SECRET = 8  # characters; a shorter value could mask ordinary words


class Tracker:
    """A destination of a run's metrics; step s is the state after s steps. This base class discards everything."""

    def start(self, config: Mapping[str, Any]) -> None:
        """Opens the run; `config` is the resolved configuration."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes one step's metrics; a second call for the same step adds to them, an earlier step is an error."""

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes completions worth reading, a mapping each: prompt, completion, reward and what else is known."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Takes figures of the whole run; later values replace earlier ones of the same name."""

    def finish(self, status: str) -> None:
        """Closes the run with a status such as `finished`; harmless if it was not started or is already closed."""


class FanOut(Tracker):
    """Several trackers as one; each is closed even if another fails to.

    If `unread` is set, it is called once a tracker's output has lost its reader, as with `| head`.
    """

    def __init__(self, *, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)
        self.unread: Callable[[], None] | None = None

    def start(self, config: Mapping[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.start(config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            try:
                tracker.log(step, metrics)
            except BrokenPipeError:
                if self.unread is None:
                    raise
                self.unread()

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for tracker in self.trackers:
            tracker.log_completions(step, rows)

    def summary(self, values: Mapping[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.summary(values)

    def finish(self, status: str) -> None:
        with ExitStack() as stack:
            for tracker in reversed(self.trackers):
                stack.callback(tracker.finish, status)


class JsonlTracker(Tracker):
    """metrics.jsonl (one object a step), completions.jsonl and summary.json in the run folder; the reference record.

    `first_step` is the first step that this process logs: 0 for a new run, s + 1 after the checkpoint of step s. Lines
    from there on, left by a process that went further than its last checkpoint, are dropped at the start; the earlier
    summary stays until a step is logged, so that a failed start leaves a finished run finished.
    """

    def __init__(self, *, folder: Path, first_step: Annotated[int, Ge(0)]) -> None:
        self.folder = folder
        self.first_step = first_step
        self._files: dict[str, IO[str]] = {}
        self._last: dict[str, Any] = {"step": -1}
        self._last_at = 0  # byte offset of the last line of metrics.jsonl
        self._summary: dict[str, Any] = {}
        self._begun = first_step == 0

    def start(self, config: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, COMPLETIONS):
            path = self.folder / name
            kept = [row for row in read_jsonl(path) if row["step"] < self.first_step] if path.exists() else []
            write_atomic(path, "".join(_line(row) for row in kept))
            self._files[name] = path.open("a", encoding="utf-8", newline="\n")
        self._summary = {"status": "running"}
        self._write_summary()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        file = self._files[METRICS]
        if step < max(self._last["step"], self.first_step):
            raise ValueError(f"step {step} logged after step {max(self._last['step'], self.first_step - 1)}")
        if step == self._last["step"]:
            file.truncate(self._last_at)
        else:
            self._last, self._last_at = {"step": step}, os.fstat(file.fileno()).st_size
        self._last |= metrics
        file.write(_line(self._last))
        file.flush()
        if not self._begun:
            self._begun = True
            self._write_summary()

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        file = self._files[COMPLETIONS]
        file.writelines(_line({"step": step, **row}) for row in rows)
        file.flush()

    def summary(self, values: Mapping[str, Any]) -> None:
        self._summary |= values
        self._write_summary()

    def finish(self, status: str) -> None:
        try:
            if self._files:
                self._begun = self._begun or status == "finished"  # also with no step left to do
                self.summary({"status": status})
        finally:
            for file in self._files.values():
                file.close()
            self._files = {}

    def _write_summary(self) -> None:
        if self._begun:
            write_atomic(self.folder / SUMMARY, json.dumps(plain(self._summary), indent=2, allow_nan=False) + "\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that JsonlTracker wrote, None for values not finite; an incomplete last line is left out.

    Raises: DataError naming file and row if another line is no JSON object with a `step`.
    """
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline was never finished
        try:
            row = json.loads(line)
            row["step"] += 0
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: row {number} is no metrics object ({error}); delete that line") from error
        rows.append(row)
    return rows


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl; [] if there is none yet.

    Raises: DataError as `read_jsonl`, and for a value that is neither a number nor null.
    """
    path = folder / METRICS
    rows = read_jsonl(path) if path.is_file() else []
    for number, row in enumerate(rows, start=1):
        for name, value in row.items():
            if value is not None and not isinstance(value, int | float):
                raise DataError(f"{path}: row {number}: {name} is no number ({value!r}); delete that line")
    return rows


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json; {} if there is none yet.

    Raises: DataError if it is no JSON object.
    """
    return read_object(folder / SUMMARY, "delete it")


def run_id(folder: Path) -> str:
    """Eight characters that identify the run in services: kept in its folder, created on its first start."""
    path = folder / RUN_ID
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()


class Guard:
    """Runs what must never end a training: errors are swallowed, the first is printed in one line without secrets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._said = False

    def __call__(self, act: Callable[[], object]) -> bool:
        """Runs `act`; True if it raised no error."""
        try:
            act()
        except Exception as error:  # a library and a service raise many kinds
            if not self._said:
                said = f"{self.name}: {first_line(error)}; the training goes on, metrics are in the run folder"
                print(said, flush=True)
            self._said = True
            return False
        return True


def first_line(error: Exception) -> str:
    """An error's kind and the first line of its message, with the environment's secrets masked."""
    lines = f"{type(error).__name__}: {error}".split("\n")
    said = 3 if "validation error" in lines[0] else 1  # pydantic's heading; the key and what is wrong follow
    text = " ".join(line.strip() for line in lines[:said])
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, HIDDEN)
    return text


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(plain(row), separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n"
