"""`resume=<run folder>` on a command line: the overrides that the run was started with, then those typed now."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from rookexp.config import check
from rookexp.config.composing import quoted
from rookexp.errors import ConfigError
from rookexp.files import write_atomic
from rookexp.run_folder.run_info import HYDRA, OVERRIDES, SAVED, Whereabouts, whereabouts

KEY, PLACE = "resume", "hydra.run.dir"
DOORS = {"config": "train", "pretrain": "pretrain"}  # config names whose runs can be continued
SHORT = {"--config-path": "-cp", "--config-dir": "-cd", "--config-name": "-cn"}
ALLOWED = "allowed: a run folder with a checkpoint, or null"


def continued(flags: Sequence[str], overrides: Sequence[str], config_name: str) -> list[str]:
    """The command line that resumes a run; the one given, unchanged, without `resume=` or where that is null.

    A saved override stays unless its key, or the option of its group, is typed again; so does a saved flag that says
    where options are. Hydra's run folder becomes the run's.
    Raises: ConfigError for a folder that is no run of this entry point, for another `hydra.run.dir`, and with `-m`.
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
    if not (folder / SAVED).is_dir() and (held := sorted(folder.glob(f"*/{OVERRIDES}"))):
        raise check.refusal(KEY, value, f"a folder of runs; name one, as {held[0].parent.parent}")
    saved = read_saved(folder, value)
    if (
        saved.place.config_name != config_name and saved.place.config_name in DOORS
    ):  # any other name is a user's own config
        command = f"python -m rookexp.{DOORS[saved.place.config_name]} {KEY}={value}"
        raise check.refusal(KEY, value, f"a run of another door; type {command}")
    groups = tuple(f"{key.rpartition('@')[2]}." for key, text in typed.items() if "." not in key.partition("@")[0])
    kept = [
        text for text in saved.overrides if key_of(text) not in (*typed, KEY) and not key_of(text).startswith(groups)
    ]
    elsewhere = unquoted(typed.get(PLACE, "").partition("=")[2])
    if elsewhere and Path(elsewhere).expanduser().resolve() != folder:
        raise check.refusal(KEY, value, f"a run goes on in its own folder; leave {typed[PLACE]} out")
    if moved := elsewhere_now(saved, kept):
        print(moved, file=sys.stderr)
    own = [text for key, text in typed.items() if key != KEY]
    place = [f"{KEY}={quoted(folder)}", f"{PLACE}={quoted(folder)}"]
    given = {flag.partition("=")[0] for flag in flags}
    theirs = {
        flag: text for flag, text in saved.flags.items() if not given & {flag, SHORT[flag]} and text != config_name
    }
    return [*itertools.chain(*theirs.items()), *flags, *kept, *own, *place]


@dataclass(frozen=True, slots=True)
class Saved:
    """What a run's folder says of how it was started."""

    overrides: list[str]
    flags: dict[str, str]  # those that say where its options are -> their values
    place: Whereabouts


def read_saved(folder: Path, value: str) -> Saved:
    """What a run's folder says of how it was started; `value` is the folder as it was typed.

    Raises: ConfigError where that is missing or cannot be read.
    """
    try:
        overrides = yaml.safe_load((folder / OVERRIDES).read_text(encoding="utf-8"))
        place = whereabouts(folder)
        values = (place.config_path, place.config_dir, place.config_name)
        found = dict(zip(SHORT, values, strict=True))
        flags = {flag: text for flag, text in found.items() if text}
        return Saved([*overrides, *place.searchpath], flags, place)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        if run := next((one for one in folder.parents[:2] if (one / OVERRIDES).is_file()), None):
            raise ConfigError(f"{KEY}={value}: in a run's folder, and not that itself; type {KEY}={run}") from error
        raise check.refusal(KEY, value, f"not a run's folder, for {SAVED} in it cannot be read; {ALLOWED}") from error


def elsewhere_now(saved: Saved, kept: Sequence[str]) -> str:
    """A note for a run that began in another folder, where its relative paths or modules lead; "" for any other."""
    began = saved.place.cwd
    if began is None or Path(began) == Path.cwd():
        return ""
    values = [(text, unquoted(text.partition("=")[2])) for text in kept if key_of(text) not in saved.place.groups]
    there = [(text, value) for text, value in values if value and os.path.exists(os.path.join(began, value))]
    gone = [text for text, value in there if not os.path.exists(value)]
    if gone:
        return f"note: {', '.join(gone)}: not here, but where the run began; go to {began}, or type an absolute path"
    return f"note: the run began in {began}; modules of your own are looked for here" if saved.place.config_dir else ""


def key_of(override: str) -> str:
    """The key or group of an override such as `++optim.lr=1` or `~kl`."""
    return override.lstrip("+~").partition("=")[0]


def unquoted(text: str) -> str:
    """The text without the quotes that Hydra's grammar asks for around odd characters."""
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        return text
    return text[1:-1].replace(f"\\{text[0]}", text[0])


def note(folder: Path, overrides: Sequence[str], about: str) -> None:
    """Writes the overrides that a run was started or resumed with where the next `resume` reads them, as Hydra would.

    Hydra itself would write before the run has checked its folder, even where the run then refuses to start.
    `about`: the text of hydra.yaml.
    """
    (folder / SAVED).mkdir(parents=True, exist_ok=True)
    write_atomic(folder / OVERRIDES, yaml.safe_dump([text for text in overrides if key_of(text) != KEY]))
    write_atomic(folder / HYDRA, about)
