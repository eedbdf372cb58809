"""`python -m rookexp.evaluate`: what a model can do on data it has not seen, with confidence intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookexp.config import door


def main() -> None:
    """Entry point: composes conf/evaluate.yaml, then evaluates."""
    door.enter(evaluate, "evaluate")


def evaluate(config: dict[str, Any], run_folder: Path) -> None:
    """Prints a table per part; writes the files that `Exam.run` lists."""
    from rookexp import build

    build.build_evaluation(config, run_folder).run(tell=print)


if __name__ == "__main__":
    main()
