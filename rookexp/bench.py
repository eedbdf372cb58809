"""`python -m rookexp.bench`: rookexp's step and TRL's on the same work, and the best that the machine could do."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rookexp import stop
from rookexp.config import door
from rookexp.errors import ConfigError, RookexpError


def main() -> None:
    """Entry point: composes conf/bench.yaml, then measures."""
    door.enter(bench, "bench")


def bench(config: dict[str, Any], run_folder: Path) -> None:
    """Measures what the config requests, prints each table, and at the end adds them all to `report`, if set.

    Raises: ConfigError for what cannot be measured, or a run folder that holds an earlier benchmark; RookexpError for a
    side that fails and DataError for a report that cannot be written, naming the file with what was measured.
    """
    from rookexp.benchmark import report, runner, settings

    asked = settings.checked(config)
    earlier = sorted(path.name for path in run_folder.glob("[!.]*") if path.is_dir())
    if earlier:
        raise ConfigError(
            f"hydra.run.dir={run_folder}: has the workloads of an earlier benchmark ({', '.join(earlier)}); "
            "allowed: a new folder; name another one or delete this one"
        )
    try:
        with interruptible():
            section = runner.Runner(asked, config, run_folder, lambda text: print(text, flush=True)).run()
        if asked.report is not None:
            report.add(Path(asked.report).expanduser(), section)
            print(f"added to {asked.report}")
    except (KeyboardInterrupt, SystemExit):
        print(f"\ninterrupted: nothing was added to a report; what was measured is in {run_folder}", flush=True)
        raise
    except RookexpError as error:
        saved = run_folder / runner.SECTION
        if not saved.is_file():
            raise
        raise type(error)(f"{error}; what was measured is in {saved}") from error


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit, so that the processes that were started end, too, as after Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(stop.exit_status(number))

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
