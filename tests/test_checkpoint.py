"""Save and restore: bitwise, atomic, and never from a damaged folder."""

from __future__ import annotations

import errno
import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rookexp import checkpoint
from rookexp.errors import DataError
from rookexp.models.gpt2 import GPT2, GPT2Config


class Ema(nn.Module):
    """A stateful part, with a buffer and a trained parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.scale = nn.Parameter(torch.ones(3))


class Bench:
    """A tiny training: model, AdamW with two groups, one stateful module; draws derive from the step."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        self.model = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=11))
        self.model.init_weights(torch.Generator().manual_seed(0))
        self.modules = {"baseline": Ema(), "coefficient": nn.Identity()}
        named = [*self.model.named_parameters(), *self.modules["baseline"].named_parameters()]
        groups = [
            {"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = optimizer(groups, lr=1e-2)

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            tokens = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(step))
            logits = self.model.logits(self.model.hidden(tokens))
            baseline = self.modules["baseline"]
            loss = logits.logsumexp(-1).mean() * baseline.scale.sum() + baseline.mean.float()
            loss.backward()
            baseline.mean.mul_(0.9).add_(0.1 * loss.detach().double())
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def save(self, folder: Path, step: int, keep: int = 2) -> Path:
        return self.snapshot(folder, step, keep)()

    def snapshot(self, folder: Path, step: int, keep: int = 2) -> Callable[[], Path]:
        return checkpoint.snapshot(
            folder,
            step=step,
            model=self.model,
            tokenizer_file=None,
            optimizer=self.optimizer,
            modules=self.modules,
            keep=keep,
        )

    def restore(self, folder: Path) -> None:
        checkpoint.restore(folder, model=self.model, optimizer=self.optimizer, modules=self.modules)

    def tensors(self) -> dict[str, Tensor]:
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"baseline.{name}": value for name, value in self.modules["baseline"].state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            found |= {f"{index}/{name}": value for name, value in entries.items()}
        return {name: value.clone() for name, value in found.items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("stop", [0, 1, 4])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.SGD])
def test_resumed_training_equals_straight_training_bitwise(
    tmp_path: Path, stop: int, kind: type[torch.optim.Optimizer]
) -> None:
    straight, first, second = Bench(kind), Bench(kind), Bench(kind)
    straight.train(0, 6)
    first.train(0, stop)
    folder = first.save(tmp_path, stop)
    second.train(0, 2)  # whatever state there was is replaced
    second.restore(folder)
    assert same(second.tensors(), first.tensors()) or stop == 0
    second.train(stop, 6)
    assert same(second.tensors(), straight.tensors())


def test_saving_changes_nothing(tmp_path: Path) -> None:
    bench = Bench()
    bench.train(0, 2)
    before, state = bench.tensors(), torch.get_rng_state()
    bench.save(tmp_path, 2)
    assert same(bench.tensors(), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_configured_hyperparameters_win(tmp_path: Path) -> None:
    bench, other = Bench(), Bench()
    bench.train(0, 1)
    folder = bench.save(tmp_path, 1)
    other.optimizer.param_groups[0]["weight_decay"] = 0.5
    other.restore(folder)
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.5


def test_nothing_is_pickled_and_the_folder_is_named_by_step(tmp_path: Path) -> None:
    folder = Bench().save(tmp_path, 50)
    assert folder == tmp_path / "checkpoints" / "step-000050"
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".safetensors", ".json"}
    assert (folder / "model" / "config.json").is_file()


def test_the_newest_are_kept_and_found_by_number(tmp_path: Path) -> None:
    bench = Bench()
    for step in (5, 999_999, 1_000_000):
        bench.save(tmp_path, step)
    names = [path.name for path in checkpoint.checkpoints(tmp_path)]
    assert names == ["step-999999", "step-1000000"]
    assert checkpoint.latest(tmp_path) == tmp_path / "checkpoints" / "step-1000000"
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_a_step_saved_again_is_replaced_and_leftovers_go(tmp_path: Path) -> None:
    bench = Bench()
    bench.save(tmp_path, 1)
    for left in ("step-000009", "step-000001", "replaced-step-000001"):
        (tmp_path / "checkpoints" / f".partial-{left}").mkdir()
    bench.train(0, 1)
    folder = bench.save(tmp_path, 1)
    other = Bench()
    other.restore(folder)
    assert same(other.tensors(), bench.tensors())
    assert [path.name for path in folder.parent.iterdir()] == ["step-000001"]


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "modules.safetensors"])
@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_damage_is_named_and_nothing_is_restored(tmp_path: Path, name: str, harm: str) -> None:
    bench = Bench()
    bench.train(0, 1)
    bench.save(tmp_path, 1)
    bench.train(1, 2)
    path = bench.save(tmp_path, 2) / name
    content = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:-5] if harm == "cut" else content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    other = Bench()
    before = other.tensors()
    size = len(content)
    states = {
        "remove": "missing",
        "cut": rf"damaged \({size - 5} bytes, {size} were",
        "flip": r"damaged \(its CRC-32 is not",
    }
    with pytest.raises(DataError, match=f"{name}: {states[harm]}.*to resume from step-000001"):
        other.restore(checkpoint.latest(tmp_path))
    assert same(other.tensors(), before)


@pytest.mark.parametrize(
    ("damaged", "left"), [(999_998, "the start"), (999_999, "step-999998"), (1_000_000, "step-999999")]
)
def test_the_way_out_of_damage_is_the_checkpoint_before(tmp_path: Path, damaged: int, left: str) -> None:
    folders = [Bench().save(tmp_path, step, keep=3) for step in (999_998, 999_999, 1_000_000)]
    (folder,) = (folder for folder in folders if folder.name == f"step-{damaged}")
    (folder / "trainer.json").unlink()
    why = r"trainer\.json: missing or damaged \(No such file or directory\)"
    with pytest.raises(DataError, match=f"{why}; delete {folder} to resume from {left}$"):
        Bench().restore(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "files": {}, "optimizer": []}']
)
def test_a_damaged_trainer_file_is_named(tmp_path: Path, text: str) -> None:
    folder = Bench().save(tmp_path, 1)
    (folder / "trainer.json").write_text(text)
    with pytest.raises(DataError, match=r"trainer\.json"):
        Bench().restore(folder)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    bench = Bench()
    bench.train(0, 1)
    folder = bench.save(tmp_path, 1)
    with pytest.raises(DataError, match=r"state of AdamW, but the run uses SGD; go on with that, .*model\.path="):
        Bench(torch.optim.SGD).restore(folder)
    other = Bench()
    other.modules = {"baseline": nn.Identity()}
    with pytest.raises(
        DataError, match=r"'baseline\.mean' is not in this run; go on with the kl, baseline .*model\.path="
    ):
        other.restore(folder)
    other = Bench()
    other.model = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=11))
    with pytest.raises(DataError, match="shape"):
        other.restore(folder)
    other = Bench()
    other.optimizer = torch.optim.AdamW([other.model.wte.weight], lr=1e-2)
    with pytest.raises(DataError, match="which this run does not train"):
        other.restore(folder)


class Counting(torch.optim.SGD):
    """Has a number, nothing and a tensor of a size of its own for each parameter."""

    more = 0

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            count, size = self.state[parameter].get("count", 0) + 1, (len(parameter) + self.more, parameter.shape[1])
            self.state[parameter] = {"count": count, "none": None, "sizes": parameter.new_zeros(size)}


def test_plain_numbers_of_the_optimizers_state_come_back(tmp_path: Path) -> None:
    bench, other = Bench(Counting), Bench(Counting)
    bench.train(0, 3)
    other.restore(bench.save(tmp_path, 3))
    for parameter in other.optimizer.param_groups[0]["params"]:
        assert other.optimizer.state[parameter].keys() == {"count", "sizes"}
        assert other.optimizer.state[parameter]["count"] == 3


def test_state_of_another_shape_than_its_parameter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "more", 1)
    bench = Bench(Counting)
    bench.train(0, 1)
    with pytest.raises(DataError, match=r"model\.\S+/sizes has shape \[\d+, 8\], the parameter"):
        Bench(Counting).restore(bench.save(tmp_path, 1))


def fail_to_save(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def fail_to_sync(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("target", "failing"),
    [("rookexp.models.weights.save_file", fail_to_save), ("rookexp.checkpoint.os.fsync", fail_to_sync)],
)
def test_a_full_disk_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, failing: Callable[..., None]
) -> None:
    bench = Bench()
    bench.train(0, 1)
    previous = bench.save(tmp_path, 1, keep=1)
    before = bench.tensors()
    bench.train(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(target, failing)
        with pytest.raises(
            DataError, match=r"step-000002: checkpoint not written .*No space left.*step-000001 is untouched"
        ):
            bench.save(tmp_path, 2, keep=1)
    assert [path.name for path in previous.parent.iterdir()] == [previous.name]
    other = Bench()
    other.restore(previous)
    assert same(other.tensors(), before)


def test_a_first_checkpoint_that_fails_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.weights, "save_file", fail_to_save)
    with pytest.raises(DataError, match="there is no earlier one"):
        Bench().save(tmp_path, 1)
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux tells")
def test_all_is_on_the_disk_before_it_has_its_name_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(checkpoint.os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    before = len(os.listdir("/proc/self/fd"))
    folder = Bench().save(tmp_path, 3)
    assert len(os.listdir("/proc/self/fd")) == before
    partial, root = f"{folder.parent}/.partial-{folder.name}", str(folder.parent)
    below = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert set(synced[:-1]) == {partial, *(f"{partial}/{name}" for name in below)}
    assert synced[-1] == root, "the name itself comes last"


@pytest.mark.skipif(os.name == "nt", reason="the umask is a POSIX one")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_every_file_is_for_whom_the_umask_says(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        folder = Bench().save(tmp_path, 3)
    finally:
        os.umask(before)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


def test_trainer_file_is_plain_json(tmp_path: Path) -> None:
    folder = Bench().save(tmp_path, 3)
    about = json.loads((folder / "trainer.json").read_text())
    modules = (folder / "modules.safetensors").read_bytes()
    assert about["files"]["modules.safetensors"] == {"bytes": len(modules), "crc32": zlib.crc32(modules)}
    assert about["step"] == 3
    assert set(about["files"]) >= {"optimizer.safetensors", "modules.safetensors", "model/model.safetensors"}
    assert about["versions"]["torch"] == torch.__version__


def test_a_checkpoint_written_beside_the_training_has_the_state_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, saver, free = Bench(), checkpoint.Saver(), threading.Event()
    bench.train(0, 2)
    before, write = bench.tensors(), checkpoint.weights.save_file

    def wait_and_write(*args: Any, **more: Any) -> None:
        assert free.wait(10)
        write(*args, **more)

    monkeypatch.setattr(checkpoint.weights, "save_file", wait_and_write)
    saver.save(bench.snapshot(tmp_path, 2))
    bench.train(2, 4)  # meanwhile
    assert checkpoint.latest(tmp_path) is None
    free.set()
    saver.wait()
    bench.restore(checkpoint.latest(tmp_path) or tmp_path)
    assert same(bench.tensors(), before)


def test_an_error_beside_the_training_is_raised_at_the_next_save_or_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, saver = Bench(), checkpoint.Saver()
    bench.save(tmp_path, 1)
    monkeypatch.setattr(checkpoint.weights, "save_file", fail_to_save)
    for ask in (saver.wait, lambda: saver.save(bench.snapshot(tmp_path, 3))):
        saver.save(bench.snapshot(tmp_path, 2))
        with pytest.raises(DataError, match="not written"):
            ask()
    saver.wait()  # said once
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-000001"]
