"""How long `python -m rookexp.train` takes as a whole, start-up included."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rookexp import track
from rookexp.benchmark.tables import median
from rookexp.errors import RookexpError

POLL_S = 0.02  # between two looks at whether the first step has been logged


def timed(folder: Path, words: Sequence[str]) -> tuple[str, float]:
    """A line with the seconds from the command to its first logged step and to its end, and those of `--cfg job`.

    Beside it the median over the steps of the share in which the run waited for a core, 0 where the run does not tell.
    Raises: RookexpError when the run fails.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "rookexp.train", *words]
    began = time.perf_counter()
    subprocess.run([*command, "--cfg", "job"], stdout=subprocess.DEVNULL, check=True)
    shown_s = time.perf_counter() - began
    metrics, said = folder / "run" / track.METRICS, folder / "train.log"
    first_s: float | None = None
    with said.open("w", encoding="utf-8") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, f"hydra.run.dir={folder / 'run'}"], stdout=log, stderr=log, start_new_session=True
        )
        try:
            while process.poll() is None:
                if first_s is None and metrics.is_file() and any(row["step"] for row in track.read_jsonl(metrics)):
                    first_s = time.perf_counter() - began
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    whole_s = time.perf_counter() - began
    if process.returncode != 0 or first_s is None:
        raise RookexpError(f"python -m rookexp.train: ended with status {process.returncode}; all it said is in {said}")
    steps = [row for row in track.read_jsonl(metrics) if row["step"]]
    line = (
        f"`{' '.join(['python -m rookexp.train', *words])}`: first step logged {first_s:.1f} s after the command, "
        f"{len(steps)} steps in {whole_s:.1f} s, median step {median(steps, 'step_s'):.2f} s; "
        f"`--cfg job` {shown_s:.2f} s"
    )
    return line, float(statistics.median(row.get("core_wait", 0.0) for row in steps))
