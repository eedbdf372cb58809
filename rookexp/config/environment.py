"""The process's environment: W&B's settings in a `.env` file, and output streams that cannot encode every character."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from rookexp.errors import ConfigError

PREFIX = "WANDB_"


def print_any_text() -> None:
    """Makes stdout and stderr print a question mark for each character that their encoding lacks, instead of failing.

    A stream that was closed before the start, as by `>&-`, is replaced by one that discards everything.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def load(folder: Path) -> None:
    """Sets the environment variables `WANDB_*` of the folder's `.env` that are not set already.

    So a key need stand neither in a shell's history nor in a config.

    Raises: ConfigError where there is such a file and it cannot be read; no line of it is shown.
    """
    path = folder / ".env"
    if not path.is_file():
        return
    from dotenv import dotenv_values

    try:
        found = dotenv_values(path, interpolate=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f".env: cannot be read ({type(error).__name__}); allowed: lines NAME=value, in UTF-8"
        ) from None
    for name, value in found.items():
        if name.startswith(PREFIX) and value:
            os.environ.setdefault(name, value)
