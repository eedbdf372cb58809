"""Sweeps as a shell meets them, for the tests: the fixture `sweep` types the commands."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
import sweep_task
import yaml

from rookexp.config import door

FAST = "debug=fast steps=3"
LR = "optim.lr=0.1,0.2,0.3"


class Sweeps:
    """Types commands in an empty folder, and reads what they leave."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder / "multirun" / "debug"
        self.monkeypatch = monkeypatch
        self.capfd = capfd
        self.status = 0
        self.error = self.said = ""

    def __call__(self, line: str, recipe: str = "sweep=grid", fast: str = FAST) -> list[str]:
        """Runs `-m sweep=grid` with the words of a line; what the jobs have noted meanwhile."""
        before = len(self.log())
        self.monkeypatch.setattr(sys, "argv", ["train", "-m", *recipe.split(), *fast.split(), *line.split()])
        self.status = 0
        try:
            door.enter(sweep_task.task, "config")
        except SystemExit as end:
            self.status = end.code if isinstance(end.code, int) else 1
        self.said, self.error = self.capfd.readouterr()
        return self.log()[before:]

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def rows(self) -> list[dict[str, str]]:
        """trials.csv."""
        return list(csv.DictReader((self.folder / "trials.csv").read_text(encoding="utf-8").splitlines()))

    def column(self, name: str) -> list[str]:
        return [row[name] for row in self.rows()]

    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / "optimization_results.yaml").read_text(encoding="utf-8"))
        return found

    def config(self, job: int) -> dict[str, Any]:
        """A job's config.yaml."""
        found: dict[str, Any] = yaml.safe_load((self.folder / str(job) / "config.yaml").read_text(encoding="utf-8"))
        return found

    def files(self) -> dict[Path, bytes]:
        """Everything in the sweep's folder."""
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


def started(notes: list[str]) -> list[int]:
    """The jobs that have begun, in order."""
    return [int(note.split()[0]) for note in notes if " start " in note]


def lrs(rows: list[dict[str, str]]) -> list[float]:
    return [float(row["params_optim.lr"]) for row in rows]
