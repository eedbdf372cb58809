"""W&B's settings from a `.env` file, so that a key need not stand in a shell's history or in a config."""

from __future__ import annotations

import os
from pathlib import Path

from rookexp.errors import ConfigError

PREFIX = "WANDB_"


def load(folder: Path) -> None:
    """Puts the `WANDB_*` lines of the folder's `.env` into the environment, where what is set already stays.

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
