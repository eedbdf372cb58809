"""Writes docs/presets.md: what each recipe of conf/experiment sets each axis to, as Hydra composes it.

`python docs/presets.py` (or `make docs`) writes the page; `page()` is its text, which a test compares with the file.
"""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout without an install will do

import hydra  # noqa: E402
from omegaconf import open_dict  # noqa: E402

from rookexp.config import composing, door  # noqa: E402
from rookexp.run_folder import runs  # noqa: E402

EXPERIMENTS = ROOT / "conf" / "experiment"
PAGE = ROOT / "docs" / "presets.md"
WIDTH = 118  # of a line
ABSENT = "-"  # the chosen option has no such key

# Families of recipes, in the order of their columns; a recipe that is in none stands under "Others".
FAMILIES = {
    "Papers": ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo", "reinforce_pp"),
    "Frameworks": ("trl_default", "verl_default", "openrlhf_group_norm"),
    "The log": (
        "overfit_r1", "overfit_r2", "overfit_r3", "overfit_r4", "overfit_r4_repaired", "mini", "mini_legacy",
    ),
}  # fmt: skip
# Recipes of tasks, which leave the algorithm's own keys as they are by default.
TASKS = ("black_repair", "a_openings", "phases", "full")
# Rows: the chosen option of a group and all its values ...
WHOLE = ("loss", "baseline", "kl", "reference", "grpo", "optim", "reward")
# ... or the option alone; then single keys.
CHOICES = ("model", "task")
KEYS = ("task.order", "task.p_style", "task.tasks.P.analysed", "steps")

INTRO = """\
# Presets

Made by `make docs` from [`conf/experiment`](../conf/experiment): do not edit. Every value is what Hydra composes.
`python -m rookexp.train experiment=NAME` runs one; `--cfg job` with it prints all that it sets. What each word means
is in [algorithms.md](algorithms.md).

A row is what you type to change it: `python -m rookexp.train experiment=grpo kl.coef=0.01`. The first row of a group
is its option. Choose another one beside a recipe, and it stands as its file has it, without the recipe's values for
that group: with `experiment=dapo loss=gspo` the clip is GSPO's own 3e-4 and 4e-4.

`-`: the chosen option has no such key. `null`: off, or without limit. With `kl` none there is no reference, and
`grpo.kl_type` says nothing.
"""


def page() -> str:
    """The text of docs/presets.md."""
    found = {path.stem for path in EXPERIMENTS.glob("*.yaml")}
    listed = {name for names in FAMILIES.values() for name in names}
    families: dict[str, Sequence[str]] = {**FAMILIES, "Tasks": TASKS, "Others": sorted(found - listed - {*TASKS})}
    parts = [INTRO]
    for title, names in families.items():
        parts.append(f"## {title}\n")
        parts += [claim(name) for name in names]
        columns = {name: axes(*compose(f"experiment={name}")) for name in names}
        parts += ["", *("\n".join(table(some)) + "\n" for some in cut(columns))]
    return "\n".join(parts)


def claim(name: str) -> str:
    """A recipe's name and claim as a list item, and what to expect of it where that was measured."""
    text = (EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8")
    match = re.search(r"^# Claim: (.*?)(?: Command:.*)?$", text, re.MULTILINE)
    assert match, f"{name}.yaml: no line '# Claim: ...'"
    item = f"- [`{name}`](../conf/experiment/{name}.yaml): {match[1]}"
    if expected := re.search(r"^# (Expect .*)$", text, re.MULTILINE):
        item += f" {expected[1]}"
    return textwrap.fill(item, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


@functools.cache
def compose(*overrides: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration that a command line would run, and the option chosen in each group."""
    door.register_resolvers()
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        composed = hydra.compose("config", list(overrides), return_hydra_config=True)
    chosen = {str(group): str(option) for group, option in composed.hydra.runtime.choices.items()}
    with open_dict(composed):
        del composed["hydra"]
    return door.plain(composed), chosen


def axes(config: Mapping[str, Any], chosen: Mapping[str, str]) -> dict[str, str]:
    """The value of every axis, by the key that changes it."""
    flat = {key: spell(value) for key, value in runs.flat(config).items() if key.rpartition(".")[2][:1] != "_"}
    rows: dict[str, str] = {}
    for group in WHOLE:
        rows[group] = chosen[group]
        rows |= {key: value for key, value in flat.items() if key.startswith(f"{group}.")}
    rows |= {group: chosen[group] for group in CHOICES}
    return rows | {key: flat[key] for key in KEYS if key in flat}


def spell(value: Any) -> str:
    """A value as one types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(spell, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def cut(columns: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, Mapping[str, str]]]:
    """The columns in as few groups as keep a table's lines within WIDTH, in order."""
    some: dict[str, Mapping[str, str]] = {}
    for name, column in columns.items():
        wider = {**some, name: column}
        if some and max(map(len, table(wider))) > WIDTH:
            yield some
            wider = {name: column}
        some = wider
    if some:
        yield some


def table(columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The lines of a table, a row for each key that any column has; every column is as wide as its widest cell."""
    keys = ordered([list(column) for column in columns.values()])
    grid = [["", *(f"`{name}`" for name in columns)]]
    grid += [[f"`{key}`", *(column.get(key, ABSENT) for column in columns.values())] for key in keys]
    widths = [max(len(row[i]) for row in grid) for i in range(len(grid[0]))]
    grid.insert(1, ["-" * width for width in widths])
    return [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in grid]


def ordered(lists: Sequence[Sequence[str]]) -> list[str]:
    """All keys once, each after the one that it follows in the first list that has it."""
    keys: list[str] = []
    for names in lists:
        place = 0
        for name in names:
            if name not in keys:
                keys.insert(place, name)
            place = keys.index(name) + 1
    return keys


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
