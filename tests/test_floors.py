"""Imports point down only, and each third-party library has its room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "rookexp"

# Folder, module of the first level, or a folder's module that stands elsewhere than its folder -> floor. A module may
# import its own floor and those below, on floor 2 only those below and its own folder.
FLOORS = {
    **dict.fromkeys(["__init__", "types", "errors", "compiling", "kernels"], 0),
    **dict.fromkeys(
        ["ops", "returns", "schedule", "chess_text", "config.check", "config.hints", "verdict", "statistics"], 1
    ),
    **dict.fromkeys(["draw", "lookup", "shares", "core_wait", "files", "allocator"], 1),
    **dict.fromkeys(["losses", "aggregation", "kl", "coefficients", "baselines", "reference"], 2),
    **dict.fromkeys(["generate", "tokenizers", "optim", "models", "tasks", "rewards"], 2),
    **dict.fromkeys(["objectives", "evaluation"], 3),
    **dict.fromkeys(["trainer", "hardware", "track", "trackers", "checkpoint", "health", "stop", "policies"], 4),
    **dict.fromkeys(["corpora", "run_folder", "self_check", "comparison", "examination", "boards"], 4),
    **dict.fromkeys(
        ["fitting", "probes", "per_task_sampling", "player", "uci_protocol", "game_record", "kernel_check"], 4
    ),
    "config.environment": 4,
    **dict.fromkeys(["config", "run_folder.labels", "run_folder.hub", "run_folder.resume_checks"], 5),
    **dict.fromkeys(["parts", "build", "session", "dry_run", "sweep", "benchmark"], 5),
    **dict.fromkeys(["train", "data", "pretrain", "evaluate", "doctor", "compare", "export", "uci", "bench"], 5),
}
DOORS = ("train", "data", "pretrain", "evaluate", "doctor", "compare", "export", "uci", "bench")
ROOMS = {
    "chess": ("chess_text", "tasks", "rewards", "boards", "uci_protocol", "game_record", "corpora"),
    "tokenizers": ("tokenizers",),
    "safetensors": ("models.weights", "checkpoint"),
    "huggingface_hub": ("models.hub", "run_folder.hub", "checkpoint", "tasks.shards"),
    "pyarrow": ("tasks.shards",),
    "wandb": ("trackers.wandb_tracker",),
    "trackio": ("trackers.trackio_tracker",),
    "dotenv": ("config.environment",),
    "hydra": ("config.door", "config.composing", "config.mistakes", "config.recipes", "run_folder.labels", "sweep"),
    "omegaconf": ("config.door", "config.composing", "config.mistakes", "config.recipes", "run_folder.labels", "sweep"),
    "optuna": ("sweep",),
    "transformers": ("benchmark.theirs",),
    "trl": ("benchmark.theirs",),
    "datasets": ("benchmark.theirs",),
    "triton": ("kernels",),
    "scipy": (),
}
HEAVY = ("torch", "numpy", "wandb", "optuna", "transformers", "chess", "matplotlib")


def modules() -> dict[str, Path]:
    """Dotted names below `rookexp` and their files."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if "hydra_plugins" not in path.parts
    }


def imports(tree: ast.AST, *, at_import: bool) -> Iterator[str]:
    """Dotted names that a module imports; with `at_import` only those that importing it brings in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (at_import and is_later(node)):
            yield from imports(node, at_import=at_import)


def is_later(node: ast.AST) -> bool:
    """Whether what stands inside runs after the import, or never."""
    for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def imported(name: str, *, at_import: bool = False) -> set[str]:
    return set(imports(ast.parse(modules()[name].read_text(encoding="utf-8")), at_import=at_import))


def own(dotted: str) -> str | None:
    """The module of ours that an imported name is or comes from; None for another library's."""
    first, *rest = dotted.split(".")
    if first != "rookexp":
        return None
    known = modules()
    return next((name for name in (".".join(rest), ".".join(rest[:-1])) if name in known), "__init__")


def floor(name: str) -> int:
    top = name.split(".")[0]
    assert top in FLOORS, f"rookexp/{name} stands on no floor: give it one in tests/test_floors.py"
    return FLOORS.get(name, FLOORS[top])


def test_every_module_has_a_floor_and_every_floor_its_modules() -> None:
    known = set(modules())
    assert {name.split(".")[0] for name in known} == {name for name in FLOORS if "." not in name}
    assert {name for name in FLOORS if "." in name} <= known
    for rooms in ROOMS.values():
        assert set(rooms) <= {*modules(), *FLOORS}


@pytest.mark.parametrize("name", modules())
def test_imports_point_down(name: str) -> None:
    for other in {own(dotted) for dotted in imported(name)} - {None, name}:
        same_folder = "." in name and name.split(".")[0] == other.split(".")[0]
        beside = floor(other) == floor(name) and (same_folder or floor(name) != 2)
        allowed = floor(other) < floor(name) or beside
        assert allowed, f"rookexp.{name} (floor {floor(name)}) imports rookexp.{other} (floor {floor(other)})"


@pytest.mark.parametrize("name", [n for n in modules() if floor(n) == 3])
def test_objectives_know_no_concrete_part(name: str) -> None:
    folders = {other.split(".")[0] for other in map(own, imported(name)) if other}
    assert not folders & {"models", "tasks", "rewards"}


@pytest.mark.parametrize("name", modules())
def test_a_library_has_one_room(name: str) -> None:
    for library in {dotted.split(".")[0] for dotted in imported(name)} & set(ROOMS):
        rooms = ROOMS[library]
        assert name in rooms or name.split(".")[0] in rooms, f"rookexp.{name} imports {library}, which lives in {rooms}"


@pytest.mark.parametrize("name", [door for door in DOORS if door in modules()])
def test_a_door_opens_without_heavy_imports(name: str) -> None:
    seen, waiting, heavy = set(), [name], {}
    while waiting:
        module = waiting.pop()
        seen.add(module)
        for dotted in imported(module, at_import=True):
            if (inner := own(dotted)) is not None and inner not in seen:
                waiting.append(inner)
            elif dotted.split(".")[0] in HEAVY:
                heavy[dotted.split(".")[0]] = module
    assert not heavy, f"python -m rookexp.{name} --help would import {heavy}"


@pytest.mark.parametrize("folder", sorted({p.parent for p in modules().values()}))
def test_no_re_exports(folder: Path) -> None:
    init = folder / "__init__.py"
    if init.exists() and init.parent != PACKAGE:
        assert not set(imports(ast.parse(init.read_text(encoding="utf-8")), at_import=False))
