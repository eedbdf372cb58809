"""The matrix products of a step and nothing else: no program that computes them in this way is faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rookexp import ops
from rookexp.benchmark.turns import Turns, now
from rookexp.benchmark.workload import config_of
from rookexp.config import nodes
from rookexp.hardware import Hardware
from rookexp.models.gpt2 import GPT2Config


class Products:
    """Products with a model's shapes, each layer with its own matrix, computed by PyTorch in eager mode."""

    def __init__(self, config: GPT2Config, dtype: torch.dtype, device: str) -> None:
        d = config.n_embd
        shapes = [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]  # out, in
        self.blocks = [
            torch.ones(*shape, dtype=dtype, device=device) for _ in range(config.n_layer) for shape in shapes
        ]
        self.head = torch.ones(config.vocab_size, d, dtype=dtype, device=device)
        self.inputs: dict[tuple[int, int], Tensor] = {}
        self.flop = 0  # floating-point operations of all products so far

    def through_blocks(self, rows: int, *, learning: bool = False) -> None:
        """The blocks' products for `rows` tokens: forward, and with `learning` also backward."""
        for matrix in self.blocks:
            self._product(matrix, rows, learning)

    def through_head(self, rows: int, *, learning: bool = False) -> None:
        """The same for the head's products."""
        self._product(self.head, rows, learning)

    def _product(self, matrix: Tensor, rows: int, learning: bool) -> None:
        n, k = matrix.shape
        x = self._ones(rows, k, like=matrix)
        torch.nn.functional.linear(x, matrix)
        if learning:
            grad = self._ones(rows, n, like=matrix)
            torch.mm(grad, matrix)  # gradient of the input
            torch.mm(grad.T, x)  # gradient of the matrix
        self.flop += 2 * rows * n * k * (3 if learning else 1)

    def _ones(self, rows: int, width: int, *, like: Tensor) -> Tensor:
        key = (rows, width)
        if key not in self.inputs:
            self.inputs[key] = torch.ones(*key, dtype=like.dtype, device=like.device)
        return self.inputs[key]


def step(spec: Mapping[str, Any], turns: Turns) -> None:
    """Measures the seconds and operations of a step's products in each turn, with completions of full length.

    Prompts go through decoding, reference and learning once each, the head sees completion tokens alone, and a
    micro-batch has the rows that the trainer gives it: `roofline.step_flop`, less the last token's decoding.
    """
    config, grpo = config_of(spec["size"]), spec["config"]["grpo"]
    hardware: Hardware = nodes.make(spec["config"]["hardware"])
    device = hardware.device.type
    products = Products(config, torch.bfloat16 if hardware.precision == "bf16" else torch.float32, device)
    prompts, rows, new = grpo["prompts_per_step"], grpo["prompts_per_step"] * grpo["group_size"], grpo["max_new_tokens"]
    prompt_tokens = round(spec["prompt_tokens"])
    parts = [part.stop - part.start for part in ops.parts(rows, hardware.micro_batch)]
    while True:
        turns.wait()
        products.flop = 0
        began = now(device)
        with torch.no_grad():
            products.through_blocks(prompt_tokens)
            products.through_head(prompts)
            for _ in range(new - 1):  # the last token that is drawn is never fed back
                products.through_blocks(rows)
                products.through_head(rows)
            for part in parts:
                tokens = part * new + prompt_tokens * part // rows
                if spec["reference"]:
                    products.through_blocks(tokens)
                    products.through_head(part * new)
                products.through_blocks(tokens, learning=True)
                products.through_head(part * new, learning=True)
        turns.answer(seconds=now(device) - began, flop=products.flop)
