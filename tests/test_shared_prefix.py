"""Attention of rows with shared prompts: the same by pieces, by any split of them, and by PyTorch's kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rookexp.models import shared_prefix
from rookexp.models.shared_prefix import SharedPrefix

HEADS, WIDTH = 3, 12
LENGTHS = torch.tensor([5, 1, 7, 3])  # the last prompt has no row
OWNER = torch.tensor([2, 0, 2, 1, 0, 2])
SIZES = torch.tensor([6, 1, 4, 3, 2, 6])


def prefix(sizes: Tensor = SIZES) -> SharedPrefix:
    tokens = torch.arange(100, 100 + 4 * 7).view(4, 7), torch.arange(6 * 6).view(6, 6)
    return SharedPrefix(tokens[0], LENGTHS, OWNER, tokens[1][:, : int(sizes.max())], sizes, HEADS)


def projections(rows: SharedPrefix, dtype: torch.dtype = torch.double) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(rows.tokens), 3 * WIDTH, generator=generator, dtype=torch.double).to(dtype)


def values_and_gradient(attend: Callable[[Tensor], Tensor], qkv: Tensor) -> tuple[Tensor, Tensor]:
    qkv = qkv.clone().requires_grad_()
    out = attend(qkv)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.double).to(out.dtype)
    return out.detach(), torch.autograd.grad(out, qkv, direction)[0]


def test_tokens_lie_prompts_first_then_rows_by_prompt() -> None:
    rows = prefix()
    assert rows.tokens.tolist() == [
        *range(100, 105), 107, *range(114, 121), *range(121, 124),  # prompts
        24, 18, 19, *range(5), 12, 13, 14, *range(30, 35),
    ]  # fmt: skip
    assert rows.positions.tolist() == [
        *range(5), 0, *range(7), *range(3), 5, 1, 2, *range(7, 12), 7, 8, 9, *range(7, 12)
    ]  # fmt: skip
    found = rows.apart(rows.tokens[:, None].float())[..., 0].int().tolist()  # the token that predicts each
    prompts_end = [120, 104, 120, 107, 104, 120]
    completions = torch.arange(36).view(6, 6).tolist()
    for row, size in enumerate(SIZES.tolist()):
        assert found[row][:size] == [prompts_end[row], *completions[row][: size - 1]]


@pytest.mark.parametrize(
    "sizes",
    [SIZES, torch.full_like(SIZES, 6), torch.ones_like(SIZES), torch.tensor([0, 3, 0, 0, 5, 6])],
    ids=["ragged", "even", "one", "none"],
)
@pytest.mark.parametrize(("cached", "block"), [(1, 96), (800, 96), (8 << 20, 96), (8 << 20, 2), (800, 1)])
def test_pieces_of_any_size_give_what_pytorchs_kernels_give(
    sizes: Tensor, cached: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prefix, "CACHED_BYTES", cached)
    monkeypatch.setattr(shared_prefix, "BLOCK", block)
    rows = prefix(sizes)
    qkv = projections(rows)
    if cached == 1:
        assert all(piece.shape[0] == 1 for piece in rows.pieces)
    for found, expected in zip(
        values_and_gradient(rows.attend, qkv), values_and_gradient(rows._masked, qkv), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_piece_holds_no_more_weights_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefix, "CACHED_BYTES", 4 * HEADS * 2 * 5 * 12)
    shapes = [piece.shape for piece in prefix().pieces]
    assert shapes == [(2, 5), (2, 7), (1, 1), (1, 2), (1, 5), (2, 5)]  # prompts, then rows


def test_products_of_bf16_attend_in_fp32_and_keep_nothing_but_themselves() -> None:
    rows = prefix()
    qkv = projections(rows, torch.bfloat16)
    kept: list[Tensor] = []
    with (
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x),
    ):
        found, gradient = values_and_gradient(rows.attend, qkv)
    assert [(x.dtype, x.shape) for x in kept] == [(torch.bfloat16, qkv.shape)]
    assert found.dtype == gradient.dtype == torch.bfloat16
    exact, exact_gradient = values_and_gradient(rows.attend, qkv.double())
    assert torch.equal(found, exact.bfloat16())
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=0.01, atol=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("sizes", [SIZES, torch.ones_like(SIZES)], ids=["ragged", "one"])
def test_a_gpu_attends_as_a_cpu_does(sizes: Tensor) -> None:
    rows, qkv = prefix(sizes), projections(prefix(sizes), torch.float32)
    tokens = torch.arange(100, 100 + 4 * 7).view(4, 7), torch.arange(6 * 6).view(6, 6)[:, : int(sizes.max())]
    there = SharedPrefix(*(x.cuda() for x in (tokens[0], LENGTHS, OWNER, tokens[1], sizes)), HEADS)
    for found, expected in zip(
        values_and_gradient(lambda x: there.attend(x.cuda()).cpu(), qkv),
        values_and_gradient(rows.attend, qkv),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
