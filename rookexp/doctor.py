"""`python -m rookexp.doctor`: the self-check of the run that the same words behind `rookexp.train` would start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rookexp.config import door

HEADER = "The self-check of the training that the same words would start: python -m rookexp.doctor"


def main() -> None:
    """The door: composes the config of a training, then examines it."""
    if {"--help", "-h"} & set(sys.argv):
        sys.argv.append(f"hydra.help.header='{HEADER}'")
    door.enter(doctor, "config")


def doctor(config: dict[str, Any], run_folder: Path) -> None:
    """Builds what the config names, trains nothing and prints what each check measured; status 1 after a finding."""
    from rookexp import build, session  # torch comes with them; --help does without
    from rookexp.self_check import checkup  # torch comes with them; --help does without

    session.examine(build.build_training(config, run_folder), checkup.WHOLE)


if __name__ == "__main__":
    main()
