"""Pins what a run starts from where that may change: commits of the Hugging Face Hub, and checkpoints of another run.

They are written into the run's config.yaml, and used again when it is resumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rookexp import policies
from rookexp.config import resume
from rookexp.models import hub
from rookexp.run_folder import run_info, runs

KINDS = {"path": "model", "data": "dataset"}  # the key beside `revision` -> what it names on the Hub
COMMIT = re.compile("[0-9a-f]{40}")


def pinned(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the commit in place of every Hub revision, be it a branch, a tag or none.

    A model's path that is a run's folder becomes the model of its newest checkpoint. To be called once the parts of a
    run are built: the commit is that of the snapshot which was fetched for them.
    """
    return {key: _pinned(value) for key, value in config.items()}


def as_before(config: Mapping[str, Any], folder: Path, typed: Sequence[str]) -> dict[str, Any]:
    """The configuration of a run resumed in `folder`, with the Hub commits and the model checkpoint of its last start.

    A key that is `typed` otherwise than at that start keeps its new value, and another repository its new revision.
    """
    found = deepcopy(dict(config))
    if not (folder / run_info.CONFIG).is_file():
        return found
    before, now, then = runs.flat(runs.read_config(folder)), runs.flat(config), runs.overrides(folder)
    for key, value in before.items():
        group, _, last = key.rpartition(".")
        if last == "revision" and COMMIT.fullmatch(str(value)):
            same = all(now.get(f"{group}.{name}") == before.get(f"{group}.{name}") for name in KINDS)
        elif last == "path" and f"{group}.revision" in before and isinstance(now.get(key), str):
            same = Path(now[key]).expanduser() in Path(value).parents
        else:
            continue
        if same and key in now and _about(key, typed) == _about(key, then):
            node = found
            for name in group.split("."):
                node = node[name]
            node[last] = value
    return found


def _about(key: str, overrides: Sequence[str]) -> list[str]:
    """The overrides that affect the value of a key: of the key itself, or of a node above it."""
    return [text for text in overrides if f"{key}.".startswith(f"{resume.key_of(text)}.")]


def _pinned(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return [_pinned(inner) for inner in value] if isinstance(value, list) else value
    found = {key: _pinned(inner) for key, inner in value.items()}
    if "revision" in value:
        for name, kind in KINDS.items():
            if isinstance(value.get(name), str):
                found["revision"] = _commit(value[name], kind, value["revision"]) or value["revision"]
        if isinstance(value.get("path"), str) and (folder := Path(value["path"]).expanduser()).is_dir():
            model = policies.model_folder(folder)
            found["path"] = value["path"] if model == folder else str(model)
    return found


def _commit(repo: str, kind: str, revision: str | None) -> str | None:
    """The commit of a revision in the Hub's cache on this machine; None for a local folder, or if there is none."""
    if Path(repo).expanduser().exists() or not hub.is_repo(repo):
        return None
    import huggingface_hub  # here, because a local folder does not need its import time

    try:
        found = huggingface_hub.snapshot_download(repo, repo_type=kind, revision=revision, local_files_only=True)
    except Exception:  # of several libraries; a commit that is not known is not written
        return None
    return Path(found).name if COMMIT.fullmatch(Path(found).name) else None
