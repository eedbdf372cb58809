"""Where conf/ is, and how Hydra, in either of its versions, composes it; our sweeper is found once this is imported."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

PACKAGE = Path(__file__).resolve().parent
# Hydra looks for plugins once a process, so our sweeper is there to be found before anything composes, however rookexp
# was installed or not.
PLUGINS = str(PACKAGE / "_hydra")
if PLUGINS not in sys.path:
    sys.path.append(PLUGINS)
SEARCHPATH = "hydra.searchpath="
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
    """Hydra, ready to compose what the flags ask for; the overrides that say where else options are looked for."""
    path = Path(args.config_path).resolve() if args.config_path else conf_dir()
    GlobalHydra.instance().clear()  # a failed start leaves one behind
    with hydra.initialize_config_dir(str(path), **version_base()):
        yield searchpath(args.overrides, args.config_dir)


def searchpath(overrides: Sequence[str], config_dir: str | None = None) -> list[str]:
    """One override for the search path that was typed and a --config-dir together; [] without either."""
    parsed = OverridesParser.create().parse_overrides([text for text in overrides if text.startswith(SEARCHPATH)])
    typed: Any = [override.value() for override in parsed]
    places = [str(place) for value in typed for place in (value if isinstance(value, list) else [value])]
    places += [f"file://{Path(config_dir).resolve()}"] if config_dir else []
    return [f"{SEARCHPATH}[{','.join(map(quoted, places))}]"] if places else []


def quoted(text: object) -> str:
    """A value as Hydra's grammar takes it, whatever characters are in it."""
    inside = str(text).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"'{inside}'"
