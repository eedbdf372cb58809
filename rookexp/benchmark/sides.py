"""The bench's half of the conversation: a side is a child process, and sides take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rookexp import core_wait
from rookexp.errors import RookexpError

HOME = Path(__file__).resolve().parents[2]  # where `rookexp` is imported from
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
PATIENCE_S = 10.0  # for a side to end by itself

Figures = dict[str, Any]


class Side:
    """A child process that does one side's work alone, so that its peak memory is that side's; a context manager."""

    def __init__(self, kind: str, label: str, folder: Path, **spec: Any) -> None:
        self.kind = kind
        self.label = label
        self.folder = folder
        self.spec = {"folder": str(folder), **spec}
        self.about: Figures = {}  # what the side reports about itself when it is ready

    def __enter__(self) -> Side:
        self.folder.mkdir(parents=True, exist_ok=True)
        file, self.log = self.folder / "side.json", self.folder / "side.log"
        file.write_text(json.dumps(self.spec), encoding="utf-8")
        path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rookexp.benchmark.side", self.kind, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | QUIET | {"PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches only the bench, which then closes its sides
            )
        try:
            self.about = self._read("ready")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(0.0 if kind is not None else PATIENCE_S)

    def turn(self, **asked: Any) -> Figures:
        """The figures of one turn; returns when the side is ready for the next: idle while another has its turn.

        They include `core_wait`, the share of its runnable time in which the side waited for a core, where Linux tells.
        Raises: RookexpError when the side has ended.
        """
        assert self.process.stdin is not None
        file = Path(f"/proc/{self.process.pid}/schedstat")
        before = core_wait.seconds(file)
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        figures = self._read("figures")
        share = core_wait.waited_share(before, core_wait.seconds(file))
        self._read("ready", last=True)
        return figures if share is None else figures | {"core_wait": share}

    def close(self, patience_s: float = 0.0) -> None:
        """Closes the side's input, so that it ends; kills the process if that takes longer than `patience_s`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(patience_s)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _read(self, kind: str, *, last: bool = False) -> Figures:
        """The content of the next message, which must be of this kind; with `last`, {} if the side ended well."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line and last and self.process.wait() == 0:
            return {}
        if not line:
            raise self._ended()
        found: Figures = json.loads(line)[kind]
        return found

    def _ended(self) -> RookexpError:
        status = self.process.wait()
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
        return RookexpError(
            f"{self.label}: ended with status {status}: {lines[-1].strip()}; all it said is in {self.log}"
        )


def interleaved(
    sides: Sequence[Side],
    *,
    warmups: int,
    repeats: int,
    tell: Callable[[str], None],
    asked: Mapping[str, Any],
) -> list[list[Figures]]:
    """The figures of each side's measured turns; sides alternate, so that a slow minute of the machine affects all."""
    found: list[list[Figures]] = [[] for _ in sides]
    for turn in range(warmups + repeats):
        words = []
        for side, figures in zip(sides, found, strict=True):
            figures.append(side.turn(**asked))
            words.append(f"{side.label} {figures[-1]['seconds']:.3f} s")
        counted = f"turn {turn - warmups + 1} of {repeats}" if turn >= warmups else "warm-up"
        tell(f"  {counted}: {', '.join(words)}")
    return [figures[warmups:] for figures in found]
