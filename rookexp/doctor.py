"""`python -m rookexp.doctor`: the self-check of the run that `rookexp.train` would start with the same arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rookexp.config import door

HEADER = "The self-check of the training that the same words would start: python -m rookexp.doctor"


def main() -> None:
    """Entry point: composes the config of a training, then runs its self-check."""
    if {"--help", "-h"} & set(sys.argv):
        sys.argv.append(f"hydra.help.header='{HEADER}'")
    door.enter(doctor, "config")


def doctor(config: dict[str, Any], run_folder: Path) -> None:
    """Builds what the config names, trains nothing, and prints each check's result; exit status 1 after a finding."""
    from rookexp import build, session  # these import torch, which --help does not need
    from rookexp.config import across
    from rookexp.self_check import checkup

    build.check_config(config)
    across.tell(config, door.typed())
    session.examine(build.build_training(config, run_folder), checkup.WHOLE)


if __name__ == "__main__":
    main()
