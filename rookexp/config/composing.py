"""Where conf/ is, and how Hydra 1.3 or 1.4 composes it; importing this module lets Hydra find our sweeper."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from rookexp.errors import ConfigError
from rookexp.run_folder.run_info import SEARCHPATH

PACKAGE = Path(__file__).resolve().parents[1]
# Hydra looks for plugins once per process, so our sweeper must be findable before anything composes, whether rookexp is
# installed or not.
PLUGINS = str(PACKAGE / "_hydra")
if PLUGINS not in sys.path:
    sys.path.append(PLUGINS)
HYDRA_VERSION = tuple(int(part) for part in hydra.__version__.split(".")[:2])


def conf_dir() -> Path:
    """The folder of the YAML files: inside the package when it was installed from a wheel, else beside it."""
    inside, beside = PACKAGE / "conf", PACKAGE.parent / "conf"
    return inside if inside.is_dir() else beside


def version_base() -> dict[str, str]:
    """`version_base` for Hydra 1.3, which warns without it; 1.4 warns with it."""
    return {"version_base": "1.3"} if HYDRA_VERSION < (1, 4) else {}


@contextmanager
def configs(args: Namespace) -> Iterator[list[str]]:
    """Inside, Hydra composes what the flags ask for; yields the overrides that extend its search path."""
    path = main_dir(args)
    GlobalHydra.instance().clear()  # a failed start leaves its state behind
    with hydra.initialize_config_dir(str(path), **version_base()):
        if args.config_dir:  # as Hydra's command line does it; its API has no such flag
            where = create_config_search_path(str(path))
            where.prepend("command-line", f"file://{Path(args.config_dir).resolve()}", anchor="schema")
            GlobalHydra.instance().clear()
            Hydra.create_main_hydra2(task_name="rookexp", config_search_path=where)
        yield searchpath(args.overrides)


def main_dir(args: Namespace) -> Path:
    """The config folder that is searched first: that of `--config-path`, else conf/."""
    return Path(args.config_path).resolve() if args.config_path else conf_dir()


def in_place(typed: str | None) -> list[str]:
    """The flag for a folder in place of conf/, from the working folder: Hydra would begin at a module's.

    Raises: ConfigError where there is no such folder.
    """
    if typed is None or "://" in typed:
        return []
    if not Path(typed).is_dir():
        raise ConfigError(f"--config-path {typed}: no such folder; allowed: one in place of conf/, with all its groups")
    return ["--config-path", str(Path(typed).resolve())]


def searchpath(overrides: Sequence[str]) -> list[str]:
    """The typed search path as a list of one override; [] where none was typed."""
    found = places(overrides)
    return [f"{SEARCHPATH}[{','.join(map(quoted, found))}]"] if found else []


def places(overrides: Sequence[str]) -> list[str]:
    """The entries of the typed search path, in order."""
    parsed = OverridesParser.create().parse_overrides([text for text in overrides if text.startswith(SEARCHPATH)])
    typed: Any = [override.value() for override in parsed]
    return [str(place) for value in typed for place in (value if isinstance(value, list) else [value])]


def refuse_hidden(args: Namespace) -> None:
    """Raises: ConfigError for a user's config file that Hydra would never read: ours of the same name comes first."""
    main = main_dir(args)
    for place in [args.config_dir, *places(args.overrides)]:
        own = Path((place or "").removeprefix("file://"))
        for path in sorted(main.rglob("*.yaml")) if place else ():
            name = path.relative_to(main)
            if (own / name).is_file() and (own / name).read_bytes() != (main / name).read_bytes():
                option = f"{name.parent.as_posix()}={name.stem}" if name.parent.name else f"--config-name {name.stem}"
                raise ConfigError(f"{own / name}: never read, for {option} is one of rookexp's; give it another name")


def quoted(text: object) -> str:
    """A value quoted for Hydra's grammar of overrides, whatever characters are in it."""
    inside = str(text).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"'{inside}'"
