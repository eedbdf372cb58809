"""Recorded decoding steps: what the eager loop samples, by steps that know nothing of the host."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from test_generate import EOT, completions, equal, mixed_prompts, training_logprobs, wild
from tiny import nudged
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rookexp import compiling
from rookexp.draw import Sampling
from rookexp.generate import greedy, sample
from rookexp.models import replays
from rookexp.models.gpt2 import GPT2
from rookexp.models.packed import CopiedLinear
from rookexp.models.replays import CudaGraphs, Replays

SAMPLING = Sampling(0.7, None, None, 20)
HOST = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "_unique", "unique", "bincount")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def tensors(x: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor)]


class Tape(TorchDispatchMode):
    """What a CUDA graph is, on a CPU: a step's operations, to be run again with the same arguments, in the same memory.

    Nothing of Python runs again: what a step takes from the host stays as it was. Recording changes nothing, as little
    as a capture does. An operation that waits for the device, or whose result has a size that is in the data, is
    refused.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.own: set[int] = set()  # the storages that the step makes, which `calls` keeps alive
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # of the others that it writes to
        with self:
            step()
        for written, value in self.before.values():
            written.copy_(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        indices = tensors(args[1]) if name.startswith("index") and "." not in name and len(args) > 1 else []
        assert not name.startswith(HOST), f"{name} waits for the device"
        assert not any(x.dtype == torch.bool for x in indices), f"{name} by a mask has a size that is in the data"
        if func._schema.is_mutable:
            for x in tensors((args, kwargs)):
                storage = x.untyped_storage()
                if storage.data_ptr() not in self.own and storage.data_ptr() not in self.before:
                    whole = torch.empty(0, dtype=x.dtype).set_(storage)
                    self.before[storage.data_ptr()] = whole, whole.clone()
        out = func(*args, **kwargs)
        if not (func._schema.is_mutable or pointers(out) & pointers((args, kwargs))):
            self.own |= pointers(out)
        self.calls.append((func, args, kwargs, out))
        return out

    def __call__(self) -> None:
        for func, args, kwargs, out in self.calls:
            if func._schema.is_mutable:
                func(*args, **kwargs)
            elif not pointers(out) & pointers((args, kwargs)):
                for old, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                    old.copy_(new)


def pointers(x: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors(x)} - {0}


def taped(step: Callable[[], None]) -> Callable[[], None]:
    step()
    return Tape(step)


def rerun(step: Callable[[], None]) -> Callable[[], None]:
    """No recording: for what is not about what a recording knows, and quicker."""
    step()
    return step


def replaying(model: GPT2, record: replays.Record = rerun) -> GPT2:
    """The model with recordings of its own, on the same weights."""
    twin = copy.copy(model)
    twin.replays = Replays(record)
    return twin


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "WINDOW", 8)


def test_the_tape_refuses_what_waits_and_freezes_what_is_the_hosts() -> None:
    x, count = torch.zeros(3), 0

    def step() -> None:
        nonlocal count
        count += 1
        x.add_(torch.ones(3) * count)

    tape = Tape(step)
    assert x.tolist() == [0, 0, 0], "recording changes nothing"
    tape()
    tape()
    assert x.tolist() == [2, 2, 2]
    for waits in (lambda: int(x.sum()), lambda: x.nonzero(), lambda: x[x > 1], lambda: x.unique(), lambda: bool(x[0])):
        with pytest.raises(AssertionError, match="waits for the device|in the data"):
            Tape(waits)


WAYS = [
    Sampling(1.0, None, None, 20),
    Sampling(0.7, None, None, 17),
    Sampling(1.3, 5, 1.0, 20),
    Sampling(0.0, None, None, 20),
    Sampling(1.0, None, None, 100),  # to the last position
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_samples_are_those_of_the_eager_loop(way: Sampling) -> None:
    model, prompts = wild(), mixed_prompts(12)
    expected = sample(model, prompts, range(24), way, EOT)
    assert 0 < expected.truncated.float().mean() < 1
    found = sample(replaying(model, taped), prompts, range(24), way, EOT)
    equal(found, expected)
    assert torch.equal(found.forwards, expected.forwards)


@pytest.mark.parametrize(("group_size", "bunches"), [(1, 6), (3, 6), (5, 30), (6, 12), (8, 12)])
def test_rows_of_a_group_of_any_size_attend_in_bunches(group_size: int, bunches: int) -> None:
    model, prompts = wild(), mixed_prompts(6)
    twin, seeds = replaying(model), range(6 * group_size)
    for _ in range(2):
        equal(sample(twin, prompts, seeds, SAMPLING, EOT), sample(model, prompts, seeds, SAMPLING, EOT))
        prompts = prompts[::-1]
    assert twin.replays is not None
    assert [batch.cache.kept.shape[2] for batch in twin.replays.batches.values()] == [bunches]


def test_recordings_serve_other_prompts_seeds_and_weights() -> None:
    model = wild()
    twin = replaying(model, taped)
    assert twin.replays is not None
    for step in range(3):
        prompts = [[5] * (17 + step), *mixed_prompts(8, longest=10)[step : step + 5]]
        seeds = range(step, 24 + step)
        equal(sample(twin, prompts, seeds, SAMPLING, EOT), sample(model, prompts, seeds, SAMPLING, EOT))
        nudged(model)
        if step == 0:
            (batch,) = twin.replays.batches.values()
            kept, address = dict(batch.replays), batch.cache.kept.data_ptr()
    assert list(twin.replays.batches.values()) == [batch]
    assert set(kept) == {8, 16, 24}
    assert batch.replays == kept, "recorded once"
    assert batch.cache.kept.data_ptr() == address


def test_other_shapes_and_ways_have_recordings_of_their_own_and_share_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, prompts = wild(), mixed_prompts(8)
    twin = replaying(model)
    assert twin.replays is not None
    counts = []
    batches = [(8, 2, SAMPLING), (8, 2, replace(SAMPLING, temperature=1.0)), (3, 2, SAMPLING), (8, 2, SAMPLING)]
    batches += [(8, 3, SAMPLING), (8, 2, SAMPLING)]
    for p, g, way in batches:
        equal(sample(twin, prompts[:p], range(p * g), way, EOT), sample(model, prompts[:p], range(p * g), way, EOT))
        counts.append(len(twin.replays.batches))
        memory = twin.replays.memory
        assert memory is not None
        storages = {batch.cache.kept.untyped_storage().data_ptr() for batch in twin.replays.batches.values()}
        assert storages == {memory.untyped_storage().data_ptr()}
    assert counts == [1, 2, 3, 3, 1, 2], "a larger batch than any before needs more memory, elsewhere"
    equal(greedy(twin, prompts, 12, EOT), greedy(model, prompts, 12, EOT))
    monkeypatch.setattr(replays, "KEPT", 3)
    sample(twin, prompts[:2], range(2), SAMPLING, EOT)
    assert len(twin.replays.batches) == 3


@pytest.mark.parametrize("eot_bias", [-100.0, 100.0])
def test_the_loop_ends_with_the_last_row(eot_bias: float) -> None:
    model, prompts = wild(eot_bias), mixed_prompts(4, longest=10)
    twin = replaying(model)
    equal(sample(twin, prompts, range(8), SAMPLING, EOT), sample(model, prompts, range(8), SAMPLING, EOT))
    assert twin.replays is not None
    (batch,) = twin.replays.batches.values()
    assert batch.steps == (20 if eot_bias < 0 else 1)


@pytest.mark.parametrize("way", [replace(SAMPLING, top_p=0.8), replace(SAMPLING, lookup=2)], ids=str)
def test_what_looks_at_the_device_is_not_recorded(way: Sampling) -> None:
    model, prompts = wild(), mixed_prompts(4)
    twin = replaying(model)
    equal(sample(twin, prompts, range(8), way, EOT), sample(model, prompts, range(8), way, EOT))
    assert twin.replays is not None
    assert not twin.replays.batches


def test_under_autocast_steps_read_copies_of_the_weights_that_are_those_of_now() -> None:
    """As near to the training forward as the eager sampler is: 0.01 nats on average, 0.1 at most."""
    model, prompts = wild(), mixed_prompts(16)
    twin = replaying(model)
    assert twin.replays is not None
    plain = sample(twin, prompts, range(32), SAMPLING, EOT)  # without autocast the weights themselves serve
    equal(plain, sample(model, prompts, range(32), SAMPLING, EOT))
    addresses = set()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            samples = sample(twin, prompts, range(32), SAMPLING, EOT)
            expected = training_logprobs(model, samples, SAMPLING.temperature)
        gap = (samples.logprobs - expected)[samples.mask].abs()
        assert gap.mean() < 0.01
        assert gap.max() < 0.1
        in_fp32 = training_logprobs(model, samples, SAMPLING.temperature)
        assert (samples.logprobs - in_fp32)[samples.mask].abs().max() > 1e-4, "computed in bf16"
        copies = [m for m in twin.replays.twins[torch.bfloat16].modules() if isinstance(m, CopiedLinear)]
        assert len(copies) == 4 * model.config.n_layer + 1
        addresses.add(tuple(x.data_ptr() for m in copies for x in m.copies))
        assert all(x.dtype == torch.bfloat16 for m in copies for x in m.copies)
        nudged(model)
    assert len(addresses) == 1
    equal(sample(twin, prompts, range(32), SAMPLING, EOT), sample(model, prompts, range(32), SAMPLING, EOT))
    (plainly, low) = twin.replays.batches.values()
    assert plainly.model is twin
    assert low.model is not twin


def test_a_copied_model_begins_with_none_and_a_changed_one_has_its_own() -> None:
    model = wild()
    twin, prompts = replaying(model), mixed_prompts(4, longest=10)
    sample(twin, prompts, range(8), SAMPLING, EOT)
    other = copy.deepcopy(twin)
    assert other.replays is not None
    assert not other.replays.batches
    assert other.replays.record is rerun
    nudged(other)
    equal(sample(other, prompts, range(8), SAMPLING, EOT), sample(wild_as(other), prompts, range(8), SAMPLING, EOT))
    assert sample(twin, [prompts[0]] * 4, range(8), SAMPLING, -1).truncated.all(), "the fit's: no row ends"
    assert twin.replays is not None
    assert len(twin.replays.batches) == 2


def wild_as(model: GPT2) -> GPT2:
    plain = wild()
    plain.load_state_dict(model.state_dict())
    return plain


def test_nothing_is_freed_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, dict[str, Any]]] = []

    @contextmanager
    def graph(_: object, **settings: Any) -> Iterator[None]:
        seen.append((gc.isenabled(), settings))
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    graphs: Any = object.__new__(CudaGraphs)
    graphs.pool = graphs.stream = None
    none = Mock(spec=torch.cuda.CUDAGraph)  # a real one needs a GPU
    with pytest.raises(ValueError, match="no"), graphs._capturing(none):
        raise ValueError("no")
    assert seen == [(False, {"pool": None, "stream": None, "capture_error_mode": "thread_local"})]
    assert gc.isenabled()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_cuda_graphs_sample_what_the_eager_loop_samples(
    precision: torch.dtype, triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if triton:
        monkeypatch.setattr(compiling, "_kernels", compiling.triton_kernels())
    model, prompts = wild(0.0), mixed_prompts()
    plain = GPT2(model.config).cuda()
    plain.load_state_dict(model.state_dict())
    twin = copy.copy(plain)
    twin.replays = Replays(CudaGraphs())
    for _ in range(2):
        with torch.autocast("cuda", precision, enabled=precision != torch.float32):
            found, expected = (sample(m, prompts, range(64), SAMPLING, EOT) for m in (twin, plain))
            scored = training_logprobs(plain, found, SAMPLING.temperature)
        same = sum(a == b for a, b in zip(completions(found), completions(expected), strict=True))
        assert same == 64 if precision == torch.float32 else same > 32
        error = (found.logprobs - scored)[found.mask].abs()
        assert error.mean() < (1e-4 if precision == torch.float32 else 0.02)
        nudged_on_gpu(plain)
    (batch,) = {id(batch): batch for batch in twin.replays.batches.values()}.values()
    assert len(batch.replays) == (1 if triton else 3)


def nudged_on_gpu(model: GPT2) -> None:
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draws).cuda())
