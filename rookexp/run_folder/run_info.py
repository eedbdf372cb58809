"""What a run was: resolved configuration, code revision, versions and seeds, written beside its results."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rookexp.files import read_object, write_atomic

PACKAGES = (
    "rookexp", "torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "hydra-core", "omegaconf", "optuna",
    "chess", "wandb",
)  # fmt: skip
SECRET = re.compile(r"(^|[._-])(api_?key|token|password|passwd|secret)$", re.IGNORECASE)
IN_MAPPING = re.compile(r"[{,]\s*['\"]?([^{}:,'\"]*)['\"]?\s*:")  # keys of a typed mapping, as in key={a:1,b:2}
IN_ADDRESS = re.compile(r"://[^/\s:@]*:[^/\s@]+@")  # a password, as in postgresql://user:password@host
INTERPOLATION = re.compile(r"\$\{[^{}]*\}")
HIDDEN = "***"
# Files in a run's folder; SWEEP is in a sweep's folder.
CONFIG, INFO, TRIAL, SWEEP = "config.yaml", "run.json", "trial.json", "sweep.json"
SAVED = Path(".hydra")  # Hydra's record of how the run was started
OVERRIDES, HYDRA = SAVED / "overrides.yaml", SAVED / "hydra.yaml"
SEARCHPATH = "hydra.searchpath="  # the only one of Hydra's own keys that affects what is trained


def write_run_info(
    folder: Path, config: Mapping[str, Any], argv: Sequence[str], found: Mapping[str, Any] | None = None
) -> None:
    """Writes config.yaml (resolved) and run.json (command, revision, versions, seeds) into the run folder.

    `found`: further entries of run.json, such as the resolved hardware settings. A resumed run moves the record of its
    earlier start into the list `earlier_starts`. Values under keys that name a secret are starred; the environment is
    not written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / INFO
    before = read_info(folder)
    earlier = [*before.pop("earlier_starts", ()), before] if before else []
    info = {**_started(config, argv), **(found or {}), "earlier_starts": earlier}
    write_atomic(folder / CONFIG, yaml.safe_dump(redacted(config), sort_keys=False))
    write_atomic(path, json.dumps(info, indent=2) + "\n")


def read_info(folder: Path) -> dict[str, Any]:
    """What run.json says of the last start of the run in a folder; {} where there is none.

    Raises: DataError for a damaged one.
    """
    return read_object(folder / INFO, "delete it")


class Whereabouts(NamedTuple):
    """Where a run began and where its options were looked for."""

    config_name: str
    config_dir: str | None
    searchpath: list[str]  # overrides
    cwd: str | None  # None: not noted
    groups: frozenset[str]
    config_path: str | None  # None: rookexp's own conf/


def whereabouts(folder: Path) -> Whereabouts:
    """Hydra's note of where a run was started.

    Raises: OSError, ValueError, KeyError, TypeError or YAMLError where Hydra's note of it cannot be read.
    """
    about = yaml.safe_load((folder / HYDRA).read_text(encoding="utf-8"))["hydra"]
    runtime = about["runtime"]
    paths = {source["provider"]: source["path"] for source in runtime["config_sources"]}
    searched = [text for text in about.get("overrides", {}).get("hydra", ()) if text.startswith(SEARCHPATH)]
    groups = frozenset(runtime.get("choices") or ())
    name, added, began = about["job"]["config_name"], paths.get("command-line"), runtime.get("cwd")
    return Whereabouts(name, added, searched, began, groups, own_conf(paths.get("main")))


def own_conf(main: str | None) -> str | None:
    """The folder that stood in place of conf/; None for a conf/ of rookexp's, here or in another checkout."""
    folder = Path(main or "conf")
    package = folder.parent / "rookexp" / "__init__.py"
    ours = folder.name == "conf" and (folder.parent.name == "rookexp" or package.is_file())
    return None if ours or not folder.is_dir() else main


def record(config: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    """The entries of run.json for a start, with the configuration, for a command that is no run and writes one file."""
    return {**_started(config, argv), "config": redacted(config)}


def _started(config: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": [_redacted_argument(argument) for argument in argv],
        "git": git_state(),
        "packages": _versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpu_cores": os.cpu_count(),
        "seeds": dict(_seeds(config, "")),
    }


def redacted(value: Any) -> Any:
    """The plain dicts and lists of a configuration, with strings under secret-sounding keys starred."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(inner, str) and SECRET.search(str(key)) else redacted(inner)
            for key, inner in value.items()
        }
    return [redacted(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_secret(argument: str) -> bool:
    """Whether a command-line word `key=value`, or `key={inner:value}`, gives a value to a secret-sounding key, or holds
    an address with a password that is not interpolated."""
    key, equals, value = argument.partition("=")
    named = bool(equals) and any(SECRET.search(name.strip()) for name in (key, *IN_MAPPING.findall(value)))
    return named or IN_ADDRESS.search(INTERPOLATION.sub("", value)) is not None


def git_state() -> dict[str, Any] | None:
    """Commit and whether tracked or new files differ from it; None where this code is not under git's control."""
    home = Path(__file__).parent
    if not _git(home, "ls-files", Path(__file__).name):
        return None  # an installed copy inside somebody else's repository, or no git
    return {"revision": _git(home, "rev-parse", "HEAD"), "dirty": bool(_git(home, "status", "--porcelain", ":/"))}


def plain(value: Any) -> Any:
    """The value as JSON has it: None for numbers that are not finite, floats for tensor and NumPy scalars."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    number = float(value)
    return number if math.isfinite(number) else None


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _redacted_argument(argument: str) -> str:
    return f"{argument.partition('=')[0]}={HIDDEN}" if is_secret(argument) else argument


def _seeds(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _seeds(value, f"{prefix}{key}.")
        elif key == "seed" or str(key).endswith("_seed"):
            yield f"{prefix}{key}", value
