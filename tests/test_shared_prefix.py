"""Attention of rows with shared prompts: the same by pieces, by any split of them, and by PyTorch's kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rookexp.models import flash, shared_prefix
from rookexp.models.shared_prefix import SharedPrefix

HEADS, WIDTH = 3, 12
LENGTHS = torch.tensor([5, 1, 7, 3])  # the last prompt has no row
OWNER = torch.tensor([2, 0, 2, 1, 0, 2])
SIZES = torch.tensor([6, 1, 4, 3, 2, 6])


def arguments(sizes: Tensor = SIZES) -> tuple[Tensor, ...]:
    tokens = torch.arange(100, 100 + 4 * 7).view(4, 7), torch.arange(6 * 6).view(6, 6)
    return tokens[0], LENGTHS, OWNER, tokens[1][:, : int(sizes.max())], sizes


def prefix(sizes: Tensor = SIZES) -> SharedPrefix:
    return SharedPrefix(*arguments(sizes), HEADS)


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


def test_tokens_of_no_row_have_no_part_in_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = prefix()
    monkeypatch.setattr(shared_prefix, "spare", lambda count, device_type: 3)
    rows = prefix()
    assert len(rows.tokens) == len(rows.positions) == len(plain.tokens) + 3
    qkv = projections(plain)
    longer = torch.cat((qkv, qkv.new_full((3, qkv.shape[1]), torch.nan)))
    found, expected = values_and_gradient(lambda x: rows.attend(x)[:-3], longer), values_and_gradient(plain.attend, qkv)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x[: len(y)], y)
        assert (x[len(y) :] == 0).all()
    assert (rows.attend(longer)[-3:] == 0).all()
    torch.testing.assert_close(rows.apart(longer), plain.apart(qkv))
    monkeypatch.setattr(shared_prefix, "spare", lambda count, device_type: 0)
    asked = arguments()[0], LENGTHS, torch.arange(4), arguments()[0][:, :1], torch.ones_like(LENGTHS)
    alone = SharedPrefix(*asked, HEADS)
    monkeypatch.setattr(shared_prefix, "spare", lambda count, device_type: 3)
    qkv = projections(alone)
    longer = torch.cat((qkv, qkv.new_full((3, qkv.shape[1]), torch.nan)))
    torch.testing.assert_close(SharedPrefix(*asked, HEADS).keys_and_values(longer), alone.keys_and_values(qkv))


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


def flash_forward(q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor, *how: Any) -> tuple[Tensor, ...]:
    """What PyTorch's FlashAttention computes, by its definition."""
    most_q, most_k, dropout, causal, debug = how
    assert (dropout, debug) == (0.0, False)
    assert q_ends.dtype == k_ends.dtype == torch.int32
    assert int(q_ends.diff().max()) <= most_q
    assert int(k_ends.diff().max()) <= most_k
    assert (int(q_ends[-1]), int(k_ends[-1])) == (len(q), len(k))
    out, norm = torch.zeros_like(q), q.new_zeros(q.shape[1], len(q))
    for of, at in zip(pairwise(q_ends.tolist()), pairwise(k_ends.tolist()), strict=True):
        queries, keys = slice(*of), slice(*at)
        scores = torch.einsum("qhw,khw->hqk", q[queries], k[keys]) * q.shape[2] ** -0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
        norm[:, queries] = scores.logsumexp(-1)
        out[queries] = torch.einsum("hqk,khw->qhw", scores.softmax(-1), v[keys])
    return out, norm, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, q_ends: Tensor, k_ends: Tensor, *how: Any
) -> tuple[Tensor, ...]:
    """Its backward: the weights of these keys under the given normaliser, and the given output's own product."""
    _, _, dropout, causal, *random = how
    assert dropout == 0
    assert [x.numel() for x in random] == [2, 1]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = q.shape[2] ** -0.5
    for of, at in zip(pairwise(q_ends.tolist()), pairwise(k_ends.tolist()), strict=True):
        queries, keys = slice(*of), slice(*at)
        scores = torch.einsum("qhw,khw->hqk", q[queries], k[keys]) * scale
        weights = (scores - norm[:, queries, None]).exp()
        if causal:
            weights = weights.tril()
        dweights = torch.einsum("qhw,khw->hqk", grad[queries], v[keys])
        dscores = weights * (dweights - (grad[queries] * out[queries]).sum(-1).T[..., None]) * scale
        dq[queries] = torch.einsum("hqk,khw->qhw", dscores, k[keys])
        dk[keys] = torch.einsum("hqk,qhw->khw", dscores, q[queries])
        dv[keys] = torch.einsum("hqk,qhw->khw", weights, grad[queries])
    return dq, dk, dv


@pytest.mark.parametrize(
    "sizes",
    [SIZES, torch.full_like(SIZES, 6), torch.ones_like(SIZES), torch.tensor([0, 3, 0, 0, 5, 6])],
    ids=["ragged", "even", "one", "none"],
)
def test_packed_sequences_attend_as_padded_ones_do(sizes: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = SimpleNamespace(_flash_attention_forward=flash_forward, _flash_attention_backward=flash_backward)
    rows = prefix(sizes)
    qkv = projections(rows)
    monkeypatch.setattr(torch.ops, "aten", kernels)
    found = values_and_gradient(lambda x: flash.PackedAttention.apply(x, rows.spans, HEADS), qkv)
    monkeypatch.undo()
    for x, expected in zip(found, values_and_gradient(rows._masked, qkv), strict=True):
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float32}, False),
        ({"device": torch.device("cpu")}, False),
        ({"shape": (9, 3 * 2 * 12)}, False),  # heads of 12: not a multiple of 8
        ({"shape": (9, 3 * 2 * 192)}, True),
        ({"shape": (9, 3 * 2 * 200)}, False),  # for some cards have no backward for that
        ({"built": False}, False),
        ({"capability": (7, 5)}, False),
        ({"hip": "6.0"}, False),  # whose normalisers lie otherwise
        ({"new": False}, False),
    ],
)
def test_flash_attention_is_for_cards_and_numbers_that_it_takes(
    changed: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "NEW_ENOUGH", changed.pop("new", True))
    monkeypatch.setattr(torch.version, "hip", changed.pop("hip", None))
    built, capability = changed.pop("built", True), changed.pop("capability", (8, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    qkv = {"dtype": torch.bfloat16, "device": torch.device("cuda"), "shape": (9, 3 * 2 * 64)} | changed
    find: Any = inspect.unwrap(flash.usable)
    assert find(SimpleNamespace(**qkv), 2) is expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize(
    "sizes", [SIZES, torch.full_like(SIZES, 6), torch.ones_like(SIZES)], ids=["ragged", "even", "one"]
)
def test_a_gpus_flash_attention_is_what_is_said_here(sizes: Tensor) -> None:
    torch.manual_seed(1)
    rows = prefix(sizes)
    qkv = torch.randn(len(rows.tokens), 3 * HEADS * 16).bfloat16()
    there = SharedPrefix(*(x.cuda() for x in arguments(sizes)), HEADS)
    assert flash.usable(qkv.cuda(), HEADS)
    found = values_and_gradient(lambda x: there.attend(x.cuda()).cpu(), qkv)
    for x, expected in zip(found, values_and_gradient(rows.attend, qkv), strict=True):
        torch.testing.assert_close(x, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("sizes", [SIZES, torch.ones_like(SIZES)], ids=["ragged", "one"])
def test_a_gpu_attends_as_a_cpu_does(sizes: Tensor) -> None:
    rows, qkv = prefix(sizes), projections(prefix(sizes), torch.float32)
    there = SharedPrefix(*(x.cuda() for x in arguments(sizes)), HEADS)
    for found, expected in zip(
        values_and_gradient(lambda x: there.attend(x.cuda()).cpu(), qkv),
        values_and_gradient(rows.attend, qkv),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
