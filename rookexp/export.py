"""`python -m rookexp.export`: a run's model as a Hugging Face folder with a model card, and on the Hub if asked."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from rookexp.config import door
from rookexp.errors import ConfigError, DataError, why

README = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The keys of conf/export.yaml."""

    run: Annotated[str, MinLen(1)] | None  # a run folder, one of its checkpoints, a model's folder or a Hub id
    out: Annotated[str, MinLen(1)] | None  # the folder that is written
    dtype: Literal["float32", "bfloat16"]  # of the weights in the file
    overwrite: bool  # whether an earlier export, or the repository, may already exist
    push: str | None  # a Hub repository, owner/name
    private: bool  # whether that repository is made private


def main() -> None:
    """Entry point: composes conf/export.yaml, then writes."""
    door.enter(export, "export")


def export(config: dict[str, Any], run_folder: Path) -> None:
    """Writes the model of `run` into `out`: weights, config, tokenizer, model card; then pushes it, if `push` is set.

    The folder then has these files and no others; an earlier export in its place is removed entirely.

    Raises: ConfigError for arguments that are not allowed, before a model is loaded; DataError for a model that cannot
    be read, written or pushed.
    """
    from rookexp.config import nodes

    asked = Export(**nodes.check_groups(config, (), Export, group_given={}, group_also={}))
    if asked.run is None or asked.out is None:
        key = "run" if asked.run is None else "out"
        raise ConfigError(f"{key}=null: allowed: a folder; type run=RUN out=FOLDER, where RUN is a run's folder")
    out = Path(asked.out).expanduser()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out={asked.out}: a file; allowed: a folder")
    if Path.cwd().is_relative_to(out.resolve()):
        raise ConfigError(f"out={asked.out}: it is replaced whole and you stand in it; allowed: another folder")
    if out.is_dir() and any(out.iterdir()):
        if not asked.overwrite:
            raise ConfigError(f"out={asked.out}: not empty; allowed: a new folder, or add overwrite=true")
        check_earlier(asked.out, out)
    from rookexp import policies
    from rookexp.models import hub, weights
    from rookexp.run_folder import model_card

    if asked.push is not None and not hub.is_repo(asked.push):
        raise ConfigError(f"push={asked.push}: allowed: a Hub repository's owner/name, or null")
    folder = policies.model_folder(hub.fetch(asked.run, None))
    if out.resolve() == folder.resolve():
        raise ConfigError(f"out={asked.out}: the folder that is exported; allowed: another one")
    policy = policies.load(folder)
    origin = model_card.origin_of(folder)
    card = model_card.text(
        asked.push or out.resolve().name, policy.model, origin, source=model_card.shown(asked.run), dtype=asked.dtype
    )
    try:
        with replacing(out.resolve()) as fresh:
            policy.tokenizer.save(fresh)
            (fresh / README).write_text(card, encoding="utf-8")
            weights.save_model(policy.model, fresh, dtype=asked.dtype, tokenizer_file=fresh / "tokenizer.json")
    except OSError as error:
        remedy = "name a folder where you may write"
        raise DataError(f"out={asked.out}: cannot be written ({why(error)}); {remedy}") from error
    print(f"model: {out} ({weights.parameter_count(policy.model)} parameters, {asked.dtype}); card: {out / README}")
    if asked.push is not None:
        address = hub.push(out, asked.push, names=file_names(), private=asked.private, overwrite=asked.overwrite)
        print(f"pushed: {address}")


def file_names() -> tuple[str, ...]:
    """The file names that an export, also an older one, may have."""
    from rookexp.models import weights

    return (*weights.FILES, README)


def check_earlier(typed: str, out: Path) -> None:
    """Raises: ConfigError if the folder is no earlier export, or contains anything else besides."""
    from rookexp.run_folder import model_card

    card = out / README
    if not card.is_file() or model_card.SIGNED not in card.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(f"out={typed}: no earlier export, its {README} is none of ours; allowed: a new folder")
    foreign = sorted(path.name for path in out.iterdir() if path.name not in file_names() or not path.is_file())
    if foreign:
        raise ConfigError(
            f"out={typed}: more than an earlier export, it has {foreign[0]}; move it, or name a new folder"
        )


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yields a new folder beside `folder`, which replaces `folder` on success; after an error nothing has changed.

    First removes new folders that killed processes have left behind. Raises: OSError if it cannot be written.
    """
    for left in folder.parent.glob(f"{glob.escape(folder.name)}.new-*"):
        if left.name.rpartition("-")[2].isdigit():
            shutil.rmtree(left, ignore_errors=True)
    fresh, old = (folder.with_name(f"{folder.name}.{word}-{os.getpid()}") for word in ("new", "old"))
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    finally:
        if not folder.exists() and old.exists():
            old.rename(folder)
        for rest in (fresh, old):
            shutil.rmtree(rest, ignore_errors=True)


if __name__ == "__main__":
    main()
