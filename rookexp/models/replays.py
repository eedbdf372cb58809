"""Decoding steps that are recorded once, as CUDA graphs, and replayed for every token without the host's work."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from rookexp.draw import Sampling, draw
from rookexp.models.kv_cache import KVCache
from rookexp.models.packed import CopiedLinear, product_dtype
from rookexp.models.static_cache import StaticCache

PROMPT_STEP = 16  # prompts are padded to a multiple of this many tokens, so that more batches share a shape
WINDOW = 16  # in tokens: a step reads the cache up to the next multiple of this, and has one recording per multiple
KEPT = 32  # most shapes whose recordings are kept; then the oldest is dropped

Step = Callable[[], None]
Record = Callable[[Step], Step]  # runs a step and returns a function that runs it again: same kernels, same memory


class CudaGraphs:
    """Records steps as CUDA graphs, which share one memory pool for intermediate results: no two run at a time.

    Source: PyTorch's notes on CUDA semantics, "CUDA Graphs".
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.keeper = torch.cuda.CUDAGraph()  # a pool whose last graph is gone cannot be captured into again
        number = torch.zeros(1, device=self.stream.device)
        with self._capturing(self.keeper):
            number.zero_()

    def __call__(self, step: Step) -> Step:
        """Runs the step, to load kernels and make workspaces, which no capture may; then captures it for replay."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step()
        torch.cuda.current_stream().wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with self._capturing(graph):
            step()  # captured, not run
        replay: Step = graph.replay
        return replay

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Captures what runs inside; meanwhile no graph of another model is freed; other threads may use the device."""
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                yield
        finally:
            if collects:
                gc.enable()


class Replays:
    """The recordings of one model's decoding steps, by batch shape and sampling settings.

    All caches share the same `memory`, as large as the largest so far; only one batch is decoded at a time.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.memory: UInt8[Tensor, " b"] | None = None
        self.batches: dict[Hashable, Batch] = {}
        self.twins: dict[torch.dtype, Any] = {}  # copies of the model that compute in another dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> Replays:
        """A copy starts without recordings, because a copied model has its own weights."""
        return Replays(self.record)

    @torch.no_grad()
    def twin(self, dtype: torch.dtype, copied: Callable[[], nn.Module]) -> Any:
        """The copy that `copied` made at the first call, with the current weights written over the old ones in place.

        So no step casts weights, and recordings find them at the same addresses.
        """
        if dtype not in self.twins:
            self.twins[dtype] = copied()
            return self.twins[dtype]
        layers = [layer for layer in self.twins[dtype].modules() if isinstance(layer, CopiedLinear)]
        copies, sources = ([x for layer in layers for x in getattr(layer, name)] for name in ("copies", "sources"))
        torch._foreach_copy_(copies, sources)
        return self.twins[dtype]

    def begin(
        self,
        model: Any,
        cache: KVCache,
        logits: Float[Tensor, "n v"],
        uniforms: Float[Tensor, "t n"],
        sampling: Sampling,
        eot_id: int,
    ) -> Batch:
        """A batch with its first tokens drawn; `model` is packed, `cache` and `logits` come from its prefill."""
        prompts, (steps, n) = len(cache.lengths), uniforms.shape
        size = -(-cache.prompt_keys.shape[3] // PROMPT_STEP) * PROMPT_STEP
        capacity = -(-(steps - 1) // WINDOW) * WINDOW  # the last token drawn is never fed back
        dtype = product_dtype(uniforms.device.type) or cache.prompt_keys.dtype
        key = (dtype, prompts, n, size, capacity, sampling, eot_id)
        room = size, n // prompts, capacity
        needed = math.prod(StaticCache.shape(cache, *room)) * dtype.itemsize
        if self.memory is None or len(self.memory) < needed:
            self.batches.clear()
            self.memory = None  # freed before the new one is allocated
            self.memory = uniforms.new_empty(needed, dtype=torch.uint8)
        if key not in self.batches:
            if len(self.batches) == KEPT:
                del self.batches[next(iter(self.batches))]
            static = StaticCache(cache, *room, dtype, self.memory)
            self.batches[key] = Batch(model, static, n, capacity + 1, sampling, eot_id, self.record)
        batch = self.batches[key]
        batch.begin(cache, logits, uniforms)
        return batch


class Batch:
    """Rows of one shape, decoded in lockstep: finished rows run on, and their output is ignored.

    A step reads and writes only buffers on the device; the only host value it depends on is the cache's window.
    """

    def __init__(
        self, model: Any, cache: StaticCache, n: int, width: int, sampling: Sampling, eot_id: int, record: Record
    ) -> None:
        device = cache.positions.device
        self.model = model
        self.cache = cache
        self.sampling = sampling
        self.eot_id = eot_id
        self.record = record
        self.replays: dict[int, Step] = {}  # by window
        self.steps = 0  # tokens drawn per row, counted on the host
        self.place = torch.zeros(1, dtype=torch.long, device=device)  # the same, on the device
        self.tokens = torch.zeros(n, dtype=torch.long, device=device)  # each row's last token
        self.live = torch.zeros_like(self.tokens, dtype=torch.bool)  # rows without an end-of-text
        self.uniforms = torch.zeros(width, n, device=device)
        self.drawn = self.tokens[:, None].repeat(1, width)
        self.logprobs = torch.zeros(n, width, device=device)

    def begin(self, cache: KVCache, logits: Tensor, uniforms: Tensor) -> None:
        """Starts over with other rows of the same shape and draws their first tokens."""
        self.cache.fill(cache)
        self.uniforms[: len(uniforms)] = uniforms
        self.live.fill_(True)
        self.place.zero_()
        self.steps = 1
        self._draw(logits)

    def step(self) -> None:
        """Draws one more token per row; the first step in each window is recorded."""
        # A kernel finds out on the device how far to read; what PyTorch's attention reads is in the recording.
        window = -(-self.steps // WINDOW) * WINDOW if self.cache.kernels is None else 0
        if window in self.replays:
            self.replays[window]()
        else:
            self.cache.window = window
            self.replays[window] = self.record(self._step)
        self.steps += 1

    def _step(self) -> None:
        """The recorded step: a forward and a draw."""
        with torch.autocast(self.tokens.device.type, enabled=False):  # its weight casts must not be recorded
            self._draw(self.model.logits(self.model.decode(self.tokens, self.cache)))

    def _draw(self, logits: Float[Tensor, "n v"]) -> None:
        """Draws one token per row and stores it and its log-prob."""
        uniforms = self.uniforms.index_select(0, self.place)[0]
        tokens, logprobs = draw(logits, uniforms, self.sampling)
        self.drawn.index_copy_(1, self.place, tokens[:, None])
        self.logprobs.index_copy_(1, self.place, logprobs[:, None])
        self.tokens.copy_(tokens)
        self.place += 1
        self.live &= tokens != self.eot_id
