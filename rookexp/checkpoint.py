"""A training's state on disk: safetensors and JSON, never pickle; a folder with its final name is complete.

`<run>/checkpoints/step-000050/` holds `model/` (Hugging Face layout, which every command reads), optimizer.safetensors
(the optimizer's state by parameter name), modules.safetensors (baseline, coefficient) and trainer.json (the step, and
size and checksum of every other file). Hyperparameters such as the learning rate or the weight decay are not restored:
the configuration has them, and a resumed run may change them. Nor is any RNG state: draws derive from seed and step.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rookexp import __version__
from rookexp.errors import DataError, NotSaved, why
from rookexp.files import sync_folder, sync_tree
from rookexp.models import weights
from rookexp.models.gpt2 import GPT2

FORMAT = 1
FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d{6,})")
PARTIAL = ".partial-"
TRAINER, OPTIMIZER, MODULES, MODEL = "trainer.json", "optimizer.safetensors", "modules.safetensors", "model"
CHUNK_BYTES = 1 << 22


class Saver:
    """Writes a run's checkpoints in a thread, one at a time; call `wait` before the run ends or they are read."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[Path] | None = None

    def save(self, write: Callable[[], Path]) -> None:
        """Waits for the previous checkpoint, then starts `write`, which `snapshot` returned.

        Raises: NotSaved if the previous checkpoint could not be written.
        """
        self.wait()
        self._pending = self._thread.submit(write)

    def wait(self) -> None:
        """Returns once no checkpoint is being written. Raises: NotSaved if the pending one could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def snapshot(
    run_folder: Path,
    *,
    step: int,
    model: GPT2,
    tokenizer_file: Path | None,
    optimizer: torch.optim.Optimizer,
    modules: Mapping[str, nn.Module],
    keep: int,
) -> Callable[[], Path]:
    """A function that writes a copy of the current state, that after `step` steps, and returns the checkpoint's folder.

    Training may go on before it is called. The folder appears complete, then all checkpoints but the newest `keep` >= 1
    are deleted. The function raises NotSaved if it cannot write (a full disk) and leaves earlier checkpoints untouched.
    """
    tensors, scalars = _optimizer_state(optimizer, _names(model, modules))
    about = {
        "format": FORMAT,
        "step": step,
        "versions": {"rookexp": __version__, "torch": str(torch.__version__)},
        "optimizer": {"kind": type(optimizer).__name__, "scalars": scalars},
    }
    files = {OPTIMIZER: tensors, MODULES: _module_state(modules)}
    return partial(_write, run_folder, copy.deepcopy(model), tokenizer_file, files, about, keep)


def _write(
    run_folder: Path,
    model: GPT2,
    tokenizer_file: Path | None,
    files: Mapping[str, dict[str, Tensor]],
    about: Mapping[str, Any],
    keep: int,
) -> Path:
    """Writes the folder of a snapshot; see `snapshot`."""
    root = run_folder / FOLDER
    final = root / f"step-{about['step']:06d}"
    unfinished = root / f"{PARTIAL}{final.name}"
    try:
        _clear_partials(root)
        unfinished.mkdir(parents=True)
        weights.save_model(model, unfinished / MODEL, dtype="float32", tokenizer_file=tokenizer_file)
        for name, tensors in files.items():
            weights.save_tensors(tensors, unfinished / name)
        whole = {**about, "files": {name: _stamp(unfinished / name) for name in _files(unfinished)}}
        (unfinished / TRAINER).write_text(json.dumps(whole, allow_nan=False) + "\n", encoding="utf-8")
        sync_tree(unfinished)
        if final.exists():  # a resumed run reaches the same step again
            os.replace(final, root / f"{PARTIAL}replaced-{final.name}")
        os.replace(unfinished, final)
        sync_folder(root)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        left = latest(run_folder)
        usable, then = (
            (f"{left} is untouched and usable", "resume") if left else ("there is no earlier one", "begin anew")
        )
        said = f"{final}: checkpoint not written ({why(error)}); {usable}. Free some space and {then}"
        raise NotSaved(said) from error
    _clear_partials(root)
    for old in checkpoints(run_folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(run_folder: Path) -> list[Path]:
    """The run's complete checkpoints, oldest first; unfinished ones have other names."""
    folders = (run_folder / FOLDER).glob("step-*")
    found = [(int(match[1]), path) for path in folders if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def latest(run_folder: Path) -> Path | None:
    """The newest complete checkpoint, None if there is none."""
    return next(reversed(checkpoints(run_folder)), None)


def restore(folder: Path, *, model: GPT2, optimizer: torch.optim.Optimizer, modules: Mapping[str, nn.Module]) -> None:
    """Restores weights, optimizer state and module state bit for bit; changes nothing unless all of it fits.

    Raises: DataError naming the file that is missing, damaged or of another model, optimizer or set of modules. There
    is no silent fallback to an older checkpoint.
    """
    about = _read_about(folder)
    for name, stamp in about["files"].items():
        _check(folder, name, stamp)
    weights_before = weights.load_model(folder / MODEL).state_dict()
    _require_same(folder / MODEL, "weight", weights_before, model.state_dict())
    module_tensors = _load(folder / MODULES)
    anew = f"or begin anew with its weights: model.path={folder / MODEL}"
    way_out = f"go on with the kl, baseline and reference that the run has had, {anew}"
    _require_same(folder / MODULES, "buffer", module_tensors, _module_state(modules), f"; {way_out}")
    kind = about["optimizer"]["kind"]
    if kind != type(optimizer).__name__:
        uses = type(optimizer).__name__
        raise DataError(f"{folder / OPTIMIZER}: state of {kind}, but the run uses {uses}; go on with that, {anew}")
    state = _optimizer_dict(folder / OPTIMIZER, about["optimizer"]["scalars"], optimizer, _names(model, modules))
    model.load_state_dict(weights_before)
    for key, module in modules.items():
        module.load_state_dict({name: module_tensors[f"{key}.{name}"] for name in module.state_dict()})
    optimizer.load_state_dict(state)


def _names(model: nn.Module, modules: Mapping[str, nn.Module]) -> dict[Tensor, str]:
    """The name under which each parameter's state is stored."""
    names: dict[Tensor, str] = {parameter: f"model.{name}" for name, parameter in model.named_parameters()}
    for key, module in modules.items():
        names |= {parameter: f"modules.{key}.{name}" for name, parameter in module.named_parameters()}
    return names


def _module_state(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{key}.{name}": _copy(value) for key, module in modules.items() for name, value in module.state_dict().items()
    }


def _optimizer_state(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors and the plain numbers of the optimizer's state, each by `parameter/entry`."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, float] = {}
    for parameter, entries in optimizer.state.items():
        for entry, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{names[parameter]}/{entry}"] = _copy(value)
            elif value is not None:
                scalars[f"{names[parameter]}/{entry}"] = value
    return tensors, scalars


def _optimizer_dict(
    path: Path, scalars: Mapping[str, float], optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> dict[str, Any]:
    """A state dict with the file's state and the optimizer's own parameter groups."""
    entries: dict[str, dict[str, Any]] = {}
    for key, value in {**_load(path), **scalars}.items():
        name, _, entry = key.rpartition("/")
        entries.setdefault(name, {})[entry] = value
    state = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        own = entries.pop(names[parameter], None)
        if own is None:
            continue  # no gradient has reached it yet
        for entry, value in own.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                raise DataError(f"{path}: {names[parameter]}/{entry} has shape {list(value.shape)}, the parameter "
                                f"{list(parameter.shape)}")  # fmt: skip
        state[index] = own
    if entries:
        raise DataError(f"{path}: state of {min(entries)!r}, which this run does not train")
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


def _require_same(
    path: Path, what: str, found: Mapping[str, Tensor], own: Mapping[str, Tensor], way_out: str = ""
) -> None:
    for name in sorted(found.keys() ^ own.keys()):
        raise DataError(f"{path}: {what} {name!r} is {'not in this run' if name in found else 'missing'}{way_out}")
    for name, value in own.items():
        if found[name].shape != value.shape:
            shapes = f"{list(found[name].shape)}, not {list(value.shape)}"
            raise DataError(f"{path}: {what} {name!r} has shape {shapes}{way_out}")


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / TRAINER
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise DataError(f"{path}: checkpoint format {about['format']}; this version reads {FORMAT}")
        _ = about["files"], about["optimizer"]["kind"], about["optimizer"]["scalars"]  # the keys that are read later
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: missing or damaged ({why(error)}); {_way_out(folder)}") from error
    return about


def _check(folder: Path, name: str, stamp: Mapping[str, int]) -> None:
    path = folder / name
    found = _stamp(path) if path.is_file() else None
    if found != dict(stamp):
        state = "damaged (its CRC-32 is not that of what was written)"
        if found is None:
            state = "missing"
        elif found["bytes"] != stamp["bytes"]:
            state = f"damaged ({found['bytes']} bytes, {stamp['bytes']} were written)"
        raise DataError(f"{path}: {state}; {_way_out(folder)}")


def _way_out(folder: Path) -> str:
    own = folder.resolve()
    older = list(itertools.takewhile(lambda path: path != own, checkpoints(own.parent.parent)))
    return f"delete {folder} to resume from " + (older[-1].name if older else "the start")


def _load(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read ({why(error)})") from error


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _stamp(path: Path) -> dict[str, int]:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return {"bytes": path.stat().st_size, "crc32": crc}


def _clear_partials(root: Path) -> None:
    for path in root.glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)
