"""`python -m rookexp.bench`: our step and TRL's on the same work, and what the machine could do at best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookexp import door


def main() -> None:
    """The door: composes conf/bench.yaml, then measures."""
    door.enter(bench, "bench")


def bench(config: dict[str, Any], run_folder: Path) -> None:
    """Measures what is asked, prints each table, and adds them all to `report` at the end."""
    from rookexp.benchmark import report, runner, settings

    asked = settings.checked(config)
    try:
        section = runner.Runner(asked, config, run_folder, lambda text: print(text, flush=True)).run()
    except KeyboardInterrupt:
        print(f"\ninterrupted: nothing was added to a report; what was measured is in {run_folder}", flush=True)
        raise
    if asked.report is not None:
        report.add(Path(asked.report).expanduser(), section)
        print(f"added to {asked.report}")


if __name__ == "__main__":
    main()
