"""`resume=<run folder>` on a command line: the overrides that the run was started with, then those typed now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from rookexp import check

KEY, PLACE = "resume", "hydra.run.dir"
DOORS = {"config": "train", "pretrain": "pretrain"}  # config names whose runs can be continued
SAVED = Path(".hydra")  # written by Hydra into a run's folder
OVERRIDES, HYDRA = SAVED / "overrides.yaml", SAVED / "hydra.yaml"
ALLOWED = "allowed: a run folder with a checkpoint, or null"


def continued(flags: Sequence[str], overrides: Sequence[str], config_name: str) -> list[str]:
    """The whole command line that goes on with a run; as it was without `resume=`, or where that is null.

    A saved override stays unless its key is typed anew. The run's folder becomes Hydra's, and the `.hydra` in it is
    left alone: what was typed is added to it when the run starts, so that a refused command changes nothing.
    Raises: ConfigError for a folder that is no run of this door, and with `-m`.
    """
    typed = {key_of(text): text for text in overrides}
    value = unquoted(typed.get(KEY, "").partition("=")[2])
    if KEY not in typed or config_name not in DOORS or value == "null":
        return [*flags, *overrides]
    if {"-m", "--multirun"} & set(flags):
        raise check.refusal(KEY, value, "not with -m; each job of a sweep has a folder of its own to resume")
    folder = Path(value).expanduser().resolve()
    if not value or not folder.is_dir():
        raise check.refusal(KEY, value, f"no such folder; {ALLOWED}")
    saved = read_saved(folder, value)
    if saved.config_name != config_name and saved.config_name in DOORS:
        command = f"python -m rookexp.{DOORS[saved.config_name]} {KEY}={value}"
        raise check.refusal(KEY, value, f"a run of another door; type {command}")
    kept = [text for text in saved.overrides if key_of(text) not in (*typed, KEY)]
    elsewhere = unquoted(typed.get(PLACE, "").partition("=")[2])
    if elsewhere and Path(elsewhere).expanduser().resolve() != folder:
        raise check.refusal(KEY, value, f"a run goes on in its own folder; leave {typed[PLACE]} out")
    own = [text for key, text in typed.items() if key != KEY]
    place = [f"{KEY}={quoted(folder)}", f"{PLACE}={quoted(folder)}", "hydra.output_subdir=null"]
    theirs = [] if any(flag in ("--config-dir", "-cd") for flag in flags) else saved.flags
    return [*theirs, *flags, *kept, *own, *place]


@dataclass(frozen=True, slots=True)
class Saved:
    """What Hydra has noted of how a run was started."""

    config_name: str
    overrides: list[str]
    flags: list[str]  # --config-dir and its folder, where one was given


def read_saved(folder: Path, value: str) -> Saved:
    """What is noted in a run's folder, which was typed as `value`.

    Raises: ConfigError where nothing is.
    """
    try:
        overrides, about = (yaml.safe_load((folder / name).read_text(encoding="utf-8")) for name in (OVERRIDES, HYDRA))
        sources = about["hydra"]["runtime"]["config_sources"]
        folders = [source["path"] for source in sources if source["provider"] == "command-line"]
        return Saved(
            about["hydra"]["job"]["config_name"], list(overrides), ["--config-dir", *folders] if folders else []
        )
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise check.refusal(KEY, value, f"not a run's folder, for {SAVED} in it cannot be read; {ALLOWED}") from error


def key_of(override: str) -> str:
    """The key or group of an override such as `++optim.lr=1` or `~kl`."""
    return override.lstrip("+~").partition("=")[0]


def unquoted(text: str) -> str:
    """The text without the quotes that Hydra's grammar asks for around odd characters."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def quoted(folder: Path) -> str:
    """The folder as Hydra's grammar takes it, whatever characters are in it."""
    text = str(folder).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"'{text}'"


def keep(folder: Path, overrides: Sequence[str]) -> None:
    """Notes what a run goes on with where the next `resume` reads it; nothing where the run's start was not noted."""
    if (folder / OVERRIDES).is_file():
        own = [text for text in overrides if key_of(text) != KEY]
        (folder / OVERRIDES).write_text(yaml.safe_dump(own), encoding="utf-8")
