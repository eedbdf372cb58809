"""`python -m rookexp.evaluate`: a model's figures on held-out documents, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookexp import door


def main() -> None:
    """The door: composes conf/evaluate.yaml, then evaluates."""
    door.enter(evaluate, "evaluate")


def evaluate(config: dict[str, Any], run_folder: Path) -> None:
    """Answers every held-out prompt greedily; prints a table a file and writes figures.json and completions.jsonl."""
    from rookexp import build

    build.build_evaluation(config, run_folder).run(tell=print)


if __name__ == "__main__":
    main()
